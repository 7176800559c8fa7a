//! Reads the records of one pair of compaction files, in ascending queue offset.
//!
//! Owns the reads of files from any source: a running broker, a killed one, or mqstore. Never writes. Like RocketMQ, it
//! follows the sparse queue as long as its units match their records:
//!
//! ```text
//! queue  [p0 s0 .. q0] [p1 s1 .. q1] [end marker] 0 0 0 ...      units: position, size, queue offset
//! log    record q0 | record q1 | blank or zeros or end of file
//! ```
//!
//! * The run of units ends at the first invalid one, and at the first that does not ascend: units of a killed run can
//!   follow in a longer old file.
//! * If a unit and the log disagree, and a complete record starts where the last one ended, the log is right: a broker
//!   stopped between its switch of log and queue. The file is then read record by record. If no complete record starts
//!   there, the file is damaged, and the read fails.
//! * A file without a valid unit is also read record by record.
//! * Files have their full length from the start. If a unit that ascends points after the end of the log file, that
//!   file was truncated, and a read fails where its records are missing.
//! * A queue file has room for an end marker after its last unit. If valid units fill a file, it was truncated. If the
//!   run ends at bytes that are neither zeros nor an end marker, a unit is damaged. In both cases, the records after the
//!   last good unit take the place of the units.
//!
//! PHYSICALOFFSET must be the record's own position. A property CRC is not checked, because RocketMQ changes
//! PHYSICALOFFSET without a new CRC.
//!
//! Source: `SparseConsumeQueue#recover`, `CompactionLog#getCompactionFile`.

use std::path::Path;
use std::sync::Arc;

use mqstore_format::{
    BATCH_CQ_UNIT_BYTES, BLANK_HEADER_BYTES, BatchCqUnit, CrcCheck, END_MARKER, Peek, RecordView, peek,
};
use mqstore_io::VfsFile;

use super::folder::{DataFile, FilePair, open_listed};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;

/// Number of units in one read of a queue file.
const CHUNK_UNITS: usize = 4096;

/// Bytes of the first read of a log file.
const FIRST_WINDOW_BYTES: usize = 64 << 10;

/// Bytes of later reads.
const WINDOW_BYTES: usize = 1 << 20;

/// Range of the queue offset in a record.
const QUEUE_OFFSET: std::ops::Range<usize> = 20..28;

/// The result of opening files that were listed before.
#[derive(Debug)]
pub(crate) enum OpenOutcome<T> {
    /// The files are unchanged.
    Same(T),
    /// A file was replaced or removed since; list them again.
    Moved,
}

/// The run of valid units at the start of a queue file.
#[derive(Debug, Default)]
pub(crate) struct UnitRun {
    pub(crate) units: Vec<BatchCqUnit>,
    /// If the next unit points after the end of the log file: the length that the log file must have.
    pub(crate) needed_bytes: Option<u64>,
    /// Whether the file ends after these units, so that later ones were cut off.
    pub(crate) is_cut: bool,
    /// Whether the next unit is damaged, or the log file was truncated.
    pub(crate) is_broken: bool,
}

/// Reads the run of valid units at the start of a queue file; `None` if the file was replaced.
pub(crate) fn read_units(
    files: &StoreFiles,
    queue: &DataFile,
    log_bytes: u64,
) -> Result<Option<UnitRun>, StoreError> {
    let Some(file) = open_listed(files, queue)? else {
        return Ok(None);
    };
    let mut units: Vec<BatchCqUnit> = Vec::new();
    let mut chunk = vec![0; CHUNK_UNITS * BATCH_CQ_UNIT_BYTES];
    let mut position = 0;
    while position < queue.len {
        let len = (queue.len - position).min(chunk.len() as u64) as usize;
        let part = chunk.get_mut(..len).unwrap_or_default();
        file.read_exact_at(part, position).at(&queue.path, "reading sparse queue entries")?;
        for bytes in part.as_chunks::<BATCH_CQ_UNIT_BYTES>().0 {
            let unit = BatchCqUnit::decode(bytes);
            let Some(end) = end_of_next(&unit, units.last(), queue.base) else {
                let is_end = unit == END_MARKER || bytes.iter().all(|byte| *byte == 0);
                return Ok(Some(UnitRun { units, is_broken: !is_end, ..UnitRun::default() }));
            };
            if end > log_bytes {
                let needed_bytes = Some(end);
                return Ok(Some(UnitRun { units, needed_bytes, is_broken: true, is_cut: false }));
            }
            units.push(unit);
        }
        position += len as u64;
    }
    Ok(Some(UnitRun { units, is_cut: true, ..UnitRun::default() }))
}

/// Returns the end of the record of `unit`, from the start of its log file. `None` if the unit is not valid, does not
/// ascend from `last`, or points before the file.
fn end_of_next(unit: &BatchCqUnit, last: Option<&BatchCqUnit>, base: u64) -> Option<u64> {
    let start = u64::try_from(unit.physical_offset).ok()?.checked_sub(base)?;
    let end = start.checked_add(u64::try_from(unit.size).ok()?)?;
    let ascends = last.is_none_or(|last| {
        unit.base_offset > last.base_offset
            && unit.physical_offset >= last.physical_offset.saturating_add(i64::from(last.size))
    });
    (unit.is_valid() && ascends).then_some(end)
}

/// Walks one pair of files; see the module's text.
#[derive(Debug)]
pub(crate) struct PairCursor {
    topic: String,
    queue_id: i32,
    log: DataFile,
    units: Vec<BatchCqUnit>,
    /// The length that the log file must have, if it was truncated.
    needed_bytes: Option<u64>,
    next_unit: usize,
    by_log: bool,
    position: u64,
    last_offset: i64,
    from_offset: i64,
    window: ReadBuffer,
}

impl PairCursor {
    /// Opens both files of `pair`, to read records with a queue offset of at least `from_offset`.
    pub(crate) fn open(
        files: &StoreFiles,
        pair: &FilePair,
        topic: &str,
        queue_id: i32,
        from_offset: i64,
    ) -> Result<OpenOutcome<Self>, StoreError> {
        let Some(file) = open_listed(files, &pair.log)? else {
            return Ok(OpenOutcome::Moved);
        };
        let UnitRun { units, needed_bytes, is_cut, is_broken } = match &pair.queue {
            Some(queue) => match read_units(files, queue, pair.log.len)? {
                Some(run) => run,
                None => return Ok(OpenOutcome::Moved),
            },
            None => UnitRun::default(),
        };
        let mut cursor = Self {
            topic: topic.to_owned(),
            queue_id,
            log: pair.log.clone(),
            next_unit: 0,
            by_log: units.is_empty() && needed_bytes.is_none(),
            units,
            needed_bytes,
            position: 0,
            last_offset: -1,
            from_offset,
            window: ReadBuffer { file, buffer: Vec::new(), start: 0 },
        };
        if (is_cut || is_broken) && !cursor.by_log {
            cursor.add_units_of_log()?;
        }
        cursor.next_unit = cursor.units.partition_point(|unit| unit.base_offset < from_offset);
        if let Some(before) = cursor.next_unit.checked_sub(1)
            && cursor.is_wrong(before)?
        {
            cursor.next_unit = 0;
        }
        Ok(OpenOutcome::Same(cursor))
    }

    /// Adds a unit for each record after the last good unit.
    fn add_units_of_log(&mut self) -> Result<(), StoreError> {
        self.drop_wrong_last_unit()?;
        let (mut start, offset) = self.place_after(self.units.len());
        self.last_offset = offset;
        while let Ok((size, queue_offset)) = self.check(start, None)? {
            // The log continues, so the unit is wrong, and not the length of the log.
            self.needed_bytes = None;
            let place = (self.log.base + start) as i64;
            self.units.push(BatchCqUnit::new(place, size as i32, 0, 0, queue_offset, 1));
            self.last_offset = queue_offset;
            start += size as u64;
        }
        self.last_offset = -1;
        Ok(())
    }

    /// Drops the last unit if it is wrong. Returns whether it was.
    fn drop_wrong_last_unit(&mut self) -> Result<bool, StoreError> {
        let Some(last) = self.units.len().checked_sub(1) else { return Ok(false) };
        let is_wrong = self.is_wrong(last)?;
        if is_wrong {
            self.units.pop();
        }
        Ok(is_wrong)
    }

    /// Whether a unit does not match its record, and the log has a whole record after that of the unit before it.
    fn is_wrong(&mut self, number: usize) -> Result<bool, StoreError> {
        let Some(unit) = self.units.get(number).copied() else { return Ok(false) };
        if self.check(self.place_of(&unit).0, Some(&unit))?.is_ok() {
            return Ok(false);
        }
        let (start, offset) = self.place_after(number);
        let before = std::mem::replace(&mut self.last_offset, offset);
        let found = self.check(start, None)?;
        self.last_offset = before;
        let Ok((size, found)) = found else { return Ok(false) };
        let has_same_place = start == self.place_of(&unit).0 && i64::from(unit.size) == size as i64;
        // Unit and record differ in the offset, and a damaged offset of a record is usually too large.
        Ok(!has_same_place || found < unit.base_offset || self.is_sealed(start, size)?)
    }

    /// Whether a checksum covers the whole record at `start`, and is correct. RocketMQ moves records without a new one.
    fn is_sealed(&mut self, start: u64, size: usize) -> Result<bool, StoreError> {
        let bytes = self.window.bytes(&self.log.path, self.log.len, start, size)?;
        let record = bytes.and_then(|bytes| RecordView::decode(bytes).ok());
        let checks = CrcCheck { body: false, property: true };
        Ok(record.is_some_and(|record| record.has_property_crc() && record.check_crc(checks).is_ok()))
    }

    /// Returns the start and the end of a unit's record in the log file.
    fn place_of(&self, unit: &BatchCqUnit) -> (u64, u64) {
        let start = (unit.physical_offset as u64).saturating_sub(self.log.base);
        (start, start.saturating_add(unit.size.max(0).unsigned_abs().into()))
    }

    /// Returns the position in the log file after the records of the first units, and the offset of the last of them.
    fn place_after(&self, units: usize) -> (u64, i64) {
        let last = units.checked_sub(1).and_then(|last| self.units.get(last));
        last.map_or((0, -1), |unit| (self.place_of(unit).1, unit.base_offset))
    }

    /// Returns the first valid unit of the queue file.
    pub(crate) fn first_unit(&self) -> Option<&BatchCqUnit> {
        self.units.first()
    }

    /// Returns the last valid unit of the queue file.
    pub(crate) fn last_unit(&self) -> Option<&BatchCqUnit> {
        self.units.last()
    }

    /// Returns the last valid unit of the queue file, or what it should be according to the log.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if the log file was truncated.
    pub(crate) fn last_unit_checked(&mut self) -> Result<Option<&BatchCqUnit>, StoreError> {
        self.check_length()?;
        if self.drop_wrong_last_unit()? {
            self.add_units_of_log()?;
        }
        Ok(self.last_unit())
    }

    /// Returns an error if the log file was truncated.
    fn check_length(&self) -> Result<(), StoreError> {
        let Some(needed) = self.needed_bytes else { return Ok(()) };
        let reason = format!(
            "the file ends here, and its queue file has records up to byte {needed}: the file was truncated; copy it \
             back, or compact the topic again while the log has its messages"
        );
        Err(StoreError::corrupt(&self.log.path, self.log.len, reason))
    }

    /// Returns the next record, or `None` at the end of the file.
    pub(crate) fn next_record(&mut self) -> Result<Option<RecordView<'_>>, StoreError> {
        let Some((position, size)) = self.advance()? else {
            return Ok(None);
        };
        let path = &self.log.path;
        let bytes = self.window.bytes(path, self.log.len, position, size)?.unwrap_or_default();
        RecordView::decode(bytes).map(Some).map_err(|error| StoreError::format(path, position, &error))
    }

    /// Returns the queue offset of the last record, found by reading all records.
    pub(crate) fn last_by_log(&mut self) -> Result<Option<i64>, StoreError> {
        let mut last = None;
        while let Some(record) = self.next_record()? {
            last = Some(record.queue_offset);
        }
        Ok(last)
    }

    fn advance(&mut self) -> Result<Option<(u64, usize)>, StoreError> {
        loop {
            let expected = if self.by_log { None } else { self.units.get(self.next_unit).copied() };
            if expected.is_none() && !self.by_log {
                let checked = self.check_length();
                // A caller that skips the damage continues with the next file.
                self.needed_bytes = None;
                return checked.map(|()| None);
            }
            let start = expected.map_or(self.position, |unit| self.place_of(&unit).0);
            match self.check(start, expected.as_ref())? {
                Ok((size, queue_offset)) => {
                    self.next_unit += 1;
                    self.position = start + size as u64;
                    self.last_offset = queue_offset;
                    if queue_offset >= self.from_offset {
                        return Ok(Some((start, size)));
                    }
                }
                Err(_) if expected.is_none() => return Ok(None),
                Err(reason) => {
                    // The queue and the log disagree; the log is right if it has a complete record here.
                    if self.check(self.position, None)?.is_err() || self.is_alone(start)? {
                        // A caller that skips the damage continues with the next unit.
                        self.next_unit += 1;
                        self.position = expected.map_or(start, |unit| self.place_of(&unit).1);
                        return Err(StoreError::corrupt(&self.log.path, start, reason));
                    }
                    self.by_log = true;
                }
            }
        }
    }

    /// Whether the record at `start` has the place and the size of the next unit, and only the two offsets differ, and
    /// the units before and after it match their records: then the record is damaged, unless its checksum is right.
    fn is_alone(&mut self, start: u64) -> Result<bool, StoreError> {
        let Some(unit) = self.units.get(self.next_unit).copied() else { return Ok(false) };
        let (place, end) = self.place_of(&unit);
        if place != self.position || place != start {
            return Ok(false);
        }
        let Ok((size, _)) = self.check(start, None)? else { return Ok(false) };
        let has_same_size = start + size as u64 == end;
        if !has_same_size || self.is_sealed(start, size)? {
            return Ok(false);
        }
        match self.units.get(self.next_unit + 1).copied() {
            Some(next) => Ok(self.check(self.place_of(&next).0, Some(&next))?.is_ok()),
            None => Ok(self.next_unit > 0),
        }
    }

    /// Checks the record at `start` against `expected`, or without it, that offsets ascend. The inner error is the
    /// reason why there is no such record.
    fn check(
        &mut self,
        start: u64,
        expected: Option<&BatchCqUnit>,
    ) -> Result<Result<(usize, i64), String>, StoreError> {
        let path = &self.log.path;
        let Some(head) = self.window.bytes(path, self.log.len, start, BLANK_HEADER_BYTES)? else {
            return Ok(Err("the file ends here".to_owned()));
        };
        let Ok(Peek::Record { size, .. }) = peek(head) else {
            return Ok(Err("a queue unit points here, and no record starts here".to_owned()));
        };
        if expected.is_some_and(|unit| i64::from(unit.size) != i64::from(size)) {
            return Ok(Err(format!("the record has {size} bytes; its queue unit has another size")));
        }
        let Some(bytes) = self.window.bytes(path, self.log.len, start, size as usize)? else {
            return Ok(Err(format!("the file ends within a record of {size} bytes")));
        };
        let view = match RecordView::decode(bytes) {
            Ok(view) => view,
            Err(error) => return Ok(Err(error.to_string())),
        };
        if let Err(error) = view.check_crc(CrcCheck { body: true, property: false }) {
            return Ok(Err(error.to_string()));
        }
        let own_place = view.physical_offset == (self.log.base + start) as i64;
        let own_queue = view.topic == self.topic && view.queue_id == self.queue_id;
        let in_order = match expected {
            Some(unit) => view.queue_offset == unit.base_offset,
            None => view.queue_offset > self.last_offset,
        };
        if own_place && own_queue && in_order {
            return Ok(Ok((bytes.len(), view.queue_offset)));
        }
        Ok(Err(format!(
            "the record has position {}, queue {}/{} and offset {}",
            view.physical_offset, view.topic, view.queue_id, view.queue_offset
        )))
    }
}

/// The bytes of the last read of a file.
#[derive(Debug)]
struct ReadBuffer {
    file: Arc<dyn VfsFile>,
    buffer: Vec<u8>,
    start: u64,
}

impl ReadBuffer {
    /// Returns `len` bytes at `position`; `None` if they are past `end`, the file's length.
    fn bytes(
        &mut self,
        path: &Path,
        end: u64,
        position: u64,
        len: usize,
    ) -> Result<Option<&[u8]>, StoreError> {
        if position.checked_add(len as u64).is_none_or(|stop| stop > end) {
            return Ok(None);
        }
        let held =
            position.checked_sub(self.start).filter(|skip| skip + len as u64 <= self.buffer.len() as u64);
        let skip = if let Some(skip) = held {
            skip as usize
        } else {
            let wanted = if self.buffer.is_empty() { FIRST_WINDOW_BYTES } else { WINDOW_BYTES };
            let size = (wanted.max(len) as u64).min(end - position) as usize;
            self.buffer.resize(size, 0);
            self.start = position;
            if let Err(error) = self.file.read_exact_at(&mut self.buffer, position) {
                self.buffer.clear();
                return Err(StoreError::io(path, "reading a compaction log", error));
            }
            0
        };
        Ok(self.buffer.get(skip..skip + len))
    }
}

/// Returns the queue offset of a queue file's last valid unit; see [`last_unit`].
pub(crate) fn last_offset(files: &StoreFiles, queue: &DataFile) -> Result<Option<i64>, StoreError> {
    Ok(last_unit(files, queue)?.map(|unit| unit.base_offset))
}

/// Finds a queue file's last valid unit by binary search; `None` without one, or without the file.
pub(crate) fn last_unit(files: &StoreFiles, queue: &DataFile) -> Result<Option<BatchCqUnit>, StoreError> {
    let Some(file) = open_listed(files, queue)? else {
        return Ok(None);
    };
    let mut bytes = [0; BATCH_CQ_UNIT_BYTES];
    let (mut low, mut high, mut last) = (0, queue.len / BATCH_CQ_UNIT_BYTES as u64, None);
    while low < high {
        let middle = low.midpoint(high);
        file.read_exact_at(&mut bytes, middle * BATCH_CQ_UNIT_BYTES as u64)
            .at(&queue.path, "reading sparse queue entries")?;
        let unit = BatchCqUnit::decode(&bytes);
        if unit.is_valid() {
            last = Some(unit);
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(last)
}

/// Returns the queue offset of a queue file's first unit; `None` if it is not valid, or without the file.
pub(crate) fn first_offset(files: &StoreFiles, queue: &DataFile) -> Result<Option<i64>, StoreError> {
    let Some(file) = open_listed(files, queue)? else {
        return Ok(None);
    };
    let mut bytes = [0; BATCH_CQ_UNIT_BYTES];
    if queue.len < bytes.len() as u64 {
        return Ok(None);
    }
    file.read_exact_at(&mut bytes, 0).at(&queue.path, "reading sparse queue entries")?;
    let unit = BatchCqUnit::decode(&bytes);
    Ok(unit.is_valid().then_some(unit.base_offset))
}

/// Returns the queue offset of a pair's first record, if the queue file and the log agree on it.
pub(crate) fn first_offset_in_both(files: &StoreFiles, pair: &FilePair) -> Result<Option<i64>, StoreError> {
    let Some(first) = pair.queue.as_ref().map_or(Ok(None), |queue| first_offset(files, queue))? else {
        return Ok(None);
    };
    let Some(log) = open_listed(files, &pair.log)? else { return Ok(None) };
    let mut head = [0; QUEUE_OFFSET.end];
    if pair.log.len < head.len() as u64 {
        return Ok(None);
    }
    log.read_exact_at(&mut head, 0).at(&pair.log.path, "reading a compaction log")?;
    Ok(Some(first).filter(|first| head.get(QUEUE_OFFSET) == Some(first.to_be_bytes().as_slice())))
}
