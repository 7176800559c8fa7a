//! The proof that this process holds the store's lock.
//!
//! Planning and publication need the lock, so that no other process changes the compaction files meanwhile. The tasks
//! between them do not: other processes may open the store and append.

use std::sync::Arc;

use mqstore_io::StoreLock;

use mqstore_base::error::StoreError;
use mqstore_base::live_page::lock_store;
use mqstore_base::store_files::StoreFiles;
use mqstore_log::consume_queue::QueueSet;

/// Proves that this process holds the store's lock.
pub enum StoreLockHeld<'a> {
    /// No process has the store open for writing; the lock ends with this value.
    Taken(Box<dyn StoreLock>),
    /// This process has the store open for writing.
    Open(OpenStore<'a>),
}

/// Current values that only the process with the open store has.
pub struct OpenStore<'a> {
    /// Its queues.
    pub queues: &'a Arc<QueueSet>,
    /// Dispatches the appended records, and returns the dispatched offset.
    pub catch_up: &'a dyn Fn() -> Result<u64, StoreError>,
    /// Makes the log durable, and returns its durable offset.
    pub flush: &'a dyn Fn() -> Result<u64, StoreError>,
}

impl StoreLockHeld<'_> {
    /// Takes the lock of a store that no process has open for writing.
    ///
    /// # Errors
    /// [`StoreError::NotAStore`] for another directory, before any file is written to it; [`StoreError::Locked`].
    pub fn take(files: &StoreFiles) -> Result<Self, StoreError> {
        require_store(files)?;
        lock_store(files).map(Self::Taken)
    }

    /// Makes the log of an open store durable, and returns its durable offset; 0 if the store is not open.
    pub(crate) fn flush_log(&self) -> Result<u64, StoreError> {
        match self {
            Self::Taken(_) => Ok(0),
            Self::Open(open) => (open.flush)(),
        }
    }
}

fn require_store(files: &StoreFiles) -> Result<(), StoreError> {
    let mut folders = files.log_folders()?.all();
    folders.push(files.compaction());
    if folders.iter().any(|folder| files.vfs.stat(folder).is_ok()) {
        return Ok(());
    }
    Err(StoreError::NotAStore {
        path: files.root.clone(),
        reason: "it has neither a commitlog nor a compaction folder".to_owned(),
    })
}
