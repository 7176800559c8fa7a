//! Rebuilt queues and index answer like those of an undamaged store. A crash at any moment leaves the old files or the
//! new ones.

use std::collections::BTreeMap;
use std::path::Path;

use mqstore_io::{Access, FileKind, SimVfs};

use mqstore_engine::testing::*;
use mqstore_log::recovery::RebuildReport;

/// Everything that readers can see of a store with two topics.
type Answers = (Vec<Vec<(i64, Vec<u8>)>>, Vec<usize>);

fn answers(store: &Store) -> Answers {
    let queues = [("orders", 0), ("orders", 1), ("bills", 0)];
    let bodies = queues.iter().map(|(topic, queue)| read_all(store, topic, *queue)).collect();
    let hits = (0..5).map(|key| {
        let mut cursor = store.lookup("orders", &format!("k{key}"), None, None, None).unwrap();
        let mut hits = 0;
        while let found @ 1.. = cursor.next_batch(10).unwrap().len() {
            hits += found;
        }
        hits
    });
    (bodies, hits.collect())
}

fn fill(store: &Store, from: u32) {
    store.create_topic("orders", 2, &[]).unwrap();
    store.create_topic("bills", 1, &[]).unwrap();
    for number in from..from + 60 {
        let key = format!("k{}", number % 5);
        put(store, "orders", (number % 2).cast_signed(), format!("order {number}").as_bytes(), &key);
        put(store, "bills", 0, format!("bill {number}").as_bytes(), &key);
    }
}

fn filled() -> (World, Arc<SimVfs>, Answers) {
    let (world, sim, _) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    fill(&store, 0);
    let expected = answers(&store);
    store.close().unwrap();
    (world, sim, expected)
}

fn rebuild(world: &World, dry_run: bool) -> Result<RebuildReport, StoreError> {
    crate::rebuild(&world.files(), &small(), dry_run, &mut |_| Ok(()))
}

/// All files below `folder` by path.
pub(crate) fn tree(vfs: &dyn Vfs, folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in vfs.list(folder).unwrap_or_default() {
        let path = folder.join(&entry.name);
        match entry.stat.kind {
            FileKind::Directory => found.extend(tree(vfs, &path)),
            _ => drop(found.insert(path.display().to_string(), vfs.read_file(&path, 1 << 20).unwrap())),
        }
    }
    found
}

fn check(world: &World, expected: &Answers) {
    let report = crate::verify::verify(&world.files(), &small(), &mut |_| Ok(())).unwrap();
    assert_eq!(report.problems, []);
    for mode in [OpenMode::Read, OpenMode::ReadWrite] {
        let store = world.open(mode, &small()).unwrap();
        assert_eq!(store.notes(), [""; 0]);
        assert_eq!(answers(&store), *expected);
        store.close().unwrap();
    }
}

/// Overwrites the middle of each derived file.
fn damage(world: &World) {
    let files = world.files();
    for folder in [files.consume_queue(), files.index()] {
        for path in tree(&*world.vfs, &folder).into_keys() {
            let file = world.vfs.open(Path::new(&path), Access::ReadWrite).unwrap();
            file.write_all_at(&[0xEE; 60], 40).unwrap();
        }
    }
}

#[test]
fn lost_files_are_made_as_they_were() {
    let (world, _, expected) = filled();
    let files = world.files();
    let log = tree(&*world.vfs, &files.commit_log());
    let queues = tree(&*world.vfs, &files.consume_queue());
    for folder in [files.consume_queue(), files.index()] {
        world.vfs.remove_dir_all(&folder).unwrap();
    }
    world.vfs.remove_file(&files.checkpoint()).unwrap();
    let report = rebuild(&world, false).unwrap();
    assert_eq!((report.messages, report.queues, report.index_entries), (120, 3, 240));
    assert_eq!(report.skipped, [""; 0]);
    assert_eq!(tree(&*world.vfs, &files.consume_queue()), queues);
    assert_eq!(tree(&*world.vfs, &files.commit_log()), log);
    assert!(mqstore_log::checkpoint::CheckpointFile::new(&files).load().physic_msg_timestamp > 0);
    check(&world, &expected);
    assert!(world.vfs.stat(&files.rebuild()).is_err());
}

#[test]
fn damaged_files_are_replaced_and_a_dry_run_leaves_them() {
    let (world, _, expected) = filled();
    let queues = tree(&*world.vfs, &world.files().consume_queue());
    damage(&world);
    let damaged = tree(&*world.vfs, &world.files().consume_queue());
    assert_eq!(rebuild(&world, true).unwrap().messages, 120);
    assert_eq!(tree(&*world.vfs, &world.files().consume_queue()), damaged);
    rebuild(&world, false).unwrap();
    assert_eq!(tree(&*world.vfs, &world.files().consume_queue()), queues);
    check(&world, &expected);
}

#[test]
fn who_stops_it_keeps_the_old_files() {
    let (world, _, expected) = filled();
    let before = tree(&*world.vfs, &world.path);
    let stop = crate::rebuild(&world.files(), &small(), false, &mut |_| {
        Err(StoreError::Busy { reason: "enough".into() })
    });
    assert!(matches!(stop, Err(StoreError::Busy { .. })));
    assert_eq!(tree(&*world.vfs, &world.path), before);
    check(&world, &expected);
    // A writer excludes others.
    let store = world.open(OpenMode::ReadWrite, &small()).unwrap();
    assert!(matches!(rebuild(&world, false), Err(StoreError::Locked { .. })));
    store.close().unwrap();
}

#[test]
fn a_stop_at_any_moment_leaves_the_old_files_or_the_new_ones() {
    let (world, sim, expected) = filled();
    damage(&world);
    let begin = sim.operations();
    sim.freeze_at_each(begin..begin + 600);
    rebuild(&world, false).unwrap();
    let frozen = sim.take_all_frozen();
    assert!(frozen.len() > 50, "{} moments", frozen.len());
    for (operation, stopped) in frozen {
        for sim in [stopped.kill().unwrap(), stopped.crash(operation).unwrap()] {
            let world = world.on(Arc::new(sim));
            // Damaged files are rebuilt in each case; reads never depend on them.
            rebuild(&world, false).unwrap_or_else(|error| panic!("stopped at {operation}: {error}"));
            check(&world, &expected);
        }
        let world = world.on(Arc::new(stopped.kill().unwrap()));
        let store = world.open(OpenMode::ReadWrite, &small()).unwrap();
        store.close().unwrap();
    }
}

/// The same without damage: all files in place are always correct.
#[test]
fn a_stop_of_a_rebuild_of_good_files_leaves_good_files() {
    let (world, sim, expected) = filled();
    let begin = sim.operations();
    sim.freeze_at_each(begin..begin + 600);
    rebuild(&world, false).unwrap();
    for (operation, stopped) in sim.take_all_frozen() {
        for sim in [stopped.kill().unwrap(), stopped.crash(operation).unwrap()] {
            check(&world.on(Arc::new(sim)), &expected);
        }
    }
}

#[test]
fn a_torn_end_of_the_log_stays_as_it_is() {
    let (world, _, expected) = filled();
    let files = world.files();
    let store = world.open(OpenMode::Read, &small()).unwrap();
    let end = store.stats().unwrap().log_max_offset;
    drop(store);
    let segment = files.commit_log().join(mqstore_format::offset_file_name(end / (16 << 10) * (16 << 10)));
    let file = world.vfs.open(&segment, Access::ReadWrite).unwrap();
    file.write_all_at(&[0, 0, 1, 0, 0xDA, 0xA3, 0x20, 0xA7, 9, 9], end % (16 << 10)).unwrap();
    drop(file);
    world.vfs.remove_dir_all(&files.consume_queue()).unwrap();
    let log = tree(&*world.vfs, &files.commit_log());
    let report = rebuild(&world, false).unwrap();
    assert_eq!(report.messages, 120);
    assert_eq!(report.skipped.len(), 1, "{:?}", report.skipped);
    assert!(report.skipped[0].contains("the log ends there"));
    assert_eq!(tree(&*world.vfs, &files.commit_log()), log);
    let store = world.open(OpenMode::Read, &small()).unwrap();
    assert_eq!(answers(&store), expected);
}

#[test]
fn a_queue_without_a_record_in_the_log_keeps_its_place() {
    let (world, _, clock) = World::simulated();
    let options = StoreOptions { retention_ms: Some(1000), delete_when: "*".into(), ..small() };
    let store = world.open(OpenMode::Create, &options).unwrap();
    for number in 0..25 {
        put(&store, "old", 0, format!("old {number}").as_bytes(), "k");
    }
    for number in 0..200 {
        put(&store, "new", 0, format!("new {number}").as_bytes(), "k");
    }
    store.flush().unwrap();
    clock.advance(std::time::Duration::from_secs(60));
    put(&store, "new", 0, b"last", "k");
    assert!(store.expire(false, &mut || Ok(())).unwrap().files.len() > 1);
    assert_eq!(read_all(&store, "old", 0), []);
    store.close().unwrap();
    rebuild(&world, false).unwrap();
    let store = world.open(OpenMode::ReadWrite, &options).unwrap();
    assert_eq!(put(&store, "old", 0, b"again", "k").queue_offset, 25);
    assert_eq!(read_all(&store, "old", 0), [(25, b"again".to_vec())]);
    store.close().unwrap();
}

#[test]
fn an_open_store_goes_on_with_the_new_files() {
    let world = World::real();
    let options = StoreOptions { dispatch_threads: Some(2), ..small() };
    let store = world.open(OpenMode::Create, &options).unwrap();
    fill(&store, 0);
    let expected = answers(&store);
    damage(&world);
    std::thread::scope(|scope| {
        let appends = scope.spawn(|| {
            for number in 0..200 {
                put(&store, "others", 0, format!("other {number}").as_bytes(), "o");
            }
        });
        let report = store.rebuild(&mut |_| Ok(())).unwrap();
        assert!(report.messages >= 120);
        appends.join().unwrap();
    });
    assert_eq!(answers(&store), expected);
    assert_eq!(read_all(&store, "others", 0).len(), 200);
    fill(&store, 60);
    let expected = answers(&store);
    assert_eq!(expected.0[2].len(), 120);
    store.rebuild(&mut |_| Ok(())).unwrap();
    assert_eq!(answers(&store), expected);
    store.close().unwrap();
    check(&world, &expected);
    assert!(matches!(store.rebuild(&mut |_| Ok(())), Err(StoreError::Closed { .. })));
    let reader = world.open(OpenMode::Read, &options).unwrap();
    assert!(matches!(reader.rebuild(&mut |_| Ok(())), Err(StoreError::ReadOnly { .. })));
}
