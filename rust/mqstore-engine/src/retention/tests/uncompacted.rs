//! Segments that a compaction still has to read.

use std::sync::Arc;

use super::*;
use mqstore_compaction::{CompactionOptions, JobControl};

const ATTRIBUTE: (&str, &str) = ("cleanup.policy", "COMPACTION");

/// Returns a store with compaction topic `t` and `segments` segments of it, which only a compaction copies.
fn table(bench: &Bench, options: &StoreOptions, segments: usize) -> Store {
    table_of(bench, &StoreOptions { compaction_feed: false, ..options.clone() }, segments)
}

fn table_of(bench: &Bench, options: &StoreOptions, segments: usize) -> Store {
    let store = bench.open(options);
    store.create_topic("t", 1, &[(ATTRIBUTE.0.to_owned(), ATTRIBUTE.1.to_owned())]).unwrap();
    fill(bench, &store, segments);
    store
}

fn compact(store: &Store) {
    let options = CompactionOptions { log_file_bytes: 8192, ..CompactionOptions::default() };
    store.compact(None, &options, 1, &Arc::new(JobControl::default())).unwrap();
}

fn keys(store: &Store) -> usize {
    offsets(store).len()
}

#[test]
fn the_background_waits_for_a_compaction_and_then_goes_on() {
    let bench = Bench::new();
    let store = table(&bench, &aged(1), 4);
    let all = keys(&store);
    bench.hours(9);
    rounds(&bench, &store, 30);
    assert_eq!((bench.segments().len(), bench.told()), (4, vec!["segment_kept"]), "told once");
    compact(&store);
    rounds(&bench, &store, 30);
    assert_eq!(bench.segments().len(), 4, "it looks again after ten seconds");
    bench.clock.advance(Duration::from_secs(10));
    rounds(&bench, &store, 30);
    assert_eq!(bench.segments().len(), 1);
    assert_eq!(keys(&store), all);
    store.close().unwrap();
}

#[test]
fn segments_go_as_far_as_compactions_came() {
    let bench = Bench::new();
    let store = table(&bench, &aged(1), 4);
    compact(&store);
    let first = keys(&store);
    // The same keys again, from the first one.
    fill(&bench, &store, 7);
    let all = keys(&store);
    bench.hours(9);
    let planned = expire(&store, true);
    let done = expire(&store, false);
    assert_eq!(ExpireReport { dry_run: true, ..done.clone() }, planned);
    assert_eq!((done.segments, done.kept.len(), bench.segments()[0]), (3, 1, 3 * SEGMENT));
    assert!(done.kept[0].contains("in no compaction file yet, of t (queue 0 from offset"), "{:?}", done.kept);
    assert_eq!(keys(&store), all);
    compact(&store);
    assert_eq!(expire(&store, false).segments, 3);
    assert_eq!(keys(&store), first.max(all - first));
    store.close().unwrap();
}

#[test]
fn a_store_that_is_not_open_is_judged_by_its_log() {
    let bench = Bench::new();
    let store = table(&bench, &options(), 4);
    store.close().unwrap();
    bench.hours(9);
    let reader = bench.try_open(OpenMode::Read, &aged(1)).unwrap();
    assert_eq!(expire(&reader, true).kept.len(), 1);
    // Without its queues, and as after a kill.
    bench.sim.remove_dir_all("/data/store/consumequeue".as_ref()).unwrap();
    let abort: &std::path::Path = "/data/store/abort".as_ref();
    bench.sim.create_new(abort).unwrap();
    let reader = bench.try_open(OpenMode::Read, &aged(1)).unwrap();
    let report = expire(&reader, true);
    assert!(report.kept[0].contains("t (queue 0 from offset 0 on)"), "{:?}", report.kept);
    let free = StoreOptions { expire_uncompacted: true, ..aged(1) };
    assert_eq!(expire(&bench.try_open(OpenMode::Read, &free).unwrap(), true).segments, 3);
}

#[test]
fn what_was_fed_may_go_without_a_compaction() {
    let bench = Bench::new();
    let options =
        StoreOptions { compaction_log_file_bytes: 8192, compaction_queue_file_bytes: 460, ..aged(1) };
    let unfed = StoreOptions { compaction_feed: false, ..options.clone() };
    let store = table_of(&bench, &unfed, 4);
    let all = offsets(&store);
    bench.hours(9);
    assert_eq!(expire(&store, true).kept.len(), 1, "nothing was fed yet");
    store.close().unwrap();
    let store = bench.open(&options);
    store.flush().unwrap();
    store.step().unwrap();
    bench.clock.advance(Duration::from_secs(10));
    rounds(&bench, &store, 30);
    assert_eq!(bench.segments().len(), 1);
    assert_eq!(offsets(&store), all, "every message is in the compaction files");
    store.close().unwrap();
    let reader = bench.try_open(OpenMode::Read, &options).unwrap();
    assert_eq!(offsets(&reader), all);
}

#[test]
fn facts_that_are_not_about_these_files_hold_nothing_free() {
    let bench = Bench::new();
    let store = table(&bench, &aged(1), 4);
    compact(&store);
    bench.hours(9);
    assert_eq!(expire(&store, true).segments, 3);
    // The compaction files are lost, so our manifest about them is void.
    bench.sim.remove_dir_all("/data/store/compaction".as_ref()).unwrap();
    let report = expire(&store, true);
    assert_eq!((report.segments, report.kept.len()), (0, 1));
    let free = StoreOptions { expire_uncompacted: true, ..aged(1) };
    store.close().unwrap();
    let store = bench.open(&free);
    assert_eq!(expire(&store, false).segments, 3);
    store.close().unwrap();
}
