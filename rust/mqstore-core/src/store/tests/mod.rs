//! The store as a whole, on the simulated and the real file system.

mod batches;
mod compact;
mod consumers;
mod edges;
mod engine;
mod feed;
mod info;
mod kept;
mod lifecycle;
mod others;
mod quota;
mod reading;
mod rebuild;
mod repair;
mod restore;
mod scan;
mod single;
mod snapshot;
mod spread;
mod verify;
mod waiting;

use std::path::Path;
use std::sync::Arc;

use mqstore_io::{Clock, ManualClock, OsVfs, SimVfs, SystemClock, Vfs};

use crate::{NewMessage, OpenMode, Store, StoreError, StoreOptions, StoredRecord, encode_properties};

/// A store's surroundings: where it lives and by which clock.
pub(crate) struct World {
    pub(crate) vfs: Arc<dyn Vfs>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) path: std::path::PathBuf,
    _folder: Option<tempfile::TempDir>,
}

impl World {
    /// In memory, with a clock that stands still until told.
    pub(crate) fn simulated() -> (Self, Arc<SimVfs>, Arc<ManualClock>) {
        let vfs = Arc::new(SimVfs::default());
        let clock = Arc::new(ManualClock::new(1_700_000_000_000));
        vfs.create_dir_all(Path::new("/data")).unwrap();
        vfs.sync_dir(Path::new("/")).unwrap();
        let world =
            Self { vfs: vfs.clone(), clock: clock.clone(), path: "/data/store".into(), _folder: None };
        (world, vfs, clock)
    }

    /// On the machine's own file system.
    pub(crate) fn real() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self {
            vfs: Arc::new(OsVfs::new()),
            clock: Arc::new(SystemClock::new()),
            path: folder.path().join("store"),
            _folder: Some(folder),
        }
    }

    /// The same place on what a crash left of it.
    pub(crate) fn on(&self, vfs: Arc<dyn Vfs>) -> Self {
        Self { vfs, clock: self.clock.clone(), path: self.path.clone(), _folder: None }
    }

    pub(crate) fn open(&self, mode: OpenMode, options: &StoreOptions) -> Result<Store, StoreError> {
        Store::open(self.vfs.clone(), self.clock.clone(), &self.path, mode, options)
    }

    pub(crate) fn files(&self) -> crate::StoreFiles {
        crate::StoreFiles::new(self.vfs.clone(), self.clock.clone(), &self.path)
    }
}

/// Small files, so that a few messages roll them; no threads.
pub(crate) fn small() -> StoreOptions {
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
pub(crate) fn put(store: &Store, topic: &str, queue_id: i32, body: &[u8], key: &str) -> crate::Appended {
    let properties = encode_properties([key], Some("T"), None, [("n", "1")]).unwrap();
    store.append(&message(topic, Some(queue_id), body, &properties)).unwrap()
}

pub(crate) fn message<'a>(
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
    }
}

/// A message without properties of its own for queue 0.
pub(crate) fn plain<'a>(topic: &'a str, body: &'a [u8]) -> NewMessage<'a> {
    message(topic, Some(0), body, &[])
}

/// Everything in a queue: offsets and bodies.
pub(crate) fn read_all(store: &Store, topic: &str, queue_id: i32) -> Vec<(i64, Vec<u8>)> {
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

pub(crate) fn body(record: &StoredRecord) -> Vec<u8> {
    record.view().unwrap().body.to_vec()
}
