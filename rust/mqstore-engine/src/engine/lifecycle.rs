//! State of a store for writing from its open to its close: its locks, and whether it is closed.
//!
//! Owns RocketMQ's lock of the store, and the lock of the live page. Across a crash: the system releases them. Across
//! threads: the store is closed once; every later call returns an error that says so.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use mqstore_io::StoreLock;
use mqstore_io::sync::Mutex;

/// See the header of this module.
pub(crate) struct Lifecycle {
    locks: Mutex<Vec<Box<dyn StoreLock>>>,
    closed: AtomicBool,
    /// Number of damaged records that reads skipped.
    skipped: AtomicU64,
}

impl Lifecycle {
    /// Returns the state of a store with its `locks` taken.
    pub(crate) fn new(locks: Vec<Box<dyn StoreLock>>) -> Self {
        Self { locks: Mutex::new(locks), closed: AtomicBool::new(false), skipped: AtomicU64::new(0) }
    }

    /// Whether the close has started.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Makes every later call return that the store is closed.
    pub(crate) fn set_closed(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Releases the locks of the live page and of the store, in this order.
    pub(crate) fn release_locks(&self) {
        self.locks.lock().clear();
    }

    /// In a child process after a fork: closes the descriptors of the locks without releasing the locks.
    pub(crate) fn disown_in_child(&self) {
        self.set_closed();
        if let Some(locks) = self.locks.try_lock() {
            locks.iter().for_each(|lock| lock.disown_in_child());
        }
    }

    /// Counts a damaged record that a read skipped.
    pub(crate) fn count_skipped(&self) {
        self.skipped.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of damaged records that reads skipped.
    pub(crate) fn skipped(&self) -> u64 {
        self.skipped.load(Ordering::Relaxed)
    }
}
