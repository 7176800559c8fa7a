//! Removal of queue files whose records are all gone, because the log lost its oldest segments.
//!
//! The oldest file goes first. The last file never goes, because it keeps the queue's next offset, which continues even
//! in a queue without messages. "Last" means the last file after a power loss: a newer file does not count until its
//! units are synced.
//!
//! Across a crash: each removal is durable before the next one of that queue, so no queue gets a hole. Across threads:
//! the minimum passes a file before the file is removed ([`QueueUnit::advance_min_offset`]), so no read is led to
//! it.
//!
//! Source: `ConsumeQueue#deleteExpiredFile`, `MappedFileQueue#deleteExpiredFileByOffset`.

use mqstore_io::switch;

use super::queue::{Queue, QueueUnit};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::OldFile;

impl<U: QueueUnit> Queue<U> {
    /// Returns the files whose last unit points before log offset `log_min`, oldest first. It never returns the last
    /// file with a unit for a record before `synced_to`, up to which log and queues are synced.
    pub fn files_below(&self, log_min: u64, synced_to: u64) -> Result<Vec<OldFile>, StoreError> {
        Ok(self.bases_below(log_min, synced_to)?.into_iter().map(|(_, file)| file).collect())
    }

    fn bases_below(&self, log_min: u64, synced_to: u64) -> Result<Vec<(u64, OldFile)>, StoreError> {
        let bases = self.list.read().bases.clone();
        let mut older = bases.as_slice();
        while let Some((&last, before)) = older.split_last() {
            older = before;
            if U::first_log_offset(self, last)?.is_some_and(|first| first < synced_to) {
                break;
            }
        }
        let mut found = Vec::new();
        for &base in older {
            if U::last_log_offset(self, base)?.is_some_and(|last| last >= log_min) {
                break;
            }
            let offsets = U::offsets_of(self, base)?;
            let file = OldFile {
                path: self.path(base),
                bytes: self.layout().file_bytes(),
                first_offset: offsets.start,
                last_offset: offsets.end - 1,
            };
            found.push((base, file));
        }
        Ok(found)
    }

    /// Returns the log offset of the first record that a unit in the files points to, also before the minimum; `None`
    /// if there is no such unit.
    pub fn first_log_offset(&self) -> Result<Option<u64>, StoreError> {
        let bases = self.list.read().bases.clone();
        for base in bases {
            if let Some(first) = U::first_log_offset(self, base)? {
                return Ok(Some(first));
            }
        }
        Ok(None)
    }

    /// Moves the minimum to that of the log, never back, then removes the files of [`Self::files_below`]. Durable
    /// when it returns. Calls `removed` for each file.
    pub fn remove_below(
        &self,
        log_min: u64,
        synced_to: u64,
        removed: &mut dyn FnMut(&OldFile),
    ) -> Result<(), StoreError> {
        self.home.writable("delete queue files")?;
        let old = self.bases_below(log_min, synced_to)?;
        if old.is_empty() {
            return Ok(());
        }
        U::advance_min_offset(self, log_min)?;
        // A thread that writes a unit to one of these files takes this lock too, and then finds that the file is gone.
        let mut writing = self.writing.lock();
        let folder = self.folder();
        for (base, file) in old {
            self.list.write().bases.retain(|other| *other != base);
            let busy = writing.busy_mut();
            busy.dirty_files.remove(&base);
            busy.recent = None;
            self.home.remove_file(&file.path, "deleting a queue file")?;
            switch::step("retention.sync_queue_removal", || self.home.files.vfs.sync_dir(&folder))
                .at(&folder, "syncing the folder of a queue")?;
            removed(&file);
        }
        Ok(())
    }

    /// Removes the files of a queue whose messages were all deleted with its topic. The last file goes first, so a
    /// program that finds the rest after a stop finds a shorter queue without a hole.
    pub(crate) fn remove_deleted(&self) -> Result<(), StoreError> {
        if self.deletion_position() == 0 {
            return Ok(());
        }
        let mut writing = self.writing.lock();
        if !self.is_deleted(self.max_physical_end()) {
            return Ok(());
        }
        let mut gone = self.list.read().bases.clone();
        gone.extend(&writing.busy().vacant);
        if !gone.is_empty() {
            gone.sort_unstable();
            self.forget_files_of(&mut writing);
        }
        for base in gone.into_iter().rev() {
            self.home.remove_file(&self.path(base), "removing a file of a deleted topic")?;
        }
        self.home.remove_empty_folders(&self.folder());
        Ok(())
    }
}

impl super::QueueSet {
    /// Moves the minimum of the topic's queues to its floor.
    pub fn correct_min_offsets_of(&self, topic: &str) -> Result<(), StoreError> {
        self.plain.of_topic(topic).iter().try_for_each(|queue| QueueUnit::advance_min_offset(&**queue, 0))?;
        self.batch.of_topic(topic).iter().try_for_each(|queue| QueueUnit::advance_min_offset(&**queue, 0))
    }

    /// Moves the minimum of every queue to that of the log. Call it before the log removes older segments.
    pub fn correct_min_offsets(&self, log_min: u64) -> Result<(), StoreError> {
        self.for_each(|queue| queue.correct_min_offset(log_min))?;
        self.batches().iter().try_for_each(|queue| queue.correct_min_offset(log_min))
    }
}
