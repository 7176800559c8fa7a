//! The class `NativeStore`: an open store, as everything that works on it holds it. Its verbs are in `mod.rs`.

use std::sync::Arc;

use mqstore_engine::Store;
use mqstore_format::Host;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::runtime::Shared;

/// The native part of `mqstore.Store`.
#[pyclass(frozen, subclass, module = "mqstore._mqstore")]
pub(crate) struct NativeStore {
    pub(super) shared: Arc<Shared>,
    /// As it was given: a name that is not UTF-8 goes back to Python unharmed.
    pub(super) path: Py<PyString>,
    pub(super) mode: &'static str,
    pub(super) host: Host,
    pub(super) default_queues: u32,
}

impl NativeStore {
    pub(crate) fn core(&self) -> PyResult<&Store> {
        self.shared.store()
    }

    /// What iterators and scans of this store share with it.
    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// The host that its message ids name.
    pub(crate) fn host(&self) -> Host {
        self.host
    }
}
