//! Small stores for the tests of this crate, on the simulated and the real file system.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_base::message::{Appended, NewMessage, StoredRecord};
use mqstore_base::message::{UniqueKey, encode_properties};
use mqstore_base::options::{OpenMode, StoreOptions};
use mqstore_engine::{AppendMarks, Store, TransactionMark};
use mqstore_io::sim::SimOptions;
use mqstore_io::{Access, Clock, ManualClock, OsVfs, SimVfs, SystemClock, Vfs};

use crate::Broker;

/// Start time of every simulated world, in epoch milliseconds.
pub(crate) const BEGIN_MS: i64 = 1_700_000_000_000;

/// A disk in memory and a manual clock.
#[derive(Clone)]
pub(crate) struct SimStore {
    pub(crate) vfs: SimVfs,
    pub(crate) clock: Arc<ManualClock>,
}

impl SimStore {
    pub(crate) fn new() -> Self {
        let vfs = SimVfs::new(SimOptions { versions: true, by_hand: true, ..SimOptions::default() });
        vfs.create_dir_all(Path::new("/data")).unwrap();
        vfs.sync_dir(Path::new("/")).unwrap();
        Self { vfs, clock: Arc::new(ManualClock::new(BEGIN_MS)) }
    }

    /// Returns a new world with an open store and its broker.
    pub(crate) fn with_broker() -> (Self, Store, Broker) {
        let world = Self::new();
        let store = world.open();
        let broker = Broker::new(&store).unwrap();
        (world, store, broker)
    }

    pub(crate) fn open(&self) -> Store {
        self.try_open(&small()).unwrap()
    }

    pub(crate) fn try_open(&self, options: &StoreOptions) -> Result<Store, StoreError> {
        let clock: Arc<dyn Clock> = self.clock.clone();
        Store::open(Arc::new(self.vfs.clone()), clock, Path::new("/data/store"), OpenMode::Create, options)
    }
}

/// A store on the real file system, with its threads.
pub(crate) struct DiskStore {
    pub(crate) store: Store,
    _folder: tempfile::TempDir,
}

impl DiskStore {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path: PathBuf = folder.path().join("store");
        let options = StoreOptions { dispatch_threads: Some(1), segment_bytes: 1 << 20, ..small() };
        let (vfs, clock) = (Arc::new(OsVfs::new()), Arc::new(SystemClock::new()));
        let store = Store::open(vfs, clock, &path, OpenMode::Create, &options).unwrap();
        Self { store, _folder: folder }
    }

    pub(crate) fn broker(&self) -> Broker {
        Broker::new(&self.store).unwrap()
    }
}

/// Small files, so that a few messages roll them; no threads.
pub(crate) fn small() -> StoreOptions {
    StoreOptions {
        segment_bytes: 16 << 10,
        queue_file_entries: 32,
        index_slots: 7,
        index_entries: 50,
        flush_least_pages: 0,
        dispatch_threads: Some(0),
        compaction_log_file_bytes: 4096,
        compaction_queue_file_bytes: 46 * 8,
        ..StoreOptions::default()
    }
}

pub(crate) fn put(store: &Store, topic: &str, queue_id: i32, body: &str, tag: &str) -> Appended {
    let properties = encode_properties([], Some(tag), None, []).unwrap();
    let message = NewMessage {
        topic,
        body: body.as_bytes(),
        properties: &properties,
        unique_key: None,
        queue_id: Some(queue_id),
        flag: 0,
        born_timestamp_ms: None,
        durable: false,
        ..NewMessage::default()
    };
    let appended = store.append(&message).unwrap();
    assert!(matches!(appended.unique_id, UniqueKey::Made(_)));
    appended
}

/// Appends a record to an internal topic, as only a broker does.
pub(crate) fn append_like_broker(store: &Store, message: &NewMessage<'_>) {
    store
        .system_appends()
        .append_marked(&[*message], AppendMarks::Together(&[TransactionMark::default()]))
        .unwrap();
}

/// Appends messages with these numbers as bodies, round robin over the queues of a topic.
pub(crate) fn fill(store: &Store, topic: &str, queues: i32, numbers: std::ops::Range<usize>) {
    for number in numbers {
        put(store, topic, number as i32 % queues, &number.to_string(), "T");
    }
}

pub(crate) fn body(record: &StoredRecord) -> String {
    String::from_utf8(record.view().unwrap().body.to_vec()).unwrap()
}

pub(crate) fn bodies(records: &[StoredRecord]) -> Vec<String> {
    records.iter().map(body).collect()
}

/// Closes the store, damages the body of a message, and opens the store again, because a message is verified only once.
pub(crate) fn corrupted_store(world: &SimStore, store: &Store, appended: &Appended) -> Store {
    store.close().unwrap();
    let log = Path::new("/data/store/commitlog/00000000000000000000");
    let file = world.vfs.open(log, Access::ReadWrite).unwrap();
    file.write_all_at(b"?", appended.commit_log_offset + 90).unwrap();
    world.open()
}

/// Returns a store with a damaged message in queue `bad` of two, and `sound` messages in the other queue.
pub(crate) fn store_with_corrupt_queue(world: &SimStore, bad: i32, sound: &[&str]) -> Store {
    let store = world.open();
    store.create_topic("jobs", 2, &[]).unwrap();
    let damaged = put(&store, "jobs", bad, &"x".repeat(50), "T");
    for text in sound {
        put(&store, "jobs", 1 - bad, text, "T");
    }
    corrupted_store(world, &store, &damaged)
}
