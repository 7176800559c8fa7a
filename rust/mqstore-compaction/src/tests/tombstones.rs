//! Tombstones are kept as long as a slow reader may need them, and then dropped; and records without a key.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use crate::testing::{Broker, Sent, TestStore, compact_now, compacted, offsets, small};
use crate::{CompactionOptions, Keyless};

const TOPIC: &str = "ctopic";
const RETENTION_MS: u64 = 100_000;

fn keeping() -> CompactionOptions {
    CompactionOptions { tombstone_retention_ms: RETENTION_MS, ..small() }
}

fn pass(store: &TestStore, ms: u64) {
    store.clock.advance(Duration::from_millis(ms));
}

/// The expected state of a queue: the newest record of each key, and for tombstones the time when a run first read
/// them.
#[derive(Default)]
struct History {
    newest: BTreeMap<String, (i64, Vec<u8>)>,
    buried_ms: BTreeMap<String, u64>,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, ..ProptestConfig::default() })]

    #[test]
    fn every_run_equals_a_dictionary_with_history(
        runs in prop::collection::vec(
            (prop::collection::vec((0..8_u8, prop::bool::weighted(0.6)), 0..20), 0..70_000_u64), 1..12),
        memory_bytes in prop::sample::select(vec![0_u64, 300, 1 << 20]),
        confirm_keys in any::<bool>(),
    ) {
        let mut store = TestStore::new(&[TOPIC]);
        store.append(TOPIC, 0, Sent::new("first", "value"));
        let options = CompactionOptions { memory_bytes, confirm_keys, ..keeping() };
        let mut history = History::default();
        history.newest.insert("first".to_owned(), (0, b"value".to_vec()));
        let mut now = 0;
        for (run, (steps, passed)) in runs.iter().enumerate() {
            for (key, has_body) in steps {
                let body = if *has_body { format!("run {run}") } else { String::new() };
                let key = format!("k{key}");
                let offset = store.append(TOPIC, 0, Sent::new(&key, &body));
                history.buried_ms.remove(&key);
                history.newest.insert(key, (offset, body.into_bytes()));
            }
            pass(&store, *passed);
            now += passed;
            compact_now(&store.files, None, &options, 1).unwrap();
            let found = compacted(&store.files, TOPIC, 0);
            let mut forgotten = Vec::new();
            for (key, record) in &history.newest {
                if !record.1.is_empty() {
                    prop_assert_eq!(found.get(key), Some(record));
                    continue;
                }
                let kept_ms = now - *history.buried_ms.entry(key.clone()).or_insert(now);
                if let Some(found) = found.get(key) {
                    prop_assert_eq!(found, record);
                    prop_assert!(kept_ms <= RETENTION_MS + RETENTION_MS / 16, "kept for {kept_ms} ms");
                } else {
                    prop_assert!(kept_ms >= RETENTION_MS, "kept for {kept_ms} ms only");
                    forgotten.push(key.clone());
                }
            }
            for key in forgotten {
                history.newest.remove(&key);
            }
            prop_assert_eq!(found.len(), history.newest.len());
        }
    }
}

#[test]
fn a_tombstone_stays_for_its_time_and_goes_without_new_messages() {
    let mut store = TestStore::new(&[TOPIC]);
    store.append_in_turn(TOPIC, 10, 5);
    store.append(TOPIC, 0, Sent::new("k0", ""));
    let report = compact_now(&store.files, None, &keeping(), 1).unwrap();
    assert_eq!((report.messages_after, report.tombstones, report.tombstones_kept), (5, 1, 1));
    assert_eq!(offsets(&store.files, TOPIC, 0), [6, 7, 8, 9, 10]);
    pass(&store, RETENTION_MS - 1);
    let report = compact_now(&store.files, None, &keeping(), 1).unwrap();
    assert_eq!(report.skipped, ["ctopic/0: unchanged"]);
    pass(&store, 1);
    let report = compact_now(&store.files, None, &keeping(), 1).unwrap();
    assert_eq!((report.messages_after, report.tombstones_kept), (4, 0));
    assert_eq!(offsets(&store.files, TOPIC, 0), [6, 7, 8, 9]);
    // It is still in the commit log, and the compaction does not take it from there again.
    for _ in 0..2 {
        store.append(TOPIC, 0, Sent::new("k1", "again"));
        compact_now(&store.files, None, &keeping(), 1).unwrap();
        assert!(!offsets(&store.files, TOPIC, 0).contains(&10));
    }
}

#[test]
fn without_retention_a_tombstone_goes_at_once_as_in_rocketmq() {
    let mut store = TestStore::new(&[TOPIC]);
    store.append_in_turn(TOPIC, 10, 5);
    store.append(TOPIC, 0, Sent::new("k0", ""));
    compact_now(&store.files, None, &keeping(), 1).unwrap();
    assert!(offsets(&store.files, TOPIC, 0).contains(&10));
    let report = compact_now(&store.files, None, &small(), 1).unwrap();
    assert_eq!((report.messages_after, report.tombstones, report.tombstones_kept), (4, 1, 0));
}

#[test]
fn what_a_broker_changed_makes_the_facts_void() {
    let mut store = TestStore::new(&[TOPIC]);
    store.append_in_turn(TOPIC, 10, 5);
    store.append(TOPIC, 0, Sent::new("k0", ""));
    compact_now(&store.files, None, &keeping(), 1).unwrap();
    let mut broker = Broker::recover(&store.files, 2208, 368);
    broker.append(11, &Sent::new("k1", "from the broker"));
    pass(&store, RETENTION_MS);
    // The age of the tombstone is unknown, so it is kept for the complete time again.
    compact_now(&store.files, None, &keeping(), 1).unwrap();
    assert_eq!(offsets(&store.files, TOPIC, 0), [7, 8, 9, 10, 11]);
    pass(&store, RETENTION_MS);
    compact_now(&store.files, None, &keeping(), 1).unwrap();
    assert_eq!(offsets(&store.files, TOPIC, 0), [7, 8, 9, 11]);
}

#[test]
fn a_lost_or_damaged_manifest_costs_time_and_no_record() {
    let mut store = TestStore::new(&[TOPIC]);
    store.append_in_turn(TOPIC, 10, 5);
    store.append(TOPIC, 0, Sent::new("k0", ""));
    compact_now(&store.files, None, &keeping(), 1).unwrap();
    let manifest = store.files.compaction_manifest();
    store.files.vfs.remove_file(&manifest).unwrap();
    store.files.vfs.create_new(&manifest).unwrap().write_all_at(b"{\"version\":", 0).unwrap();
    pass(&store, RETENTION_MS);
    let report = compact_now(&store.files, None, &keeping(), 1).unwrap();
    assert_eq!((report.messages_after, report.tombstones_kept), (5, 1));
    assert_eq!(compact_now(&store.files, None, &keeping(), 1).unwrap().skipped, ["ctopic/0: unchanged"]);
}

#[test]
fn records_without_a_key_are_dropped_kept_or_refused() {
    let mut store = TestStore::new(&[TOPIC]);
    store.append(TOPIC, 0, Sent::new("a", "1"));
    store.append(TOPIC, 0, Sent { key: None, body: b"keyless".to_vec() });
    store.append(TOPIC, 0, Sent { key: Some("  ".to_owned()), body: b"blank".to_vec() });
    store.append(TOPIC, 0, Sent::new("a", "2"));
    let with = |keyless| CompactionOptions { keyless, ..small() };
    let report = compact_now(&store.files, None, &with(Keyless::Refuse), 1).unwrap();
    assert_eq!(report.skipped, ["ctopic/0: option keyless: 2 messages have no key, which is refused"]);
    for run in 0..2 {
        let report = compact_now(&store.files, None, &with(Keyless::Keep), 1).unwrap();
        assert_eq!(report.skipped.len(), run);
        assert_eq!(offsets(&store.files, TOPIC, 0), [1, 2, 3]);
    }
    let report = compact_now(&store.files, None, &with(Keyless::Drop), 1).unwrap();
    assert_eq!((report.keyless, report.messages_after), (2, 1));
    assert_eq!(offsets(&store.files, TOPIC, 0), [3]);
}
