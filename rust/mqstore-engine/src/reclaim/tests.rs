//! Reclaim: the space that it frees, every kind of read afterwards, what must stay, and a stop at each call.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mqstore_base::error::StoreError;
use mqstore_base::options::{Durability, OpenMode, StoreOptions};
use mqstore_base::topic_floors::TopicRetention;
use mqstore_compaction::{JobControl, TaskMeter};
use mqstore_format::{Host, encode_blank};
use mqstore_io::{Clock, ManualClock, SimVfs};

use super::rules::RecordRules;
use super::{ReclaimReport, ReclaimRequest};
use crate::testing::{World, message, put, read_all};
use crate::{ArchiveState, Store};

const HOUR: Duration = Duration::from_secs(3600);

/// Small files; a segment has about twelve messages of [`body`].
fn options() -> StoreOptions {
    StoreOptions {
        segment_bytes: 128 << 10,
        queue_file_entries: 4,
        index_slots: 7,
        index_entries: 500,
        dispatch_threads: Some(0),
        record_crc: true,
        ..StoreOptions::default()
    }
}

fn body(topic: &str, number: i64) -> Vec<u8> {
    format!("secret of {topic} {number:05} ").repeat(400).into_bytes()
}

/// Appends `count` messages to each topic, in turn.
fn fill(store: &Store, clock: &ManualClock, topics: &[&str], count: i64) {
    for _ in 0..count {
        for topic in topics {
            let number = store.bounds(topic, 0).map_or(0, |(_, max)| max);
            put(store, topic, 0, &body(topic, number), &format!("{topic}-{number}"));
        }
        clock.advance(HOUR);
    }
}

fn hide(store: &Store, topic: &str, keep: u64) {
    let limits = TopicRetention { max_messages: Some(keep), ..TopicRetention::default() };
    store.retention().set(topic, limits).unwrap();
    store.expire(false, &mut || Ok(())).unwrap();
}

fn reclaim(store: &Store, request: &ReclaimRequest) -> Result<ReclaimReport, StoreError> {
    store.reclaim(request, &Arc::new(JobControl::default()))
}

fn preview() -> ReclaimRequest {
    ReclaimRequest { dry_run: true, ..ReclaimRequest::default() }
}

fn erase(topic: &str) -> ReclaimRequest {
    ReclaimRequest { erase: [topic.to_owned()].into(), ..ReclaimRequest::default() }
}

/// Checks that queue 0 of `topic` has exactly the messages from `first` to `end`, by queue and by key.
fn expect(store: &Store, topic: &str, first: i64, end: i64) {
    assert_eq!(store.bounds(topic, 0).unwrap(), (first, end), "{topic}");
    let wanted: Vec<_> = (first..end).map(|number| (number, body(topic, number))).collect();
    assert!(read_all(store, topic, 0) == wanted, "{topic}");
    for number in 0..end {
        let key = format!("{topic}-{number}");
        let found = store.lookup(topic, &key, None, None, None).unwrap().next_batch(usize::MAX).unwrap();
        assert_eq!(found.len(), usize::from(number >= first), "{key}");
    }
}

fn logged(store: &Store, from: Option<u64>) -> usize {
    let mut cursor = store.log().scan(from).unwrap();
    let mut count = 0;
    loop {
        match cursor.next_batch(100).unwrap().len() {
            0 => return count,
            more => count += more,
        }
    }
}

fn verify_clean(world: &World) {
    verify_clean_with(world, &options());
}

fn verify_clean_with(world: &World, options: &StoreOptions) {
    let report = mqstore_inspect::verify(&world.files(), options, &mut |_| Ok(())).unwrap();
    assert!(report.ok, "{:#?}", report.problems);
}

fn segments(world: &World) -> BTreeMap<String, (u64, i64, Vec<u8>)> {
    let folder = world.files().commit_log();
    let entries = world.vfs.list(&folder).unwrap();
    let read = |name: String| {
        let bytes = world.vfs.read_file(&folder.join(&name), 1 << 20).unwrap();
        let stat = world.vfs.stat(&folder.join(&name)).unwrap();
        (name, (stat.allocated_bytes, stat.modified_ms, bytes))
    };
    entries.into_iter().map(|entry| read(entry.name.into_string().unwrap())).collect()
}

fn has_secret(world: &World, topic: &str) -> bool {
    let secret = format!("secret of {topic} ").into_bytes();
    segments(world).values().any(|(_, _, bytes)| bytes.windows(secret.len()).any(|part| part == secret))
}

/// A store with three expired topics and a live one; 40 messages each.
fn expired() -> (World, Arc<SimVfs>, Arc<ManualClock>, Store) {
    let (world, sim, clock) = World::simulated();
    let store = world.open(OpenMode::Create, &options()).unwrap();
    fill(&store, &clock, &["a", "b", "c", "live"], 40);
    for topic in ["a", "b", "c"] {
        hide(&store, topic, 4);
    }
    (world, sim, clock, store)
}

#[test]
fn hidden_records_give_their_pages_back_and_all_others_are_found() {
    let (world, _, _, store) = expired();
    let reader = world.open(OpenMode::Read, &options()).unwrap();
    expect(&reader, "a", 36, 40);
    let before = segments(&world);
    // A cursor whose next record has become a part of a placeholder.
    let mut cursor = store.log().scan(None).unwrap();
    assert_eq!(cursor.next_batch(1).unwrap().len(), 1);
    let live = store.read("live", 0, Some(2), Some(3), None).unwrap().next_batch(1).unwrap().remove(0);
    let dead_offset = live.commit_log_offset - 1;

    let planned = reclaim(&store, &preview()).unwrap();
    assert!(planned.dry_run && segments(&world) == before);
    let done = reclaim(&store, &ReclaimRequest::default()).unwrap();
    let after = segments(&world);
    assert_eq!(planned.segments.len(), done.segments.len());
    assert!(done.segments.len() > 5, "{done:#?}");
    for (one, planned) in done.segments.iter().zip(&planned.segments) {
        let name = one.path.file_name().unwrap().to_str().unwrap();
        let freed = before[name].0 - after[name].0;
        assert_eq!(one.reclaimed_bytes, freed);
        assert_eq!(one.estimated_bytes, planned.estimated_bytes);
        // The filler at the end of a segment has pages, too.
        let most = one.estimated_bytes + one.estimated_bytes / 20 + body("a", 0).len() as u64 + 4096;
        assert!((one.estimated_bytes..=most).contains(&freed), "{one:?}");
        assert_eq!(before[name].1, after[name].1, "a broker deletes by the time of the file");
        assert_eq!(before[name].2.len(), after[name].2.len());
    }
    let untouched: Vec<_> = after.keys().rev().take(1).collect();
    assert!(untouched.iter().all(|name| before[*name] == after[*name]));
    for topic in &done.topics {
        assert!(topic.reclaimed_bytes * 10 >= topic.estimated_bytes * 8, "{topic:?}");
        assert!(topic.estimated_bytes * 10 >= topic.dead_bytes * 6, "{topic:?}");
    }
    assert_eq!(done.topics.iter().map(|row| row.topic.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);

    let check = |store: &Store| {
        for topic in ["a", "b", "c"] {
            expect(store, topic, 36, 40);
        }
        expect(store, "live", 0, 40);
        assert_eq!(logged(store, None), 40 + 3 * 4);
        let error = store.log().get_at(dead_offset).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
        // Inside a placeholder.
        assert_eq!(logged(store, Some(dead_offset)), 40 - 2 + 3 * 4);
    };
    for store in [&store, &reader] {
        check(store);
    }
    let mut found = 1;
    while let count @ 1.. = cursor.next_batch(7).unwrap().len() {
        found += count;
    }
    assert_eq!(found, 40 + 3 * 4);
    let usage = store.retention().usage(&mut || Ok(())).unwrap();
    let left: u64 = usage.iter().map(|row| row.dead_bytes).sum();
    let kept: u64 = done.kept.iter().map(|kept| kept.dead_bytes).sum();
    assert_eq!(left, kept);
    let again = reclaim(&store, &ReclaimRequest::default()).unwrap();
    assert_eq!(again.segments, []);
    store.close().unwrap();
    verify_clean(&world);
    check(&world.open(OpenMode::Read, &options()).unwrap());
    let store = world.open(OpenMode::ReadWrite, &options()).unwrap();
    assert_eq!(store.notes(), Vec::<String>::new());
    check(&store);
    store.rebuild(&mut |_| Ok(())).unwrap();
    check(&store);
    store.close().unwrap();
    verify_clean(&world);
    for folder in ["consumequeue", "index"] {
        world.vfs.remove_dir_all(&world.path.join(folder)).unwrap();
    }
    check(&world.open(OpenMode::Read, &options()).unwrap());
    check(&world.open(OpenMode::ReadWrite, &options()).unwrap());
}

#[test]
fn a_store_without_its_metadata_still_verifies() {
    let (world, _, _, store) = expired();
    reclaim(&store, &ReclaimRequest::default()).unwrap();
    store.close().unwrap();
    world.vfs.remove_dir_all(&world.files().side()).unwrap();
    for folder in ["consumequeue", "index"] {
        world.vfs.remove_dir_all(&world.path.join(folder)).unwrap();
    }
    mqstore_inspect::rebuild(&world.files(), &options(), false, &mut |_| Ok(())).unwrap();
    verify_clean(&world);
    let store = world.open(OpenMode::ReadWrite, &options()).unwrap();
    expect(&store, "live", 0, 40);
    assert_eq!(store.bounds("a", 0).unwrap().1, 40);
}

#[test]
fn a_deleted_topic_is_erased_also_without_gain() {
    let (world, _, clock) = World::simulated();
    let store = world.open(OpenMode::Create, &options()).unwrap();
    store.create_topic("gone", 1, &[]).unwrap();
    for number in 0..40 {
        put(&store, "gone", 0, b"secret of gone ", "key-of-gone");
        put(&store, "live", 0, &body("live", number), &format!("live-{number}"));
    }
    fill(&store, &clock, &["end"], 40);
    assert!(has_secret(&world, "gone"));
    store.remove_topic("gone").unwrap();
    let done = reclaim(&store, &erase("gone")).unwrap();
    assert!(
        !done.segments.is_empty() && done.segments.iter().all(|one| one.estimated_bytes == 0),
        "{done:#?}"
    );
    assert_eq!((done.kept.len(), has_secret(&world, "gone")), (0, false));
    expect(&store, "live", 0, 40);
    store.create_topic("gone", 1, &[]).unwrap();
    assert_eq!(put(&store, "gone", 0, b"new", "new").queue_offset, 40);
    store.close().unwrap();
    verify_clean(&world);
    let store = world.open(OpenMode::ReadWrite, &options()).unwrap();
    assert_eq!(read_all(&store, "gone", 0), [(40, b"new".to_vec())]);
    expect(&store, "live", 0, 40);
    store.rebuild(&mut |_| Ok(())).unwrap();
    assert_eq!(read_all(&store, "gone", 0), [(40, b"new".to_vec())]);
    store.close().unwrap();
    verify_clean(&world);
}

#[test]
fn what_brokers_archives_or_light_queues_need_stays() {
    let reasons = |report: &ReclaimReport| -> Vec<String> {
        report.kept.iter().map(|kept| kept.reason.clone()).collect()
    };
    let none = |report: ReclaimReport, text: &str| {
        assert_eq!(report.segments, []);
        assert!(reasons(&report).iter().any(|reason| reason.contains(text)), "{report:#?}");
    };
    // The queue file leads to the hidden records.
    let (world, _, clock) = World::simulated();
    let wide = StoreOptions { queue_file_entries: 1000, ..options() };
    let store = world.open(OpenMode::Create, &wide).unwrap();
    fill(&store, &clock, &["a"], 60);
    hide(&store, "a", 4);
    none(reclaim(&store, &ReclaimRequest::default()).unwrap(), "queue files");
    none(reclaim(&store, &erase("a")).unwrap(), "queue files");

    // The archive does not have the segments yet.
    let (_world, _, _, store) = expired();
    store.archive().set(Some(&ArchiveState { archived_to: 0, settings: "{}".to_owned() })).unwrap();
    none(reclaim(&store, &ReclaimRequest::default()).unwrap(), "archive");
    let two = 2 * (128 << 10);
    store.archive().set(Some(&ArchiveState { archived_to: two, settings: "{}".to_owned() })).unwrap();
    let done = reclaim(&store, &ReclaimRequest::default()).unwrap();
    assert_eq!(done.segments.iter().map(|one| one.log_offset).collect::<Vec<_>>(), [0, 128 << 10]);

    // A new segment would take as much space as the active one.
    let (world, _, clock) = World::simulated();
    let store = world.open(OpenMode::Create, &options()).unwrap();
    fill(&store, &clock, &["a"], 8);
    hide(&store, "a", 4);
    none(reclaim(&store, &ReclaimRequest::default()).unwrap(), "fewer bytes than a new segment takes");

    // Light queues.
    let (world, _, clock) = World::simulated();
    let store = world.open(OpenMode::Create, &options()).unwrap();
    fill(&store, &clock, &["a"], 5);
    store.append_to_light_queues(&message("a", Some(0), b"hidden", &[]), &["light"]).unwrap();
    fill(&store, &clock, &["a"], 60);
    hide(&store, "a", 4);
    none(reclaim(&store, &ReclaimRequest::default()).unwrap(), "light queues");
    // The unit stays, and reads hide its record as in the topic itself.
    assert_eq!(
        (store.bounds("%LMQ%light", 0).unwrap(), read_all(&store, "%LMQ%light", 0).len()),
        ((0, 1), 0)
    );
}

#[test]
fn a_log_that_never_fills_a_segment_is_closed_if_that_pays() {
    let (world, _, clock) = World::simulated();
    let options = StoreOptions { segment_bytes: 1 << 20, allocation_bytes: 4096, ..options() };
    let store = world.open(OpenMode::Create, &options).unwrap();
    fill(&store, &clock, &["live", "b", "a", "b"], 20);
    hide(&store, "a", 1);
    let done = reclaim(&store, &ReclaimRequest::default()).unwrap();
    assert!(done.segments.is_empty() && done.kept[0].reason.contains("does not pay"), "{done:#?}");
    assert_eq!(segments(&world).len(), 1);
    // A thread of the log gets disk space for the next records at any time.
    let contents = || segments(&world).into_values().map(|(_, _, bytes)| bytes).collect::<Vec<_>>();
    let before = contents();

    store.remove_topic("b").unwrap();
    assert_eq!(reclaim(&store, &preview()).unwrap().segments.len(), 1);
    assert!(contents() == before);
    let done = reclaim(&store, &ReclaimRequest::default()).unwrap();
    let [one] = done.segments.try_into().unwrap();
    assert!(one.reclaimed_bytes > 59 * body("a", 0).len() as u64 / 2, "{one:?}");
    assert_eq!(segments(&world).len(), 2);
    // The durable mark names the last record of the log, which is hidden.
    store.close().unwrap();
    let mut live = 20;
    for mode in [OpenMode::Read, OpenMode::ReadWrite, OpenMode::Read, OpenMode::ReadWrite] {
        let store = world.open(mode, &options).unwrap();
        assert_eq!(store.notes(), Vec::<String>::new());
        expect(&store, "live", 0, live);
        expect(&store, "a", 19, 20);
        if mode == OpenMode::ReadWrite {
            fill(&store, &clock, &["live"], 2);
            live += 2;
        }
        store.close().unwrap();
    }
    verify_clean_with(&world, &options);
}

#[test]
fn small_records_that_are_mixed_do_not_pay() {
    let (world, _, clock) = World::simulated();
    let store = world.open(OpenMode::Create, &options()).unwrap();
    for number in 0..3000 {
        put(&store, ["a", "live"][number % 2], 0, b"secret of a ", "k");
    }
    fill(&store, &clock, &["live"], 40);
    hide(&store, "a", 4);
    let before = segments(&world);
    let kept = reclaim(&store, &ReclaimRequest::default()).unwrap();
    assert!(kept.segments.is_empty() && segments(&world) == before, "{kept:#?}");
    assert!(kept.kept.iter().any(|kept| kept.reason.contains("does not pay")), "{kept:#?}");
    let count = logged(&store, None);
    let erased = reclaim(&store, &erase("a")).unwrap();
    assert!(erased.segments.len() > 1, "{erased:#?}");
    assert_eq!((logged(&store, None), store.bounds("a", 0).unwrap()), (count, (1496, 1500)));
    assert_eq!(read_all(&store, "live", 0).len(), 1540);
    store.close().unwrap();
    verify_clean(&world);
}

#[test]
fn damage_and_foreign_files_are_left_alone() {
    let (world, _, _, store) = expired();
    let path = world.files().commit_log().join("00000000000000131072");
    let file = world.vfs.open(&path, mqstore_io::Access::ReadWrite).unwrap();
    file.write_all_at(b"damage", 200).unwrap();
    let done = reclaim(&store, &ReclaimRequest::default()).unwrap();
    assert_eq!(done.segments.len(), 1, "{done:#?}");
    assert!(done.kept[0].reason.contains("damaged at offset"), "{done:#?}");
    // Another file of the same length has the name.
    let (world, _, _, store) = expired();
    let path = world.files().commit_log().join("00000000000000000000");
    let other = world.path.join("other");
    let made = world.vfs.create_new(&other).unwrap();
    made.set_len(128 << 10).unwrap();
    made.write_all_at(&encode_blank(128 << 10), 0).unwrap();
    world.vfs.rename(&other, &path).unwrap();
    reclaim(&store, &ReclaimRequest::default()).unwrap_err();
    assert_eq!(world.vfs.read_file(&path, 1 << 20).unwrap()[..8], encode_blank(128 << 10));
    let staging = world.files().staging();
    let left = world.vfs.list(&staging).unwrap();
    assert!(left.iter().all(|entry| !entry.name.to_string_lossy().contains("rewrite")), "{left:?}");
}

#[test]
fn an_ended_call_a_reader_and_a_closed_store_change_nothing() {
    let (world, _, _, store) = expired();
    let control = Arc::new(JobControl::default());
    control.end();
    let before = segments(&world);
    let error = store.reclaim(&ReclaimRequest::default(), &control).unwrap_err();
    assert!(matches!(error, StoreError::Closed { .. }), "{error}");
    assert!(segments(&world) == before);
    let reader = world.open(OpenMode::Read, &options()).unwrap();
    assert!(matches!(reclaim(&reader, &preview()), Err(StoreError::ReadOnly { .. })));
    store.close().unwrap();
    assert!(matches!(reclaim(&store, &preview()), Err(StoreError::Closed { .. })));
}

#[test]
fn the_limit_of_bytes_holds_for_every_read_and_write() {
    const RATE: u64 = 100 << 10;
    let (_world, _, clock, store) = expired();
    let before = clock.monotonic();
    let control = Arc::new(JobControl::with_bytes_per_second(RATE));
    let done = store.reclaim(&ReclaimRequest::default(), &control).unwrap();
    let passed = clock.monotonic().saturating_sub(before);
    let in_log: usize = ["a", "b", "c", "live"].map(|topic| 40 * body(topic, 0).len()).iter().sum();
    let rewritten: u64 = done.segments.iter().map(|one| one.live_bytes + one.dead_bytes).sum();
    let written: u64 = done.segments.iter().map(|one| one.live_bytes).sum();
    assert!(rewritten > 500 << 10);
    // The count of the log, the copy, and the comparison of both files.
    let bytes = in_log as u64 + rewritten + written + 2 * rewritten;
    assert!(passed >= Duration::from_secs(bytes / RATE), "{passed:?} for {bytes} bytes");
}

/// A cursor reads units ahead. A reclaim makes placeholders of their records, which have the same places.
#[test]
fn a_read_that_began_before_the_retention_returns_no_placeholder() {
    let (world, _, clock) = World::simulated();
    let store = world.open(OpenMode::Create, &options()).unwrap();
    fill(&store, &clock, &["a", "gone", "live", "other"], 40);
    let reader = world.open(OpenMode::Read, &options()).unwrap();
    let cursors = |topic| {
        [&store, &reader].map(|store| {
            let mut cursor = store.read(topic, 0, None, None, None).unwrap();
            assert_eq!(cursor.next_batch(1).unwrap()[0].queue_offset, 0);
            cursor
        })
    };
    let [hidden, live, deleted] = ["a", "live", "gone"].map(cursors);
    hide(&store, "a", 4);
    store.remove_topic("gone").unwrap();
    let done = reclaim(&store, &ReclaimRequest::default()).unwrap();
    assert!(done.segments.len() > 3, "{done:#?}");
    for (topic, cursors) in [("a", hidden), ("gone", deleted)] {
        for mut cursor in cursors {
            // The writer can still have the old file of the first segment.
            let end = loop {
                match cursor.next_batch(1) {
                    Ok(found) if found.is_empty() => break None,
                    Ok(found) => {
                        let record = &found[0];
                        assert_eq!(record.view().unwrap().body, body(topic, record.queue_offset));
                    }
                    Err(error) => break Some(error),
                }
            };
            // A reader in another process finds no more messages of a deleted topic.
            let is_right = matches!(
                (topic, &end),
                ("a", Some(StoreError::OffsetOutOfRange { min_offset: 36, .. }))
                    | ("gone", Some(StoreError::TopicNotFound { .. }) | None)
            );
            assert!(is_right && cursor.position() < 36, "{topic}: {end:?}");
        }
    }
    for mut cursor in live {
        assert_eq!(cursor.next_batch(usize::MAX).unwrap().len(), 39);
    }
}

/// A stop leaves the old or the rewritten file of each segment.
#[test]
fn segments_that_a_retention_deletes_meanwhile_are_passed_over() {
    let (world, _, clock) = World::simulated();
    let options = StoreOptions { retention_bytes: Some(1 << 20), ..options() };
    let store = world.open(OpenMode::Create, &options).unwrap();
    fill(&store, &clock, &["a", "b", "c", "live"], 40);
    for topic in ["a", "b", "c"] {
        hide(&store, topic, 4);
    }
    let writer = store.writer("reclaim").unwrap();
    let (request, control) = (ReclaimRequest::default(), JobControl::default());
    let files = world.files();
    writer.engine.flusher.flush_all(false).unwrap();
    let mut meter = TaskMeter::start(&files, &control).unwrap();
    let mut rules = RecordRules::begin(&writer.engine, &request).unwrap();
    let surveyed = writer.reclaim.survey(&mut rules, &mut meter).unwrap();
    let planned = surveyed.choose(false);
    fill(&store, &clock, &["live"], 20);
    let deleted = store.expire(false, &mut || Ok(())).unwrap().segments as usize;
    assert!(deleted > 0 && deleted < planned, "{deleted} of {planned}");
    let report = writer.reclaim.rewrite_segments(&surveyed, &request, &mut rules, &mut meter).unwrap();
    let left = surveyed.segments[deleted..planned].iter().filter(|segment| segment.free_bytes > 0);
    assert_eq!(report.segments.len(), left.count());
    assert!(report.kept.iter().all(|kept| world.vfs.stat(&kept.path).is_ok()), "{:?}", report.kept);
    store.close().unwrap();
    verify_clean(&world);
}

#[test]
fn a_stop_at_any_call_leaves_each_segment_old_or_new() {
    for durability in [Durability::Async, Durability::Manual] {
        let options = StoreOptions { durability, ..options() };
        let (world, sim, clock) = World::simulated();
        let store = world.open(OpenMode::Create, &options).unwrap();
        fill(&store, &clock, &["a", "live"], 36);
        hide(&store, "a", 4);
        store.flush().unwrap();
        let old = segments(&world);
        let begin = sim.operations();
        sim.freeze_at_each(begin..begin + 20_000);
        let done = reclaim(&store, &erase("a")).unwrap();
        assert!(done.segments.len() > 1, "{done:#?}");
        let states = sim.take_all_frozen();
        assert!(states.len() > 20, "{}", states.len());
        let new = segments(&world);
        for (at, state) in states {
            for stopped in [state.kill(), state.crash(at), state.crash_with(&mut |_| false)] {
                let world = world.on(Arc::new(stopped.unwrap()));
                for (name, (_, _, bytes)) in segments(&world) {
                    assert!(bytes == old[&name].2 || bytes == new[&name].2, "{name} at call {at}");
                }
                let store = world.open(OpenMode::ReadWrite, &options).unwrap();
                assert_eq!(store.notes(), Vec::<String>::new(), "at call {at}");
                expect(&store, "a", 32, 36);
                expect(&store, "live", 0, 36);
                store.close().unwrap();
            }
        }
        // What the call reported is durable.
        let world = world.on(Arc::new(sim.crash_with(&mut |_| false).unwrap()));
        assert!(segments(&world).into_iter().all(|(name, (_, _, bytes))| bytes == new[&name].2));
        verify_clean(&world);
        assert_eq!(sim.violations(), Vec::<String>::new());
    }
}

#[test]
fn records_with_other_hosts_and_long_topics_are_replaced() {
    let (world, _, clock) = World::simulated();
    let host = Host::new(std::net::Ipv6Addr::LOCALHOST, 10911);
    let options = StoreOptions { store_host: host, record_crc: false, ..options() };
    let store = world.open(OpenMode::Create, &options).unwrap();
    let long = "t".repeat(127);
    fill(&store, &clock, &[&long, "live"], 40);
    hide(&store, &long, 4);
    assert!(reclaim(&store, &ReclaimRequest::default()).unwrap().segments.len() > 3);
    expect(&store, &long, 36, 40);
    expect(&store, "live", 0, 40);
    store.close().unwrap();
    verify_clean(&world);
}
