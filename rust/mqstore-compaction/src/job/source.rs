//! Reads the records that a task compacts, in ascending queue offset.
//!
//! Owns the join of a queue's sources, which do not overlap:
//!
//! ```text
//! compaction/...       q3 q7 q8 q12 |                     up to the last offset that was read for it; if a queue
//!                                                         is restored, mqstore/restore/... instead
//! consume queue + log               | q13 q14 q15         units, each checked against its record
//! log alone                         |             q16     records without units yet
//! ```
//!
//! The commit log is the truth, and the consume queue a way into it. At the first unit that is blank, missing, or does
//! not match its record, the walk leaves the queue and continues in the log after the last good record. A damaged
//! record is an error, because it may be the newest of its key. Never writes. The sources do not change while a task
//! runs, so that two walks read the same records. If they do change, publication detects it.
//!
//! A walk covers the complete queue or one [`OffsetRange`] of it. Consecutive ranges give the same records as one walk,
//! as long as the consume queue matches the log. If it does not, a range is an error, and the complete queue must be
//! walked at once.

use std::sync::Arc;

use mqstore_format::{CQ_UNIT_BYTES, CqUnit, CrcCheck, RecordView, offset_file_name};
use mqstore_io::Access;
use serde::{Deserialize, Serialize};

use super::documents::{LogTail, QueueTask};
use crate::files::cursor::{OpenOutcome, PairCursor, first_offset};
use crate::files::folder::{FilePair, QueueFolder};
use crate::files::restored::restored_folder;
use crate::read::fetch::{RecordFetcher, RecordPlace, VerifyLevel};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;
use mqstore_log::commit_log::{CommitLog, LogScanner, ScanChecks, ScanItem, SegmentList};

/// Number of queue units in one read.
const CHUNK_UNITS: i64 = 16_384;

/// Bytes of a consume-queue unit.
const UNIT_BYTES: u64 = CQ_UNIT_BYTES as u64;

/// The range of queue offsets that a walk covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OffsetRange {
    pub(crate) from: i64,
    /// One past its last queue offset; [`i64::MAX`] to include records without units.
    pub(crate) to: i64,
}

impl OffsetRange {
    /// The complete queue.
    pub(crate) const WHOLE: Self = Self { from: 0, to: i64::MAX };

    fn is_whole(self) -> bool {
        self == Self::WHOLE
    }
}

/// One step of a walk.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SourceItem<'r> {
    /// A record.
    Record(&'r RecordView<'r>),
    /// Records that were skipped and not read.
    Passed {
        /// Number of records.
        records: u64,
        /// Their bytes, from their queue units.
        bytes: u64,
    },
}

/// Called by a walk with each item.
pub(crate) type Visit<'v> = dyn FnMut(SourceItem<'_>) -> Result<(), StoreError> + 'v;

/// Selects the records that a second walk needs, by their number in the walk.
pub(crate) type RecordSelector<'w> = dyn Fn(u64) -> bool + 'w;

/// Calls `visit` with all records of `range` in the task's snapshot; returns the last one that came from the commit
/// log. `log` is the commit log of this process, if it has the store open for writing. With `wants`, other records may
/// be skipped, because an earlier walk has verified them.
pub(crate) fn walk(
    files: &StoreFiles,
    log: Option<&Arc<CommitLog>>,
    task: &QueueTask,
    range: OffsetRange,
    wants: Option<&RecordSelector<'_>>,
    visit: &mut Visit<'_>,
) -> Result<Option<LogTail>, StoreError> {
    let last_offset = range.from.saturating_sub(1);
    let mut walk = TaskWalk { files, log, task, range, wants, number: 0, last_offset, tail: None, visit };
    walk.previous_generation()?;
    // Includes records that were read for that generation and dropped.
    walk.last_offset = walk.last_offset.max(task.previous_end.saturating_sub(1));
    walk.commit_log()?;
    Ok(walk.tail)
}

struct TaskWalk<'a, 'v> {
    files: &'a StoreFiles,
    log: Option<&'a Arc<CommitLog>>,
    task: &'a QueueTask,
    range: OffsetRange,
    wants: Option<&'a RecordSelector<'a>>,
    /// The number of the next record.
    number: u64,
    /// Records at or below this queue offset are skipped: RocketMQ's guard against duplicates.
    last_offset: i64,
    tail: Option<LogTail>,
    visit: &'a mut Visit<'v>,
}

impl TaskWalk<'_, '_> {
    fn previous_generation(&mut self) -> Result<(), StoreError> {
        let end = self.task.previous_end.min(self.range.to);
        if self.range.from >= end {
            return Ok(());
        }
        let (topic, queue_id) = (&self.task.topic, self.task.queue_id);
        let folder = previous_folder(self.files, self.task)?;
        let first = pair_of(self.files, &folder.pairs, self.range.from, self.task)?;
        for pair in folder.pairs.get(first..).unwrap_or_default() {
            let from = self.range.from;
            let OpenOutcome::Same(mut cursor) = PairCursor::open(self.files, pair, topic, queue_id, from)?
            else {
                return Err(files_replaced_error(self.task));
            };
            while let Some(record) = cursor.next_record()? {
                if record.queue_offset >= end {
                    return Ok(());
                }
                if record.queue_offset > self.last_offset {
                    self.last_offset = record.queue_offset;
                    self.number += 1;
                    (self.visit)(SourceItem::Record(&record))?;
                }
            }
        }
        Ok(())
    }

    fn commit_log(&mut self) -> Result<(), StoreError> {
        let log = &self.task.log;
        if log.queue_from >= log.queue_to && log.scan_from >= log.log_end {
            return Ok(());
        }
        let list = Arc::new(SegmentList::load(self.files)?);
        if list.end_offset() < log.log_end {
            // Expiry removes segments at the other end, so it is not the cause.
            let reason = format!("the log ends here; it ended at {} when the job was planned", log.log_end);
            return Err(StoreError::corrupt(&self.files.commit_log(), list.end_offset(), reason));
        }
        match self.walk_queue(&list)? {
            FollowOutcome::ToTheEnd if self.range.to < i64::MAX => Ok(()),
            FollowOutcome::ToTheEnd => self.walk_log(&list, log.scan_from),
            FollowOutcome::Until(position) if self.range.is_whole() => {
                self.walk_log(&list, position.min(log.scan_from).max(list.min_offset()))
            }
            FollowOutcome::Until(_) => Err(StoreError::Busy {
                reason: format!(
                    "units of {}/{} do not match the log, which has to be walked completely",
                    self.task.topic, self.task.queue_id
                ),
            }),
        }
    }

    /// Follows the consume queue as far as it matches the log.
    fn walk_queue(&mut self, list: &Arc<SegmentList>) -> Result<FollowOutcome, StoreError> {
        let log = &self.task.log;
        let (from, to) = (log.queue_from.max(self.range.from), log.queue_to.min(self.range.to));
        // The second walk reads records to copy, which get a new checksum.
        let verify = if self.wants.is_some() { VerifyLevel::All } else { VerifyLevel::Once };
        let mut fetch = RecordFetcher::new(list, self.log, self.task.log.log_end, verify);
        let mut good_end = 0;
        let mut offset = from;
        while offset < to {
            let units = units(self.files, self.task, offset, CHUNK_UNITS.min(to - offset))?;
            if units.is_empty() {
                return Ok(FollowOutcome::Until(good_end));
            }
            let chunk = self.places(&units, offset, list.min_offset(), good_end);
            for at in 0..chunk.wanted.len() {
                let places = chunk.wanted.get(at..).unwrap_or_default();
                let Some(place) = places.first() else { break };
                let record = fetch.record(places)?;
                let Some(record) = record.filter(|record| self.is_ours(record)) else {
                    return Ok(FollowOutcome::Until(place.good_end));
                };
                self.pass(place.passed, place.queue_offset - 1)?;
                self.take(&record)?;
            }
            self.pass(chunk.passed, chunk.end - 1)?;
            good_end = chunk.good_end;
            if !chunk.is_whole {
                return Ok(FollowOutcome::Until(good_end));
            }
            offset = chunk.end;
        }
        Ok(FollowOutcome::ToTheEnd)
    }

    /// Returns the places of `units`. The first unit has `offset`, and the record before it ends at `good_end`.
    fn places(&self, units: &[CqUnit], offset: i64, log_start: u64, good_end: u64) -> QueueChunk {
        let mut chunk =
            QueueChunk { wanted: Vec::new(), passed: (0, 0), good_end, end: offset, is_whole: true };
        let mut number = self.number;
        for unit in units {
            let position = u64::try_from(unit.physical_offset).unwrap_or(u64::MAX);
            let size = u32::try_from(unit.size).unwrap_or(0);
            if !unit.is_valid() || position == u64::MAX {
                chunk.is_whole = false;
                break;
            }
            // The record expired; it was copied to the compaction log before, or was lost.
            if position >= log_start {
                if self.wants.is_none_or(|wants| wants(number)) {
                    let passed = std::mem::take(&mut chunk.passed);
                    let (queue_offset, good_end) = (chunk.end, chunk.good_end);
                    chunk.wanted.push(RecordPlace { queue_offset, position, size, good_end, passed });
                } else {
                    chunk.passed = (chunk.passed.0 + 1, chunk.passed.1 + u64::from(size));
                }
                number += 1;
                chunk.good_end = position.saturating_add(u64::from(size));
            }
            chunk.end += 1;
        }
        chunk
    }

    /// Reports skipped records up to queue offset `last`.
    fn pass(&mut self, (records, bytes): (u64, u64), last: i64) -> Result<(), StoreError> {
        if records == 0 {
            return Ok(());
        }
        self.number += records;
        self.last_offset = self.last_offset.max(last);
        (self.visit)(SourceItem::Passed { records, bytes })
    }

    fn walk_log(&mut self, list: &Arc<SegmentList>, from: u64) -> Result<(), StoreError> {
        let (checks, log) = (ScanChecks { crc: false }, &self.task.log);
        let from = from.max(log.floor).min(log.log_end);
        let mut scanner = LogScanner::new(Arc::clone(list), from, log.log_end, checks);
        loop {
            match scanner.next_item()? {
                ScanItem::Record(record)
                    if self.is_ours(&record) && record.queue_offset > self.last_offset =>
                {
                    record.check_crc(CrcCheck { body: true, property: true }).map_err(|error| {
                        let path = list.find(record.physical_offset as u64).map(|segment| segment.path());
                        let path = path.unwrap_or_else(|| self.files.commit_log());
                        StoreError::format(&path, record.physical_offset as u64, &error)
                    })?;
                    self.take(&record)?;
                }
                ScanItem::Record(_) | ScanItem::Filler { .. } => {}
                ScanItem::End { .. } => return Ok(()),
                ScanItem::Damaged(damage) => {
                    return Err(StoreError::corrupt(
                        &damage.path,
                        damage.file_offset,
                        format!("{}; repair the store, then compact it", damage.reason),
                    ));
                }
            }
        }
    }

    fn is_ours(&self, record: &RecordView<'_>) -> bool {
        record.topic == self.task.topic
            && record.queue_id == self.task.queue_id
            && record.dispatches_to_queue()
    }

    /// Passes on a record of the commit log after the last one.
    fn take(&mut self, record: &RecordView<'_>) -> Result<(), StoreError> {
        if record.queue_offset <= self.last_offset {
            return Ok(());
        }
        self.last_offset = record.queue_offset;
        self.tail = Some(LogTail {
            physical_offset: record.physical_offset as u64,
            size: record.size,
            queue_offset: record.queue_offset,
            store_timestamp: record.store_timestamp,
        });
        self.number += 1;
        (self.visit)(SourceItem::Record(record))
    }
}

/// Returns the units from `offset` on in one queue file, at most `count`; none if the file does not exist or is too
/// short.
pub(crate) fn units(
    files: &StoreFiles,
    task: &QueueTask,
    offset: i64,
    count: i64,
) -> Result<Vec<CqUnit>, StoreError> {
    let file_bytes = task.log.queue_file_bytes;
    let start = offset.max(0) as u64 * UNIT_BYTES;
    let Some(base) = start.checked_div(file_bytes).map(|index| index * file_bytes) else {
        return Ok(Vec::new());
    };
    let len = (file_bytes - (start - base)).min(count.max(0) as u64 * UNIT_BYTES);
    let queue = files.consume_queue().join(&task.topic).join(task.queue_id.to_string());
    let path = queue.join(offset_file_name(base));
    let file = match files.vfs.open(&path, Access::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(StoreError::io(&path, "opening a queue file", error)),
    };
    let mut bytes = vec![0; len as usize];
    match file.read_exact_at(&mut bytes, start - base) {
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(Vec::new()),
        read => read.at(&path, "reading queue entries")?,
    }
    Ok(bytes.as_chunks::<CQ_UNIT_BYTES>().0.iter().map(CqUnit::decode).collect())
}

/// Returns the files with the records before the commit log.
pub(crate) fn previous_folder(files: &StoreFiles, task: &QueueTask) -> Result<QueueFolder, StoreError> {
    if task.restored {
        restored_folder(files, &task.topic, task.queue_id)
    } else {
        QueueFolder::load(files, &files.compaction(), &task.topic, task.queue_id)
    }
}

/// Returns the number of the first of `pairs` that may have the queue offset `from` or a later one.
fn pair_of(files: &StoreFiles, pairs: &[FilePair], from: i64, task: &QueueTask) -> Result<usize, StoreError> {
    let (mut low, mut high) = (0, pairs.len().saturating_sub(1));
    while low < high && from > 0 {
        let middle = (low + high).div_ceil(2);
        let Some(pair) = pairs.get(middle) else { break };
        if starts_by(files, pair, from, task)? { low = middle } else { high = middle - 1 }
    }
    Ok(low)
}

/// Whether the first record of `pair` has the queue offset `from` or an earlier one.
fn starts_by(files: &StoreFiles, pair: &FilePair, from: i64, task: &QueueTask) -> Result<bool, StoreError> {
    let Some(queue) = &pair.queue else { return Ok(false) };
    if first_offset(files, queue)?.is_none_or(|first| first > from) {
        return Ok(false);
    }
    // A unit alone must not decide which records are skipped.
    match PairCursor::open(files, pair, &task.topic, task.queue_id, 0)? {
        OpenOutcome::Moved => Err(files_replaced_error(task)),
        OpenOutcome::Same(mut cursor) => {
            Ok(cursor.next_record()?.is_some_and(|record| record.queue_offset <= from))
        }
    }
}

/// A part of a queue during the walk.
struct QueueChunk {
    /// The records to read.
    wanted: Vec<RecordPlace>,
    /// Number and bytes of the records after the last of them.
    passed: (u64, u64),
    /// End of the last record.
    good_end: u64,
    /// One past the last queue offset.
    end: i64,
    /// Whether each unit points to a record.
    is_whole: bool,
}

/// The result of following the consume queue.
enum FollowOutcome {
    ToTheEnd,
    /// Records at or after this log offset must be read from the log.
    Until(u64),
}

/// The error if files were replaced while the task ran.
fn files_replaced_error(task: &QueueTask) -> StoreError {
    StoreError::Busy {
        reason: format!(
            "the compaction files of {}/{} were replaced while they were read",
            task.topic, task.queue_id
        ),
    }
}
