//! The findings of all parts of the log, joined in log order.
//!
//! Owns nothing on disk. The report is the same, whichever threads or processes made the parts.

use std::sync::Arc;

use super::index_keys::KeyFindings;
use super::log_part::{ChecksumOrder, PartFindings, StoreTimeOrder, View};
use super::log_walk::Findings;
use super::queues::QueueFindings;
use crate::problem::{Finding, ProblemKind, VerifyReport};
use mqstore_base::durable_mark::DurableMarkFile;
use mqstore_base::error::StoreError;
use mqstore_base::progress::{Progress, ProgressWatcher};
use mqstore_log::index::IndexSet;

/// The report about the log, and the values that the later checks need.
pub(crate) struct MergedReport<'a> {
    view: &'a View<'a>,
    progress: ProgressWatcher<'a>,
    pub report: VerifyReport,
    pub(super) tallies: QueueFindings,
    pub(super) keys: KeyFindings,
    /// Store time of the last record.
    last_time: Option<i64>,
    pub(super) checksums: ChecksumOrder,
    total_bytes: u64,
}

impl<'a> MergedReport<'a> {
    /// Creates an empty one with the findings about the list of segments.
    pub(crate) fn new(view: &'a View<'a>, index: &Arc<IndexSet>, progress: ProgressWatcher<'a>) -> Self {
        let mut report = VerifyReport::default();
        segments(view, &mut report);
        Self {
            view,
            progress,
            report,
            tallies: QueueFindings::default(),
            keys: KeyFindings::new(Arc::clone(index)),
            last_time: None,
            checksums: ChecksumOrder::default(),
            total_bytes: log_bytes(view),
        }
    }

    /// Checks the order of the store times: they come from one clock, read under the put lock.
    fn times(&mut self, part: &PartFindings) {
        let Some(first) = part.times.first else { return };
        if self.view.files.tiered().is_some() {
            // Each queue has its own segments, so the times of neighbours say nothing.
            return;
        }
        let mut times = StoreTimeOrder::default();
        for time in self.last_time.into_iter().chain([first]) {
            times.add(part.first.unwrap_or(part.end), time);
        }
        for (offset, time, before) in times.back.iter().chain(&part.times.back) {
            let Some(segment) = self.view.list.find(*offset) else { continue };
            let back = before.saturating_sub(*time);
            let detail = format!("stored at {time}, {back} ms earlier than the record before it");
            let place = offset - segment.base_offset();
            self.report.add(ProblemKind::TimeBack, &segment.path(), Some(place), detail);
        }
        self.last_time = Some(part.times.last);
    }
}

impl Findings for MergedReport<'_> {
    fn part(&mut self, part: &mut PartFindings) -> Result<(), StoreError> {
        self.report.messages += part.messages;
        self.report.bytes += part.bytes;
        self.times(part);
        self.checksums.join(&part.checksums);
        self.tallies.add(&mut part.queues);
        self.keys.add(self.view, &part.keys, &mut self.report)
    }

    fn problem(&mut self, finding: Finding) -> Result<(), StoreError> {
        let Finding { kind, path, offset, detail } = finding;
        self.report.add(kind, &path, offset, detail);
        Ok(())
    }

    fn reached(&mut self, position: u64) -> Result<(), StoreError> {
        let done_bytes = position.saturating_sub(self.view.list.min_offset());
        let total_bytes = self.total_bytes;
        (self.progress)(Progress { done_bytes: done_bytes.min(total_bytes), total_bytes })
    }
}

/// Returns the bytes of the log up to its end as the writer published or synced it; not those of its files, whose last
/// one is longer.
fn log_bytes(view: &View<'_>) -> u64 {
    let files: u64 = view.list.segments().iter().map(|segment| segment.len()).sum();
    let end = match view.limit {
        u64::MAX => DurableMarkFile::new(view.files).load().map_or(u64::MAX, |mark| mark.position),
        limit => limit,
    };
    files.min(end.saturating_sub(view.list.min_offset()))
}

/// Reports the records that have no checksum between two of the same program that have one.
pub(super) fn report_checksums(view: &View<'_>, checksums: &ChecksumOrder, report: &mut VerifyReport) {
    for offset in &checksums.found {
        let Some(segment) = view.list.find(*offset) else { continue };
        let detail = "the record has no checksum of its own, although the same program wrote the records before and after it with one";
        let place = offset - segment.base_offset();
        report.add(ProblemKind::RecordUnsummed, &segment.path(), Some(place), detail);
    }
}

fn segments(view: &View<'_>, report: &mut VerifyReport) {
    if let Some((reason, (path, _))) = view.files.misnamed_segment().zip(view.files.only_segment()) {
        report.add(ProblemKind::SegmentMisnamed, path, None, reason);
    }
    for stray in &view.list.strays {
        report.add_stray(ProblemKind::SegmentStray, &stray.path, &stray.reason);
    }
    for (from, to) in &view.list.gaps {
        let detail = format!("the segments from log offset {from} to {to} are missing");
        report.add(ProblemKind::SegmentGap, &view.files.commit_log(), None, detail);
    }
}
