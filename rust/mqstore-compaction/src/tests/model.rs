//! Compares a compacted topic with a map in memory.

use mqstore_io::{Access, SimVfs};
use proptest::prelude::*;

use crate::testing::{Sent, TestStore, compact_now, compacted, offsets, small};
use crate::{CompactedQueue, CompactionOptions};
use mqstore_base::error::StoreError;

const TOPIC: &str = "ctopic";

/// One message: queue, key (0 none, 1 blank), whether it has a body, whether it has a queue unit.
type Step = (i32, u8, bool);

fn sent(step: Step, at: usize) -> Sent {
    let key = match step.1 {
        0 => None,
        1 => Some("\t ".to_owned()),
        key => Some(format!("key {key}")),
    };
    let body = if step.2 { format!("body {at} {}", "x".repeat(at % 90)).into_bytes() } else { Vec::new() };
    Sent { key, body }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn every_compaction_equals_a_dictionary(
        rounds in prop::collection::vec(
            prop::collection::vec((0..3_i32, 0..12_u8, prop::bool::weighted(0.8)), 0..60), 1..4),
        memory_bytes in prop::sample::select(vec![0_u64, 300, 1 << 20]),
        confirm_keys in any::<bool>(),
        queues_lost in any::<bool>(),
        threads in 1..4_usize,
    ) {
        let mut store = TestStore::new(&[TOPIC]);
        let options = CompactionOptions { memory_bytes, confirm_keys, ..small() };
        for (round, steps) in rounds.iter().enumerate() {
            for (at, step) in steps.iter().enumerate() {
                store.append("plain", 0, Sent::new("other", "topic"));
                store.append(TOPIC, step.0, sent(*step, at + round * 1000));
            }
            if queues_lost && !steps.is_empty() {
                store.files.vfs.remove_dir_all(&store.files.consume_queue()).unwrap();
                store.files.vfs.create_dir_all(&store.files.consume_queue()).unwrap();
            }
            let report = compact_now(&store.files, None, &options, threads).unwrap();
            let mut after = 0;
            for queue in 0..3 {
                let expected = store.dictionary(TOPIC, queue);
                let untouched = round > 0 && !steps.iter().any(|step| step.0 == queue);
                let unchanged = format!("{TOPIC}/{queue}: unchanged");
                let was_there = store.sent.contains_key(&(TOPIC.to_owned(), queue));
                prop_assert_eq!(report.skipped.contains(&unchanged), untouched && was_there);
                after += if untouched { 0 } else { expected.len() as u64 };
                prop_assert_eq!(compacted(&store.files, TOPIC, queue), expected);
            }
            prop_assert_eq!(report.messages_after, after);
            if queues_lost {
                break;
            }
        }
    }
}

#[test]
fn counts_are_reported() {
    let mut store = TestStore::new(&[TOPIC]);
    store.append(TOPIC, 0, Sent::new("a", "1"));
    store.append(TOPIC, 0, Sent { key: None, body: b"keyless".to_vec() });
    store.append(TOPIC, 0, Sent::new("b", "2"));
    store.append(TOPIC, 0, Sent::new("a", "3"));
    store.append(TOPIC, 0, Sent::new("b", ""));
    let report = compact_now(&store.files, Some(&[TOPIC.to_owned()]), &small(), 1).unwrap();
    assert_eq!((report.messages_before, report.messages_after, report.keys), (5, 1, 2));
    assert_eq!((report.keyless, report.tombstones, report.rounds), (1, 1, 1));
    assert!(report.bytes_after < report.bytes_before);
    assert_eq!(report.queues.len(), 1);
}

#[test]
fn the_end_stays_when_everything_is_deleted() {
    let mut store = TestStore::new(&[TOPIC]);
    store.append_in_turn(TOPIC, 10, 5);
    compact_now(&store.files, None, &small(), 1).unwrap();
    for key in 0..5 {
        store.append(TOPIC, 0, Sent::new(&format!("k{key}"), ""));
    }
    for force in [false, true] {
        let options = CompactionOptions { force, ..small() };
        let report = compact_now(&store.files, None, &options, 1).unwrap();
        assert_eq!((report.messages_after, report.skipped.len()), (0, 0));
        let queue = CompactedQueue::open(&store.files, TOPIC, 0).unwrap().unwrap();
        assert_eq!((queue.min_offset(), queue.max_offset()), (15, 15));
        assert_eq!(offsets(&store.files, TOPIC, 0), Vec::<i64>::new());
    }
    store.append(TOPIC, 0, Sent::new("k1", "back"));
    compact_now(&store.files, None, &small(), 1).unwrap();
    assert_eq!(offsets(&store.files, TOPIC, 3), [15]);
}

#[test]
fn reads_give_this_offset_or_the_next() {
    let mut store = TestStore::new(&[TOPIC]);
    store.append_in_turn(TOPIC, 100, 40); // survivors 60..100, six files
    compact_now(&store.files, None, &small(), 1).unwrap();
    let queue = CompactedQueue::open(&store.files, TOPIC, 0).unwrap().unwrap();
    assert_eq!((queue.min_offset(), queue.max_offset()), (60, 100));
    for from in [0, 59, 60, 61, 73, 99, 100, 1000] {
        let expected: Vec<i64> = (from.max(60)..100).collect();
        assert_eq!(offsets(&store.files, TOPIC, from), expected, "from {from}");
    }
}

#[test]
fn what_no_queue_entry_points_at_is_found_in_the_log() {
    let mut store = TestStore::new(&[TOPIC]);
    store.append_in_turn(TOPIC, 20, 4);
    for at in 0..30 {
        store.append_to_log(TOPIC, 0, Sent::new(&format!("k{}", at % 7), "log only"));
        store.append_to_log(TOPIC, 1, Sent::new(&format!("k{}", at % 7), "a queue of its own"));
    }
    let report = compact_now(&store.files, None, &small(), 2).unwrap();
    assert_eq!(report.messages_before, 80);
    for queue in 0..2 {
        assert_eq!(compacted(&store.files, TOPIC, queue), store.dictionary(TOPIC, queue));
    }
}

#[test]
fn a_queue_at_odds_with_the_log_is_left_for_the_log() {
    let mut store = TestStore::new(&[TOPIC]);
    store.append_in_turn(TOPIC, 40, 10);
    let file = store.files.consume_queue().join(TOPIC).join("0").join(mqstore_format::offset_file_name(320));
    let file = store.files.vfs.open(&file, Access::ReadWrite).unwrap();
    file.write_all_at(&[0; 20], 0).unwrap(); // entry 16 is lost
    file.write_all_at(&[9], 45).unwrap(); // entry 18 points elsewhere
    compact_now(&store.files, None, &small(), 1).unwrap();
    assert_eq!(compacted(&store.files, TOPIC, 0), store.dictionary(TOPIC, 0));
}

#[test]
fn a_torn_tail_after_a_crash_is_left_out() {
    let mut store = TestStore::new(&[TOPIC]);
    store.append_in_turn(TOPIC, 10, 5);
    let before = store.dictionary(TOPIC, 0);
    let (_, unit) = store.append_to_log(TOPIC, 0, Sent::new("k1", "torn, and long enough to see it"));
    let path = store.files.commit_log().join(mqstore_format::offset_file_name(0));
    let log = store.files.vfs.open(&path, Access::ReadWrite).unwrap();
    log.write_all_at(&[0; 30], unit.physical_offset as u64 + 95).unwrap();
    store.files.vfs.create_new(&store.files.abort()).unwrap();
    let report = compact_now(&store.files, None, &small(), 1).unwrap();
    assert_eq!(report.skipped, Vec::<String>::new());
    assert_eq!(compacted(&store.files, TOPIC, 0), before);
}

#[test]
fn damage_in_the_log_leaves_the_queue_as_it_was() {
    let mut store = TestStore::new(&[TOPIC]);
    store.append_in_turn(TOPIC, 50, 5);
    store.append(TOPIC, 1, Sent::new("fine", "here"));
    let path = store.files.commit_log().join(mqstore_format::offset_file_name(0));
    let log = store.files.vfs.open(&path, Access::ReadWrite).unwrap();
    log.write_all_at(b"#", 90).unwrap(); // in the body of the first record
    let report = compact_now(&store.files, None, &small(), 1).unwrap();
    assert_eq!(report.skipped.len(), 1);
    assert!(report.skipped[0].contains("ctopic/0"), "{:?}", report.skipped);
    assert!(CompactedQueue::open(&store.files, TOPIC, 0).unwrap().is_none());
    assert_eq!(compacted(&store.files, TOPIC, 1), store.dictionary(TOPIC, 1));
}

#[test]
fn only_compaction_topics_are_compacted_unless_forced() {
    let mut store = TestStore::new(&[TOPIC]);
    store.append("plain", 0, Sent::new("a", "1"));
    let topics = ["plain".to_owned()];
    let error = compact_now(&store.files, Some(&topics), &small(), 1).unwrap_err();
    assert!(matches!(&error, StoreError::InvalidOption { option: "topics", .. }), "{error}");
    assert!(error.to_string().contains("cleanup.policy=COMPACTION"), "{error}");
    let forced = CompactionOptions { force: true, ..small() };
    assert_eq!(compact_now(&store.files, Some(&topics), &forced, 1).unwrap().messages_after, 1);
    // Files without the attribute are reported and left unchanged.
    let report = compact_now(&store.files, None, &small(), 1).unwrap();
    assert!(report.skipped[0].contains("plain"), "{:?}", report.skipped);
    let error = compact_now(&store.files, Some(&["nobody".to_owned()]), &small(), 1).unwrap_err();
    assert!(matches!(error, StoreError::TopicNotFound { .. }), "{error}");
    let error = compact_now(&store.files, Some(&["../x".to_owned()]), &small(), 1).unwrap_err();
    assert!(matches!(error, StoreError::InvalidOption { .. }), "{error}");
}

#[test]
fn a_directory_without_a_store_is_not_written_to() {
    let vfs = SimVfs::default();
    let files = crate::testing::files_on(&vfs);
    assert!(matches!(compact_now(&files, None, &small(), 1), Err(StoreError::NotAStore { .. })));
    assert_eq!(files.vfs.list(&files.root).unwrap(), []);
}

#[test]
fn a_record_larger_than_a_file_leaves_its_queue_out() {
    let mut store = TestStore::new(&[TOPIC]);
    store.append(TOPIC, 0, Sent::new("a", &"x".repeat(3000)));
    store.append(TOPIC, 1, Sent::new("a", "small"));
    let report = compact_now(&store.files, None, &small(), 1).unwrap();
    assert!(report.skipped[0].contains("the limit is"), "{:?}", report.skipped);
    assert_eq!(report.messages_after, 1);
}

#[test]
fn files_after_a_generation_without_files_are_known() {
    let mut store = TestStore::new(&[TOPIC]);
    store.append(TOPIC, 0, Sent { key: None, body: b"keyless".to_vec() });
    assert_eq!(compact_now(&store.files, None, &small(), 1).unwrap().messages_after, 0);
    store.append(TOPIC, 0, Sent::new("a", "1"));
    assert_eq!(compact_now(&store.files, None, &small(), 1).unwrap().messages_after, 1);
    let report = compact_now(&store.files, None, &small(), 1).unwrap();
    assert_eq!(report.skipped, [format!("{TOPIC}/0: unchanged")]);
}
