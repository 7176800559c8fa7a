//! The pace of reads from the disk while a writer waits for syncs.
//!
//! A sync waits behind all the reads that the device already has. So while a writer syncs the log for a caller, each
//! process spaces its reads of this log from the disk evenly. Their rate follows the syncs, as the rate of a network
//! connection follows its losses: it halves when syncs take too long, and grows in equal steps otherwise. Processes
//! that read the same log see the same syncs, so their rates become similar, and none of them needs to know the others.
//! Without such a writer, reads have no pace.
//!
//! Bytes that are in memory never wait: `os/paced_reads.rs` makes that difference for each read. Files without a
//! device, such as simulated ones, ignore the pace.
//!
//! Nothing is on disk. Across threads: a read takes its turn under a lock, and sleeps without it.

use std::fmt::Debug;
use std::time::Duration;

use crate::clock::Clock;
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering};

/// Interval of looks at the syncs. A pace begins at most this long after the first sync of a writer that is known.
const LOOK_NS: u64 = 10_000_000;

/// Interval of changes of the rate. It is longer than the queue of most devices, so that a change can have its effect
/// before the next one, and has a hundred syncs of a busy writer.
const STEP_NS: u64 = 100_000_000;

/// The pace ends this long after the last sync. It bridges the pauses of a writer that syncs now and then: without a
/// pace, the disk would be full of reads at its next sync.
const QUIET_NS: u64 = 2_000_000_000;

/// The pace ends this long after the start of a sync that does not end. A writer that was killed leaves such a sync.
const LOST_SYNC_NS: u64 = 30_000_000_000;

/// The rate halves if more than one in this many syncs took too long. A few slow syncs come from the device itself.
const SLOW_ONE_IN: u64 = 16;

/// Bytes a second at which a pace begins: slower than every disk that reads in parallel, so that the first syncs find
/// little to wait for.
const FIRST_RATE: u64 = 32 << 20;

/// Minimum of the rate, so that readers always make progress: a tenth of the sequential rate of a slow disk.
const LEAST_RATE: u64 = 4 << 20;

/// Maximum of the rate: at a faster pace, the pauses would be shorter than the system can sleep.
const MOST_RATE: u64 = 1 << 30;

/// Growth of the rate in each interval without too many slow syncs: from [`FIRST_RATE`] to 400 MB/s in ten seconds.
const RATE_STEP: u64 = 4 << 20;

/// Cost of a read besides its bytes, in bytes. A disk that reads in parallel takes about as long for the start of a
/// read as for this many bytes.
const READ_COST: u64 = 16 << 10;

/// The syncs of a writer's log that a caller waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncCounts {
    /// Number of starts and ends; odd during a sync.
    pub steps: u64,
    /// Number of syncs that took too long.
    pub slow: u64,
    /// Nanoseconds after which the current or last sync takes too long.
    pub limit_ns: u64,
}

impl SyncCounts {
    fn is_running(self) -> bool {
        self.steps % 2 == 1
    }
}

/// The source of the counts of a store's writer.
pub trait SyncSource: Send + Sync + Debug {
    /// Returns the counts as they are now; `None` if the store has no writer that counts. Counts that do not change
    /// are those of a writer that ended or does not sync.
    fn counts(&self) -> Option<SyncCounts>;
}

/// The pace of one process for the log of one store. See the header of this module.
#[derive(Debug)]
pub struct ReadPace {
    clock: Arc<dyn Clock>,
    source: Box<dyn SyncSource>,
    /// Time of the next look.
    look_ns: AtomicU64,
    /// The result of the last look.
    holds: AtomicBool,
    state: Mutex<PaceState>,
    waits: AtomicU64,
    waited_ns: AtomicU64,
}

#[derive(Debug, Default)]
struct PaceState {
    /// The counts of the last look.
    seen: Option<SyncCounts>,
    /// When that was.
    looked_ns: Option<u64>,
    /// When a look found other steps than the one before it.
    moved_ns: Option<u64>,
    /// The counts at the last change of the rate.
    judged: SyncCounts,
    /// Time of the next change of the rate.
    judge_ns: u64,
    /// Whether a read waited since then. Otherwise the rate is not what limits the reads, and does not grow.
    was_used: bool,
    /// Bytes a second.
    rate: u64,
    /// The turn of the next read.
    next_ns: u64,
}

impl ReadPace {
    /// Creates the pace of a store whose writer's syncs `source` counts.
    pub fn new(clock: Arc<dyn Clock>, source: Box<dyn SyncSource>) -> Self {
        Self {
            clock,
            source,
            look_ns: AtomicU64::new(0),
            holds: AtomicBool::new(false),
            state: Mutex::default(),
            waits: AtomicU64::new(0),
            waited_ns: AtomicU64::new(0),
        }
    }

    /// Whether reads from the disk have a pace now. Reads the clock, and every 10 ms the counts.
    pub fn holds(&self) -> bool {
        let now_ns = self.now_ns();
        if now_ns >= self.look_ns.load(Ordering::Relaxed)
            && let Some(mut state) = self.state.try_lock()
        {
            self.look_ns.store(now_ns + LOOK_NS, Ordering::Relaxed);
            self.holds.store(state.look(self.source.counts(), now_ns), Ordering::Relaxed);
        }
        self.holds.load(Ordering::Relaxed)
    }

    /// Waits for the turn of a read of `bytes` from the disk. Call it only while the pace [holds](Self::holds).
    pub fn wait(&self, bytes: usize) {
        let wait_ns = self.state.lock().take_turn(bytes as u64, self.now_ns());
        if wait_ns > 0 {
            self.waits.fetch_add(1, Ordering::Relaxed);
            self.waited_ns.fetch_add(wait_ns, Ordering::Relaxed);
            self.clock.sleep(Duration::from_nanos(wait_ns));
        }
    }

    /// Returns how many reads waited for their turn so far, and their total time.
    pub fn waits(&self) -> (u64, Duration) {
        let waited_ns = self.waited_ns.load(Ordering::Relaxed);
        (self.waits.load(Ordering::Relaxed), Duration::from_nanos(waited_ns))
    }

    fn now_ns(&self) -> u64 {
        self.clock.monotonic().as_nanos() as u64
    }
}

impl PaceState {
    /// Takes note of the current counts; returns whether reads have a pace.
    fn look(&mut self, counts: Option<SyncCounts>, now_ns: u64) -> bool {
        let Some(counts) = counts else {
            *self = Self::default();
            return false;
        };
        let moved = self.seen.is_some_and(|seen| seen.steps != counts.steps);
        // A sync that ran at the last look and has ended since may have ended long ago.
        let held = if moved { self.moved_within(QUIET_NS, now_ns) } else { self.is_active(now_ns) };
        let is_recent = |looked_ns| now_ns.saturating_sub(looked_ns) <= STEP_NS;
        let knows = self.looked_ns.replace(now_ns).is_some_and(is_recent) || held;
        self.seen = Some(counts);
        if !knows {
            // Perhaps the last sync was long ago, and perhaps there are many. The next look shows it.
            self.begin(counts, now_ns);
            return counts.steps > 0;
        }
        if moved {
            self.moved_ns = Some(now_ns);
            if !held {
                self.begin(counts, now_ns);
            }
        }
        if !self.is_active(now_ns) {
            return false;
        }
        if now_ns >= self.judge_ns {
            self.judge(counts, now_ns);
        }
        true
    }

    /// Whether a writer syncs now, or did so just before.
    fn is_active(&self, now_ns: u64) -> bool {
        let is_running = self.seen.is_some_and(SyncCounts::is_running);
        self.moved_within(if is_running { LOST_SYNC_NS } else { QUIET_NS }, now_ns)
    }

    fn moved_within(&self, limit_ns: u64, now_ns: u64) -> bool {
        self.moved_ns.is_some_and(|moved_ns| now_ns.saturating_sub(moved_ns) < limit_ns)
    }

    /// Changes the rate by the syncs since its last change.
    fn judge(&mut self, counts: SyncCounts, now_ns: u64) {
        let running_ns = now_ns.saturating_sub(self.moved_ns.unwrap_or(now_ns));
        let is_stuck = counts.is_running() && running_ns > counts.limit_ns.max(LOOK_NS);
        let slow = counts.slow.wrapping_sub(self.judged.slow).saturating_add(u64::from(is_stuck));
        let syncs = counts.steps.wrapping_sub(self.judged.steps) / 2;
        if slow.saturating_mul(SLOW_ONE_IN) > syncs {
            self.rate = (self.rate / 2).max(LEAST_RATE);
        } else if self.was_used {
            self.rate = (self.rate + RATE_STEP).min(MOST_RATE);
        }
        self.start_interval(counts, now_ns);
    }

    fn begin(&mut self, counts: SyncCounts, now_ns: u64) {
        self.rate = FIRST_RATE;
        self.next_ns = now_ns;
        self.start_interval(counts, now_ns);
    }

    fn start_interval(&mut self, counts: SyncCounts, now_ns: u64) {
        self.judged = counts;
        self.judge_ns = now_ns + STEP_NS;
        self.was_used = false;
    }

    /// Takes the next turn for a read of `bytes`; returns the time until then.
    fn take_turn(&mut self, bytes: u64, now_ns: u64) -> u64 {
        let turn_ns = self.next_ns.max(now_ns);
        let cost = (bytes + READ_COST).saturating_mul(1_000_000_000);
        self.next_ns = turn_ns.saturating_add(cost / self.rate.max(LEAST_RATE));
        self.was_used |= turn_ns > now_ns;
        turn_ns - now_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    /// A writer whose syncs a test makes.
    #[derive(Clone, Debug, Default)]
    struct TestWriter(Arc<Mutex<Option<SyncCounts>>>);

    impl SyncSource for TestWriter {
        fn counts(&self) -> Option<SyncCounts> {
            *self.0.lock()
        }
    }

    struct World {
        clock: Arc<ManualClock>,
        writer: TestWriter,
        pace: ReadPace,
    }

    const PIECE: usize = 112 << 10;

    impl World {
        fn new() -> Self {
            let (clock, writer) = (Arc::new(ManualClock::new(0)), TestWriter::default());
            let pace = ReadPace::new(Arc::<ManualClock>::clone(&clock), Box::new(writer.clone()));
            Self { clock, writer, pace }
        }

        fn change(&self, change: impl FnOnce(&mut SyncCounts)) {
            change(self.writer.0.lock().get_or_insert_default());
        }

        /// Makes `syncs` syncs, `slow` of them slow, in an interval of the rate.
        fn sync(&self, syncs: u64, slow: u64) {
            self.change(|counts| {
                counts.steps += 2 * syncs;
                counts.slow += slow;
            });
            self.clock.advance(Duration::from_nanos(STEP_NS));
            self.pace.holds();
        }

        /// Returns the bytes a second of ten reads that follow one another.
        fn rate(&self) -> u64 {
            self.pace.wait(PIECE);
            let start_ns = self.pace.now_ns();
            for _ in 0..10 {
                self.pace.wait(PIECE);
            }
            10 * (PIECE as u64 + READ_COST) * 1_000_000_000 / (self.pace.now_ns() - start_ns)
        }

        /// Returns the rate in steps of [`RATE_STEP`].
        fn steps(&self) -> u64 {
            (self.rate() + RATE_STEP / 2) / RATE_STEP
        }
    }

    #[test]
    fn reads_have_a_pace_only_while_a_writer_syncs() {
        let world = World::new();
        assert!(!world.pace.holds());
        // The counts of a writer that ended long ago, in a sync. They have a pace from the first look after a pause to
        // the next one.
        world.change(|counts| counts.steps = 41);
        for _ in 0..5 {
            world.clock.advance(Duration::from_secs(1));
            assert!(world.pace.holds());
            for _ in 0..5 {
                world.clock.advance(Duration::from_millis(10));
                assert!(!world.pace.holds());
            }
        }
        world.change(|counts| counts.steps = 42);
        world.clock.advance(Duration::from_millis(10));
        assert!(world.pace.holds());
        world.change(|counts| counts.steps += 2);
        world.clock.advance(Duration::from_millis(1));
        // The next look, which finds this sync, is not due yet.
        assert!(world.pace.holds());
        world.clock.advance(Duration::from_millis(1_990));
        assert!(world.pace.holds());
        for _ in 0..20 {
            world.clock.advance(Duration::from_millis(99));
            assert!(world.pace.holds());
        }
        world.clock.advance(Duration::from_millis(20));
        assert!(!world.pace.holds());
        // The last look was during a sync, and the writer has made no other since.
        world.change(|counts| counts.steps += 1);
        world.clock.advance(Duration::from_millis(10));
        assert!(world.pace.holds());
        world.change(|counts| counts.steps += 1);
        world.clock.advance(Duration::from_millis(2_500));
        assert!(world.pace.holds(), "until the next look shows that no sync follows");
        world.clock.advance(Duration::from_millis(10));
        assert!(!world.pace.holds());
        // A writer that is killed during a sync.
        world.change(|counts| counts.steps += 1);
        world.clock.advance(Duration::from_millis(10));
        assert!(world.pace.holds());
        world.clock.advance(Duration::from_millis(29_950));
        assert!(world.pace.holds());
        world.clock.advance(Duration::from_millis(50));
        assert!(!world.pace.holds());
        *world.writer.0.lock() = None;
        world.clock.advance(Duration::from_secs(1));
        assert!(!world.pace.holds());
    }

    #[test]
    fn turns_are_spaced_evenly() {
        let world = World::new();
        world.change(|counts| counts.steps = 2);
        world.pace.holds();
        world.sync(1, 0);
        // The first read does not wait.
        world.pace.wait(PIECE);
        assert_eq!(world.pace.waits(), (0, Duration::ZERO));
        let turn = Duration::from_nanos((PIECE as u64 + READ_COST) * 1_000_000_000 / FIRST_RATE);
        for count in 1..=4 {
            let before = world.clock.monotonic();
            world.pace.wait(PIECE);
            assert_eq!(world.clock.monotonic().saturating_sub(before), turn);
            assert_eq!(world.pace.waits(), (u64::from(count), turn * count));
        }
        // A reader that was slower than the pace does not catch up with a burst.
        world.clock.advance(turn * 10);
        let before = world.clock.monotonic();
        world.pace.wait(PIECE);
        world.pace.wait(PIECE);
        assert_eq!(world.clock.monotonic().saturating_sub(before), turn);
    }

    #[test]
    fn the_rate_follows_the_syncs() {
        let world = World::new();
        world.change(|counts| counts.steps = 2);
        world.pace.holds();
        world.sync(100, 0);
        assert_eq!(world.steps(), 8);
        world.sync(100, 0);
        assert_eq!(world.steps(), 9);
        // One slow sync in a hundred is not the fault of the readers, seven are.
        world.sync(100, 1);
        assert_eq!(world.steps(), 10);
        world.sync(100, 7);
        assert_eq!(world.steps(), 5);
        // Without reads that wait, nothing is learned about a higher rate.
        for _ in 0..5 {
            world.sync(100, 0);
        }
        assert_eq!(world.steps(), 6);
        for _ in 0..5 {
            world.sync(1, 1);
        }
        assert_eq!(world.steps(), 1, "the minimum");
        // A sync that does not end is slow before its end.
        for _ in 0..9 {
            world.sync(10, 0);
            world.rate();
        }
        assert_eq!(world.steps(), 10);
        world.change(|counts| {
            counts.steps += 1;
            counts.limit_ns = 50_000_000;
        });
        world.clock.advance(Duration::from_millis(10));
        assert!(world.pace.holds());
        world.clock.advance(Duration::from_nanos(STEP_NS));
        assert!(world.pace.holds());
        assert_eq!(world.steps(), 5);
    }
}
