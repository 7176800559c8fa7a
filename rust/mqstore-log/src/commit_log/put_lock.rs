//! The put lock, which appends hold one after the other.
//!
//! An append holds the lock while its records get queue offset, log offset and store time and are copied. That takes
//! less than a microsecond per KiB. Now and then it also includes the change to the next segment.
//!
//! A waiting thread spins briefly, then sleeps; after a long wait it is served first. This covers both locks that
//! RocketMQ offers: the spin lock for few threads, and the reentrant lock for more threads than cores
//! (`useReentrantLockWhenPutMessage`).
//!
//! Across threads: the lock notes when its holder took it. Other threads can therefore detect a lock that is held for
//! long, for example because a page waits for the disk, and fail fast without waiting.
//!
//! Source: `PutMessageSpinLock`, `PutMessageReentrantLock`, `AdaptiveBackOffSpinLockImpl`,
//! `DefaultMessageStore#isOSPageCacheBusy`.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use mqstore_io::Clock;
#[cfg(not(loom))]
use mqstore_io::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(loom)]
use mqstore_io::sync::model::{Mutex, MutexGuard};

/// The limits of waiting for the put lock.
#[derive(Clone, Copy, Debug)]
pub struct PutLimits {
    /// Milliseconds that one holder may take before other appends fail at once.
    pub busy_after_ms: u64,
    /// Maximum milliseconds that one append waits.
    pub queue_wait_ms: u64,
}

/// The reason why the lock was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PutBusy {
    /// The holder has had the lock for this many milliseconds.
    HeldFor(u64),
    /// This call has waited for this many milliseconds.
    WaitedFor(u64),
}

/// The put lock, as the module describes it.
#[derive(Debug)]
pub(super) struct PutLock<T> {
    limits: PutLimits,
    /// The time of [`interval_ms`] at which the holder took the lock; 0 while it is free.
    held_since_ms: AtomicU64,
    data: Mutex<T>,
}

/// The held lock.
#[derive(Debug)]
pub(super) struct PutGuard<'a, T> {
    held_since_ms: &'a AtomicU64,
    data: MutexGuard<'a, T>,
}

/// Returns a time of the interval clock in milliseconds, at least 1. The wall clock would not do: a step during an
/// append would count as a long time under the lock.
fn interval_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).saturating_add(1)
}

impl<T> PutLock<T> {
    /// Creates a free lock around `data`.
    pub(super) fn new(limits: PutLimits, data: T) -> Self {
        Self { limits, held_since_ms: AtomicU64::new(0), data: Mutex::new(data) }
    }

    /// Returns the limits of waiting.
    pub(super) fn limits(&self) -> PutLimits {
        self.limits
    }

    /// Takes the lock for an append, unless the store is too busy.
    #[inline]
    pub(super) fn lock(&self, clock: &dyn Clock) -> Result<PutGuard<'_, T>, PutBusy> {
        // Read before the lock, so that no other append waits for it.
        let begun = clock.monotonic();
        let (data, since) = match self.data.try_lock() {
            Some(data) => (data, begun),
            None => (self.wait(begun, clock)?, clock.monotonic()),
        };
        self.held_since_ms.store(interval_ms(since), Ordering::Relaxed);
        Ok(PutGuard { held_since_ms: &self.held_since_ms, data })
    }

    /// Takes the lock without a time limit, for callers that are no appends.
    pub(super) fn lock_without_timeout(&self) -> PutGuard<'_, T> {
        PutGuard { held_since_ms: &self.held_since_ms, data: self.data.lock() }
    }

    /// Milliseconds for which the current holder has had the lock; 0 if the lock is free.
    pub(super) fn held_ms(&self, clock: &dyn Clock) -> u64 {
        self.held_at_ms(interval_ms(clock.monotonic()))
    }

    fn held_at_ms(&self, now_ms: u64) -> u64 {
        match self.held_since_ms.load(Ordering::Relaxed) {
            0 => 0,
            since => now_ms.saturating_sub(since),
        }
    }

    #[cold]
    fn wait(&self, begun: Duration, clock: &dyn Clock) -> Result<MutexGuard<'_, T>, PutBusy> {
        let held_ms = self.held_at_ms(interval_ms(begun));
        if held_ms > self.limits.busy_after_ms {
            return Err(PutBusy::HeldFor(held_ms));
        }
        let limit = Duration::from_millis(self.limits.queue_wait_ms);
        self.data
            .try_lock_for(limit)
            .ok_or_else(|| PutBusy::WaitedFor(clock.monotonic().saturating_sub(begun).as_millis() as u64))
    }
}

impl<T> Deref for PutGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.data
    }
}

impl<T> DerefMut for PutGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.data
    }
}

impl<T> Drop for PutGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.held_since_ms.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use mqstore_io::ManualClock;

    use super::*;

    const LIMITS: PutLimits = PutLimits { busy_after_ms: 1000, queue_wait_ms: 10_000 };

    #[test]
    fn one_holder_at_a_time() {
        let clock = mqstore_io::SystemClock::new();
        let lock = PutLock::new(LIMITS, (0_u64, 0_u64));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        let mut data = lock.lock(&clock).unwrap();
                        data.0 += 1;
                        data.1 = data.0;
                    }
                });
            }
        });
        assert_eq!(*lock.lock_without_timeout(), (8_000, 8_000));
    }

    #[test]
    fn a_lock_that_is_held_for_long_is_refused_at_once() {
        let clock = ManualClock::new(5_000);
        let lock = PutLock::new(LIMITS, ());
        let held = lock.lock(&clock).unwrap();
        clock.advance(Duration::from_millis(1_500));
        assert_eq!(lock.lock(&clock).unwrap_err(), PutBusy::HeldFor(1_500));
        drop(held);
        assert_eq!(lock.held_ms(&clock), 0);
        lock.lock(&clock).unwrap();
    }

    #[test]
    fn a_step_of_the_wall_clock_is_no_time_under_the_lock() {
        let clock = ManualClock::new(5_000);
        let lock = PutLock::new(PutLimits { queue_wait_ms: 0, ..LIMITS }, ());
        for step_ms in [86_400_000, -86_400_000] {
            let held = lock.lock(&clock).unwrap();
            clock.set(clock.now_ms() + step_ms);
            assert_eq!(lock.held_ms(&clock), 0);
            // Refused for its own wait, not for the time of the holder.
            assert_eq!(lock.lock(&clock).unwrap_err(), PutBusy::WaitedFor(0));
            drop(held);
        }
    }

    #[test]
    fn who_waits_too_long_is_told() {
        let clock = mqstore_io::SystemClock::new();
        let lock = PutLock::new(PutLimits { busy_after_ms: 1_000_000, queue_wait_ms: 20 }, ());
        let _held = lock.lock(&clock).unwrap();
        let refused = lock.lock(&clock).unwrap_err();
        assert!(matches!(refused, PutBusy::WaitedFor(ms) if ms >= 20), "{refused:?}");
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::cell::Cell;
    use loom::sync::Arc;
    use loom::thread;
    use mqstore_io::ManualClock;

    use super::*;

    const LIMITS: PutLimits = PutLimits { busy_after_ms: 1000, queue_wait_ms: 10_000 };

    /// A clock whose interval time is `ms`.
    fn at(ms: u64) -> ManualClock {
        let clock = ManualClock::new(5_000);
        clock.advance(Duration::from_millis(ms));
        clock
    }

    /// Models the start time around the lock and the tries. The mutex of the model checker replaces that of
    /// `parking_lot`.
    fn check(model: impl Fn(Arc<PutLock<Cell<u64>>>) + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(move || model(Arc::new(PutLock::new(LIMITS, Cell::new(0)))));
    }

    /// Adds one under the lock; loom fails if another thread accesses the cell.
    fn count(put: &PutGuard<'_, Cell<u64>>) {
        put.set(put.get() + 1);
    }

    /// Several threads take turns: one at a time, none waits for ever, none is refused, and a free lock has no start
    /// time.
    #[test]
    fn everybody_has_a_turn() {
        const THREADS: u64 = 3;
        check(|lock| {
            let others: Vec<_> = (1..THREADS)
                .map(|late| {
                    let lock = Arc::clone(&lock);
                    thread::spawn(move || {
                        let put = lock.lock(&at(late)).unwrap();
                        assert_eq!(lock.held_ms(&at(10)), 10 - late);
                        count(&put);
                    })
                })
                .collect();
            count(&lock.lock(&at(0)).unwrap());
            for other in others {
                other.join().unwrap();
            }
            assert_eq!(lock.held_ms(&at(10_000)), 0);
            let put = lock.lock_without_timeout();
            assert_eq!(put.get(), THREADS);
        });
    }

    /// A late thread finds the lock held for long, or free. It is refused with the holder's time, or gets the lock. The
    /// next thread gets the lock in both cases.
    #[test]
    fn a_refusal_leaves_no_trace() {
        check(|lock| {
            let holder = {
                let lock = Arc::clone(&lock);
                thread::spawn(move || count(&lock.lock(&at(0)).unwrap()))
            };
            let late = lock.lock(&at(3_000));
            match &late {
                Ok(put) => count(put),
                Err(busy) => assert_eq!(*busy, PutBusy::HeldFor(3_000)),
            }
            let counted = 1 + u64::from(late.is_ok());
            drop(late);
            holder.join().unwrap();
            let put = lock.lock(&at(9_000)).unwrap();
            assert_eq!(put.get(), counted);
        });
    }
}
