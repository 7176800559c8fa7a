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
//! If one of the three is a symbolic link, its new files are built below its target, and the contents of the target are
//! exchanged. The link stays.
//!
//! A rebuild keeps facts that the log does not hold: if the log has no record of a queue any more, the last unit of its
//! old files keeps its next offset. Files in the old folders that are no part of a store go to `lost+found`.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use mqstore_io::{Access, DirEntry, FileKind, Vfs, switch};

use crate::commit_log::SegmentList;
use crate::consume_queue::QueueSet;
use crate::dispatch::{DispatchRules, Dispatcher};
use crate::index::IndexSet;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::{OWN_FOLDER, StoreFiles};

/// The folders that a rebuild replaces.
const FOLDERS: [&str; 3] = ["consumequeue", "batchconsumequeue", "index"];

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
        let mut staged = StoreFiles::new(Arc::clone(&files.vfs), Arc::clone(&files.clock), &root);
        for (name, target) in FOLDERS.into_iter().filter_map(|name| Some((name, files.link_target(name)?))) {
            let folder = files.staging_for(target).join("rebuild");
            remove_tree(&*files.vfs, &folder)?;
            staged = staged.with_folder_at(name, folder);
        }
        for folder in staged.staging_folders() {
            files.vfs.create_dir_all(&folder).at(&folder, "creating the folder of a rebuild")?;
        }
        let queues = Arc::new(queues.aside(&staged));
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
        dispatcher.read_once();
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
        for name in FOLDERS {
            let (new, old) = (staged.folder(name), files.folder(name));
            match files.link_target(name) {
                None => swap_folder(&*files.vfs, &new, &old, &new.with_extension("old"))?,
                Some(_) => swap_contents(&*files.vfs, &new, &old)?,
            }
        }
        for folder in [&files.root, &staged.root] {
            sync_swapped(&*files.vfs, folder)?;
        }
        // After the exchange, the staging folder holds the old files.
        self.queues.release();
        self.index.release();
        self.remove_staged()
    }

    /// Deletes the staging folders.
    fn remove_staged(&self) -> Result<(), StoreError> {
        for name in FOLDERS.into_iter().filter(|name| self.files.link_target(name).is_some()) {
            remove_tree(&*self.files.vfs, &self.staged.folder(name))?;
        }
        remove_tree(&*self.files.vfs, &self.staged.root)
    }

    /// Keeps the next offset of each queue without a record in the log, by its last old file.
    fn keep_end_offsets(&self) -> Result<(), StoreError> {
        let old = self.old_queues()?;
        for queue in old.all() {
            queue.recover_bounds()?;
            let made = self.queues.get(queue.topic(), queue.queue_id());
            let is_empty = made.is_none_or(|made| made.is_empty());
            if is_empty && queue.damaged().is_none() && self.log_lost(queue.max_physical_end()) {
                self.keep_last_file("consumequeue", queue.topic(), queue.queue_id())?;
            }
        }
        for queue in old.batches() {
            queue.recover_bounds()?;
            let made = self.queues.batch(queue.topic(), queue.queue_id());
            let is_empty = made.is_none_or(|made| made.is_empty());
            let last = queue.last_physical_offset().map_or(0, |last| last + 1);
            if is_empty && queue.damaged().is_none() && self.log_lost(last) {
                self.keep_last_file("batchconsumequeue", queue.topic(), queue.queue_id())?;
            }
        }
        self.queues.flush()
    }

    /// Lists the queues in use.
    fn old_queues(&self) -> Result<QueueSet, StoreError> {
        QueueSet::load(&self.files, self.queues.file_bytes(), Access::Read, self.queues.floors())
    }

    /// Whether retention removed all records of a queue whose last record ends at `physical_end`.
    fn log_lost(&self, physical_end: i64) -> bool {
        physical_end > 0 && physical_end as u64 <= self.what.list.min_offset()
    }

    /// Links the last file of a queue into the staged folder.
    fn keep_last_file(&self, folder: &str, topic: &str, queue_id: i32) -> Result<(), StoreError> {
        let vfs = &self.files.vfs;
        let place = |files: &StoreFiles| files.folder(folder).join(topic).join(queue_id.to_string());
        let (old, new) = (place(&self.files), place(&self.staged));
        let Some(last) = vfs.list(&old).at(&old, "listing a queue")?.pop() else { return Ok(()) };
        vfs.create_dir_all(&new).at(&new, "creating the folder of a queue")?;
        let (from, to) = (old.join(&last.name), new.join(&last.name));
        vfs.hard_link(&from, &to).at(&to, "keeping the next offset of a queue")?;
        for folder in self.staged.folders_up_from(&new) {
            self.queues.mark_folder(folder);
        }
        Ok(())
    }

    /// Moves files that are no part of a store out of the folders that the rebuild deletes.
    fn keep_strays(&self) -> Result<(), StoreError> {
        let old = self.old_queues()?;
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
        let plain = self.queues.all().iter().filter(|queue| !queue.is_empty()).count();
        let batch = self.queues.batches().iter().filter(|queue| !queue.is_empty()).count();
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
        let _ = self.remove_staged();
    }
}

/// Exchanges the entries of the folder `old`, the target of a link, with those of `new`, a folder below it. A link or a
/// mounted folder cannot be exchanged itself.
///
/// Across a crash: each queue is completely old or new, or missing, and recovery derives it again. The index loses its
/// newest files first and gets its oldest files first, so it is always a part from its start.
fn swap_contents(vfs: &dyn Vfs, new: &Path, old: &Path) -> Result<(), StoreError> {
    let aside = new.join(OWN_FOLDER).join("old");
    vfs.create_dir_all(&aside).at(&aside, "creating the folder of a rebuild")?;
    let (before, after) = (entries(vfs, old)?, entries(vfs, new)?);
    let folders = before.iter().chain(&after).filter(|entry| entry.stat.kind == FileKind::Directory);
    for name in folders.map(|entry| &entry.name).collect::<BTreeSet<_>>() {
        swap_folder(vfs, &new.join(name), &old.join(name), &aside.join(name))?;
    }
    let is_file = |entry: &&DirEntry| entry.stat.kind != FileKind::Directory;
    for entry in before.iter().filter(is_file).rev() {
        let path = old.join(&entry.name);
        vfs.rename(&path, &aside.join(&entry.name)).at(&path, "replacing files by rebuilt ones")?;
        // Without it, a crash could keep a newer name and lose an older one.
        sync_swapped(vfs, old)?;
    }
    for entry in after.iter().filter(is_file) {
        let path = old.join(&entry.name);
        vfs.rename(&new.join(&entry.name), &path).at(&path, "replacing files by rebuilt ones")?;
        sync_swapped(vfs, old)?;
    }
    [old, new, &aside].into_iter().try_for_each(|folder| sync_swapped(vfs, folder))
}

fn sync_swapped(vfs: &dyn Vfs, folder: &Path) -> Result<(), StoreError> {
    switch::step("rebuild.sync_swap", || vfs.sync_dir(folder)).at(folder, "syncing a folder")
}

/// Lists a folder without our own folder; a missing folder counts as empty.
fn entries(vfs: &dyn Vfs, folder: &Path) -> Result<Vec<DirEntry>, StoreError> {
    match vfs.list(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        listed => {
            let mut listed = listed.at(folder, "listing rebuilt files")?;
            listed.retain(|entry| entry.name != OWN_FOLDER);
            Ok(listed)
        }
    }
}

/// Exchanges the folders `new` and `old`. If one of them does not exist, the other is only renamed. `aside` is a free
/// name.
fn swap_folder(vfs: &dyn Vfs, new: &Path, old: &Path, aside: &Path) -> Result<(), StoreError> {
    let there = |path: &Path| vfs.stat(path).is_ok();
    let moved = match (there(new), there(old)) {
        (true, true) => match vfs.exchange(new, old) {
            // Without an exchange in the file system this takes two steps. An open between them finds no queues and
            // rebuilds them.
            Err(error) if error.kind() == std::io::ErrorKind::Unsupported => {
                vfs.rename(old, aside).and_then(|()| vfs.rename(new, old))
            }
            outcome => outcome,
        },
        (true, false) => vfs.rename(new, old),
        (false, true) => vfs.rename(old, aside),
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
