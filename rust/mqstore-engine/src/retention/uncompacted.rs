//! Segments that a compaction still has to read.
//!
//! Owns this rule: the log's only copy of a key's newest message is not removed. If a segment contains keyed messages
//! of a compaction topic that are in no compaction file yet, the segment and all later ones stay. They stay until a
//! compaction has read it, unless the option `expire_uncompacted` is set. RocketMQ copies each message to its
//! compaction files when it dispatches it, and has no such rule.

use std::sync::Arc;

use super::plan::PlannedDeletion;
use super::report;
use mqstore_base::error::StoreError;
use mqstore_base::options::StoreOptions;
use mqstore_base::store_files::StoreFiles;
use mqstore_compaction::{UncompactedMessage, UncompactedSearch};
use mqstore_log::commit_log::{Segment, SegmentList};
use mqstore_log::consume_queue::QueueSet;

/// Returns why `segment` must stay for a compaction; for `trusted` see [`UncompactedSearch::in_segment`].
pub(super) fn why(
    search: &mut UncompactedSearch<'_>,
    queues: &QueueSet,
    trusted: bool,
    segment: &Segment,
) -> Result<Option<String>, StoreError> {
    let found = search.in_segment(queues, trusted, segment)?;
    if found.is_empty() {
        return Ok(None);
    }
    let topics: Vec<String> = found.iter().map(UncompactedMessage::to_string).collect();
    Ok(Some(format!(
        "it holds keyed messages that are in no compaction file yet, of {}; compact first, then expire, or let them \
         go with expire_uncompacted",
        topics.join(", ")
    )))
}

/// The data with which a preview is checked.
pub(super) struct UncompactedCheck<'a> {
    pub(super) files: &'a StoreFiles,
    pub(super) options: &'a StoreOptions,
    pub(super) list: &'a Arc<SegmentList>,
    pub(super) log_end: u64,
    pub(super) queues: &'a QueueSet,
    /// The queues have a unit for every record before this log offset.
    pub(super) trusted: u64,
}

impl UncompactedCheck<'_> {
    /// Returns the segments of `planned` that would be removed, and why the next one would stay.
    pub(super) fn split<'p>(
        &self,
        planned: &'p [PlannedDeletion],
    ) -> Result<(&'p [PlannedDeletion], Option<String>), StoreError> {
        if self.options.expire_uncompacted || planned.is_empty() {
            return Ok((planned, None));
        }
        let mut search = UncompactedSearch::load(self.files, self.list)?;
        for (at, one) in planned.iter().enumerate() {
            let trusted = one.segment.end_offset() <= self.trusted;
            if let Some(why) = why(&mut search, self.queues, trusted, &one.segment)? {
                let path = report::segment(one).path;
                return Ok((
                    planned.get(..at).unwrap_or_default(),
                    Some(format!("{}: {why}", path.display())),
                ));
            }
        }
        Ok((planned, None))
    }
}
