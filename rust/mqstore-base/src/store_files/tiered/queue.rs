//! One queue of a tiered store: the files of its log and of its units, and the parts of the log that have units.
//!
//! The files of one kind follow each other: a file begins at the offset in its name, and the next one where it ends.
//! Names do not sort by this offset. Log and units expire on their own, so either of them can begin before the other.
//!
//! The records are the truth. A unit counts if it agrees with its neighbours and its record. If it does not, a walk
//! finds the records of this file of the log, and their queue offsets give the units. Only the first and the end of the
//! files of units say which messages RocketMQ has committed.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use mqstore_format::{
    BLANK_UNIT, CqUnit, MIN_RECORD_BYTES, TIERED_LOG_DIR, TIERED_QUEUE_DIR, TieredLog, parse_tiered_file_name,
};
use mqstore_io::{Access, FileKind, Vfs};

use super::fault::{TieredFault, TieredFaultKind};
use super::layout::{QueueFolder, TieredFile};
use super::units::{UNIT_BYTES, UnitReader, number};
use super::walk::{LogWalk, PlacedSlot, SlotMessage, WalkedPart, leads_to, records_in};
use crate::error::{IoContext, StoreError};
use crate::notes::Notes;
use crate::store_files::foreign_files::foreign_file;

/// Units that one call reads.
const UNITS_AT_ONCE: i64 = 4096;

/// Bytes that RocketMQ 5.1 and 5.2 write at the end of a full file.
const CODA_BYTES: u64 = 16;

/// The last unit of a queue whose records are all lost: before the joined log, like that of an expired record.
const LOST_UNIT: CqUnit = CqUnit { physical_offset: 0, size: MIN_RECORD_BYTES as i32, tags_code: 0 };

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
    /// The records as a walk finds them, once units did not agree with them.
    walked: OnceLock<WalkedPart>,
}

/// The first message of a file of the log.
#[derive(Clone, Copy, Debug)]
struct FirstMessage {
    queue_offset: i64,
    stored_ms: i64,
    is_batch: bool,
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
    /// The offset after the last message, if all records are lost.
    lost_end: Option<i64>,
    notes: Arc<Notes>,
}

impl TieredQueue {
    /// Lists the files of a queue and finds the records that have units.
    pub(super) fn load(
        vfs: &dyn Vfs,
        folder: QueueFolder,
        faults: &mut Vec<TieredFault>,
        notes: &Arc<Notes>,
    ) -> Result<Self, StoreError> {
        let QueueFolder { topic, queue_id, path } = folder;
        // RocketMQ commits the log first, so each unit of this list has its record in the next one.
        let units = files(vfs, &path.join(TIERED_QUEUE_DIR), UNIT_BYTES, faults)?;
        let log = files(vfs, &path.join(TIERED_LOG_DIR), 1, faults)?;
        let (parts, tail_bytes, is_batched, lost_end) = (Vec::new(), 0, false, None);
        let notes = Arc::clone(notes);
        let mut queue = Self { topic, queue_id, log, units, parts, tail_bytes, is_batched, lost_end, notes };
        queue.find_parts(vfs).at(&path, "reading a queue of a tiered store")?;
        if !queue.is_batched {
            queue.find_faults(vfs, &path, faults).at(&path, "reading a queue of a tiered store")?;
        }
        Ok(queue)
    }

    /// Returns the first readable queue offset and the offset after the last one; `None` without messages. If all
    /// records are lost, the last message counts.
    pub(super) fn bounds(&self) -> Option<(i64, i64)> {
        let parts = self.parts.first().zip(self.parts.last());
        let lost = self.lost_end.map(|end| (end - 1, end));
        parts.map(|(first, last)| (first.offsets.start, last.offsets.end)).or(lost)
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

    pub(super) fn tiered_log(&self) -> TieredLog<'_> {
        TieredLog { topic: &self.topic, queue_id: self.queue_id }
    }

    fn walk(&self, vfs: &dyn Vfs, path: &Path, base: u64, range: Range<u64>) -> io::Result<LogWalk<'_>> {
        Ok(LogWalk::new(self.tiered_log(), vfs.open(path, Access::Read)?, base, range))
    }

    /// Returns the queue offsets that RocketMQ has committed: all, if no file has units.
    fn committed(&self) -> Range<i64> {
        let files = self.units.first().zip(self.units.last());
        files.map_or(0..i64::MAX, |(first, last)| number(first.base)..number(last.end()))
    }

    fn find_parts(&mut self, vfs: &dyn Vfs) -> io::Result<()> {
        let mut firsts = Vec::new();
        for file in &self.log {
            firsts.push(self.first_message(vfs, file)?);
        }
        self.is_batched = firsts.iter().flatten().any(|first| first.is_batch);
        if self.is_batched {
            return Ok(());
        }
        let mut parts: Vec<LogPart> = Vec::new();
        for (at, (file, first)) in self.log.iter().zip(&firsts).enumerate() {
            let next = self.log.get(at + 1).filter(|next| next.base == file.end());
            let next = next.and(firsts.get(at + 1).copied().flatten()).map(|next| next.queue_offset);
            let before = parts.last().map_or((0, i64::MIN), |part| (part.offsets.end, part.stored_ms));
            let Some(first) = first else { continue };
            if let Some(part) = self.part(vfs, file, *first, next, before)? {
                parts.push(part);
            }
        }
        self.parts = parts;
        let read_to = self.parts.last().filter(|part| part.offsets.end == self.committed().end);
        // Units after the last record explain these bytes: they belong to an incomplete record.
        let read_to = match read_to {
            Some(part) => Some(part.stop),
            None if self.committed().is_empty() => Some(0),
            None => None,
        };
        self.tail_bytes = match (self.log.first(), self.log.last(), read_to) {
            (Some(first), Some(last), Some(read_to)) => last.end().saturating_sub(read_to.max(first.base)),
            _ => 0,
        };
        Ok(())
    }

    /// Finds the first message of a file of the log.
    fn first_message(&self, vfs: &dyn Vfs, file: &TieredFile) -> io::Result<Option<FirstMessage>> {
        let mut walk = self.walk(vfs, &file.path, file.base, file.base..file.end())?;
        let mut reader = UnitReader::new(vfs, &self.units);
        let (mut first, mut before, mut slots): (Option<FirstMessage>, _, i64) = (None, None, 0);
        while let Some(slot) = walk.next_slot()? {
            if let Some(record) = slot.record {
                let begin = record.queue_offset.saturating_sub(slots).max(0);
                let found = first.get_or_insert(FirstMessage {
                    queue_offset: begin,
                    stored_ms: record.stored_ms,
                    is_batch: record.is_batch,
                });
                let follows = before == Some(record.queue_offset - 1);
                if record.is_batch
                    || follows
                    || reader.unit(record.queue_offset)?.is_some_and(|unit| slot.is_at(&unit))
                {
                    found.queue_offset = begin;
                    break;
                }
            }
            before = slot.record.map(|record| record.queue_offset);
            slots += 1;
        }
        Ok(first)
    }

    /// Returns the part of the log in `file`, whose first message is `first` and after which the file with message
    /// `next` follows. `before` are the end of the part before and its store time.
    fn part(
        &self,
        vfs: &dyn Vfs,
        file: &TieredFile,
        first: FirstMessage,
        next: Option<i64>,
        before: (i64, i64),
    ) -> io::Result<Option<LogPart>> {
        let committed = self.committed();
        let most = first.queue_offset.saturating_add_unsigned(records_in(file.len));
        let next = next.filter(|next| (first.queue_offset..=most).contains(next));
        let from = first.queue_offset.max(committed.start).max(before.0);
        if next.unwrap_or(i64::MAX).min(committed.end) <= from {
            // All its units have expired.
            return Ok(None);
        }
        let found = match self.places_by_units(vfs, file, first.queue_offset, from, next)? {
            None => self.places_by_walk(vfs, file, first.queue_offset, from, next)?,
            found => found,
        };
        Ok(found.map(|(end, places)| LogPart {
            path: file.path.clone(),
            base: file.base,
            offsets: from..end,
            start: places.start,
            stop: places.end,
            stored_ms: first.stored_ms.max(before.1),
            at: 0,
            walked: OnceLock::new(),
        }))
    }

    /// Returns the offset after the last message in `file`, and the positions of the messages from `from` on, if units
    /// show them. The first message of the file is `first`; `next` follows.
    fn places_by_units(
        &self,
        vfs: &dyn Vfs,
        file: &TieredFile,
        first: i64,
        from: i64,
        next: Option<i64>,
    ) -> io::Result<Option<(i64, Range<u64>)>> {
        let committed = self.committed().end;
        let is_last = self.log.last().is_some_and(|last| last.base == file.base);
        let end = next.or(is_last.then_some(committed)).map(|end| end.min(committed));
        let Some(end) = end.filter(|end| from < *end) else { return Ok(None) };
        let log = vfs.open(&file.path, Access::Read)?;
        let mut reader = UnitReader::new(vfs, &self.units);
        let mut agreed = |offset| {
            let Some(unit) = reader.unit(offset)? else { return Ok(None) };
            let place = unit.physical_offset.unsigned_abs()..unit.physical_end().unsigned_abs();
            let is_inside = unit.is_valid() && place.start >= file.base && place.end <= file.end();
            let agrees = is_inside && leads_to(self.tiered_log(), (&*log, file.base), &unit, offset)?;
            Ok::<_, io::Error>(agrees.then_some(place))
        };
        let Some(tail) = agreed(end - 1)? else { return Ok(None) };
        let start = if from == first { Some(file.base) } else { agreed(from)?.map(|head| head.start) };
        // Another record must not follow, unless it has no unit.
        let is_end = next != Some(end) || file.end() - tail.end < MIN_RECORD_BYTES as u64;
        Ok(start.filter(|start| is_end && *start < tail.end).map(|start| (end, start..tail.end)))
    }

    /// Like [`Self::places_by_units`], by a walk of the file.
    fn places_by_walk(
        &self,
        vfs: &dyn Vfs,
        file: &TieredFile,
        first: i64,
        from: i64,
        next: Option<i64>,
    ) -> io::Result<Option<(i64, Range<u64>)>> {
        let slots = self.walk(vfs, &file.path, file.base, file.base..file.end())?.slots()?;
        let mut reader = UnitReader::new(vfs, &self.units);
        let walked = WalkedPart::place(&slots, first, next, |offset| reader.unit(offset))?;
        let mut end = walked.end().min(self.committed().end).min(next.unwrap_or(i64::MAX));
        // The file ends within the record of this unit.
        let is_cut = |slot: &PlacedSlot, unit: &CqUnit| {
            slot.message == SlotMessage::Damaged
                && unit.physical_offset == slot.start as i64
                && unit.physical_end() > file.end() as i64
        };
        while let Some((slot, unit)) = walked.slot(end - 1).zip(reader.unit(end - 1)?)
            && is_cut(slot, &unit)
        {
            end -= 1;
        }
        let head = (from..end).find_map(|offset| walked.slot(offset));
        let tail = (from..end).rev().find_map(|offset| walked.slot(offset));
        let start = if from == first { Some(file.base) } else { head.map(|slot| slot.start) };
        Ok(start
            .zip(tail)
            .filter(|(start, tail)| *start < tail.end)
            .map(|(start, tail)| (end, start..tail.end)))
    }

    /// Reports units that have no record, and a missing folder of units.
    fn find_faults(&mut self, vfs: &dyn Vfs, path: &Path, faults: &mut Vec<TieredFault>) -> io::Result<()> {
        let (folder, offset) = (path.join(TIERED_QUEUE_DIR), None);
        if self.units.is_empty() {
            if !self.parts.is_empty() {
                let detail = "it has no file; the messages are found in the log".to_owned();
                faults.push(TieredFault { kind: TieredFaultKind::Gap, path: folder, offset, detail });
            }
            return Ok(());
        }
        let committed = self.committed();
        // Units before the log have expired records.
        let log_begin = self.log.first().map_or(0, |file| file.base as i64);
        let before = committed.start..self.parts.first().map_or(committed.end, |part| part.offsets.start);
        let mut reader = UnitReader::new(vfs, &self.units);
        let mut next = reader.first_not(before, |unit| unit.physical_offset < log_begin)?;
        let ends = self.parts.iter().map(|part| part.offsets.clone());
        for range in ends.chain(std::iter::once(committed.end..committed.end)) {
            if next < range.start {
                faults.push(TieredFault {
                    kind: TieredFaultKind::Dangling,
                    path: folder.clone(),
                    offset,
                    detail: format!(
                        "offsets {next} to {} (exclusive) have units but no records",
                        range.start
                    ),
                });
                self.lost_end = self.parts.is_empty().then_some(range.start);
            }
            next = range.end;
        }
        Ok(())
    }

    /// Returns the units from `from` to `to` (exclusive) as they are in the joined queue. Units without a record there
    /// are blank.
    pub(super) fn joined_units(&self, vfs: &dyn Vfs, from: i64, to: i64) -> io::Result<Vec<CqUnit>> {
        let mut units = vec![BLANK_UNIT; usize::try_from(to - from).unwrap_or(0)];
        let lost = self.lost_end.and_then(|end| usize::try_from(end - 1 - from).ok());
        if let Some(unit) = lost.and_then(|at| units.get_mut(at)) {
            *unit = LOST_UNIT;
        }
        let first = self.parts.partition_point(|part| part.offsets.end <= from);
        for part in self.parts.iter().skip(first).take_while(|part| part.offsets.start < to) {
            let offsets = part.offsets.start.max(from)..part.offsets.end.min(to);
            let at = (offsets.start - from) as usize;
            let found = self.part_units(vfs, part, offsets)?;
            for (place, unit) in units.iter_mut().skip(at).zip(found) {
                let moved = |unit: CqUnit| {
                    let start = unit.physical_offset.unsigned_abs() - part.start;
                    CqUnit { physical_offset: (part.at + start) as i64, ..unit }
                };
                *place = unit.map_or(BLANK_UNIT, moved);
            }
        }
        Ok(units)
    }

    /// Returns the units of some messages of a part; `None` for a message that the log does not have.
    fn part_units(
        &self,
        vfs: &dyn Vfs,
        part: &LogPart,
        offsets: Range<i64>,
    ) -> io::Result<Vec<Option<CqUnit>>> {
        let units = UnitReader::new(vfs, &self.units).read(offsets.start, offsets.end)?;
        if part.walked.get().is_none() && self.are_right(vfs, part, offsets.start, &units)? {
            return Ok(units.into_iter().map(Some).collect());
        }
        let walked = self.walked(vfs, part)?;
        Ok(offsets.zip(&units).map(|(offset, unit)| walked.unit(offset, unit)).collect())
    }

    /// Whether the units of the messages from `from` on agree with each other, and the first and the last one with their
    /// records.
    fn are_right(&self, vfs: &dyn Vfs, part: &LogPart, from: i64, units: &[CqUnit]) -> io::Result<bool> {
        let Some((first, last)) = units.first().zip(units.last()) else { return Ok(true) };
        let to = from + units.len() as i64;
        let (start, stop) = (part.start as i64, part.stop as i64);
        let is_inside = first.physical_offset >= start
            && last.physical_end() <= stop
            && (from != part.offsets.start || first.physical_offset == start)
            && (to != part.offsets.end || last.physical_end() == stop);
        let follow = |pair: &[CqUnit]| matches!(pair, [a, b] if a.physical_end() == b.physical_offset);
        if !is_inside || !units.iter().all(CqUnit::is_valid) || !units.windows(2).all(follow) {
            return Ok(false);
        }
        let (log, file) = (self.tiered_log(), vfs.open(&part.path, Access::Read)?);
        Ok(leads_to(log, (&*file, part.base), first, from)?
            && leads_to(log, (&*file, part.base), last, to - 1)?)
    }

    fn walked<'a>(&self, vfs: &dyn Vfs, part: &'a LogPart) -> io::Result<&'a WalkedPart> {
        if let Some(walked) = part.walked.get() {
            return Ok(walked);
        }
        let slots = self.walk(vfs, &part.path, part.base, part.start..part.stop)?.slots()?;
        let mut reader = UnitReader::new(vfs, &self.units);
        let Range { start, end } = part.offsets;
        let walked = WalkedPart::place(&slots, start, Some(end), |offset| reader.unit(offset))?;
        self.notes.warn(format!(
            "queue {} of topic {:?}: some units or records of offsets {start} to {end} (exclusive) are damaged; the \
             messages are found by a walk of {}",
            self.queue_id,
            self.topic,
            part.path.display()
        ));
        Ok(part.walked.get_or_init(|| walked))
    }

    /// Returns the places of the records of `part` that have a byte from position `from` to position `to` (exclusive) of
    /// the log of the queue.
    pub(super) fn slots(
        &self,
        vfs: &dyn Vfs,
        part: &LogPart,
        from: u64,
        to: u64,
    ) -> io::Result<Vec<PlacedSlot>> {
        if part.walked.get().is_none()
            && let Some(slots) = self.slots_by_units(vfs, part, from, to)?
        {
            return Ok(slots);
        }
        Ok(self.walked(vfs, part)?.between(from, to))
    }

    /// Like [`Self::slots`], by units. Returns `None` if they do not agree with the records.
    fn slots_by_units(
        &self,
        vfs: &dyn Vfs,
        part: &LogPart,
        from: u64,
        to: u64,
    ) -> io::Result<Option<Vec<PlacedSlot>>> {
        let mut reader = UnitReader::new(vfs, &self.units);
        let first = reader.first_not(part.offsets.clone(), |unit| unit.physical_end() <= from as i64)?;
        let mut units: Vec<CqUnit> = Vec::new();
        let is_complete =
            |units: &[CqUnit]| units.last().is_some_and(|unit| unit.physical_end() >= to as i64);
        while !is_complete(&units) {
            let next = first + units.len() as i64;
            let upto = part.offsets.end.min(next + UNITS_AT_ONCE);
            if next >= upto {
                break;
            }
            let read = reader.read(next, upto)?;
            let wanted = read.iter().position(|unit| unit.physical_end() >= to as i64);
            units.extend(read.iter().take(wanted.map_or(read.len(), |last| last + 1)));
        }
        let begins = units.first().is_some_and(|unit| unit.physical_offset <= from as i64);
        if !begins || !(is_complete(&units)) || !self.are_right(vfs, part, first, &units)? {
            return Ok(None);
        }
        let placed = (first..).zip(&units).map(|(offset, unit)| PlacedSlot::of_unit(offset, unit));
        Ok(Some(placed.collect()))
    }

    /// Compares the units in the files with those that the records require, and reports the wrong ones.
    pub(super) fn check_units(&self, vfs: &dyn Vfs, faults: &mut Vec<TieredFault>) -> io::Result<()> {
        for part in &self.parts {
            let mut wrong: Option<Range<i64>> = None;
            for from in part.offsets.clone().step_by(UNITS_AT_ONCE as usize) {
                let offsets = from..part.offsets.end.min(from + UNITS_AT_ONCE);
                let units = UnitReader::new(vfs, &self.units).read(offsets.start, offsets.end)?;
                let right = self.part_units(vfs, part, offsets.clone())?;
                for (offset, (unit, right)) in offsets.zip(units.iter().zip(right)) {
                    let is_right = Some(*unit) == right || self.unit_file(offset).is_none();
                    match &mut wrong {
                        _ if is_right => {}
                        Some(wrong) if wrong.end == offset => wrong.end += 1,
                        _ => {
                            faults.extend(
                                wrong.replace(offset..offset + 1).map(|wrong| self.wrong_units(wrong)),
                            );
                        }
                    }
                }
            }
            faults.extend(wrong.map(|wrong| self.wrong_units(wrong)));
        }
        Ok(())
    }

    fn wrong_units(&self, offsets: Range<i64>) -> TieredFault {
        let file = self.unit_file(offsets.start);
        TieredFault {
            kind: TieredFaultKind::Wrong,
            path: file.map_or_else(PathBuf::new, |file| file.path.clone()),
            offset: file.map(|file| offsets.start.unsigned_abs() * UNIT_BYTES - file.base),
            detail: format!(
                "the units of offsets {} to {} (exclusive) do not lead to their records",
                offsets.start, offsets.end
            ),
        }
    }

    fn unit_file(&self, offset: i64) -> Option<&TieredFile> {
        let at = offset.unsigned_abs() * UNIT_BYTES;
        self.units.iter().rev().find(|file| file.base <= at).filter(|file| at < file.end())
    }
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
                offset: None,
                detail: "it is no file of a tiered store: the name must be a hash and an offset".to_owned(),
            }),
        }
    }
    found.sort_by_key(|file| file.base);
    let bases: Vec<u64> = found.iter().skip(1).map(|file| file.base).collect();
    for (file, next) in found.iter_mut().zip(bases) {
        if file.end() < next {
            let detail = format!("the file ends at {}, and the next one begins at {next}", file.end());
            faults.push(TieredFault {
                kind: TieredFaultKind::Gap,
                path: file.path.clone(),
                offset: None,
                detail,
            });
        }
        file.len = file.len.min(next - file.base);
    }
    Ok(found)
}
