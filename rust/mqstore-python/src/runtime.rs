//! Rules of calls that leave the interpreter: release, panics, Ctrl-C, fork.
//!
//! A Python store and its iterators share one [`SharedStore`]. It outlives each of them. A forked child leaks it on
//! purpose: the store's threads do not exist there, and a join of them would never end.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use mqstore::Store;
use mqstore::archive::history::ArchiveSource;
use mqstore::delivery::BrokerError;
use mqstore::error::StoreError;
use mqstore::inspect::StoreFiles;
use mqstore::io::{Clock, FaultVfs, OsVfs, SystemClock};
use mqstore::replication::replica_set::MasterStatus;
use mqstore::store::RecoveryProgress;
use mqstore_server::master::Master;
use mqstore_server::share::{SharedStore as Shared, Verbs};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::error::{ForkedProcessError, MQStoreError, RefusedError, broker_to_py, log_notes, to_py, warn};

/// The longest time that a blocking call runs without the interpreter, so that Ctrl-C is handled in time.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// Every store that is alive in this process. Only a thread with the interpreter locks it, so that a fork never copies
/// it locked.
static ALIVE: Mutex<Vec<Weak<SharedStore>>> = Mutex::new(Vec::new());

/// Returns the files of the store in the directory at `path`.
pub(crate) fn files_at(path: &Path) -> StoreFiles {
    StoreFiles::new(Arc::new(OsVfs::new()), Arc::new(SystemClock::new()), path)
}

/// The clock that measures waits.
pub(crate) fn clock() -> &'static SystemClock {
    static CLOCK: LazyLock<SystemClock> = LazyLock::new(SystemClock::new);
    &CLOCK
}

/// Where the core store comes from.
pub(crate) enum Source {
    /// This process alone has it open.
    Own {
        store: Store,
        /// The same store, whose reads continue in the archive.
        reads: Store,
        /// Serves the replicas, if the options say so.
        master: Option<Arc<Master>>,
    },
    /// Several processes share it.
    Shared(Shared),
}

impl Source {
    /// A store that this process alone has open.
    pub(crate) fn own(store: Store, master: Option<Arc<Master>>) -> Self {
        Self::Own { reads: store.continued(), store, master }
    }

    fn store(&self) -> &Store {
        match self {
            Self::Own { store, .. } => store,
            Self::Shared(shared) => shared.store(),
        }
    }

    fn reads(&self) -> &Store {
        match self {
            Self::Own { reads, .. } => reads,
            Self::Shared(shared) => shared.reads(),
        }
    }
}

/// Opens a shared store again, in a child after a fork.
pub(crate) type Reopen = Box<dyn Fn() -> PyResult<Shared> + Send + Sync>;

/// The store that a child has opened for itself, and those that its own children have.
struct ChildSource {
    forks: u32,
    source: Source,
    next: OnceLock<Box<Self>>,
}

/// A core store and the state that the bindings keep for it.
pub(crate) struct SharedStore {
    source: Option<Source>,
    /// What children open instead of the parent's.
    child: OnceLock<Box<ChildSource>>,
    reopen: Option<Reopen>,
    /// The archive of the store, if there is one that can be read.
    archive: Mutex<Option<Arc<ArchiveSource>>>,
    path: String,
    /// The store's file system, if a test injects faults.
    faulty: Option<FaultVfs>,
    /// Number of forks between the process that made this and the current one.
    forks: AtomicU32,
    notes_said: AtomicUsize,
}

impl SharedStore {
    /// Wraps a store and adds it to the list that a fork walks through. `reopen` is only for a shared store.
    pub(crate) fn new(
        source: Source,
        path: String,
        faulty: Option<FaultVfs>,
        reopen: Option<Reopen>,
    ) -> Arc<Self> {
        let shared = Arc::new(Self {
            source: Some(source),
            child: OnceLock::new(),
            reopen,
            archive: Mutex::default(),
            path,
            faulty,
            forks: AtomicU32::new(0),
            notes_said: AtomicUsize::new(0),
        });
        let mut alive = ALIVE.lock().unwrap_or_else(PoisonError::into_inner);
        alive.retain(|entry| entry.strong_count() > 0);
        alive.push(Arc::downgrade(&shared));
        shared
    }

    fn forked_error(&self) -> PyErr {
        ForkedProcessError::new_err((self.path.clone(),))
    }

    /// The error of a verb that a client of a shared store does not have.
    pub(crate) fn only_in_owner(&self, act: &str) -> PyErr {
        let reason = format!("{}: {act} in the process that owns the store (Store.is_owner)", self.path);
        RefusedError::new_err((reason,))
    }

    /// The error of a work queue, lease, consumer or transaction that the parent opened.
    fn stays_with_parent(&self) -> PyErr {
        if self.reopen.is_none() {
            return self.forked_error();
        }
        let advice = "a work queue, lease, consumer or transaction that was open before a fork stays with the parent \
                      process: open it again in the child, from this store";
        ForkedProcessError::new_err((self.path.clone(), advice))
    }

    /// Returns the source of this process. A child of a process that shares the store opens it again, at its first call.
    fn source(&self) -> PyResult<&Source> {
        let forks = self.forks.load(Ordering::Relaxed);
        let source = self.source.as_ref().ok_or_else(|| self.forked_error())?;
        if forks == 0 {
            return Ok(source);
        }
        let reopen = self.reopen.as_ref().ok_or_else(|| self.forked_error())?;
        let mut slot = &self.child;
        loop {
            if let Some(child) = slot.get() {
                if child.forks == forks {
                    return Ok(&child.source);
                }
                slot = &child.next;
                continue;
            }
            let source = Source::Shared(reopen()?);
            if let Err(late) = slot.set(Box::new(ChildSource { forks, source, next: OnceLock::new() }))
                && let Source::Shared(shared) = &late.source
            {
                // Another thread was first.
                let _ = shared.close();
            }
        }
    }

    /// Returns the store, unless this process is a fork of the one that opened it and cannot share it.
    pub(crate) fn store(&self) -> PyResult<&Store> {
        self.source().map(Source::store)
    }

    /// Returns the verbs that only a writer has.
    pub(crate) fn verbs(&self) -> PyResult<Verbs<'_>> {
        Ok(match self.source()? {
            Source::Own { store, .. } => Verbs::Own(store),
            Source::Shared(shared) => Verbs::Shared(shared),
        })
    }

    /// Returns how far the replicas are; `None` for a store that serves none.
    pub(crate) fn replication(&self, py: Python<'_>) -> PyResult<Option<MasterStatus>> {
        match self.source()? {
            Source::Own { master, .. } => Ok(master.as_ref().map(|master| master.status())),
            Source::Shared(shared) => delivered(py, || Verbs::Shared(shared).replication()),
        }
    }

    /// Returns the shared store; `None` if this process alone has it open.
    pub(crate) fn share(&self) -> PyResult<Option<&Shared>> {
        Ok(match self.source()? {
            Source::Own { .. } => None,
            Source::Shared(shared) => Some(shared),
        })
    }

    /// Whether the verbs of a writer go to another process.
    pub(crate) fn is_away(&self) -> PyResult<bool> {
        Ok(self.share()?.is_some_and(|shared| !shared.is_here()))
    }

    /// Closes the store of this process.
    pub(crate) fn close(&self) -> Result<(), StoreError> {
        match self.opened() {
            Some(Source::Own { store, .. }) => store.close(),
            Some(Source::Shared(shared)) => shared.close(),
            None => Ok(()),
        }
    }

    /// Returns what this process has opened; `None` in a child that has opened nothing.
    fn opened(&self) -> Option<&Source> {
        let forks = self.forks.load(Ordering::Relaxed);
        if forks == 0 {
            return self.source.as_ref();
        }
        let mut child = self.child.get()?;
        while child.forks != forks {
            child = child.next.get()?;
        }
        Some(&child.source)
    }

    /// Like [`Self::store`]. After a failed request to the URL of the store, returns that error: answers could be
    /// incomplete.
    pub(crate) fn working(&self) -> PyResult<&Store> {
        let store = self.store()?;
        store.failure().map_or(Ok(store), |failure| Err(to_py(failure)))
    }

    /// Like [`Self::working`], for reads that continue in the archive, if there is one.
    pub(crate) fn reads(&self) -> PyResult<&Store> {
        self.working()?;
        self.source().map(Source::reads)
    }

    /// Returns the archive in which reads continue.
    pub(crate) fn archive(&self) -> Option<Arc<ArchiveSource>> {
        self.archive.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the archive in which reads continue.
    pub(crate) fn set_archive(&self, archive: Option<Arc<ArchiveSource>>) {
        *self.archive.lock().unwrap_or_else(PoisonError::into_inner) = archive;
    }

    /// Returns the path as the caller gave it.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Returns whether the crash that a test injected has happened.
    pub(crate) fn is_dead(&self) -> bool {
        self.faulty.as_ref().is_some_and(FaultVfs::is_dead)
    }

    /// Returns whether this process is a fork of the one that opened the store.
    pub(crate) fn is_forked(&self) -> bool {
        self.forks() > 0
    }

    /// Returns the number of forks since the open.
    fn forks(&self) -> u32 {
        self.forks.load(Ordering::Relaxed)
    }

    /// Returns whether the store is closed. A forked copy that has opened nothing counts as closed, because it has
    /// nothing to close.
    pub(crate) fn is_closed(&self) -> bool {
        match self.opened() {
            Some(Source::Own { store, .. }) => store.is_closed(),
            Some(Source::Shared(shared)) => shared.is_closed(),
            None => true,
        }
    }

    /// Emits each of the store's notes once, as a warning.
    pub(crate) fn say_notes(&self, py: Python<'_>) -> PyResult<()> {
        let known = self.notes_said.load(Ordering::Relaxed);
        let notes = self.working()?.user_notes().warnings(known);
        let said = self.notes_said.fetch_max(known + notes.len(), Ordering::Relaxed);
        for note in notes.iter().skip(said - known) {
            warn(py, &format!("{}: {note}", self.path))?;
        }
        Ok(())
    }

    /// Whether [`Self::say_notes`] has notes to emit.
    pub(crate) fn has_new_notes(&self) -> bool {
        let said = self.notes_said.load(Ordering::Relaxed);
        self.store().is_ok_and(|store| !store.user_notes().warnings(said).is_empty())
    }

    /// Logs the new notes about the delivery of messages.
    pub(crate) fn log_notes(&self, py: Python<'_>) -> PyResult<()> {
        log_notes(py, self.store()?.user_notes())
    }
}

impl Drop for SharedStore {
    fn drop(&mut self) {
        // A shared store has a thread that holds it.
        let _ = self.close();
        if self.is_forked() {
            #[expect(
                clippy::mem_forget,
                reason = "the child has none of the threads that a drop would join"
            )]
            std::mem::forget((self.source.take(), self.child.take()));
        }
    }
}

/// Calls Python's `progress` if the recovery takes long, and checks for Ctrl-C in any case.
pub(crate) fn tell_recovery(progress: Option<&Py<PyAny>>, step: RecoveryProgress) -> PyResult<()> {
    Python::attach(|py| {
        py.check_signals()?;
        if let Some(progress) = progress.filter(|_| step.long) {
            progress.call1(py, (step.stage.name(), step.done_bytes, step.total_bytes))?;
        }
        Ok(())
    })
}

/// A value of the core that is dropped in the process that created it, and leaked in a forked child.
pub(crate) struct ForkGuarded<T> {
    shared: Arc<SharedStore>,
    /// The number of forks at its creation.
    forks: u32,
    value: Option<T>,
}

impl<T> ForkGuarded<T> {
    /// Wraps a value that belongs to the store of `shared`.
    pub(crate) fn new(shared: Arc<SharedStore>, value: T) -> Self {
        Self { forks: shared.forks(), shared, value: Some(value) }
    }

    /// Whether this process is a fork of the one that created the value.
    fn is_forked(&self) -> bool {
        self.shared.forks() != self.forks
    }

    /// Returns the value, unless this process is a fork of the one that created it.
    pub(crate) fn get(&self) -> PyResult<&T> {
        let value = self.value.as_ref().filter(|_| !self.is_forked());
        value.ok_or_else(|| self.shared.stays_with_parent())
    }

    /// Returns the value for a change; `None` in a fork.
    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        if self.is_forked() { None } else { self.value.as_mut() }
    }

    /// Takes the value out; `None` in a fork.
    pub(crate) fn take(&mut self) -> Option<T> {
        if self.is_forked() { None } else { self.value.take() }
    }

    /// Returns the value for a read, also in a fork.
    pub(crate) fn peek(&self) -> Option<&T> {
        self.value.as_ref()
    }
}

impl<T> Drop for ForkGuarded<T> {
    fn drop(&mut self) {
        if self.is_forked() {
            #[expect(
                clippy::mem_forget,
                reason = "the child has none of the parent's threads, which a drop may join or which may hold locks"
            )]
            std::mem::forget(self.value.take());
        }
    }
}

/// Marks every store as owned by the parent process and releases its lock. Called in a forked child.
#[pyfunction]
#[pyo3(name = "_after_fork_in_child")]
pub(crate) fn after_fork_in_child() {
    let alive = ALIVE.lock().unwrap_or_else(PoisonError::into_inner);
    for shared in alive.iter().filter_map(Weak::upgrade) {
        match shared.opened() {
            Some(Source::Own { store, .. }) => store.disown_in_child(),
            Some(Source::Shared(store)) => store.disown_in_child(),
            None => {}
        }
        shared.forks.fetch_add(1, Ordering::Relaxed);
    }
    mqstore_server::close_sockets_in_child();
}

/// Runs `call` with the interpreter released. A panic in it becomes an error.
pub(crate) fn detached<T: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<T, StoreError> + Send,
) -> PyResult<T> {
    released(py, call)?.map_err(to_py)
}

/// Like [`detached`], for a read of `store`. After a failed request to its URL, the result is that error, whatever the
/// call made of it.
pub(crate) fn reading<T: Send>(
    py: Python<'_>,
    store: &Store,
    call: impl FnOnce() -> Result<T, StoreError> + Send,
) -> PyResult<T> {
    settled(store, released(py, call)?).map_err(to_py)
}

/// Replaces the outcome of a call after a failed request to the URL of the store.
pub(crate) fn settled<T>(store: &Store, outcome: Result<T, StoreError>) -> Result<T, StoreError> {
    store.failure().map_or(outcome, Err)
}

/// Like [`detached`], for a call about a topic: the error for an unknown topic suggests the nearest topic of `store`.
pub(crate) fn about_topic<T: Send>(
    py: Python<'_>,
    store: &Store,
    call: impl FnOnce() -> Result<T, StoreError> + Send,
) -> PyResult<T> {
    static UNKNOWN: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    settled(store, released(py, call)?).map_err(|error| match error {
        StoreError::TopicNotFound { topic, queue_id: None } => {
            let make = || {
                let topics = detached(py, || store.topics())?;
                UNKNOWN.import(py, "mqstore._admin.nearest", "unknown_topic")?.call1((topic, topics))
            };
            make().map_or_else(|error| error, PyErr::from_value)
        }
        error => to_py(error),
    })
}

/// Like [`about_topic`], for a verb of a writer.
pub(crate) fn about_topic_verb<T: Send>(
    py: Python<'_>,
    store: &Store,
    call: impl FnOnce() -> Result<T, BrokerError> + Send,
) -> PyResult<T> {
    match released(py, call)? {
        Err(BrokerError::Store(error)) => about_topic(py, store, || Err(error)),
        done => done.map_err(broker_to_py),
    }
}

/// Like [`about_topic`], for long calls. `call` gets a function to call between two steps; after Ctrl-C it returns an
/// error that ends the call.
pub(crate) fn interruptible<T: Send>(
    py: Python<'_>,
    store: &Store,
    call: impl FnOnce(&mut dyn FnMut() -> Result<(), StoreError>) -> Result<T, StoreError> + Send,
) -> PyResult<T> {
    let mut raised = None;
    let mut checked = clock().monotonic();
    let done = about_topic(py, store, || {
        call(&mut || {
            let now = clock().monotonic();
            if now.saturating_sub(checked) < SLICE {
                return Ok(());
            }
            checked = now;
            let signalled = Python::attach(|py| {
                // Raises a pending signal here, during the work.
                py.check_signals()
            });
            signalled.map_err(|error| {
                // Any error ends the work. The caller gets the one that Python raised.
                raised = Some(error);
                StoreError::Closed { path: store.path().to_path_buf() }
            })
        })
    });
    match raised {
        Some(error) => Err(error),
        None => done,
    }
}

/// Like [`detached`], for calls of consumers and work queues.
pub(crate) fn delivered<T: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<T, BrokerError> + Send,
) -> PyResult<T> {
    released(py, call)?.map_err(broker_to_py)
}

/// Runs a call that waits for threads which may need the interpreter, and releases it if this thread has it: a consumer
/// of an Arrow stream may call with the interpreter. `None`, without the call, while the interpreter ends.
pub(crate) fn without_interpreter<T: Send>(call: impl FnOnce() -> T + Send) -> Option<T> {
    Python::try_attach(|py| py.detach(call))
}

fn released<T: Send>(py: Python<'_>, call: impl FnOnce() -> T + Send) -> PyResult<T> {
    py.detach(|| catch_unwind(AssertUnwindSafe(call))).map_err(|panic| bug(panic.as_ref()))
}

/// Returns the error for a panic.
pub(crate) fn bug(panic: &(dyn Any + Send)) -> PyErr {
    let what = panic
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned());
    MQStoreError::new_err((format!("internal error: {what}; this is a bug of mqstore, please report it"),))
}
