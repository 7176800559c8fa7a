//! Queue files that lead to nothing any more, because the log lost its oldest segments.
//!
//! Owns their removal, the oldest first and never the last one of a queue, which keeps the queue's
//! place: the next message of a queue without messages has the offset behind the last one that was. The
//! last one is that which a loss of power would leave: a newer file whose entries are not synced counts
//! for nothing.
//!
//! Across a crash: each removal is durable before the next one of that queue, so that no queue is left
//! with a hole. Across threads: the minimum has passed a file before it goes
//! ([`ConsumeQueue::correct_min_offset`]), so that no read is led to it.
//!
//! Source: `ConsumeQueue#deleteExpiredFile`, `MappedFileQueue#deleteExpiredFileByOffset`.

use mqstore_io::switch;

use super::layout::offset_at;
use super::queue::ConsumeQueue;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::OldFile;

impl ConsumeQueue {
    /// The files whose last entry leads to a record before log position `log_min`, oldest first; never
    /// the last file with an entry for a record before `synced_to`, up to where log and queues are synced.
    pub fn files_below(&self, log_min: u64, synced_to: u64) -> Result<Vec<OldFile>, StoreError> {
        let bases = self.bases.read().clone();
        let mut older = bases.as_slice();
        while let Some((&last, before)) = older.split_last() {
            older = before;
            if self.starts_before(last, synced_to)? {
                break;
            }
        }
        let mut found = Vec::new();
        for &base in older {
            if self.ends_at_or_after(base, self.layout().file_bytes(), log_min)? {
                break;
            }
            found.push(OldFile {
                path: self.path(base),
                bytes: self.layout().file_bytes(),
                first_offset: offset_at(base, 0),
                last_offset: self.layout().end_of(base) - 1,
            });
        }
        Ok(found)
    }

    /// Moves the minimum to the log's, as [`Self::correct_min_offset`], then removes
    /// [`Self::files_below`] it; durable when it returns. `removed` hears of each file.
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
        self.correct_min_offset(log_min)?;
        // Whoever writes an entry to one of these files does so under this lock, and finds it gone.
        let mut writing = self.writing.lock();
        let folder = self.folder();
        for file in old {
            let base = self.layout().base_of(file.first_offset);
            {
                let mut bases = self.bases.write();
                let kept: Vec<u64> = bases.iter().copied().filter(|other| *other != base).collect();
                *bases = kept;
            }
            let busy = writing.busy_mut();
            busy.dirty_files.remove(&base);
            busy.recent = None;
            self.home.remove_file(&file.path, "deleting a queue file")?;
            switch::step("retention.sync_queue_removal", || self.home.files.vfs.sync_dir(&folder))
                .at(&folder, "syncing a queue's folder")?;
            removed(&file);
        }
        Ok(())
    }
}

impl super::QueueSet {
    /// Moves the minimum of every queue to the log's: before the log loses what lies below.
    pub fn correct_min_offsets(&self, log_min: u64) -> Result<(), StoreError> {
        self.for_each(|queue| queue.correct_min_offset(log_min))?;
        self.batches().iter().try_for_each(|queue| queue.correct_min_offset(log_min))
    }
}
