//! The checks, one after the other.

use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;

use mqstore_format::{CqUnit, RecordView, ext_offset, index_key_hash};
use mqstore_io::{Access, FileKind};

use super::problems::{Kind, Progress, VerifyReport};
use crate::checkpoint::CheckpointFile;
use crate::commit_log::{Damage, LogScanner, ScanChecks, ScanItem, SegmentList};
use crate::compaction::CompactedQueue;
use crate::consume_queue::{BatchQueue, ConsumeQueue, QueueSet};
use crate::dispatch::DerivedQueues;
use crate::error::StoreError;
use crate::files::StoreFiles;
use crate::index::IndexSet;
use crate::live::read_live;
use crate::mark::MarkFile;
use crate::mend::Ledger;
use crate::options::StoreOptions;

/// Keys whose index answer is checked at most; they are spread evenly over the log.
const INDEX_SAMPLES: usize = 50_000;

/// Queue entries that are compared at once.
const UNITS_AT_ONCE: usize = 4096;

/// Checks the store at `files` and returns what is not as it should be.
///
/// `progress` is called about once a mebibyte of log; an error that it returns ends the check.
///
/// # Errors
/// [`StoreError::NotAStore`], and errors of the system while reading. Damage is no error: it is what
/// the report is for.
pub fn verify(
    files: &StoreFiles,
    options: &StoreOptions,
    progress: &mut dyn FnMut(Progress) -> Result<(), StoreError>,
) -> Result<VerifyReport, StoreError> {
    files.must_be_a_store()?;
    let mut check = Check {
        files,
        report: VerifyReport::default(),
        list: Arc::new(SegmentList::load(files)?),
        derived: DerivedQueues::default(),
        keys: Vec::new(),
        end: 0,
        dispatched: u64::MAX,
        repairs: Ledger::load(files)?,
    };
    check.segments();
    check.log(progress)?;
    check.queues(options)?;
    check.index(options)?;
    check.checkpoint();
    check.compaction()?;
    check.report.ok = check.report.problems.is_empty();
    Ok(check.report)
}

struct Check<'a> {
    files: &'a StoreFiles,
    report: VerifyReport,
    list: Arc<SegmentList>,
    derived: DerivedQueues,
    /// Key hash and log offset of index entries that there should be, thinned out.
    keys: Vec<(i32, u64)>,
    end: u64,
    /// Beyond this a running writer has not dispatched yet.
    dispatched: u64,
    /// Gaps that a repair has told already.
    repairs: Ledger,
}

impl Check<'_> {
    fn segments(&mut self) {
        let list = Arc::clone(&self.list);
        for stray in &list.strays {
            self.report.add(Kind::SegmentStray, &stray.path, None, stray.reason.clone());
        }
        for (from, to) in &list.gaps {
            let detail = format!("the segments from log offset {from} to {to} are missing");
            self.report.add(Kind::SegmentGap, &self.files.commit_log(), None, detail);
        }
    }

    fn log(
        &mut self,
        progress: &mut dyn FnMut(Progress) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let live = read_live(self.files);
        let limit = live.map_or(u64::MAX, |live| live.visible);
        self.dispatched = live.map_or(u64::MAX, |live| live.dispatched);
        let start = self.list.min_offset();
        let total_bytes = self.list.segments().iter().map(|segment| segment.len()).sum();
        let mut scanner = LogScanner::new(Arc::clone(&self.list), start, limit, ScanChecks { crc: true });
        let mut next_report = start;
        let mut stride = Stride::default();
        loop {
            let offset = scanner.position();
            if offset >= next_report {
                progress(Progress { done_bytes: offset - start, total_bytes })?;
                next_report = offset + (1 << 20);
            }
            match scanner.next_item()? {
                ScanItem::Record(record) if record.is_placeholder() => {}
                ScanItem::Record(record) => {
                    self.report.messages += 1;
                    self.report.bytes += u64::from(record.size);
                    self.derived.add(&record, offset);
                    collect_keys(&record, offset, &mut stride, &mut self.keys);
                }
                ScanItem::Filler { .. } => {}
                ScanItem::End { offset } => {
                    self.end = offset;
                    match self.behind_end(&mut scanner, offset, live.is_some())? {
                        Some(next) => scanner.seek(next),
                        None => return Ok(()),
                    }
                }
                ScanItem::Damaged(damage) => match self.damage(&mut scanner, &damage)? {
                    Some(next) => scanner.seek(next),
                    None => return Ok(()),
                },
            }
        }
    }

    /// Zeroes end the log; a record behind them means that a stretch of it was lost.
    fn behind_end(
        &mut self,
        scanner: &mut LogScanner,
        offset: u64,
        live: bool,
    ) -> Result<Option<u64>, StoreError> {
        if live {
            return Ok(None);
        }
        let next = scanner.resync(offset)?;
        if let (Some(next), Some(segment)) = (next, self.list.find(offset)) {
            let detail = format!("{} bytes of zeros with records behind them", next - offset);
            self.report.add(
                Kind::RecordDamaged,
                &segment.path(),
                Some(offset - segment.base_offset()),
                detail,
            );
        }
        Ok(next)
    }

    fn damage(&mut self, scanner: &mut LogScanner, damage: &Damage) -> Result<Option<u64>, StoreError> {
        let next = scanner.resync(damage.offset + 1)?;
        let kind = if next.is_some() { Kind::RecordDamaged } else { Kind::TornTail };
        let length = next.map_or(String::new(), |next| format!("; {} bytes", next - damage.offset));
        self.report.add(kind, &damage.path, Some(damage.file_offset), format!("{}{length}", damage.reason));
        self.end = damage.offset;
        Ok(next)
    }

    fn queues(&mut self, options: &StoreOptions) -> Result<(), StoreError> {
        let set = QueueSet::load(self.files, options.queue_file_bytes(), Access::Read)?;
        for stray in set.strays() {
            self.report.add(Kind::QueueStray, &stray.path, None, stray.reason.clone());
        }
        let derived = std::mem::take(&mut self.derived);
        let topics: Vec<String> = derived.topics().map(str::to_owned).collect();
        for topic in &topics {
            let batched = self.files.vfs.stat(&self.files.batch_consume_queue().join(topic)).is_ok();
            for queue_id in derived.queue_ids(topic) {
                let wanted =
                    derived.get(topic, queue_id).map(|queue| queue.from(i64::MIN)).unwrap_or_default();
                let home =
                    if batched { self.files.batch_consume_queue() } else { self.files.consume_queue() };
                let folder = home.join(topic).join(queue_id.to_string());
                if let Some(queue) = set.batch(topic, queue_id) {
                    self.batch_queue(&queue, &folder, wanted)?;
                    continue;
                }
                match set.get(topic, queue_id) {
                    Some(queue) => self.queue(&queue, &folder, wanted)?,
                    None if wanted.first().is_some_and(|(_, unit)| self.is_dispatched(unit)) => {
                        let detail = format!("{} messages of the log belong to it", wanted.len());
                        self.report.add(Kind::QueueMissing, &folder, None, detail);
                    }
                    None => {}
                }
            }
        }
        for queue in set.all() {
            if derived.get(queue.topic(), queue.queue_id()).is_none() {
                let folder =
                    self.files.consume_queue().join(queue.topic()).join(queue.queue_id().to_string());
                self.queue(&queue, &folder, &[])?;
            }
        }
        Ok(())
    }

    fn is_dispatched(&self, unit: &CqUnit) -> bool {
        (unit.physical_offset as u64) < self.dispatched
    }

    /// Compares one queue's entries with those that the log yields.
    fn queue(
        &mut self,
        queue: &ConsumeQueue,
        folder: &Path,
        wanted: &[(i64, CqUnit)],
    ) -> Result<(), StoreError> {
        queue.recover_bounds()?;
        if let Some(reason) = queue.damaged() {
            self.report.add(Kind::QueueStray, folder, None, reason);
        }
        for pair in wanted.windows(2) {
            if let [(left, _), (right, _)] = pair
                && left + 1 != *right
                && !self.repairs.knows(queue.topic(), queue.queue_id(), left + 1, *right)
            {
                let detail = format!("offsets {} to {} (exclusive) have no record", left + 1, right);
                self.report.add(Kind::QueueGap, folder, None, detail);
            }
        }
        let mut wanted = wanted.iter().peekable();
        let mut from = queue.min_offset();
        let mut units = Vec::new();
        let log_min = self.list.min_offset();
        while from < queue.max_offset() {
            units.clear();
            queue.read(from, UNITS_AT_ONCE, &mut units)?;
            if units.is_empty() {
                break;
            }
            for (offset, unit) in (from..).zip(&units) {
                while let Some((missed, _)) = wanted.next_if(|(wanted, _)| *wanted < offset) {
                    let detail = format!("offset {missed} has a record but no entry");
                    self.report.add(Kind::QueueEntryWrong, folder, Some(*missed as u64 * 20), detail);
                }
                let record = wanted.next_if(|(wanted, _)| *wanted == offset).map(|(_, unit)| unit);
                self.entry(folder, (offset, Some(offset.max(0) as u64 * 20)), unit, record, log_min);
            }
            from += units.len() as i64;
        }
        self.missed(folder, from, wanted);
        Ok(())
    }

    /// Compares a batch queue's units with those that the log yields.
    fn batch_queue(
        &mut self,
        queue: &BatchQueue,
        folder: &Path,
        wanted: &[(i64, CqUnit)],
    ) -> Result<(), StoreError> {
        queue.recover_bounds()?;
        if let Some(reason) = queue.damaged() {
            self.report.add(Kind::QueueStray, folder, None, reason);
        }
        let log_min = self.list.min_offset();
        queue.correct_min_offset(0)?;
        let mut wanted = wanted.iter().peekable();
        let mut from = queue.min_offset();
        let mut units = Vec::new();
        loop {
            units.clear();
            queue.read(from, UNITS_AT_ONCE, u64::MAX, &mut units)?;
            for (offset, unit) in &units {
                while let Some((missed, _)) = wanted.next_if(|(wanted, _)| wanted < offset) {
                    let detail = format!("offset {missed} has a record but no entry");
                    self.report.add(Kind::QueueEntryWrong, folder, None, detail);
                }
                let record = wanted.next_if(|(wanted, _)| wanted == offset).map(|(_, unit)| unit);
                self.entry(folder, (*offset, None), unit, record, log_min);
            }
            match units.last() {
                Some((last, _)) => from = last + 1,
                None => break,
            }
        }
        self.missed(folder, queue.max_offset(), wanted);
        Ok(())
    }

    /// What of `wanted`, behind the entries of a queue that end at `end`, should be there.
    fn missed<'a>(&mut self, folder: &Path, end: i64, wanted: impl Iterator<Item = &'a (i64, CqUnit)>) {
        let rest: Vec<_> = wanted.filter(|(_, unit)| self.is_dispatched(unit)).collect();
        if let (Some((first, _)), Some((last, _))) = (rest.first(), rest.last()) {
            let detail = format!("its entries end at {end}; the log has offsets {first} to {last}");
            self.report.add(Kind::QueueBehind, folder, None, detail);
        }
    }

    fn entry(
        &mut self,
        folder: &Path,
        (offset, at): (i64, Option<u64>),
        unit: &CqUnit,
        record: Option<&CqUnit>,
        log_min: u64,
    ) {
        match record {
            Some(record) if record == unit => {}
            // Instead of the tags' hash it names a place in `consumequeue_ext/`.
            Some(record)
                if ext_offset(unit.tags_code).is_some()
                    && CqUnit { tags_code: unit.tags_code, ..*record } == *unit => {}
            Some(record) => {
                let detail = format!("offset {offset} leads to {unit:?}; its record is {record:?}");
                self.report.add(Kind::QueueEntryWrong, folder, at, detail);
            }
            None if unit.is_blank() => {}
            None if u64::try_from(unit.physical_offset).is_ok_and(|physical| physical < log_min) => {}
            // A running writer may have dispatched more than this check saw.
            None if self.dispatched != u64::MAX && unit.physical_offset as u64 >= self.end => {}
            None => {
                let detail = format!("offset {offset} leads to {unit:?}, where the log has no record for it");
                self.report.add(Kind::QueueEntryDangling, folder, at, detail);
            }
        }
    }

    fn index(&mut self, options: &StoreOptions) -> Result<(), StoreError> {
        let known = MarkFile::new(self.files).load().map(|mark| mark.index_geometry());
        let configured =
            mqstore_format::IndexGeometry { slots: options.index_slots, entries: options.index_entries };
        let index = IndexSet::load(self.files, known, configured, Access::Read)?;
        for stray in index.strays() {
            self.report.add(Kind::IndexStray, &stray.path, None, stray.reason.clone());
        }
        let folder = self.files.index();
        let keys = std::mem::take(&mut self.keys);
        let keys: Vec<_> = keys.into_iter().filter(|(_, offset)| *offset < self.dispatched).collect();
        if index.file_count() == 0 {
            if !keys.is_empty() && index.strays().is_empty() {
                self.report.add(
                    Kind::IndexMissing,
                    &folder,
                    None,
                    "there is no index file, but messages have keys",
                );
            }
            return Ok(());
        }
        for (hash, offset) in keys {
            let found = index.candidates(hash, i64::MIN, i64::MAX)?;
            let answer = found.offsets.iter().any(|found| u64::try_from(*found).ok() == Some(offset));
            if !answer {
                let why = found.damaged.unwrap_or_else(|| "its entry is missing".to_owned());
                let detail =
                    format!("the record at log offset {offset} is not found by a key's hash {hash}: {why}");
                self.report.add(Kind::IndexAnswer, &folder, None, detail);
            }
        }
        Ok(())
    }

    fn checkpoint(&mut self) {
        let path = self.files.checkpoint();
        if self.files.vfs.stat(&path).is_err() {
            return;
        }
        let checkpoint = CheckpointFile::new(self.files).load();
        for (name, value) in [
            ("confirmPhyOffset", checkpoint.confirm_physical_offset),
            ("logicsPhysicalOffset", checkpoint.logics_physical_offset),
        ] {
            if u64::try_from(value).is_ok_and(|value| value > self.end) && self.dispatched == u64::MAX {
                let detail = format!("{name} is {value}; the log ends at {}", self.end);
                self.report.add(Kind::CheckpointAhead, &path, None, detail);
            }
        }
    }

    /// Every compacted queue must be readable from its first entry to its last.
    fn compaction(&mut self) -> Result<(), StoreError> {
        for (topic, queue_id) in self.compacted_queues() {
            let folder =
                self.files.compaction().join("compactionLog").join(&topic).join(queue_id.to_string());
            if let Err(error) = read_through(self.files, &topic, queue_id) {
                if matches!(error, StoreError::Io { .. }) {
                    return Err(error);
                }
                self.report.add(Kind::CompactionDamaged, &folder, None, error.to_string());
            }
        }
        Ok(())
    }

    fn compacted_queues(&self) -> Vec<(String, i32)> {
        let root = self.files.compaction().join("compactionLog");
        let folders = |path: &PathBuf| -> Vec<String> {
            let entries = self.files.vfs.list(path).unwrap_or_default();
            entries
                .into_iter()
                .filter(|entry| entry.stat.kind == FileKind::Directory)
                .filter_map(|entry| entry.name.into_string().ok())
                .collect()
        };
        let mut queues = Vec::new();
        for topic in folders(&root) {
            let ids = folders(&root.join(&topic)).into_iter().filter_map(|id| id.parse().ok());
            queues.extend(ids.map(|id| (topic.clone(), id)));
        }
        queues
    }
}

/// Reads a compacted queue from its first record to its last.
fn read_through(files: &StoreFiles, topic: &str, queue_id: i32) -> Result<(), StoreError> {
    if let Some(queue) = CompactedQueue::open(files, topic, queue_id)? {
        for record in queue.read(0) {
            record?;
        }
    }
    Ok(())
}

/// Keeps every n-th key, with n doubling so that memory stays bounded.
#[derive(Default)]
struct Stride {
    seen: usize,
    every: usize,
}

fn collect_keys(record: &RecordView<'_>, offset: u64, stride: &mut Stride, keys: &mut Vec<(i32, u64)>) {
    if !record.indexed() {
        return;
    }
    let listed = record.keys().unwrap_or_default().split(' ').filter(|key| !key.is_empty());
    for key in record.unique_key().into_iter().chain(listed) {
        stride.every = stride.every.max(1);
        if stride.seen.is_multiple_of(stride.every) {
            keys.push((index_key_hash(record.topic, key), offset));
        }
        stride.seen += 1;
    }
    if keys.len() > INDEX_SAMPLES {
        let mut index = 0;
        keys.retain(|_| {
            index += 1;
            index % 2 == 1
        });
        stride.every *= 2;
    }
}
