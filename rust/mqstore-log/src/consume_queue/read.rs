//! Reads of the units of a queue, from the process that writes and from others.
//!
//! Readers lock only the list of files, for a moment, and read by position or from a map, so a writer never waits for
//! them.
//!
//! Source: `ConsumeQueue`, `ConsumeQueueInterface`.

use mqstore_format::{CQ_UNIT_BYTES, CqUnit};
use mqstore_io::sync::Arc;
use mqstore_io::{Access, Region};

use super::layout::{FilePart, UNIT_BYTES};
use super::queue::ConsumeQueue;
use super::units;
use mqstore_base::error::StoreError;

/// Maximum bytes of one positional read in [`ConsumeQueue::read`].
const READ_BYTES: u64 = 52_428 * UNIT_BYTES;

/// The place of a unit in a mapped file.
#[derive(Debug)]
pub struct MappedUnit {
    map: Arc<Region>,
    position: usize,
}

impl MappedUnit {
    /// Returns the unit; `None` if it is blank.
    pub fn unit(&self) -> Option<CqUnit> {
        let mut bytes = [0; CQ_UNIT_BYTES];
        self.map.read(self.position, &mut bytes).ok()?;
        Some(CqUnit::decode(&bytes)).filter(|unit| !unit.is_blank())
    }
}

impl ConsumeQueue {
    /// Appends the committed units from `from` on to `out`, at most `max_units`.
    ///
    /// Each offset has one unit, exactly as it is on disk: a unit with [`CqUnit::is_blank`], or of size 0, stands for
    /// an offset without a message. At the maximum, the result is empty; an offset outside the queue is
    /// [`StoreError::OffsetOutOfRange`]. After an error, `out` may hold the units before it.
    pub fn read(&self, from: i64, max_units: usize, out: &mut Vec<CqUnit>) -> Result<(), StoreError> {
        self.read_each(from, max_units, |_, unit| out.push(unit))
    }

    /// Like [`Self::read`], and passes the offset of each unit.
    pub fn read_each(
        &self,
        from: i64,
        max_units: usize,
        mut each: impl FnMut(i64, CqUnit),
    ) -> Result<(), StoreError> {
        self.check_range(from)?;
        let outcome = self.read_files(from, max_units, &mut each);
        if outcome.is_err() {
            // Retention may have removed the file since the check of the minimum.
            self.check_range(from)?;
        }
        outcome
    }

    /// Returns the place of the unit of `offset` in memory and prefetches it; `None` if the queue lacks the offset or
    /// the file is not mapped.
    pub fn mapped_unit(&self, offset: i64) -> Option<MappedUnit> {
        if !(self.min_offset()..self.max_offset()).contains(&offset) {
            return None;
        }
        let part = self.layout().parts(offset..offset + 1).next()?;
        self.check_name_exists(&part).ok()?;
        let map = self.in_memory(part.base)?;
        let position = part.position as usize;
        map.expect_read(position, CQ_UNIT_BYTES);
        Some(MappedUnit { map, position })
    }

    /// Asks the system to fetch up to `units` units from `from` on, which will be read soon.
    pub fn prefetch(&self, from: i64, units: i64) {
        let to = from.saturating_add(units).min(self.max_offset());
        for part in self.layout().parts(from.max(self.min_offset())..to) {
            // The read itself will find and report this error.
            if let Ok(file) = self.file(part.base) {
                let _ = file.expect_read(part.position, part.end_position() - part.position);
            }
        }
    }

    /// Like [`Self::prefetch`], for a file system that fetches what it reads: a file is divided into equal ranges of at
    /// most `most_bytes`, and the range of the unit at `offset` is fetched. A reader that names one offset after
    /// another needs one request for each range.
    pub fn prefetch_range(&self, offset: i64, most_bytes: u64) {
        let max = self.max_offset();
        if !(self.min_offset()..max).contains(&offset) || most_bytes == 0 {
            return;
        }
        let (layout, base) = (self.layout(), self.layout().base_of(offset));
        let range_bytes = layout.file_bytes().div_ceil(layout.file_bytes().div_ceil(most_bytes));
        let start = layout.position_of(offset) / range_bytes * range_bytes;
        let end = self.position_in(base, max).min(start + range_bytes);
        // The read itself will find and report this error.
        if let Ok(file) = self.file(base) {
            let _ = file.expect_read(start, end.saturating_sub(start));
        }
    }

    fn check_range(&self, offset: i64) -> Result<(), StoreError> {
        let (min_offset, max_offset) = (self.min_offset(), self.max_offset());
        if (min_offset..=max_offset).contains(&offset) {
            return Ok(());
        }
        let (topic, queue_id) = (self.topic().to_owned(), self.queue_id());
        Err(StoreError::OffsetOutOfRange { topic, queue_id, offset, min_offset, max_offset })
    }

    fn read_files(
        &self,
        from: i64,
        max_units: usize,
        each: &mut impl FnMut(i64, CqUnit),
    ) -> Result<(), StoreError> {
        let wanted = i64::try_from(max_units).unwrap_or(i64::MAX).min(self.max_offset() - from);
        let mut buffer = Vec::new();
        let mut offset = from;
        let mut take = |units: &[[u8; CQ_UNIT_BYTES]]| {
            for unit in units {
                each(offset, CqUnit::decode(unit));
                offset += 1;
            }
        };
        for part in self.layout().parts(from..from + wanted) {
            self.check_name_exists(&part)?;
            if let Some(map) = self.in_memory(part.base) {
                // Committed units never change.
                let bytes = map.view(part.position as usize, (part.end_position() - part.position) as usize);
                let bytes = bytes.map_err(|error| self.io(part.base, "reading queue units", error.into()))?;
                take(bytes.as_chunks().0);
                continue;
            }
            let file = self.files.get(&self.home.cache, part.base, || self.file(part.base))?;
            let mut position = part.position;
            while position < part.end_position() {
                let end = part.end_position().min(position + READ_BYTES);
                let units = units::read_units(&*file, position..end, &mut buffer)
                    .map_err(|source| self.io(part.base, "reading queue units", source))?;
                take(units);
                position = end;
            }
        }
        Ok(())
    }

    /// Returns the map of the file `base`, if it can be mapped. A process that only reads uses no map, because the
    /// writer could cut the file under it.
    fn in_memory(&self, base: u64) -> Option<Arc<Region>> {
        if self.home.access == Access::Read {
            return None;
        }
        let map = || self.home.cache.map(&self.path(base), Access::ReadWrite, self.layout().file_bytes());
        self.maps.get(&self.home.cache, base, map).ok()
    }

    fn check_name_exists(&self, part: &FilePart) -> Result<(), StoreError> {
        if self.list.read().bases.binary_search(&part.base).is_err() {
            let reason = format!(
                "the queue file with offsets {} to {} is missing; run `mqstore rebuild` to derive it from the log",
                part.offsets.start, part.offsets.end
            );
            return Err(StoreError::corrupt(&self.path(part.base), 0, reason));
        }
        Ok(())
    }
}
