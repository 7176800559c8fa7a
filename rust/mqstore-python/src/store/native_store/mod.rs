//! The class `NativeStore`: an open store, shared by everything that works on it.
//!
//! `methods.rs` has the methods for Python.

mod appends;
mod methods;
mod opening;
mod reads;
mod waits;

use std::sync::Arc;

use mqstore::Store;
use mqstore::body_compression::BodyCompression;
use mqstore::format::Host;
use mqstore_server::share::Verbs;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::convert::options::compression_of_call;
use crate::runtime::{SharedStore, detached};

/// The native part of `mqstore.Store`.
#[pyclass(name = "Store", frozen, subclass, module = "mqstore._mqstore")]
pub(crate) struct NativeStore {
    shared: Arc<SharedStore>,
    /// The path as given: a name that is not UTF-8 returns to Python unchanged.
    path: Py<PyString>,
    /// The `RemoteDirectory` of a store at a URL.
    place: Option<Py<PyAny>>,
    mode: &'static str,
    host: Host,
    default_queues: u32,
    compression: BodyCompression,
    /// Whether other machines can have copies of the store.
    replicates: bool,
}

impl NativeStore {
    pub(crate) fn core(&self) -> PyResult<&Store> {
        if self.place.is_some() { self.shared.working() } else { self.shared.store() }
    }

    /// Raises the error of a store that is closed or stopped.
    fn check_open(&self, py: Python<'_>) -> PyResult<()> {
        let store = self.core()?;
        detached(py, || store.check())
    }

    /// Returns the verbs of a writer.
    pub(crate) fn verbs(&self) -> PyResult<Verbs<'_>> {
        self.shared.verbs()
    }

    /// Returns the store for reads that continue in the archive, if there is one.
    fn reads(&self) -> PyResult<&Store> {
        self.shared.reads()
    }

    /// Returns the state that iterators and scans share with this store.
    pub(crate) fn shared(&self) -> Arc<SharedStore> {
        Arc::clone(&self.shared)
    }

    /// Returns how a call compresses bodies, by its arguments `compression` and `compress_over`.
    #[inline]
    pub(crate) fn compression(
        &self,
        kind: Option<&Bound<'_, PyAny>>,
        over: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<BodyCompression> {
        compression_of_call(self.compression, kind, over)
    }

    /// Returns the host in the store's message ids.
    pub(crate) fn host(&self) -> Host {
        self.host
    }
}
