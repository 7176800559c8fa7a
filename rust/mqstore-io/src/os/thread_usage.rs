//! The counts that the system keeps for one thread: processor time, page faults, context switches.

/// The counts of one thread since it started. On systems other than Linux all of them are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadUsage {
    /// Nanoseconds that the thread ran on a processor.
    pub cpu_ns: u64,
    /// Page faults that needed no read from a disk.
    pub minor_faults: u64,
    /// Page faults that waited for a read.
    pub major_faults: u64,
    /// How often the thread gave up the processor, because it waited.
    pub waits: u64,
    /// How often another thread took the processor from it.
    pub preemptions: u64,
}

impl ThreadUsage {
    /// Returns the counts of the calling thread. Takes two system calls.
    #[cfg(target_os = "linux")]
    pub fn of_this_thread() -> Self {
        use nix::sys::resource::{UsageWho, getrusage};
        use rustix::time::{ClockId, clock_gettime};

        let count = |number: i64| u64::try_from(number).unwrap_or(0);
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        let cpu_ns = count(cpu.tv_sec).saturating_mul(1_000_000_000).saturating_add(count(cpu.tv_nsec));
        // The call fails for unknown threads only.
        getrusage(UsageWho::RUSAGE_THREAD).map_or_else(
            |_| Self { cpu_ns, ..Self::default() },
            |usage| Self {
                cpu_ns,
                minor_faults: count(usage.minor_page_faults()),
                major_faults: count(usage.major_page_faults()),
                waits: count(usage.voluntary_context_switches()),
                preemptions: count(usage.involuntary_context_switches()),
            },
        )
    }

    /// Returns zeros.
    #[cfg(not(target_os = "linux"))]
    pub fn of_this_thread() -> Self {
        Self::default()
    }

    /// Returns the difference to `earlier` counts of the same thread.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            cpu_ns: self.cpu_ns.saturating_sub(earlier.cpu_ns),
            minor_faults: self.minor_faults.saturating_sub(earlier.minor_faults),
            major_faults: self.major_faults.saturating_sub(earlier.major_faults),
            waits: self.waits.saturating_sub(earlier.waits),
            preemptions: self.preemptions.saturating_sub(earlier.preemptions),
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn new_pages_and_work_are_counted() {
        let before = ThreadUsage::of_this_thread();
        let pages = vec![1_u8; 8 << 20];
        let sum: u64 = pages.iter().map(|byte| u64::from(*byte)).sum();
        let used = ThreadUsage::of_this_thread().since(&before);
        assert_eq!(sum, 8 << 20);
        assert!(used.cpu_ns > 0 && used.minor_faults > 0, "{used:?}");
    }
}
