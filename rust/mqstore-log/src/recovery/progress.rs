//! Progress of a recovery, and its interruption.
//!
//! A long recovery reports its progress about once per mebibyte of work. If the watcher returns an error, the open ends
//! with that error. Recovery can stop at each of these points: the next recovery comes to the same result, and the lock
//! is free when the open returns.

use std::sync::Arc;
use std::time::Duration;

use mqstore_io::Clock;

use mqstore_base::error::StoreError;

/// Bytes of one stage from which a recovery counts as long.
const LONG_BYTES: u64 = 64 << 20;

/// Duration from which a recovery counts as long.
const LONG_TIME: Duration = Duration::from_secs(1);

/// A stage of recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryStage {
    /// Check the records after the durable mark and make them durable.
    Log,
    /// Copy the bytes after the end of the log and zero them.
    Tail,
    /// Build queues and index from the log.
    Queues,
}

impl RecoveryStage {
    /// Returns the name of the stage: `log`, `tail` or `queues`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Tail => "tail",
            Self::Queues => "queues",
        }
    }
}

/// The state of a running recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryProgress {
    /// Current stage.
    pub stage: RecoveryStage,
    /// Bytes of this stage that are done.
    pub done_bytes: u64,
    /// Total bytes of this stage, as far as known. The stage [`RecoveryStage::Log`] may end earlier, because its walk
    /// finds the end of the log.
    pub total_bytes: u64,
    /// Whether the progress is worth showing: at least 64 MiB in this stage, or one second since the start.
    pub long: bool,
}

/// The callback for progress; if it returns an error, the open ends.
pub type RecoveryWatcher<'a> = &'a mut dyn FnMut(RecoveryProgress) -> Result<(), StoreError>;

/// Reports the progress of a recovery to a watcher.
pub struct ProgressReporter<'a> {
    clock: Arc<dyn Clock>,
    watcher: RecoveryWatcher<'a>,
    started: Duration,
}

impl std::fmt::Debug for ProgressReporter<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Watch").field("started", &self.started).finish_non_exhaustive()
    }
}

impl<'a> ProgressReporter<'a> {
    /// Creates the reporter of a recovery that starts now.
    pub fn new(clock: &Arc<dyn Clock>, watcher: RecoveryWatcher<'a>) -> Self {
        Self { clock: Arc::clone(clock), watcher, started: clock.monotonic() }
    }

    /// Reports that `done_bytes` of `total_bytes` are done. Fails if the watcher wants the open to end.
    pub(super) fn step(
        &mut self,
        stage: RecoveryStage,
        done_bytes: u64,
        total_bytes: u64,
    ) -> Result<(), StoreError> {
        let long =
            total_bytes >= LONG_BYTES || self.clock.monotonic().saturating_sub(self.started) >= LONG_TIME;
        (self.watcher)(RecoveryProgress { stage, done_bytes, total_bytes: total_bytes.max(done_bytes), long })
    }
}
