//! Segments that the archive of the store does not contain yet.

use super::*;
use crate::ArchiveState;
use mqstore_base::events::{ArchiveLook, is_in_hook};

fn archive(archived_to: u64) -> ArchiveState {
    ArchiveState { archived_to, settings: r#"{"target": "/cold"}"#.to_owned() }
}

/// Returns a store with five segments. Four are due by age.
fn due(bench: &Bench, options: &StoreOptions) -> Store {
    let store = bench.open(options);
    fill(bench, &store, 5);
    store.flush().unwrap();
    bench.hours(9);
    store
}

#[test]
fn segments_stay_until_the_archive_has_them() {
    let bench = Bench::new();
    let store = due(&bench, &aged(1));
    store.archive().set(Some(&archive(0))).unwrap();
    let planned = expire(&store, true);
    let done = expire(&store, false);
    assert_eq!(ExpireReport { dry_run: true, ..done.clone() }, planned);
    assert_eq!((done.segments, done.kept.len(), bench.segments().len()), (0, 1, 5));
    assert!(done.kept[0].contains("not in the archive yet, which ends at log offset 0"), "{:?}", done.kept);
    assert_eq!(bench.told(), ["segment_kept"]);
    // Half a segment is no segment.
    store.archive().advance(&archive(0).settings, &archive(2 * SEGMENT + SEGMENT / 2)).unwrap();
    let planned = expire(&store, true);
    let done = expire(&store, false);
    assert_eq!(ExpireReport { dry_run: true, ..done.clone() }, planned);
    assert_eq!((done.segments, done.kept.len(), bench.segments()[0]), (2, 1, 2 * SEGMENT));
    store.close().unwrap();
    // The state is durable, and a reader sees it.
    let bench = bench.after(bench.sim.crash_with(&mut |_| false).unwrap());
    let reader = bench.try_open(OpenMode::Read, &aged(1)).unwrap();
    assert_eq!(reader.archive().state().unwrap(), Some(archive(2 * SEGMENT + SEGMENT / 2)));
    assert_eq!(expire(&reader, true).kept.len(), 1);
    assert!(matches!(reader.archive().set(None), Err(StoreError::ReadOnly { .. })));
    let store = bench.open(&aged(1));
    assert_eq!(expire(&store, false).segments, 0);
    store.archive().set(None).unwrap();
    assert_eq!(store.archive().state().unwrap(), None);
    assert_eq!(expire(&store, false).segments, 2);
    store.close().unwrap();
}

#[test]
fn no_other_limit_removes_them_either() {
    for options in [
        StoreOptions { retention_bytes: Some(2 * SEGMENT), ..options() },
        StoreOptions { retention_bytes: Some(1), disk_force_ratio: Some(0.0), ..aged(1) },
    ] {
        let bench = Bench::new();
        let store = due(&bench, &options);
        store.archive().set(Some(&archive(SEGMENT))).unwrap();
        rounds(&bench, &store, 300);
        assert_eq!(bench.segments()[0], SEGMENT, "the background removes what the archive has");
        assert_eq!(expire(&store, false).segments, 0);
        store.archive().advance(&archive(0).settings, &archive(3 * SEGMENT)).unwrap();
        rounds(&bench, &store, 300);
        assert_eq!(bench.segments()[0], 3 * SEGMENT);
        store.close().unwrap();
    }
}

/// The state says that four segments are archived, and the archive itself has none of them.
#[test]
fn an_archive_that_lacks_segments_keeps_them() {
    let bench = Bench::new();
    let looks: Arc<Mutex<Vec<(String, u64, u64)>>> = Arc::default();
    let missing = Arc::new(Mutex::new(Some("the target is empty".to_owned())));
    let (seen, answer) = (Arc::clone(&looks), Arc::clone(&missing));
    let look: ArchiveLook = Arc::new(move |settings, archived_to, log_start| {
        assert!(is_in_hook());
        seen.lock().push((settings.to_owned(), archived_to, log_start));
        answer.lock().clone()
    });
    let hooks = Hooks { archive_look: Some(look), ..Hooks::default() };
    let options = StoreOptions { hooks, retention_bytes: Some(1), ..aged(1) };
    let store = due(&bench, &options);
    store.archive().set(Some(&archive(0))).unwrap();
    assert_eq!(expire(&store, false).segments, 0);
    assert_eq!(looks.lock().len(), 0, "the store knows already that nothing is archived");
    store.archive().advance(&archive(0).settings, &archive(4 * SEGMENT)).unwrap();
    let planned = expire(&store, true);
    let done = expire(&store, false);
    assert_eq!(ExpireReport { dry_run: true, ..done.clone() }, planned);
    assert_eq!((done.segments, done.kept.len()), (0, 1));
    assert!(done.kept[0].ends_with(": the target is empty"), "{:?}", done.kept);
    assert_eq!(*looks.lock(), vec![(archive(0).settings, 4 * SEGMENT, 0); 2], "each call looks once");
    let reader = bench.try_open(OpenMode::Read, &options).unwrap();
    assert_eq!(expire(&reader, true).kept, planned.kept);
    looks.lock().clear();
    rounds(&bench, &store, 300);
    assert_eq!(bench.segments()[0], 0, "the background removes nothing either");
    assert!((1..40).contains(&looks.lock().len()), "{:?}", looks.lock().len());
    *missing.lock() = None;
    rounds(&bench, &store, 300);
    assert_eq!(bench.segments()[0], 4 * SEGMENT);
    store.close().unwrap();
}

#[test]
fn a_state_that_cannot_be_read_keeps_everything() {
    let bench = Bench::new();
    let store = due(&bench, &aged(1));
    store.archive().set(Some(&archive(4 * SEGMENT))).unwrap();
    let path: &std::path::Path = "/data/store/mqstore/archive".as_ref();
    let file = bench.sim.open(path, mqstore_io::Access::ReadWrite).unwrap();
    file.write_all_at(b"9", 19).unwrap();
    let report = expire(&store, false);
    assert!(report.segments == 0 && report.kept[0].contains("as far as known"), "{:?}", report.kept);
    assert!(matches!(store.archive().state(), Err(StoreError::Corrupt { .. })));
    let refused = store.archive().advance(&archive(0).settings, &archive(4 * SEGMENT));
    assert!(matches!(refused, Err(StoreError::Corrupt { .. })), "an unknown archive does not advance");
    assert_eq!(expire(&store, false).segments, 0);
    store.archive().set(Some(&archive(4 * SEGMENT))).unwrap();
    assert_eq!(expire(&store, false).segments, 4);
    store.close().unwrap();
}

#[test]
fn the_end_of_an_archive_moves_forward_only_and_only_for_its_settings() {
    let bench = Bench::new();
    let store = due(&bench, &aged(1));
    assert_eq!(store.archive().advance("{}", &archive(SEGMENT)).unwrap(), None);
    assert_eq!(store.archive().state().unwrap(), None);
    store.archive().set(Some(&archive(2 * SEGMENT))).unwrap();
    assert_eq!(
        store.archive().advance(&archive(0).settings, &archive(SEGMENT)).unwrap(),
        Some(archive(2 * SEGMENT))
    );
    assert_eq!(store.archive().advance("{}", &archive(4 * SEGMENT)).unwrap(), Some(archive(2 * SEGMENT)));
    assert_eq!(store.archive().state().unwrap(), Some(archive(2 * SEGMENT)));
    let two_lines = ArchiveState { settings: "a\nb".to_owned(), ..archive(0) };
    assert!(matches!(store.archive().set(Some(&two_lines)), Err(StoreError::InvalidOption { .. })));
    store.close().unwrap();
}

#[test]
fn a_hook_cannot_change_the_archive() {
    let bench = Bench::new();
    let store: Arc<Mutex<Option<Store>>> = Arc::default();
    let (seen, inner) = (Arc::<Mutex<Vec<bool>>>::default(), Arc::clone(&store));
    let told = Arc::clone(&seen);
    let on_event: Arc<dyn Fn(&StoreEvent) + Send + Sync> = Arc::new(move |event| {
        if event.kind == "segment_deleted" {
            assert!(is_in_hook());
            let outcome = inner.lock().as_ref().map(|store| store.archive().set(None));
            told.lock().push(matches!(outcome, Some(Err(StoreError::Busy { .. }))));
        }
    });
    let hooks = Hooks { on_event: Some(on_event), ..Hooks::default() };
    let options = StoreOptions { hooks, ..aged(1) };
    let open = bench.try_open(OpenMode::Create, &options).unwrap();
    fill(&bench, &open, 3);
    open.flush().unwrap();
    bench.hours(9);
    *store.lock() = Some(open.clone());
    assert_eq!(expire(&open, false).segments, 2);
    assert_eq!(*seen.lock(), [true, true]);
    *store.lock() = None;
    open.close().unwrap();
}

/// Stops at each call of a change of the archive and of the expiry after it: the archive is the old or the new one,
/// and no segment is gone that the new one does not have.
#[test]
fn a_stop_at_any_call_removes_no_segment_that_is_not_archived() {
    let options = aged(1);
    let ready = || {
        let bench = Bench::new();
        let store = due(&bench, &options);
        store.archive().set(Some(&archive(SEGMENT))).unwrap();
        (bench, store)
    };
    let act = |store: &Store| {
        store.archive().advance(&archive(0).settings, &archive(3 * SEGMENT)).unwrap();
        expire(store, false);
    };
    let (bench, store) = ready();
    let before = bench.sim.operations();
    act(&store);
    let calls = bench.sim.operations() - before;
    assert!(calls > 50, "{calls}");
    for call in 1..=calls {
        let (bench, store) = ready();
        bench.sim.freeze_at(bench.sim.operations() + call);
        act(&store);
        let frozen = bench.sim.take_frozen().unwrap();
        let mut images = vec![frozen.kill().unwrap(), frozen.crash_with(&mut |_| false).unwrap()];
        images.extend((0..3).map(|seed| frozen.crash(seed * 1000 + call).unwrap()));
        for (number, image) in images.into_iter().enumerate() {
            let bench = bench.after(image);
            let store = bench.open(&options);
            let known = store.archive().state().unwrap().unwrap();
            let min = bench.segments()[0];
            assert!(
                [archive(SEGMENT), archive(3 * SEGMENT)].contains(&known) && min <= known.archived_to,
                "call {call}, image {number}: {known:?}, log from {min}"
            );
            expire(&store, false);
            assert_eq!(bench.segments()[0], known.archived_to, "call {call}, image {number}");
            store.close().unwrap();
        }
    }
}

#[test]
fn sealed_segments_are_full_synced_and_not_the_last() {
    let bench = Bench::new();
    let store = due(&bench, &options());
    let sealed = store.archive().sealed_log().unwrap().segments(0).unwrap();
    let bases: Vec<u64> = sealed.iter().map(|one| one.base_offset).collect();
    assert_eq!(bases, [0, SEGMENT, 2 * SEGMENT, 3 * SEGMENT]);
    assert!(sealed.iter().all(|one| one.bytes == SEGMENT && one.first_ms.unwrap() <= one.newest_ms));
    assert_eq!(store.archive().sealed_log().unwrap().segments(2 * SEGMENT).unwrap(), sealed[2..]);
    // Before the next sync, a reader does not see the new segments as sealed.
    fill(&bench, &store, 8);
    assert!(bench.read_only().archive().sealed_log().unwrap().segments(0).unwrap().len() < 7);
    assert_eq!(store.archive().sealed_log().unwrap().segments(0).unwrap().len(), 7);
    assert_eq!(bench.read_only().archive().sealed_log().unwrap().segments(0).unwrap().len(), 7);
    let bytes = store.archive().sealed_log().unwrap().bytes(SEGMENT - 100, 100).unwrap();
    assert_eq!(bytes.len(), 100);
    assert!(matches!(
        store.archive().sealed_log().unwrap().bytes(SEGMENT - 100, 101),
        Err(StoreError::InvalidOption { .. })
    ));
    assert!(matches!(
        store.archive().sealed_log().unwrap().bytes(0, u64::MAX),
        Err(StoreError::InvalidOption { .. })
    ));
    fill(&bench, &store, 9);
    store.close().unwrap();
    // A broker leaves no durable mark, and its checkpoint is older than the last sync.
    for name in ["mqstore/state.a", "mqstore/state.b", "checkpoint"] {
        bench.sim.remove_file(&std::path::Path::new("/data/store").join(name)).unwrap();
    }
    assert_eq!(bench.read_only().archive().sealed_log().unwrap().segments(0).unwrap().len(), 8);
    bench.sim.create_new("/data/store/abort".as_ref()).unwrap();
    assert_eq!(bench.read_only().archive().sealed_log().unwrap().segments(0).unwrap().len(), 0);
}
