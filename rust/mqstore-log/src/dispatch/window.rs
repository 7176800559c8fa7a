//! The dispatch window: which runs are complete, and up to which run all are.
//!
//! Runs are numbered from 0, without gaps, in the order of the log. A thread that finishes a run puts it into its place
//! and sets its bit. One thread at a time takes complete runs out in order:
//!
//! ```text
//! run       7    8    9   10   11   12  ...  7 + 64
//! bit       0    1    1    0    1    0        not assigned before run 7 is taken
//!           ^ head: everything before it was taken
//! ```
//!
//! Places and bits are reused every [`RUNS`] runs. They depend only on the number of the run, so a gap in the offsets
//! of a queue leaves no gap here.
//!
//! Across threads: any thread may call [`RunWindow::complete`]. Only the thread that holds the [`CommitGuard`] takes
//! runs out. A thread that completes a run and finds the lock held may leave, because the holder checks the bits once
//! more after it releases the lock. A sequentially consistent fence separates setting the bit from checking the lock,
//! and releasing the lock from checking the bit, so at least one of the two threads sees the other. This module does no
//! I/O.

#[cfg(not(loom))]
use mqstore_io::sync::{AtomicBool, AtomicU64, Mutex, Ordering, fence};

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
#[cfg(loom)]
use mqstore_io::sync::model::Mutex;

/// Maximum number of runs in progress at once.
#[cfg(not(loom))]
pub(super) const RUNS: u64 = 64;
#[cfg(loom)]
pub(super) const RUNS: u64 = 2;

/// The dispatch window, as the module describes it.
#[derive(Debug)]
pub(super) struct RunWindow<T> {
    /// Number of the run that is taken next.
    head: AtomicU64,
    /// Bit n is set if the run at place n is complete.
    done: AtomicU64,
    is_locked: AtomicBool,
    places: Box<[Mutex<Option<T>>]>,
}

/// The right to take runs out in order; at most one exists.
#[derive(Debug)]
pub(super) struct CommitGuard<'a, T>(&'a RunWindow<T>);

impl<T> RunWindow<T> {
    /// Creates a window whose next run is 0.
    pub(super) fn new() -> Self {
        Self {
            head: AtomicU64::new(0),
            done: AtomicU64::new(0),
            is_locked: AtomicBool::new(false),
            places: (0..RUNS).map(|_| Mutex::new(None)).collect(),
        }
    }

    /// Number of the run that is taken next; all runs before it were taken.
    pub(super) fn head(&self) -> u64 {
        self.head.load(Ordering::Acquire)
    }

    /// Whether run `number` may be assigned to a thread.
    pub(super) fn has_space_for(&self, number: u64) -> bool {
        number - self.head() < RUNS
    }

    /// Stores the completed run `number` and sets its bit. Call it once for each assigned run.
    pub(super) fn complete(&self, number: u64, run: T) {
        *self.place(number).lock() = Some(run);
        self.done.fetch_or(bit(number), Ordering::AcqRel);
    }

    /// Returns the right to take runs out if no thread has it and the next run is complete. Call it after each
    /// [`Self::complete`] and again after each guard is dropped.
    pub(super) fn try_lock(&self) -> Option<CommitGuard<'_, T>> {
        fence(Ordering::SeqCst);
        if !self.head_is_complete() {
            return None;
        }
        let free = self.is_locked.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        // Created only on success: dropping a `CommitGuard` releases the lock, which may belong to another thread.
        free.is_ok().then(|| CommitGuard(self))
    }

    /// Whether the next run is complete.
    pub(super) fn head_is_complete(&self) -> bool {
        self.done.load(Ordering::Acquire) & bit(self.head()) != 0
    }

    #[expect(clippy::indexing_slicing, reason = "there are RUNS places, and RUNS is not 0")]
    fn place(&self, number: u64) -> &Mutex<Option<T>> {
        &self.places[(number % RUNS) as usize]
    }
}

impl<T> CommitGuard<'_, T> {
    /// Calls `with` on the next run if it is complete. The run stays in its place until [`Self::advance`].
    pub(super) fn with_next<R>(&self, with: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.0.head_is_complete().then(|| self.0.place(self.0.head()).lock().as_mut().map(with)).flatten()
    }

    /// Takes out the next run, which [`Self::with_next`] has processed.
    pub(super) fn advance(&self) -> Option<T> {
        let head = self.0.head();
        let run = self.0.place(head).lock().take();
        self.0.done.fetch_and(!bit(head), Ordering::AcqRel);
        // After this store, the place and its bit may be used for another run.
        self.0.head.store(head + 1, Ordering::Release);
        run
    }
}

impl<T> Drop for CommitGuard<'_, T> {
    fn drop(&mut self) {
        self.0.is_locked.store(false, Ordering::Release);
    }
}

fn bit(number: u64) -> u64 {
    1 << (number % RUNS)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Takes all runs that can be taken, in order.
    fn take(window: &RunWindow<&'static str>) -> Vec<&'static str> {
        let Some(guard) = window.try_lock() else { return Vec::new() };
        assert!(window.try_lock().is_none());
        let mut taken = Vec::new();
        while let Some(run) = guard.with_next(|run| *run) {
            assert_eq!(guard.advance(), Some(run));
            taken.push(run);
        }
        taken
    }

    #[test]
    fn what_is_missing_holds_back_what_comes_later() {
        let window = RunWindow::new();
        for (number, run) in [(1, "m2"), (0, "m1"), (4, "m5")] {
            window.complete(number, run);
        }
        assert_eq!(take(&window), ["m1", "m2"]);
        assert_eq!(window.head(), 2);
        window.complete(3, "m4");
        assert_eq!(take(&window), [""; 0]);
        window.complete(2, "m3");
        assert_eq!(take(&window), ["m3", "m4", "m5"]);
        assert!(window.has_space_for(5 + RUNS - 1) && !window.has_space_for(5 + RUNS));
    }

    #[test]
    fn a_run_that_is_not_taken_stays() {
        let window = RunWindow::new();
        window.complete(0, "m1");
        window.try_lock().unwrap().with_next(|run| *run = "m1, once more").unwrap();
        assert_eq!(take(&window), ["m1, once more"]);
    }

    #[test]
    fn places_are_used_again() {
        let window = RunWindow::new();
        for number in 0..RUNS * 3 {
            window.complete(number, "run");
            assert_eq!(take(&window), ["run"]);
        }
        assert_eq!(window.head(), RUNS * 3);
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64 as Count;
    use loom::thread;

    use super::*;

    /// Checks all interleavings with up to two preemptions; errors in lock-free code appear in those.
    fn check(model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(model);
    }

    /// Does a worker's part for its run: completes it, and takes all runs that can be taken.
    fn work(window: &RunWindow<u64>, taken: &Count, number: u64) {
        window.complete(number, number);
        while let Some(guard) = window.try_lock() {
            while let Some(run) = guard.with_next(|run| *run) {
                // Runs come in order, and no other thread takes one meanwhile.
                assert_eq!(taken.load(Ordering::Relaxed), run);
                taken.store(run + 1, Ordering::Relaxed);
                guard.advance();
            }
        }
    }

    /// Two workers complete two runs in any order. Both runs are taken, once each and in order, although a worker that
    /// finds the lock held leaves.
    #[test]
    fn every_complete_run_is_taken_in_order() {
        check(|| {
            let (window, taken) = (Arc::new(RunWindow::new()), Arc::new(Count::new(0)));
            let other = {
                let (window, taken) = (Arc::clone(&window), Arc::clone(&taken));
                thread::spawn(move || work(&window, &taken, 1))
            };
            work(&window, &taken, 0);
            other.join().unwrap();
            assert_eq!((taken.load(Ordering::Relaxed), window.head()), (2, 2));
        });
    }

    /// A third run gets the place and the bit of the first one only after the first one was taken.
    #[test]
    fn a_place_is_used_again_only_when_it_is_free() {
        check(|| {
            let (window, taken) = (Arc::new(RunWindow::new()), Arc::new(Count::new(0)));
            let other = {
                let (window, taken) = (Arc::clone(&window), Arc::clone(&taken));
                thread::spawn(move || work(&window, &taken, 0))
            };
            work(&window, &taken, 1);
            if window.has_space_for(2) {
                work(&window, &taken, 2);
                other.join().unwrap();
                assert_eq!(taken.load(Ordering::Relaxed), 3);
            } else {
                other.join().unwrap();
                assert_eq!(taken.load(Ordering::Relaxed), 2);
            }
        });
    }
}
