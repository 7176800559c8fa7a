//! The plan of an expiry: which segments are due, oldest first, and why. It changes nothing.
//!
//! | reason | condition |
//! |---|---|
//! | size | all segments together have more than `retention_bytes` |
//! | age | `retention` has passed, and: an hour of `delete_when`, a disk above `disk_clean_ratio`, or a call |
//! | disk | a disk is fuller than `disk_force_ratio`, whatever the age |
//!
//! The plan ends before the first segment that is not due: only the beginning of the log is removed. A segment that is
//! due by age also ends it while it holds unfinished messages (`holders`). Size and disk are hard limits: the reason
//! names the unfinished messages that are lost.
//!
//! The active segment can end the plan. If all of it is due and finished, whatever the rule, it is closed and removed, so
//! that a log that never fills a segment gives its space back. It has as many bytes as its records. A segment with fewer
//! bytes than a new one takes stays.
//!
//! The cleaner follows the plan in these steps:
//!
//! ```text
//! every 10 s, or at once while there is more to do
//!   check the disks        -> refuse appends, or accept them again; new segments go to disks with space
//!   the oldest segment     -> due? by age, size or disk; below the durable mark
//!   the active segment     -> closed with a filler first, if the log still ends where the plan ends
//!   unfinished messages    -> a segment that is due by age stays for them
//!   the archive            -> a segment that the store's archive does not contain yet stays, whatever the reason
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

use std::fmt;
use std::sync::Arc;

use super::holders::{SegmentHolder, names_of};
use crate::engine::disk_space::{DiskSpace, exceeds};
use crate::read::segment_times::SegmentTimes;
use mqstore_base::error::StoreError;
use mqstore_base::notes::duration_text;
use mqstore_base::options::{StoreOptions, delete_hours};
use mqstore_log::commit_log::{Segment, SegmentList};

/// The rules of retention, from the options.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RetentionRules {
    /// Maximum age of a segment's last record, in milliseconds.
    pub retention_ms: Option<u64>,
    /// Maximum bytes of all segments.
    pub retention_bytes: Option<u64>,
    /// Hours of the day, as bits 0 to 23.
    pub hours: u32,
    /// Used part of the disk above which segments are removed by age at any hour.
    pub clean_ratio: Option<f64>,
    /// Used part of the disk above which segments are removed whatever their age.
    pub force_ratio: Option<f64>,
}

impl RetentionRules {
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

/// The holders of segments at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownHolders {
    /// By log offset.
    pub holders: Vec<SegmentHolder>,
    /// Nothing is known about messages from this log offset on.
    pub known_to: u64,
}

impl KnownHolders {
    /// Returns the messages that keep a segment, which ends at `end`.
    fn of_segment(&self, end: u64) -> &[SegmentHolder] {
        let count = self.holders.partition_point(|holder| holder.log_offset < end);
        self.holders.get(..count).unwrap_or_default()
    }
}

/// A segment that is due by age and stays because of unfinished messages.
#[derive(Clone, Debug)]
pub(crate) struct HeldSegment {
    /// The segment.
    pub segment: Arc<Segment>,
    /// The store times of its records.
    pub times: SegmentTimes,
    /// The messages; none if its end is not in the queues yet.
    pub holders: Vec<SegmentHolder>,
}

impl HeldSegment {
    /// Returns why the segment stays.
    pub(super) fn why(&self) -> String {
        if self.holders.is_empty() {
            return "some of its records are not yet dispatched".to_owned();
        }
        format!("it holds unfinished messages: {}", names_of(&self.holders))
    }
}

impl fmt::Display for HeldSegment {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.segment.path().display(), self.why())
    }
}

/// The due segments.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeletionPlan {
    /// Those that can be removed, oldest first.
    pub deletions: Vec<PlannedDeletion>,
    /// The next one, if unfinished messages keep it.
    pub held: Option<HeldSegment>,
    /// Why the next one is not due; `None` if it is.
    pub not_due: Option<String>,
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
    /// Whether a hard limit removes messages that something still needs.
    pub unfinished: bool,
    /// For the active segment, which must be closed first: the end of the log.
    pub closes_at: Option<u64>,
}

/// The input of a plan.
#[derive(Clone, Debug)]
pub(crate) struct PlanInput<'a> {
    /// The segments.
    pub list: &'a SegmentList,
    /// The end of the log.
    pub end: u64,
    /// The active segment stays if it has fewer bytes.
    pub least_closed_bytes: u64,
    /// The current time, in epoch milliseconds.
    pub now_ms: i64,
    /// What starts the expiry.
    pub trigger: ExpiryTrigger,
    /// The use of the disks.
    pub space: &'a DiskSpace,
}

/// Returns the due segments, oldest first, at most `limit`. `times` and `holders` are called only if they are needed,
/// `holders` once, with the end of the first due segment.
pub(crate) fn plan(
    rules: &RetentionRules,
    scene: &PlanInput<'_>,
    limit: usize,
    times: &mut dyn FnMut(&Arc<Segment>) -> SegmentTimes,
    holders: &mut dyn FnMut(u64) -> Result<KnownHolders, StoreError>,
) -> Result<DeletionPlan, StoreError> {
    let mut planned = DeletionPlan::default();
    if !rules.retains() {
        planned.not_due = Some("the store keeps everything; set retention or retention_bytes".to_owned());
        return Ok(planned);
    }
    let mut bytes: u64 = scene.list.segments().iter().map(|segment| segment.len()).sum();
    let mut space = scene.space.clone();
    let mut known = None;
    for segment in scene.list.segments().iter().take(limit) {
        let closes_at = match scene.closes_at(segment) {
            Ok(closes_at) => closes_at,
            Err(why) => {
                planned.not_due = Some(why.to_owned());
                break;
            }
        };
        let end = closes_at.unwrap_or(segment.end_offset());
        if closes_at.is_some() {
            bytes = end - segment.base_offset();
        }
        let used = space.used_percent();
        let now = Rules { limits: rules, now_ms: scene.now_ms, trigger: scene.trigger, bytes, used };
        let times = times(segment);
        let Some((mut reason, is_hard)) = now.delete_reason(&times) else {
            planned.not_due = Some(now.stay_reason(&times));
            break;
        };
        let is_hard = is_hard && closes_at.is_none();
        let known = match &mut known {
            Some(known) => known,
            none => none.insert(match holders(end) {
                // A hard limit must not depend on files that cannot be read.
                Err(_) if is_hard => KnownHolders::default(),
                found => found?,
            }),
        };
        let kept_by = known.of_segment(end);
        if !is_hard && (!kept_by.is_empty() || end > known.known_to) {
            let (segment, holders) = (Arc::clone(segment), kept_by.to_vec());
            planned.held = Some(HeldSegment { segment, times, holders });
            break;
        }
        if !kept_by.is_empty() {
            reason = format!("{reason}; unfinished messages are lost: {}", names_of(kept_by));
        }
        bytes = bytes.saturating_sub(segment.len());
        if let Some(folder) = segment.path().parent() {
            space.give_back(folder, segment.len());
        }
        let (segment, unfinished) = (Arc::clone(segment), !kept_by.is_empty());
        planned.deletions.push(PlannedDeletion { segment, times, reason, unfinished, closes_at });
    }
    Ok(planned)
}

impl PlanInput<'_> {
    /// Returns `None` for a segment that is closed, the end of the log for the active segment, or why the segment stays
    /// whatever the rules.
    fn closes_at(&self, segment: &Segment) -> Result<Option<u64>, &'static str> {
        let is_last = segment.end_offset() == self.list.end_offset();
        let bytes = self.end.saturating_sub(segment.base_offset());
        if !is_last && segment.end_offset() <= self.end {
            Ok(None)
        } else if !is_last || self.end > segment.end_offset() {
            Err("the log has changed meanwhile")
        } else if bytes < self.least_closed_bytes {
            Err("it receives messages, and has fewer bytes than a new segment takes")
        } else {
            Ok(Some(self.end))
        }
    }
}

struct Rules<'a> {
    limits: &'a RetentionRules,
    now_ms: i64,
    trigger: ExpiryTrigger,
    bytes: u64,
    used: u64,
}

impl Rules<'_> {
    /// Returns why a segment is due, and whether by a hard limit.
    fn delete_reason(&self, times: &SegmentTimes) -> Option<(String, bool)> {
        if let Some(most) = self.limits.retention_bytes.filter(|most| self.bytes > *most) {
            return Some((format!("size: {}", self.size_text(most)), true));
        }
        if let Some(limit) = self.limits.force_ratio.filter(|limit| exceeds(self.used, *limit)) {
            let reason = format!("disk: {} % are used, disk_force_ratio is {limit}", self.used);
            return Some((self.too_old(times).unwrap_or(reason), true));
        }
        self.too_old(times).map(|reason| (reason, false))
    }

    /// Returns why a segment is not due.
    fn stay_reason(&self, times: &SegmentTimes) -> String {
        let by_age = self.limits.retention_ms.map(|most| self.age_text(times, most));
        let by_size = self.limits.retention_bytes.map(|most| self.size_text(most));
        by_age.into_iter().chain(by_size).collect::<Vec<_>>().join("; ")
    }

    fn size_text(&self, most: u64) -> String {
        format!("the log has {} bytes, retention_bytes keeps {most}", self.bytes)
    }

    fn age_text(&self, times: &SegmentTimes, most: u64) -> String {
        let age_ms = self.now_ms.saturating_sub(times.newest_ms()).max(0);
        let source = if times.last_ms.is_some() { "last record was stored" } else { "file was changed" };
        format!(
            "its {source} {} ago, retention keeps {}",
            duration_text(age_ms.unsigned_abs()),
            duration_text(most)
        )
    }

    fn too_old(&self, times: &SegmentTimes) -> Option<String> {
        let most = self.limits.retention_ms?;
        let now = match self.trigger {
            ExpiryTrigger::Asked => true,
            ExpiryTrigger::Hour(hour) => {
                self.limits.hours >> hour.min(31) & 1 == 1
                    || self.limits.clean_ratio.is_some_and(|ratio| exceeds(self.used, ratio))
            }
        };
        // A time in the future, from a clock that was set back, gives no age.
        let age = u64::try_from(self.now_ms.saturating_sub(times.newest_ms())).ok()?;
        (now && age >= most).then(|| format!("age: {}", self.age_text(times, most)))
    }
}
