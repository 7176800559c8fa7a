//! Writes of units: to their slots in any order, then published in log order.
//!
//! This module owns every write to the files of a queue except truncation. A unit goes to the slot that its record
//! names, so several threads may write runs of records in any order. [`ConsumeQueue::commit`] follows in log order and
//! completes the range before readers see it:
//!
//! ```text
//! offset       0         1
//!              0123456789012345678
//! on disk      UUUUUU..U.....UUU..      commit(9): 6 and 7 had no record -> blank units
//!                       ^               committed: readers see 0..9, max offset 9
//!                            ^          written ahead by another run
//! ```
//!
//! Until the commit, a slot without a unit stays zero, which RocketMQ takes for the end of a queue. So after a kill
//! between both steps, either program dispatches the same records again. A new file is in the staging folder and gets
//! its name in the commit that passes its first slot, when that slot holds a unit or a blank. So a named file is never
//! all zero, and never exists without the file before it. A power loss may undo any of this; the log is the truth.
//!
//! Source: `ConsumeQueue#putMessagePositionInfo`, `#fillPreBlank`. RocketMQ writes at its own counter and shifts every
//! later unit if an offset is missing; in mqstore a gap stays a gap.

use std::io::ErrorKind;
use std::ops::{ControlFlow, Range};

use mqstore_format::{BLANK_UNIT, CqUnit};
use mqstore_io::VfsFile;
use mqstore_io::sync::{Arc, Ordering};

use super::layout::{FilePart, UNIT_BYTES, offset_at};
use super::queue::{ConsumeQueue, Writing};
use super::uncommitted::UncommittedRange;
use super::units;
use super::units::{CHUNK_BYTES, UnitState, physical_end};
use mqstore_base::error::{IoContext, StoreError};

/// Maximum gap before a unit that needs no check against the log.
const PLAIN_GAP_UNITS: i64 = 1024;

/// Byte length of the smallest record: n offsets take at least n times as many bytes of the log.
const SMALLEST_RECORD_BYTES: i64 = mqstore_format::MIN_RECORD_BYTES as i64;

/// The result of one [`ConsumeQueue::write`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteOutcome {
    /// Number of units written to their slots.
    pub written: usize,
    /// Number of units that were in their slots already.
    pub unchanged: usize,
    /// Number of units whose slot belongs to another record, which is earlier in the log.
    pub kept: usize,
    /// Number of units without a slot; see [`Self::refusal`].
    pub refused: usize,
    /// Reason for the first refused unit: it is not a possible unit, its offset is beyond the format or before the
    /// queue's first file, or the log between two records is too short for the gap.
    pub refusal: Option<String>,
}

impl WriteOutcome {
    fn refuse(&mut self, units: usize, reason: impl FnOnce() -> String) {
        self.refused += units;
        self.refusal.get_or_insert_with(reason);
    }
}

/// The result of one [`ConsumeQueue::commit`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitOutcome {
    /// Number of offsets between two units that no record claimed; they now hold blank units.
    pub gap_units: u64,
}

/// Whether `log_bytes` of the log are too few for the records of `gap` offsets.
fn is_impossible(gap: i64, log_bytes: i64) -> bool {
    gap > PLAIN_GAP_UNITS && gap > log_bytes / SMALLEST_RECORD_BYTES
}

impl ConsumeQueue {
    /// Writes `units` to their slots; the first one has the queue offset `first_offset`. Readers see them only after
    /// [`Self::commit`].
    ///
    /// A slot keeps the unit whose record is first in the log; all other contents (zeros, blanks, invalid bytes) are
    /// overwritten. Several threads may call it, in any order of offsets. Each contiguous run of changed slots in a
    /// file takes one `pwrite`. After an error, any part may be written, and you can repeat the call.
    pub fn write(&self, first_offset: i64, units: &[CqUnit]) -> Result<WriteOutcome, StoreError> {
        self.home.writable("write queue units")?;
        match self.range_of(first_offset, units) {
            Some(range) => self.write_range(&mut self.writing.lock(), range, units),
            None => Ok(unsupported_offsets(first_offset, units)),
        }
    }

    /// Like [`Self::write`], but returns `None` and writes nothing if one of the files does not exist. Whether a file
    /// may be created depends on earlier records of the log, so only calls in log order decide it.
    pub(crate) fn write_known(
        &self,
        first_offset: i64,
        units: &[CqUnit],
    ) -> Result<Option<WriteOutcome>, StoreError> {
        self.home.writable("write queue units")?;
        let Some(range) = self.range_of(first_offset, units) else {
            return Ok(Some(unsupported_offsets(first_offset, units)));
        };
        let mut writing = self.writing.lock();
        for part in self.layout().parts(range.clone()) {
            if self.existing_file(&mut writing, part.base)?.is_none() {
                return Ok(None);
            }
        }
        self.write_range(&mut writing, range, units).map(Some)
    }

    /// Returns the offsets of `units`, if the format can hold them.
    fn range_of(&self, first_offset: i64, units: &[CqUnit]) -> Option<Range<i64>> {
        let end = i64::try_from(units.len()).ok().and_then(|count| first_offset.checked_add(count))?;
        (first_offset >= 0 && self.layout().holds(end)).then_some(first_offset..end)
    }

    fn write_range(
        &self,
        writing: &mut Writing,
        range: Range<i64>,
        units: &[CqUnit],
    ) -> Result<WriteOutcome, StoreError> {
        let mut outcome = WriteOutcome::default();
        let mut rest = units;
        for part in self.layout().parts(range) {
            let (mine, later) = rest.split_at(part.units().min(rest.len()));
            rest = later;
            self.write_part(writing, &part, mine, &mut outcome)?;
        }
        Ok(outcome)
    }

    /// Whether the slots of `part` hold nothing of value, so that they need not be read first.
    fn is_unwritten(&self, writing: &Writing, part: &FilePart) -> bool {
        let ours = || {
            part.offsets.start >= writing.found_end.max(self.committed_end())
                && writing.busy().covered.holes(part.offsets.clone()) == [part.offsets.clone()]
        };
        part.offsets.start >= writing.used_end || ours()
    }

    /// Writes the units of one file, in runs of possible units.
    fn write_part(
        &self,
        writing: &mut Writing,
        part: &FilePart,
        units: &[CqUnit],
        outcome: &mut WriteOutcome,
    ) -> Result<(), StoreError> {
        let mut offset = part.offsets.start;
        for run in units.chunk_by(|left, right| physical_end(left).is_some() == physical_end(right).is_some())
        {
            let end = offset + run.len() as i64;
            let position = self.layout().position_of(offset);
            let part = FilePart { base: part.base, offsets: offset..end, position };
            offset = end;
            let (Some(first), Some(last)) = (run.first(), run.last().and_then(physical_end)) else {
                outcome.refuse(run.len(), || "the unit has no possible log offset".to_owned());
                continue;
            };
            if let Some(file) = self.file_to_write(writing, &part, first.physical_offset, outcome)? {
                let slots = UncommittedRange {
                    start: part.offsets.start,
                    end: part.offsets.end,
                    first_physical: first.physical_offset,
                    physical_end: last,
                };
                self.write_run(writing, &*file, &part, run, slots, outcome)?;
            }
        }
        Ok(())
    }

    fn write_run(
        &self,
        writing: &mut Writing,
        file: &dyn VfsFile,
        part: &FilePart,
        units: &[CqUnit],
        mut slots: UncommittedRange,
        outcome: &mut WriteOutcome,
    ) -> Result<(), StoreError> {
        if self.is_unwritten(writing, part) {
            self.put(writing, file, part.base, part.position, units)?;
            outcome.written += units.len();
        } else {
            writing.min_record = None;
            let old = self.read_old(file, part)?;
            if let Some(UnitState::Unit(last)) =
                self.merge_units(writing, file, part, units, &old, outcome)?
            {
                slots.physical_end = physical_end(&last).unwrap_or(slots.physical_end);
            }
        }
        writing.used_end = writing.used_end.max(part.offsets.end);
        slots.start = slots.start.max(self.committed_end());
        writing.busy_mut().covered.insert(slots);
        Ok(())
    }

    fn read_old(&self, file: &dyn VfsFile, part: &FilePart) -> Result<Vec<UnitState>, StoreError> {
        let mut buffer = Vec::new();
        let old = units::read_units(file, part.position..part.end_position(), &mut buffer)
            .map_err(|source| self.io(part.base, "reading queue units", source))?;
        Ok(old.iter().map(UnitState::decode).collect())
    }

    /// Writes those of `units` that win against the contents of their slots. If the last slot keeps its contents,
    /// returns them.
    fn merge_units(
        &self,
        writing: &mut Writing,
        file: &dyn VfsFile,
        part: &FilePart,
        units: &[CqUnit],
        old: &[UnitState],
        outcome: &mut WriteOutcome,
    ) -> Result<Option<UnitState>, StoreError> {
        let stays = |(new, old): &(&CqUnit, &UnitState)| match old {
            UnitState::Unit(old) => old == *new || old.physical_offset < new.physical_offset,
            UnitState::Empty | UnitState::Blank | UnitState::Invalid => false,
        };
        let pairs: Vec<_> = units.iter().zip(old).collect();
        let mut position = part.position;
        for run in pairs.chunk_by(|left, right| stays(left) == stays(right)) {
            if run.first().is_some_and(stays) {
                let same = run.iter().filter(|(new, old)| **old == UnitState::Unit(**new)).count();
                outcome.unchanged += same;
                outcome.kept += run.len() - same;
            } else {
                let winners: Vec<CqUnit> = run.iter().map(|(new, _)| **new).collect();
                self.put(writing, file, part.base, position, &winners)?;
                outcome.written += run.len();
            }
            position += run.len() as u64 * UNIT_BYTES;
        }
        Ok(pairs.last().filter(|pair| stays(pair)).map(|(_, old)| **old))
    }

    fn put(
        &self,
        writing: &mut Writing,
        file: &dyn VfsFile,
        base: u64,
        position: u64,
        units: &[CqUnit],
    ) -> Result<(), StoreError> {
        let mut bytes = Vec::with_capacity(units.len() * UNIT_BYTES as usize);
        for unit in units {
            bytes.extend_from_slice(&unit.encode());
        }
        self.touch(writing, base);
        file.write_all_at(&bytes, position).map_err(|source| self.io(base, "writing queue units", source))
    }

    /// Whether the file of `part` precedes those of the queue, and a retention hides the record at log offset
    /// `physical`: the file went with it.
    fn is_removed(&self, part: &FilePart, physical: i64) -> bool {
        let precedes = self.list.read().bases.last().is_some_and(|last| part.base < *last);
        precedes && u64::try_from(physical).is_ok_and(|at| at < self.floor_position())
    }

    /// Returns the file for `part`, and creates it if allowed; `None` after a refusal, and for a removed file.
    fn file_to_write(
        &self,
        writing: &mut Writing,
        part: &FilePart,
        physical: i64,
        outcome: &mut WriteOutcome,
    ) -> Result<Option<Arc<dyn VfsFile>>, StoreError> {
        if let Some(file) = self.existing_file(writing, part.base)? {
            return Ok(Some(file));
        }
        if self.is_removed(part, physical) {
            return Ok(None);
        }
        if let Some(reason) = self.missing_file_reason(writing, part, physical) {
            outcome.refuse(part.units(), || reason);
            return Ok(None);
        }
        self.open_or_stage(writing, part.base).map(Some)
    }

    fn open_or_stage(&self, writing: &mut Writing, base: u64) -> Result<Arc<dyn VfsFile>, StoreError> {
        if let Some(file) = self.existing_file(writing, base)? {
            return Ok(file);
        }
        let (path, file) = self.home.stage(&self.folder())?;
        writing.busy_mut().staged.insert(base, path);
        Ok(file)
    }

    /// Returns the file `base` if it exists, named or staged.
    fn existing_file(
        &self,
        writing: &mut Writing,
        base: u64,
    ) -> Result<Option<Arc<dyn VfsFile>>, StoreError> {
        // Most writes go to the same file as the last one; this path builds no path name and searches no table.
        let recent = writing.busy().recent.as_ref().filter(|(recent, _)| *recent == base);
        if let Some(file) = recent.and_then(|(_, file)| file.upgrade()) {
            return Ok(Some(file));
        }
        let file = if self.list.read().bases.binary_search(&base).is_ok() {
            self.file(base)?
        } else if let Some(path) = writing.busy().staged.get(&base) {
            self.home.cache.get(path, self.home.access).at(path, "opening a staged queue file")?
        } else {
            return Ok(None);
        };
        writing.busy_mut().recent = Some((base, Arc::downgrade(&file)));
        Ok(Some(file))
    }

    /// Returns why the file of `part` must not be created for a record at log offset `physical`; `None` if it may.
    fn missing_file_reason(&self, writing: &Writing, part: &FilePart, physical: i64) -> Option<String> {
        let offset = part.offsets.start;
        let named = self.list.read().bases.last().copied();
        if named.is_some_and(|last| part.base < last) {
            return Some(format!("queue offset {offset} is in a file that was deleted or lost"));
        }
        let (gap, log_bytes) = match (writing.busy().covered.first(), writing.busy().covered.last()) {
            (Some(first), _) if named.is_none() && offset < first.start => {
                (first.start - part.offsets.end, first.first_physical.saturating_sub(physical))
            }
            (_, Some(last)) => (offset - last.end, physical.saturating_sub(last.physical_end)),
            (_, None) if named.is_some() => {
                (offset - self.max_offset(), physical.saturating_sub(self.max_physical_end()))
            }
            (_, None) => return None,
        };
        self.is_impossible(offset, gap, log_bytes).then(|| {
            format!("queue offset {offset} is {gap} ahead, but the log in between is too short for this gap")
        })
    }

    /// Whether a record at log offset `physical` cannot have the queue offset `offset`, because the log after the
    /// record of the last unit is too short for the gap.
    pub fn has_no_space_for(&self, offset: i64, physical: i64) -> bool {
        let gap = offset.saturating_sub(self.max_offset());
        self.is_impossible(offset, gap, physical.saturating_sub(self.max_physical_end()))
    }

    /// Whether `log_bytes` of the log are too few for a gap before `offset`. A topic that was deleted continues with
    /// the next file. Without its floor, for example if `mqstore/meta` is lost, this leaves a gap at the end of a file.
    fn is_impossible(&self, offset: i64, gap: i64, log_bytes: i64) -> bool {
        let ends_file = gap < self.layout().units_per_file() && self.layout().position_of(offset) == 0;
        !ends_file && is_impossible(gap, log_bytes)
    }

    /// Publishes all units before `max_offset`, as far as they are written.
    ///
    /// Call it in log order, after all earlier records of the log are written: then an offset without a unit never gets
    /// one, and becomes a blank unit. A `max_offset` at or below the commit position changes nothing.
    pub fn commit(&self, max_offset: i64) -> Result<CommitOutcome, StoreError> {
        let mut writing = self.writing.lock();
        let mut outcome = CommitOutcome::default();
        let covered = &writing.busy().covered;
        let (Some(first), Some(last)) = (covered.first().copied(), covered.last().copied()) else {
            return Ok(outcome);
        };
        let committed = self.committed_end();
        let target = max_offset.min(last.end);
        // The list of files is no test: an earlier try may have named some files before it failed.
        let starts = self.max_physical_end() == 0;
        if target <= committed || starts && target <= first.start {
            return Ok(outcome);
        }
        // A queue that starts late has blanks from the start of its first file.
        let from = if starts { offset_at(self.layout().base_of(first.start), 0) } else { committed };
        for hole in writing.busy().covered.holes(from..target) {
            let blanks = self.fill_blank(&mut writing, hole.clone())?;
            if !starts || hole.start >= first.start {
                outcome.gap_units += blanks;
            }
        }
        self.name_files(&mut writing, target)?;
        let physical_end = match writing.busy().covered.physical_end(target) {
            Some(physical_end) => physical_end,
            None => self.physical_end_before(target)?,
        };
        if starts {
            writing.min_record = None;
            self.min.store(first.start, Ordering::Release);
        }
        writing.busy_mut().covered.drop_below(target);
        self.physical_end.store(physical_end, Ordering::Release);
        self.committed.store(target, Ordering::Release);
        Ok(outcome)
    }

    /// Writes blank units to the slots of `hole` without a unit, and returns their number.
    fn fill_blank(&self, writing: &mut Writing, hole: Range<i64>) -> Result<u64, StoreError> {
        let mut blanks = 0;
        for part in self.layout().parts(hole) {
            let file = self.open_or_stage(writing, part.base)?;
            for range in self.ranges_to_blank(writing, &*file, &part)? {
                blanks += (range.end - range.start) / UNIT_BYTES;
                self.put_blanks(writing, &*file, part.base, range)?;
            }
            writing.used_end = writing.used_end.max(part.offsets.end);
        }
        Ok(blanks)
    }

    fn ranges_to_blank(
        &self,
        writing: &Writing,
        file: &dyn VfsFile,
        part: &FilePart,
    ) -> Result<Vec<Range<u64>>, StoreError> {
        let whole = part.position..part.end_position();
        if part.offsets.start >= writing.used_end {
            return Ok(vec![whole]);
        }
        let mut ranges: Vec<Range<u64>> = Vec::new();
        units::for_each_forward(file, whole, |position, slot| {
            if matches!(slot, UnitState::Empty | UnitState::Invalid) {
                match ranges.last_mut().filter(|range| range.end == position) {
                    Some(range) => range.end += UNIT_BYTES,
                    None => ranges.push(position..position + UNIT_BYTES),
                }
            }
            ControlFlow::Continue(())
        })
        .map_err(|source| self.io(part.base, "reading queue units", source))?;
        Ok(ranges)
    }

    fn put_blanks(
        &self,
        writing: &mut Writing,
        file: &dyn VfsFile,
        base: u64,
        range: Range<u64>,
    ) -> Result<(), StoreError> {
        let chunk =
            BLANK_UNIT.encode().repeat(((range.end - range.start).min(CHUNK_BYTES) / UNIT_BYTES) as usize);
        self.touch(writing, base);
        let mut position = range.start;
        while position < range.end {
            let count = (range.end - position).min(chunk.len() as u64);
            file.write_all_at(chunk.get(..count as usize).unwrap_or_default(), position)
                .map_err(|source| self.io(base, "filling a gap in a queue", source))?;
            position += count;
        }
        Ok(())
    }

    /// Names all staged files whose first slot is before `end`, in order.
    fn name_files(&self, writing: &mut Writing, end: i64) -> Result<(), StoreError> {
        while let Some((&base, staged)) = writing.busy().staged.first_key_value() {
            if offset_at(base, 0) >= end {
                break;
            }
            let (folder, path) = (self.folder(), self.path(base));
            let vfs = &self.home.files.vfs;
            let rename = || {
                if writing.busy().vacant.contains(&base) {
                    // Recovery has seen that the existing file holds no unit.
                    vfs.rename(staged, &path)
                } else {
                    vfs.rename_noreplace(staged, &path)
                }
            };
            let mut renamed = rename();
            match renamed.as_ref().map_err(std::io::Error::kind) {
                Err(ErrorKind::NotFound) => {
                    self.home.make_folder(&folder)?;
                    renamed = rename();
                }
                Err(ErrorKind::AlreadyExists) => {
                    let note = self.home.files.set_aside(&path, "in the way of a new queue file")?;
                    self.home.files.notes.warn(note);
                    renamed = rename();
                }
                _ => {}
            }
            renamed.at(&path, "naming a queue file")?;
            self.home.cache.forget(staged);
            self.home.cache.forget(&path);
            self.home.mark_folder(&folder);
            self.list.write().bases.push(base);
            let busy = writing.busy_mut();
            busy.vacant.remove(&base);
            busy.staged.remove(&base);
            self.touch(writing, base);
        }
        Ok(())
    }
}

/// Returns the outcome for units at offsets that no queue can have.
fn unsupported_offsets(first_offset: i64, units: &[CqUnit]) -> WriteOutcome {
    let mut outcome = WriteOutcome::default();
    outcome.refuse(units.len(), || format!("queue offset {first_offset} is beyond the format"));
    outcome
}
