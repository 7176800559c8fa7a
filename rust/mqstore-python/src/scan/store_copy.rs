//! Copies from store to store: the scans and the archive of the source, and the state of a copy of topics.

use std::collections::BTreeMap;
use std::ops::{Deref, Range};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use mqstore::Store;
use mqstore::archive::history::{ArchiveRecords, LogRecord};
use mqstore::delivery::{Broker, BrokerError};
use mqstore::io::{OsVfs, Vfs};
use mqstore::read::{Passed, ScanBatch, ScanRequest};
use mqstore::transfer::{self, CopyOrder, CopyProgress, CopyStores, QueueGap, RawRecords};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::export_rules::{ExportRules, selection};
use super::request::export_request;
use super::running_scan::ScanHandle;
use crate::error::StoreBusyError;
use crate::runtime::{SharedStore, delivered, detached};
use crate::store::NativeStore;

/// The store without its delivery.
type EngineStore = <Store as Deref>::Target;

/// The stores of a copy.
struct OpenStores {
    source: Py<PyAny>,
    target: Arc<SharedStore>,
    /// The source with its archive.
    older: Option<Py<NativeStore>>,
    scan: Option<ScanHandle<RawRecords>>,
    archived: Option<ArchiveRecords>,
}

impl OpenStores {
    fn close(&mut self, py: Python<'_>) {
        let scan = self.scan.take();
        py.detach(|| drop(scan.as_ref().map(ScanHandle::take)));
    }
}

/// The stores of a copy during a step.
struct SteppedStores<'a, 'py> {
    py: Python<'py>,
    stores: &'a mut OpenStores,
}

impl CopyStores for SteppedStores<'_, '_> {
    type Error = PyErr;

    fn run<T: Send>(
        &self,
        step: impl FnOnce(&EngineStore, &Broker) -> Result<T, BrokerError> + Send,
    ) -> PyResult<T> {
        let source = self.stores.scan.as_ref().ok_or_else(|| is_used("it was closed"))?.store()?;
        let target = self.stores.target.store()?;
        delivered(self.py, || step(source, &target.broker()?))
    }

    fn begin_scan(&mut self, request: &ScanRequest) -> PyResult<Range<u64>> {
        self.stores.close(self.py);
        let source = self.stores.source.bind(self.py);
        let scan = ScanHandle::begin(source, request, Arc::new(RawRecords::default))?;
        let range = scan.start..scan.limit;
        self.stores.scan = Some(scan);
        Ok(range)
    }

    fn next_scanned(&mut self) -> PyResult<Option<ScanBatch<RawRecords>>> {
        self.stores.scan.as_ref().map_or(Ok(None), |scan| scan.next(self.py))
    }

    fn has_deleted(&self) -> bool {
        let passed = self.stores.scan.as_ref().map(|scan| scan.passed(self.py));
        passed.is_some_and(|passed| passed.iter().any(|(what, _)| *what == Passed::Deleted))
    }

    fn has_older(&self) -> bool {
        self.stores.older.is_some()
    }

    fn begin_older(&mut self, topics: &[String], range: Range<u64>) -> PyResult<()> {
        let Some(store) = &self.stores.older else { return Ok(()) };
        let (core, shared) = (store.get().core()?, store.get().shared());
        let Some(source) = shared.archive() else { return Ok(()) };
        self.stores.archived = Some(detached(self.py, || {
            let (log_start, _) = core.log().bounds()?;
            source.history(log_start)?.records(topics, range)
        })?);
        Ok(())
    }

    fn next_older(&mut self) -> PyResult<Option<Vec<LogRecord>>> {
        let Some(archived) = &mut self.stores.archived else { return Ok(None) };
        let found = detached(self.py, || archived.next_records())?;
        if found.is_none() {
            self.stores.archived = None;
        }
        self.py.check_signals()?;
        Ok(found)
    }
}

fn is_used(how: &str) -> PyErr {
    StoreBusyError::new_err((format!("cannot continue the copy: {how}; begin another one"),))
}

/// A copy of messages to another store in progress, which a later call resumes. A call at a time.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct StoreCopy {
    running: Mutex<(transfer::StoreCopy, Option<OpenStores>)>,
}

impl StoreCopy {
    /// A thread with the interpreter does not wait for one that has the lock and waits for the interpreter.
    fn running(&self) -> PyResult<MutexGuard<'_, (transfer::StoreCopy, Option<OpenStores>)>> {
        match self.running.try_lock() {
            Ok(running) => Ok(running),
            Err(TryLockError::Poisoned(error)) => Ok(error.into_inner()),
            Err(TryLockError::WouldBlock) => Err(is_used("another thread uses it")),
        }
    }
}

#[pymethods]
impl StoreCopy {
    /// Opens the file of positions `mapping`. An interrupted call with the same digest of its arguments is resumed.
    #[new]
    fn new(
        py: Python<'_>,
        mapping: PathBuf,
        digest: &str,
        topics: Option<Vec<String>>,
        keep_waiting: bool,
    ) -> PyResult<Self> {
        let selection = selection(topics, keep_waiting);
        let vfs: Arc<dyn Vfs> = Arc::new(OsVfs::new());
        let copy = detached(py, || transfer::StoreCopy::open(&vfs, &mapping, digest, selection))?;
        Ok(Self { running: Mutex::new((copy, None)) })
    }

    /// The rules of the interrupted call that this one resumes; None if it resumes none.
    #[getter]
    fn rules(&self) -> PyResult<Option<ExportRules>> {
        let running = self.running()?;
        Ok(running.0.resumed().map(|rules| ExportRules { core: Arc::clone(rules) }))
    }

    /// Whether messages keep their queue offsets.
    #[getter]
    fn keeps(&self) -> PyResult<bool> {
        Ok(self.running()?.0.keeps())
    }

    /// The topics that the copy has created in the target.
    #[getter]
    fn made(&self) -> PyResult<Vec<String>> {
        Ok(self.running()?.0.made().to_vec())
    }

    /// The number of copied messages, and of those with another queue offset than in the source.
    #[getter]
    fn messages(&self) -> PyResult<(u64, u64)> {
        let running = self.running()?;
        Ok((running.0.messages(), running.0.renumbered()))
    }

    /// The numbers of records that are left out, by reason.
    #[getter]
    fn left_out(&self) -> PyResult<BTreeMap<String, u64>> {
        Ok(self.running()?.0.left_out().clone())
    }

    /// The topics whose messages are left out, because the target cannot have a topic of this name.
    #[getter]
    fn refused_topics(&self) -> PyResult<Vec<String>> {
        Ok(self.running()?.0.refused().iter().cloned().collect())
    }

    /// Begins to copy the records that a request for the source selects.
    ///
    /// Args:
    ///     source: the place of the source.
    ///     target: the store to write.
    ///     older: the source with its archive; None if the records before its log are left out.
    ///     request: the request, whose `from` is the log offset at which the copy begins.
    ///     rules: what the copy contains.
    ///     keeps: whether messages keep their queue offsets.
    ///     made: the topics that the copy has created in the target.
    #[expect(clippy::too_many_arguments, reason = "each is a separate argument in Python")]
    fn begin(
        &self,
        source: &Bound<'_, PyAny>,
        target: &Bound<'_, NativeStore>,
        older: Option<Py<NativeStore>>,
        request: &Bound<'_, PyDict>,
        rules: &Bound<'_, ExportRules>,
        keeps: bool,
        made: Vec<String>,
    ) -> PyResult<()> {
        let (shared, host) = (target.get().shared(), target.get().host());
        let (request, rules) = (export_request(request)?, Arc::clone(&rules.get().core));
        let order = CopyOrder { request, rules, keeps, made, host };
        let mut running = self.running()?;
        let (copy, stores) = &mut *running;
        let store = shared.store()?;
        delivered(source.py(), || {
            // A store that is open for reading ends here.
            store.broker()?;
            Ok(copy.begin(store, order)?)
        })?;
        let source = source.clone().unbind();
        *stores = Some(OpenStores { source, target: shared, older, scan: None, archived: None });
        Ok(())
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Copies some messages. Returns the bytes of the log that are done, and all of this pass.
    fn __next__(&self, py: Python<'_>) -> PyResult<Option<(u64, u64)>> {
        let mut running = self.running()?;
        let (copy, stores) = &mut *running;
        let Some(stores) = stores else { return Ok(None) };
        let progress = copy.step(&mut SteppedStores { py, stores })?;
        Ok(progress.map(|CopyProgress { done, total }| (done, total)))
    }

    /// Makes the target durable, and gives the file of positions its name. Returns the length of the file.
    fn publish(&self, target: &Bound<'_, NativeStore>) -> PyResult<u64> {
        let mut running = self.running()?;
        let copy = &mut running.0;
        let store = target.get().core()?;
        detached(target.py(), || copy.publish(store))
    }

    /// Ends the scan of the source. Its threads have stopped when this returns.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let mut running = self.running()?;
        if let Some(stores) = &mut running.1 {
            stores.close(py);
        }
        Ok(())
    }
}

/// The state of a copy of topics in several calls, in a folder. A call at a time.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct TopicCopy {
    core: Mutex<transfer::TopicCopy>,
}

impl TopicCopy {
    fn core(&self) -> PyResult<MutexGuard<'_, transfer::TopicCopy>> {
        self.core.try_lock().map_err(|_| is_used("another thread uses it"))
    }
}

#[pymethods]
impl TopicCopy {
    /// Loads the state in a folder, which exists. Ends the last call if it was interrupted between its last two steps.
    #[new]
    fn new(
        py: Python<'_>,
        folder: PathBuf,
        source: &str,
        target: &str,
        topics: Vec<String>,
    ) -> PyResult<Self> {
        let vfs = Arc::new(OsVfs::new());
        let core = detached(py, || transfer::TopicCopy::open(vfs, &folder, source, target, &topics))?;
        Ok(Self { core: Mutex::new(core) })
    }

    /// The log offset of the source up to which the topics are copied; None before the first call.
    #[getter]
    fn position(&self) -> PyResult<Option<u64>> {
        Ok(self.core()?.position())
    }

    /// The file of positions of the call that runs.
    #[getter]
    fn mapping(&self) -> PyResult<PathBuf> {
        Ok(self.core()?.mapping())
    }

    /// Begins a call that copies up to a log offset of the source.
    ///
    /// Args:
    ///     limit: the log offset.
    ///     first: the first offset that the log has in each queue, named `topic/queue`. None continues a call that was
    ///         interrupted.
    fn begin(&self, py: Python<'_>, limit: u64, first: Option<BTreeMap<String, i64>>) -> PyResult<()> {
        let mut core = self.core()?;
        let core = &mut *core;
        detached(py, || core.begin(limit, first))
    }

    /// Counts the call as complete: its messages are in the target, and its file has its name.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        let mut core = self.core()?;
        let core = &mut *core;
        detached(py, || core.finish())
    }

    /// Returns the offset in the target of the first copied message at or after an offset of the source.
    ///
    /// And whether the copy lacks messages at or after it. None for a queue without copied messages.
    fn translate(&self, topic: &str, queue_id: i32, offset: i64) -> PyResult<Option<(i64, bool)>> {
        Ok(self.core()?.translate(topic, queue_id, offset))
    }

    /// Returns the messages that are not in the copy: topic, queue, and first and end of the offsets.
    fn gaps(&self) -> PyResult<Vec<QueueGap>> {
        Ok(self.core()?.gaps())
    }
}

/// Adds the classes to the native module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<StoreCopy>()?;
    module.add_class::<TopicCopy>()
}
