//! The records that a task compacts, in ascending queue offset.
//!
//! Owns the joining of a queue's two sources, which overlap nowhere:
//!
//! ```text
//! compaction/...       q3 q7 q8 q12 |                     up to the end of what was read for it; of a queue that
//!                                                         is restored, mqstore/restore/... in its place
//! consume queue + log               | q13 q14 q15         entries, each checked against its record
//! log alone                         |             q16     what no entry points at yet
//! ```
//!
//! The commit log is the truth, the consume queue a way into it: an entry that is blank, missing or
//! at odds with the record that it points at ends its use, and the log itself is walked from behind
//! the last good record. A damaged record is an error: it may have been the newest of its key. Never
//! writes. The sources do not change while a task runs, so that two walks see the same records; if
//! they do change, publishing finds out.

use std::path::PathBuf;
use std::sync::Arc;

use mqstore_format::{CQ_UNIT_BYTES, CqUnit, CrcCheck, RecordView, offset_file_name};
use mqstore_io::Access;

use super::cursor::{Listed, PairCursor};
use super::folder::QueueFolder;
use super::model::{LogTail, QueueTask};
use super::restore::restored_folder;
use crate::commit_log::{LogScanner, ScanChecks, ScanItem, SegmentList};
use crate::error::{IoContext, StoreError};
use crate::files::StoreFiles;

/// Queue entries that one read fetches.
const CHUNK_UNITS: i64 = 16_384;

/// Bytes of a consume-queue entry.
const UNIT_BYTES: u64 = CQ_UNIT_BYTES as u64;

/// What a task does with each record.
pub(crate) type Visit<'v> = dyn FnMut(&RecordView<'_>) -> Result<(), StoreError> + 'v;

/// Calls `visit` with every record of the task's snapshot; the last one that came from the commit
/// log is returned.
pub(crate) fn walk(
    files: &StoreFiles,
    task: &QueueTask,
    visit: &mut Visit<'_>,
) -> Result<Option<LogTail>, StoreError> {
    let mut walk = Walk { files, task, last_offset: -1, tail: None, visit };
    walk.previous_generation()?;
    // Also what was read for that generation and not kept.
    walk.last_offset = walk.last_offset.max(task.previous_end.saturating_sub(1));
    walk.commit_log()?;
    Ok(walk.tail)
}

struct Walk<'a, 'v> {
    files: &'a StoreFiles,
    task: &'a QueueTask,
    /// Records at or below this queue offset have been seen: RocketMQ's guard against duplicates.
    last_offset: i64,
    tail: Option<LogTail>,
    visit: &'a mut Visit<'v>,
}

impl Walk<'_, '_> {
    fn previous_generation(&mut self) -> Result<(), StoreError> {
        if self.task.previous_end == 0 {
            return Ok(());
        }
        let (topic, queue_id) = (&self.task.topic, self.task.queue_id);
        let folder = if self.task.restored {
            restored_folder(self.files, topic, queue_id)?
        } else {
            QueueFolder::load(self.files, &self.files.compaction(), topic, queue_id)?
        };
        for pair in &folder.pairs {
            let Listed::Same(mut cursor) = PairCursor::open(self.files, pair, topic, queue_id, 0)? else {
                return Err(moved(self.task));
            };
            while let Some(record) = cursor.next_record()? {
                if record.queue_offset >= self.task.previous_end {
                    return Ok(());
                }
                if record.queue_offset > self.last_offset {
                    self.last_offset = record.queue_offset;
                    (self.visit)(&record)?;
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
            // What retention takes lies at the other end.
            let reason =
                format!("the log ends here, and went on to {} when the job was planned", log.log_end);
            return Err(StoreError::corrupt(&self.files.commit_log(), list.end_offset(), reason));
        }
        let scan_from = match self.by_queue(&list)? {
            Followed::ToTheEnd => log.scan_from,
            Followed::Until(position) => position.min(log.scan_from).max(list.min_offset()),
        };
        self.by_scan(&list, scan_from)
    }

    /// Follows the consume queue as far as it agrees with the log.
    fn by_queue(&mut self, list: &Arc<SegmentList>) -> Result<Followed, StoreError> {
        let (from, to) = (self.task.log.queue_from, self.task.log.queue_to);
        let checks = ScanChecks { crc: true };
        let mut scanner = LogScanner::new(Arc::clone(list), 0, self.task.log.log_end, checks);
        let mut good_end = 0;
        let mut offset = from;
        while offset < to {
            let units = self.units(offset, CHUNK_UNITS.min(to - offset))?;
            if units.is_empty() {
                return Ok(Followed::Until(good_end));
            }
            for unit in units {
                let position = u64::try_from(unit.physical_offset).unwrap_or(u64::MAX);
                if !unit.is_valid() || position == u64::MAX {
                    return Ok(Followed::Until(good_end));
                }
                // Retention took the record; it went into the compaction log before, or was lost then.
                if position >= list.min_offset() {
                    scanner.seek(position);
                    let ScanItem::Record(record) = scanner.next_item()? else {
                        return Ok(Followed::Until(good_end));
                    };
                    let agrees = self.is_ours(&record)
                        && record.queue_offset == offset
                        && i64::from(record.size) == i64::from(unit.size);
                    if !agrees {
                        return Ok(Followed::Until(good_end));
                    }
                    good_end = position + u64::from(record.size);
                    self.take(&record)?;
                }
                offset += 1;
            }
        }
        Ok(Followed::ToTheEnd)
    }

    /// The entries from `offset` on that one queue file holds, at most `count`; none when the file is
    /// not there or too short.
    fn units(&self, offset: i64, count: i64) -> Result<Vec<CqUnit>, StoreError> {
        let file_bytes = self.task.log.queue_file_bytes;
        let start = offset.max(0) as u64 * UNIT_BYTES;
        let Some(base) = start.checked_div(file_bytes).map(|index| index * file_bytes) else {
            return Ok(Vec::new());
        };
        let len = (file_bytes - (start - base)).min(count.max(0) as u64 * UNIT_BYTES);
        let path = self.queue_file(base);
        let file = match self.files.vfs.open(&path, Access::Read) {
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

    fn queue_file(&self, base: u64) -> PathBuf {
        let queue = self.files.consume_queue().join(&self.task.topic).join(self.task.queue_id.to_string());
        queue.join(offset_file_name(base))
    }

    fn by_scan(&mut self, list: &Arc<SegmentList>, from: u64) -> Result<(), StoreError> {
        let checks = ScanChecks { crc: false };
        let mut scanner = LogScanner::new(Arc::clone(list), from, self.task.log.log_end, checks);
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

    /// Hands on a record of the commit log that follows what was seen.
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
        (self.visit)(record)
    }
}

/// How far the consume queue could be followed.
enum Followed {
    ToTheEnd,
    /// Records at or behind this log position have to be looked for in the log.
    Until(u64),
}

/// The files were replaced while the task ran.
fn moved(task: &QueueTask) -> StoreError {
    StoreError::Busy {
        reason: format!(
            "the compaction files of {}/{} were replaced while they were read",
            task.topic, task.queue_id
        ),
    }
}
