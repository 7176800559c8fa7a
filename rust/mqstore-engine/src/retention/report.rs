//! What an expiry deletes, or would delete, file by file.

use super::plan::PlannedDeletion;
use mqstore_base::events::{ExpiredFile, ExpiredKind};
use mqstore_base::store_files::OldFile;

/// A segment that is planned to go.
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
    }
}

/// A file that leads to nothing in a log that starts at `log_min`.
pub(super) fn derived(file: &OldFile, kind: ExpiredKind, log_min: u64) -> ExpiredFile {
    ExpiredFile {
        path: file.path.clone(),
        kind,
        bytes: file.bytes,
        first_offset: file.first_offset,
        last_offset: file.last_offset,
        first_store_timestamp_ms: None,
        last_store_timestamp_ms: None,
        reason: format!("log: all its records lie before log offset {log_min}"),
    }
}

/// What [`crate::Store::expire`] did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpireReport {
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// The files: segments, then queue files, then index files, each oldest first.
    pub files: Vec<ExpiredFile>,
    /// How many of them are segments.
    pub segments: u64,
    /// Bytes of all of them.
    pub bytes: u64,
    /// The first byte of the log afterwards.
    pub log_min_offset: u64,
    /// What was due and stays for now, each with its reason.
    pub kept: Vec<String>,
}

impl ExpireReport {
    pub(super) fn add(&mut self, file: ExpiredFile) {
        self.segments += u64::from(file.kind == ExpiredKind::Segment);
        self.bytes += file.bytes;
        self.files.push(file);
    }
}
