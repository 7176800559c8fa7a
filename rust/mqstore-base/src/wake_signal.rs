//! The signal that a waiting call sleeps on, or leaves a waker with.
//!
//! The caller reads the number of rings, looks, and waits only while that number is unchanged, so that it misses no ring
//! in between. A ring costs a few atomic operations. A caller that waits without a thread leaves a [`Waker`]
//! ([`Signal::listen`]), which the next ring calls in the thread that rings. Nothing on disk.

use std::collections::BTreeMap;
use std::fmt;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use mqstore_io::EventCount;
use mqstore_io::sync::{AtomicU64, AtomicUsize, Mutex, Ordering};

/// Maximum sleep without a look: nothing rings if a store is closed, or stopped by an error, while no call waits for a
/// queue.
pub const LOOK: Duration = Duration::from_millis(100);

/// Called once when it is time to look again, by the thread that rings. It must neither panic nor wait.
pub type Waker = Box<dyn FnOnce() + Send>;

/// A counter of rings, with the threads and wakers that wait for the next one.
#[derive(Default)]
pub struct Signal {
    rings: AtomicU64,
    event: EventCount,
    calls: Mutex<WakerList>,
    /// How many calls there are; changed under their lock.
    listeners: AtomicUsize,
}

#[derive(Default)]
struct WakerList {
    next: u64,
    waiting: BTreeMap<u64, Waker>,
}

/// A call that was left with a signal; dropped, it is taken back.
pub struct WakerRegistration {
    signal: Arc<Signal>,
    number: u64,
}

impl Signal {
    /// How often it rang; to be read before the last look at what is waited for.
    pub fn ring_count(&self) -> u64 {
        self.rings.load(Ordering::SeqCst)
    }

    /// Wakes all who wait.
    pub fn ring(&self) {
        self.rings.fetch_add(1, Ordering::SeqCst);
        self.event.notify_all_after_fence();
        self.call();
    }

    /// Wakes one of those who wait, at least.
    pub fn wake_one(&self) {
        self.rings.fetch_add(1, Ordering::SeqCst);
        self.event.notify_one();
        self.call();
    }

    /// Whether somebody waits.
    pub fn is_waited_for(&self) -> bool {
        self.event.has_waiters() || self.has_wakers()
    }

    /// Whether somebody waits without a thread.
    pub fn has_wakers(&self) -> bool {
        self.listeners.load(Ordering::SeqCst) > 0
    }

    /// Sleeps until it has rung more often than `seen`, at most for `longest`.
    pub fn sleep(&self, seen: u64, longest: Duration) {
        self.event.wait_until(Some(longest), || self.ring_count() != seen);
    }

    /// Sleeps until it has rung more often than `seen`, at most for `longest`, and never longer than [`LOOK`].
    pub fn wait(&self, seen: u64, longest: Duration) {
        self.event.wait_until(Some(longest.min(LOOK)), || self.ring_count() != seen);
    }

    /// Has `call` made by the next ring; `None` when it has rung more often than `seen` by now.
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
        // Either the ring saw the call, or the ring is seen here.
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
        // Outside the lock: what a call holds may be dropped with it.
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
        f.debug_struct("Listening").field("number", &self.number).finish_non_exhaustive()
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
