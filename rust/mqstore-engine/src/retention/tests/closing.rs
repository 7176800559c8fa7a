//! A log that never fills its segment: the active segment is closed and removed when all of it is due and finished.

use super::unfinished::commit;
use super::*;
use mqstore_base::store_files::StoreFiles;

/// Sixteen times the bytes that a new segment takes.
const LARGE: u64 = 64 << 10;

pub(super) fn large(options: StoreOptions) -> StoreOptions {
    StoreOptions { segment_bytes: LARGE, allocation_bytes: LARGE / 16, ..options }
}

/// Appends `count` messages with a key each to queue 0 of `t`, all in the first segment.
pub(super) fn append(store: &Store, count: usize) -> Vec<(i64, u64)> {
    let start = store.queues("t").map_or(0, |queues| queues.first().map_or(0, |queue| queue.max_offset));
    let placed = |number: i64| {
        let properties = encode_properties([format!("k{number}").as_str()], None, None, []).unwrap();
        let body = [b'x'; 700];
        let appended = store.append(&message("t", Some(0), &body, &properties)).unwrap();
        (appended.queue_offset, appended.commit_log_offset)
    };
    (start..start + count as i64).map(placed).collect()
}

fn index_files(bench: &Bench) -> usize {
    bench.sim.list("/data/store/index".as_ref()).unwrap_or_default().len()
}

fn is_sound(bench: &Bench, options: &StoreOptions) -> bool {
    let files = StoreFiles::new(Arc::new(bench.sim.clone()), bench.clock.clone(), "/data/store".as_ref());
    mqstore_inspect::verify(&files, options, &mut |_| Ok(())).unwrap().ok
}

#[test]
fn a_log_that_is_due_as_a_whole_gives_its_space_back() {
    let bench = Bench::new();
    let options = StoreOptions { index_entries: 100, ..large(aged(1)) };
    let store = bench.open(&options);
    append(&store, 20);
    rounds(&bench, &store, 5);
    assert_eq!(bench.segments(), [0], "it is too young");
    bench.hours(2);
    let plan = expire(&store, true);
    assert_eq!((plan.segments, plan.log_min_offset, plan.stays.as_str()), (1, LARGE, ""));
    assert_eq!(bench.segments(), [0], "a dry run");
    rounds(&bench, &store, 10);
    assert_eq!((bench.segments(), bounds(&store), index_files(&bench)), (vec![LARGE], (20, 20), 1));
    assert_eq!(bounds(&bench.read_only()), (20, 20));
    assert!(store.lookup("t", "k3", None, None, None).unwrap().next_batch(1).unwrap().is_empty());
    let added = append(&store, 1);
    assert_eq!(added, [(20, LARGE)]);
    store.close().unwrap();
    assert!(is_sound(&bench, &options));
    let again = bench.open(&options);
    assert_eq!((again.notes(), offsets(&again)), (Vec::new(), vec![20]));
    assert_eq!(again.lookup("t", "k20", None, None, None).unwrap().next_batch(2).unwrap().len(), 1);
    again.close().unwrap();
}

#[test]
fn an_empty_log_opens_without_a_note() {
    let bench = Bench::new();
    let options = large(aged(1));
    let store = bench.open(&options);
    append(&store, 20);
    bench.hours(2);
    assert_eq!(expire(&store, false).segments, 1);
    let killed = bench.after(bench.sim.kill().unwrap());
    store.close().unwrap();
    for bench in [bench, killed] {
        let reader = bench.read_only();
        assert_eq!((reader.notes(), bounds(&reader)), (Vec::new(), (20, 20)));
        let again = bench.open(&options);
        assert_eq!((again.notes(), bounds(&again), bench.segments()), (Vec::new(), (20, 20), vec![LARGE]));
        again.flush().unwrap();
        assert_eq!(append(&again, 1), [(20, LARGE)]);
        again.close().unwrap();
        assert!(is_sound(&bench, &options));
    }
}

#[test]
fn an_unfinished_message_keeps_the_active_segment_under_each_rule() {
    let rules = [aged(1), StoreOptions { retention_bytes: Some(1), ..options() }];
    for options in rules.map(large) {
        let bench = Bench::new();
        let store = bench.open(&options);
        append(&store, 20);
        commit(&store, "g", "t", 0, 19);
        bench.hours(2);
        rounds(&bench, &store, 20);
        let report = expire(&store, false);
        assert_eq!((bench.segments(), report.kept_by.len()), (vec![0], 1));
        assert!(report.kept[0].contains("group g has not finished t from queue 0, offset 19 on"));
        commit(&store, "g", "t", 0, 20);
        assert_eq!(expire(&store, false).segments, 1);
        assert_eq!(bench.segments(), [LARGE]);
        store.close().unwrap();
        assert!(is_sound(&bench, &options));
    }
}

#[test]
fn the_size_of_the_active_segment_is_that_of_its_records() {
    let bench = Bench::new();
    let store = bench.open(&large(StoreOptions { retention_bytes: Some(LARGE / 4), ..options() }));
    append(&store, 8);
    let report = expire(&store, false);
    assert_eq!(bench.segments(), [0]);
    assert!(report.stays.contains("retention_bytes keeps 16384"), "{}", report.stays);
    append(&store, 16);
    assert_eq!(expire(&store, false).segments, 1);
    store.close().unwrap();
}

#[test]
fn a_report_says_why_nothing_is_due() {
    let bench = Bench::new();
    let store = bench.open(&large(options()));
    append(&store, 20);
    let report = expire(&store, false);
    assert!(report.stays.ends_with("the store keeps everything; set retention or retention_bytes"));
    store.close().unwrap();
    let store = bench.open(&large(aged(3)));
    bench.hours(1);
    for report in [expire(&store, true), expire(&store, false), expire(&bench.read_only(), true)] {
        let is_reader = report.stays.contains("keeps everything");
        assert!(is_reader || report.stays.contains("stored 1 h ago, retention keeps 3 h"));
    }
    store.close().unwrap();
    // A segment with fewer bytes than a new one takes.
    bench.hours(2);
    let store = bench.open(&StoreOptions { allocation_bytes: LARGE, ..large(aged(3)) });
    assert!(expire(&store, false).stays.contains("fewer bytes than a new segment takes"));
    store.close().unwrap();
}

#[test]
fn the_next_segment_begins_with_little_space() {
    let bench = Bench::new();
    let store = bench.open(&large(aged(1)));
    append(&store, 60);
    bench.hours(2);
    expire(&store, false);
    rounds(&bench, &store, 10);
    let path = format!("/data/store/commitlog/{LARGE:020}");
    assert_eq!(bench.sim.stat(path.as_ref()).unwrap().allocated_bytes, LARGE / 16);
    store.close().unwrap();
}

#[test]
fn an_index_file_is_left_when_most_of_its_entries_are_gone() {
    let bench = Bench::new();
    let geometry = StoreOptions { index_slots: 7, index_entries: 1000, ..options() };
    let store = bench.open(&StoreOptions { retention_bytes: Some(4 * SEGMENT), ..geometry });
    let mut most = 0;
    for _ in 0..30 {
        append(&store, 10);
        expire(&store, false);
        most = most.max(index_files(&bench));
    }
    assert_eq!(most, 2);
    let known: Vec<i64> = offsets(&store);
    for offset in known {
        let found = store.lookup("t", &format!("k{offset}"), None, None, None).unwrap().next_batch(2);
        assert_eq!(found.unwrap().len(), 1, "{offset}");
    }
    store.close().unwrap();
}
