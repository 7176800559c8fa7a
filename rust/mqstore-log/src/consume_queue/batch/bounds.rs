//! The bounds of a batch queue: found from its files, cut to the log, and moved with the start of the log.
//!
//! Finding the bounds never writes and trusts nothing: in the last file, units count from the first one on while they
//! are possible and in order. A file without a unit counts as missing. A cut goes from the last file to the first, so a
//! crash in between leaves a shorter queue and never one with a hole.
//!
//! Source: `BatchConsumeQueue#recover`, `#truncateDirtyLogicFiles`, `#correctMinOffset`, `#deleteExpiredFile`.

use mqstore_format::BatchCqUnit;
use mqstore_io::VfsFile;
use mqstore_io::switch;
use mqstore_io::sync::Ordering;

use super::queue::{BatchFileRow, BatchQueue, Writing, follows};
use crate::consume_queue::discover;
use crate::consume_queue::layout::BATCH_UNIT_BYTES;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::retry::retry_if_gone;
use mqstore_base::store_files::OldFile;

/// Bytes of one read or one write of zeros.
const CHUNK_BYTES: u64 = 512 * BATCH_UNIT_BYTES;

impl BatchQueue {
    /// Lists the files again and finds the bounds from them. Changes nothing on disk. [`Self::damaged`] describes the
    /// damage that it finds. If another process removes a listed file meanwhile, the files are listed again.
    pub fn recover_bounds(&self) -> Result<(), StoreError> {
        retry_if_gone(&*self.home.files.clock, || self.find_bounds())
    }

    fn find_bounds(&self) -> Result<(), StoreError> {
        let folder = self.folder();
        let entries = discover::list_queue(&*self.home.files.vfs, &folder)?;
        let mut listing = discover::classify(&folder, &entries, self.home.layout);
        let mut writing = self.writing.lock();
        *writing = Writing { vacant: listing.empty_last.into_iter().collect(), ..Writing::default() };
        if listing.damaged.is_some() {
            // A search is not possible if a file is missing; recovery derives the queue from the log.
            listing.bases.clear();
        }
        let mut end = 0;
        while let Some(&base) = listing.bases.last() {
            let (len, last) = self.filled_bytes(base, |_| true)?;
            if last.is_some() {
                (end, writing.last) = (base + len, last);
                break;
            }
            writing.vacant.insert(base);
            listing.bases.pop();
        }
        *self.damage.lock() = listing.damaged;
        *self.row.write() = BatchFileRow { bases: listing.bases, end, max: end_of(writing.last.as_ref()) };
        self.publish_bounds(0, 0)
    }

    /// Returns the byte length of the units at the front of the file `base` that are in order and `wanted`, and the
    /// last of them.
    fn filled_bytes(
        &self,
        base: u64,
        wanted: impl Fn(&BatchCqUnit) -> bool,
    ) -> Result<(u64, Option<BatchCqUnit>), StoreError> {
        let file = self.file(base)?;
        let mut last: Option<BatchCqUnit> = None;
        let mut position = 0;
        while position < self.file_bytes() {
            let end = self.file_bytes().min(position + CHUNK_BYTES);
            let mut bytes = vec![0; (end - position) as usize];
            file.read_exact_at(&mut bytes, position)
                .map_err(|source| self.io(base, "reading the end of a queue", source))?;
            for unit in BatchCqUnit::decode_all(&bytes) {
                if !follows(last.as_ref(), &unit) || !wanted(&unit) {
                    return Ok((position, last));
                }
                last = Some(unit);
                position += BATCH_UNIT_BYTES;
            }
        }
        Ok((position, last))
    }

    /// Removes every unit whose record starts at or after log offset `log_end`, and everything after the last unit that
    /// stays. Removes files that have no unit then.
    pub fn truncate(&self, log_end: u64) -> Result<(), StoreError> {
        self.home.writable("cut a queue")?;
        let mut writing = self.writing.lock();
        let row = self.row.read().clone();
        let (end, last) = self.end_before(&row, writing.last, log_end)?;
        writing.last = last;
        let kept: Vec<u64> = row.bases.iter().copied().filter(|base| *base < end).collect();
        let mut gone: Vec<u64> = row.bases.iter().copied().filter(|base| *base >= end).collect();
        gone.extend(std::mem::take(&mut writing.vacant));
        gone.sort_unstable();
        // Readers must not be led to the removed units.
        let end = if kept.is_empty() { 0 } else { end };
        *self.row.write() = BatchFileRow { bases: kept.clone(), end, max: end_of(writing.last.as_ref()) };
        self.publish_bounds(0, 0)?;
        for base in gone.into_iter().rev() {
            self.remove_file(&mut writing, base)?;
            self.home.mark_folder(&self.folder());
        }
        if let Some(&base) = kept.last().filter(|base| end < **base + self.file_bytes()) {
            self.clear(&mut writing, base, end - base)?;
        }
        Ok(())
    }

    /// Returns the last unit whose record starts before log offset `log_end`, and the position after it. All units up
    /// to there are synced. `last` is the last unit of the queue.
    ///
    /// After these units, a power loss may leave each sector in any state that it had since the last sync. A unit
    /// across two sectors can then be a mixture of two states, and name a log offset before `log_end`, which would
    /// mislead a binary search. But the first unit of a file is in one sector. So the last file whose first unit is
    /// before `log_end` contains the end, and is read from its front.
    fn end_before(
        &self,
        row: &BatchFileRow,
        last: Option<BatchCqUnit>,
        log_end: u64,
    ) -> Result<(u64, Option<BatchCqUnit>), StoreError> {
        let before = |unit: &BatchCqUnit| unit.is_valid() && (unit.physical_offset as u64) < log_end;
        // Recovery has found that the units before it in its file are in order.
        if last.as_ref().is_some_and(before) {
            return Ok((row.end, last));
        }
        for &base in row.bases.iter().rev() {
            if before(&self.unit_at(base)?) {
                let (len, last) = self.filled_bytes(base, before)?;
                return Ok((base + len, last));
            }
        }
        Ok((row.start(), None))
    }

    /// Zeroes the nonzero bytes of the file `base` from `from` on.
    fn clear(&self, writing: &mut Writing, base: u64, from: u64) -> Result<(), StoreError> {
        let file = self.file(base)?;
        let action = "cutting a queue";
        // In a sparse file, everything after the data is zero.
        let mut chunks = Vec::new();
        let mut position = from;
        while let Some(data) =
            self.next_data(&*file, position).map_err(|source| self.io(base, action, source))?
        {
            let start = data.max(position);
            let end = self.file_bytes().min(start + CHUNK_BYTES);
            let mut bytes = vec![0; (end - start) as usize];
            file.read_exact_at(&mut bytes, start).map_err(|source| self.io(base, action, source))?;
            if bytes.iter().any(|byte| *byte != 0) {
                chunks.push(start..end);
            }
            position = end;
        }
        // Zeroes backwards, so that a crash leaves a shorter queue.
        for chunk in chunks.into_iter().rev() {
            writing.dirty.insert(base);
            file.write_all_at(&vec![0; (chunk.end - chunk.start) as usize], chunk.start)
                .map_err(|source| self.io(base, action, source))?;
        }
        Ok(())
    }

    fn next_data(&self, file: &dyn VfsFile, from: u64) -> std::io::Result<Option<u64>> {
        if from >= self.file_bytes() {
            return Ok(None);
        }
        Ok(file.next_data(from)?.filter(|data| *data < self.file_bytes()))
    }

    /// Moves the minimum to the first unit whose record starts at or after `log_min`, the minimum of the log; to the
    /// maximum if none does.
    pub fn correct_min_offset(&self, log_min: u64) -> Result<(), StoreError> {
        let _writing = self.writing.lock();
        self.publish_bounds(log_min, 0)
    }

    /// Like [`Self::correct_min_offset`], but never moves the minimum back, as in a plain queue.
    pub(in crate::consume_queue) fn advance_min_offset(&self, log_min: u64) -> Result<(), StoreError> {
        let _writing = self.writing.lock();
        self.publish_bounds(log_min, self.min.load(Ordering::Acquire))
    }

    /// Returns the end of the queue for a reader whose log ends at `log_end`; 0 if no unit is left.
    pub fn max_offset_for(&self, log_end: u64) -> Result<i64, StoreError> {
        let row = self.row.read().clone();
        let end = self.search(&row, |unit| (unit.physical_offset as u64) < log_end)?;
        if end == row.start() {
            return Ok(self.first_offset());
        }
        let last = self.unit_at(end - BATCH_UNIT_BYTES)?;
        if self.is_deleted(last.physical_offset) {
            return Ok(self.first_offset());
        }
        Ok(last.next_offset().min(self.max_offset()))
    }

    /// Publishes the bounds of the row to readers, without the records before `log_min` and before the floor of the
    /// topic. The minimum is at least `least`. Only for the writer.
    fn publish_bounds(&self, log_min: u64, least: i64) -> Result<(), StoreError> {
        let row = self.row.read().clone();
        let (floor, deleted) =
            (self.home.floors.log_offset(self.topic()), self.home.floors.deleted(self.topic()));
        let log_min = log_min.max(floor);
        let first = self.search(&row, |unit| (unit.physical_offset as u64) < log_min)?;
        // A queue whose units are all from before a deletion of its topic is empty.
        let is_deleted = first == row.end && deleted > 0 && self.ends_before(&row, deleted)?;
        let max = if is_deleted { 0 } else { row.max };
        let min = if first < row.end { self.unit_at(first)?.base_offset } else { max };
        self.min.store(min.max(least.min(max)), Ordering::Release);
        self.max.store(max, Ordering::Release);
        Ok(())
    }

    /// Whether no record of a unit starts at or after log offset `position`.
    fn ends_before(&self, row: &BatchFileRow, position: u64) -> Result<bool, StoreError> {
        Ok(row.end == row.start()
            || (self.unit_at(row.end - BATCH_UNIT_BYTES)?.physical_offset as u64) < position)
    }

    /// Removes the files of a queue whose messages were all deleted with its topic.
    pub(crate) fn remove_deleted(&self) -> Result<(), StoreError> {
        let deleted = self.home.floors.deleted(self.topic());
        let row = self.row.read().clone();
        // The files of a damaged queue are not known; recovery moves all of them away.
        if deleted == 0 || self.damaged().is_some() || !self.ends_before(&row, deleted)? {
            return Ok(());
        }
        let vacant = std::mem::take(&mut self.writing.lock().vacant);
        if !row.bases.is_empty() || !vacant.is_empty() {
            self.forget_files();
        }
        for base in row.bases.iter().chain(&vacant).rev() {
            self.home.remove_file(&self.path(*base), "removing a file of a deleted topic")?;
        }
        self.home.remove_empty_folders(&self.folder());
        Ok(())
    }

    /// Returns the files whose last unit points before log offset `log_min`, oldest first. It never returns the last
    /// file that begins before `synced_to`, because this file keeps the queue's next offset.
    pub fn files_below(&self, log_min: u64, synced_to: u64) -> Result<Vec<OldFile>, StoreError> {
        let row = self.row.read().clone();
        let mut older = row.bases.as_slice();
        while let Some((&last, before)) = older.split_last() {
            older = before;
            if (self.unit_at(last)?.physical_offset as u64) < synced_to {
                break;
            }
        }
        let mut found = Vec::new();
        for &base in older {
            let last = self.unit_at(base + self.file_bytes() - BATCH_UNIT_BYTES)?;
            if last.physical_offset as u64 >= log_min {
                break;
            }
            found.push(OldFile {
                path: self.path(base),
                bytes: self.file_bytes(),
                first_offset: self.unit_at(base)?.base_offset,
                last_offset: last.next_offset() - 1,
            });
        }
        Ok(found)
    }

    /// Returns the log offset of the first record that a unit in the files points to, also before the minimum; `None`
    /// if there are no files.
    pub fn first_log_offset(&self) -> Result<Option<u64>, StoreError> {
        let first = self.row.read().bases.first().copied();
        let unit = first.map(|base| self.unit_at(base)).transpose()?;
        Ok(unit.and_then(|unit| u64::try_from(unit.physical_offset).ok()))
    }

    /// Moves the minimum to that of the log and removes the files of [`Self::files_below`]. Each removal is durable
    /// before the next one. Calls `removed` for each file.
    pub fn remove_below(
        &self,
        log_min: u64,
        synced_to: u64,
        removed: &mut dyn FnMut(&OldFile),
    ) -> Result<(), StoreError> {
        self.home.writable("delete queue files")?;
        let old = self.files_below(log_min, synced_to)?;
        if old.is_empty() {
            return Ok(());
        }
        self.advance_min_offset(log_min)?;
        let mut writing = self.writing.lock();
        let folder = self.folder();
        for file in old {
            let Some(base) = self.row.read().bases.first().copied() else { break };
            self.row.write().bases.remove(0);
            self.remove_file(&mut writing, base)?;
            switch::step("retention.sync_batch_queue_removal", || self.home.files.vfs.sync_dir(&folder))
                .at(&folder, "syncing the folder of a queue")?;
            removed(&file);
        }
        Ok(())
    }

    fn remove_file(&self, writing: &mut Writing, base: u64) -> Result<(), StoreError> {
        writing.dirty.remove(&base);
        self.home.remove_file(&self.path(base), "removing a queue file")
    }

    /// Makes the queue empty after its folder was moved away.
    pub(in crate::consume_queue) fn forget_files(&self) {
        let mut writing = self.writing.lock();
        *writing = Writing::default();
        self.home.cache.forget_dir(&self.folder());
        *self.row.write() = BatchFileRow::default();
        *self.damage.lock() = None;
        self.min.store(0, Ordering::Release);
        self.max.store(0, Ordering::Release);
    }
}

fn end_of(last: Option<&BatchCqUnit>) -> i64 {
    last.map_or(0, BatchCqUnit::next_offset)
}
