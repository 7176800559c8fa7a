//! The signal on which a call sleeps, or for which it registers a waker.
//!
//! The caller reads the number of rings, checks its condition, and waits only while that number is unchanged. So it
//! misses no ring. A ring costs a few atomic operations. A caller without a thread registers a [`Waker`]
//! ([`Signal::listen`]); the next ring calls it in the thread that rings. Nothing on disk.

use std::collections::BTreeMap;
use std::fmt;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use mqstore_io::EventCount;
use mqstore_io::sync::{AtomicU64, AtomicUsize, Mutex, Ordering};

/// Maximum sleep between two checks. If no call waits for a queue, nothing rings when the store is closed or stopped by
/// an error.
pub const LOOK: Duration = Duration::from_millis(100);

/// Called once, by the thread that rings, to check again. It must neither panic nor wait.
pub type Waker = Box<dyn FnOnce() + Send>;

/// A counter of rings, with the threads and wakers that wait for the next one.
#[derive(Default)]
pub struct Signal {
    rings: AtomicU64,
    event: EventCount,
    calls: Mutex<WakerList>,
    /// Number of registered wakers; changed under their lock.
    listeners: AtomicUsize,
}

#[derive(Default)]
struct WakerList {
    next: u64,
    waiting: BTreeMap<u64, Waker>,
}

/// A waker that is registered with a signal. Dropping this value removes it.
pub struct WakerRegistration {
    signal: Arc<Signal>,
    number: u64,
}

impl Signal {
    /// Returns the number of rings. Read it before the last check of the condition.
    pub fn ring_count(&self) -> u64 {
        self.rings.load(Ordering::SeqCst)
    }

    /// Wakes all waiting threads and wakers.
    pub fn ring(&self) {
        self.rings.fetch_add(1, Ordering::SeqCst);
        self.event.notify_all_after_fence();
        self.call();
    }

    /// Wakes at least one waiting thread, and all wakers.
    pub fn wake_one(&self) {
        self.rings.fetch_add(1, Ordering::SeqCst);
        self.event.notify_one();
        self.call();
    }

    /// Whether a thread or a waker waits.
    pub fn is_waited_for(&self) -> bool {
        self.event.has_waiters() || self.has_wakers()
    }

    /// Whether a waker waits.
    pub fn has_wakers(&self) -> bool {
        self.listeners.load(Ordering::SeqCst) > 0
    }

    /// Sleeps until the number of rings differs from `seen`, for at most `longest`.
    pub fn sleep(&self, seen: u64, longest: Duration) {
        self.event.wait_until(Some(longest), || self.ring_count() != seen);
    }

    /// Sleeps until the number of rings differs from `seen`, for at most `longest` and at most [`LOOK`].
    pub fn wait(&self, seen: u64, longest: Duration) {
        self.sleep(seen, longest.min(LOOK));
    }

    /// Registers `call` for the next ring; `None` if the number of rings already differs from `seen`.
    pub fn listen(self: &Arc<Self>, seen: u64, call: Waker) -> Option<WakerRegistration> {
        let number = {
            let mut calls = self.calls.lock();
            let number = calls.next;
            calls.next += 1;
            calls.waiting.insert(number, call);
            self.listeners.store(calls.waiting.len(), Ordering::SeqCst);
            number
        };
        let listening = WakerRegistration { signal: Arc::clone(self), number };
        // Either the ring finds the waker, or the count below shows the ring.
        (self.ring_count() == seen).then_some(listening)
    }

    fn call(&self) {
        if self.has_wakers() {
            self.call_wakers();
        }
    }

    #[cold]
    fn call_wakers(&self) {
        let calls = {
            let mut calls = self.calls.lock();
            self.listeners.store(0, Ordering::SeqCst);
            mem::take(&mut calls.waiting)
        };
        // Outside the lock: the call can own values whose drop needs it.
        for call in calls.into_values() {
            call();
        }
    }
}

impl Drop for WakerRegistration {
    fn drop(&mut self) {
        let mut calls = self.signal.calls.lock();
        let call = calls.waiting.remove(&self.number);
        self.signal.listeners.store(calls.waiting.len(), Ordering::SeqCst);
        drop(calls);
        drop(call);
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signal").field("rings", &self.ring_count()).finish_non_exhaustive()
    }
}

impl fmt::Debug for WakerRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WakerRegistration").field("number", &self.number).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_made_once_by_the_next_ring_or_taken_back() {
        let signal = Arc::new(Signal::default());
        let made = Arc::new(AtomicU64::default());
        let call = || -> Waker {
            let made = Arc::clone(&made);
            Box::new(move || {
                made.fetch_add(1, Ordering::SeqCst);
            })
        };
        let first = signal.listen(0, call()).unwrap();
        let second = signal.listen(0, call()).unwrap();
        assert!(signal.is_waited_for());
        drop(second);
        signal.ring();
        signal.wake_one();
        assert_eq!(made.load(Ordering::SeqCst), 1);
        assert!(!signal.is_waited_for());
        assert!(signal.listen(1, call()).is_none(), "it rang in between");
        drop(first);
        let third = signal.listen(2, call()).unwrap();
        signal.wake_one();
        assert_eq!(made.load(Ordering::SeqCst), 2);
        drop(third);
        assert!(!signal.has_wakers());
    }
}
