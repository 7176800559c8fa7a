//! Waits for a condition in atomics, without a lock around it.
//!
//! ```text
//! waiter                                   notifier
//!   condition? no                            makes the condition true
//!   counts itself among the waiters          no waiter counted? done
//!   reads the epoch                          increments the epoch
//!   condition? no                            wakes one or all
//!   sleeps while the epoch is the same
//! ```
//!
//! A notification without waiters is one fence and one load. Either the notifier sees the waiter, or the waiter sees
//! the condition: both have a sequentially consistent fence between their write and their read. On Linux a sleep is a
//! futex wait, so that one system call wakes many threads and none of them needs a lock. On other systems it is a mutex
//! with a condition variable.

#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering, fence};

/// An event count; see the module's text.
#[derive(Debug, Default)]
pub struct EventCount {
    epoch: AtomicU32,
    waiters: AtomicU32,
    sleep: sleep::FutexWait,
}

impl EventCount {
    /// Creates an event without waiters.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits until `ready` returns true; returns `false` if that does not happen within `timeout`. The thread that
    /// makes `ready` true must call [`EventCount::notify_all`] afterwards.
    pub fn wait_until(&self, timeout: Option<Duration>, ready: impl Fn() -> bool) -> bool {
        if ready() {
            return true;
        }
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            let key = self.enter();
            if ready() {
                self.leave();
                return true;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                self.leave();
                return false;
            }
            self.sleep(key, left);
        }
    }

    /// Counts the caller among the waiters and returns the key for [`EventCount::sleep`]. The caller then checks its
    /// condition again, and calls `sleep` or [`EventCount::leave`].
    pub fn enter(&self) -> u32 {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.epoch.load(Ordering::SeqCst)
    }

    /// Removes the caller from the waiters.
    pub fn leave(&self) {
        self.waiters.fetch_sub(1, Ordering::SeqCst);
    }

    /// Sleeps until a notification after the call that returned `key`, until the timeout, or until a spurious wake-up.
    /// Removes the caller from the waiters.
    pub fn sleep(&self, key: u32, timeout: Option<Duration>) {
        self.sleep.while_equal(&self.epoch, key, timeout);
        self.leave();
    }

    /// Returns whether a thread waits.
    pub fn has_waiters(&self) -> bool {
        fence(Ordering::SeqCst);
        self.waiters.load(Ordering::SeqCst) > 0
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        fence(Ordering::SeqCst);
        self.notify_all_after_fence();
    }

    /// Like [`EventCount::notify_all`], for a caller that made the condition true by a sequentially consistent change,
    /// or has passed such a fence since.
    #[inline]
    pub fn notify_all_after_fence(&self) {
        if self.waiters.load(Ordering::SeqCst) > 0 {
            self.epoch.fetch_add(1, Ordering::SeqCst);
            self.sleep.wake(&self.epoch, u32::MAX >> 1);
        }
    }

    /// Wakes at least one sleeping waiter.
    pub fn notify_one(&self) {
        if self.has_waiters() {
            self.epoch.fetch_add(1, Ordering::SeqCst);
            self.sleep.wake(&self.epoch, 1);
        }
    }
}

#[cfg(all(target_os = "linux", not(loom)))]
mod sleep {
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use rustix::thread::futex;

    /// The sleep of a system with futexes: the kernel keeps the sleepers.
    #[derive(Debug, Default)]
    pub(super) struct FutexWait;

    impl FutexWait {
        #[expect(clippy::unused_self, reason = "the same interface as without a futex")]
        pub(super) fn while_equal(&self, epoch: &AtomicU32, key: u32, timeout: Option<Duration>) {
            let timeout = timeout.and_then(|timeout| timeout.try_into().ok());
            // After any result, the caller checks its condition again.
            let _ = futex::wait(epoch, futex::Flags::PRIVATE, key, timeout.as_ref());
        }

        #[expect(clippy::unused_self, reason = "the same interface as without a futex")]
        pub(super) fn wake(&self, epoch: &AtomicU32, count: u32) {
            // Fails only for a bad address.
            let _ = futex::wake(epoch, futex::Flags::PRIVATE, count);
        }
    }
}

#[cfg(all(not(target_os = "linux"), not(loom)))]
mod sleep {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use parking_lot::{Condvar, Mutex};

    /// The sleep of a system without futexes.
    #[derive(Debug, Default)]
    pub(super) struct FutexWait {
        lock: Mutex<()>,
        moved: Condvar,
    }

    impl FutexWait {
        pub(super) fn while_equal(&self, epoch: &AtomicU32, key: u32, timeout: Option<Duration>) {
            let mut guard = self.lock.lock();
            if epoch.load(Ordering::SeqCst) != key {
                return;
            }
            match timeout {
                Some(timeout) => drop(self.moved.wait_for(&mut guard, timeout)),
                None => self.moved.wait(&mut guard),
            }
        }

        pub(super) fn wake(&self, _epoch: &AtomicU32, count: u32) {
            drop(self.lock.lock());
            if count == 1 {
                self.moved.notify_one();
            } else {
                self.moved.notify_all();
            }
        }
    }
}

#[cfg(loom)]
mod sleep {
    use std::time::Duration;

    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::sync::{Condvar, Mutex};

    /// A futex for the model checker.
    #[derive(Debug, Default)]
    pub(super) struct FutexWait {
        lock: Mutex<()>,
        moved: Condvar,
    }

    impl FutexWait {
        #[expect(clippy::unwrap_used, reason = "a model that panics has failed anyway")]
        pub(super) fn while_equal(&self, epoch: &AtomicU32, key: u32, _timeout: Option<Duration>) {
            let guard = self.lock.lock().unwrap();
            if epoch.load(Ordering::SeqCst) == key {
                drop(self.moved.wait(guard).unwrap());
            }
        }

        #[expect(clippy::unwrap_used, reason = "a model that panics has failed anyway")]
        pub(super) fn wake(&self, _epoch: &AtomicU32, count: u32) {
            drop(self.lock.lock().unwrap());
            if count == 1 {
                self.moved.notify_one();
            } else {
                self.moved.notify_all();
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64};
    use std::thread;

    use super::*;

    #[test]
    fn a_notification_wakes_and_a_timeout_ends() {
        let event = EventCount::new();
        let flag = AtomicBool::new(false);
        thread::scope(|scope| {
            let waiter = scope
                .spawn(|| event.wait_until(Some(Duration::from_secs(10)), || flag.load(Ordering::Acquire)));
            flag.store(true, Ordering::Release);
            event.notify_all();
            assert!(waiter.join().unwrap());
        });
        assert!(!event.wait_until(Some(Duration::from_millis(1)), || false));
        assert!(!event.has_waiters());
    }

    #[test]
    fn no_wake_up_is_lost() {
        let (ping, pong) = (EventCount::new(), EventCount::new());
        let turn = AtomicU64::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..5_000 {
                    ping.wait_until(None, || turn.load(Ordering::Acquire) == 2 * round + 1);
                    turn.fetch_add(1, Ordering::AcqRel);
                    pong.notify_one();
                }
            });
            for round in 0..5_000 {
                turn.fetch_add(1, Ordering::AcqRel);
                ping.notify_all();
                pong.wait_until(None, || turn.load(Ordering::Acquire) == 2 * round + 2);
            }
        });
        assert_eq!(turn.into_inner(), 10_000);
    }
}
