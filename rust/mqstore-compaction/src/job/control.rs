//! Control of a running compaction: cancellation, rate limit and progress.
//!
//! Owns [`JobControl`], which the caller and all tasks of a job share. Nothing is on disk. Any thread may send a
//! request at any time; tasks check for it every few hundred records.

use std::time::Duration;

use mqstore_io::sync::{AtomicBool, AtomicU64, Mutex, Ordering};

use mqstore_base::error::StoreError;
use mqstore_base::progress::Progress;
use mqstore_base::store_files::StoreFiles;

/// Number of records that a task processes between two checks of [`JobControl`].
const RECORDS_BETWEEN_LOOKS: u64 = 256;
const BYTES_BETWEEN_LOOKS: u64 = 256 << 10;

/// Maximum sleep between two checks.
const SLICE: Duration = Duration::from_millis(50);

/// Cancels or slows down running tasks, and reports their progress.
#[derive(Debug, Default)]
pub struct JobControl {
    ended: AtomicBool,
    bytes_per_second: AtomicU64,
    started: Mutex<Option<Duration>>,
    /// Bytes read and written, for the rate limit.
    moved_bytes: AtomicU64,
    read_bytes: AtomicU64,
    records: AtomicU64,
    total_records: AtomicU64,
    /// Total bytes to read, if the caller set it; otherwise 0.
    total_bytes: u64,
}

impl JobControl {
    /// Creates a control with a common rate limit of all tasks, in bytes per second; 0 is no limit.
    pub fn with_bytes_per_second(bytes_per_second: u64) -> Self {
        Self { bytes_per_second: AtomicU64::new(bytes_per_second), ..Self::default() }
    }

    /// Creates a control whose [`JobControl::progress`] reports this total instead of an estimate.
    pub fn with_total_bytes(total_bytes: u64) -> Self {
        Self { total_bytes, ..Self::default() }
    }

    /// Cancels the tasks: each ends with [`StoreError::Closed`] within a few hundred records.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// Returns the bytes that were read, and the total to read: each record twice. The total is estimated from the
    /// sizes so far, and is never smaller than the bytes read.
    pub fn progress(&self) -> Progress {
        let records = self.records.load(Ordering::Relaxed);
        let done_bytes = self.read_bytes.load(Ordering::Relaxed);
        let total = u128::from(done_bytes) * u128::from(self.total_records.load(Ordering::Relaxed));
        let total_bytes =
            u64::try_from(total.checked_div(u128::from(records)).unwrap_or(0)).unwrap_or(u64::MAX);
        Progress { done_bytes, total_bytes: total_bytes.max(self.total_bytes).max(done_bytes) }
    }

    /// Adds the number of records that tasks will read.
    pub(crate) fn expect(&self, records: u64) {
        self.total_records.store(records, Ordering::Relaxed);
    }

    fn passed(&self, files: &StoreFiles, counted: UnreportedWork) -> Result<(), StoreError> {
        let UnreportedWork { records, read, wrote, .. } = counted;
        self.records.fetch_add(records, Ordering::Relaxed);
        self.read_bytes.fetch_add(read + counted.passed, Ordering::Relaxed);
        let bytes = self.moved_bytes.fetch_add(read + wrote, Ordering::Relaxed) + read + wrote;
        let limit = self.bytes_per_second.load(Ordering::Relaxed);
        loop {
            if self.ended.load(Ordering::Relaxed) {
                return Err(StoreError::Closed { path: files.root.clone() });
            }
            if limit == 0 {
                return Ok(());
            }
            let now = files.clock.monotonic();
            let started = *self.started.lock().get_or_insert(now);
            let due = started.saturating_add(Duration::from_secs_f64(bytes as f64 / limit as f64));
            if due <= now {
                return Ok(());
            }
            files.clock.sleep(due.saturating_sub(now).min(SLICE));
        }
    }
}

/// Work that is not added to [`JobControl`] yet.
#[derive(Clone, Copy, Debug, Default)]
struct UnreportedWork {
    records: u64,
    /// Bytes read.
    read: u64,
    wrote: u64,
    passed: u64,
}

/// Counts the bytes of one walk, and checks [`JobControl`] from time to time.
#[derive(Debug)]
pub struct TaskMeter<'a> {
    files: &'a StoreFiles,
    control: &'a JobControl,
    counted: UnreportedWork,
}

impl<'a> TaskMeter<'a> {
    /// Creates a meter, after a first check of `control`.
    pub fn start(files: &'a StoreFiles, control: &'a JobControl) -> Result<Self, StoreError> {
        let mut meter = Self { files, control, counted: UnreportedWork::default() };
        meter.look()?;
        Ok(meter)
    }

    /// Counts a record that was read.
    pub fn read(&mut self, size: u32) -> Result<(), StoreError> {
        let counted = &mut self.counted;
        counted.records += 1;
        counted.read += u64::from(size);
        let bytes = counted.read + counted.wrote;
        if counted.records < RECORDS_BETWEEN_LOOKS && bytes < BYTES_BETWEEN_LOOKS {
            return Ok(());
        }
        self.look()
    }

    /// Counts skipped records of this size: they are progress, but not work for the rate limit.
    pub(crate) fn passed(&mut self, records: u64, bytes: u64) -> Result<(), StoreError> {
        self.counted.records += records;
        self.counted.passed += bytes;
        if self.counted.records < RECORDS_BETWEEN_LOOKS { Ok(()) } else { self.look() }
    }

    /// Counts a record that was written.
    pub fn wrote(&mut self, size: u32) {
        self.counted.wrote += u64::from(size);
    }

    /// Adds the open counts to the control, and checks it.
    pub fn look(&mut self) -> Result<(), StoreError> {
        self.control.passed(self.files, std::mem::take(&mut self.counted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sim_files;

    #[test]
    fn a_limit_makes_time_pass() {
        let files = sim_files();
        let control = JobControl::with_bytes_per_second(1 << 20);
        let mut meter = TaskMeter::start(&files, &control).unwrap();
        let before = files.clock.monotonic();
        for _ in 0..3 << 10 {
            meter.read(1000).unwrap();
            meter.wrote(24);
        }
        let passed = files.clock.monotonic().saturating_sub(before);
        assert!(passed >= Duration::from_millis(2900) && passed <= Duration::from_secs(3), "{passed:?}");
    }

    #[test]
    fn what_is_passed_over_is_progress_and_takes_no_time() {
        let files = sim_files();
        let control = JobControl::with_bytes_per_second(1 << 10);
        control.expect(1000);
        let mut meter = TaskMeter::start(&files, &control).unwrap();
        let before = files.clock.monotonic();
        meter.passed(1000, 10_000).unwrap();
        assert_eq!(control.progress(), Progress { done_bytes: 10_000, total_bytes: 10_000 });
        assert_eq!(files.clock.monotonic(), before);
    }

    #[test]
    fn an_ended_task_stops_and_progress_is_told() {
        let files = sim_files();
        let control = JobControl::default();
        control.expect(1000);
        let mut meter = TaskMeter::start(&files, &control).unwrap();
        (0..500).for_each(|_| meter.read(10).unwrap());
        meter.look().unwrap();
        assert_eq!(control.progress(), Progress { done_bytes: 5000, total_bytes: 10_000 });
        control.end();
        assert!(matches!(meter.look(), Err(StoreError::Closed { .. })));
        assert!(TaskMeter::start(&files, &control).is_err());
    }
}
