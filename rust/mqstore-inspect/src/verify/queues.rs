//! The findings of all parts of the log about the queues, and the check of units without a record.
//!
//! Owns nothing on disk. Each part already compared its records with their units; this file counts the units that
//! match. A queue with exactly as many units has no others. Only if it has more, they are checked one by one.
//! Memory grows with the number of queues and of findings, not of messages.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use mqstore_format::CqUnit;

use super::log_part::{MissingUnits, QueuePart, View, describe_target, leads_to};
use super::misordered::QueueOrder;
use super::used_offsets::UsedOffsets;
use crate::problem::{ProblemKind, VerifyReport};
use mqstore_base::error::StoreError;
use mqstore_log::consume_queue::{BatchQueue, ConsumeQueue};

/// Number of units in one read.
const UNITS_AT_ONCE: usize = 4096;

/// The findings about each queue.
#[derive(Debug, Default)]
pub(super) struct QueueFindings {
    queues: BTreeMap<Box<str>, BTreeMap<i32, QueueFinding>>,
    /// Number of findings in the list.
    findings: usize,
}

/// The findings about one queue.
#[derive(Debug, Default)]
struct QueueFinding {
    /// The offsets of its records.
    claimed: UsedOffsets,
    /// The order of these offsets in the log.
    order: QueueOrder,
    /// Number of units that point to their records.
    matched: i64,
    /// Records without a unit.
    absent: Vec<MissingUnits>,
    /// Units that differ from their record.
    wrong: Vec<(i64, String)>,
    /// Units with a missing or wrong unit in the extension.
    extension: Vec<(i64, String)>,
    /// Number of further findings that are not in the lists.
    more: u64,
}

impl QueueFindings {
    /// Adds the findings of the next part in log order.
    pub(super) fn add(&mut self, parts: &mut Vec<QueuePart>) {
        for part in parts.drain(..) {
            let limit = VerifyReport::LIMIT.saturating_sub(self.findings);
            if !self.queues.contains_key(&part.topic) {
                self.queues.insert(part.topic.clone(), BTreeMap::new());
            }
            let Some(queues) = self.queues.get_mut(&part.topic) else { continue };
            self.findings += queues.entry(part.queue_id).or_default().add(part, limit);
        }
    }

    /// Returns the end of each queue that has files: the higher end of files and log.
    pub(super) fn ends(&self, view: &View<'_>) -> BTreeMap<Box<str>, BTreeMap<i32, i64>> {
        let mut ends: BTreeMap<Box<str>, BTreeMap<i32, i64>> = BTreeMap::new();
        let plain = view.queues.all().into_iter();
        let plain = plain.map(|queue| (queue.topic().into(), queue.queue_id(), queue.max_offset()));
        let batches = view.queues.batches().into_iter();
        let batches = batches.map(|queue| (queue.topic().into(), queue.queue_id(), queue.max_offset()));
        for (topic, queue_id, max) in plain.chain(batches) {
            let topic: Box<str> = topic;
            let tally = self.queues.get(&topic).and_then(|queues| queues.get(&queue_id));
            let claimed = tally.and_then(|tally| tally.claimed.end()).unwrap_or(0);
            ends.entry(topic).or_default().insert(queue_id, max.max(claimed));
        }
        ends
    }

    /// Reports all findings, and checks the queues that have more units than the log has records.
    pub(super) fn report(mut self, view: &View<'_>, report: &mut VerifyReport) -> Result<(), StoreError> {
        for queue in view.queues.all() {
            self.queues.entry(queue.topic().into()).or_default().entry(queue.queue_id()).or_default();
        }
        for queue in view.queues.batches() {
            self.queues.entry(queue.topic().into()).or_default().entry(queue.queue_id()).or_default();
        }
        for (topic, queues) in &mut self.queues {
            for (queue_id, tally) in queues {
                tally.sort();
                QueueCheck { view, report, topic, queue_id: *queue_id, tally }.all()?;
            }
        }
        Ok(())
    }
}

impl QueueFinding {
    /// Adds a part, with at most `limit` findings; returns how many of them it keeps.
    fn add(&mut self, part: QueuePart, limit: usize) -> usize {
        for row in part.rows {
            let has_memory = self.claimed.gaps().len() < VerifyReport::LIMIT;
            self.claimed.add_range(row.from, row.to, has_memory);
            self.order.add(row, has_memory);
        }
        self.matched = self.matched.saturating_add(part.matched);
        self.more = self.more.saturating_add(part.more);
        let mut kept = 0;
        let mut takes = || {
            let takes = kept < limit;
            kept += usize::from(takes);
            self.more += u64::from(!takes);
            takes
        };
        for absent in part.absent {
            if let Some(next) = MissingUnits::join(&mut self.absent, absent).filter(|_| takes()) {
                self.absent.push(next);
            }
        }
        self.wrong.extend(part.wrong.into_iter().filter(|_| takes()));
        self.extension.extend(part.extension.into_iter().filter(|_| takes()));
        kept
    }

    /// Sorts the findings by offset, for [`Self::knows`].
    fn sort(&mut self) {
        self.absent.sort_unstable_by_key(|absent| absent.from);
        // If two records have the same offset, ranges overlap.
        self.absent.dedup_by(|next, last| {
            let overlap = next.from < last.to;
            if overlap {
                last.to = last.to.max(next.to);
            }
            overlap
        });
        self.wrong.sort_unstable_by_key(|(offset, _)| *offset);
        self.order.finish();
    }

    /// Whether the unit at `offset` is already reported as missing or wrong.
    fn knows(&self, offset: i64) -> bool {
        let begun = self.absent.partition_point(|absent| absent.from <= offset);
        self.absent.get(..begun).and_then(<[_]>::last).is_some_and(|absent| offset < absent.to)
            || self.wrong.binary_search_by_key(&offset, |(wrong, _)| *wrong).is_ok()
    }

    /// Number of units between `min` and `max` that need no further check.
    fn accounted(&self, min: i64, max: i64) -> i64 {
        let inside = |(from, to): (i64, i64)| (to.min(max) - from.max(min)).max(0);
        let absent = self.absent.iter().map(|absent| (absent.from, absent.to));
        self.matched
            + self.wrong.len() as i64
            + self.claimed.gaps().iter().copied().chain(absent).map(inside).sum::<i64>()
    }
}

/// Byte position in the queue's files of the unit at a queue offset.
fn place_of(offset: i64) -> u64 {
    (offset.max(0) as u64).saturating_mul(20)
}

/// Returns `other` if a file is missing: all its records expired meanwhile.
fn unless_gone<T>(found: Result<T, StoreError>, other: T) -> Result<T, StoreError> {
    match found {
        Err(error) if error.is_gone() => Ok(other),
        found => found,
    }
}

/// The check of one queue.
struct QueueCheck<'a> {
    view: &'a View<'a>,
    report: &'a mut VerifyReport,
    topic: &'a str,
    queue_id: i32,
    tally: &'a QueueFinding,
}

impl QueueCheck<'_> {
    fn all(mut self) -> Result<(), StoreError> {
        if let Some(queue) = self.view.queues.batch(self.topic, self.queue_id) {
            return self.batch_queue(&queue);
        }
        let folder = self.folder(&self.view.files.consume_queue());
        if let Some(queue) = self.view.queues.get(self.topic, self.queue_id) {
            return self.queue(&queue, &folder);
        }
        self.missing();
        Ok(())
    }

    fn folder(&self, home: &Path) -> PathBuf {
        home.join(self.topic).join(self.queue_id.to_string())
    }

    fn missing(&mut self) {
        let messages: i64 = self.tally.absent.iter().map(|absent| absent.to - absent.from).sum();
        // The notes name the database.
        if messages > 0 && self.view.files.rocksdb_queues().is_empty() {
            let batched = self.view.rules.batch_topics.contains(self.topic);
            let files = self.view.files;
            let home = if batched { files.batch_consume_queue() } else { files.consume_queue() };
            let detail = format!("{messages} messages of the log belong to it");
            self.report.add(ProblemKind::QueueMissing, &self.folder(&home), None, detail);
        }
    }

    fn queue(&mut self, queue: &ConsumeQueue, folder: &Path) -> Result<(), StoreError> {
        // A writer may still fill the slots after those that it has finished.
        if let Some(reason) = unless_gone(queue.damaged_before(self.view.dispatched), None)? {
            self.report.add(ProblemKind::QueueStray, folder, None, reason);
        }
        let (min, max) = (queue.min_offset(), queue.max_offset());
        let is_too_far = |absent: &MissingUnits| queue.has_no_space_for(absent.from, absent.physical);
        self.findings(folder, max, |offset| Some(place_of(offset)), is_too_far);
        for (offset, detail) in &self.tally.extension {
            self.report.add(
                ProblemKind::QueueExtensionWrong,
                folder,
                Some(place_of(*offset)),
                detail.clone(),
            );
        }
        let end = unless_gone(queue.max_offset_for(self.view.dispatched), max)?;
        if self.tally.accounted(min, end) != end - min {
            return self.entries(queue, folder, min, end);
        }
        // Offsets without a record should have blank units.
        for (from, to) in self.tally.claimed.gaps() {
            self.entries(queue, folder, *from.max(&min), *to.min(&end))?;
        }
        Ok(())
    }

    /// Checks the units from `from` to `to` (exclusive).
    fn entries(&mut self, queue: &ConsumeQueue, folder: &Path, from: i64, to: i64) -> Result<(), StoreError> {
        let (mut from, mut units) = (from, Vec::new());
        while from < to {
            units.clear();
            match queue.read(from, UNITS_AT_ONCE.min((to - from) as usize), &mut units) {
                Err(error @ StoreError::Io { .. }) if !error.is_gone() => return Err(error),
                // A missing file; `queue` reports damaged ones.
                Err(_) => units.clear(),
                Ok(()) => {}
            }
            for (offset, unit) in (from..).zip(&units) {
                self.entry(folder, offset, Some(place_of(offset)), *unit)?;
            }
            from += UNITS_AT_ONCE as i64;
        }
        Ok(())
    }

    /// Whether the record of a unit may not be dispatched yet: such units are the last ones of a queue.
    fn is_unfinished(&self, unit: &CqUnit) -> bool {
        u64::try_from(unit.physical_offset).is_ok_and(|place| place >= self.view.dispatched)
    }

    fn batch_queue(&mut self, queue: &BatchQueue) -> Result<(), StoreError> {
        let folder = &self.folder(&self.view.files.batch_consume_queue());
        if let Some(reason) = queue.damaged() {
            self.report.add(ProblemKind::QueueStray, folder, None, reason);
        }
        self.findings(folder, queue.max_offset(), |_| None, |_| false);
        let mut count = 0;
        self.batch_entries(queue, |look, _, unit| {
            count += i64::from(!look.is_unfinished(&unit));
            Ok(())
        })?;
        if count == self.tally.matched {
            return Ok(());
        }
        self.batch_entries(queue, |look, offset, unit| look.entry(folder, offset, None, unit))
    }

    fn batch_entries(
        &mut self,
        queue: &BatchQueue,
        mut visit: impl FnMut(&mut Self, i64, CqUnit) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let (mut from, mut units) = (queue.min_offset(), Vec::new());
        loop {
            units.clear();
            match queue.read(from, UNITS_AT_ONCE, u64::MAX, &mut units) {
                Err(error @ StoreError::Io { .. }) if !error.is_gone() => return Err(error),
                Err(_) => return Ok(()),
                Ok(()) => {}
            }
            for (offset, unit) in &units {
                visit(self, *offset, *unit)?;
            }
            match units.last().and_then(|(last, _)| last.checked_add(1)) {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }

    /// Reports the findings of the parts, for a queue whose units end at `max`.
    fn findings(
        &mut self,
        folder: &Path,
        max: i64,
        place: impl Fn(i64) -> Option<u64>,
        is_too_far: impl Fn(&MissingUnits) -> bool,
    ) {
        let is_unknown =
            |(from, to): &&(i64, i64)| !self.view.repairs.knows(self.topic, self.queue_id, *from, *to);
        for (from, to) in self.tally.claimed.gaps().iter().filter(is_unknown) {
            let detail = format!("offsets {from} to {to} (exclusive) have no record");
            self.report.add(ProblemKind::QueueGap, folder, None, detail);
        }
        for misfit in self.tally.order.misfits().iter().filter(|misfit| misfit.is_wrong()) {
            let (claims, place) = (misfit.range.from, misfit.range.first);
            let around: Vec<String> =
                misfit.before.iter().chain(&misfit.behind).map(|(offset, _)| offset.to_string()).collect();
            let around = around.join(" and ");
            let detail = format!(
                "the record at log offset {place} has queue offset {claims}; the records around it have {around}"
            );
            self.report.add(ProblemKind::QueueOffsetWrong, folder, None, detail);
        }
        for (offset, detail) in &self.tally.wrong {
            self.report.add(ProblemKind::QueueEntryWrong, folder, place(*offset), detail.clone());
        }
        for absent in &self.tally.absent {
            let &MissingUnits { from, to, .. } = absent;
            if from < max {
                let detail =
                    format!("offsets {from} to {} (exclusive) have records but no units", to.min(max));
                self.report.add(ProblemKind::QueueEntryWrong, folder, place(from), detail);
            }
            if to > max && is_too_far(absent) {
                let physical = absent.physical;
                let detail = format!(
                    "the record at log offset {physical} has queue offset {from}; the queue ends at {max}, and the \
                     log is too short for so many records in between"
                );
                self.report.add(ProblemKind::QueueOffsetRefused, folder, None, detail);
            } else if to > max {
                let detail =
                    format!("its units end at {max}; the log has offsets {} to {}", from.max(max), to - 1);
                self.report.add(ProblemKind::QueueBehind, folder, None, detail);
            }
        }
        self.report.more += self.tally.more;
    }

    /// Checks a unit of a queue that has more units than the log has records.
    fn entry(
        &mut self,
        folder: &Path,
        offset: i64,
        place: Option<u64>,
        unit: CqUnit,
    ) -> Result<(), StoreError> {
        let physical = u64::try_from(unit.physical_offset);
        let expired = physical.is_ok_and(|place| place < self.view.list.min_offset());
        if unit.is_blank() || expired || self.is_unfinished(&unit) || self.tally.knows(offset) {
            return Ok(());
        }
        if !leads_to(self.view, (self.topic, self.queue_id), offset, unit)? {
            let detail = format!(
                "offset {offset} leads to {}, where the log has no record with this offset",
                describe_target(&unit)
            );
            self.report.add(ProblemKind::QueueEntryDangling, folder, place, detail);
        }
        Ok(())
    }
}
