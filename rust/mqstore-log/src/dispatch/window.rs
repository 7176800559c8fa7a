//! Which runs are complete, and how far there is none missing.
//!
//! Runs are numbered from 0 on, without gaps, in the order of the log. Whoever is done with one puts it
//! into its place and sets its bit; one thread at a time takes them out again in order:
//!
//! ```text
//! run       7    8    9   10   11   12  ...  7 + 64
//! bit       0    1    1    0    1    0        not given out before run 7 is taken
//!           ^ head: everything before it was taken
//! ```
//!
//! Bits are used again every [`RUNS`] runs, never keyed by anything but the number of the run: a gap in the
//! offsets of a queue leaves no gap here.
//!
//! Across threads: [`RunWindow::complete`] from any number of threads; a [`Turn`], of which there is one at a
//! time, takes runs out. Who completes a run and finds the turn taken may go: whoever has it looks at the
//! bits once more after giving it back. Setting the bit and looking at the turn, giving the turn back and
//! looking at the bit, are each separated by a sequentially consistent fence, so that one of the two sees the
//! other. Nothing here reaches a disk.

#[cfg(not(loom))]
use mqstore_io::sync::{AtomicBool, AtomicU64, Mutex, Ordering, fence};

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
#[cfg(loom)]
use mqstore_io::sync::model::Mutex;

/// Runs that may be given out at once.
#[cfg(not(loom))]
pub(super) const RUNS: u64 = 64;
#[cfg(loom)]
pub(super) const RUNS: u64 = 2;

/// See the module's text.
#[derive(Debug)]
pub(super) struct RunWindow<T> {
    /// The run that is taken next.
    head: AtomicU64,
    /// Bit n: the run of that place is complete.
    done: AtomicU64,
    turn: AtomicBool,
    places: Box<[Mutex<Option<T>>]>,
}

/// The right to take runs out, in order.
#[derive(Debug)]
pub(super) struct CommitTurn<'a, T>(&'a RunWindow<T>);

impl<T> RunWindow<T> {
    /// A window whose next run is 0.
    pub(super) fn new() -> Self {
        Self {
            head: AtomicU64::new(0),
            done: AtomicU64::new(0),
            turn: AtomicBool::new(false),
            places: (0..RUNS).map(|_| Mutex::new(None)).collect(),
        }
    }

    /// The run that is taken next: every one before it was taken.
    pub(super) fn head(&self) -> u64 {
        self.head.load(Ordering::Acquire)
    }

    /// Whether run `number` may be given out.
    pub(super) fn has_room_for(&self, number: u64) -> bool {
        number - self.head() < RUNS
    }

    /// Puts run `number`, which was given out once, into its place.
    pub(super) fn complete(&self, number: u64, run: T) {
        *self.place(number).lock() = Some(run);
        self.done.fetch_or(bit(number), Ordering::AcqRel);
    }

    /// The right to take runs out, if nobody has it and there is one to take. To be asked for after each
    /// [`Self::complete`], and again after each turn.
    pub(super) fn turn(&self) -> Option<CommitTurn<'_, T>> {
        fence(Ordering::SeqCst);
        if !self.head_is_complete() {
            return None;
        }
        let free = self.turn.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        // Not made unless it is got: its end would give back the turn of another.
        free.is_ok().then(|| CommitTurn(self))
    }

    /// Whether the next run can be taken.
    pub(super) fn head_is_complete(&self) -> bool {
        self.done.load(Ordering::Acquire) & bit(self.head()) != 0
    }

    #[expect(clippy::indexing_slicing, reason = "there are RUNS places, and RUNS is not 0")]
    fn place(&self, number: u64) -> &Mutex<Option<T>> {
        &self.places[(number % RUNS) as usize]
    }
}

impl<T> CommitTurn<'_, T> {
    /// The next run, if it is complete. It stays where it is until [`Self::advance`].
    pub(super) fn with_next<R>(&self, with: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.0.head_is_complete().then(|| self.0.place(self.0.head()).lock().as_mut().map(with)).flatten()
    }

    /// Takes the next run out, which [`Self::with_next`] showed.
    pub(super) fn advance(&self) -> Option<T> {
        let head = self.0.head();
        let run = self.0.place(head).lock().take();
        self.0.done.fetch_and(!bit(head), Ordering::AcqRel);
        // From here on the place and its bit may be used for another run.
        self.0.head.store(head + 1, Ordering::Release);
        run
    }
}

impl<T> Drop for CommitTurn<'_, T> {
    fn drop(&mut self) {
        self.0.turn.store(false, Ordering::Release);
    }
}

fn bit(number: u64) -> u64 {
    1 << (number % RUNS)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Takes what can be taken, in order.
    fn take(window: &RunWindow<&'static str>) -> Vec<&'static str> {
        let Some(turn) = window.turn() else { return Vec::new() };
        assert!(window.turn().is_none());
        let mut taken = Vec::new();
        while let Some(run) = turn.with_next(|run| *run) {
            assert_eq!(turn.advance(), Some(run));
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
        assert!(window.has_room_for(5 + RUNS - 1) && !window.has_room_for(5 + RUNS));
    }

    #[test]
    fn a_run_that_is_not_taken_stays() {
        let window = RunWindow::new();
        window.complete(0, "m1");
        window.turn().unwrap().with_next(|run| *run = "m1, once more").unwrap();
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

    /// All interleavings with up to two preemptions: what lock-free code gets wrong shows up in those.
    fn check(model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(model);
    }

    /// What a worker does with its run: completes it, and takes what can be taken.
    fn work(window: &RunWindow<u64>, taken: &Count, number: u64) {
        window.complete(number, number);
        while let Some(turn) = window.turn() {
            while let Some(run) = turn.with_next(|run| *run) {
                // In order, and nobody else takes one meanwhile.
                assert_eq!(taken.load(Ordering::Relaxed), run);
                taken.store(run + 1, Ordering::Relaxed);
                turn.advance();
            }
        }
    }

    /// Two workers complete two runs in any order: both are taken in the end, each once and in order,
    /// although a worker that finds the turn taken goes away.
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

    /// A third run gets the place and the bit of the first one only after that was taken.
    #[test]
    fn a_place_is_used_again_only_when_it_is_free() {
        check(|| {
            let (window, taken) = (Arc::new(RunWindow::new()), Arc::new(Count::new(0)));
            let other = {
                let (window, taken) = (Arc::clone(&window), Arc::clone(&taken));
                thread::spawn(move || work(&window, &taken, 0))
            };
            work(&window, &taken, 1);
            if window.has_room_for(2) {
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
