//! One task of a scan, and the reports of a scan to its caller.

use std::sync::Arc;

use mqstore_base::message::StoredRecord;
use mqstore_log::commit_log::RecordRun;

/// Bytes of the log that one task decodes.
pub(super) const TASK_BYTES: u64 = 2 << 20;

/// Maximum number of units that one task follows.
pub(super) const TASK_ENTRIES: usize = 4096;

/// A unit that a task follows.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryLead {
    pub(super) offset: u64,
    pub(super) size: u32,
    pub(super) queue: usize,
    pub(super) queue_offset: i64,
}

/// A task.
pub(super) enum Task {
    /// Consecutive records of the log.
    Run(RecordRun),
    /// Records of queue units.
    Leads(Vec<EntryLead>),
    /// Records that are read already.
    Records(Vec<StoredRecord>),
}

/// The answer of a source.
pub(super) enum NextTask {
    Task(Task),
    End,
}

/// The kind of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// Bytes that are no record were skipped.
    Damaged,
    /// A part of the log was deleted before it was read.
    Deleted,
    /// A unit of a queue pointed to a wrong record; the rows are still complete.
    Misled,
}

/// Receives a report.
pub(super) type SkipCallback = Arc<dyn Fn(Passed, String) + Send + Sync>;
