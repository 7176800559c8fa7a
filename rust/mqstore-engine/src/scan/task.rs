//! One piece of a scan's work, and what a scan tells the person who asked for it.

use std::sync::Arc;

use mqstore_base::message::StoredRecord;
use mqstore_log::commit_log::RecordRun;

/// Bytes of the log that one task decodes.
pub(super) const TASK_BYTES: u64 = 2 << 20;

/// Entries that one task follows at most.
pub(super) const TASK_ENTRIES: usize = 4096;

/// An entry that a task follows.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryLead {
    pub(super) offset: u64,
    pub(super) size: u32,
    pub(super) queue: usize,
    pub(super) queue_offset: i64,
}

/// A piece of work.
pub(super) enum Task {
    /// Records that lie one behind the other.
    Stretch(RecordRun),
    /// Records that entries lead to.
    Leads(Vec<EntryLead>),
    /// Records that were read.
    Records(Vec<StoredRecord>),
}

/// What a source says.
pub(super) enum Next {
    Task(Task),
    End,
}

/// Tells the person who opened the store something.
pub(crate) type WarningSink = Arc<dyn Fn(String) + Send + Sync>;

/// What a scan has to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// Bytes that are no record were passed over.
    Damaged,
    /// A part of the log was deleted before it was read.
    Deleted,
    /// An entry of a queue led astray; no row is missing for it.
    Misled,
}

/// Tells it.
pub(super) type SkipCallback = Arc<dyn Fn(Passed, String) + Send + Sync>;
