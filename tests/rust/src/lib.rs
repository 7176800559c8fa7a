//! Oracles and generators for the test suites.

pub mod changes;
pub mod damaged;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore::error::StoreError;
use mqstore::io::sim::SimVfs;
use mqstore::io::{ManualClock, Vfs};
use mqstore::message::{NewMessage, encode_properties};
use mqstore::options::{OpenMode, StoreOptions};
use mqstore::store::RecoveryProgress;
use mqstore::{Store, StoreBuilder};

/// One message as the oracle remembers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// The topic.
    pub topic: &'static str,
    /// The queue.
    pub queue_id: i32,
    /// The body.
    pub body: Vec<u8>,
    /// Its only key.
    pub key: String,
}

/// A store on a simulated disk, with the messages appended to it.
pub struct Simulated {
    /// The disk.
    pub vfs: SimVfs,
    /// The store's options.
    pub options: StoreOptions,
    clock: Arc<ManualClock>,
    root: PathBuf,
}

impl Simulated {
    /// An empty disk with a folder for the store.
    ///
    /// # Panics
    /// If the simulated disk refuses, which is a bug of the disk.
    #[expect(clippy::unwrap_used, reason = "a test without a disk has failed")]
    pub fn new(vfs: SimVfs, options: StoreOptions) -> Self {
        vfs.create_dir_all(Path::new("/data")).unwrap();
        vfs.sync_dir(Path::new("/")).unwrap();
        let clock = Arc::new(ManualClock::new(1_700_000_000_000));
        Self { vfs, options, clock, root: PathBuf::from("/data/store") }
    }

    /// The same store on another disk.
    #[must_use]
    pub fn on(&self, vfs: SimVfs) -> Self {
        Self { vfs, options: self.options.clone(), clock: Arc::clone(&self.clock), root: self.root.clone() }
    }

    /// Like [`Self::open`]. Recovery reports its progress to `watcher`.
    pub fn open_watched(
        &self,
        mode: OpenMode,
        watcher: &mut dyn FnMut(RecoveryProgress) -> Result<(), StoreError>,
    ) -> Result<Store, StoreError> {
        self.builder(mode).watcher(watcher).open_undelivered()
    }

    /// Opens the store on the current disk.
    pub fn open(&self, mode: OpenMode) -> Result<Store, StoreError> {
        self.clock.advance(std::time::Duration::from_millis(1));
        self.builder(mode).open_undelivered()
    }

    fn builder<'a>(&self, mode: OpenMode) -> StoreBuilder<'a> {
        let builder = Store::builder(&self.root).vfs(Arc::new(self.vfs.clone())).clock(self.clock.clone());
        builder.mode(mode).options(self.options.clone())
    }

    /// The result of `mqstore verify` for the current disk.
    pub fn verify(&self) -> Result<mqstore::inspect::VerifyReport, StoreError> {
        let files =
            mqstore::inspect::StoreFiles::new(Arc::new(self.vfs.clone()), self.clock.clone(), &self.root);
        mqstore::inspect::verify(&files, &self.options, &mut |_| Ok(()))
    }
}

/// Appends `messages` with one call.
///
/// # Errors
/// Those of the store.
pub fn append(store: &Store, messages: &[Remembered]) -> Result<(), StoreError> {
    let properties = messages
        .iter()
        .map(|message| encode_properties([message.key.as_str()], Some("T"), None, []))
        .collect::<Result<Vec<_>, _>>()?;
    let batch: Vec<_> = messages
        .iter()
        .zip(&properties)
        .map(|(message, properties)| NewMessage {
            topic: message.topic,
            body: &message.body,
            properties,
            unique_key: None,
            queue_id: Some(message.queue_id),
            flag: 0,
            born_timestamp_ms: None,
            durable: false,
            ..NewMessage::default()
        })
        .collect();
    store.append_many(&batch).map(|_| ())
}

/// Every message of the store in log order.
///
/// # Errors
/// Those of the store.
pub fn log_order(store: &Store) -> Result<Vec<(String, i32, Vec<u8>)>, StoreError> {
    let mut cursor = store.log().scan(None)?;
    let mut found = Vec::new();
    loop {
        let batch = cursor.next_batch(100)?;
        if batch.is_empty() {
            return Ok(found);
        }
        for record in batch {
            if let Ok(view) = record.view() {
                found.push((view.topic.to_owned(), view.queue_id, view.body.to_vec()));
            }
        }
    }
}

/// Checks that the store holds exactly `model`: in the log, in each queue at dense offsets, and by each key.
///
/// # Panics
/// With the difference.
#[expect(clippy::unwrap_used, reason = "a store that cannot be read has failed the test")]
pub fn assert_holds(store: &Store, model: &[Remembered]) {
    let wanted: Vec<_> =
        model.iter().map(|one| (one.topic.to_owned(), one.queue_id, one.body.clone())).collect();
    assert_eq!(log_order(store).unwrap(), wanted, "the log");
    let mut queues: Vec<_> = model.iter().map(|one| (one.topic, one.queue_id)).collect();
    queues.sort_unstable();
    queues.dedup();
    for (topic, queue_id) in queues {
        let wanted: Vec<_> = model
            .iter()
            .filter(|one| (one.topic, one.queue_id) == (topic, queue_id))
            .map(|one| &one.body)
            .collect();
        let mut cursor = store.read(topic, queue_id, None, None, None).unwrap();
        let found = cursor.next_batch(usize::MAX).unwrap();
        assert!(found.iter().zip(0..).all(|(record, offset)| record.queue_offset == offset), "dense offsets");
        let found: Vec<_> = found.iter().map(|record| record.view().unwrap().body.to_vec()).collect();
        assert_eq!(found.iter().collect::<Vec<_>>(), wanted, "queue {topic}/{queue_id}");
    }
    let mut keys: Vec<_> = model.iter().map(|one| (one.topic, one.key.as_str())).collect();
    keys.sort_unstable();
    keys.dedup();
    for (topic, key) in keys {
        let wanted: Vec<_> = model
            .iter()
            .filter(|one| (one.topic, one.key.as_str()) == (topic, key))
            .map(|one| &one.body)
            .collect();
        let mut cursor = store.lookup(topic, key, None, None, None).unwrap();
        let found = cursor.next_batch(usize::MAX).unwrap();
        let found: Vec<_> = found.iter().map(|record| record.view().unwrap().body.to_vec()).collect();
        assert_eq!(found.iter().collect::<Vec<_>>(), wanted, "key {key} of {topic}");
    }
}
