//! Frees the space of hidden records: those before the floors of topics. If the rewrite of the active segment pays, it is
//! closed with a filler first.
//!
//! A rewrite replaces adjacent hidden records of a segment by placeholders, whose bodies are holes of the file. All
//! other records keep their bytes and their log offsets. The new file is written and synced next to the log, compared
//! with the old one, gets its time, and then its name. Across a crash the segment is the old file or the new one.
//!
//! A broker must find a record wherever a unit of a queue points to, and count the same offsets if it derives the
//! queues. So a placeholder takes only records without units, and of each queue only the first ones in the log.
//! Nothing like this exists in RocketMQ.

mod hidden_run;
mod report;
mod rewrite;
mod rules;
mod sparse_writer;
mod survey;
#[cfg(test)]
mod tests;

pub use report::{KeptSegment, ReclaimReport, ReclaimRequest, ReclaimedSegment, ReclaimedTopic};

use std::sync::Arc;

use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::events::is_in_hook;
use mqstore_compaction::{JobControl, TaskMeter};
use mqstore_io::switch;
use mqstore_io::vfs::parent_dir;
use mqstore_log::commit_log::SegmentList;

use crate::engine::Engine;
use crate::engine::lone_job::LoneJob;
use crate::read::view::View;
use crate::retention::{Cleaner, SegmentHolder};
use rules::RecordRules;
use survey::{Survey, SurveyedSegment, survey};

/// The service that reclaims space.
pub(crate) struct Reclaim {
    engine: Arc<Engine>,
    cleaner: Arc<Cleaner>,
    job: LoneJob,
}

impl Reclaim {
    /// Makes the service of a store.
    pub(crate) fn new(engine: &Arc<Engine>, cleaner: &Arc<Cleaner>) -> Self {
        Self { engine: Arc::clone(engine), cleaner: Arc::clone(cleaner), job: LoneJob::new("reclaim") }
    }

    /// Ends a running reclaim and waits for its end.
    pub(crate) fn stop(&self) {
        self.job.stop();
    }

    /// See [`crate::Store::reclaim`].
    pub(crate) fn run(
        &self,
        request: &ReclaimRequest,
        control: &Arc<JobControl>,
    ) -> Result<ReclaimReport, StoreError> {
        if is_in_hook() {
            let reason = "a hook cannot reclaim space: it would wait for itself".into();
            return Err(StoreError::Busy { reason });
        }
        self.job.run(control, || {
            self.engine.check()?;
            let Some(_no_rebuild) = self.engine.rebuilding.try_lock() else {
                return Err(StoreError::Busy { reason: "a rebuild of the store is running".into() });
            };
            self.reclaim(request, control)
        })
    }

    fn reclaim(
        &self,
        request: &ReclaimRequest,
        control: &Arc<JobControl>,
    ) -> Result<ReclaimReport, StoreError> {
        self.engine.catch_up()?;
        let mut meter = TaskMeter::start(&self.engine.files, control)?;
        let mut rules = RecordRules::begin(&self.engine, request)?;
        let surveyed = self.survey(&mut rules, &mut meter)?;
        self.rewrite_segments(&surveyed, request, &mut rules, &mut meter)
    }

    fn survey(&self, rules: &mut RecordRules<'_>, meter: &mut TaskMeter<'_>) -> Result<Survey, StoreError> {
        let list = self.engine.log.list();
        let end = self.engine.log.readable();
        survey(&list, end, self.rewritable_segments(&list, end)?, rules, meter)
    }

    /// Rewrites the chosen segments. A segment that was deleted since the survey needs no rewrite.
    fn rewrite_segments(
        &self,
        surveyed: &Survey,
        request: &ReclaimRequest,
        rules: &mut RecordRules<'_>,
        meter: &mut TaskMeter<'_>,
    ) -> Result<ReclaimReport, StoreError> {
        let mut report = ReclaimReport { dry_run: request.dry_run, ..ReclaimReport::default() };
        report.topics = surveyed.topics();
        if !request.erase.is_empty() {
            // Also those that keep nothing any more: they can have the bytes.
            let backups = self.engine.files.backup_marks()?.into_iter().map(SegmentHolder::backup);
            report.copies = backups.chain(self.cleaner.replicas()).map(|copy| copy.copy_name()).collect();
        }
        let chosen = surveyed.choose(!request.erase.is_empty());
        for (number, segment) in surveyed.segments.iter().enumerate().take(chosen) {
            if segment.free_bytes == 0 {
                continue;
            }
            if request.dry_run {
                report.segments.push(segment.report(0));
                continue;
            }
            if segment.segment.end_offset() > surveyed.end && !self.close_segment(surveyed.end)? {
                report.kept = surveyed.kept(number, Some("it received messages meanwhile"));
                return Ok(report);
            }
            let outcome = self.rewrite(segment, rules, meter);
            let may_be_deleted = match &outcome {
                Ok(rewritten) => rewritten.is_err(),
                Err(error) => error.is_gone(),
            };
            if may_be_deleted && self.cleaner.has_deleted(&segment.segment) {
                continue;
            }
            match outcome? {
                Ok(reclaimed) => {
                    for topic in &mut report.topics {
                        topic.reclaimed_bytes += segment.estimated_of(&topic.topic);
                    }
                    report.segments.push(segment.report(reclaimed));
                }
                Err(why) => {
                    report.kept = surveyed.kept(number, Some(&why));
                    return Ok(report);
                }
            }
        }
        report.kept = surveyed.kept(chosen, None);
        Ok(report)
    }

    /// Closes the active segment if the log still ends at `end`, and makes it durable. Returns whether it did.
    fn close_segment(&self, end: u64) -> Result<bool, StoreError> {
        let is_closed = self.engine.log.close_segment(end)?;
        if is_closed {
            self.engine.flusher.flush_all(false)?;
        }
        Ok(is_closed)
    }

    /// Rewrites a segment. Returns the bytes that are free now, or why it must not be rewritten.
    fn rewrite(
        &self,
        surveyed: &SurveyedSegment,
        rules: &mut RecordRules<'_>,
        meter: &mut TaskMeter<'_>,
    ) -> Result<Result<u64, String>, StoreError> {
        let segment = &surveyed.segment;
        let path = segment.path();
        let before = self.engine.files.vfs.stat(&path).at(&path, "looking at a log segment")?;
        let space =
            self.engine.files.vfs.free_space(&path).at(&path, "looking at the free space of a disk")?;
        if !space.can_take(surveyed.kept_bytes()) {
            let needed = surveyed.kept_bytes();
            return Ok(Err(format!(
                "its copy needs {needed} bytes, and the disk has {} free",
                space.available
            )));
        }
        let staged = match rewrite::stage(&self.engine.files, segment, before.modified_ms, rules, meter)? {
            Ok(staged) => staged,
            Err(why) => return Ok(Err(why)),
        };
        let published = self.cleaner.replace_segment(segment, || {
            self.engine.check()?;
            segment.replace_by(&staged).at(&path, "naming a rewritten segment")?;
            let folder = parent_dir(&path);
            switch::step("reclaim.sync_name", || self.engine.files.vfs.sync_dir(folder))
                .at(folder, "syncing the folder of the log")
        });
        let kept = published.inspect_err(|_| rewrite::discard(&self.engine.files, &staged))?;
        if let Some(why) = kept {
            rewrite::discard(&self.engine.files, &staged);
            return Ok(Err(why));
        }
        // Readers in other processes open the new file, so that the space of the old one is free.
        self.engine.live.note_topic_change();
        let after = self.engine.files.vfs.stat(&path).at(&path, "looking at a log segment")?;
        Ok(Ok(before.allocated_bytes.saturating_sub(after.allocated_bytes)))
    }

    /// Returns how many segments at the start of `list` may be rewritten, and why the next one may not. The log ends at
    /// `end`.
    fn rewritable_segments(
        &self,
        list: &SegmentList,
        end: u64,
    ) -> Result<(usize, Option<String>), StoreError> {
        let copies = self.cleaner.copies()?;
        let settled = self
            .engine
            .log
            .durable()
            .min(self.engine.flusher.dispatched())
            .min(self.engine.dispatcher.position());
        for (number, segment) in list.segments().iter().enumerate() {
            let records_end = segment.end_offset().min(end);
            // Only the folders for new segments have a folder for files without a name.
            let staging = self.engine.files.staging_beside(&segment.path());
            let is_small = records_end < segment.base_offset() + self.engine.options.allocation_bytes;
            let why = if records_end < segment.end_offset() && is_small {
                Some("it receives messages, and has fewer bytes than a new segment takes".to_owned())
            } else if records_end > settled {
                Some("not all of it is synced and dispatched".to_owned())
            } else if !staging.is_ok_and(|folder| self.engine.files.vfs.stat(&folder).is_ok()) {
                Some("its folder receives no new files".to_owned())
            } else {
                let copy = copies.iter().find(|copy| copy.log_offset < records_end);
                copy.map(ToString::to_string).or_else(|| self.cleaner.unarchived(segment, number == 0))
            };
            if why.is_some() {
                return Ok((number, why));
            }
        }
        Ok((list.segments().len(), None))
    }
}
