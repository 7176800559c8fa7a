//! The bounds of a queue: found from its files, cut to the log, and moved with the start of the log.
//!
//! This module owns the recovery of one queue. Finding the bounds never writes and trusts nothing: only slots with a
//! possible unit count, holes are skipped, and a file without a unit counts as missing. It reads only the last file,
//! backwards, and of the first file the few slots of a binary search.
//!
//! ```text
//! first file                      last file
//! BBBBBUUUUU ...   UUUUUUUUUU     UUUUUUU?BBBB..........
//!      ^ min                             ^ max: blanks and invalid slots after the last unit do not count
//! ```
//!
//! A cut goes from the last file to the first, so a crash in between leaves a shorter queue and never one with a hole.
//! Everything that is cut can be derived from the log again.
//!
//! Source: `ConsumeQueue#recover`, `#truncateDirtyLogicFiles`, `#correctMinOffset`. Unlike there, blank units never
//! count as messages, and a file is never kept for its first slot alone.

use std::mem;
use std::ops::{ControlFlow, Range};

use mqstore_format::CqUnit;
use mqstore_io::sync::Ordering;
use mqstore_io::{Access, VfsFile};

use super::layout::{UNIT_BYTES, offset_at};
use super::queue::{ConsumeQueue, Writing};
use super::units;
use super::units::{CHUNK_BYTES, UnitState, physical_end};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::retry::retry_if_gone;

/// The end of the last file.
#[derive(Default)]
struct FileTail {
    /// Position and content of the last unit.
    last: Option<(u64, CqUnit)>,
    /// One past the last nonzero slot.
    used: u64,
    /// Description of damage near the end.
    odd: Option<String>,
    /// Position and content of the first unit, if all slots were read.
    first: Option<(u64, CqUnit)>,
}

/// The end of a queue at which the log holds all records of its units.
struct QueueEnd {
    /// Number of files that keep a unit.
    files: usize,
    /// One past the last unit that stays.
    end: i64,
    /// Log offset at which the record of that unit ends.
    physical_end: i64,
    /// Number of units after it.
    removed: u64,
}

impl ConsumeQueue {
    /// Finds minimum and maximum from the files, and drops uncommitted writes. Changes nothing on disk.
    ///
    /// Used by an open in either mode, and by readers that follow another process. It lists the files again, except in
    /// the first call after a load for writing, which has just listed them. [`Self::damaged`] describes the damage that
    /// it finds. If another process removes a listed file meanwhile, the files are listed again.
    pub fn recover_bounds(&self) -> Result<(), StoreError> {
        self.recover_bounds_near(None)
    }

    /// Like [`Self::recover_bounds`]; `max` is the maximum at the last close, if it is known. If a unit is before it and
    /// the slots after it are empty, the queue ends there. Without holes, the empty rest of a file must otherwise be
    /// read to find the last unit.
    pub(super) fn recover_bounds_near(&self, max: Option<i64>) -> Result<(), StoreError> {
        retry_if_gone(&*self.home.files.clock, || self.find_bounds(max))
    }

    /// Asks the file system to fetch what [`Self::recover_bounds_near`] reads for a queue that ends at `max`.
    pub(super) fn prefetch_bounds(&self, max: i64) -> Result<(), StoreError> {
        let bases = self.list_files()?.bases;
        if let (Some(&first), Some(&last)) = (bases.first(), bases.last())
            && let (Ok(begin), Ok(end)) = (self.open_once(first), self.open_once(last))
        {
            // The reads find and report any error.
            let _ = begin.expect_read(0, UNIT_BYTES);
            let position = self.position_in(last, max).saturating_sub(CHUNK_BYTES);
            let _ = end.expect_read(position, 2 * CHUNK_BYTES);
        }
        Ok(())
    }

    /// Asks the file system to fetch the last file, for a caller that needs all of it after [`Self::recover_bounds`].
    pub fn prefetch_last_file(&self) -> Result<(), StoreError> {
        if let Some(&last) = self.list_files()?.bases.last()
            && let Ok(file) = self.open_once(last)
        {
            // The reads find and report any error.
            let _ = file.expect_read(0, self.layout().file_bytes());
        }
        Ok(())
    }

    fn find_bounds(&self, listed_max: Option<i64>) -> Result<(), StoreError> {
        let mut writing = self.writing.lock();
        let (mut bases, first_time) = self.take_listing(&mut writing)?;
        writing.used_end = 0;
        let mut bounds = (0, 0, 0);
        while let Some(&base) = bases.last() {
            // In stores with very many queues, most are not used soon. They should not fill the cache of open files.
            let file = if first_time { self.open_once(base)? } else { self.file(base)? };
            let listed_end = listed_max.map_or(Ok(None), |max| self.end_near(&*file, base, max))?;
            let tail = self.tail_of(&*file, base, listed_end.unwrap_or(self.layout().file_bytes()))?;
            if let Some(odd) = tail.odd {
                self.change_damage(|damage| _ = damage.units.get_or_insert(odd));
            }
            if let Some((position, unit)) = tail.last {
                writing.used_end = offset_at(base, tail.used);
                let max = offset_at(base, position) + 1;
                let floor = self.floor_position();
                let min = match tail.first.filter(|_| bases.len() == 1 && floor == 0) {
                    Some((position, first)) => {
                        let offset = offset_at(base, position);
                        writing.min_record = Some((offset, first.physical_offset as u64));
                        offset
                    }
                    None => self.find_min(&mut writing, &bases, max, floor)?,
                };
                bounds = (min, max, physical_end(&unit).unwrap_or_default());
                break;
            }
            writing.busy_mut().vacant.insert(base);
            bases.pop();
        }
        writing.found_end = writing.used_end;
        self.list.write().bases = bases;
        self.publish(bounds);
        Ok(())
    }

    /// Returns the position of offset `max` in the file `base`, if a unit is before it and empty slots are after it.
    fn end_near(&self, file: &dyn VfsFile, base: u64, max: i64) -> Result<Option<u64>, StoreError> {
        let position = self.position_in(base, max);
        if position == 0 || offset_at(base, position) != max {
            return Ok(None);
        }
        let range = position - UNIT_BYTES..(position + CHUNK_BYTES).min(self.layout().file_bytes());
        let mut buffer = Vec::new();
        let slots = units::read_units(file, range, &mut buffer)
            .map_err(|source| self.io(base, "reading the end of a queue", source))?;
        let mut states = slots.iter().map(UnitState::decode);
        let ends = matches!(states.next(), Some(UnitState::Unit(_)))
            && states.all(|state| state == UnitState::Empty);
        Ok(ends.then_some(position))
    }

    /// Removes every unit whose record starts at or after log offset `log_end`, and everything after the last unit that
    /// stays. Removes files that have no unit then, and drops uncommitted writes. Returns the number of removed units.
    ///
    /// After an unclean stop, pass the log offset from which records are dispatched again, not the end of the log:
    /// after the synced part, any slot may have lost its unit or its blank.
    pub fn truncate(&self, log_end: u64) -> Result<u64, StoreError> {
        self.home.writable("cut a queue")?;
        let mut writing = self.writing.lock();
        self.forget_uncommitted(&mut writing);
        if self.is_clean_before(&writing, log_end) {
            return Ok(0);
        }
        let bases = self.list.read().bases.clone();
        let cut = self.find_cut(&bases, writing.used_end, log_end)?;
        let dropped = bases.get(cut.files..).unwrap_or_default().iter().copied();
        let gone = dropped.chain(mem::take(&mut writing.busy_mut().vacant)).collect();
        writing.min_record = None;
        // Readers must not be led to the removed units.
        self.publish((self.min_offset().min(cut.end), cut.end, cut.physical_end));
        self.list.write().bases.truncate(cut.files);
        self.remove_files(gone)?;
        let mut odd = None;
        if let Some(&base) = cut.files.checked_sub(1).and_then(|index| bases.get(index)) {
            let used = self.position_in(base, writing.used_end);
            let kept = self.position_in(base, cut.end);
            self.zero(&mut writing, base, kept..used)?;
            odd = self.tail(base)?.odd;
        }
        self.change_damage(|damage| damage.units = odd);
        writing.used_end = cut.end;
        writing.found_end = cut.end;
        Ok(cut.removed)
    }

    /// Whether nothing must be cut for a log that ends at `log_end`: the last unit stays, no slot after it is used, and
    /// the units before it are in order.
    fn is_clean_before(&self, writing: &Writing, log_end: u64) -> bool {
        let record_stays = self.physical_end.load(Ordering::Acquire) as u64 <= log_end;
        let ends_there = writing.busy().vacant.is_empty() && writing.used_end == self.committed_end();
        record_stays && ends_there && self.has_good_units()
    }

    /// Returns the maximum that [`Self::truncate`] would leave, without changing anything. That is the end of the queue
    /// for a reader whose log ends at `log_end`; pass it to [`Self::clamp`].
    pub fn max_offset_for(&self, log_end: u64) -> Result<i64, StoreError> {
        let writing = self.writing.lock();
        if self.physical_end.load(Ordering::Acquire) as u64 <= log_end {
            return Ok(self.max_offset());
        }
        let bases = self.list.read().bases.clone();
        let cut = self.find_cut(&bases, writing.used_end, log_end)?;
        Ok(self.end_after(cut.end, cut.physical_end).min(self.max_offset()))
    }

    /// Hides all offsets from `max_offset` on from readers. The disk does not change. A `max_offset` above the maximum
    /// changes nothing.
    pub fn clamp(&self, max_offset: i64) -> Result<(), StoreError> {
        let mut writing = self.writing.lock();
        if max_offset >= self.max_offset() {
            return Ok(());
        }
        self.forget_uncommitted(&mut writing);
        let min = self.min_offset();
        let end = max_offset.max(min);
        let physical_end = self.physical_end_before(end)?;
        self.publish((min, end, physical_end));
        Ok(())
    }

    /// Moves the minimum to the first unit whose record starts at or after `log_min`, the minimum of the log, and after
    /// the floor of the topic; to the maximum if none does. Skips blank units.
    pub fn correct_min_offset(&self, log_min: u64) -> Result<(), StoreError> {
        self.move_min_offset(log_min, true)
    }

    pub(super) fn move_min_offset(&self, log_min: u64, may_go_back: bool) -> Result<(), StoreError> {
        let log_min = log_min.max(self.floor_position());
        let mut writing = self.writing.lock();
        let known = writing.min_record.filter(|(offset, _)| *offset == self.min.load(Ordering::Acquire));
        if known.is_some_and(|(_, record)| record >= log_min) {
            return Ok(());
        }
        let bases = self.list.read().bases.clone();
        let least = if may_go_back { 0 } else { self.min.load(Ordering::Acquire) };
        let min = self.find_min(&mut writing, &bases, self.committed_end(), log_min)?;
        self.min.store(min.max(least), Ordering::Release);
        Ok(())
    }

    /// Returns the log offset at which the record of the last unit before offset `end` ends; 0 for none.
    pub(super) fn physical_end_before(&self, end: i64) -> Result<i64, StoreError> {
        let bases = self.list.read().bases.clone();
        for &base in bases.iter().rev() {
            if let Some((_, unit)) = self.last_unit(base, self.position_in(base, end))? {
                return Ok(physical_end(&unit).unwrap_or_default());
            }
        }
        Ok(0)
    }

    /// Returns the position of `offset` in the file `base`, or the nearest end of the file.
    pub(super) fn position_in(&self, base: u64, offset: i64) -> u64 {
        let units = offset.saturating_sub(offset_at(base, 0));
        units.clamp(0, self.layout().units_per_file()) as u64 * UNIT_BYTES
    }

    /// Like [`Self::damaged`], for readers that use only units of records before log offset `log_end`. While a writer
    /// runs, slots after these may be unwritten although later slots are written.
    pub fn damaged_before(&self, log_end: u64) -> Result<Option<String>, StoreError> {
        {
            let damage = self.damage();
            if damage.files.is_some() || damage.units.is_none() {
                return Ok(damage.files);
            }
        }
        let writing = self.writing.lock();
        let bases = self.list.read().bases.clone();
        let cut = self.find_cut(&bases, writing.used_end, log_end)?;
        match cut.files.checked_sub(1).and_then(|index| bases.get(index)) {
            Some(&base) => Ok(self.tail_below(base, self.position_in(base, cut.end))?.odd),
            None => Ok(None),
        }
    }

    fn tail(&self, base: u64) -> Result<FileTail, StoreError> {
        self.tail_below(base, self.layout().file_bytes())
    }

    fn tail_below(&self, base: u64, end: u64) -> Result<FileTail, StoreError> {
        self.tail_of(&*self.file(base)?, base, end)
    }

    fn tail_of(&self, file: &dyn VfsFile, base: u64, end: u64) -> Result<FileTail, StoreError> {
        let mut tail = FileTail::default();
        let mut next: Option<(u64, CqUnit)> = None;
        let mut stop = 0;
        units::data_end(file, self.layout().file_bytes())
            .and_then(|used| {
                units::for_each_backward(file, used.min(end), |position, slot| {
                    if tail.used == 0 && slot != UnitState::Empty {
                        tail.used = position + UNIT_BYTES;
                    }
                    if let Some(odd) = unit_problem(slot, next.as_ref().map(|(_, unit)| unit)) {
                        tail.odd.get_or_insert_with(|| {
                            format!(
                                "{}: queue offset {}: {odd}",
                                self.path(base).display(),
                                offset_at(base, position)
                            )
                        });
                    }
                    if let UnitState::Unit(unit) = slot {
                        next = Some((position, unit));
                        if tail.last.is_none() {
                            tail.last = Some((position, unit));
                            stop = position.saturating_sub(CHUNK_BYTES);
                        }
                    }
                    if position == 0 {
                        tail.first = next;
                    }
                    match tail.last {
                        Some(_) if position <= stop => ControlFlow::Break(()),
                        _ => ControlFlow::Continue(()),
                    }
                })
            })
            .map_err(|source| self.io(base, "reading the end of a queue", source))?;
        Ok(tail)
    }

    /// Returns the last unit before `end`, a position in the file `base`.
    pub(super) fn last_unit(&self, base: u64, end: u64) -> Result<Option<(u64, CqUnit)>, StoreError> {
        if end == 0 {
            return Ok(None);
        }
        let file = self.file(base)?;
        let mut found = None;
        units::for_each_backward(&*file, end, |position, slot| match slot {
            UnitState::Unit(unit) => {
                found = Some((position, unit));
                ControlFlow::Break(())
            }
            UnitState::Empty | UnitState::Blank | UnitState::Invalid => ControlFlow::Continue(()),
        })
        .map_err(|source| self.io(base, "reading queue units", source))?;
        Ok(found)
    }

    fn find_cut(&self, bases: &[u64], used_end: i64, log_end: u64) -> Result<QueueEnd, StoreError> {
        let mut cut = QueueEnd { files: 0, end: 0, physical_end: 0, removed: 0 };
        for (index, &base) in bases.iter().enumerate().rev() {
            let file = self.file(base)?;
            units::for_each_backward(&*file, self.position_in(base, used_end), |position, slot| match slot {
                UnitState::Unit(unit) if (unit.physical_offset as u64) < log_end => {
                    cut.files = index + 1;
                    cut.end = offset_at(base, position) + 1;
                    cut.physical_end = physical_end(&unit).unwrap_or_default();
                    ControlFlow::Break(())
                }
                UnitState::Unit(_) => {
                    cut.removed += 1;
                    ControlFlow::Continue(())
                }
                UnitState::Empty | UnitState::Blank | UnitState::Invalid => ControlFlow::Continue(()),
            })
            .map_err(|source| self.io(base, "reading queue units", source))?;
            if cut.files > 0 {
                break;
            }
        }
        Ok(cut)
    }

    /// Finds the first offset before `max` whose record starts at or after `log_min`; `max` for none. Stores it in
    /// `min_record`.
    fn find_min(
        &self,
        writing: &mut Writing,
        bases: &[u64],
        max: i64,
        log_min: u64,
    ) -> Result<i64, StoreError> {
        writing.min_record = None;
        for (index, &base) in bases.iter().enumerate() {
            let end = self.position_in(base, max);
            let may_be_old = log_min > 0 && index + 1 < bases.len();
            let found = match self.first_at_or_after(base, end, log_min, may_be_old) {
                // The writer in another process removed the file because its records are gone.
                Err(error) if error.is_gone() && self.home.access == Access::Read => continue,
                found => found?,
            };
            if let Some((position, unit)) = found {
                let offset = offset_at(base, position);
                writing.min_record = Some((offset, unit.physical_offset as u64));
                return Ok(offset);
            }
        }
        Ok(max)
    }

    /// Returns the first unit before `end`, a position in the file `base`, whose record starts at or after `log_min`.
    /// If the whole file `may_be_old`, its last unit is compared first.
    fn first_at_or_after(
        &self,
        base: u64,
        end: u64,
        log_min: u64,
        may_be_old: bool,
    ) -> Result<Option<(u64, CqUnit)>, StoreError> {
        if may_be_old && !self.ends_at_or_after(base, end, log_min)? {
            return Ok(None);
        }
        search(&*self.file(base)?, end, log_min)
            .map_err(|source| self.io(base, "looking for the start of a queue", source))
    }

    /// Whether the record of the file's last unit starts at or after log offset `log_min`.
    fn ends_at_or_after(&self, base: u64, end: u64, log_min: u64) -> Result<bool, StoreError> {
        let last = self.last_unit(base, end)?;
        Ok(last.is_some_and(|(_, unit)| unit.physical_offset as u64 >= log_min))
    }

    pub(super) fn first_unit_of(&self, base: u64) -> Result<Option<(u64, CqUnit)>, StoreError> {
        first_unit(&*self.file(base)?, 0..self.layout().file_bytes(), UNIT_BYTES)
            .map_err(|source| self.io(base, "reading queue units", source))
    }

    fn zero(&self, writing: &mut Writing, base: u64, range: Range<u64>) -> Result<(), StoreError> {
        if range.start >= range.end {
            return Ok(());
        }
        let path = self.path(base);
        let file = self.file(base)?;
        let zeros = vec![0; CHUNK_BYTES.min(range.end - range.start) as usize];
        self.touch(writing, base);
        // Zeroes backwards, so that a crash leaves a shorter queue.
        let mut end = range.end;
        while end > range.start {
            let start = range.start.max(end.saturating_sub(CHUNK_BYTES));
            file.write_all_at(zeros.get(..(end - start) as usize).unwrap_or_default(), start)
                .at(&path, "cutting a queue")?;
            end = start;
        }
        Ok(())
    }
}

/// Returns the damage of `slot`, given the unit after it.
fn unit_problem(slot: UnitState, next: Option<&CqUnit>) -> Option<&'static str> {
    match (slot, next) {
        (UnitState::Empty, Some(_)) => Some("nothing was written here, but a later slot has a unit"),
        (UnitState::Invalid, _) => Some("no possible unit"),
        (UnitState::Unit(unit), Some(next)) if unit.physical_offset >= next.physical_offset => {
            Some("the record of the next unit is not later in the log")
        }
        _ => None,
    }
}

/// Searches the slots before `end` for the first unit whose record starts at or after `log_min`, and returns it with
/// its position. Skips slots without a unit.
fn search(file: &dyn VfsFile, end: u64, log_min: u64) -> std::io::Result<Option<(u64, CqUnit)>> {
    let (mut low, mut high) = (0, end / UNIT_BYTES);
    let mut best = None;
    // Most files begin after the minimum of the log, so the first probe is slot 0.
    let mut probe = 0;
    while low < high {
        let from = probe * UNIT_BYTES;
        match first_unit(file, from..high * UNIT_BYTES, UNIT_BYTES)? {
            Some((position, unit)) if unit.physical_offset as u64 >= log_min => {
                best = Some((position, unit));
                high = probe;
            }
            Some((position, _)) => low = position / UNIT_BYTES + 1,
            None => high = probe,
        }
        probe = low + high.saturating_sub(low) / 2;
    }
    Ok(best)
}

/// Returns the first unit of `range`; reads `first_bytes` before it reads more.
fn first_unit(
    file: &dyn VfsFile,
    range: Range<u64>,
    first_bytes: u64,
) -> std::io::Result<Option<(u64, CqUnit)>> {
    let mut found = None;
    let split = range.end.min(range.start + first_bytes);
    for range in [range.start..split, split..range.end] {
        units::for_each_forward(file, range, |position, slot| match slot {
            UnitState::Unit(unit) => {
                found = Some((position, unit));
                ControlFlow::Break(())
            }
            UnitState::Empty | UnitState::Blank | UnitState::Invalid => ControlFlow::Continue(()),
        })?;
        if found.is_some() {
            break;
        }
    }
    Ok(found)
}
