//! Helpers for the tests of this crate and of the crates that use it, with the names that those tests use most.

use std::path::PathBuf;

pub use std::path::Path;
pub use std::sync::Arc;

pub use mqstore_base::error::StoreError;
pub use mqstore_base::message::{Appended, NewMessage, StoredRecord, encode_properties};
pub use mqstore_base::options::{OpenMode, StoreOptions};
pub use mqstore_base::store_files::StoreFiles;
pub use mqstore_io::{Clock, ManualClock, OsVfs, SimVfs, SystemClock, Vfs};

pub use crate::Store;

/// The environment of a store: its file system, clock and path.
pub struct World {
    /// The file system.
    pub vfs: Arc<dyn Vfs>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The root of the store.
    pub path: PathBuf,
    /// The real folder, if any; it is removed at the end of the test.
    pub temporary_folder: Option<tempfile::TempDir>,
}

impl World {
    /// Returns a world in memory with a clock that moves only on request.
    pub fn simulated() -> (Self, Arc<SimVfs>, Arc<ManualClock>) {
        let vfs = Arc::new(SimVfs::default());
        let clock = Arc::new(ManualClock::new(1_700_000_000_000));
        vfs.create_dir_all(Path::new("/data")).unwrap();
        vfs.sync_dir(Path::new("/")).unwrap();
        let world = Self {
            vfs: vfs.clone(),
            clock: clock.clone(),
            path: "/data/store".into(),
            temporary_folder: None,
        };
        (world, vfs, clock)
    }

    /// Returns a world on the file system of the machine.
    pub fn real() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self {
            vfs: Arc::new(OsVfs::new()),
            clock: Arc::new(SystemClock::new()),
            path: folder.path().join("store"),
            temporary_folder: Some(folder),
        }
    }

    /// Returns the same store path on `vfs`, for example on the files that a crash left.
    #[must_use]
    pub fn on(&self, vfs: Arc<dyn Vfs>) -> Self {
        Self { vfs, clock: self.clock.clone(), path: self.path.clone(), temporary_folder: None }
    }

    /// Opens the store.
    pub fn open(&self, mode: OpenMode, options: &StoreOptions) -> Result<Store, StoreError> {
        Store::open(self.vfs.clone(), self.clock.clone(), &self.path, mode, options)
    }

    /// Returns the paths of the store.
    pub fn files(&self) -> StoreFiles {
        StoreFiles::new(self.vfs.clone(), self.clock.clone(), &self.path)
    }
}

/// Options with small files, so that a few messages roll them, and without dispatch threads.
pub fn small() -> StoreOptions {
    StoreOptions {
        segment_bytes: 16 << 10,
        queue_file_entries: 10,
        index_slots: 7,
        index_entries: 50,
        dispatch_threads: Some(0),
        compaction_log_file_bytes: 4096,
        compaction_queue_file_bytes: 46 * 8,
        ..StoreOptions::default()
    }
}

/// Appends a message with one key and one tag.
pub fn put(store: &Store, topic: &str, queue_id: i32, body: &[u8], key: &str) -> Appended {
    let properties = encode_properties([key], Some("T"), None, [("n", "1")]).unwrap();
    store.append(&message(topic, Some(queue_id), body, &properties)).unwrap()
}

/// Returns a message with these properties.
pub fn message<'a>(
    topic: &'a str,
    queue_id: Option<i32>,
    body: &'a [u8],
    properties: &'a [u8],
) -> NewMessage<'a> {
    NewMessage {
        topic,
        body,
        properties,
        unique_key: None,
        queue_id,
        flag: 0,
        born_timestamp_ms: None,
        durable: false,
        ..NewMessage::default()
    }
}

/// Returns a message for queue 0 without properties of its own.
pub fn plain<'a>(topic: &'a str, body: &'a [u8]) -> NewMessage<'a> {
    message(topic, Some(0), body, &[])
}

/// Returns the offsets and bodies of all messages in a queue.
pub fn read_all(store: &Store, topic: &str, queue_id: i32) -> Vec<(i64, Vec<u8>)> {
    let mut cursor = store.read(topic, queue_id, None, None, None).unwrap();
    let mut found = Vec::new();
    loop {
        let batch = cursor.next_batch(3).unwrap();
        if batch.is_empty() {
            return found;
        }
        found.extend(batch.iter().map(|record| (record.queue_offset, body(record))));
    }
}

/// Returns the body of a record.
pub fn body(record: &StoredRecord) -> Vec<u8> {
    record.view().unwrap().body.to_vec()
}
