//! How far a recovery is, and how it is stopped.
//!
//! An open that has much to check says so, about once a mebibyte of work. What is told may answer with
//! an error, which ends the open with that error: recovery leaves the directory at every point so that
//! the next one comes to the same result, and the lock is free when the open returns.

use std::sync::Arc;
use std::time::Duration;

use mqstore_io::Clock;

use mqstore_base::error::StoreError;

/// Bytes of one stage from which on a recovery counts as long.
const LONG_BYTES: u64 = 64 << 20;

/// The time from which on a recovery counts as long.
const LONG_TIME: Duration = Duration::from_secs(1);

/// What a recovery is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryStage {
    /// Checking, and making durable, the records above the durable mark.
    Log,
    /// Keeping a copy of what lies behind the end of the log, and zeroing it.
    Tail,
    /// Building queues and index behind the log.
    Queues,
}

impl RecoveryStage {
    /// One word for it: `log`, `tail` or `queues`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Tail => "tail",
            Self::Queues => "queues",
        }
    }
}

/// Where a recovery stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryProgress {
    /// What it is doing.
    pub stage: RecoveryStage,
    /// Bytes of this stage that are done.
    pub done_bytes: u64,
    /// Bytes of this stage in all, as far as they can be known: the end of the log is found by walking
    /// it, so that the stage [`RecoveryStage::Log`] may end early.
    pub total_bytes: u64,
    /// Whether it is worth showing: 64 MiB in this stage, or a second since the beginning.
    pub long: bool,
}

/// Whom to tell; an error as answer ends the open.
pub type RecoveryWatcher<'a> = &'a mut dyn FnMut(RecoveryProgress) -> Result<(), StoreError>;

/// Tells a watcher where a recovery stands.
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
    /// A recovery that begins now.
    pub fn new(clock: &Arc<dyn Clock>, watcher: RecoveryWatcher<'a>) -> Self {
        Self { clock: Arc::clone(clock), watcher, started: clock.monotonic() }
    }

    /// Says that `done_bytes` of `total_bytes` are done; fails when the watcher wants the open to end.
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
