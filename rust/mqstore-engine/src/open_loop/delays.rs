//! The causes of slow steps.
//!
//! A step that took long has one cause, the first of these that fits:
//!
//! 1. Work of the store in the thread of the append took half of it: a wait for the put lock, a new segment.
//! 2. The thread was off the processor for half of it: it read a page from a disk, another thread had the processor, it
//!    waited for a page (for example for one that a sync writes), or it waited for something else.
//! 3. It ran: it took page faults, or the machine stopped it (interrupts, other guests of the host).
//!
//! The counts cover the time since they were last read, which is up to 5 µs before the step.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use mqstore_io::Clock;
use mqstore_io::os::ThreadUsage;

use super::latencies::Latencies;
use mqstore_base::work_times::{Work, WorkReading, WorkTimes};

/// The counts are read again while the thread waits, once they are older than this.
const RENEW_AFTER_NS: u64 = 5_000;

/// Minimum time until the next append for which the counts are read.
const RENEW_TIME_NS: u64 = 900;

/// The cause of a slow step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Work of the store in the thread of the append.
    Store(Work),
    /// The thread read pages of the file from a disk.
    MajorFault,
    /// Pages were not present, or not writable.
    MinorFault,
    /// Another thread had the processor.
    Preempted,
    /// The thread waited for something else in the kernel.
    Waited,
    /// Neither the store nor the system counted anything: interrupts, or other guests of the host.
    Machine,
    /// No step was slow: the appends together take longer than the rate allows.
    Rate,
}

impl Cause {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Store(work) => work.name(),
            Self::MajorFault => "major_fault",
            Self::MinorFault => "minor_fault",
            Self::Preempted => "preemption",
            Self::Waited => "wait",
            Self::Machine => "machine",
            Self::Rate => "rate",
        }
    }
}

/// One slow step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowStep {
    /// Start, in nanoseconds after the start of the trace.
    pub at_ns: u64,
    /// Duration.
    pub duration_ns: u64,
    /// Its cause.
    pub cause: Cause,
    /// The counts of the thread in this time.
    pub usage: ThreadUsage,
    /// How long other threads did each kind of work meanwhile.
    pub meanwhile: Vec<(Work, u64)>,
}

/// The sums of one cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CauseTotal {
    /// The cause.
    pub cause: Cause,
    /// Number of slow steps.
    pub steps: u64,
    /// Their time.
    pub total_ns: u64,
    /// The longest one.
    pub worst_ns: u64,
    /// Number of late appends for which this was the longest slow step since the thread was last on time.
    pub late: u64,
    /// How long other threads did each kind of work during the slow steps.
    pub meanwhile: Vec<(Work, u64)>,
}

/// The result of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendTrace {
    /// Number of appends.
    pub messages: u64,
    /// Bytes of their records.
    pub bytes: u64,
    /// Duration of the trace.
    pub elapsed_ns: u64,
    /// How late the appends ended, counted from when they were due.
    pub latencies: Latencies,
    /// Number of appends that were later than the limit.
    pub late: u64,
    /// The causes, those with the most late appends first.
    pub causes: Vec<CauseTotal>,
    /// The slowest steps, longest first.
    pub listed: Vec<SlowStep>,
    /// The counts of the thread during the whole trace.
    pub usage: ThreadUsage,
}

/// The state of a running trace.
pub(super) struct Tracer<'a> {
    clock: &'a dyn Clock,
    times: &'a WorkTimes,
    slow_ns: u64,
    most_listed: usize,
    messages: u64,
    latencies: Latencies,
    late: u64,
    causes: BTreeMap<Cause, CauseTotal>,
    listed: Vec<SlowStep>,
    /// The longest slow step since the thread was last on time, and its cause.
    behind: Option<(u64, Cause)>,
    /// The counts at the start, and at the last reading with its time.
    first: ThreadUsage,
    usage: ThreadUsage,
    work: WorkReading,
    read_at: u64,
}

impl<'a> Tracer<'a> {
    /// Creates a tracer: a step longer than `slow` is slow, and an append later than that is late. It lists the slowest
    /// `most_listed` steps.
    pub(super) fn new(
        clock: &'a dyn Clock,
        times: &'a WorkTimes,
        slow: Duration,
        most_listed: usize,
    ) -> Self {
        let first = ThreadUsage::of_this_thread();
        Self {
            clock,
            times,
            slow_ns: slow.as_nanos() as u64,
            most_listed,
            messages: 0,
            latencies: Latencies::default(),
            late: 0,
            causes: BTreeMap::new(),
            listed: Vec::new(),
            behind: None,
            first,
            usage: first,
            work: times.read(clock),
            read_at: 0,
        }
    }

    /// Reads the counts if they are old and the time until `due` allows it; returns whether it did.
    #[inline]
    pub(super) fn renew(&mut self, now: u64, due: u64) -> bool {
        let renew = now.saturating_sub(self.read_at) > RENEW_AFTER_NS && due - now > RENEW_TIME_NS;
        if renew {
            self.usage = ThreadUsage::of_this_thread();
            self.work = self.times.read(self.clock);
            self.read_at = now;
        }
        renew
    }

    /// Notes a step, which is slow if it took longer than the limit.
    #[inline]
    pub(super) fn step(&mut self, from: u64, to: u64) {
        if to.saturating_sub(from) > self.slow_ns {
            self.slow_step(from, to);
        }
    }

    /// Notes that an append ended this long after it was due.
    #[inline]
    pub(super) fn appended(&mut self, latency_ns: u64) {
        self.messages += 1;
        self.latencies.record(latency_ns);
        if latency_ns <= self.slow_ns {
            self.behind = None;
            return;
        }
        self.late += 1;
        let cause = self.behind.map_or(Cause::Rate, |(_, cause)| cause);
        self.total(cause).late += 1;
    }

    #[cold]
    fn slow_step(&mut self, from: u64, to: u64) {
        let (usage, work) = (ThreadUsage::of_this_thread(), self.times.read(self.clock));
        let duration_ns = to - from;
        let used = usage.since(&self.usage);
        let busy = |kind: Work| work.busy_since(&self.work, kind, duration_ns);
        let cause = cause_of(duration_ns, to - self.read_at.min(from), &used, busy);
        let others = Work::ALL.into_iter().filter(|kind| !kind.is_in_append());
        let meanwhile: Vec<_> = others.map(|kind| (kind, busy(kind))).collect();
        (self.usage, self.work, self.read_at) = (usage, work, to);
        if self.behind.is_none_or(|(longest, _)| longest < duration_ns) {
            self.behind = Some((duration_ns, cause));
        }
        let total = self.total(cause);
        total.steps += 1;
        total.total_ns += duration_ns;
        total.worst_ns = total.worst_ns.max(duration_ns);
        for ((_, sum), (_, busy_ns)) in total.meanwhile.iter_mut().zip(&meanwhile) {
            *sum += busy_ns;
        }
        self.list(SlowStep { at_ns: from, duration_ns, cause, usage: used, meanwhile });
    }

    /// Keeps the step if it is one of the longest, longest first.
    fn list(&mut self, step: SlowStep) {
        let place = self.listed.partition_point(|listed| listed.duration_ns >= step.duration_ns);
        if place < self.most_listed {
            self.listed.insert(place, step);
            self.listed.truncate(self.most_listed);
        }
    }

    fn total(&mut self, cause: Cause) -> &mut CauseTotal {
        self.causes.entry(cause).or_insert_with(|| {
            let others = Work::ALL.into_iter().filter(|kind| !kind.is_in_append());
            let meanwhile = others.map(|kind| (kind, 0)).collect();
            CauseTotal { cause, steps: 0, total_ns: 0, worst_ns: 0, late: 0, meanwhile }
        })
    }

    pub(super) fn finish(self, elapsed_ns: u64) -> AppendTrace {
        let mut causes: Vec<_> = self.causes.into_values().collect();
        causes.sort_by_key(|total| Reverse((total.late, total.total_ns)));
        AppendTrace {
            messages: self.messages,
            bytes: 0,
            elapsed_ns,
            latencies: self.latencies,
            late: self.late,
            causes,
            listed: self.listed,
            usage: ThreadUsage::of_this_thread().since(&self.first),
        }
    }
}

/// Returns the cause of a step. `used` are the counts of `window_ns`, which contains the step; `busy` says how long each
/// kind of work took.
fn cause_of(duration_ns: u64, window_ns: u64, used: &ThreadUsage, busy: impl Fn(Work) -> u64) -> Cause {
    let half_ns = duration_ns / 2;
    let own = Work::ALL.into_iter().filter(|kind| kind.is_in_append());
    if let Some(work) = own.max_by_key(|kind| busy(*kind)).filter(|kind| busy(*kind) >= half_ns.max(1)) {
        return Cause::Store(work);
    }
    let faulted = used.minor_faults > 0;
    if used.major_faults > 0 {
        Cause::MajorFault
    } else if window_ns.saturating_sub(used.cpu_ns) < half_ns {
        // On the processor.
        if faulted { Cause::MinorFault } else { Cause::Machine }
    } else if used.preemptions > 0 {
        Cause::Preempted
    } else if used.waits > 0 {
        if faulted { Cause::MinorFault } else { Cause::Waited }
    } else {
        Cause::Machine
    }
}

#[cfg(test)]
mod tests {
    use mqstore_io::ManualClock;

    use super::*;

    const STEP_NS: u64 = 100_000;

    fn cause(used: ThreadUsage, busy: &[(Work, u64)]) -> Cause {
        let of = |kind| busy.iter().find(|(work, _)| *work == kind).map_or(0, |(_, busy_ns)| *busy_ns);
        cause_of(STEP_NS, STEP_NS + 4_000, &used, of)
    }

    #[test]
    fn the_cause_is_the_first_that_explains_half_of_the_step() {
        let off = ThreadUsage { cpu_ns: 10_000, ..ThreadUsage::default() };
        let on = ThreadUsage { cpu_ns: 100_000, ..ThreadUsage::default() };
        let counted = |usage, minor_faults, waits, preemptions| ThreadUsage {
            minor_faults,
            waits,
            preemptions,
            ..usage
        };
        let none: &[(Work, u64)] = &[];
        for (used, busy, expected) in [
            (off, &[(Work::Roll, 60_000), (Work::PutLock, 10)][..], Cause::Store(Work::Roll)),
            // Work of other threads is no cause by itself.
            (counted(off, 0, 0, 1), &[(Work::Sync, 90_000)][..], Cause::Preempted),
            (counted(off, 0, 1, 0), &[(Work::Roll, 40_000)][..], Cause::Waited),
            (counted(off, 1, 1, 0), none, Cause::MinorFault),
            (counted(off, 1, 0, 1), none, Cause::Preempted),
            (counted(on, 1, 0, 1), none, Cause::MinorFault),
            (on, none, Cause::Machine),
            (off, none, Cause::Machine),
            (ThreadUsage { major_faults: 1, ..on }, none, Cause::MajorFault),
        ] {
            assert_eq!(cause(used, busy), expected, "{used:?} {busy:?}");
        }
    }

    #[test]
    fn late_appends_belong_to_the_longest_slow_step_since_the_last_one_on_time() {
        let (clock, times) = (ManualClock::new(0), WorkTimes::default());
        let mut tracer = Tracer::new(&clock, &times, Duration::from_micros(5), 2);
        let work_for = |tracer: &mut Tracer<'_>, work, from: u64, micros| {
            times.time(work, &clock, || clock.advance(Duration::from_micros(micros)));
            tracer.step(from, from + micros * 1_000);
        };
        tracer.appended(9_000);
        tracer.appended(4_000);
        work_for(&mut tracer, Work::Roll, 10_000, 50);
        tracer.appended(50_000);
        work_for(&mut tracer, Work::PutLock, 70_000, 20);
        tracer.appended(40_000);
        tracer.appended(5_000);
        work_for(&mut tracer, Work::PutLock, 100_000, 6);
        tracer.appended(6_000);
        let trace = tracer.finish(200_000);
        let found: Vec<_> =
            trace.causes.iter().map(|total| (total.cause, total.steps, total.late, total.worst_ns)).collect();
        assert_eq!(
            found,
            [
                (Cause::Store(Work::Roll), 1, 2, 50_000),
                (Cause::Store(Work::PutLock), 2, 1, 20_000),
                (Cause::Rate, 0, 1, 0)
            ]
        );
        assert_eq!(trace.late, 4);
        let listed: Vec<_> = trace.listed.iter().map(|step| (step.at_ns, step.duration_ns)).collect();
        assert_eq!(listed, [(10_000, 50_000), (70_000, 20_000)]);
    }
}
