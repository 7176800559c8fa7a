//! One sync for everybody who waits.
//!
//! The first thread that needs a position durable becomes the leader: it syncs everything appended so
//! far and wakes those whom that covered, and of those who came later one, which leads the next round.
//!
//! ```text
//! round g      leader syncs up to its target | waiters at or below the target sleep on event g % 2
//! round g + 1  led by one of those who came later and sleep on the other event
//! ```
//!
//! No thread waits for a clock tick, and nobody is woken who would have to sleep again.
//!
//! Across threads: at most one sync runs at a time. A failed sync is final: the pages that it lost may
//! look clean to the next one, so every waiter of that round and all later ones get the error.
//!
//! Source of the idea: `GroupCommitService`, which swaps two lists of requests instead.

#[cfg(not(loom))]
use mqstore_io::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(loom)]
use model_lock::{Mutex, MutexGuard};

use mqstore_io::EventCount;

use crate::error::StoreError;

/// The durable position and who moves it.
#[derive(Debug)]
pub(crate) struct GroupCommit {
    durable: AtomicU64,
    round: Mutex<Round>,
    /// Who waits for the rounds of even and of odd numbers.
    even: EventCount,
    odd: EventCount,
}

#[derive(Debug, Default)]
struct Round {
    /// Counts the syncs that were begun.
    number: u64,
    /// Whether the last of them is still going on.
    running: bool,
    /// What it covers at least.
    target: u64,
    failure: Option<String>,
}

impl GroupCommit {
    pub(crate) fn new(durable: u64) -> Self {
        Self {
            durable: AtomicU64::new(durable),
            round: Mutex::new(Round::default()),
            even: EventCount::new(),
            odd: EventCount::new(),
        }
    }

    /// The position below which everything is on the device.
    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Returns once `position` is durable. `appended` is what the next sync will cover at least; `sync`
    /// makes that durable and returns the position that it covered; it is called without a lock held, by
    /// one thread at a time.
    pub(crate) fn wait(
        &self,
        position: u64,
        appended: impl Fn() -> u64,
        sync: impl Fn() -> Result<u64, StoreError>,
        failed: impl Fn(&str) -> StoreError,
    ) -> Result<(), StoreError> {
        let mut round = self.round.lock();
        // Whether this thread may have been woken to lead.
        let mut chosen = false;
        loop {
            if let Some(cause) = &round.failure {
                return Err(failed(cause));
            }
            if self.durable() >= position {
                let nobody_leads = !round.running;
                drop(round);
                if chosen && nobody_leads {
                    // The last round covered it after all; another one has to lead.
                    self.even.notify_one();
                    self.odd.notify_one();
                }
                return Ok(());
            }
            if !round.running {
                round = self.lead(round, &appended, &sync);
                continue;
            }
            chosen = position > round.target;
            let event = self.event(round.number + u64::from(chosen));
            let key = event.enter();
            drop(round);
            event.sleep(key, None);
            round = self.round.lock();
        }
    }

    fn lead<'a>(
        &'a self,
        mut round: MutexGuard<'a, Round>,
        appended: &impl Fn() -> u64,
        sync: &impl Fn() -> Result<u64, StoreError>,
    ) -> MutexGuard<'a, Round> {
        round.running = true;
        round.number += 1;
        round.target = appended();
        let number = round.number;
        drop(round);
        let outcome = sync();
        let mut round = self.round.lock();
        round.running = false;
        match outcome {
            Ok(covered) => {
                self.durable.fetch_max(covered, Ordering::AcqRel);
            }
            Err(error) => round.failure = Some(error.to_string()),
        }
        let failed = round.failure.is_some();
        drop(round);
        self.event(number).notify_all();
        if failed {
            self.event(number + 1).notify_all();
        } else {
            self.event(number + 1).notify_one();
        }
        self.round.lock()
    }

    fn event(&self, number: u64) -> &EventCount {
        if number.is_multiple_of(2) { &self.even } else { &self.odd }
    }
}

/// The model checker's mutex in the shape of ours.
#[cfg(loom)]
mod model_lock {
    pub(super) use loom::sync::MutexGuard;

    #[derive(Debug, Default)]
    pub(super) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(super) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        #[expect(clippy::unwrap_used, reason = "a model that panics has failed anyway")]
        pub(super) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    fn wait(commit: &GroupCommit, appended: &AtomicU64, position: u64) {
        let newest = || appended.load(Ordering::SeqCst);
        let outcome = commit.wait(
            position,
            newest,
            || Ok(newest()),
            |cause| StoreError::Busy { reason: cause.to_owned() },
        );
        assert!(outcome.is_ok());
        assert!(commit.durable() >= position);
    }

    /// Whoever leads, nobody sleeps for ever and nobody returns before its position is durable.
    #[test]
    fn everybody_is_woken_by_the_sync_that_covers_them() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let commit = Arc::new(GroupCommit::new(0));
            let appended = Arc::new(AtomicU64::new(0));
            let others: Vec<_> = (0..2)
                .map(|_| {
                    let (commit, appended) = (Arc::clone(&commit), Arc::clone(&appended));
                    thread::spawn(move || {
                        let position = appended.fetch_add(1, Ordering::SeqCst) + 1;
                        wait(&commit, &appended, position);
                    })
                })
                .collect();
            let position = appended.fetch_add(1, Ordering::SeqCst) + 1;
            wait(&commit, &appended, position);
            for other in others {
                other.join().unwrap();
            }
            assert_eq!(commit.durable(), 3);
        });
    }

    /// A sync that fails while others wait for it, or for the next one, reaches all of them.
    #[test]
    fn a_failure_reaches_everybody() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let commit = Arc::new(GroupCommit::new(0));
            let failing = |commit: &GroupCommit, position| {
                let refused = StoreError::Busy { reason: "no".into() };
                let refused = std::cell::RefCell::new(Some(refused));
                let outcome = commit.wait(
                    position,
                    || 1,
                    || Err(refused.borrow_mut().take().unwrap()),
                    |cause| StoreError::Busy { reason: cause.to_owned() },
                );
                assert!(outcome.is_err());
            };
            let others: Vec<_> = (1..3)
                .map(|position| {
                    let commit = Arc::clone(&commit);
                    thread::spawn(move || failing(&commit, position))
                })
                .collect();
            for other in others {
                other.join().unwrap();
            }
            assert_eq!(commit.durable(), 0);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::thread;
    use std::time::Duration;

    use super::*;

    fn never(_: &str) -> StoreError {
        StoreError::Busy { reason: "failed".into() }
    }

    #[test]
    fn waiters_share_syncs() {
        let commit = GroupCommit::new(0);
        let published = AtomicU64::new(0);
        let syncs = AtomicUsize::new(0);
        let appended = || published.load(Ordering::SeqCst);
        let sync = || {
            let covered = appended();
            syncs.fetch_add(1, Ordering::SeqCst);
            thread::sleep(Duration::from_micros(200));
            Ok(covered)
        };
        thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let position = published.fetch_add(1, Ordering::SeqCst) + 1;
                        commit.wait(position, appended, sync, never).unwrap();
                        assert!(commit.durable() >= position);
                    }
                });
            }
        });
        assert_eq!(commit.durable(), 1600);
        assert!(syncs.load(Ordering::SeqCst) < 1600, "{syncs:?} syncs for 1600 waiters");
    }

    #[test]
    fn a_failed_sync_is_final_for_all_who_wait() {
        let commit = GroupCommit::new(0);
        let failures = AtomicUsize::new(0);
        thread::scope(|scope| {
            for position in 1..=8 {
                let (commit, failures) = (&commit, &failures);
                scope.spawn(move || {
                    let failing = || {
                        thread::sleep(Duration::from_millis(2));
                        Err(StoreError::Busy { reason: "no".into() })
                    };
                    assert!(commit.wait(position, || 1, failing, never).is_err());
                    failures.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        assert_eq!(failures.into_inner(), 8);
        assert!(commit.wait(1, || 1, || Ok(5), never).is_err());
        assert_eq!(commit.durable(), 0);
    }
}
