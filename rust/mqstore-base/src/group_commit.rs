//! Group commit: one sync for all waiting threads.
//!
//! The first thread that needs a position durable becomes the leader. It syncs everything appended so far. Then it
//! wakes one of the threads that came later, which leads the next round, and all threads that its sync covers.
//!
//! ```text
//! round g      leader syncs up to its target | waiters at or below the target sleep on event g
//! round g + 1  leader is one of the later threads, which sleep on event g + 1
//! ```
//!
//! The leader wakes the next leader first, so that the device does not idle while the leader wakes the other threads
//! one by one. These wake-ups can take as long as the next sync, so there are events for more than the last two rounds.
//! A woken thread reads the durable position without a lock. No thread waits for a clock tick, and no thread is woken
//! that would have to sleep again.
//!
//! Across threads: at most one sync runs at a time. A failed sync is final, because the pages that it lost can look
//! clean to the next sync: every waiter of that round and of all later rounds gets the error. If the sync could not
//! open a file because too many are open, nothing was lost: only the threads that tried get that error.
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

/// The durable position, and the syncs that raise it.
#[derive(Debug)]
pub struct GroupCommit {
    durable: AtomicU64,
    round: Mutex<SyncRound>,
    /// Copy of `round.running` for threads that do not hold the lock.
    running: AtomicBool,
    /// The waiting threads, by the number of their round modulo the number of events.
    events: [EventCount; EVENTS],
}

/// Number of rounds whose waiters have an event of their own.
const EVENTS: usize = 4;

#[derive(Debug, Default)]
struct SyncRound {
    /// Number of syncs started so far.
    number: u64,
    /// Whether the last of them is still running.
    running: bool,
    /// The position that it covers at least.
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

    /// Raises the durable position: a caller wrote and synced everything below `position` in another way.
    pub fn raise(&self, position: u64) {
        self.durable.raise(position, Ordering::AcqRel);
    }

    /// Returns the position below which all bytes are synced.
    pub fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Returns once `position` is durable. `appended` returns the position that the next sync covers at least. `sync`
    /// makes that position durable and returns the position that it covered. It is called without a lock held, by one
    /// thread at a time.
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
                self.run_sync(round, &appended, &sync)?;
                round = self.round.lock();
                continue;
            }
            // Whether a leader may wake this thread as the next leader.
            let chosen = position > round.target;
            let number = round.number + u64::from(chosen);
            let event = self.event(number);
            let key = event.enter();
            drop(round);
            event.sleep(key, None);
            // Everything that the waking thread has seen is visible here.
            fence(Ordering::SeqCst);
            if self.durable() >= position {
                if chosen && !self.running.load(Ordering::SeqCst) {
                    // The last round covered this thread after all, so another one must lead. If one leads by now, it
                    // wakes the next leader at the end of its round.
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
    ) -> Result<(), StoreError> {
        round.running = true;
        self.running.store(true, Ordering::SeqCst);
        round.number += 1;
        round.target = appended();
        let number = round.number;
        drop(round);
        let outcome = sync();
        let mut round = self.round.lock();
        let mut passing = Ok(());
        match outcome {
            Ok(covered) => {
                self.durable.raise(covered, Ordering::AcqRel);
            }
            // Nothing was synced. Each thread that waits for this round leads one of its own.
            Err(error) if error.is_out_of_files() => passing = Err(error),
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
        passing
    }

    #[expect(clippy::indexing_slicing, reason = "a remainder of the number of events")]
    fn event(&self, number: u64) -> &EventCount {
        &self.events[(number % EVENTS as u64) as usize]
    }
}

/// The mutex of the model checker with the interface of ours.
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

    /// Whichever thread leads: no thread sleeps forever, and none returns before its position is durable.
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

    /// A failed sync reaches every thread that waits for it or for the next sync.
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
    fn a_sync_that_found_no_descriptor_is_not_final() {
        const EMFILE: i32 = 24;
        let commit = GroupCommit::new(0);
        let failing = AtomicUsize::new(3);
        let sync = || {
            thread::sleep(Duration::from_millis(1));
            match failing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)) {
                Ok(_) => {
                    let error = std::io::Error::from_raw_os_error(EMFILE);
                    Err(StoreError::io(std::path::Path::new("log"), "syncing", error))
                }
                Err(_) => Ok(9),
            }
        };
        let refused = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| match commit.wait(9, || 9, sync, never) {
                    Ok(()) => assert_eq!(commit.durable(), 9),
                    Err(error) => {
                        assert!(
                            error.is_out_of_files() && error.to_string().contains("ulimit -n"),
                            "{error}"
                        );
                        refused.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(refused.into_inner(), 3, "only the threads that tried get the error");
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
