//! One sync for everybody who waits.
//!
//! The first thread that needs a position durable becomes the leader: it syncs everything appended so
//! far and wakes, of those who came later, one, which leads the next round, and those whom it covered.
//!
//! ```text
//! round g      leader syncs up to its target | waiters at or below the target sleep on event g
//! round g + 1  led by one of those who came later and sleep on event g + 1
//! ```
//!
//! The next leader is woken first, so that the device does not rest while many are woken one after the
//! other; events are told apart by more than the last two rounds, since those wakings may take as long as
//! the next sync. Who is woken finds the durable position without a lock. No thread waits for a clock
//! tick, and nobody is woken who would have to sleep again.
//!
//! Across threads: at most one sync runs at a time. A failed sync is final: the pages that it lost may
//! look clean to the next one, so every waiter of that round and all later ones get the error.
//!
//! Source of the idea: `GroupCommitService`, which swaps two lists of requests instead.

#[cfg(not(loom))]
use mqstore_io::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, fence};

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
#[cfg(loom)]
use model_lock::{Mutex, MutexGuard};

use mqstore_io::EventCount;
use mqstore_io::sync::Raise;

use crate::error::StoreError;

/// The durable position and who moves it.
#[derive(Debug)]
pub struct GroupCommit {
    durable: AtomicU64,
    round: Mutex<SyncRound>,
    /// As in `round`, for those who do not hold it.
    running: AtomicBool,
    /// Who waits for which round: by its number modulo theirs.
    events: [EventCount; EVENTS],
}

/// Rounds whose waiters are told apart.
const EVENTS: usize = 4;

#[derive(Debug, Default)]
struct SyncRound {
    /// Counts the syncs that were begun.
    number: u64,
    /// Whether the last of them is still going on.
    running: bool,
    /// What it covers at least.
    target: u64,
    failure: Option<String>,
}

impl GroupCommit {
    /// Makes a group commit for a file that is synced up to `durable`.
    pub fn new(durable: u64) -> Self {
        Self {
            durable: AtomicU64::new(durable),
            round: Mutex::new(SyncRound::default()),
            running: AtomicBool::new(false),
            events: std::array::from_fn(|_| EventCount::new()),
        }
    }

    /// Everything below `position` is on the device: somebody wrote and synced it in another way.
    pub fn raise(&self, position: u64) {
        self.durable.raise(position, Ordering::AcqRel);
    }

    /// The position below which everything is on the device.
    pub fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Returns once `position` is durable. `appended` is what the next sync will cover at least; `sync`
    /// makes that durable and returns the position that it covered; it is called without a lock held, by
    /// one thread at a time.
    pub fn wait(
        &self,
        position: u64,
        appended: impl Fn() -> u64,
        sync: impl Fn() -> Result<u64, StoreError>,
        failed: impl Fn(&str) -> StoreError,
    ) -> Result<(), StoreError> {
        let mut round = self.round.lock();
        loop {
            if self.durable() >= position {
                return Ok(());
            }
            if let Some(cause) = &round.failure {
                return Err(failed(cause));
            }
            if !round.running {
                self.run_sync(round, &appended, &sync);
                round = self.round.lock();
                continue;
            }
            // Whether this thread may be woken to lead.
            let chosen = position > round.target;
            let number = round.number + u64::from(chosen);
            let event = self.event(number);
            let key = event.enter();
            drop(round);
            event.sleep(key, None);
            // What the one who woke it had seen is seen here.
            fence(Ordering::SeqCst);
            if self.durable() >= position {
                if chosen && !self.running.load(Ordering::SeqCst) {
                    // The last round covered it after all; another one has to lead. Whoever leads by now
                    // wakes the next leader at the end of that.
                    for event in &self.events {
                        event.notify_one();
                    }
                }
                return Ok(());
            }
            round = self.round.lock();
        }
    }

    fn run_sync(
        &self,
        mut round: MutexGuard<'_, SyncRound>,
        appended: &impl Fn() -> u64,
        sync: &impl Fn() -> Result<u64, StoreError>,
    ) {
        round.running = true;
        self.running.store(true, Ordering::SeqCst);
        round.number += 1;
        round.target = appended();
        let number = round.number;
        drop(round);
        let outcome = sync();
        let mut round = self.round.lock();
        match outcome {
            Ok(covered) => {
                self.durable.raise(covered, Ordering::AcqRel);
            }
            Err(error) => round.failure = Some(error.to_string()),
        }
        round.running = false;
        self.running.store(false, Ordering::SeqCst);
        let failed = round.failure.is_some();
        drop(round);
        if failed {
            for event in &self.events {
                event.notify_all();
            }
        } else {
            self.event(number + 1).notify_one();
            self.event(number).notify_all();
        }
    }

    #[expect(clippy::indexing_slicing, reason = "a remainder of the number of events")]
    fn event(&self, number: u64) -> &EventCount {
        &self.events[(number % EVENTS as u64) as usize]
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
