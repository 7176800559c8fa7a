use std::path::{Path, PathBuf};

use super::*;

fn spread() -> StoreOptions {
    StoreOptions { commit_log_paths: vec!["/disk1/log".into(), "/disk2/log".into()], ..aged(1) }
}

#[test]
fn a_log_over_several_folders_is_one_log() {
    let bench = Bench::new();
    let store = bench.open(&spread());
    let placed = fill(&bench, &store, 5);
    assert_eq!(bench.names("/disk1/log"), [0, 2 * SEGMENT, 4 * SEGMENT]);
    assert_eq!(bench.names("/disk2/log"), [SEGMENT, 3 * SEGMENT]);
    assert!(bench.segments().is_empty());
    let all: Vec<i64> = (0..placed.len() as i64).collect();
    assert_eq!(offsets(&bench.read_only()), all, "a reader without options, while the writer runs");
    store.close().unwrap();
    let again = bench.open(&aged(1));
    assert_eq!((offsets(&again), again.notes()), (all, Vec::new()), "without options");
    bench.hours(5);
    let report = expire(&again, false);
    assert_eq!(report.segments, 4);
    assert_eq!((bench.names("/disk1/log"), bench.names("/disk2/log")), (vec![4 * SEGMENT], vec![]));
    fill(&bench, &again, 2);
    assert_eq!(bench.names("/disk2/log"), [5 * SEGMENT]);
    again.close().unwrap();
    let files = mqstore_base::store_files::StoreFiles::new(
        Arc::new(bench.sim.clone()),
        bench.clock.clone(),
        "/data/store".as_ref(),
    );
    let report = mqstore_inspect::verify(&files, &options(), &mut |_| Ok(())).unwrap();
    assert!(report.ok && report.messages > 0, "{:?}", report.problems);
    let info =
        mqstore_inspect::info(files.vfs.clone(), files.clock.clone(), &files.root, &options()).unwrap();
    assert_eq!((info.log_min_offset, info.segment_size), (4 * SEGMENT, SEGMENT));
}

#[test]
fn an_existing_log_goes_on_in_new_folders() {
    let bench = Bench::new();
    let store = bench.open(&aged(1));
    let placed = fill(&bench, &store, 2);
    store.close().unwrap();
    let refused = bench.try_open(OpenMode::ReadWrite, &spread()).err().unwrap();
    assert!(refused.to_string().contains("/data/store/commitlog holds segments too"), "{refused}");
    let read_only = vec![PathBuf::from("commitlog")];
    let options = StoreOptions { read_only_commit_log_paths: read_only, ..spread() };
    let store = bench.open(&options);
    let more = fill(&bench, &store, 4);
    assert_eq!(bench.segments(), [0, SEGMENT]);
    assert_eq!(bench.names("/disk1/log"), [2 * SEGMENT]);
    assert_eq!(offsets(&store).len(), placed.len() + more.len());
    store.close().unwrap();
    assert_eq!(offsets(&bench.read_only()).len(), placed.len() + more.len());
}

#[test]
fn a_disk_that_is_not_there_is_named_and_nothing_is_cut() {
    let bench = Bench::new();
    let store = bench.open(&spread());
    fill(&bench, &store, 4);
    store.close().unwrap();
    bench.sim.rename("/disk2".as_ref(), "/elsewhere".as_ref()).unwrap();
    for mode in [OpenMode::Read, OpenMode::ReadWrite, OpenMode::Create] {
        for options in [aged(1), spread()] {
            let error = bench.try_open(mode, &options).err().unwrap();
            assert!(error.to_string().contains("/disk2/log"), "{mode:?}: {error}");
        }
    }
    assert_eq!(bench.names("/disk1/log").len(), 2);
    bench.sim.rename("/elsewhere".as_ref(), "/disk2".as_ref()).unwrap();
    assert_eq!(bench.open(&aged(1)).notes(), Vec::<String>::new());
}

#[test]
fn power_loss_at_any_call_keeps_a_row_without_holes() {
    let run = |bench: &Bench| {
        let store =
            bench.open(&StoreOptions { durability: mqstore_base::options::Durability::Sync, ..spread() });
        let placed = fill(bench, &store, 4);
        bench.hours(9);
        expire(&store, false);
        (store, placed)
    };
    let bench = Bench::new();
    drop(run(&bench));
    let calls = bench.sim.operations();
    for call in (20..calls).step_by(7) {
        let bench = Bench::new();
        bench.sim.freeze_at(call);
        let (store, placed) = run(&bench);
        let Some(frozen) = bench.sim.take_frozen() else { continue };
        drop(store);
        for seed in 0..2 {
            let later = bench.after(frozen.crash(call * 10 + seed).unwrap());
            let store = later.open(&spread());
            let mut cursor = store.log().scan(None).unwrap();
            let found: Vec<u64> =
                cursor.next_batch(1000).unwrap().iter().map(|record| record.commit_log_offset).collect();
            let wanted: Vec<u64> = placed.iter().map(|(_, at)| *at).collect();
            let start = found.first().and_then(|first| wanted.iter().position(|at| at == first)).unwrap_or(0);
            assert_eq!(found, wanted[start..start + found.len()], "call {call} seed {seed}");
            assert_eq!(later.sim.violations(), Vec::<String>::new());
            store.close().unwrap();
        }
    }
}

/// On a real machine, with queues and index on another file system than the log if the machine has two.
#[test]
fn log_and_derived_files_on_different_file_systems() {
    let root = tempfile::tempdir().unwrap();
    let shared = Path::new("/dev/shm");
    let logs = if shared.is_dir() { tempfile::tempdir_in(shared) } else { tempfile::tempdir() }.unwrap();
    let vfs: Arc<dyn Vfs> = Arc::new(mqstore_io::OsVfs::new());
    let clock: Arc<dyn Clock> = Arc::new(mqstore_io::SystemClock::new());
    let path = root.path().join("store");
    let options = StoreOptions {
        commit_log_paths: vec![logs.path().join("log")],
        retention_bytes: Some(2 * SEGMENT),
        secure_wipe: true,
        delete_interval_ms: 0,
        ..options()
    };
    let open = |mode, options: &StoreOptions| Store::open(vfs.clone(), clock.clone(), &path, mode, options);
    let store = open(OpenMode::Create, &options).unwrap();
    let body = vec![b'z'; 900];
    let put = |store: &Store| {
        let message = message("t", Some(0), &body, &[]);
        store.append(&message).unwrap().commit_log_offset
    };
    while put(&store) < 5 * SEGMENT {}
    // The background may have expired them already.
    expire(&store, false);
    assert_eq!(store.stats().unwrap().segments, 2);
    store.close().unwrap();
    let names = |folder: &Path| vfs.list(folder).unwrap().len();
    assert_eq!(names(&logs.path().join("log")), 3, "two segments and our own folder");
    assert_eq!(names(&logs.path().join("log/.mqstore/wipe")), 0);
    assert_eq!(names(&path.join("commitlog")), 0);
    let store = open(OpenMode::ReadWrite, &StoreOptions::default()).unwrap();
    let (min, max) = bounds(&store);
    assert_eq!(offsets(&store), (min..max).collect::<Vec<_>>());
    put(&store);
    store.close().unwrap();
}
