//! One queue of a tiered store: the files of its log and of its units, and the parts of the log that have units.
//!
//! The files of one kind follow each other: a file begins at the offset in its name, and the next one where it ends.
//! Names do not sort by this offset. Log and units expire on their own, so either of them can begin before the other.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_format::{
    BLANK_UNIT, CQ_UNIT_BYTES, CqUnit, RecordView, TIERED_LOG_DIR, TIERED_QUEUE_DIR, parse_tiered_file_name,
};
use mqstore_io::{Access, FileKind, Vfs, VfsFile};

use super::fault::{TieredFault, TieredFaultKind};
use super::layout::QueueFolder;
use crate::error::{IoContext, StoreError};
use crate::store_files::foreign_files::foreign_file;

/// Byte length of a unit.
pub(super) const UNIT_BYTES: u64 = CQ_UNIT_BYTES as u64;

/// Units that one call reads.
const UNITS_AT_ONCE: i64 = 4096;

/// Maximum bytes of a record that is read to learn about a queue or to move it.
pub(super) const MOST_RECORD_BYTES: u64 = 64 << 20;

/// Bytes that RocketMQ 5.1 and 5.2 write at the end of a full file.
const CODA_BYTES: u64 = 16;

/// A file of the log or of the units.
#[derive(Debug)]
pub(super) struct TieredFile {
    pub path: PathBuf,
    /// Offset of its first byte, in bytes of the queue's log or of its units.
    pub base: u64,
    /// Bytes before the next file.
    pub len: u64,
}

impl TieredFile {
    fn end(&self) -> u64 {
        self.base + self.len
    }
}

/// The records with units in one file of the log.
#[derive(Debug)]
pub(super) struct LogPart {
    pub path: PathBuf,
    /// As in [`TieredFile::base`].
    pub base: u64,
    /// The queue offsets of its records.
    pub offsets: Range<i64>,
    /// Position in the log of the queue at which the first of these records begins.
    pub start: u64,
    /// Position at which the last of them ends.
    pub stop: u64,
    /// Store time of the first record, in epoch milliseconds; at least that of the part before, so that log offsets of a
    /// queue ascend.
    pub stored_ms: i64,
    /// Log offset of the first record in the joined log.
    pub at: u64,
}

/// See the header of this module.
#[derive(Debug)]
pub(super) struct TieredQueue {
    pub topic: String,
    pub queue_id: i32,
    /// By base.
    pub log: Vec<TieredFile>,
    /// By base.
    pub units: Vec<TieredFile>,
    /// In the order of the log.
    pub parts: Vec<LogPart>,
    /// Bytes at the end of the log that no unit names.
    tail_bytes: u64,
    /// Whether its records contain several messages. RocketMQ stores such a record once for each of them.
    is_batched: bool,
}

impl TieredQueue {
    /// Lists the files of a queue and finds the records that have units.
    pub(super) fn load(
        vfs: &dyn Vfs,
        folder: QueueFolder,
        faults: &mut Vec<TieredFault>,
    ) -> Result<Self, StoreError> {
        let QueueFolder { topic, queue_id, path } = folder;
        let log = files(vfs, &path.join(TIERED_LOG_DIR), 1, faults)?;
        let units = files(vfs, &path.join(TIERED_QUEUE_DIR), UNIT_BYTES, faults)?;
        let mut queue =
            Self { topic, queue_id, log, units, parts: Vec::new(), tail_bytes: 0, is_batched: false };
        queue.find_parts(vfs).at(&path, "reading a queue of a tiered store")?;
        queue.find_dangling(&path, faults);
        if queue.is_batched {
            queue.parts.clear();
        }
        Ok(queue)
    }

    /// Returns the first readable queue offset and the offset after the last one; `None` without messages.
    pub(super) fn bounds(&self) -> Option<(i64, i64)> {
        Some((self.parts.first()?.offsets.start, self.parts.last()?.offsets.end))
    }

    /// Returns a note for the user about messages that are not read.
    pub(super) fn note(&self) -> Option<String> {
        let Self { topic, queue_id, tail_bytes, .. } = self;
        if self.is_batched {
            return Some(format!(
                "queue {queue_id} of topic {topic:?} is not read: its records contain several messages, and RocketMQ \
                 stored a copy of the record for each of them"
            ));
        }
        (*tail_bytes > CODA_BYTES).then(|| {
            format!(
                "queue {queue_id} of topic {topic:?}: the last {tail_bytes} bytes of its log have no units; RocketMQ does \
                 not read them, and copies these messages again"
            )
        })
    }

    fn find_parts(&mut self, vfs: &dyn Vfs) -> io::Result<()> {
        let (Some(first), Some(last)) = (self.units.first(), self.units.last()) else {
            self.tail_bytes = self.log.last().map_or(0, |file| file.len);
            return Ok(());
        };
        let all = number(first.base)..number(last.end());
        let mut reader = UnitReader::new(vfs, &self.units);
        for file in &self.log {
            let (base, end) = (file.base as i64, file.end() as i64);
            let from = reader.first_not(all.clone(), |unit| unit.physical_offset < base)?;
            let to = reader.first_not(from..all.end, |unit| unit.physical_end() <= end)?;
            let (Some(head), Some(tail)) = (reader.unit(from)?, reader.unit(to - 1)?) else { continue };
            let (start, stop) = (head.physical_offset, tail.physical_end());
            if from >= to || start < base || stop > end || start >= stop {
                continue;
            }
            let (start, stop) = (start.unsigned_abs(), stop.unsigned_abs());
            let record = first_record(vfs, file, &head)?;
            let seen = RecordView::decode(&record).ok();
            let before = self.parts.last().map_or(i64::MIN, |part| part.stored_ms);
            self.is_batched |= seen.as_ref().is_some_and(|record| record.sys_flag.inner_batch());
            self.parts.push(LogPart {
                path: file.path.clone(),
                base: file.base,
                offsets: from..to,
                start,
                stop,
                stored_ms: seen.map_or(before, |record| record.store_timestamp.max(before)),
                at: 0,
            });
        }
        // Units after the last record explain these bytes: they belong to an incomplete record.
        let read_to = self.parts.last().filter(|part| part.offsets.end == all.end).map(|part| part.stop);
        self.tail_bytes = match (self.log.last(), read_to) {
            (Some(file), Some(read_to)) => file.end().saturating_sub(read_to.max(file.base)),
            _ => 0,
        };
        Ok(())
    }

    /// Reports units from the first readable one on that have no record.
    fn find_dangling(&self, path: &Path, faults: &mut Vec<TieredFault>) {
        let Some(last) = self.units.last() else { return };
        // Units before the log have expired records.
        if self.log.iter().all(|file| file.len == 0) {
            return;
        }
        let begin = self.units.first().map(|file| number(file.base));
        let mut next = self.parts.first().map(|part| part.offsets.start).or(begin);
        let end = number(last.end());
        let ends = self.parts.iter().map(|part| part.offsets.clone());
        for range in ends.chain(std::iter::once(end..end)) {
            if let Some(from) = next.filter(|from| *from < range.start) {
                faults.push(TieredFault {
                    kind: TieredFaultKind::Dangling,
                    path: path.join(TIERED_QUEUE_DIR),
                    detail: format!(
                        "offsets {from} to {} (exclusive) have units but no records",
                        range.start
                    ),
                });
            }
            next = Some(range.end);
        }
    }

    /// Returns the units from `from` to `to` (exclusive) as they are in the joined queue. Units without a record there are
    /// blank.
    pub(super) fn joined_units(&self, vfs: &dyn Vfs, from: i64, to: i64) -> io::Result<Vec<CqUnit>> {
        let mut units = UnitReader::new(vfs, &self.units).read(from, to)?;
        for (offset, unit) in (from..).zip(&mut units) {
            *unit = self.joined_unit(offset, *unit).unwrap_or(BLANK_UNIT);
        }
        Ok(units)
    }

    fn joined_unit(&self, offset: i64, unit: CqUnit) -> Option<CqUnit> {
        let after = self.parts.partition_point(|part| part.offsets.end <= offset);
        let part = self.parts.get(after).filter(|part| part.offsets.contains(&offset))?;
        let (start, stop) = (unit.physical_offset.unsigned_abs(), unit.physical_end().unsigned_abs());
        if !unit.is_valid() || start < part.start || stop > part.stop {
            return None;
        }
        Some(CqUnit { physical_offset: (part.at + (start - part.start)) as i64, ..unit })
    }

    /// Returns the places of the records of `part` that have a byte from position `from` to position `to` (exclusive) of
    /// the log of the queue.
    pub(super) fn records(
        &self,
        vfs: &dyn Vfs,
        part: &LogPart,
        from: u64,
        to: u64,
    ) -> io::Result<Vec<Range<u64>>> {
        let mut reader = UnitReader::new(vfs, &self.units);
        let mut next = reader.first_not(part.offsets.clone(), |unit| unit.physical_end() <= from as i64)?;
        let (mut found, mut end): (Vec<Range<u64>>, u64) = (Vec::new(), part.start);
        while next < part.offsets.end {
            let upto = part.offsets.end.min(next + UNITS_AT_ONCE);
            for unit in reader.read(next, upto)? {
                let (start, stop) = (unit.physical_offset.unsigned_abs(), unit.physical_end().unsigned_abs());
                if unit.physical_offset >= to as i64 && unit.is_valid() {
                    return Ok(found);
                }
                // A damaged unit says nothing about the log.
                let fits = unit.is_valid() && start >= end && stop <= part.stop;
                if fits && stop > from && stop - start <= MOST_RECORD_BYTES {
                    end = stop;
                    found.push(start..stop);
                }
            }
            next = upto;
        }
        Ok(found)
    }
}

/// Returns the number of the unit at byte `at` of a queue's units.
fn number(at: u64) -> i64 {
    (at / UNIT_BYTES) as i64
}

/// Returns the bytes of the record of a unit; nothing if it is too long.
fn first_record(vfs: &dyn Vfs, file: &TieredFile, unit: &CqUnit) -> io::Result<Vec<u8>> {
    let len = u64::try_from(unit.size).unwrap_or(0);
    if len > MOST_RECORD_BYTES {
        return Ok(Vec::new());
    }
    let mut bytes = vec![0; len as usize];
    let at = unit.physical_offset.unsigned_abs() - file.base;
    vfs.open(&file.path, Access::Read)?.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}

/// Lists the files of one kind; a missing folder has none. Their lengths are multiples of `unit` bytes.
fn files(
    vfs: &dyn Vfs,
    folder: &Path,
    unit: u64,
    faults: &mut Vec<TieredFault>,
) -> Result<Vec<TieredFile>, StoreError> {
    let entries = match vfs.list(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.at(folder, "listing a queue of a tiered store")?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let name = entry.name.to_str().unwrap_or_default();
        let base = parse_tiered_file_name(name).filter(|base| base.is_multiple_of(unit));
        let is_file = entry.stat.kind == FileKind::File;
        match base.filter(|base| is_file && base.checked_add(entry.stat.len).is_some()) {
            Some(base) => {
                let len = entry.stat.len / unit * unit;
                found.push(TieredFile { path: folder.join(&entry.name), base, len });
            }
            None if foreign_file(name).is_some() => {}
            None => faults.push(TieredFault {
                kind: TieredFaultKind::Stray,
                path: folder.join(&entry.name),
                detail: "it is no file of a tiered store: the name must be a hash and an offset".to_owned(),
            }),
        }
    }
    found.sort_by_key(|file| file.base);
    let bases: Vec<u64> = found.iter().skip(1).map(|file| file.base).collect();
    for (file, next) in found.iter_mut().zip(bases) {
        if file.end() < next {
            let detail = format!("the file ends at {}, and the next one begins at {next}", file.end());
            faults.push(TieredFault { kind: TieredFaultKind::Gap, path: file.path.clone(), detail });
        }
        file.len = file.len.min(next - file.base);
    }
    Ok(found)
}

/// Reads units, and keeps the file of the last one open.
struct UnitReader<'a> {
    vfs: &'a dyn Vfs,
    files: &'a [TieredFile],
    open: Option<(usize, Arc<dyn VfsFile>)>,
}

impl<'a> UnitReader<'a> {
    fn new(vfs: &'a dyn Vfs, files: &'a [TieredFile]) -> Self {
        Self { vfs, files, open: None }
    }

    /// Returns the unit of a queue offset, if a file has it.
    fn unit(&mut self, offset: i64) -> io::Result<Option<CqUnit>> {
        let unit = self.read(offset, offset.saturating_add(1))?.pop();
        Ok(unit.filter(|unit| !unit.is_blank()))
    }

    /// Returns the units from `from` to `to` (exclusive); blank ones where no file has them.
    fn read(&mut self, from: i64, to: i64) -> io::Result<Vec<CqUnit>> {
        let mut units = Vec::new();
        let mut next = from;
        while next < to {
            let at = next.max(0).unsigned_abs() * UNIT_BYTES;
            let after = self.files.partition_point(|file| file.base <= at);
            let file = after.checked_sub(1).and_then(|number| Some((number, self.files.get(number)?)));
            let Some((number, file)) = file.filter(|(_, file)| next >= 0 && at < file.end()) else {
                let begin = self.files.get(after).map_or(to, |file| self::number(file.base));
                let blank = begin.clamp(next + 1, to) - next;
                units.extend(std::iter::repeat_n(BLANK_UNIT, blank as usize));
                next += blank;
                continue;
            };
            let count = (to - next).min(self::number(file.end() - at));
            let mut bytes = vec![0; count as usize * CQ_UNIT_BYTES];
            let (position, handle) = (at - file.base, self.file(number)?);
            handle.read_exact_at(&mut bytes, position)?;
            units.extend(CqUnit::decode_all(&bytes));
            next += count;
        }
        Ok(units)
    }

    fn file(&mut self, number: usize) -> io::Result<Arc<dyn VfsFile>> {
        if let Some((_, file)) = self.open.as_ref().filter(|(open, _)| *open == number) {
            return Ok(Arc::clone(file));
        }
        let path = self.files.get(number).map_or(Path::new(""), |file| file.path.as_path());
        let file = self.vfs.open(path, Access::Read)?;
        self.open = Some((number, Arc::clone(&file)));
        Ok(file)
    }

    /// Returns the first queue offset in `offsets` whose unit does not meet `meets`; the end if all of them do. Missing
    /// units meet it.
    fn first_not(&mut self, offsets: Range<i64>, meets: impl Fn(&CqUnit) -> bool) -> io::Result<i64> {
        let (mut low, mut high) = (offsets.start, offsets.end);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.unit(middle)?.is_none_or(|unit| meets(&unit)) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }
}
