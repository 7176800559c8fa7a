//! The plan of an expiry: which segments are due, oldest first, and why. It changes nothing.
//!
//! | reason | condition |
//! |---|---|
//! | size | all segments together have more than `retention_bytes` |
//! | age | `retention` has passed, and: an hour of `delete_when`, a disk above `disk_clean_ratio`, or a call |
//! | disk | a disk is fuller than `disk_force_ratio`, whatever the age |
//!
//! The plan ends before the first segment that is not due: only the beginning of the log is removed.
//!
//! The cleaner follows the plan in these steps:
//!
//! ```text
//! every 10 s, or at once while there is more to do
//!   check the disks        -> refuse appends, or accept them again; new segments go to disks with space
//!   the oldest segment     -> due? by age, size or disk; not the last one; below the durable mark
//!   compaction topics      -> a segment with keyed messages that no compaction has read stays
//!   call the hook          -> keep, later, or continue; a segment that readers use waits for a limited time
//!   minimum of all queues  -> moved in memory, so that no read starts below it
//!   the segment's name     -> removed, folder synced; then the next segment, after a pause
//!   queue and index files  -> those completely below the log's minimum, oldest first
//! ```
//!
//! Across a crash: each removal is durable before the next, so the segments have no gap. First the cleaner syncs both
//! slots of the durable mark and the checkpoint, so that they point only to records that stay.
//!
//! Across threads: one removal runs at a time. Readers keep the bytes that they use, as long as they use them.
//!
//! Source: `CleanCommitLogService#deleteExpiredFiles`, `#isTimeToDelete`.

use std::sync::Arc;

use super::disk_space::{DiskSpace, exceeds};
use super::segment_times::SegmentTimes;
use mqstore_base::options::{StoreOptions, delete_hours};
use mqstore_log::commit_log::{Segment, SegmentList};

/// The rules of retention, from the options.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RetentionPolicy {
    /// Maximum age of a segment's last record, in milliseconds.
    pub retention_ms: Option<u64>,
    /// Maximum bytes of all segments.
    pub retention_bytes: Option<u64>,
    /// Hours of the day, as bits 0 to 23.
    pub hours: u32,
    /// Used part of the disk above which segments are removed by age at any hour.
    pub clean_ratio: f64,
    /// Used part of the disk above which segments are removed whatever their age.
    pub force_ratio: f64,
}

impl RetentionPolicy {
    /// Returns the rules of `options`. Invalid hours, which an open refuses, count as none.
    pub(crate) fn of(options: &StoreOptions) -> Self {
        Self {
            retention_ms: options.retention_ms,
            retention_bytes: options.retention_bytes,
            hours: delete_hours(&options.delete_when).unwrap_or(0),
            clean_ratio: options.disk_clean_ratio,
            force_ratio: options.disk_force_ratio,
        }
    }

    /// Whether a rule can remove segments at all.
    pub(crate) fn retains(&self) -> bool {
        self.retention_ms.is_some() || self.retention_bytes.is_some()
    }
}

/// What starts the expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpiryTrigger {
    /// The background, at this hour of the day (0 to 23).
    Hour(u32),
    /// An explicit call: the hour does not matter.
    Asked,
}

/// A segment that is due.
#[derive(Clone, Debug)]
pub(crate) struct PlannedDeletion {
    /// The segment.
    pub segment: Arc<Segment>,
    /// The store times of its records.
    pub times: SegmentTimes,
    /// Reason for the deletion, for reports and events.
    pub reason: String,
}

/// The input of a plan.
#[derive(Clone, Debug)]
pub(crate) struct PlanInput<'a> {
    /// The segments.
    pub list: &'a SegmentList,
    /// Only segments that end at or before this log offset can be removed.
    pub end: u64,
    /// The current time, in epoch milliseconds.
    pub now_ms: i64,
    /// What starts the expiry.
    pub trigger: ExpiryTrigger,
    /// The use of the disks.
    pub space: &'a DiskSpace,
}

/// Returns the due segments, oldest first, at most `limit`; never the last segment of the log.
pub(crate) fn plan(
    policy: &RetentionPolicy,
    scene: &PlanInput<'_>,
    limit: usize,
    times: &mut dyn FnMut(&Arc<Segment>) -> SegmentTimes,
) -> Vec<PlannedDeletion> {
    let mut planned = Vec::new();
    let Some((_, older)) = scene.list.segments().split_last().filter(|_| policy.retains()) else {
        return planned;
    };
    let mut bytes: u64 = scene.list.segments().iter().map(|segment| segment.len()).sum();
    let mut space = scene.space.clone();
    for segment in older.iter().take_while(|segment| segment.end_offset() <= scene.end).take(limit) {
        let used = space.used_percent();
        let rules = Rules { policy, now_ms: scene.now_ms, trigger: scene.trigger, bytes, used };
        let times = times(segment);
        let Some(reason) = rules.delete_reason(&times) else { break };
        bytes = bytes.saturating_sub(segment.len());
        if let Some(folder) = segment.path().parent() {
            space.give_back(folder, segment.len());
        }
        planned.push(PlannedDeletion { segment: Arc::clone(segment), times, reason });
    }
    planned
}

struct Rules<'a> {
    policy: &'a RetentionPolicy,
    now_ms: i64,
    trigger: ExpiryTrigger,
    bytes: u64,
    used: u64,
}

impl Rules<'_> {
    fn delete_reason(&self, times: &SegmentTimes) -> Option<String> {
        if let Some(most) = self.policy.retention_bytes.filter(|most| self.bytes > *most) {
            return Some(format!("size: the log has {} bytes, retention_bytes keeps {most}", self.bytes));
        }
        self.too_old(times).or_else(|| {
            let limit = self.policy.force_ratio;
            exceeds(self.used, limit)
                .then(|| format!("disk: {} % are used, disk_force_ratio is {limit}", self.used))
        })
    }

    fn too_old(&self, times: &SegmentTimes) -> Option<String> {
        let most = self.policy.retention_ms?;
        let now = match self.trigger {
            ExpiryTrigger::Asked => true,
            ExpiryTrigger::Hour(hour) => {
                self.policy.hours >> hour.min(31) & 1 == 1 || exceeds(self.used, self.policy.clean_ratio)
            }
        };
        // A time in the future, from a clock that was set back, gives no age.
        let age = u64::try_from(self.now_ms.saturating_sub(times.newest_ms())).ok()?;
        let source = if times.last_ms.is_some() { "last record was stored" } else { "file was changed" };
        (now && age >= most).then(|| format!("age: its {source} {age} ms ago, retention keeps {most} ms"))
    }
}
