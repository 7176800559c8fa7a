//! The report of an expiry: the files that it removes or would remove.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

use super::holders::SegmentHolder;
use super::plan::{DeletionPlan, HeldSegment, PlannedDeletion};
use mqstore_base::events::{ExpiredFile, ExpiredKind};
use mqstore_base::notes::bytes_text;
use mqstore_base::store_files::OldFile;

/// Returns the report for a segment that is planned for removal.
pub(super) fn segment(planned: &PlannedDeletion) -> ExpiredFile {
    let segment = &planned.segment;
    ExpiredFile {
        path: segment.path(),
        kind: ExpiredKind::Segment,
        bytes: segment.len(),
        first_offset: segment.base_offset() as i64,
        last_offset: segment.end_offset() as i64 - 1,
        first_store_timestamp_ms: planned.times.first_ms,
        last_store_timestamp_ms: planned.times.last_ms,
        reason: planned.reason.clone(),
        unfinished: planned.unfinished,
    }
}

/// Returns the report for a segment that unfinished messages keep.
pub(super) fn held(held: &HeldSegment) -> ExpiredFile {
    segment(&PlannedDeletion {
        segment: Arc::clone(&held.segment),
        times: held.times,
        reason: held.why(),
        unfinished: false,
        closes_at: None,
    })
}

/// Returns the report for a derived file without data for a log that starts at `log_min`.
pub(super) fn derived(file: &OldFile, kind: ExpiredKind, log_min: u64) -> ExpiredFile {
    file_report(file, kind, format!("log: all its records are before log offset {log_min}"))
}

/// Returns the report for a queue file of a topic whose retention hides all records before `floor`.
pub(crate) fn hidden(file: &OldFile, floor: u64) -> ExpiredFile {
    let reason = format!("topic: the retention of its topic hides all records before log offset {floor}");
    file_report(file, ExpiredKind::Queue, reason)
}

fn file_report(file: &OldFile, kind: ExpiredKind, reason: String) -> ExpiredFile {
    ExpiredFile {
        path: file.path.clone(),
        kind,
        bytes: file.bytes,
        first_offset: file.first_offset,
        last_offset: file.last_offset,
        first_store_timestamp_ms: None,
        last_store_timestamp_ms: None,
        reason,
        unfinished: false,
    }
}

/// A topic whose retention hides messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpiredTopic {
    /// The topic.
    pub topic: String,
    /// Number of queue offsets that are hidden now and were readable before.
    pub messages: u64,
    /// The new floor: all records of the topic before this log offset are hidden.
    pub log_offset: u64,
}

/// The result of [`crate::Store::expire`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpireReport {
    /// Whether this is only a preview; then nothing was changed.
    pub dry_run: bool,
    /// The files: segments, then queue files, then index files, each oldest first.
    pub files: Vec<ExpiredFile>,
    /// Number of segments among them.
    pub segments: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// The topics whose retention hides messages, by name.
    pub topics: Vec<ExpiredTopic>,
    /// The first log offset after the removal.
    pub log_min_offset: u64,
    /// Due segments that stay for now, each with its reason.
    pub kept: Vec<String>,
    /// The bytes that the log keeps, and why its oldest segment is not due. Empty if this segment is due (`kept`), or if
    /// the log is empty.
    pub stays: String,
    /// The messages that keep the oldest due segment, by log offset: of each group in each topic its first unfinished
    /// message, and the first delayed message and half message that wait.
    pub kept_by: Vec<SegmentHolder>,
}

impl ExpireReport {
    /// Adds a segment that stays because of unfinished messages.
    pub(super) fn add_held(&mut self, held: &HeldSegment) {
        self.kept.push(held.to_string());
        self.kept_by.clone_from(&held.holders);
    }

    /// Notes what stays of a log that ends at `end`.
    pub(super) fn note_rest(&mut self, plan: &DeletionPlan, end: u64) {
        let start = self.log_min_offset;
        if let Some(why) = plan.not_due.as_ref().filter(|_| self.kept.is_empty() && end > start) {
            self.stays = format!("the log keeps {} from offset {start} on: {why}", bytes_text(end - start));
        }
    }

    pub(crate) fn add(&mut self, file: ExpiredFile) {
        self.segments += u64::from(file.kind == ExpiredKind::Segment);
        self.bytes += file.bytes;
        self.files.push(file);
    }
}
