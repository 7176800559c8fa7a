//! Recovery of stores that were stopped, damaged, or put together by hand.
//!
//! * `faults` runs the table of faults, one row after the other.
//! * `flips` changes each byte of a small store.
//! * `again` recovers twice, and interrupts recovery.
//! * `cost` measures how much an open reads.
//! * `modes` tests the recovery modes, the progress reports, and an interrupt by the user.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "what fails here fails the test")]

mod again;
mod cost;
mod faults;
mod flips;
mod modes;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use mqstore::Store;
use mqstore::error::StoreError;
use mqstore::io::sim::{SimOptions, SimVfs};
use mqstore::io::{Access, FileKind, Vfs};
use mqstore::options::{DamagePolicy, Durability, OpenMode, StoreOptions};
use mqstore_tests::{Remembered, Simulated, append, log_order};

/// The path of the store of each [`Simulated`].
pub(crate) const ROOT: &str = "/data/store";

/// Length of a segment in this suite.
pub(crate) const SEGMENT: u64 = 4096;

/// Topic, queue and body of each message, in log order.
pub(crate) type Messages = Vec<(String, i32, Vec<u8>)>;

pub(crate) fn options() -> StoreOptions {
    StoreOptions {
        segment_bytes: SEGMENT,
        queue_file_entries: 8,
        index_slots: 4,
        index_entries: 40,
        durability: Durability::Manual,
        dispatch_threads: Some(0),
        default_queues: 2,
        prewarm: false,
        ..StoreOptions::default()
    }
}

/// A store with `messages` messages; the first `synced` are below the durable mark.
pub(crate) fn written(options: StoreOptions, messages: usize, synced: usize) -> (Simulated, Store) {
    let world = Simulated::new(SimVfs::new(SimOptions { trace: true, ..SimOptions::default() }), options);
    let store = world.open(OpenMode::Create).unwrap();
    store.create_topic("orders", 2, &[]).unwrap();
    put(&store, 0, synced);
    store.flush().unwrap();
    put(&store, synced, messages);
    (world, store)
}

/// Appends the messages with numbers `from..to`.
pub(crate) fn put(store: &Store, from: usize, to: usize) {
    for number in from..to {
        append(store, &[message(number)]).unwrap();
    }
}

pub(crate) fn message(number: usize) -> Remembered {
    Remembered {
        topic: "orders",
        queue_id: (number % 2) as i32,
        body: format!("body {number} {}", "x".repeat(number % 5 * 30)).into_bytes(),
        key: format!("k{}", number % 3),
    }
}

/// The first `count` messages as a store returns them.
pub(crate) fn messages(count: usize) -> Messages {
    (0..count).map(message).map(|one| (one.topic.to_owned(), one.queue_id, one.body)).collect()
}

/// The same store after the writer was closed or killed.
pub(crate) fn stopped(world: Simulated, store: Store, clean: bool) -> Simulated {
    if clean {
        store.close().unwrap();
        return world;
    }
    let vfs = world.vfs.kill().unwrap();
    // The store that is still open works on a separate copy of the disk.
    drop(store);
    world.on(vfs)
}

/// A copy of the disk without a running process.
pub(crate) fn copy(world: &Simulated) -> Simulated {
    world.on(world.vfs.kill().unwrap())
}

/// Every file of the store with its bytes.
pub(crate) fn tree(vfs: &SimVfs) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![PathBuf::from(ROOT)];
    while let Some(folder) = folders.pop() {
        for entry in vfs.list(&folder).unwrap() {
            let path = folder.join(&entry.name);
            if entry.stat.kind == FileKind::Directory {
                folders.push(path);
            } else {
                let bytes = vfs.read_file(&path, 1 << 30).unwrap();
                found.insert(path, bytes);
            }
        }
    }
    found
}

/// The tree without the values that differ between opens: process ids, counters of marks, the live page.
pub(crate) fn lasting(vfs: &SimVfs) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut tree = tree(vfs);
    tree.retain(|path, _| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        !matches!(name.as_str(), "state.a" | "state.b" | "live" | "lock" | "abort")
            && !path.starts_with(side("lost+found"))
    });
    tree
}

/// Names the file that differs instead of printing all of them.
pub(crate) fn same_files(left: &BTreeMap<PathBuf, Vec<u8>>, right: &BTreeMap<PathBuf, Vec<u8>>, what: &str) {
    let paths: std::collections::BTreeSet<_> = left.keys().chain(right.keys()).collect();
    let differs: Vec<_> = paths.into_iter().filter(|path| left.get(*path) != right.get(*path)).collect();
    assert!(differs.is_empty(), "{what}: {differs:?}");
}

pub(crate) fn segment(number: u64) -> PathBuf {
    Path::new(ROOT).join(format!("commitlog/{:020}", number * SEGMENT))
}

pub(crate) fn side(name: &str) -> PathBuf {
    Path::new(ROOT).join("mqstore").join(name)
}

/// Replaces the bytes of a file from `offset` on.
pub(crate) fn overwrite(vfs: &SimVfs, path: &Path, offset: u64, bytes: &[u8]) {
    vfs.open(path, Access::ReadWrite).unwrap().write_all_at(bytes, offset).unwrap();
}

/// Creates a file with these bytes, or replaces an existing one.
pub(crate) fn make(vfs: &SimVfs, path: &Path, bytes: &[u8]) {
    let _ = vfs.remove_file(path);
    vfs.create_dir_all(path.parent().unwrap()).unwrap();
    vfs.create_new(path).unwrap().write_all_at(bytes, 0).unwrap();
}

/// Returns the queue offsets of one queue of the topic, around damaged records.
pub(crate) fn undamaged(store: &Store, queue_id: i32) -> Vec<i64> {
    let mut cursor = store.read("orders", queue_id, None, None, None).unwrap().on_damage(DamagePolicy::Skip);
    // A batch ends before a damaged record.
    let batches =
        std::iter::from_fn(|| Some(cursor.next_batch(usize::MAX).unwrap()).filter(|batch| !batch.is_empty()));
    batches.flatten().map(|record| record.queue_offset).collect()
}

/// The messages that a read-only open finds.
pub(crate) fn readable(world: &Simulated) -> Result<Messages, StoreError> {
    log_order(&world.open(OpenMode::Read)?)
}
