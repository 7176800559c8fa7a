//! The bounds of a batch queue: found from its files, cut to the log, and moved with the start of the log.
//!
//! Finding the bounds never writes and trusts nothing: in the last file, units count from the first one on while they
//! are possible and in order. A file without a unit counts as missing. A cut goes from the last file to the first, so a
//! crash in between leaves a shorter queue and never one with a hole.
//!
//! Source: `BatchConsumeQueue#recover`, `#truncateDirtyLogicFiles`, `#correctMinOffset`, `#deleteExpiredFile`.

use std::mem;

use mqstore_format::BatchCqUnit;
use mqstore_io::VfsFile;

use super::queue::{BatchFiles, BatchQueue, BatchTail, follows};
use crate::consume_queue::layout::BATCH_UNIT_BYTES;
use crate::consume_queue::queue::Writing;
use mqstore_base::error::StoreError;
use mqstore_base::retry::retry_if_gone;

/// Bytes of one read or one write of zeros.
const CHUNK_BYTES: u64 = 512 * BATCH_UNIT_BYTES;

impl BatchQueue {
    /// Lists the files again and finds the bounds from them. Changes nothing on disk. [`Self::damaged`] describes the
    /// damage that it finds. If another process removes a listed file meanwhile, the files are listed again.
    pub fn recover_bounds(&self) -> Result<(), StoreError> {
        retry_if_gone(&*self.home.files.clock, || self.find_bounds())
    }

    fn find_bounds(&self) -> Result<(), StoreError> {
        let mut writing = self.writing.lock();
        writing.busy_mut().vacant.clear();
        let (mut bases, _) = self.take_listing(&mut writing)?;
        if self.damaged().is_some() {
            // A search is not possible if a file is missing; recovery derives the queue from the log.
            bases.clear();
            writing.busy_mut().vacant.clear();
        }
        let mut tail = BatchTail::default();
        while let Some(&base) = bases.last() {
            let (len, last) = self.filled_bytes(base, |_| true)?;
            if last.is_some() {
                tail = BatchTail { end: base + len, last };
                break;
            }
            writing.busy_mut().vacant.insert(base);
            bases.pop();
        }
        *self.list.write() = BatchFiles { bases, tail };
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
        let list = self.list.read().clone();
        let tail = self.tail_before(&list, log_end)?;
        let kept = list.bases.partition_point(|base| *base < tail.end);
        let (kept, gone) = list.bases.split_at(kept);
        let gone = gone.iter().copied().chain(mem::take(&mut writing.busy_mut().vacant)).collect();
        // Readers must not be led to the removed units.
        let end = tail.end;
        let tail = if kept.is_empty() { BatchTail::default() } else { tail };
        *self.list.write() = BatchFiles { bases: kept.to_vec(), tail };
        self.publish_bounds(0, 0)?;
        self.remove_files(gone)?;
        if let Some(&base) = kept.last().filter(|base| end < **base + self.file_bytes()) {
            self.clear(&mut writing, base, end - base)?;
        }
        Ok(())
    }

    /// Returns the last unit whose record starts before log offset `log_end`, and the position after it. All units up
    /// to there are synced.
    ///
    /// After these units, a power loss may leave each sector in any state that it had since the last sync. A unit
    /// across two sectors can then be a mixture of two states, and name a log offset before `log_end`, which would
    /// mislead a binary search. But the first unit of a file is in one sector. So the last file whose first unit is
    /// before `log_end` contains the end, and is read from its front.
    fn tail_before(&self, list: &BatchFiles, log_end: u64) -> Result<BatchTail, StoreError> {
        let before = |unit: &BatchCqUnit| unit.is_valid() && (unit.physical_offset as u64) < log_end;
        // Recovery has found that the units before it in its file are in order.
        if list.tail.last.as_ref().is_some_and(before) {
            return Ok(list.tail.clone());
        }
        for &base in list.bases.iter().rev() {
            if before(&self.unit_at(base)?) {
                let (len, last) = self.filled_bytes(base, before)?;
                return Ok(BatchTail { end: base + len, last });
            }
        }
        Ok(BatchTail { end: list.start(), last: None })
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
            self.touch(writing, base);
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

    /// Returns the end of the queue for a reader whose log ends at `log_end`; 0 if no unit is left.
    pub fn max_offset_for(&self, log_end: u64) -> Result<i64, StoreError> {
        let list = self.list.read().clone();
        let end = self.search(&list, |unit| (unit.physical_offset as u64) < log_end)?;
        if end == list.start() {
            return Ok(self.first_offset());
        }
        let last = self.unit_at(end - BATCH_UNIT_BYTES)?;
        Ok(self.end_after(last.next_offset(), last.physical_end()).min(self.max_offset()))
    }

    /// Publishes the bounds of the files to readers, without the records before `log_min` and before the floor of the
    /// topic. The minimum is at least `least`. Only for the writer.
    pub(super) fn publish_bounds(&self, log_min: u64, least: i64) -> Result<(), StoreError> {
        let list = self.list.read().clone();
        let log_min = log_min.max(self.floor_position());
        let first = self.search(&list, |unit| (unit.physical_offset as u64) < log_min)?;
        let max = list.max();
        let min = if first < list.tail.end { self.unit_at(first)?.base_offset } else { max };
        self.publish((min.max(least.min(max)), max, list.physical_end()));
        Ok(())
    }
}
