//! The key index: entries are added, and messages are found by their key.
//!
//! The limit of an addition writes the same number of bytes to the same places of a map: a slot anywhere, and
//! an entry after the last one. The limit of a look-up reads a slot, its entry and the record by position,
//! and computes both checksums.
#![expect(clippy::unwrap_used, reason = "a benchmark that fails has nothing to measure")]

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use mqstore::format::{IndexEntry, IndexGeometry, index_key_hash};
use mqstore::inspect::StoreFiles;
use mqstore::io::{Access, OsVfs, SystemClock};
use mqstore::message::encode_properties;
use mqstore::options::{Durability, StoreOptions};
use mqstore_bench::machine::mapped_file;
use mqstore_bench::{Bench, message, record};
use mqstore_log::index::{IndexSet, NewEntry};

/// Number of keys to look up.
const KEYS: u64 = 50_000;

/// Entries that dispatch adds in one call.
const AT_ONCE: usize = 64;

/// The same numbers as in RocketMQ.
const GEOMETRY: IndexGeometry = IndexGeometry { slots: 5_000_000, entries: 20_000_000 };

/// Distance between two places, coprime to the number of places.
const STRIDE: u64 = 1_234_567_891;

fn put(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("index-put");
    group.throughput(Throughput::Elements(AT_ONCE as u64));
    let mut number = 0;
    let mut hash = move || {
        number = (number + STRIDE) % i32::MAX as u64;
        number as i32
    };
    group.bench_function("limit", |bencher| {
        let folder = tempfile::tempdir().unwrap();
        let (_file, map) = mapped_file(folder.path(), "index", GEOMETRY.file_len() as usize).unwrap();
        let mut entry = 1;
        bencher.iter(|| {
            for _ in 0..AT_ONCE {
                let hash = black_box(hash());
                let bytes = IndexEntry { hash, physical_offset: 1, time_diff_s: 0, previous: 0 }.encode();
                entry = entry % (GEOMETRY.entries - 1) + 1;
                map.write(GEOMETRY.entry_position(entry) as usize, &bytes).unwrap();
                let slot = GEOMETRY.slot_position(GEOMETRY.slot_of(hash)) as usize;
                map.write(slot, &entry.to_be_bytes()).unwrap();
            }
        });
    });
    group.bench_function("put", |bencher| {
        let folder = tempfile::tempdir().unwrap();
        let files = StoreFiles::new(Arc::new(OsVfs::new()), Arc::new(SystemClock::new()), folder.path());
        files.ensure_folder(&files.staging()).unwrap();
        let index = IndexSet::load(&files, None, GEOMETRY, Access::ReadWrite).unwrap();
        let mut physical_offset = 0;
        bencher.iter(|| {
            let entries: [NewEntry; AT_ONCE] = std::array::from_fn(|_| {
                physical_offset += 1_000;
                NewEntry { hash: hash(), physical_offset, store_timestamp: 1_700_000_000_000, of_tags: false }
            });
            index.put(black_box(&entries)).unwrap();
        });
    });
    group.finish();
}

fn key(number: u64) -> String {
    format!("order-{number}")
}

fn lookup(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("index-lookup");
    group.throughput(Throughput::Elements(1));
    let options = StoreOptions {
        durability: Durability::Manual,
        dispatch_threads: Some(0),
        index_slots: GEOMETRY.slots,
        index_entries: GEOMETRY.entries,
        ..StoreOptions::default()
    };
    let (bench, body) = (Bench::new(&options), vec![b'x'; 1024]);
    for number in 0..KEYS {
        let properties =
            encode_properties([key(number).as_str()], Some("paid"), None, [("region", "eu")]).unwrap();
        bench.store.append(&message(&body, &properties)).unwrap();
    }
    let mut number = 0;
    let mut next = move || {
        number = (number + STRIDE) % KEYS;
        key(number)
    };
    let only = |folder: &str| {
        let found = std::fs::read_dir(bench.path().join(folder)).unwrap().next().unwrap().unwrap();
        File::open(found.path()).unwrap()
    };
    let (index, log) =
        (only("index"), File::open(bench.path().join("commitlog/00000000000000000000")).unwrap());
    group.bench_function("limit", |bencher| {
        let (mut slot, mut entry, mut bytes) = ([0; 4], [0; 20], vec![0; record(1024).len()]);
        bencher.iter(|| {
            let hash = index_key_hash("bench", &next());
            index.read_exact_at(&mut slot, GEOMETRY.slot_position(GEOMETRY.slot_of(hash))).unwrap();
            index.read_exact_at(&mut entry, GEOMETRY.entry_position(u32::from_be_bytes(slot))).unwrap();
            log.read_exact_at(&mut bytes, IndexEntry::decode(&entry).physical_offset as u64).unwrap();
            let (body, _) = bytes.split_at(1024);
            black_box(crc32fast::hash(body) ^ crc32fast::hash(&bytes))
        });
    });
    group.bench_function("lookup", |bencher| {
        bencher.iter(|| {
            let mut found = bench.store.lookup("bench", &next(), None, None, Some(10)).unwrap();
            assert_eq!(found.next_batch(10).unwrap().len(), 1);
        });
    });
    group.finish();
}

criterion_group!(benches, put, lookup);
criterion_main!(benches);
