//! The waiters for messages of one queue.
//!
//! Across threads: a waiter registers a waker with the queue offset that it waits for, and checks the queue once more.
//! A thread that raises the maximum checks whether the lowest registered offset was passed. Both have a sequentially
//! consistent fence between their write and their read, so at least one of them sees the other.
//!
//! While no offset with a waiter is reached, raising the maximum costs one load. It wakes no thread and takes no lock.

use std::collections::BTreeMap;
use std::fmt;

#[cfg(not(loom))]
use mqstore_io::sync::{AtomicI64, Mutex, Ordering, fence};

#[cfg(loom)]
use loom::sync::atomic::{AtomicI64, Ordering, fence};
#[cfg(loom)]
use mqstore_io::sync::model::Mutex;

use mqstore_base::wake_signal::Waker;

/// The waiters of one queue.
pub struct QueueWaiters {
    /// Lowest offset with a waiter; `i64::MAX` without one.
    lowest: AtomicI64,
    waits: Mutex<WaitList>,
}

/// Wakers by offset and number.
type WakersByOffset = BTreeMap<(i64, u64), Waker>;

#[derive(Default)]
struct WaitList {
    calls: WakersByOffset,
    next: u64,
}

/// The ticket of one waiter, to give up the wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTicket(i64, u64);

impl Default for QueueWaiters {
    fn default() -> Self {
        Self { lowest: AtomicI64::new(i64::MAX), waits: Mutex::default() }
    }
}

impl QueueWaiters {
    /// Registers `call`, which runs once a message at or after `offset` exists, or all waiters are woken. `is_there`
    /// tells whether the message exists already; if so, the wait is not registered and the result is `None`.
    pub fn wait(&self, offset: i64, call: Waker, is_there: impl Fn() -> bool) -> Option<WaitTicket> {
        let ticket = {
            let mut waits = self.waits.lock();
            let ticket = WaitTicket(offset, waits.next);
            waits.next += 1;
            waits.calls.insert((ticket.0, ticket.1), call);
            self.renew(&waits);
            ticket
        };
        fence(Ordering::SeqCst);
        // A concurrent writer may have called the waker already, which does no harm.
        if is_there() && self.give_up(ticket) { None } else { Some(ticket) }
    }

    /// Removes a waker. Returns whether it was still registered.
    pub fn give_up(&self, ticket: WaitTicket) -> bool {
        let mut waits = self.waits.lock();
        let was_there = waits.calls.remove(&(ticket.0, ticket.1)).is_some();
        self.renew(&waits);
        was_there
    }

    /// Calls the wakers of offsets below `max`. Call it after `max` became visible.
    #[inline]
    pub fn reached(&self, max: i64) {
        fence(Ordering::SeqCst);
        if self.lowest.load(Ordering::Relaxed) < max {
            self.wake_below(max);
        }
    }

    /// Calls all wakers, so that each waiter checks again.
    pub fn wake_all(&self) {
        fence(Ordering::SeqCst);
        if self.lowest.load(Ordering::Relaxed) < i64::MAX {
            self.call(std::mem::take);
        }
    }

    #[cold]
    fn wake_below(&self, max: i64) {
        self.call(|calls| {
            let later = calls.split_off(&(max, 0));
            std::mem::replace(calls, later)
        });
    }

    fn call(&self, ready: impl FnOnce(&mut WakersByOffset) -> WakersByOffset) {
        let ready = {
            let mut waits = self.waits.lock();
            let ready = ready(&mut waits.calls);
            self.renew(&waits);
            ready
        };
        // Outside the lock, because a call may wait for the next message.
        for call in ready.into_values() {
            call();
        }
    }

    fn renew(&self, waits: &WaitList) {
        let lowest = waits.calls.first_key_value().map_or(i64::MAX, |((offset, _), _)| *offset);
        self.lowest.store(lowest, Ordering::Relaxed);
    }
}

impl fmt::Debug for QueueWaiters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueWaiters").field("waits", &self.waits.lock().calls.len()).finish_non_exhaustive()
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::atomic::{AtomicBool, AtomicI64};
    use loom::thread;
    use mqstore_io::sync::Arc;

    use super::*;

    #[test]
    fn no_arrival_is_missed() {
        loom::model(|| {
            let arrivals = Arc::new(QueueWaiters::default());
            let max = Arc::new(AtomicI64::new(0));
            let called = Arc::new(AtomicBool::new(false));
            let writer = {
                let (arrivals, max) = (Arc::clone(&arrivals), Arc::clone(&max));
                thread::spawn(move || {
                    max.store(1, Ordering::Release);
                    arrivals.reached(1);
                })
            };
            let call = {
                let called = Arc::clone(&called);
                Box::new(move || called.store(true, Ordering::Relaxed))
            };
            let left = arrivals.wait(0, call, || max.load(Ordering::Acquire) > 0);
            writer.join().unwrap();
            assert!(left.is_none() || called.load(Ordering::Relaxed));
            assert_eq!(arrivals.lowest.load(Ordering::Relaxed), i64::MAX);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use mqstore_io::sync::AtomicU64;

    use super::*;

    #[test]
    fn calls_are_made_once_and_in_the_order_of_offsets() {
        let arrivals = QueueWaiters::default();
        let said = Arc::new(Mutex::new(Vec::new()));
        let wait = |offset| {
            let said = Arc::clone(&said);
            arrivals.wait(offset, Box::new(move || said.lock().push(offset)), || false).unwrap()
        };
        let tickets: Vec<_> = [5, 2, 9, 2, i64::MAX - 1].map(wait).into();
        arrivals.reached(2);
        assert!(said.lock().is_empty());
        arrivals.reached(6);
        assert_eq!(*said.lock(), [2, 2, 5]);
        assert!(!arrivals.give_up(tickets[0]));
        assert!(arrivals.give_up(tickets[2]));
        arrivals.wake_all();
        assert_eq!(*said.lock(), [2, 2, 5, i64::MAX - 1]);
        assert_eq!(arrivals.lowest.load(Ordering::Relaxed), i64::MAX);
    }

    #[test]
    fn what_is_there_already_leaves_nothing_behind() {
        let arrivals = QueueWaiters::default();
        let calls = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&calls);
        let call = Box::new(move || _ = counted.fetch_add(1, Ordering::Relaxed));
        assert_eq!(arrivals.wait(3, call, || true), None);
        arrivals.wake_all();
        assert_eq!(calls.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_call_may_wait_again() {
        let arrivals = Arc::new(QueueWaiters::default());
        let again = Arc::clone(&arrivals);
        let call = Box::new(move || _ = again.wait(1, Box::new(|| ()), || false));
        arrivals.wait(0, call, || false);
        arrivals.reached(1);
        assert_eq!(arrivals.lowest.load(Ordering::Relaxed), 1);
    }
}
