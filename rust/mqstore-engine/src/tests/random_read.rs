//! Messages at single offsets, in any order, from memory and from files.

use mqstore_io::{Access, SimOptions};
use proptest::prelude::*;

use crate::testing::*;

fn offsets(found: &[Option<mqstore_base::message::StoredRecord>]) -> Vec<Option<i64>> {
    found.iter().map(|found| found.as_ref().map(|record| record.queue_offset)).collect()
}

fn filled(world: &World) -> Store {
    let store = world.open(OpenMode::Create, &small()).unwrap();
    for index in 0..300 {
        put(&store, ["a", "b"][index % 2], 0, format!("{index}").as_bytes(), "k");
    }
    store
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, ..ProptestConfig::default() })]

    /// Returns the same messages as a read in order: by the writer, after another open, and by a reader.
    #[test]
    fn any_offsets_in_any_order(wanted in proptest::collection::vec(0..150_i64, 0..60)) {
        let world = World::real();
        let store = filled(&world);
        let all = store.read("b", 0, None, None, None).unwrap().next_batch(999).unwrap();
        let expected: Vec<_> = wanted.iter().map(|offset| all[*offset as usize].bytes().to_vec()).collect();
        let check = |store: &Store| {
            let found = store.messages_at("b", 0, &wanted).unwrap();
            let bytes: Vec<_> = found.iter().flatten().map(|record| record.bytes().to_vec()).collect();
            assert_eq!(bytes, expected);
            assert!(found.iter().flatten().map(|record| record.queue_offset).eq(wanted.iter().copied()));
        };
        check(&store);
        check(&world.open(OpenMode::Read, &small()).unwrap());
        store.close().unwrap();
        let store = world.open(OpenMode::ReadWrite, &small()).unwrap();
        // The second call does not check the same records again.
        check(&store);
        check(&store);
    }
}

#[test]
fn offsets_outside_and_queues_that_are_not_there() {
    let world = World::real();
    let store = filled(&world);
    for store in [&store, &world.open(OpenMode::Read, &small()).unwrap()] {
        for outside in [-1, 150, i64::MAX] {
            let error = store.messages_at("a", 0, &[0, outside]).unwrap_err();
            assert!(
                matches!(error, StoreError::OffsetOutOfRange { offset, min_offset: 0, max_offset: 150, .. }
                    if offset == outside),
                "{error}"
            );
        }
        assert!(matches!(store.message_at("c", 0, 0), Err(StoreError::TopicNotFound { .. })));
        assert!(matches!(store.message_at("a", 1, 0), Err(StoreError::TopicNotFound { .. })));
        assert_eq!(store.messages_at("a", 0, &[]).unwrap().len(), 0);
        assert_eq!(offsets(&store.messages_at("a", 0, &[149, 0]).unwrap()), [Some(149), Some(0)]);
    }
}

#[test]
fn a_flipped_bit_is_found_by_the_first_read_and_by_every_later_one() {
    let world = World::real();
    let store = filled(&world);
    let place = store.message_at("a", 0, 20).unwrap().unwrap().commit_log_offset;
    store.close().unwrap();
    let segment = world.files().commit_log().join("00000000000000000000");
    let file = world.vfs.open(&segment, Access::ReadWrite).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, place + 89).unwrap();
    file.write_all_at(&[byte[0] ^ 4], place + 89).unwrap();
    let store = world.open(OpenMode::ReadWrite, &small()).unwrap();
    for _ in 0..2 {
        assert!(matches!(store.message_at("a", 0, 20), Err(StoreError::Corrupt { .. })));
        assert!(matches!(store.log().get_at(place), Err(StoreError::Corrupt { .. })));
        assert_eq!(offsets(&store.messages_at("a", 0, &[19, 21]).unwrap()), [Some(19), Some(21)]);
        let mut cursor = store.read("a", 0, None, None, None).unwrap();
        assert_eq!(cursor.next_batch(999).unwrap().len(), 20);
        assert!(matches!(cursor.next_batch(999), Err(StoreError::Corrupt { .. })));
    }
}

#[test]
fn a_batch_is_found_at_each_of_its_offsets() {
    let world = World::real();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    store.create_topic("a", 1, &[("queue.type".into(), "BatchCQ".into())]).unwrap();
    let properties = encode_properties(["k"], None, None, [("n", "1")]).unwrap();
    store.append_many(&vec![message("a", Some(0), b"body", &properties); 3]).unwrap();
    assert_eq!(offsets(&store.messages_at("a", 0, &[0, 1, 2]).unwrap()), [Some(0); 3]);
}

#[test]
fn reads_from_far_behind_the_end_are_counted_and_not_mapped() {
    let memory_bytes = Some(100 << 10);
    let vfs = Arc::new(SimVfs::new(SimOptions { memory_bytes, ..SimOptions::default() }));
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let world = World { vfs, clock, path: "/store".into(), temporary_folder: None };
    let store = filled(&world);
    let end = store.stats().unwrap().log_max_offset;
    // 40 of 100 KiB count as in memory; the log is longer than that.
    let hot_from = end - (40 << 10);
    let all = store.read("a", 0, None, None, None).unwrap().next_batch(999).unwrap();
    let (cold, hot): (Vec<_>, Vec<_>) = all.iter().partition(|record| record.commit_log_offset < hot_from);
    assert!(cold.len() > 20 && hot.len() > 20, "{} {}", cold.len(), hot.len());
    let stats = store.stats().unwrap();
    assert_eq!((stats.hot_reads, stats.cold_reads), (hot.len() as u64, cold.len() as u64));
    assert_eq!(stats.reader_lag_bytes, end - cold[0].commit_log_offset);
    assert_eq!(store.stats().unwrap().reader_lag_bytes, 0);
    // A look-up of store times reads records, but does not count as a read.
    assert!(store.queues("a").unwrap()[0].min_store_timestamp_ms.is_some());
    store.offset_for_time("a", 0, i64::MAX, crate::Boundary::Upper).unwrap();
    assert_eq!(store.stats().unwrap(), crate::Stats { reader_lag_bytes: 0, ..stats });
    // Read one by one, from both ends, they are the same messages.
    for record in &all {
        let found = store.message_at("a", 0, record.queue_offset).unwrap().unwrap();
        assert_eq!(found.bytes(), record.bytes());
        assert_eq!(store.log().get_at(record.commit_log_offset).unwrap().bytes(), record.bytes());
    }
    let stats = store.stats().unwrap();
    assert_eq!((stats.hot_reads, stats.cold_reads), (3 * hot.len() as u64, 3 * cold.len() as u64));
}

#[test]
fn next_to_a_writer_a_reader_needs_three_calls_for_a_message() {
    let (world, vfs, _) = World::simulated();
    let store = filled(&world);
    store.flush().unwrap();
    let reader = world.open(OpenMode::Read, &small()).unwrap();
    // The first read of a file opens it.
    reader.message_at("a", 0, 7).unwrap();
    let before = vfs.operations();
    assert_eq!(offsets(&[reader.message_at("a", 0, 7).unwrap()]), [Some(7)]);
    assert_eq!(vfs.operations() - before, 3, "the lock of the live page, the unit, the record");
}

#[test]
fn at_single_offsets_a_reader_sees_what_a_writer_adds_and_removes() {
    let (world, _, _) = World::simulated();
    let store = filled(&world);
    store.flush().unwrap();
    let reader = world.open(OpenMode::Read, &small()).unwrap();
    let at = |topic: &str, offset| reader.message_at(topic, 0, offset).map(|found| offsets(&[found]));
    assert_eq!(at("b", 0).unwrap(), [Some(0)]);
    assert!(matches!(at("b", 150), Err(StoreError::OffsetOutOfRange { .. })));
    put(&store, "b", 0, b"after the open", "k");
    assert_eq!(at("b", 150).unwrap(), [Some(150)]);

    assert_eq!(at("a", 149).unwrap(), [Some(149)]);
    store.remove_topic("a").unwrap();
    assert!(matches!(at("a", 149), Err(StoreError::TopicNotFound { .. })));

    // The process of the writer ends and another one starts.
    store.close().unwrap();
    assert_eq!(at("b", 150).unwrap(), [Some(150)]);
    let options = StoreOptions { retention_bytes: Some(16 << 10), ..small() };
    let store = world.open(OpenMode::ReadWrite, &options).unwrap();
    put(&store, "b", 0, b"after the restart", "k");
    assert_eq!(at("b", 151).unwrap(), [Some(151)]);

    assert_eq!(at("b", 0).unwrap(), [Some(0)]);
    assert!(store.expire(false, &mut || Ok(())).unwrap().segments > 0);
    assert!(matches!(at("b", 0), Err(StoreError::OffsetOutOfRange { min_offset: 1.., .. })));
    assert_eq!(at("b", 151).unwrap(), [Some(151)]);
}

#[test]
fn the_end_that_a_stopped_writer_vouches_for_is_looked_for_once() {
    let (world, vfs, _) = World::simulated();
    let options = StoreOptions { queue_file_entries: 10_000, segment_bytes: 4 << 20, ..small() };
    let store = world.open(OpenMode::Create, &options).unwrap();
    for index in 0..9_000 {
        if index == 5 {
            store.flush().unwrap();
        }
        put(&store, "a", 0, b"body", &format!("key-{index}"));
    }
    let vfs = Arc::new(vfs.kill().unwrap());
    let killed = world.on(vfs.clone());
    let store = killed.open(OpenMode::Read, &options).unwrap();
    let reads = |offset: i64| {
        let before = vfs.operations();
        let found = store.message_at("a", 0, offset).unwrap().unwrap();
        assert_eq!(found.queue_offset, offset);
        vfs.operations() - before
    };
    // The units of offset 5 and later are derived from the log.
    for offset in [1, 4, 5, 8_999] {
        assert!(reads(offset) < 15, "offset {offset}: {} operations", reads(offset));
    }
}
