//! A compaction drops values that have expired, once, and no other record.

use std::time::Duration;

use crate::testing::{Sent, TestStore, compact_now, compacted, offsets, plan, publish, small};
use crate::{CompactionOptions, JobControl, dirty_topics, run_all};

const TOPIC: &str = "ctopic";
const AFTER_MS: u64 = 100_000;

/// A store with the keys `k0` to `k4`. The value at queue offset `n` was stored at `n` milliseconds.
fn store() -> TestStore {
    let mut store = TestStore::new(&[TOPIC]);
    store.append_in_turn(TOPIC, 10, 5);
    store.expire_after(&[TOPIC], Some(AFTER_MS));
    store
}

fn pass(store: &TestStore, ms: u64) {
    store.clock.advance(Duration::from_millis(ms));
}

#[test]
fn an_expired_value_goes_without_new_messages() {
    let store = store();
    let report = compact_now(&store.files, None, &small(), 1).unwrap();
    assert_eq!((report.messages_after, report.expired), (5, 0));
    pass(&store, AFTER_MS + 4);
    // The oldest kept value was stored at 5 ms.
    assert_eq!(compact_now(&store.files, None, &small(), 1).unwrap().skipped, ["ctopic/0: unchanged"]);
    pass(&store, 3);
    let dry = CompactionOptions { dry_run: true, ..small() };
    let report = compact_now(&store.files, None, &dry, 1).unwrap();
    assert_eq!((report.messages_before, report.messages_after, report.expired), (5, 2, 3));
    assert_eq!(plan(&store.files, None, &small()).unwrap().plan.tasks.len(), 1);
    assert_eq!(offsets(&store.files, TOPIC, 0), [5, 6, 7, 8, 9]);
    let report = compact_now(&store.files, None, &small(), 1).unwrap();
    assert_eq!((report.messages_after, report.expired), (2, 3));
    assert_eq!(offsets(&store.files, TOPIC, 0), [8, 9]);
    pass(&store, 2);
    assert_eq!(compact_now(&store.files, None, &small(), 1).unwrap().messages_after, 0);
    assert!(compacted(&store.files, TOPIC, 0).is_empty());
    assert_eq!(compact_now(&store.files, None, &small(), 1).unwrap().skipped, ["ctopic/0: unchanged"]);
}

#[test]
fn no_older_value_takes_the_place_of_an_expired_one() {
    let mut store = store();
    pass(&store, AFTER_MS + 7);
    // All of it is still in the commit log; the values at 5 to 7 ms have expired.
    let report = compact_now(&store.files, None, &small(), 1).unwrap();
    assert_eq!((report.messages_before, report.keys, report.messages_after, report.expired), (10, 5, 2, 3));
    // A compaction of new messages does not take the others from the log again.
    store.append(TOPIC, 0, Sent::new("k0", "new"));
    compact_now(&store.files, None, &small(), 1).unwrap();
    assert_eq!(offsets(&store.files, TOPIC, 0), [8, 9, 10]);
}

#[test]
fn a_tombstone_keeps_its_own_time() {
    let mut store = store();
    store.append(TOPIC, 0, Sent::new("k0", ""));
    let options = CompactionOptions { tombstone_retention_ms: 10 * AFTER_MS, ..small() };
    pass(&store, 2 * AFTER_MS);
    let report = compact_now(&store.files, None, &options, 1).unwrap();
    assert_eq!((report.messages_after, report.tombstones_kept, report.expired), (1, 1, 4));
    // Only the tombstone is left, which does not expire.
    let again = compact_now(&store.files, None, &options, 1).unwrap();
    assert_eq!(again.skipped, ["ctopic/0: unchanged"]);
}

#[test]
fn a_longer_time_or_a_clock_that_was_set_back_keeps_values() {
    let store = store();
    pass(&store, AFTER_MS + 7);
    store.expire_after(&[TOPIC], Some(2 * AFTER_MS));
    assert_eq!(compact_now(&store.files, None, &small(), 1).unwrap().messages_after, 5);
    store.expire_after(&[TOPIC], Some(AFTER_MS));
    store.clock.set(1_700_000_000_000);
    assert_eq!(compact_now(&store.files, None, &small(), 1).unwrap().skipped, ["ctopic/0: unchanged"]);
    store.expire_after(&[TOPIC], None);
    pass(&store, 100 * AFTER_MS);
    assert_eq!(compact_now(&store.files, None, &small(), 1).unwrap().skipped, ["ctopic/0: unchanged"]);
}

#[test]
fn facts_of_an_earlier_version_are_not_taken_for_young_values() {
    let store = store();
    compact_now(&store.files, None, &small(), 1).unwrap();
    let path = store.files.compaction_manifest();
    let text = String::from_utf8(store.files.vfs.read_file(&path, 1 << 20).unwrap()).unwrap();
    let old = text.replace(r#""oldest_ms":1700000000005,"#, "");
    assert_ne!(old, text);
    store.files.vfs.write_atomic(&path, &path.with_extension("tmp"), old.as_bytes()).unwrap();
    assert_eq!(compact_now(&store.files, None, &small(), 1).unwrap().skipped.len(), 0);
    assert_eq!(compact_now(&store.files, None, &small(), 1).unwrap().skipped, ["ctopic/0: unchanged"]);
}

#[test]
fn a_resumed_job_uses_queues_that_were_finished_before_more_values_expired() {
    let store = store();
    pass(&store, AFTER_MS + 5);
    let options = CompactionOptions { job_id: Some("j".to_owned()), ..small() };
    let control = std::sync::Arc::new(JobControl::default());
    let first = plan(&store.files, None, &options).unwrap();
    let (job, results) = run_all(&store.files, None, first.job, &first.plan.tasks, 1, &control).unwrap();
    drop(job);
    pass(&store, 2);
    let second = plan(&store.files, None, &options).unwrap();
    let (job, again) = run_all(&store.files, None, second.job, &second.plan.tasks, 1, &control).unwrap();
    assert_eq!(again, results);
    let report = publish(&store.files, job, &second.plan, &again).unwrap();
    assert_eq!((report.messages_after, report.expired), (4, 1));
}

#[test]
fn the_background_compacts_for_values_that_expired_long_ago() {
    let store = store();
    compact_now(&store.files, None, &small(), 1).unwrap();
    let dirty = || dirty_topics(&store.files, store.queues(), 0.5).unwrap();
    assert!(dirty().is_empty());
    pass(&store, 2 * AFTER_MS + 4);
    assert!(dirty().is_empty());
    pass(&store, 1);
    assert_eq!(dirty(), [TOPIC]);
    compact_now(&store.files, None, &small(), 1).unwrap();
    assert!(dirty().is_empty());
}
