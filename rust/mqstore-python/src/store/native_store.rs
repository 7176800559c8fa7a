//! The class `NativeStore`: an open store, shared by everything that works on it. Its methods are in `mod.rs`.

use std::sync::Arc;

use mqstore_base::body_compression::BodyCompression;
use mqstore_engine::Store;
use mqstore_format::Host;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::convert::append_input::{CompressionArguments, MessageBatch, compress_all, rule_for_many};
use crate::convert::append_results::AppendResults;
use crate::convert::arguments::text;
use crate::convert::error::{RemoteStoreError, to_py};
use crate::convert::options::compression_of_call;
use crate::runtime::{SharedStore, detached};

/// The native part of `mqstore.Store`.
#[pyclass(name = "Store", frozen, subclass, module = "mqstore._mqstore")]
pub(crate) struct NativeStore {
    pub(super) shared: Arc<SharedStore>,
    /// The path as given: a name that is not UTF-8 returns to Python unchanged.
    pub(super) path: Py<PyString>,
    /// The `RemoteDirectory` of a store at a URL.
    pub(super) place: Option<Py<PyAny>>,
    pub(super) mode: &'static str,
    pub(super) host: Host,
    pub(super) default_queues: u32,
    pub(super) compression: BodyCompression,
}

impl NativeStore {
    pub(crate) fn core(&self) -> PyResult<&Store> {
        if self.place.is_some() { self.shared.working() } else { self.shared.store() }
    }

    /// Refuses to wait for messages of a store at a URL: its files never change after the open.
    pub(super) fn can_follow(&self, store: &Store) -> PyResult<()> {
        store.refuse_following().map_err(to_py)?;
        if store.is_remote() {
            return Err(RemoteStoreError::new_err((self.shared.path().to_owned(), "follow it")));
        }
        Ok(())
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

    /// Appends the messages that `convert` makes of the arguments, under one lock.
    pub(crate) fn append_all<'py, B: MessageBatch>(
        &self,
        topic: &Bound<'py, PyAny>,
        convert: impl FnOnce() -> PyResult<B>,
        queue_id: Option<&Bound<'py, PyAny>>,
        durable: bool,
        (compression, compress_over): CompressionArguments<'_, 'py>,
    ) -> PyResult<Bound<'py, AppendResults>> {
        let (py, store) = (topic.py(), self.core()?);
        let topic = text("topic", topic)?;
        let queue_id = queue_id.map(crate::convert::arguments::queue_id).transpose()?;
        let batch = convert()?;
        let name = topic.to_str()?;
        let rule = rule_for_many(store, name, self.compression(compression, compress_over)?);
        let compressed = compress_all(py, &batch, &rule)?;
        let messages = batch.messages(name, queue_id, durable);
        let stored = compressed.apply(&messages);
        let appended = detached(py, || store.append_many(&stored))?;
        AppendResults::of(&topic, self.host, appended)
    }

    /// Returns the host in the store's message ids.
    pub(crate) fn host(&self) -> Host {
        self.host
    }
}
