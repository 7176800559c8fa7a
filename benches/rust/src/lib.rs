//! Shared parts of the benchmarks: a store in a scratch folder, messages, and the limit loop.
//!
//! Every group has a row `limit`: the same bytes through a copy and the checksums of the format, in the same
//! process, without a store. The ratios to it count. Absolute figures change with the machine and its load.

pub mod group;
pub mod machine;

use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use mqstore::Store;
use mqstore::message::{NewMessage, encode_properties};
use mqstore::options::{Durability, OpenMode, StoreOptions};

/// Body sizes of the groups, in bytes.
pub const BODY_BYTES: [usize; 3] = [100, 1024, 4096];

/// A store of one topic. Its folder is removed with it.
pub struct Bench {
    /// The store.
    pub store: Store,
    folder: tempfile::TempDir,
}

impl Bench {
    /// An empty store with `options`.
    ///
    /// # Panics
    /// If the scratch folder cannot be used.
    #[expect(clippy::expect_used, reason = "a benchmark without its folder has nothing to measure")]
    pub fn new(options: &StoreOptions) -> Self {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let store = open(&folder.path().join("store"), OpenMode::Create, options);
        Self { store, folder }
    }

    /// Appends `messages` bodies of `body_bytes` and returns the end of the log.
    ///
    /// # Panics
    /// If the store refuses them.
    #[expect(clippy::expect_used, reason = "a benchmark without its messages has nothing to measure")]
    pub fn fill(&self, body_bytes: usize, messages: u64) -> u64 {
        let body = vec![b'x'; body_bytes];
        let properties = properties();
        for _ in 0..messages {
            self.store.append(&message(&body, &properties)).expect("an append");
        }
        self.store.stats().expect("figures").log_max_offset
    }

    /// The path of the store.
    pub fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("store")
    }
}

/// Milliseconds. A pause of a busy disk is measured, and is no reason to refuse a message.
pub const PATIENCE_MS: u64 = 60_000;

/// Opens the store at `path` with this time limit.
///
/// # Panics
/// If it cannot be opened.
#[expect(clippy::expect_used, reason = "a benchmark without its store has nothing to measure")]
pub fn open(path: &Path, mode: OpenMode, options: &StoreOptions) -> Store {
    let options =
        StoreOptions { busy_after_ms: PATIENCE_MS, queue_wait_limit_ms: PATIENCE_MS, ..options.clone() };
    Store::builder(path).mode(mode).options(options).open_undelivered().expect("a store")
}

/// Properties as an application sets them: one key, one tag, and one custom property.
///
/// # Panics
/// Never: the properties follow the rules.
#[expect(clippy::expect_used, reason = "constant input")]
pub fn properties() -> Vec<u8> {
    encode_properties(["order-4711"], Some("paid"), None, [("region", "eu")]).expect("good properties")
}

/// A message of the benchmark's topic.
pub fn message<'a>(body: &'a [u8], properties: &'a [u8]) -> NewMessage<'a> {
    NewMessage {
        topic: "bench",
        body,
        properties,
        unique_key: None,
        queue_id: Some(0),
        flag: 0,
        born_timestamp_ms: Some(1_700_000_000_000),
        durable: false,
        ..NewMessage::default()
    }
}

/// A record as it is in the log after [`message`] was appended.
///
/// # Panics
/// If the scratch folder cannot be used.
#[expect(clippy::expect_used, reason = "a benchmark without its record has nothing to measure")]
pub fn record(body_bytes: usize) -> Vec<u8> {
    let bench = Bench::new(&StoreOptions { durability: Durability::Manual, ..StoreOptions::default() });
    bench.fill(body_bytes, 1);
    let found = bench.store.log().get_at(0).expect("the record");
    found.bytes().to_vec()
}

/// Time that `threads` threads take for `total` calls of `work`, from the moment when all threads are ready
/// to the end of the last call. `work` gets the number of its thread.
pub fn time_threads(threads: u64, total: u64, work: impl Fn(u64) + Sync) -> Duration {
    let start = Barrier::new(threads as usize + 1);
    thread::scope(|scope| {
        for number in 0..threads {
            let (start, work) = (&start, &work);
            let share = total / threads + u64::from(number < total % threads);
            scope.spawn(move || {
                start.wait();
                (0..share).for_each(|_| work(number));
            });
        }
        start.wait();
        Instant::now()
    })
    .elapsed()
}

/// [`limit_step`] for `messages` records, one after the other.
pub fn limit_pass(target: &mut [u8], record: &[u8], body: usize, messages: u64) {
    let mut at = 0;
    for _ in 0..messages {
        at = limit_step(target, at, record, body);
    }
}

/// The machine's limit for one record of `record` bytes with a body of `body` bytes: one copy, the body's
/// CRC, the record's CRC. Returns the place of the next record.
pub fn limit_step(target: &mut [u8], at: usize, record: &[u8], body: usize) -> usize {
    let at = if at + record.len() > target.len() { 0 } else { at };
    let crc = crc32fast::hash(record.get(..body).unwrap_or(record)) ^ crc32fast::hash(record);
    if let Some(place) = target.get_mut(at..at + record.len()) {
        place.copy_from_slice(record);
        if let Some((first, _)) = place.split_first_chunk_mut::<4>() {
            *first = crc.to_be_bytes();
        }
    }
    at + record.len()
}
