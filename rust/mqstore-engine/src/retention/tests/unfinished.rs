//! Segments that are old enough and hold unfinished messages.

use super::*;
use crate::{HolderKind, SegmentHolder};
use mqstore_base::options::RetentionPolicy;
use mqstore_meta::OffsetChange;

const HOUR_MS: u64 = 3_600_000;

/// Commits `offset` for a group in a queue.
pub(super) fn commit(store: &Store, group: &str, topic: &str, queue_id: i32, offset: i64) {
    let meta = store.meta().unwrap();
    let queue = meta.queue_key(group, topic, queue_id).unwrap();
    meta.commit(&[OffsetChange { queue, offset }]).unwrap();
}

/// Returns the holder that a group is at `offset` of queue 0 of `t`.
fn holder(placed: &[(i64, u64)], offset: usize) -> SegmentHolder {
    SegmentHolder {
        kind: HolderKind::Group,
        group: Some("g".into()),
        topic: "t".into(),
        queue_id: 0,
        offset: offset as i64,
        log_offset: placed[offset].1,
    }
}

#[test]
fn a_group_keeps_what_it_has_not_finished() {
    let bench = Bench::new();
    let store = bench.open(&aged(1));
    let placed = fill(&bench, &store, 5);
    let middle = placed.iter().position(|(_, at)| *at >= 2 * SEGMENT).unwrap();
    commit(&store, "g", "t", 0, middle as i64);
    bench.hours(24 * 30);
    rounds(&bench, &store, 30);
    assert_eq!(bench.segments()[0], 2 * SEGMENT, "finished segments go, the next one stays");
    let kept =
        bench.events.lock().iter().filter(|event| event.kind == "segment_kept").cloned().collect::<Vec<_>>();
    assert_eq!(kept.len(), 1, "told once");
    assert!(kept[0].detail.contains(&format!("group g has not finished t from queue 0, offset {middle} on")));
    assert_eq!(store.stats().unwrap().segments_kept_by, [holder(&placed, middle)]);
    assert_eq!(store.retention().segment_holders().unwrap(), [holder(&placed, middle)]);
    let report = expire(&store, false);
    assert_eq!((report.segments, &report.kept_by[..]), (0, &[holder(&placed, middle)][..]));
    assert!(report.kept[0].contains("it holds unfinished messages: group g"), "{:?}", report.kept);
    commit(&store, "g", "t", 0, middle as i64 + 1);
    bench.clock.advance(Duration::from_secs(10));
    rounds(&bench, &store, 3);
    let told = bench.events.lock().iter().filter(|event| event.kind == "segment_kept").count();
    assert_eq!(told, 1, "progress of the same group is no new reason");
    commit(&store, "g", "t", 0, placed.len() as i64);
    rounds(&bench, &store, 30);
    assert_eq!(bench.segments(), [4 * SEGMENT]);
    assert_eq!(store.stats().unwrap().segments_kept_by, []);
    store.close().unwrap();
}

#[test]
fn every_group_and_every_queue_of_its_topic_counts() {
    let bench = Bench::new();
    let store = bench.open(&aged(1));
    store.create_topic("t", 2, &[]).unwrap();
    let placed = fill(&bench, &store, 4);
    let properties = encode_properties([], None, None, []).unwrap();
    store.append(&message("t", Some(1), b"x", &properties)).unwrap();
    let all = placed.len() as i64;
    commit(&store, "slow", "t", 0, 0);
    commit(&store, "g", "t", 0, all);
    bench.hours(24);
    assert_eq!(expire(&store, true).kept_by.len(), 1);
    commit(&store, "slow", "t", 0, all);
    // A group starts at the first message of a queue in which it has no offset; this one is in the active segment.
    assert_eq!(expire(&store, true).segments, 3);
    commit(&store, "late", "t", 1, 1);
    let report = expire(&store, true);
    assert_eq!((report.segments, report.kept_by[0].group.as_deref()), (0, Some("late")));
    assert_eq!((report.kept_by[0].queue_id, report.kept_by[0].offset), (0, 0));
    store.close().unwrap();
}

#[test]
fn the_policy_time_and_topics_without_groups_need_the_age_only() {
    let bench = Bench::new();
    let store = bench.open(&aged(1));
    fill(&bench, &store, 4);
    // A group of another topic.
    let properties = encode_properties([], None, None, []).unwrap();
    store.append(&message("other", Some(0), b"x", &properties)).unwrap();
    commit(&store, "g", "other", 0, 0);
    bench.hours(24);
    assert_eq!(expire(&store, true).segments, 3);
    commit(&store, "g", "t", 0, 0);
    assert_eq!(expire(&store, true).segments, 0);
    store.close().unwrap();
    let store = bench.open(&StoreOptions { retention_policy: RetentionPolicy::Time, ..aged(1) });
    assert_eq!(expire(&store, false).segments, 3);
    store.close().unwrap();
}

#[test]
fn a_hard_limit_deletes_unfinished_messages_and_says_so() {
    let bench = Bench::new();
    let store = bench.open(&StoreOptions { retention_bytes: Some(2 * SEGMENT), ..aged(1000) });
    fill(&bench, &store, 5);
    commit(&store, "g", "t", 0, 0);
    let planned = expire(&store, true);
    rounds(&bench, &store, 10);
    assert_eq!(bench.segments().len(), 2);
    let events = bench.events.lock();
    let deleted: Vec<_> = events.iter().filter(|event| event.kind == "segment_deleted").collect();
    assert_eq!(deleted.len(), 3, "one event for each segment");
    for (event, planned) in deleted.iter().zip(&planned.files) {
        assert!(event.file.as_ref().unwrap().unfinished && planned.unfinished);
        assert!(event.detail.starts_with("size: "), "{}", event.detail);
        assert!(event.detail.contains("unfinished messages are lost: group g"), "{}", event.detail);
    }
    drop(events);
    store.close().unwrap();
}

#[test]
fn a_group_without_progress_counts_until_its_time_is_over() {
    let bench = Bench::new();
    let options = StoreOptions { group_timeout_ms: Some(10 * HOUR_MS), ..aged(1) };
    let mut store = bench.open(&options);
    let placed = fill(&bench, &store, 4);
    commit(&store, "g", "t", 0, 0);
    bench.hours(24);
    assert_eq!(expire(&store, true).segments, 0);
    bench.hours(24);
    assert_eq!(expire(&store, false).segments, 0, "a dry run starts no time");
    bench.hours(9);
    commit(&store, "g", "t", 0, 1);
    assert_eq!(expire(&store, false).segments, 0, "progress starts the time again");
    bench.hours(9);
    assert_eq!(expire(&store, false).segments, 0);
    store.close().unwrap();
    bench.hours(1);
    let reader = bench.try_open(OpenMode::Read, &options).unwrap();
    assert_eq!(expire(&reader, true).segments, 3, "the time is stored");
    store = bench.open(&options);
    rounds(&bench, &store, 10);
    assert_eq!(bench.segments().len(), 1);
    assert_eq!(offsets(&store).len(), placed.iter().filter(|(_, at)| *at >= 3 * SEGMENT).count());
    store.close().unwrap();
}

#[test]
fn a_damaged_file_of_times_starts_them_again() {
    let bench = Bench::new();
    let options = StoreOptions { group_timeout_ms: Some(HOUR_MS), ..aged(1) };
    let store = bench.open(&options);
    fill(&bench, &store, 4);
    commit(&store, "g", "t", 0, 0);
    bench.hours(24);
    expire(&store, false);
    store.close().unwrap();
    bench.hours(24);
    let path = std::path::Path::new("/data/store/mqstore/groups");
    assert!(bench.sim.read_file(path, 1 << 20).unwrap().ends_with(b" t@g\n"));
    bench.sim.write_atomic(path, "/data/copy".as_ref(), b"x\n\xff 1 t@g\n").unwrap();
    let store = bench.open(&options);
    assert_eq!(expire(&store, false).segments, 0);
    bench.hours(1);
    assert_eq!(expire(&store, false).segments, 3);
    store.close().unwrap();
}

#[test]
fn what_the_delivery_needs_stays_for_any_policy() {
    /// A waiting message at the start of the log.
    #[expect(clippy::unnecessary_wraps, reason = "the look-up of a store can fail")]
    fn first(store: &Store) -> Result<Vec<SegmentHolder>, StoreError> {
        let log_offset = store.segments().min_offset();
        let kind = HolderKind::Delayed;
        Ok(vec![SegmentHolder {
            kind,
            group: None,
            topic: "later".into(),
            queue_id: 0,
            offset: 7,
            log_offset,
        }])
    }
    let bench = Bench::new();
    for retention_policy in [RetentionPolicy::Finished, RetentionPolicy::Time] {
        let options = StoreOptions { retention_policy, ..aged(1) };
        let store = bench.open(&options);
        fill(&bench, &store, 4);
        bench.hours(24);
        assert_eq!(expire(&store, true).segments, 3);
        store.find_deliveries_with(first);
        rounds(&bench, &store, 10);
        let report = expire(&store, false);
        assert_eq!(report.segments, 0);
        assert!(
            report.kept[0].ends_with("a delayed message to later waits at offset 7"),
            "{:?}",
            report.kept
        );
        store.close().unwrap();
        let reader = bench.try_open(OpenMode::Read, &options).unwrap();
        reader.find_deliveries_with(first);
        assert_eq!(expire(&reader, true), ExpireReport { dry_run: true, ..report });
    }
}

#[test]
fn a_reader_plans_what_the_writer_does() {
    let bench = Bench::new();
    let store = bench.open(&aged(1));
    let placed = fill(&bench, &store, 5);
    let middle = placed.iter().position(|(_, at)| *at >= 2 * SEGMENT).unwrap();
    commit(&store, "g", "t", 0, middle as i64);
    bench.hours(24);
    store.close().unwrap();
    let reader = bench.try_open(OpenMode::Read, &aged(1)).unwrap();
    let planned = expire(&reader, true);
    assert_eq!((planned.segments, &planned.kept_by[..]), (2, &[holder(&placed, middle)][..]));
    assert_eq!(reader.retention().segment_holders().unwrap(), planned.kept_by);
    assert_eq!(reader.stats().unwrap().segments_kept_by, []);
    let store = bench.open(&aged(1));
    assert_eq!(ExpireReport { dry_run: true, ..expire(&store, false) }, planned);
    store.close().unwrap();
}
