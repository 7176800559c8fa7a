//! Rules of calling out of the interpreter: release, panics, Ctrl-C, fork.
//!
//! [`Shared`] is what a Python store and its iterators hold in common. It outlives each of them and is
//! leaked on purpose in a forked child, where the store's threads do not exist and joining them would
//! never end.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::Duration;

use mqstore_base::error::StoreError;
use mqstore_delivery::{Broker, BrokerError};
use mqstore_engine::Store;
use mqstore_io::{Clock, FaultVfs, SystemClock};
use mqstore_log::recovery::RecoveryProgress;
use pyo3::prelude::*;

use crate::convert::error::{ForkedProcessError, MQStoreError, broker_to_py, to_py, warn};

/// The longest that a blocking call stays away from the interpreter, so that Ctrl-C is answered in time.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// Every store that is alive in this process; only touched with the interpreter held, so that a fork
/// never copies it locked.
static ALIVE: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// The clock that waits are measured by.
pub(crate) fn clock() -> &'static SystemClock {
    static CLOCK: LazyLock<SystemClock> = LazyLock::new(SystemClock::new);
    &CLOCK
}

/// A core store with what the bindings have to know of it.
pub(crate) struct Shared {
    store: Option<Store>,
    path: String,
    /// The file system that it is on, where a test has faults.
    faulty: Option<FaultVfs>,
    forked: AtomicBool,
    notes_said: AtomicUsize,
    /// Made with the first consumer or work queue.
    broker: Mutex<Option<Broker>>,
}

impl Shared {
    /// Takes a store and enters it into the list that a fork goes through.
    pub(crate) fn new(store: Store, path: String, faulty: Option<FaultVfs>) -> Arc<Self> {
        let shared = Arc::new(Self {
            store: Some(store),
            path,
            faulty,
            forked: AtomicBool::new(false),
            notes_said: AtomicUsize::new(0),
            broker: Mutex::new(None),
        });
        let mut alive = ALIVE.lock().unwrap_or_else(PoisonError::into_inner);
        alive.retain(|entry| entry.strong_count() > 0);
        alive.push(Arc::downgrade(&shared));
        shared
    }

    /// The store, unless this process is a fork of the one that opened it.
    pub(crate) fn store(&self) -> PyResult<&Store> {
        match &self.store {
            Some(store) if !self.is_forked() => Ok(store),
            _ => Err(ForkedProcessError::new_err((self.path.clone(),))),
        }
    }

    /// The broker of the store, started at the first call; called with the interpreter released.
    pub(crate) fn broker(&self, store: &Store) -> Result<Broker, BrokerError> {
        let mut made = self.broker.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(broker) = made.as_ref() {
            return Ok(broker.clone());
        }
        let broker = Broker::start(store)?;
        Ok(made.insert(broker).clone())
    }

    /// Runs what closes the store; whoever waits to ask about transactions is woken.
    pub(crate) fn closing<T>(&self, close: impl FnOnce() -> T) -> T {
        let broker = self.broker.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(transactions) = broker.and_then(|broker| broker.transactions_if_open()) {
            transactions.end_checks();
        }
        close()
    }

    /// The path as the caller gave it.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Whether a test had its crash come.
    pub(crate) fn is_dead(&self) -> bool {
        self.faulty.as_ref().is_some_and(FaultVfs::is_dead)
    }

    /// Whether this process is a fork of the one that opened the store.
    pub(crate) fn is_forked(&self) -> bool {
        self.forked.load(Ordering::Relaxed)
    }

    /// Whether the store was closed; a forked copy counts as closed, there is nothing left to close.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_forked() || self.store.as_ref().is_none_or(Store::is_closed)
    }

    /// Says each of the store's notes once, as a warning; `frames` is the number of Python frames that
    /// the caller is away, 1 when it calls the native method itself.
    pub(crate) fn say_notes(&self, py: Python<'_>, frames: u32) -> PyResult<()> {
        let notes = self.store()?.notes();
        let said = self.notes_said.swap(notes.len(), Ordering::Relaxed);
        for note in notes.iter().skip(said) {
            warn(py, &format!("{}: {note}", self.path), frames)?;
        }
        Ok(())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.is_forked() {
            #[expect(
                clippy::mem_forget,
                reason = "the child has none of the threads that a drop would join"
            )]
            std::mem::forget((self.store.take(), self.broker.get_mut().map(Option::take)));
        }
    }
}

/// Calls Python's `progress` where a recovery takes long, and looks for Ctrl-C in any case.
pub(crate) fn tell_recovery(progress: Option<&Py<PyAny>>, step: RecoveryProgress) -> PyResult<()> {
    Python::attach(|py| {
        py.check_signals()?;
        if let Some(progress) = progress.filter(|_| step.long) {
            progress.call1(py, (step.stage.name(), step.done_bytes, step.total_bytes))?;
        }
        Ok(())
    })
}

/// Something of the core's that is torn down in the process that made it, and leaked in a forked child.
pub(crate) struct Kept<T> {
    shared: Arc<Shared>,
    value: Option<T>,
}

impl<T> Kept<T> {
    /// Keeps what belongs to a store.
    pub(crate) fn new(shared: Arc<Shared>, value: T) -> Self {
        Self { shared, value: Some(value) }
    }

    /// It, unless this process is a fork of the one that made it.
    pub(crate) fn get(&self) -> PyResult<&T> {
        self.shared.store()?;
        self.value.as_ref().ok_or_else(|| ForkedProcessError::new_err((self.shared.path.clone(),)))
    }

    /// It, to be changed; None in a fork.
    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        if self.shared.is_forked() { None } else { self.value.as_mut() }
    }

    /// It, in a fork too, to be looked at.
    pub(crate) fn peek(&self) -> Option<&T> {
        self.value.as_ref()
    }
}

impl<T> Drop for Kept<T> {
    fn drop(&mut self) {
        if self.shared.is_forked() {
            #[expect(
                clippy::mem_forget,
                reason = "the child has none of the parent's threads, which a drop may join or which may hold locks"
            )]
            std::mem::forget(self.value.take());
        }
    }
}

/// Marks every store as belonging to the parent and gives up its lock; called in a forked child.
#[pyfunction]
#[pyo3(name = "_after_fork_in_child")]
pub(crate) fn after_fork_in_child() {
    let alive = ALIVE.lock().unwrap_or_else(PoisonError::into_inner);
    for shared in alive.iter().filter_map(Weak::upgrade) {
        shared.forked.store(true, Ordering::Relaxed);
        if let Some(store) = &shared.store {
            store.disown_in_child();
        }
    }
}

/// Runs `call` with the interpreter released; a panic in it becomes an error.
pub(crate) fn detached<T: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<T, StoreError> + Send,
) -> PyResult<T> {
    released(py, call)?.map_err(to_py)
}

/// As [`detached`], for calls of consumers and work queues.
pub(crate) fn delivered<T: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<T, BrokerError> + Send,
) -> PyResult<T> {
    released(py, call)?.map_err(broker_to_py)
}

/// Calls `step` until it brings something, each time with how long it may wait; `None` when `timeout` passes first.
pub(crate) fn awaited<T: Send>(
    py: Python<'_>,
    timeout: Option<Duration>,
    step: impl Fn(Duration) -> Result<Option<T>, BrokerError> + Sync,
) -> PyResult<Option<T>> {
    let started = clock().monotonic();
    loop {
        let waited = clock().monotonic().saturating_sub(started);
        let left = timeout.map_or(SLICE, |timeout| timeout.saturating_sub(waited));
        let found = delivered(py, || step(left.min(SLICE)))?;
        if found.is_some() {
            return Ok(found);
        }
        py.check_signals()?;
        if left.is_zero() {
            return Ok(None);
        }
    }
}

fn released<T: Send>(py: Python<'_>, call: impl FnOnce() -> T + Send) -> PyResult<T> {
    py.detach(|| catch_unwind(AssertUnwindSafe(call))).map_err(|panic| bug(panic.as_ref()))
}

/// The error for a panic.
pub(crate) fn bug(panic: &(dyn Any + Send)) -> PyErr {
    let what = panic
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned());
    MQStoreError::new_err((format!("internal error: {what}; this is a bug of mqstore, please report it"),))
}
