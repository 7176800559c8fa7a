//! The context that all queues of a store share: files, descriptors, geometry, and the list of unsynced queues.
//!
//! Source: none; RocketMQ keeps a descriptor and a map for every file of every queue.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::mem;
use std::path::{Path, PathBuf};

use mqstore_format::validate_stored_topic;
use mqstore_io::switch;
use mqstore_io::sync::{Arc, AtomicU64, Mutex, Ordering, Weak};
use mqstore_io::{Access, FileCache, VfsFile, parallel_map};

use super::layout::QueueLayout;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;
use mqstore_base::topic_floors::TopicFloors;

/// Maximum number of names to try for a staged file; each failed try is a file that an earlier process left.
const STAGING_TRIES: u32 = 10_000;

/// Threads that sync files in addition to the caller, if many files are unsynced.
const SYNC_HELPERS: u32 = 7;

/// A queue that a flush can sync.
pub(super) trait UnsyncedQueue: Debug + Send + Sync {
    /// Whether the queue has unsynced bytes.
    fn is_dirty(&self) -> bool;

    /// Syncs the named files with unsynced bytes. After a failure they stay unsynced.
    fn flush_files(&self) -> Result<(), StoreError>;
}

/// The part of a [`super::QueueSet`] that its queues use.
#[derive(Debug)]
pub(super) struct QueueContext {
    pub(super) files: StoreFiles,
    pub(super) cache: Arc<FileCache>,
    pub(super) layout: QueueLayout,
    pub(super) access: Access,
    pub(super) floors: TopicFloors,
    /// Threads that help with work on very many queues.
    pub(super) helpers: u32,
    sync_helpers: u32,
    dirty_queues: Mutex<Vec<Weak<dyn UnsyncedQueue>>>,
    dirty_folders: Mutex<BTreeSet<PathBuf>>,
    staged: AtomicU64,
}

impl QueueContext {
    pub(super) fn new(
        files: &StoreFiles,
        cache: Arc<FileCache>,
        layout: QueueLayout,
        access: Access,
        floors: &TopicFloors,
    ) -> Self {
        let environment = files.vfs.environment();
        Self {
            files: files.clone(),
            cache,
            layout,
            access,
            floors: floors.clone(),
            helpers: environment.helpers(),
            sync_helpers: if environment.threads { SYNC_HELPERS } else { 0 },
            dirty_queues: Mutex::new(Vec::new()),
            dirty_folders: Mutex::new(BTreeSet::new()),
            staged: AtomicU64::new(0),
        }
    }

    /// Fails unless the queues may be changed.
    pub(super) fn writable(&self, action: &'static str) -> Result<(), StoreError> {
        match self.access {
            Access::ReadWrite => Ok(()),
            Access::Read => Err(StoreError::ReadOnly { path: self.files.root.clone(), action }),
        }
    }

    /// Fails unless a queue with this topic and id may be added.
    pub(super) fn may_add(&self, topic: &str, queue_id: i32) -> Result<(), StoreError> {
        self.writable("add a queue")?;
        validate_stored_topic(topic).map_err(|error| StoreError::invalid_message(&error))?;
        if queue_id < 0 {
            return Err(StoreError::InvalidMessage { reason: format!("queue id {queue_id} is negative") });
        }
        Ok(())
    }

    /// Removes the folder of a queue, and that of its topic, if they are empty. A folder that stays is harmless.
    pub(super) fn remove_empty_folders(&self, folder: &Path) {
        for folder in folder.ancestors().take(2) {
            let is_empty = self.files.vfs.list(folder).is_ok_and(|entries| entries.is_empty());
            if is_empty && self.files.vfs.remove_dir(folder).is_ok() {
                folder.parent().into_iter().for_each(|above| self.mark_folder(above));
            }
        }
    }

    /// Removes the queue file at `path`, if it exists, and releases its descriptor.
    pub(super) fn remove_file(&self, path: &Path, action: &'static str) -> Result<(), StoreError> {
        self.cache.forget(path);
        match self.files.vfs.remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(StoreError::io(path, action, error))
            }
            _ => Ok(()),
        }
    }

    /// Creates a sparse queue file in the staging folder of `queue`, the folder of a queue.
    pub(super) fn stage(&self, queue: &Path) -> Result<(PathBuf, Arc<dyn VfsFile>), StoreError> {
        let folder = self.files.staging_for(queue);
        let mut failure = None;
        for _ in 0..STAGING_TRIES {
            let number = self.staged.fetch_add(1, Ordering::Relaxed);
            let path = folder.join(format!("queue-{number}"));
            let error = match self.files.vfs.create_new(&path) {
                Ok(file) => {
                    file.set_len(self.layout.file_bytes()).at(&path, "sizing a queue file")?;
                    return Ok((path, file));
                }
                Err(error) => error,
            };
            match error.kind() {
                std::io::ErrorKind::AlreadyExists => {}
                std::io::ErrorKind::NotFound if failure.is_none() => {
                    self.files.vfs.create_dir_all(&folder).at(&folder, "creating the staging folder")?;
                }
                _ => return Err(StoreError::io(&path, "creating a queue file", error)),
            }
            failure = Some(StoreError::io(&path, "creating a queue file", error));
        }
        Err(failure.unwrap_or_else(|| StoreError::Busy {
            reason:
                "no name is free for a queue file in the staging folder; reopen the store, which empties it"
                    .to_owned(),
        }))
    }

    /// Adds `queue` to the list of queues to sync. Call it only while the queue is not on the list.
    pub(super) fn mark_dirty(&self, queue: Weak<dyn UnsyncedQueue>) {
        self.dirty_queues.lock().push(queue);
    }

    /// Lets the next flush sync the names in `folder`.
    pub(super) fn mark_folder(&self, folder: &Path) {
        let mut folders = self.dirty_folders.lock();
        if !folders.contains(folder) {
            folders.insert(folder.to_path_buf());
        }
    }

    /// Creates the folder of a queue, and lets the next flush sync it and its parents.
    pub(super) fn make_folder(&self, folder: &Path) -> Result<(), StoreError> {
        self.files.vfs.create_dir_all(folder).at(folder, "creating the folder of a queue")?;
        for above in self.files.folders_up_from(folder) {
            self.mark_folder(above);
        }
        Ok(())
    }

    /// Syncs every unsynced file, then every folder with new or removed names. Several syncs run in parallel, because a
    /// device handles them faster together. After an error, the next flush syncs the rest.
    pub(super) fn flush(&self) -> Result<(), StoreError> {
        let queues = mem::take(&mut *self.dirty_queues.lock());
        let synced = sync_each(self.sync_helpers, &queues, |queue| {
            queue.upgrade().map_or(Ok(()), |queue| queue.flush_files())
        });
        if let Err(error) = synced {
            // If only files could not be opened, every queue had its turn, and those that failed are in the list again.
            if !error.is_out_of_files() {
                let is_dirty =
                    |queue: &Weak<dyn UnsyncedQueue>| queue.upgrade().is_some_and(|queue| queue.is_dirty());
                self.dirty_queues.lock().extend(queues.into_iter().filter(is_dirty));
            }
            return Err(error);
        }
        let folders = mem::take(&mut *self.dirty_folders.lock());
        let deepest_first: Vec<_> = folders.iter().rev().collect();
        let synced = sync_each(self.sync_helpers, &deepest_first, |folder| self.sync_folder(folder));
        if synced.is_err() {
            self.dirty_folders.lock().extend(folders);
        }
        synced
    }

    fn sync_folder(&self, folder: &Path) -> Result<(), StoreError> {
        match switch::step("consume_queue.sync_folder", || self.files.vfs.sync_dir(folder)) {
            // The folder was moved or removed, so it has no name to keep.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            outcome => outcome.at(folder, "syncing the folder of a queue"),
        }
    }
}

/// Calls `sync` for all items, several in parallel. A failed sync comes before the error of a file that could not be
/// opened, because a caller can repeat only the second kind.
pub(super) fn sync_each<T: Sync>(
    helpers: u32,
    items: &[T],
    sync: impl Fn(&T) -> Result<(), StoreError> + Sync,
) -> Result<(), StoreError> {
    let unopened = Mutex::new(None);
    parallel_map(helpers, "mq-sync", items, |item| match sync(item) {
        Err(error) if error.is_out_of_files() => {
            *unopened.lock() = Some(error);
            Ok(())
        }
        outcome => outcome,
    })?;
    unopened.into_inner().map_or(Ok(()), Err)
}
