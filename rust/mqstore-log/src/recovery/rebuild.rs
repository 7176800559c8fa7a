//! Rebuild: derives queues and index from the whole log, in a staging folder.
//!
//! This module owns `mqstore/tmp/rebuild/`, a store root that holds only folders of derived files:
//!
//! ```text
//! mqstore/tmp/rebuild/consumequeue/       <- exchanged with -> consumequeue/
//! mqstore/tmp/rebuild/batchconsumequeue/  <- exchanged with -> batchconsumequeue/
//! mqstore/tmp/rebuild/index/              <- exchanged with -> index/
//! ```
//!
//! A rebuild first builds and syncs everything there. Then it exchanges each folder with the folder in use, in one
//! step, and deletes the old folders with the staging folder. After a crash each folder is either completely old or
//! completely new. Old and new folders can be mixed, because each of the three depends on the log alone. The next open
//! empties the staging folder. The log does not change.
//!
//! A rebuild keeps facts that the log does not hold: if the log has no record of a queue any more, the last unit of its
//! old files keeps its next offset. Files in the old folders that are no part of a store go to `lost+found`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_io::{Access, Vfs, switch};

use crate::commit_log::SegmentList;
use crate::consume_queue::QueueSet;
use crate::dispatch::{DispatchRules, Dispatcher};
use crate::index::IndexSet;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;

/// The result of a rebuild.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RebuildReport {
    /// Records of the log that were dispatched.
    pub messages: u64,
    /// Byte length of the log.
    pub bytes: u64,
    /// Queues that have units now.
    pub queues: u64,
    /// Entries of the index.
    pub index_entries: u64,
    /// Notes on damage in the log that was skipped, and on records that no queue can hold.
    pub skipped: Vec<String>,
}

/// The input of a rebuild.
#[derive(Clone, Debug)]
pub struct RebuildInput {
    /// The segments.
    pub list: Arc<SegmentList>,
    /// The rules that decide which units and entries a record gets.
    pub rules: DispatchRules,
    /// Worker threads in addition to the calling thread.
    pub helpers: u32,
}

/// A rebuild in progress.
#[derive(Debug)]
pub struct RebuildRun {
    files: StoreFiles,
    /// Paths of the staged root.
    staged: StoreFiles,
    what: RebuildInput,
    queues: Arc<QueueSet>,
    index: Arc<IndexSet>,
    dispatcher: Dispatcher,
}

impl RebuildRun {
    /// Creates empty derived files in the staging folder, with the geometry of `queues` and `index`, which are in use.
    pub fn begin(
        files: &StoreFiles,
        (queues, index): (&QueueSet, &IndexSet),
        what: RebuildInput,
    ) -> Result<Self, StoreError> {
        let root = files.rebuild();
        remove_tree(&*files.vfs, &root)?;
        let staged = StoreFiles::new(Arc::clone(&files.vfs), Arc::clone(&files.clock), &root);
        let folder = staged.staging();
        files.vfs.create_dir_all(&folder).at(&folder, "creating the folder of a rebuild")?;
        let queues = Arc::new(queues.aside(&staged)?);
        let index = Arc::new(IndexSet::load(&staged, None, index.geometry(), Access::ReadWrite)?);
        let dispatcher = Dispatcher::new(
            &staged,
            Arc::clone(&what.list),
            Arc::clone(&queues),
            Arc::clone(&index),
            what.rules.clone(),
            what.list.min_offset(),
            0,
        );
        Ok(Self { files: files.clone(), staged, what, queues, index, dispatcher })
    }

    /// Dispatches the log up to `end` and syncs the new files. `watch` receives the position reached; if it returns an
    /// error, the call ends with that error.
    pub fn build_to(
        &self,
        list: &Arc<SegmentList>,
        end: u64,
        watch: &mut dyn FnMut(u64) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        self.dispatcher.run_with_helpers(self.what.helpers, list, end, watch)?;
        self.queues.flush()?;
        self.index.flush()
    }

    /// Last dispatched record: log offset and store time.
    pub fn last_record(&self) -> Option<(u64, i64)> {
        self.dispatcher.last_record()
    }

    /// The new index.
    pub fn index(&self) -> &IndexSet {
        &self.index
    }

    /// The new queues.
    pub fn queues(&self) -> &QueueSet {
        &self.queues
    }

    /// Exchanges the new files with the files in use.
    pub fn swap(&self) -> Result<(), StoreError> {
        self.keep_end_offsets()?;
        self.keep_strays()?;
        let (files, staged) = (&self.files, &self.staged);
        for (new, old) in [
            (staged.consume_queue(), files.consume_queue()),
            (staged.batch_consume_queue(), files.batch_consume_queue()),
            (staged.index(), files.index()),
        ] {
            swap_folder(&*files.vfs, &new, &old)?;
        }
        for folder in [&files.root, &staged.root] {
            switch::step("rebuild.sync_swap", || files.vfs.sync_dir(folder))
                .at(folder, "syncing a folder")?;
        }
        // After the exchange, the staging folder holds the old files.
        self.queues.release();
        self.index.release();
        remove_tree(&*files.vfs, &staged.root)
    }

    /// Keeps the next offset of each queue without a record in the log, by its last old file.
    fn keep_end_offsets(&self) -> Result<(), StoreError> {
        let old = QueueSet::load(&self.files, self.queues.file_bytes(), Access::Read)?;
        for queue in old.all() {
            queue.recover_bounds()?;
            let made = self.queues.get(queue.topic(), queue.queue_id()).map_or(0, |made| made.max_offset());
            if made == 0 && queue.damaged().is_none() && self.log_lost(queue.max_physical_end()) {
                self.keep_last_file(&self.files.consume_queue(), queue.topic(), queue.queue_id())?;
            }
        }
        for queue in old.batches() {
            queue.recover_bounds()?;
            let made = self.queues.batch(queue.topic(), queue.queue_id()).map_or(0, |made| made.max_offset());
            let last = queue.last_physical_offset().map_or(0, |last| last + 1);
            if made == 0 && queue.damaged().is_none() && self.log_lost(last) {
                self.keep_last_file(&self.files.batch_consume_queue(), queue.topic(), queue.queue_id())?;
            }
        }
        self.queues.flush()
    }

    /// Whether retention removed all records of a queue whose last record ends at `physical_end`.
    fn log_lost(&self, physical_end: i64) -> bool {
        physical_end > 0 && physical_end as u64 <= self.what.list.min_offset()
    }

    /// Links the last file of a queue into the staged folder.
    fn keep_last_file(&self, folder: &Path, topic: &str, queue_id: i32) -> Result<(), StoreError> {
        let vfs = &self.files.vfs;
        let old = folder.join(topic).join(queue_id.to_string());
        let Some(last) = vfs.list(&old).at(&old, "listing a queue")?.pop() else { return Ok(()) };
        let relative = old.strip_prefix(&self.files.root).unwrap_or(&old);
        let new = self.staged.root.join(relative);
        vfs.create_dir_all(&new).at(&new, "creating the folder of a queue")?;
        let (from, to) = (old.join(&last.name), new.join(&last.name));
        vfs.hard_link(&from, &to).at(&to, "keeping the next offset of a queue")?;
        for folder in new.ancestors().take_while(|folder| folder.starts_with(&self.staged.root)) {
            self.queues.mark_folder(folder);
        }
        Ok(())
    }

    /// Moves files that are no part of a store out of the folders that the rebuild deletes.
    fn keep_strays(&self) -> Result<(), StoreError> {
        let old = QueueSet::load(&self.files, self.queues.file_bytes(), Access::Read)?;
        let geometry = self.index.geometry();
        let index = IndexSet::load(&self.files, Some(geometry), geometry, Access::Read)?;
        for stray in old.strays().iter().chain(index.strays()) {
            self.files.set_aside(&stray.path, &stray.reason)?;
        }
        Ok(())
    }

    /// Returns the result.
    pub fn report(&self, end: u64) -> RebuildReport {
        let mut skipped = self.dispatcher.take_skipped_ranges();
        if self.dispatcher.refused_units() > 0 {
            skipped.push(format!(
                "{} records have queue offsets that no queue can hold; read them by log offset or key",
                self.dispatcher.refused_units()
            ));
        }
        let plain = self.queues.all().iter().filter(|queue| queue.max_offset() > 0).count();
        let batch = self.queues.batches().iter().filter(|queue| queue.max_offset() > 0).count();
        RebuildReport {
            messages: self.dispatcher.records(),
            bytes: end - self.what.list.min_offset(),
            queues: (plain + batch) as u64,
            index_entries: self.dispatcher.index_entries(),
            skipped,
        }
    }

    /// Deletes the new files.
    pub fn abandon(&self) {
        self.queues.release();
        self.index.release();
        // If a file remains, the next open removes it with the staging folder.
        let _ = remove_tree(&*self.files.vfs, &self.staged.root);
    }
}

/// Exchanges the folders `new` and `old`. If one of them does not exist, the other is only renamed.
fn swap_folder(vfs: &dyn Vfs, new: &Path, old: &Path) -> Result<(), StoreError> {
    let there = |path: &Path| vfs.stat(path).is_ok();
    let aside: PathBuf = new.with_extension("old");
    let moved = match (there(new), there(old)) {
        (true, true) => match vfs.exchange(new, old) {
            // Without an exchange in the file system this takes two steps. An open between them finds no queues and
            // rebuilds them.
            Err(error) if error.kind() == std::io::ErrorKind::Unsupported => {
                vfs.rename(old, &aside).and_then(|()| vfs.rename(new, old))
            }
            outcome => outcome,
        },
        (true, false) => vfs.rename(new, old),
        (false, true) => vfs.rename(old, &aside),
        (false, false) => Ok(()),
    };
    moved.at(old, "replacing files by rebuilt ones")
}

fn remove_tree(vfs: &dyn Vfs, folder: &Path) -> Result<(), StoreError> {
    match vfs.remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(StoreError::io(folder, "removing staged files", error))
        }
        _ => Ok(()),
    }
}
