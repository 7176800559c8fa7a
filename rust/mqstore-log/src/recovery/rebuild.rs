//! Queues and index made anew from the whole log, beside those that are there.
//!
//! Owns `mqstore/tmp/rebuild/`, a root of its own with the folders of derived files in it:
//!
//! ```text
//! mqstore/tmp/rebuild/consumequeue/       <- exchanged with -> consumequeue/
//! mqstore/tmp/rebuild/batchconsumequeue/  <- exchanged with -> batchconsumequeue/
//! mqstore/tmp/rebuild/index/              <- exchanged with -> index/
//! ```
//!
//! Everything is built and synced there first, then each folder changes places with the one that is in use,
//! in one step; what was in use goes with the staging folder. Across a crash: a folder is wholly the old one
//! or wholly the new one. Each of the three is a function of the log alone, so that old and new ones go
//! together; the next open empties the staging folder. The log is not changed.
//!
//! What the log cannot tell is kept: a queue of which no record is left holds its place by the last unit of
//! its old files. Things in the old folders that are no part of a store go to `lost+found`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_io::{Access, Vfs, switch};

use crate::commit_log::SegmentList;
use crate::consume_queue::QueueSet;
use crate::dispatch::{DispatchRules, Dispatcher};
use crate::index::IndexSet;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;

/// What a rebuild made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RebuildReport {
    /// Records of the log that were dispatched.
    pub messages: u64,
    /// Bytes of the log.
    pub bytes: u64,
    /// Queues that have entries now.
    pub queues: u64,
    /// Entries of the index.
    pub index_entries: u64,
    /// Damage in the log that was passed over, and records that no queue can hold, in words.
    pub skipped: Vec<String>,
}

/// The log and the rules of a rebuild.
#[derive(Clone, Debug)]
pub struct RebuildInput {
    /// The segments.
    pub list: Arc<SegmentList>,
    /// Which entries a record yields.
    pub rules: DispatchRules,
    /// Threads that help the caller.
    pub helpers: u32,
}

/// Derived files on their way.
#[derive(Debug)]
pub struct RebuildRun {
    files: StoreFiles,
    /// The files of the staged root.
    staged: StoreFiles,
    what: RebuildInput,
    queues: Arc<QueueSet>,
    index: Arc<IndexSet>,
    dispatcher: Dispatcher,
}

impl RebuildRun {
    /// Makes empty derived files aside, of the geometry of `queues` and `index`, which are in use.
    pub fn begin(
        files: &StoreFiles,
        (queues, index): (&QueueSet, &IndexSet),
        what: RebuildInput,
    ) -> Result<Self, StoreError> {
        let root = files.rebuild();
        remove_tree(&*files.vfs, &root)?;
        let staged = StoreFiles::new(Arc::clone(&files.vfs), Arc::clone(&files.clock), &root);
        let folder = staged.staging();
        files.vfs.create_dir_all(&folder).at(&folder, "making the folder of a rebuild")?;
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

    /// Dispatches the log up to `end`, and syncs what was made. `watch` hears of the position reached; an
    /// error as its answer ends the call.
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

    /// The last record that was dispatched: log offset and store time.
    pub fn last_record(&self) -> Option<(u64, i64)> {
        self.dispatcher.last_record()
    }

    /// The index as it was made.
    pub fn index(&self) -> &IndexSet {
        &self.index
    }

    /// The queues as they were made.
    pub fn queues(&self) -> &QueueSet {
        &self.queues
    }

    /// Puts what was made in the place of what is in use.
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
        // What is left here was in use before.
        self.queues.release();
        self.index.release();
        remove_tree(&*files.vfs, &staged.root)
    }

    /// A queue without a record in the log says by its old files where it goes on.
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

    /// Whether the records of a queue whose last one ends at `physical_end` went with the oldest segments.
    fn log_lost(&self, physical_end: i64) -> bool {
        physical_end > 0 && physical_end as u64 <= self.what.list.min_offset()
    }

    /// Gives the last file of a queue a second name, in the staged folder.
    fn keep_last_file(&self, folder: &Path, topic: &str, queue_id: i32) -> Result<(), StoreError> {
        let vfs = &self.files.vfs;
        let old = folder.join(topic).join(queue_id.to_string());
        let Some(last) = vfs.list(&old).at(&old, "listing a queue")?.pop() else { return Ok(()) };
        let relative = old.strip_prefix(&self.files.root).unwrap_or(&old);
        let new = self.staged.root.join(relative);
        vfs.create_dir_all(&new).at(&new, "making the folder of a queue")?;
        let (from, to) = (old.join(&last.name), new.join(&last.name));
        vfs.hard_link(&from, &to).at(&to, "keeping the place of a queue")?;
        for folder in new.ancestors().take_while(|folder| folder.starts_with(&self.staged.root)) {
            self.queues.mark_folder(folder);
        }
        Ok(())
    }

    /// Moves what is no part of a store out of the folders that are about to go.
    fn keep_strays(&self) -> Result<(), StoreError> {
        let old = QueueSet::load(&self.files, self.queues.file_bytes(), Access::Read)?;
        let geometry = self.index.geometry();
        let index = IndexSet::load(&self.files, Some(geometry), geometry, Access::Read)?;
        for stray in old.strays().iter().chain(index.strays()) {
            self.files.set_aside(&stray.path, &stray.reason)?;
        }
        Ok(())
    }

    /// What was made.
    pub fn report(&self, end: u64) -> RebuildReport {
        let mut skipped = self.dispatcher.take_skipped_ranges();
        if self.dispatcher.refused_units() > 0 {
            skipped.push(format!(
                "{} records name queue offsets that no queue can hold; they are read by log position and key only",
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

    /// Removes what was made so far.
    pub fn abandon(&self) {
        self.queues.release();
        self.index.release();
        // What stays is in the staging folder, which is emptied by the next open.
        let _ = remove_tree(&*self.files.vfs, &self.staged.root);
    }
}

/// Gives `new` the name of `old`, which gets that of `new`. A folder without the other one moves alone.
fn swap_folder(vfs: &dyn Vfs, new: &Path, old: &Path) -> Result<(), StoreError> {
    let there = |path: &Path| vfs.stat(path).is_ok();
    let aside: PathBuf = new.with_extension("old");
    let moved = match (there(new), there(old)) {
        (true, true) => match vfs.exchange(new, old) {
            // Two steps where the file system has none for it: an open that comes between them finds no
            // queues, and makes them anew.
            Err(error) if error.kind() == std::io::ErrorKind::Unsupported => {
                vfs.rename(old, &aside).and_then(|()| vfs.rename(new, old))
            }
            outcome => outcome,
        },
        (true, false) => vfs.rename(new, old),
        (false, true) => vfs.rename(old, &aside),
        (false, false) => Ok(()),
    };
    moved.at(old, "putting rebuilt files in their place")
}

fn remove_tree(vfs: &dyn Vfs, folder: &Path) -> Result<(), StoreError> {
    match vfs.remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(StoreError::io(folder, "removing staged files", error))
        }
        _ => Ok(()),
    }
}
