//! The metadata log: one more topic among 40,000, offsets of 50,000 groups, records of progress, and an open
//! with 100,000 topics.
#![expect(clippy::unwrap_used, reason = "a benchmark that fails has nothing to measure")]

use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use mqstore::Store;
use mqstore::format::json::{Dialect, TopicConfig, TopicTable};
use mqstore::options::{Durability, OpenMode, StoreOptions};
use mqstore_bench::{Bench, open};
use mqstore_meta::{MetaLog, OffsetChange, ProgressRecord, QueueKey};
use tempfile::TempDir;

const TOPICS: u64 = 40_000;
const GROUPS: u64 = 50_000;
const TOPICS_AT_OPEN: u64 = 100_000;
/// Approximate bytes of a frame with a topic or an offset.
const FRAME_BYTES: usize = 24;

fn manual() -> StoreOptions {
    StoreOptions { durability: Durability::Manual, dispatch_threads: Some(0), ..StoreOptions::default() }
}

/// A store with this many topics from a broker's file, and one more topic in the metadata log.
fn with_topics(topics: u64) -> (TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    open(&path, OpenMode::Create, &manual()).close().unwrap();
    let configs = (0..topics).map(|number| format!("topic-{number}"));
    let table = TopicTable {
        topics: configs.map(|name| (name.clone(), TopicConfig::new(name, 4))).collect(),
        ..TopicTable::default()
    };
    std::fs::create_dir_all(path.join("config")).unwrap();
    std::fs::write(path.join("config/topics.json"), table.to_json(Dialect::default())).unwrap();
    let store = open(&path, OpenMode::ReadWrite, &manual());
    store.create_topic("one-more", 4, &[]).unwrap();
    assert_eq!(store.topics().unwrap().len() as u64, topics + 1);
    (folder, store)
}

/// A topic that is durable when the call returns. The limit is a file that is written and synced as often.
fn topics(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("create-topic-durable");
    group.sample_size(10);
    let (folder, store) = with_topics(TOPICS);
    let mut limit = File::create(folder.path().join("limit")).unwrap();
    group.bench_function("limit", |bencher| {
        bencher.iter(|| {
            limit.write_all(&[7; FRAME_BYTES]).unwrap();
            limit.sync_data().unwrap();
        });
    });
    let mut number = TOPICS;
    group.bench_function("among-40000", |bencher| {
        bencher.iter(|| {
            store.create_topic(&format!("topic-{number}"), 4, &[]).unwrap();
            number += 1;
        });
    });
    group.finish();
}

fn queue(meta: &MetaLog, group: u64) -> QueueKey {
    meta.queue_key(&format!("group-{group}"), "bench", 3).unwrap()
}

/// Offsets without a wait for a sync. The limit copies the same number of bytes with their checksums.
fn commits(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("commit-offset");
    let bench = Bench::new(&manual());
    let meta = bench.store.meta().unwrap();
    let queues: Vec<QueueKey> = (0..GROUPS).map(|group| queue(&meta, group)).collect();
    group.throughput(Throughput::Elements(1));
    let mut target = vec![1; 4 << 20];
    group.bench_function("limit", |bencher| {
        let mut at = 0;
        bencher.iter(|| {
            at = mqstore_bench::limit_step(black_box(&mut target), at, &[7; FRAME_BYTES], 0);
        });
    });
    let mut number = 0;
    group.bench_function("among-50000-groups", |bencher| {
        bencher.iter(|| {
            number += 1;
            let queue = *queues.get(number * 49 % queues.len()).unwrap();
            meta.commit(&[OffsetChange { queue, offset: number as i64 }]).unwrap();
        });
    });
    let progress = Arc::clone(&meta.progress(queue(&meta, GROUPS)));
    let mut offset = 0;
    group.bench_function("lease-and-finish", |bencher| {
        bencher.iter(|| {
            let lease = ProgressRecord::Leased { offset, invisible_until_ms: 1_700_000_000_000, attempt: 1 };
            meta.append_progress(&progress, &[lease]).unwrap();
            let done = ProgressRecord::Finished { from: offset, to: offset + 1 };
            meta.append_progress(&progress, &[done]).unwrap();
            offset += 1;
        });
    });
    group.finish();
}

/// An open with all its topics, and one with a single topic.
fn opens(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("open-store");
    group.sample_size(10);
    for (name, topics) in [("limit", 1), ("topics-100000", TOPICS_AT_OPEN)] {
        let (folder, store) = with_topics(topics);
        store.close().unwrap();
        let path = folder.path().join("store");
        group.bench_function(name, |bencher| {
            bencher.iter(|| drop(open(&path, OpenMode::ReadWrite, &manual())));
        });
    }
    group.finish();
}

criterion_group!(benches, topics, commits, opens);
criterion_main!(benches);
