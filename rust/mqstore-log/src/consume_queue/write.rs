//! Writing units: at their own slots, in any order, and publishing them.
//!
//! Owns every write to the files of a queue but truncation. A unit goes to the slot that its record
//! names, so that runs of records may be written by several threads in any order; [`ConsumeQueue::commit`]
//! follows in log order and makes the result whole before readers see it:
//!
//! ```text
//! offsets      0       5       9      14        commit(9):  6..7 had no record -> blank units
//! on disk      UUUUUUUU.UU....UUU.....          readers see 0..9, max offset 9
//!              committed ^    ^ written ahead by another run
//! ```
//!
//! Until then a slot without a unit stays zero, which RocketMQ takes for the end of a queue: a kill
//! between the two steps costs a dispatch of the same records again, in either program. A new file
//! lies in the staging folder and gets its name in the commit that passes its first slot, when that
//! slot holds a unit or a blank: a named file is never all zero, and never without the one before it.
//! A power loss may take back any of this; the log is the truth.
//!
//! Source: `ConsumeQueue#putMessagePositionInfo`, `#fillPreBlank`. RocketMQ writes at its own counter
//! and shifts every later entry when an offset is missing; here a gap stays a gap.

use std::io::ErrorKind;
use std::ops::{ControlFlow, Range};

use mqstore_format::{BLANK_UNIT, CqUnit};
use mqstore_io::VfsFile;
use mqstore_io::switch;
use mqstore_io::sync::{Arc, Ordering};

use super::context::UnsyncedQueue;
use super::layout::{Part, UNIT_BYTES, offset_at};
use super::queue::{ConsumeQueue, Writing};
use super::uncommitted::Stretch;
use super::units;
use super::units::{CHUNK_BYTES, UnitState, physical_end};
use mqstore_base::error::{IoContext, StoreError};

/// Slots that may be left out before a unit whatever its record says.
const PLAIN_GAP_UNITS: i64 = 1024;

/// The smallest record: a gap of n offsets takes at least n times as much of the log.
const SMALLEST_RECORD_BYTES: i64 = mqstore_format::MIN_RECORD_BYTES as i64;

/// What became of the units of one [`ConsumeQueue::write`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteOutcome {
    /// Units that were put into their slots.
    pub written: usize,
    /// Units that were there already.
    pub unchanged: usize,
    /// Units whose slot belongs to another record, which comes earlier in the log.
    pub kept: usize,
    /// Units without a place; see [`Self::refusal`].
    pub refused: usize,
    /// Why the first of them has none: no possible unit, an offset beyond the format, below the
    /// queue's first file, or further ahead than the log between the two records has room for.
    pub refusal: Option<String>,
}

impl WriteOutcome {
    fn refuse(&mut self, units: usize, reason: impl FnOnce() -> String) {
        self.refused += units;
        self.refusal.get_or_insert_with(reason);
    }
}

/// What one [`ConsumeQueue::commit`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitOutcome {
    /// Offsets between two units that no record claimed; they now hold blank units.
    pub gap_units: u64,
}

/// Whether `gap` offsets cannot have been left out in so many bytes of the log.
fn is_impossible(gap: i64, log_bytes: i64) -> bool {
    gap > PLAIN_GAP_UNITS && gap > log_bytes / SMALLEST_RECORD_BYTES
}

impl ConsumeQueue {
    /// Puts `units`, whose first has the queue offset `first_offset`, at their slots. Readers do not
    /// see them before [`Self::commit`].
    ///
    /// A slot keeps the unit whose record comes first in the log; anything else in it (zeros, blanks,
    /// nonsense) is overwritten. May be called by several threads, in any order of offsets; one
    /// `pwrite` per file and contiguous run of changed slots. After an error any part is written, and
    /// the same call may be made again.
    pub fn write(&self, first_offset: i64, units: &[CqUnit]) -> Result<WriteOutcome, StoreError> {
        self.home.writable("write queue entries")?;
        match self.range_of(first_offset, units) {
            Some(range) => self.write_range(&mut self.writing.lock(), range, units),
            None => Ok(unsupported_offsets(first_offset, units)),
        }
    }

    /// As [`Self::write`], unless one of the files is not there yet: `None` then, and nothing is written.
    /// Whether a file may be made depends on what comes before in the log, so that it is for those to say
    /// who write in log order.
    pub fn write_known(
        &self,
        first_offset: i64,
        units: &[CqUnit],
    ) -> Result<Option<WriteOutcome>, StoreError> {
        self.home.writable("write queue entries")?;
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

    /// The offsets of `units`, if the format holds them.
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

    /// Whether the slots of `part` hold nothing that anybody counts on: no need to look.
    fn is_unwritten(&self, writing: &Writing, part: &Part) -> bool {
        let ours = || {
            part.offsets.start >= writing.found_end.max(self.max_offset())
                && writing.busy().covered.holes(part.offsets.clone()) == [part.offsets.clone()]
        };
        part.offsets.start >= writing.used_end || ours()
    }

    /// Writes the units of one file, in runs of possible ones.
    fn write_part(
        &self,
        writing: &mut Writing,
        part: &Part,
        units: &[CqUnit],
        outcome: &mut WriteOutcome,
    ) -> Result<(), StoreError> {
        let mut offset = part.offsets.start;
        for run in units.chunk_by(|left, right| physical_end(left).is_some() == physical_end(right).is_some())
        {
            let end = offset + run.len() as i64;
            let position = self.layout().position_of(offset);
            let part = Part { base: part.base, offsets: offset..end, position };
            offset = end;
            let (Some(first), Some(last)) = (run.first(), run.last().and_then(physical_end)) else {
                outcome.refuse(run.len(), || "a unit names no place in the log".to_owned());
                continue;
            };
            if let Some(file) = self.file_to_write(writing, &part, first.physical_offset, outcome)? {
                let stretch = Stretch {
                    start: part.offsets.start,
                    end: part.offsets.end,
                    first_physical: first.physical_offset,
                    physical_end: last,
                };
                self.write_run(writing, &*file, &part, run, stretch, outcome)?;
            }
        }
        Ok(())
    }

    fn write_run(
        &self,
        writing: &mut Writing,
        file: &dyn VfsFile,
        part: &Part,
        units: &[CqUnit],
        mut stretch: Stretch,
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
                stretch.physical_end = physical_end(&last).unwrap_or(stretch.physical_end);
            }
        }
        writing.used_end = writing.used_end.max(part.offsets.end);
        stretch.start = stretch.start.max(self.max_offset());
        writing.busy_mut().covered.insert(stretch);
        Ok(())
    }

    fn read_old(&self, file: &dyn VfsFile, part: &Part) -> Result<Vec<UnitState>, StoreError> {
        let mut buffer = Vec::new();
        let old = units::read_units(file, part.position..part.end_position(), &mut buffer)
            .map_err(|source| self.io(part.base, "reading queue entries", source))?;
        Ok(old.iter().map(UnitState::decode).collect())
    }

    /// Writes those of `units` that win against what is in their slots; answers what the last slot
    /// held if that stays.
    fn merge_units(
        &self,
        writing: &mut Writing,
        file: &dyn VfsFile,
        part: &Part,
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
        file.write_all_at(&bytes, position).map_err(|source| self.io(base, "writing queue entries", source))
    }

    /// The file for `part`, made if it may be; `None` after a refusal.
    fn file_to_write(
        &self,
        writing: &mut Writing,
        part: &Part,
        physical: i64,
        outcome: &mut WriteOutcome,
    ) -> Result<Option<Arc<dyn VfsFile>>, StoreError> {
        if let Some(file) = self.existing_file(writing, part.base)? {
            return Ok(Some(file));
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
        let (path, file) = self.home.stage()?;
        writing.busy_mut().staged.insert(base, path);
        Ok(file)
    }

    /// The file `base`, if it was made, with a name or without.
    fn existing_file(
        &self,
        writing: &mut Writing,
        base: u64,
    ) -> Result<Option<Arc<dyn VfsFile>>, StoreError> {
        // Most writes go where the one before went: no path is built, and no table asked.
        let recent = writing.busy().recent.as_ref().filter(|(recent, _)| *recent == base);
        if let Some(file) = recent.and_then(|(_, file)| file.upgrade()) {
            return Ok(Some(file));
        }
        let file = if self.bases.read().binary_search(&base).is_ok() {
            self.file(base)?
        } else if let Some(path) = writing.busy().staged.get(&base) {
            self.home.cache.get(path, self.home.access).at(path, "opening a staged queue file")?
        } else {
            return Ok(None);
        };
        writing.busy_mut().recent = Some((base, Arc::downgrade(&file)));
        Ok(Some(file))
    }

    /// Why the file of `part` must not be made for a record at log position `physical`.
    fn missing_file_reason(&self, writing: &Writing, part: &Part, physical: i64) -> Option<String> {
        let offset = part.offsets.start;
        let named = self.bases.read().last().copied();
        if named.is_some_and(|last| part.base < last) {
            return Some(format!("queue offset {offset} lies in a file that was deleted or lost"));
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
        is_impossible(gap, log_bytes).then(|| {
            format!(
                "queue offset {offset} is {gap} ahead, and the log in between has no room for so many records"
            )
        })
    }

    /// Whether a record at log position `physical` cannot have queue offset `offset`: it is further ahead of the
    /// queue's end than the log behind the last entry's record has room for.
    pub fn has_no_room_for(&self, offset: i64, physical: i64) -> bool {
        let gap = offset.saturating_sub(self.max_offset());
        is_impossible(gap, physical.saturating_sub(self.max_physical_end()))
    }

    /// Publishes all units below `max_offset`, as far as units were written. To be called in log
    /// order, when every record that comes before in the log has been written: an offset below that
    /// still has no unit never gets one, and becomes a blank unit. A `max_offset` at or below the
    /// commit position changes nothing.
    pub fn commit(&self, max_offset: i64) -> Result<CommitOutcome, StoreError> {
        let mut writing = self.writing.lock();
        let mut outcome = CommitOutcome::default();
        let covered = &writing.busy().covered;
        let (Some(first), Some(last)) = (covered.first().copied(), covered.last().copied()) else {
            return Ok(outcome);
        };
        let committed = self.max_offset();
        let target = max_offset.min(last.end);
        // Not whether there are files: an earlier try may have named some of them before it failed.
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

    /// Turns the slots of `hole` that hold no unit into blanks; answers how many.
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
        part: &Part,
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
        .map_err(|source| self.io(part.base, "reading queue entries", source))?;
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

    /// Gives their names to all files whose first slot lies below `end`, in order.
    fn name_files(&self, writing: &mut Writing, end: i64) -> Result<(), StoreError> {
        while let Some((&base, staged)) = writing.busy().staged.first_key_value() {
            if offset_at(base, 0) >= end {
                break;
            }
            let (folder, path) = (self.folder(), self.path(base));
            let vfs = &self.home.files.vfs;
            let rename = || {
                if writing.busy().vacant.contains(&base) {
                    // What is there was seen to hold no unit.
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
                    self.home.notes.lock().push(note);
                    renamed = rename();
                }
                _ => {}
            }
            renamed.at(&path, "naming a queue file")?;
            self.home.cache.forget(staged);
            self.home.cache.forget(&path);
            self.home.mark_folder(&folder);
            self.bases.write().push(base);
            let busy = writing.busy_mut();
            busy.vacant.remove(&base);
            busy.staged.remove(&base);
            self.touch(writing, base);
        }
        Ok(())
    }

    /// Remembers that the file `base` has bytes to sync.
    pub(super) fn touch(&self, writing: &mut Writing, base: u64) {
        writing.busy_mut().dirty_files.insert(base);
        if !self.dirty.swap(true, Ordering::AcqRel) {
            self.home.mark_dirty(self.this.clone());
        }
    }
}

impl UnsyncedQueue for ConsumeQueue {
    fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }

    /// Files still in staging wait for their name: nobody counts on them.
    fn flush_files(&self) -> Result<(), StoreError> {
        self.dirty.store(false, Ordering::Release);
        let mut dirty = {
            let mut writing = self.writing.lock();
            let dirty = std::mem::take(&mut writing.busy_mut().dirty_files);
            writing.rest();
            dirty
        };
        while let Some(base) = dirty.pop_first() {
            if self.bases.read().binary_search(&base).is_err() {
                continue;
            }
            let synced = self.file(base).and_then(|file| {
                switch::step("consume_queue.sync_file", || file.sync_data())
                    .map_err(|source| self.io(base, "syncing a queue file", source))
            });
            if let Err(error) = synced {
                let mut writing = self.writing.lock();
                writing.busy_mut().dirty_files.append(&mut dirty);
                self.touch(&mut writing, base);
                return Err(error);
            }
        }
        Ok(())
    }
}

/// What becomes of units at offsets that no queue has.
fn unsupported_offsets(first_offset: i64, units: &[CqUnit]) -> WriteOutcome {
    let mut outcome = WriteOutcome::default();
    outcome.refuse(units.len(), || format!("queue offset {first_offset} is beyond the format"));
    outcome
}
