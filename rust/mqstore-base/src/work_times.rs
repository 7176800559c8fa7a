//! How often each kind of work ran that can delay an append, and for how long.
//!
//! The threads of a store add to these sums; a trace of appends reads them (`mqstore_engine::AppendTrace`). Only work
//! that takes microseconds or more is timed, so an append that meets none of it pays nothing. Across threads: the sums
//! are relaxed atomics. A reader may see one of two numbers that change together before the other.

use std::array;
use std::time::Duration;

use mqstore_io::Clock;
use mqstore_io::sync::{AtomicU64, Ordering};

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// An append waits for the put lock.
    PutLock,
    /// An append continues in the next segment.
    Roll,
    /// An append reserves disk space itself.
    Allocate,
    /// An append waits until the pool has space.
    Pool,
    /// An append waits because dispatch and its syncs are too far behind.
    Backlog,
    /// A thread prepares the log after its tail.
    Prepare,
    /// A thread syncs the log, the queues or the index.
    Sync,
    /// A thread creates an index file.
    IndexFile,
    /// A thread dispatches records.
    Dispatch,
}

impl Work {
    /// All kinds: first those that happen in the thread of an append.
    pub const ALL: [Self; 9] = [
        Self::PutLock,
        Self::Roll,
        Self::Allocate,
        Self::Pool,
        Self::Backlog,
        Self::Prepare,
        Self::Sync,
        Self::IndexFile,
        Self::Dispatch,
    ];

    /// Whether the work happens in the thread of an append.
    pub fn is_in_append(self) -> bool {
        self <= Self::Backlog
    }

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::PutLock => "put_lock",
            Self::Roll => "segment_roll",
            Self::Allocate => "disk_space",
            Self::Pool => "pool_full",
            Self::Backlog => "dispatch_backlog",
            Self::Prepare => "page_preparation",
            Self::Sync => "sync",
            Self::IndexFile => "index_file",
            Self::Dispatch => "dispatch",
        }
    }
}

/// The sums of one kind.
#[derive(Debug, Default)]
struct Sum {
    count: AtomicU64,
    /// The number of threads that do this work now.
    active: AtomicU64,
    /// The sum of all ends minus the sum of all starts, modulo 2^64.
    balance_ns: AtomicU64,
}

/// The sums of all kinds for one store.
#[derive(Debug, Default)]
pub struct WorkTimes {
    sums: [Sum; Work::ALL.len()],
}

/// The sums at one moment, in the order of [`Work::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkReading {
    /// How often each kind started.
    pub counts: [u64; Work::ALL.len()],
    /// Nanoseconds of each kind; the work of several threads at one time counts for each.
    pub busy_ns: [u64; Work::ALL.len()],
}

impl WorkTimes {
    /// Runs `run` and adds its time to `work`.
    #[inline]
    pub fn time<T>(&self, work: Work, clock: &dyn Clock, run: impl FnOnce() -> T) -> T {
        self.begin(work, now_ns(clock));
        let outcome = run();
        self.end(work, now_ns(clock));
        outcome
    }

    fn begin(&self, work: Work, start_ns: u64) {
        if let Some(sum) = self.sums.get(work as usize) {
            sum.count.fetch_add(1, Ordering::Relaxed);
            sum.balance_ns.fetch_sub(start_ns, Ordering::Relaxed);
            sum.active.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn end(&self, work: Work, end_ns: u64) {
        if let Some(sum) = self.sums.get(work as usize) {
            sum.active.fetch_sub(1, Ordering::Relaxed);
            sum.balance_ns.fetch_add(end_ns, Ordering::Relaxed);
        }
    }

    /// Adds work that is over already; both times are of [`Clock::monotonic`].
    #[cold]
    pub fn add(&self, work: Work, start: Duration, end: Duration) {
        self.begin(work, start.as_nanos() as u64);
        self.end(work, end.as_nanos() as u64);
    }

    /// Returns the sums. Work that is not over counts up to now.
    pub fn read(&self, clock: &dyn Clock) -> WorkReading {
        let now_ns = now_ns(clock);
        let each = |field: fn(&Sum, u64) -> u64| {
            array::from_fn(|index| self.sums.get(index).map_or(0, |sum| field(sum, now_ns)))
        };
        WorkReading {
            counts: each(|sum, _| sum.count.load(Ordering::Relaxed)),
            busy_ns: each(|sum, now_ns| {
                let active = sum.active.load(Ordering::Relaxed);
                let balance_ns = sum.balance_ns.load(Ordering::Relaxed);
                balance_ns.wrapping_add(active.wrapping_mul(now_ns))
            }),
        }
    }
}

impl WorkReading {
    /// Returns how many nanoseconds of `work` passed since `earlier`, at most `limit_ns`.
    pub fn busy_since(&self, earlier: &Self, work: Work, limit_ns: u64) -> u64 {
        let of = |reading: &Self| reading.busy_ns.get(work as usize).copied().unwrap_or(0);
        // A start or an end during a reading can make a difference negative; that is close to zero.
        let passed = of(self).wrapping_sub(of(earlier));
        if passed > i64::MAX as u64 { 0 } else { passed.min(limit_ns) }
    }
}

/// Nanoseconds of the clock that never steps back.
pub fn now_ns(clock: &dyn Clock) -> u64 {
    clock.monotonic().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use mqstore_io::ManualClock;

    use super::*;

    #[test]
    fn work_counts_up_to_the_moment_of_the_reading() {
        let clock = ManualClock::new(0);
        let times = WorkTimes::default();
        let first = times.read(&clock);
        let inside = times.time(Work::Sync, &clock, || {
            clock.advance(Duration::from_micros(3));
            times.read(&clock)
        });
        clock.advance(Duration::from_micros(5));
        let after = times.read(&clock);
        assert_eq!(inside.busy_since(&first, Work::Sync, u64::MAX), 3_000);
        assert_eq!(after.busy_since(&first, Work::Sync, u64::MAX), 3_000);
        assert_eq!(after.busy_since(&inside, Work::Sync, u64::MAX), 0);
        assert_eq!(after.busy_since(&first, Work::Roll, u64::MAX), 0);
        assert_eq!(after.counts.iter().sum::<u64>(), 1);
    }

    #[test]
    fn two_threads_at_a_time_count_twice_up_to_the_limit() {
        let clock = ManualClock::new(0);
        let times = WorkTimes::default();
        let first = times.read(&clock);
        let both = times.time(Work::Dispatch, &clock, || {
            times.time(Work::Dispatch, &clock, || {
                clock.advance(Duration::from_micros(2));
                times.read(&clock)
            })
        });
        assert_eq!(both.busy_since(&first, Work::Dispatch, u64::MAX), 4_000);
        assert_eq!(both.busy_since(&first, Work::Dispatch, 2_000), 2_000);
    }
}
