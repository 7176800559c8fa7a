//! One batch queue: its bounds, reads and appends.
//!
//! Source: `BatchConsumeQueue#putMessagePositionInfoWrapper`, `#getBatchMsgIndexBuffer`.

use std::ops::Range;
use std::path::PathBuf;

use mqstore_format::{BATCH_CQ_UNIT_BYTES, BatchCqUnit, CqUnit};
use mqstore_io::sync::Ordering;

use crate::consume_queue::layout::BATCH_UNIT_BYTES;
use crate::consume_queue::queue::{FileList, Queue, QueueUnit, Writing};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;

/// Smallest unit that a device writes as a whole, in bytes.
const SECTOR_BYTES: u64 = 512;
/// Maximum number of units in one read.
const UNITS_AT_ONCE: u64 = 1024;

/// The log offsets of the records of one queue whose records may hold many messages each.
///
/// All files have one length, no header, and one unit for each record in log order. A file appears under its name with
/// its first unit already inside:
///
/// ```text
/// batchconsumequeue/<topic>/<queue id>/00000000000013800000
///   byte 0: unit 300,000 | unit 300,001 | ...     a file is named by its first byte in the queue
/// ```
///
/// The position of a unit does not tell its queue offset. Log offsets and queue offsets both ascend, so lookups use
/// binary search.
pub type BatchQueue = Queue<BatchCqUnit>;

/// The end of the units in the files. Positions count bytes of units from the first unit that the queue ever had.
#[derive(Clone, Debug, Default)]
pub struct BatchTail {
    /// One past the last unit.
    pub(super) end: u64,
    /// The last unit.
    pub(super) last: Option<BatchCqUnit>,
}

/// The files of a batch queue, which have no gaps, and how far they are filled.
pub(super) type BatchFiles = FileList<BatchTail>;

impl BatchFiles {
    /// Position of the first unit.
    pub(super) fn start(&self) -> u64 {
        self.bases.first().copied().unwrap_or(self.tail.end)
    }

    /// One past the queue offset of the last message.
    pub(super) fn max(&self) -> i64 {
        self.tail.last.map_or(0, |last| last.next_offset())
    }

    /// Log offset at which the record of the last unit ends.
    pub(super) fn physical_end(&self) -> i64 {
        self.tail.last.map_or(0, |last| last.physical_end())
    }
}

impl QueueUnit for BatchCqUnit {
    const BYTES: u64 = BATCH_UNIT_BYTES;

    type Tail = BatchTail;

    fn folder(files: &StoreFiles) -> PathBuf {
        files.batch_consume_queue()
    }

    fn first_log_offset(queue: &BatchQueue, base: u64) -> Result<Option<u64>, StoreError> {
        Ok(u64::try_from(queue.unit_at(base)?.physical_offset).ok())
    }

    fn last_log_offset(queue: &BatchQueue, base: u64) -> Result<Option<u64>, StoreError> {
        // A damaged unit with a negative offset becomes a large one, so its file stays.
        Ok(Some(queue.last_unit_of(base)?.physical_offset as u64))
    }

    fn offsets_of(queue: &BatchQueue, base: u64) -> Result<Range<i64>, StoreError> {
        Ok(queue.unit_at(base)?.base_offset..queue.last_unit_of(base)?.next_offset())
    }

    fn advance_min_offset(queue: &BatchQueue, log_min: u64) -> Result<(), StoreError> {
        let _writing = queue.writing.lock();
        queue.publish_bounds(log_min, queue.min.load(Ordering::Acquire))
    }
}

/// Whether `unit` is possible and may come directly after `last`.
pub(super) fn follows(last: Option<&BatchCqUnit>, unit: &BatchCqUnit) -> bool {
    let behind = |last: &BatchCqUnit| {
        unit.physical_offset > last.physical_offset && unit.base_offset >= last.next_offset()
    };
    unit.is_valid() && last.is_none_or(behind)
}

/// The result of one [`BatchQueue::append`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchAppendOutcome {
    /// Number of units that were added.
    pub written: usize,
    /// Number of units whose record, or a later one, is in the queue already.
    pub unchanged: usize,
    /// Number of refused units: not possible, or with queue offsets that were used before.
    pub refused: usize,
}

impl BatchQueue {
    /// Log offset of the last record; `None` for an empty queue.
    pub(crate) fn last_physical_offset(&self) -> Option<i64> {
        self.list.read().tail.last.map(|unit| unit.physical_offset)
    }

    /// Returns the last unit if it is across two sectors: a power loss may have left a mixture of two states.
    pub(crate) fn last_if_split(&self) -> Option<BatchCqUnit> {
        let BatchTail { end, last } = self.list.read().tail;
        let end = end % self.file_bytes();
        let end = if end == 0 { self.file_bytes() } else { end };
        last.filter(|_| (end - BATCH_UNIT_BYTES) / SECTOR_BYTES != (end - 1) / SECTOR_BYTES)
    }

    /// Appends `units`, which are in log order. A unit whose record is not after that of the last unit is already in
    /// the queue. After an error, any part may be written, and you can repeat the call.
    pub fn append(&self, units: &[BatchCqUnit]) -> Result<BatchAppendOutcome, StoreError> {
        self.home.writable("write queue units")?;
        let mut outcome = BatchAppendOutcome::default();
        let mut writing = self.writing.lock();
        let mut last = self.list.read().tail.last;
        let mut fresh = Vec::with_capacity(units.len());
        for unit in units {
            if last.is_some_and(|last| last.physical_offset >= unit.physical_offset) {
                outcome.unchanged += 1;
            } else if !follows(last.as_ref(), unit) {
                outcome.refused += 1;
            } else {
                fresh.push(*unit);
                last = Some(*unit);
            }
        }
        let mut remaining = fresh.as_slice();
        while !remaining.is_empty() {
            let position = self.list.read().tail.end;
            let space = self.file_bytes() - position % self.file_bytes();
            let (now, later) = remaining.split_at(remaining.len().min((space / BATCH_UNIT_BYTES) as usize));
            self.put(&mut writing, position, now)?;
            outcome.written += now.len();
            remaining = later;
        }
        Ok(outcome)
    }

    /// Writes units at `position`, all of them in one file, and publishes them to readers.
    fn put(&self, writing: &mut Writing, position: u64, units: &[BatchCqUnit]) -> Result<(), StoreError> {
        let (Some(first), Some(last)) = (units.first(), units.last()) else { return Ok(()) };
        let base = position - position % self.file_bytes();
        let bytes: Vec<u8> = units.iter().flat_map(BatchCqUnit::encode).collect();
        let named = self.list.read().bases.last() == Some(&base);
        if named {
            self.touch(writing, base);
            self.file(base)?
                .write_all_at(&bytes, position - base)
                .map_err(|source| self.io(base, "writing queue units", source))?;
        } else {
            let (staged, file) = self.home.stage(&self.folder())?;
            file.write_all_at(&bytes, 0).at(&staged, "writing queue units")?;
            self.home.make_folder(&self.folder())?;
            let path = self.path(base);
            self.touch(writing, base);
            self.home.files.vfs.rename_noreplace(&staged, &path).at(&path, "naming a queue file")?;
            self.home.mark_folder(&self.folder());
        }
        let starts = {
            let mut list = self.list.write();
            if !named {
                list.bases.push(base);
            }
            list.tail.end = position + bytes.len() as u64;
            list.tail.last.replace(*last).is_none()
        };
        if starts {
            self.min.store(first.base_offset, Ordering::Release);
        }
        self.physical_end.store(last.physical_end(), Ordering::Release);
        self.committed.store(last.next_offset(), Ordering::Release);
        Ok(())
    }

    /// Appends units to `out`, each with the queue offset of its first message. It takes at most `max_units` units
    /// whose queue offset is at least `from` and whose records are before log offset `log_end`.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if units are not possible or not in order.
    pub fn read(
        &self,
        from: i64,
        max_units: usize,
        log_end: u64,
        out: &mut Vec<(i64, CqUnit)>,
    ) -> Result<(), StoreError> {
        self.read_units(from, max_units, log_end, |unit| {
            let BatchCqUnit { physical_offset, size, tags_code, base_offset, .. } = *unit;
            out.push((base_offset, CqUnit { physical_offset, size, tags_code }));
        })
    }

    /// Like [`Self::read`], with the complete units.
    ///
    /// # Errors
    /// Those of [`Self::read`].
    pub fn read_units(
        &self,
        from: i64,
        max_units: usize,
        log_end: u64,
        visit: impl FnMut(&BatchCqUnit),
    ) -> Result<(), StoreError> {
        let mut list = self.list.read().clone();
        if log_end < u64::MAX {
            list.tail.end = self.search(&list, |unit| (unit.physical_offset as u64) < log_end)?;
        }
        let start = self.first_from(&list, from.max(self.min_offset()))?;
        let end =
            list.tail.end.min(start.saturating_add((max_units as u64).saturating_mul(BATCH_UNIT_BYTES)));
        self.walk(start..end, visit)
    }

    /// Returns the position of the first unit whose queue offset is at least `from`.
    ///
    /// A binary search trusts each unit that it reads. If the found unit does not continue the one before it, all units
    /// before it are checked.
    fn first_from(&self, list: &BatchFiles, from: i64) -> Result<u64, StoreError> {
        let found = self.search(list, |unit| unit.base_offset < from)?;
        if found == list.start() {
            return Ok(found);
        }
        let before = self.unit_at(found - BATCH_UNIT_BYTES)?;
        // A reader of a part of the queue has no maximum to compare with.
        let next = if found < list.tail.end { self.unit_at(found)?.base_offset } else { list.max() };
        if before.next_offset() != next {
            self.walk(list.start()..found, |_| ())?;
        }
        Ok(found)
    }

    /// Calls `visit` for the units of `range`, which must be possible and in order.
    fn walk(&self, range: Range<u64>, mut visit: impl FnMut(&BatchCqUnit)) -> Result<(), StoreError> {
        let mut last: Option<BatchCqUnit> = None;
        let mut position = range.start;
        while position < range.end {
            let base = position - position % self.file_bytes();
            let end =
                range.end.min(base + self.file_bytes()).min(position + UNITS_AT_ONCE * BATCH_UNIT_BYTES);
            let mut bytes = vec![0; (end - position) as usize];
            self.file(base)?
                .read_exact_at(&mut bytes, position - base)
                .map_err(|source| self.io(base, "reading queue units", source))?;
            for unit in BatchCqUnit::decode_all(&bytes) {
                if !follows(last.as_ref(), &unit) {
                    let reason = "no possible unit, or a unit out of order";
                    return Err(StoreError::corrupt(&self.path(base), position - base, reason.to_owned()));
                }
                visit(&unit);
                last = Some(unit);
                position += BATCH_UNIT_BYTES;
            }
        }
        Ok(())
    }

    /// Returns the queue offset of the first message in the record that contains the message at `offset`; `offset`
    /// itself if no record does.
    pub fn start_of(&self, offset: i64) -> Result<i64, StoreError> {
        let list = self.list.read().clone();
        let position = self.search(&list, |unit| unit.next_offset() <= offset)?;
        if position >= list.tail.end {
            return Ok(offset);
        }
        Ok(self.unit_at(position)?.base_offset.min(offset))
    }

    /// Returns the position of the first unit for which `before` is false; the end if none. `before` must be true up to
    /// some position and false after it. Invalid units count as false: a stop may have left anything after the synced
    /// part.
    pub(super) fn search(
        &self,
        list: &BatchFiles,
        before: impl Fn(&BatchCqUnit) -> bool,
    ) -> Result<u64, StoreError> {
        let start = list.start();
        let (mut low, mut high) = (0, list.tail.end.saturating_sub(start) / BATCH_UNIT_BYTES);
        while low < high {
            let middle = low + (high - low) / 2;
            let unit = self.unit_at(start + middle * BATCH_UNIT_BYTES)?;
            if unit.is_valid() && before(&unit) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(start + low * BATCH_UNIT_BYTES)
    }

    /// Reads the unit at `position`, whose file exists.
    pub(super) fn unit_at(&self, position: u64) -> Result<BatchCqUnit, StoreError> {
        let base = position - position % self.file_bytes();
        let mut bytes = [0; BATCH_CQ_UNIT_BYTES];
        self.file(base)?
            .read_exact_at(&mut bytes, position - base)
            .map_err(|source| self.io(base, "reading queue units", source))?;
        Ok(BatchCqUnit::decode(&bytes))
    }

    /// Reads the last unit of the file `base`, which is full.
    fn last_unit_of(&self, base: u64) -> Result<BatchCqUnit, StoreError> {
        self.unit_at(base + self.file_bytes() - BATCH_UNIT_BYTES)
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.home.layout.file_bytes()
    }
}
