//! Compaction of an open store: the results of readers, of a crash, and of a second compaction.

use std::sync::Arc;

use crate::Boundary;
use crate::testing::*;
use crate::{TableLoad, TableRow, TableRows};
use mqstore_compaction::{CompactionOptions, CompactionReport, JobControl};

const TABLE: &str = "table";

fn options() -> CompactionOptions {
    CompactionOptions { log_file_bytes: 4096, queue_file_bytes: 46 * 8, ..CompactionOptions::default() }
}

fn compact(store: &Store, options: &CompactionOptions) -> Result<CompactionReport, StoreError> {
    store.compact(None, options, 1, &Arc::new(JobControl::default()))
}

fn create(world: &World) -> Store {
    let store = world.open(OpenMode::Create, &small()).unwrap();
    store.create_topic(TABLE, 1, &[("cleanup.policy".to_owned(), "COMPACTION".to_owned())]).unwrap();
    store
}

fn fill(store: &Store, from: u32, to: u32, keys: u32) {
    for number in from..to {
        put(store, TABLE, 0, format!("value {number}").as_bytes(), &format!("k{}", number % keys));
    }
}

fn offsets(store: &Store, start: Option<i64>) -> Vec<i64> {
    let mut cursor = store.read(TABLE, 0, start, None, None).unwrap();
    let mut found = Vec::new();
    loop {
        let batch = cursor.next_batch(7).unwrap();
        if batch.is_empty() {
            return found;
        }
        found.extend(batch.iter().map(|record| record.queue_offset));
    }
}

#[test]
fn reads_go_from_what_is_left_into_the_live_log() {
    let (world, _, _) = World::simulated();
    let store = create(&world);
    fill(&store, 0, 60, 10);
    let report = compact(&store, &options()).unwrap();
    assert_eq!((report.messages_before, report.messages_after), (60, 10));
    fill(&store, 60, 75, 10);
    let expected: Vec<i64> = (50..75).collect();
    for start in [None, Some(0), Some(1), Some(49), Some(50)] {
        assert_eq!(offsets(&store, start), expected, "from {start:?}");
    }
    assert_eq!(offsets(&store, Some(63)), (63..75).collect::<Vec<_>>());
    assert_eq!(offsets(&store, Some(75)), [0_i64; 0]);
    assert!(matches!(store.read(TABLE, 0, Some(76), None, None), Err(StoreError::OffsetOutOfRange { .. })));
    assert!(matches!(store.read(TABLE, 0, Some(-1), None, None), Err(StoreError::OffsetOutOfRange { .. })));
    assert_eq!(compact(&store, &options()).unwrap().messages_before, 25);
    assert_eq!(compact(&store, &options()).unwrap().skipped, ["table/0: unchanged"]);
    assert_eq!(offsets(&store, None), (65..75).collect::<Vec<_>>());
    let info = &store.queues(TABLE).unwrap()[0];
    assert_eq!((info.min_offset, info.max_offset), (65, 75));
}

#[test]
fn times_are_looked_up_among_what_is_left() {
    let (world, _, clock) = World::simulated();
    let store = create(&world);
    let start = world.files().clock.now_ms();
    for number in 0..40 {
        fill(&store, number, number + 1, 10);
        clock.advance(std::time::Duration::from_millis(100));
    }
    compact(&store, &options()).unwrap();
    fill(&store, 40, 42, 10);
    let lower = |ms| store.offset_for_time(TABLE, 0, start + ms, Boundary::Lower).unwrap();
    let upper = |ms| store.offset_for_time(TABLE, 0, start + ms, Boundary::Upper).unwrap();
    assert_eq!([0, 2900, 3000, 3050, 3900, 4000].map(lower), [30, 30, 30, 31, 39, 40]);
    assert_eq!([0, 3000, 3050, 3900, 4000].map(upper), [30, 30, 30, 39, 41]);
    let info = &store.queues(TABLE).unwrap()[0];
    assert_eq!(info.min_store_timestamp_ms, Some(start + 3000));
}

#[test]
fn a_read_that_began_before_a_publication_misses_no_key() {
    let (world, _, _) = World::simulated();
    let store = create(&world);
    fill(&store, 0, 30, 10);
    compact(&store, &options()).unwrap();
    let mut cursor = store.read(TABLE, 0, None, None, None).unwrap();
    let mut seen: Vec<i64> = cursor.next_batch(3).unwrap().iter().map(|record| record.queue_offset).collect();
    // Every key gets a newer message after the end of the read, and its older one is dropped.
    fill(&store, 30, 40, 10);
    compact(&store, &options()).unwrap();
    while let records @ [_, ..] = cursor.next_batch(4).unwrap().as_slice() {
        seen.extend(records.iter().map(|record| record.queue_offset));
    }
    assert!(seen.is_sorted());
    let keys: std::collections::BTreeSet<i64> = seen.iter().map(|offset| offset % 10).collect();
    assert_eq!(keys.len(), 10, "{seen:?}");
    // With an end, the caller gets the remaining messages before it.
    let mut bounded = store.read(TABLE, 0, None, Some(33), None).unwrap();
    assert_eq!(bounded.next_batch(100).unwrap().len(), 3);
}

#[test]
fn a_kill_after_a_compaction_loses_nothing_of_it() {
    let (world, sim, _) = World::simulated();
    let store = create(&world);
    fill(&store, 0, 60, 10);
    compact(&store, &options()).unwrap();
    let after = sim.crash_with(&mut |_| false).unwrap();
    let world = world.on(Arc::new(after));
    let store = world.open(OpenMode::ReadWrite, &small()).unwrap();
    assert_eq!(offsets(&store, None), (50..60).collect::<Vec<_>>());
    fill(&store, 60, 61, 10);
    assert_eq!(offsets(&store, None), (50..61).collect::<Vec<_>>());
    store.close().unwrap();
}

#[test]
fn a_compaction_that_is_ended_leaves_everything() {
    let (world, _, _) = World::simulated();
    let store = create(&world);
    fill(&store, 0, 60, 10);
    let control = Arc::new(JobControl::default());
    control.end();
    let error = store.compact(None, &options(), 1, &control).unwrap_err();
    assert!(matches!(error, StoreError::Closed { .. }), "{error}");
    assert_eq!(offsets(&store, None).len(), 60);
    let rehearsed = compact(&store, &CompactionOptions { dry_run: true, ..options() }).unwrap();
    assert_eq!(rehearsed.messages_after, 10);
    assert_eq!(offsets(&store, None).len(), 60);
    store.close().unwrap();
    assert!(matches!(compact(&store, &options()), Err(StoreError::Closed { .. })));
}

/// Lets the background check `times` times, an interval apart.
fn looks(store: &Store, clock: &ManualClock, times: u32) {
    for _ in 0..times {
        store.step().unwrap();
        clock.advance(std::time::Duration::from_secs(60));
        store.step().unwrap();
    }
}

#[test]
fn the_background_compacts_what_has_changed_enough() {
    let (world, _, clock) = World::simulated();
    let background = |interval, ratio| StoreOptions {
        compaction_interval_ms: interval,
        compaction_dirty_ratio: ratio,
        ..small()
    };
    let store = world.open(OpenMode::Create, &background(Some(60_000), 0.5)).unwrap();
    store.create_topic(TABLE, 1, &[("cleanup.policy".to_owned(), "COMPACTION".to_owned())]).unwrap();
    fill(&store, 0, 60, 10);
    store.step().unwrap();
    assert_eq!(offsets(&store, None).len(), 60, "not before an interval has passed");
    looks(&store, &clock, 1);
    assert_eq!(offsets(&store, None).len(), 10);
    // Nine new messages and ten old ones: less than half are new. Ten new ones are enough.
    fill(&store, 60, 69, 10);
    looks(&store, &clock, 3);
    assert_eq!(offsets(&store, None).len(), 19);
    fill(&store, 69, 70, 10);
    looks(&store, &clock, 1);
    assert_eq!(offsets(&store, None), (60..70).collect::<Vec<_>>());
    store.close().unwrap();
    // The state is in files: after an open, nothing counts as new.
    let before = world.vfs.stat(&world.path.join("compaction")).unwrap().inode;
    let store = world.open(OpenMode::ReadWrite, &background(Some(60_000), 0.0)).unwrap();
    looks(&store, &clock, 2);
    assert_eq!(world.vfs.stat(&world.path.join("compaction")).unwrap().inode, before);
    fill(&store, 70, 71, 10);
    looks(&store, &clock, 1);
    assert_ne!(world.vfs.stat(&world.path.join("compaction")).unwrap().inode, before);
    store.close().unwrap();
    let store = world.open(OpenMode::ReadWrite, &background(None, 0.0)).unwrap();
    fill(&store, 71, 80, 10);
    looks(&store, &clock, 2);
    assert_eq!(offsets(&store, None).len(), 19, "off unless asked for");
    store.close().unwrap();
}

#[test]
fn what_is_superseded_is_verified_too() {
    let (world, _, _) = World::simulated();
    let store = create(&world);
    fill(&store, 0, 30, 10);
    let record = store.message_at(TABLE, 0, 5).unwrap().unwrap();
    let path = world.files().commit_log().join(mqstore_format::offset_file_name(0));
    let file = world.files().vfs.open(&path, mqstore_io::Access::ReadWrite).unwrap();
    let body = record.bytes().windows(5).position(|bytes| bytes == b"value").unwrap() as u64;
    let whole = record.bytes().to_vec();
    drop(record);
    file.write_all_at(b"Value", record_at(&whole) + body).unwrap();
    let report = compact(&store, &options()).unwrap();
    assert!(report.skipped[0].contains("table/0"), "{:?}", report.skipped);
    file.write_all_at(b"value", record_at(&whole) + body).unwrap();
    assert_eq!(compact(&store, &options()).unwrap().messages_after, 10);
}

/// Returns the log offset in a record.
fn record_at(bytes: &[u8]) -> u64 {
    mqstore_format::RecordView::decode(bytes).unwrap().physical_offset as u64
}

#[test]
fn a_table_is_loaded_with_the_newest_of_each_key() {
    let (world, _, _) = World::simulated();
    let store = create(&world);
    fill(&store, 0, 30, 10);
    put(&store, TABLE, 0, b"", "k3");
    for compacted in [false, true] {
        if compacted {
            compact(&store, &options()).unwrap();
        }
        let mut rows = TableRows::default();
        for keeps in [true, false] {
            let mut load = TableLoad::new(&store, TABLE, 0, keeps).unwrap();
            while load.step(7).unwrap() {}
            assert_eq!(load.reached(), 31 + i64::from(compacted));
            rows.absorb(load);
            assert_eq!(rows.keys(), ["k0", "k1", "k2", "k4", "k5", "k6", "k7", "k8", "k9"]);
            let (queue_id, row) = rows.get("k4").unwrap();
            assert_eq!((queue_id, row.queue_offset, row.record.is_some()), (0, 24, keeps));
        }
        put(&store, TABLE, 0, b"", "k3");
        // A table that missed a deletion learns of it from the next load.
        rows.put("k3", 0, TableRow { queue_offset: 3, store_timestamp: 0, record: None });
        let mut load = TableLoad::new(&store, TABLE, 0, false).unwrap();
        while load.step(100).unwrap() {}
        rows.absorb(load);
        assert!(!rows.contains("k3"));
        assert_eq!(rows.len(), 9);
    }
}
