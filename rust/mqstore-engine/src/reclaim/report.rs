//! The request and the report of a reclaim.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// What a reclaim does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReclaimRequest {
    /// Whether it only reports and changes nothing.
    pub dry_run: bool,
    /// If it names topics, only their hidden records are replaced, but in every segment that may be rewritten.
    pub erase: BTreeSet<String>,
}

/// The bytes of one topic in the log before a reclaim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReclaimedTopic {
    /// The topic.
    pub topic: String,
    /// Bytes of the records that reads find.
    pub live_bytes: u64,
    /// Bytes of the hidden records.
    pub dead_bytes: u64,
    /// Bytes of whole pages that rewrites of all segments could free, whether they pay or not.
    pub estimated_bytes: u64,
    /// Part of the estimate in the segments that were rewritten.
    pub reclaimed_bytes: u64,
}

/// A segment that was rewritten, or would be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReclaimedSegment {
    /// The file.
    pub path: PathBuf,
    /// Log offset of its first byte.
    pub log_offset: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// Bytes of the records that stay.
    pub live_bytes: u64,
    /// Bytes of the hidden records that a rewrite replaces.
    pub dead_bytes: u64,
    /// Bytes of whole pages that a rewrite frees, as estimated before.
    pub estimated_bytes: u64,
    /// Bytes of disk space that the rewrite freed; 0 for a preview.
    pub reclaimed_bytes: u64,
}

/// A segment that still has hidden records, or copies of erased messages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptSegment {
    /// The file.
    pub path: PathBuf,
    /// Log offset of its first byte.
    pub log_offset: u64,
    /// Bytes of its hidden records.
    pub dead_bytes: u64,
    /// Bytes of whole pages that a rewrite would free.
    pub estimated_bytes: u64,
    /// Why they stay.
    pub reason: String,
}

/// The result of [`crate::Store::reclaim`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReclaimReport {
    /// Whether this is only a preview; then nothing was changed.
    pub dry_run: bool,
    /// The topics with hidden records, by name.
    pub topics: Vec<ReclaimedTopic>,
    /// The segments that were rewritten, in log order.
    pub segments: Vec<ReclaimedSegment>,
    /// The other segments with hidden records, in log order.
    pub kept: Vec<KeptSegment>,
    /// For an erasure: the backups and replicas that still have the bytes.
    pub copies: Vec<String>,
}
