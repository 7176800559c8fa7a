use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use mqstore_base::events::{DeleteVerdict, ExpiredFile, ExpiredKind};

#[test]
fn nothing_goes_unless_asked() {
    let bench = Bench::new();
    let store = bench.open(&options());
    fill(&bench, &store, 6);
    bench.hours(24 * 365);
    bench.sim.set_space(Some(1 << 20));
    rounds(&bench, &store, 30);
    assert!(expire(&store, true).files.is_empty() && expire(&store, false).files.is_empty());
    assert_eq!(bench.segments().len(), 6);
    store.close().unwrap();
}

#[test]
fn age_is_that_of_the_last_record_and_the_active_segment_stays() {
    let bench = Bench::new();
    let store = bench.open(&aged(3));
    let placed = fill(&bench, &store, 6);
    // The last records of the segments were stored at hours 0 to 4; now it is hour 5.
    rounds(&bench, &store, 20);
    assert_eq!(bench.segments(), (3..6).map(|number| number * SEGMENT).collect::<Vec<_>>());
    let first = placed.iter().find(|(_, at)| *at >= 3 * SEGMENT).unwrap().0;
    assert_eq!(bounds(&store), (first, placed.len() as i64));
    assert_eq!(offsets(&store), (first..placed.len() as i64).collect::<Vec<_>>());
    bench.hours(1000);
    rounds(&bench, &store, 20);
    assert_eq!(bench.segments(), [5 * SEGMENT]);
    let stats = store.stats().unwrap();
    assert_eq!((stats.expired_segments, stats.log_min_offset), (5, 5 * SEGMENT));
    assert!(stats.expired_bytes > 5 * SEGMENT);
    store.close().unwrap();
    let again = bench.open(&aged(3));
    assert_eq!((again.notes(), bounds(&again).1), (Vec::new(), placed.len() as i64));
    assert!(mqstore_inspect::verify(&files(&bench), &options(), &mut |_| Ok(())).unwrap().ok);
}

fn files(bench: &Bench) -> mqstore_base::store_files::StoreFiles {
    mqstore_base::store_files::StoreFiles::new(
        Arc::new(bench.sim.clone()),
        bench.clock.clone(),
        "/data/store".as_ref(),
    )
}

#[test]
fn a_copied_file_is_as_old_as_its_records() {
    let bench = Bench::new();
    let store = bench.open(&aged(3));
    fill(&bench, &store, 3);
    store.close().unwrap();
    bench.hours(100);
    // As after a restore from a backup: all files are new.
    let path = std::path::Path::new("/data/store/commitlog").join(format!("{:020}", 0));
    let copy = bench.sim.read_file(&path, SEGMENT).unwrap();
    bench.sim.write_atomic(&path, "/data/copy".as_ref(), &copy).unwrap();
    assert!(bench.sim.stat(&path).unwrap().modified_ms > START + 99 * 3_600_000);
    let store = bench.open(&aged(3));
    let report = expire(&store, true);
    assert_eq!(report.segments, 2);
    assert!(report.files[0].reason.starts_with("age: its last record"), "{}", report.files[0].reason);
}

#[test]
fn without_a_readable_record_the_file_time_counts() {
    let bench = Bench::new();
    let store = bench.open(&aged(3));
    fill(&bench, &store, 3);
    store.close().unwrap();
    let path = std::path::Path::new("/data/store/commitlog").join(format!("{:020}", 0));
    for at in 0..SEGMENT / 64 {
        bench.sim.flip(&path, at * 64 + 4, 0xff).unwrap();
    }
    let store = bench.open(&aged(3));
    assert!(expire(&store, true).files.is_empty(), "changed an hour ago");
    bench.hours(10);
    let report = expire(&store, true);
    assert!(report.files[0].reason.starts_with("age: its file"), "{}", report.files[0].reason);
    assert_eq!(report.files[0].last_store_timestamp_ms, None);
}

#[test]
fn hours_of_the_day_bind_the_background_and_nobody_else() {
    let bench = Bench::new();
    // The clock starts at 22:13 UTC.
    let store = bench.open(&StoreOptions { delete_when: "04;16".into(), ..aged(1) });
    fill(&bench, &store, 3);
    bench.hours(1);
    rounds(&bench, &store, 10);
    assert_eq!(bench.segments().len(), 3, "01:13");
    assert_eq!(expire(&store, true).segments, 2);
    bench.hours(3);
    rounds(&bench, &store, 10);
    assert_eq!(bench.segments().len(), 1, "04:13");
    fill(&bench, &store, 3);
    bench.hours(8);
    rounds(&bench, &store, 10);
    assert_eq!(bench.segments().len(), 3, "14:13");
    assert_eq!(expire(&store, false).segments, 2);
    store.close().unwrap();
}

#[test]
fn size_keeps_what_fits() {
    let bench = Bench::new();
    let store = bench.open(&StoreOptions { retention_bytes: Some(3 * SEGMENT + 100), ..options() });
    fill(&bench, &store, 6);
    let report = expire(&store, true);
    assert_eq!((report.segments, report.log_min_offset), (3, 3 * SEGMENT));
    assert_eq!(bench.segments().len(), 6, "a dry run");
    rounds(&bench, &store, 10);
    assert_eq!(bench.segments().len(), 3);
    rounds(&bench, &store, 10);
    assert_eq!(bench.segments().len(), 3);
    store.close().unwrap();
    let store = bench.open(&StoreOptions { retention_bytes: Some(1), ..options() });
    expire(&store, false);
    assert_eq!(bench.segments().len(), 1, "never the active one");
    store.close().unwrap();
}

/// Sets the size of the disk so that `percent` percent of it are used.
fn use_percent(bench: &Bench, percent: u64) {
    bench.sim.set_space(None);
    // A large file, so that one segment changes the percentage only a little.
    if let Ok(file) = bench.sim.create_new("/data/large".as_ref()) {
        file.allocate(8 << 20).unwrap();
    }
    let free = bench.sim.free_space("/data".as_ref()).unwrap();
    let used = free.total - free.free;
    // The used part is rounded up; the size counts in pages.
    bench.sim.set_space(Some(used * 1000 / (percent * 10 - 5)));
    let now = bench.sim.free_space("/data".as_ref()).unwrap();
    assert_eq!(crate::engine::disk_space::used_percent(now), percent);
}

/// The rules of RocketMQ.
fn of_broker(hours: u64) -> StoreOptions {
    StoreOptions {
        delete_when: "04".into(),
        disk_clean_ratio: Some(0.75),
        disk_force_ratio: Some(0.85),
        disk_refuse_ratio: Some(0.9),
        ..aged(hours)
    }
}

#[test]
fn a_disk_that_fills_up_deletes_and_refuses_nothing_by_default() {
    let bench = Bench::new();
    let store = bench.open(&aged(100));
    fill(&bench, &store, 6);
    let properties = encode_properties([], None, None, []).unwrap();
    for percent in [76, 87, 91, 96] {
        use_percent(&bench, percent);
        rounds(&bench, &store, 20);
        assert!(expire(&store, true).files.is_empty(), "{percent}");
        store.append(&message("t", Some(0), b"x", &properties)).unwrap();
    }
    assert_eq!((bench.segments().len(), bench.told()), (6, Vec::new()));
    bench.hours(1000);
    rounds(&bench, &store, 20);
    assert_eq!(bench.segments().len(), 1, "any hour of the day");
    store.close().unwrap();
}

/// Sets the size of the disk so that this part of it, in thousandths, is free.
fn leave_free(bench: &Bench, thousandths: u64) {
    bench.sim.set_space(None);
    let free = bench.sim.free_space("/data".as_ref()).unwrap();
    bench.sim.set_space(Some((free.total - free.free) * 1000 / (1000 - thousandths)));
}

#[test]
fn appends_are_refused_while_the_reserve_of_the_disk_is_used() {
    let bench = Bench::new();
    let store = bench.open(&StoreOptions { prewarm: false, ..options() });
    fill(&bench, &store, 2);
    bench.sim.create_new("/data/large".as_ref()).unwrap().allocate(64 << 20).unwrap();
    let properties = encode_properties([], None, None, []).unwrap();
    let message = message("t", Some(0), b"x", &properties);
    leave_free(&bench, 20);
    store.step().unwrap();
    store.append(&message).unwrap();
    leave_free(&bench, 5);
    store.step().unwrap();
    let refused = store.append(&message).unwrap_err();
    assert!(matches!(refused, StoreError::DiskNearlyFull { .. }), "{refused}");
    assert!(refused.to_string().contains("the reserve for metadata is"), "{refused}");
    assert_eq!(bench.told(), ["appends_refused"]);
    store.meta().unwrap().create_group(&mqstore_format::json::SubscriptionGroup::new("g")).unwrap();
    leave_free(&bench, 20);
    store.step().unwrap();
    store.append(&message).unwrap();
    assert_eq!(bench.told(), ["appends_resumed"]);
    store.close().unwrap();
}

#[test]
fn a_segment_that_would_use_the_reserve_is_not_created() {
    let bench = Bench::new();
    let store = bench.open(&StoreOptions { prewarm: false, ..options() });
    fill(&bench, &store, 2);
    // A hundredth of this disk is more than a segment and less than two.
    bench.sim.create_new("/data/large".as_ref()).unwrap().allocate(600 << 10).unwrap();
    bench.sim.set_space(None);
    let free = bench.sim.free_space("/data".as_ref()).unwrap();
    let used = free.total - free.free;
    bench.sim.set_space(Some(used + 2 * SEGMENT));
    let properties = encode_properties([], None, None, []).unwrap();
    let body = vec![b'x'; 700];
    let message = message("t", Some(0), &body, &properties);
    let refused = loop {
        if let Err(error) = store.append(&message) {
            break error;
        }
    };
    assert!(matches!(refused, StoreError::DiskFull { .. }), "{refused}");
    assert_eq!(bench.segments().len(), 2);
    bench.sim.set_space(None);
    store.append(&message).unwrap();
    assert_eq!(bench.segments().len(), 3);
    store.close().unwrap();
}

#[test]
fn a_filling_disk_cleans_early_then_at_once_then_refuses() {
    let bench = Bench::new();
    let store = bench.open(&of_broker(3));
    fill(&bench, &store, 6);
    rounds(&bench, &store, 5);
    assert_eq!(bench.segments().len(), 6, "not the hour");
    use_percent(&bench, 80);
    rounds(&bench, &store, 20);
    assert_eq!(bench.segments().len(), 3, "those that are old enough");
    use_percent(&bench, 88);
    let report = expire(&store, true);
    assert!(report.files[0].reason.starts_with("disk: 88 %"), "{}", report.files[0].reason);
    rounds(&bench, &store, 1);
    assert_eq!(bench.segments().len(), 2, "at any age");
    bench.told();
    use_percent(&bench, 95);
    store.step().unwrap();
    assert!(bench.told().contains(&"appends_refused"));
    let properties = encode_properties([], None, None, []).unwrap();
    let message = message("t", Some(0), b"x", &properties);
    let refused = store.append(&message).unwrap_err();
    assert!(matches!(refused, StoreError::DiskNearlyFull { .. }), "{refused}");
    assert!(refused.to_string().contains("disk_refuse_ratio is 0.9"), "{refused}");
    assert_eq!(store.stats().unwrap().refused_appends, 1);
    assert!(!offsets(&store).is_empty(), "reads continue");
    bench.sim.set_space(None);
    store.step().unwrap();
    assert_eq!(bench.told().last(), Some(&"appends_resumed"));
    store.append(&message).unwrap();
    store.close().unwrap();
}

#[test]
fn a_full_disk_refuses_from_the_open_on_and_needs_no_retention() {
    let bench = Bench::new();
    bench.open(&options()).close().unwrap();
    use_percent(&bench, 95);
    let store = bench.open(&StoreOptions { disk_refuse_ratio: Some(0.9), ..options() });
    assert_eq!(bench.told(), ["appends_refused"]);
    assert!(matches!(store.append_many(&[]), Err(StoreError::DiskNearlyFull { .. })));
    store.close().unwrap();
    let store = bench.open(&StoreOptions { disk_refuse_ratio: Some(1.0), ..options() });
    store.append_many(&[]).unwrap();
    store.close().unwrap();
}

#[test]
fn there_is_a_pause_between_two_and_a_rest_after_ten() {
    let bench = Bench::new();
    let store = bench.open(&StoreOptions { delete_interval_ms: 300, ..aged(1) });
    fill(&bench, &store, 14);
    bench.hours(5);
    store.step().unwrap();
    store.step().unwrap();
    assert_eq!(bench.segments().len(), 13, "no time has passed");
    bench.clock.advance(Duration::from_millis(299));
    store.step().unwrap();
    assert_eq!(bench.segments().len(), 13);
    for left in (4..13).rev() {
        bench.clock.advance(Duration::from_millis(300));
        store.step().unwrap();
        assert_eq!(bench.segments().len(), left);
    }
    bench.clock.advance(Duration::from_secs(9));
    store.step().unwrap();
    assert_eq!(bench.segments().len(), 4, "ten at a time");
    bench.clock.advance(Duration::from_secs(2));
    store.step().unwrap();
    assert_eq!(bench.segments().len(), 3);
    store.close().unwrap();
}

#[test]
fn queue_and_index_files_follow_the_log() {
    let bench = Bench::new();
    let store = bench.open(&aged(1));
    let placed = fill(&bench, &store, 10);
    bench.hours(5);
    let queue_files = bench.names("/data/store/consumequeue/t/0").len();
    let index_files = bench.names("/data/store/index");
    assert!(queue_files > 4 && index_files.len() > 3, "{queue_files} {index_files:?}");
    let planned = expire(&store, true);
    assert_eq!(bench.names("/data/store/consumequeue/t/0").len(), queue_files);
    let done = expire(&store, false);
    assert_eq!(ExpireReport { dry_run: true, ..done.clone() }, planned, "it does what the dry run reported");
    let count = |kind| done.files.iter().filter(|file: &&ExpiredFile| file.kind == kind).count();
    assert_eq!(count(ExpiredKind::Segment), 9);
    assert_eq!(done.bytes, done.files.iter().map(|file| file.bytes).sum::<u64>());
    let left = bench.names("/data/store/consumequeue/t/0");
    let min = bounds(&store).0;
    assert_eq!(left[0], min as u64 / 5 * 100, "the file with the minimum is the first");
    assert_eq!(count(ExpiredKind::Queue), queue_files - left.len());
    let kept = bench.names("/data/store/index");
    assert_eq!(count(ExpiredKind::Index), index_files.iter().filter(|name| !kept.contains(name)).count());
    assert!(count(ExpiredKind::Index) > 2);
    let last = placed.len() - 1;
    let mut found = store.lookup("t", &format!("k{last}"), None, None, None).unwrap();
    assert_eq!(found.next_batch(9).unwrap().len(), 1);
    let mut gone = store.lookup("t", "k0", None, None, None).unwrap();
    assert!(gone.next_batch(9).unwrap().is_empty());
    let told = bench.told();
    let segments = told.iter().filter(|kind| **kind == "segment_deleted").count();
    assert_eq!((segments, told[0]), (9, "segment_deleted"));
    store.close().unwrap();
    let again = bench.open(&aged(1));
    assert_eq!(again.notes(), Vec::<String>::new());
    assert_eq!(bounds(&again), (min, placed.len() as i64));
}

#[test]
fn a_hook_keeps_a_segment_and_all_behind_it_until_it_agrees() {
    let bench = Bench::new();
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    let before_delete: Arc<dyn Fn(&ExpiredFile) -> DeleteVerdict + Send + Sync> = Arc::new(move |file| {
        let call = count.fetch_add(1, Ordering::Relaxed);
        match (file.first_offset, call) {
            (0, _) => DeleteVerdict::Delete,
            (_, 1) => DeleteVerdict::Keep,
            (_, 2) => DeleteVerdict::Later(Duration::from_secs(60)),
            _ => DeleteVerdict::Delete,
        }
    });
    let hooks = Hooks { before_delete: Some(before_delete), ..Hooks::default() };
    let store = bench.open(&StoreOptions { hooks, ..aged(1) });
    fill(&bench, &store, 4);
    bench.hours(5);
    let report = expire(&store, false);
    assert_eq!((report.segments, asked.load(Ordering::Relaxed)), (1, 2));
    assert!(report.kept[0].ends_with("before_delete keeps it"), "{:?}", report.kept);
    rounds(&bench, &store, 20);
    assert_eq!((bench.segments().len(), asked.load(Ordering::Relaxed)), (3, 2), "not asked again at once");
    bench.clock.advance(Duration::from_secs(10));
    rounds(&bench, &store, 20);
    assert_eq!((bench.segments().len(), asked.load(Ordering::Relaxed)), (3, 3));
    bench.clock.advance(Duration::from_secs(60));
    rounds(&bench, &store, 20);
    assert_eq!(bench.segments().len(), 1);
    let kept = bench.told().iter().filter(|kind| **kind == "segment_kept").count();
    assert_eq!(kept, 2, "each reason is reported once");
    store.close().unwrap();
}

#[test]
fn a_hook_may_look_at_the_store_and_not_wait_for_itself() {
    let bench = Bench::new();
    let slot: Arc<Mutex<Option<Store>>> = Arc::default();
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let (inner, log) = (Arc::clone(&slot), Arc::clone(&seen));
    let before_delete: Arc<dyn Fn(&ExpiredFile) -> DeleteVerdict + Send + Sync> = Arc::new(move |_| {
        let store = inner.lock().clone().unwrap();
        let expired = store.expire(true, &mut || Ok(())).unwrap_err();
        let closed = store.close().unwrap_err();
        log.lock().push(format!("{} {expired} {closed}", store.stats().unwrap().segments));
        DeleteVerdict::Keep
    });
    let hooks = Hooks { before_delete: Some(before_delete), ..Hooks::default() };
    let store = bench.open(&StoreOptions { hooks, ..aged(1) });
    fill(&bench, &store, 2);
    bench.hours(5);
    *slot.lock() = Some(store.clone());
    assert_eq!(expire(&store, false).segments, 0);
    assert!(seen.lock()[0].starts_with("2 ") && seen.lock()[0].matches("wait for itself").count() == 2);
    slot.lock().take();
    store.close().unwrap();
}

#[test]
fn nothing_goes_that_is_not_durable_and_dispatched() {
    let bench = Bench::new();
    let options = StoreOptions { durability: mqstore_base::options::Durability::Manual, ..aged(1) };
    let store = bench.open(&options);
    fill(&bench, &store, 4);
    bench.hours(5);
    rounds(&bench, &store, 5);
    assert_eq!(bench.segments().len(), 4, "no call asked for a sync");
    store.flush().unwrap();
    rounds(&bench, &store, 5);
    assert_eq!(bench.segments().len(), 4, "one flush covers one slot of the mark");
    assert_eq!(expire(&store, false).segments, 3, "an explicit expiry syncs first");
    store.close().unwrap();
}

#[test]
fn a_store_open_for_reading_tells_what_would_go() {
    let bench = Bench::new();
    let store = bench.open(&options());
    fill(&bench, &store, 4);
    store.close().unwrap();
    bench.hours(5);
    let reader = bench.try_open(OpenMode::Read, &aged(1)).unwrap();
    let report = expire(&reader, true);
    assert_eq!((report.segments, report.dry_run, report.log_min_offset), (3, true, 3 * SEGMENT));
    assert!(matches!(reader.expire(false, &mut || Ok(())), Err(StoreError::ReadOnly { .. })));
    let store = bench.open(&aged(1));
    assert_eq!(expire(&store, true), report);
}

#[test]
fn wiped_segments_are_zeros_before_their_room_is_free() {
    let bench = Bench::new();
    let store = bench.open(&StoreOptions { secure_wipe: true, ..aged(1) });
    fill(&bench, &store, 3);
    bench.hours(5);
    let path = std::path::Path::new("/data/store/commitlog").join(format!("{:020}", 0));
    let held = bench.sim.open(&path, mqstore_io::Access::Read).unwrap();
    assert_eq!(expire(&store, false).segments, 2);
    let mut bytes = vec![1; SEGMENT as usize];
    held.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
    assert!(bench.names("/data/store/mqstore/wipe").is_empty());
    assert_eq!(bench.told().iter().filter(|kind| **kind == "segment_wiped").count(), 2);
    store.close().unwrap();
}
