//! One batch queue: its bounds, reads and appends.
//!
//! Source: `BatchConsumeQueue#putMessagePositionInfoWrapper`, `#getBatchMsgIndexBuffer`.

use std::collections::BTreeSet;
use std::mem;
use std::ops::Range;
use std::path::PathBuf;

use mqstore_format::{BATCH_CQ_UNIT_BYTES, BatchCqUnit, CqUnit, offset_file_name};
use mqstore_io::sync::{Arc, AtomicI64, Mutex, Ordering, RwLock};
use mqstore_io::{VfsFile, switch};

use crate::consume_queue::context::QueueContext;
use crate::consume_queue::layout::BATCH_UNIT_BYTES;
use crate::consume_queue::waiters::QueueWaiters;
use mqstore_base::error::{IoContext, StoreError};

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
#[derive(Debug)]
pub struct BatchQueue {
    pub(super) home: Arc<QueueContext>,
    topic: Box<str>,
    queue_id: i32,
    pub(super) row: RwLock<BatchFileRow>,
    pub(super) min: AtomicI64,
    pub(super) max: AtomicI64,
    pub(super) writing: Mutex<Writing>,
    pub(super) damage: Mutex<Option<String>>,
    arrivals: QueueWaiters,
}

/// The files, and how far they are filled. Positions count bytes of units from the first unit that the queue ever had.
#[derive(Clone, Debug, Default)]
pub(super) struct BatchFileRow {
    /// Start position of each file, ascending and without gaps.
    pub(super) bases: Vec<u64>,
    /// One past the last unit.
    pub(super) end: u64,
    /// One past the queue offset of its last message.
    pub(super) max: i64,
}

impl BatchFileRow {
    /// Position of the first unit.
    pub(super) fn start(&self) -> u64 {
        self.bases.first().copied().unwrap_or(self.end)
    }
}

/// The state that only the writer uses.
#[derive(Debug, Default)]
pub(super) struct Writing {
    /// The last unit.
    pub(super) last: Option<BatchCqUnit>,
    /// Files with unsynced bytes.
    pub(super) dirty: BTreeSet<u64>,
    /// Named files without a unit.
    pub(super) vacant: BTreeSet<u64>,
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
    pub(super) fn new(home: &Arc<QueueContext>, topic: &str, queue_id: i32) -> Self {
        Self {
            home: Arc::clone(home),
            topic: topic.into(),
            queue_id,
            row: RwLock::default(),
            min: AtomicI64::new(0),
            max: AtomicI64::new(0),
            writing: Mutex::default(),
            damage: Mutex::default(),
            arrivals: QueueWaiters::default(),
        }
    }

    /// Name of the topic.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Id of the queue in its topic.
    pub fn queue_id(&self) -> i32 {
        self.queue_id
    }

    /// First queue offset that can be read: the first message of the first record. Equal to [`Self::max_offset`] for an
    /// empty queue.
    pub fn min_offset(&self) -> i64 {
        match self.max.load(Ordering::Acquire) {
            0 => self.first_offset(),
            max => self.min.load(Ordering::Acquire).min(max),
        }
    }

    /// One past the queue offset of the last message. In an empty queue it is 0, or the offset at which the queue
    /// continues after its topic was deleted.
    pub fn max_offset(&self) -> i64 {
        match self.max.load(Ordering::Acquire) {
            0 => self.first_offset(),
            max => max,
        }
    }

    /// Log offset at which the record of the last unit in the files ends; 0 without a unit.
    pub fn max_physical_end(&self) -> i64 {
        let last = self.writing.lock().last;
        last.map_or(0, |unit| unit.physical_offset.saturating_add(i64::from(unit.size)))
    }

    /// Whether no unit can be read.
    pub fn is_empty(&self) -> bool {
        self.max.load(Ordering::Acquire) == 0
    }

    /// Returns the offset of the first message of an empty queue.
    pub(super) fn first_offset(&self) -> i64 {
        self.home.floors.first_offset(&self.topic, self.queue_id)
    }

    /// Whether the record at log offset `physical_offset` was deleted with its topic.
    pub(super) fn is_deleted(&self, physical_offset: i64) -> bool {
        u64::try_from(physical_offset).is_ok_and(|at| at < self.home.floors.deleted(&self.topic))
    }

    /// Log offset of the last record; `None` for an empty queue.
    pub fn last_physical_offset(&self) -> Option<i64> {
        self.writing.lock().last.map(|unit| unit.physical_offset)
    }

    /// Returns the last unit if it is across two sectors: a power loss may have left a mixture of two states.
    pub fn last_if_split(&self) -> Option<BatchCqUnit> {
        let writing = self.writing.lock();
        let end = self.row.read().end % self.file_bytes();
        let end = if end == 0 { self.file_bytes() } else { end };
        writing.last.filter(|_| (end - BATCH_UNIT_BYTES) / SECTOR_BYTES != (end - 1) / SECTOR_BYTES)
    }

    /// Describes why units may be missing; [`Self::recover_bounds`] renews the answer.
    pub fn damaged(&self) -> Option<String> {
        self.damage.lock().clone()
    }

    /// Appends `units`, which are in log order. A unit whose record is not after that of the last unit is already in
    /// the queue. After an error, any part may be written, and you can repeat the call.
    pub fn append(&self, units: &[BatchCqUnit]) -> Result<BatchAppendOutcome, StoreError> {
        self.home.writable("write queue units")?;
        let mut outcome = BatchAppendOutcome::default();
        let mut writing = self.writing.lock();
        let mut last = writing.last;
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
        let mut rest = fresh.as_slice();
        while !rest.is_empty() {
            let position = self.row.read().end;
            let room = self.file_bytes() - position % self.file_bytes();
            let (now, later) = rest.split_at(rest.len().min((room / BATCH_UNIT_BYTES) as usize));
            self.put(&mut writing, position, now)?;
            outcome.written += now.len();
            rest = later;
        }
        Ok(outcome)
    }

    /// Writes units at `position`, all of them in one file, and publishes them to readers.
    fn put(&self, writing: &mut Writing, position: u64, units: &[BatchCqUnit]) -> Result<(), StoreError> {
        let (Some(first), Some(last)) = (units.first(), units.last()) else { return Ok(()) };
        let base = position - position % self.file_bytes();
        let bytes: Vec<u8> = units.iter().flat_map(BatchCqUnit::encode).collect();
        let named = self.row.read().bases.last() == Some(&base);
        if named {
            writing.dirty.insert(base);
            self.file(base)?
                .write_all_at(&bytes, position - base)
                .map_err(|source| self.io(base, "writing queue units", source))?;
        } else {
            let (staged, file) = self.home.stage(&self.folder())?;
            file.write_all_at(&bytes, 0).at(&staged, "writing queue units")?;
            self.home.make_folder(&self.folder())?;
            let path = self.path(base);
            writing.dirty.insert(base);
            self.home.files.vfs.rename_noreplace(&staged, &path).at(&path, "naming a queue file")?;
            self.home.mark_folder(&self.folder());
        }
        let starts = writing.last.is_none();
        writing.last = Some(*last);
        {
            let mut row = self.row.write();
            if !named {
                row.bases.push(base);
            }
            row.end = position + bytes.len() as u64;
            row.max = last.next_offset();
        }
        if starts {
            self.min.store(first.base_offset, Ordering::Release);
        }
        self.max.store(last.next_offset(), Ordering::Release);
        Ok(())
    }

    /// Like [`crate::consume_queue::ConsumeQueue::arrivals`].
    pub fn arrivals(&self) -> &QueueWaiters {
        &self.arrivals
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
        let mut row = self.row.read().clone();
        if log_end < u64::MAX {
            row.end = self.search(&row, |unit| (unit.physical_offset as u64) < log_end)?;
        }
        let start = self.first_from(&row, from.max(self.min_offset()))?;
        let end = row.end.min(start.saturating_add((max_units as u64).saturating_mul(BATCH_UNIT_BYTES)));
        self.walk(start..end, visit)
    }

    /// Returns the position of the first unit whose queue offset is at least `from`.
    ///
    /// A binary search trusts each unit that it reads. If the found unit does not continue the one before it, all units
    /// before it are checked.
    fn first_from(&self, row: &BatchFileRow, from: i64) -> Result<u64, StoreError> {
        let found = self.search(row, |unit| unit.base_offset < from)?;
        if found == row.start() {
            return Ok(found);
        }
        let before = self.unit_at(found - BATCH_UNIT_BYTES)?;
        // A reader of a part of the queue has no maximum to compare with.
        let next = if found < row.end { self.unit_at(found)?.base_offset } else { row.max };
        if before.next_offset() != next {
            self.walk(row.start()..found, |_| ())?;
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
        let row = self.row.read().clone();
        let position = self.search(&row, |unit| unit.next_offset() <= offset)?;
        if position >= row.end {
            return Ok(offset);
        }
        Ok(self.unit_at(position)?.base_offset.min(offset))
    }

    /// Returns the position of the first unit for which `before` is false; the end if none. `before` must be true up to
    /// some position and false after it. Invalid units count as false: a stop may have left anything after the synced
    /// part.
    pub(super) fn search(
        &self,
        row: &BatchFileRow,
        before: impl Fn(&BatchCqUnit) -> bool,
    ) -> Result<u64, StoreError> {
        let start = row.start();
        let (mut low, mut high) = (0, row.end.saturating_sub(start) / BATCH_UNIT_BYTES);
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

    /// Syncs the files with new units. After an error, the next flush syncs the rest.
    pub(super) fn flush_files(&self) -> Result<(), StoreError> {
        let mut dirty = mem::take(&mut self.writing.lock().dirty);
        while let Some(base) = dirty.first().copied() {
            let synced = self.file(base).and_then(|file| {
                switch::step("consume_queue.sync_batch_file", || file.sync_data())
                    .map_err(|source| self.io(base, "syncing a queue file", source))
            });
            if synced.is_err() && self.row.read().bases.contains(&base) {
                self.writing.lock().dirty.append(&mut dirty);
                return synced;
            }
            dirty.remove(&base);
        }
        Ok(())
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.home.layout.file_bytes()
    }

    /// Folder of the queue's files.
    pub(in crate::consume_queue) fn folder(&self) -> PathBuf {
        let mut folder = self.home.files.batch_consume_queue();
        folder.push(&*self.topic);
        folder.push(self.queue_id.to_string());
        folder
    }

    pub(super) fn path(&self, base: u64) -> PathBuf {
        self.folder().join(offset_file_name(base))
    }

    pub(super) fn file(&self, base: u64) -> Result<Arc<dyn VfsFile>, StoreError> {
        let path = self.path(base);
        self.home.cache.get(&path, self.home.access).at(&path, "opening a queue file")
    }

    pub(super) fn io(&self, base: u64, action: &'static str, source: std::io::Error) -> StoreError {
        StoreError::io(&self.path(base), action, source)
    }
}
