//! The class `NativeStore`: an open store, shared by everything that works on it. Its methods are in `mod.rs`.

use std::sync::Arc;

use mqstore_base::body_compression::BodyCompression;
use mqstore_engine::Store;
use mqstore_format::Host;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::convert::options::compression_of_call;
use crate::runtime::SharedStore;

/// The native part of `mqstore.Store`.
#[pyclass(name = "Store", frozen, subclass, module = "mqstore._mqstore")]
pub(crate) struct NativeStore {
    pub(super) shared: Arc<SharedStore>,
    /// The path as given: a name that is not UTF-8 returns to Python unchanged.
    pub(super) path: Py<PyString>,
    pub(super) mode: &'static str,
    pub(super) host: Host,
    pub(super) default_queues: u32,
    pub(super) compression: BodyCompression,
}

impl NativeStore {
    pub(crate) fn core(&self) -> PyResult<&Store> {
        self.shared.store()
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
