//! New messages of a compaction topic are copied to its compaction files, as a broker would copy them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use mqstore_io::sim::{Fault, OperationKind};

use crate::testing::*;
use mqstore_compaction::{CompactedQueue, CompactionOptions, CompactionReport, JobControl, Keyless};

const TABLE: &str = "table";
/// The length that RocketMQ derives from the two requested ones.
const LOG_BYTES: u64 = 46 * 20 * 6;

fn feeding() -> StoreOptions {
    StoreOptions { compaction_log_file_bytes: 46 * 20 * 5, compaction_queue_file_bytes: 46 * 20, ..small() }
}

fn create(world: &World, queues: u32) -> Store {
    let store = world.open(OpenMode::Create, &feeding()).unwrap();
    store.create_topic(TABLE, queues, &[("cleanup.policy".to_owned(), "COMPACTION".to_owned())]).unwrap();
    store
}

/// Appends bodies of many lengths, some without a key; the first message has the number `from`.
fn fill(store: &Store, from: u32, to: u32, queues: u32) {
    for number in from..to {
        let body = format!("{number} {}", "x".repeat((number as usize * 37) % 300));
        let key = if number % 9 == 8 { String::new() } else { format!("k{}", number % 10) };
        let keys = [key.as_str()].into_iter().filter(|key| !key.is_empty());
        // The same in each store: tests compare the bytes of two.
        let id = format!("{number:032X}");
        let properties = encode_properties(keys, Some("tag"), Some(&id), []).unwrap();
        let queue_id = i32::try_from(number % queues).unwrap();
        let message = message(TABLE, Some(queue_id), body.as_bytes(), &properties);
        store.append(&NewMessage { unique_key: Some(&id), ..message }).unwrap();
    }
}

fn compact(store: &Store, keyless: Keyless) -> CompactionReport {
    let options = CompactionOptions { keyless, ..CompactionOptions::default() };
    store.compact(None, &options, 1, &Arc::new(JobControl::default())).unwrap()
}

/// Runs a step of the background, after a sync.
fn step(store: &Store) {
    store.flush().unwrap();
    store.step().unwrap();
}

/// Returns every file below `compaction/`, by its name there.
fn files_of(world: &World) -> BTreeMap<PathBuf, Vec<u8>> {
    let root = world.path.join("compaction");
    let mut found = BTreeMap::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in world.vfs.list(&folder).unwrap_or_default() {
            let path = folder.join(&entry.name);
            if entry.stat.kind == mqstore_io::FileKind::Directory {
                folders.push(path);
            } else {
                let name = path.strip_prefix(&root).unwrap().to_path_buf();
                found.insert(name, world.vfs.read_file(&path, 1 << 20).unwrap());
            }
        }
    }
    found
}

fn file(kind: &str, number: u64) -> PathBuf {
    PathBuf::from(format!("{kind}/{TABLE}/0/{:020}", number * LOG_BYTES))
}

/// Returns the queue offsets in the compaction files.
fn held(world: &World, queue_id: i32) -> Vec<i64> {
    let queue = CompactedQueue::open(&world.files(), TABLE, queue_id).unwrap();
    queue.map_or(Vec::new(), |queue| queue.read(0).map(|record| record.unwrap().queue_offset).collect())
}

/// Returns the log offset at which a reader finds a message.
fn place_of(store: &Store, offset: i64) -> u64 {
    let mut cursor = store.read(TABLE, 0, Some(offset), None, None).unwrap();
    cursor.next_batch(1).unwrap()[0].commit_log_offset
}

/// Returns the queue offsets of messages with a key in one queue.
fn keyed(count: i64) -> Vec<i64> {
    (0..count).filter(|number| number % 9 != 8).collect()
}

#[test]
fn files_fed_bit_by_bit_are_those_of_one_copy() {
    let (world, _, _) = World::simulated();
    let mut store = create(&world, 2);
    for part in 0..12 {
        fill(&store, part * 13, (part + 1) * 13, 2);
        if part % 3 == 2 {
            store.close().unwrap();
            let notes = store.notes();
            assert_eq!(notes.len(), 2, "{notes:?}");
            assert!(notes.iter().all(|note| note.contains(" has messages without a key")), "{notes:?}");
            store = world.open(OpenMode::ReadWrite, &feeding()).unwrap();
        } else {
            step(&store);
        }
    }
    store.close().unwrap();
    let fed = files_of(&world);
    assert!(fed.len() > 12, "{:?}", fed.keys());
    world.vfs.remove_dir_all(&world.path.join("compaction")).unwrap();
    world.open(OpenMode::ReadWrite, &feeding()).unwrap().close().unwrap();
    let at_once = files_of(&world);
    assert_eq!(fed.keys().collect::<Vec<_>>(), at_once.keys().collect::<Vec<_>>());
    assert!(fed == at_once, "the bytes differ");
}

#[test]
fn a_compaction_is_the_same_whether_messages_were_fed_or_not() {
    let reports = [true, false].map(|feeds| {
        let (world, _, _) = World::simulated();
        let options = StoreOptions { compaction_feed: feeds, ..feeding() };
        create(&world, 1).close().unwrap();
        let mut found = Vec::new();
        for round in 0..3 {
            let store = world.open(OpenMode::ReadWrite, &options).unwrap();
            fill(&store, round * 100, round * 100 + 70, 1);
            step(&store);
            fill(&store, round * 100 + 70, round * 100 + 100, 1);
            store.close().unwrap();
            let all = i64::from(round + 1) * 100;
            assert_eq!(held(&world, 0).last().is_some_and(|last| *last >= all - 2), feeds);
            let store = world.open(OpenMode::ReadWrite, &options).unwrap();
            let report = compact(&store, Keyless::Keep);
            found.push((report.messages_before, report.messages_after, report.keyless, files_of(&world)));
            assert_eq!(compact(&store, Keyless::Keep).skipped, ["table/0: unchanged"]);
            store.close().unwrap();
            let seen = mqstore_inspect::verify(&world.files(), &feeding(), &mut |_| Ok(())).unwrap();
            assert!(seen.problems.is_empty(), "{:?}", seen.problems);
        }
        found
    });
    assert!(reports[0][1].2 > 0, "messages without a key come along");
    for (fed, plain) in reports[0].iter().zip(&reports[1]) {
        assert_eq!((fed.0, fed.1, fed.2), (plain.0, plain.1, plain.2));
        assert_eq!(fed.3.keys().collect::<Vec<_>>(), plain.3.keys().collect::<Vec<_>>());
        assert!(fed.3 == plain.3, "the bytes differ");
    }
}

#[test]
fn a_generation_is_followed_by_files_of_its_own() {
    let (world, _, _) = World::simulated();
    let store = create(&world, 1);
    fill(&store, 0, 30, 1);
    compact(&store, Keyless::Drop);
    let generation = files_of(&world);
    fill(&store, 30, 35, 1);
    step(&store);
    let fed = files_of(&world);
    assert!(generation.iter().all(|(name, bytes)| fed.get(name) == Some(bytes)));
    assert_eq!(fed.len(), generation.len() + 2);
    assert_eq!(compact(&store, Keyless::Drop).messages_before, 10 + 5);
    assert_eq!(compact(&store, Keyless::Drop).skipped, ["table/0: unchanged"]);
    store.close().unwrap();
}

#[test]
fn a_read_does_not_notice_the_feed() {
    let (world, _, _) = World::simulated();
    let store = create(&world, 1);
    fill(&store, 0, 50, 1);
    let place = place_of(&store, 3);
    step(&store);
    assert_eq!(place_of(&store, 3), place, "the message is in the commit log");
    compact(&store, Keyless::Drop);
    fill(&store, 50, 80, 1);
    step(&store);
    // The compacted messages, then all later ones, also if more are copied during the read.
    let newest: BTreeMap<i64, i64> = keyed(50).into_iter().map(|offset| (offset % 10, offset)).collect();
    let mut expected: Vec<i64> = newest.into_values().collect();
    expected.sort_unstable();
    expected.extend(50..80);
    let mut cursor = store.read(TABLE, 0, None, None, None).unwrap();
    let mut seen = Vec::new();
    for round in 0..100 {
        let batch = cursor.next_batch(9).unwrap();
        if batch.is_empty() {
            break;
        }
        seen.extend(batch.iter().map(|record| record.queue_offset));
        fill(&store, 80 + round * 20, 100 + round * 20, 1);
        step(&store);
    }
    assert_eq!(seen, expected);
    store.close().unwrap();
}

#[test]
fn a_log_file_that_lost_its_queue_file_gets_one() {
    let (world, _, _) = World::simulated();
    let store = create(&world, 1);
    fill(&store, 0, 60, 1);
    store.close().unwrap();
    let before = files_of(&world);
    let last = before.keys().rfind(|name| name.starts_with("compactionCq")).unwrap().clone();
    assert_ne!(last, file("compactionCq", 0));
    // As after a crash between the two names.
    world.vfs.remove_file(&world.path.join("compaction").join(&last)).unwrap();
    let store = world.open(OpenMode::ReadWrite, &feeding()).unwrap();
    fill(&store, 60, 61, 1);
    store.close().unwrap();
    let after = files_of(&world);
    assert!(after.contains_key(&last));
    assert_eq!(held(&world, 0), keyed(61));
    assert_eq!(after.len(), before.len());
}

#[test]
fn nothing_is_written_over_what_lies_behind_the_last_entry() {
    let (world, _, _) = World::simulated();
    let store = create(&world, 1);
    fill(&store, 0, 10, 1);
    store.close().unwrap();
    let path = world.path.join("compaction").join(file("compactionCq", 0));
    let stale = world.vfs.open(&path, mqstore_io::Access::ReadWrite).unwrap();
    stale.write_all_at(&[7; 46], 46 * 15).unwrap();
    let before = files_of(&world);
    let store = world.open(OpenMode::ReadWrite, &feeding()).unwrap();
    fill(&store, 10, 20, 1);
    store.close().unwrap();
    let after = files_of(&world);
    assert_eq!(after[&file("compactionCq", 0)], before[&file("compactionCq", 0)]);
    assert!(after.contains_key(&file("compactionLog", 1)) && after.contains_key(&file("compactionCq", 1)));
    assert_eq!(held(&world, 0), keyed(20));
}

#[test]
fn a_queue_that_lacks_messages_is_left_to_a_restore() {
    let (world, _, _) = World::simulated();
    let expiring = StoreOptions { retention_bytes: Some(2 * (16 << 10)), ..feeding() };
    let store = world.open(OpenMode::Create, &expiring).unwrap();
    store.create_topic(TABLE, 1, &[("cleanup.policy".to_owned(), "COMPACTION".to_owned())]).unwrap();
    fill(&store, 0, 300, 1);
    step(&store);
    assert!(store.expire(false, &mut || Ok(())).unwrap().segments > 2);
    store.close().unwrap();
    world.vfs.remove_dir_all(&world.path.join("compaction")).unwrap();
    let store = world.open(OpenMode::ReadWrite, &feeding()).unwrap();
    step(&store);
    assert!(files_of(&world).is_empty());
    let notes = store.notes();
    assert!(notes.iter().any(|note| note.contains("table/0: its files end at offset 0")), "{notes:?}");
    compact(&store, Keyless::Drop);
    fill(&store, 300, 310, 1);
    store.close().unwrap();
    assert_eq!(held(&world, 0).last(), Some(&309));
}

#[test]
fn what_the_log_let_go_is_compacted_from_its_copies() {
    let expiring = StoreOptions { retention_bytes: Some(2 * (16 << 10)), ..feeding() };
    let outcomes = [true, false].map(|open| {
        let (world, _, _) = World::simulated();
        let store = create(&world, 1);
        fill(&store, 0, 20, 1);
        compact(&store, Keyless::Drop);
        store.close().unwrap();
        let store = world.open(OpenMode::ReadWrite, &expiring).unwrap();
        fill(&store, 20, 320, 1);
        step(&store);
        assert!(store.expire(false, &mut || Ok(())).unwrap().segments > 2);
        assert_eq!(held(&world, 0).len(), 10 + keyed(320).len() - keyed(20).len());
        let options = CompactionOptions { keyless: Keyless::Keep, ..CompactionOptions::default() };
        let report = if open {
            compact(&store, Keyless::Keep)
        } else {
            store.close().unwrap();
            mqstore_compaction::compact(&world.files(), None, &options, 1, &Arc::new(JobControl::default()))
                .unwrap()
        };
        // Messages without a key count as far as the log contains them.
        assert!(report.keyless > 1 && report.keyless < 30, "{report:?}");
        (report.messages_before, report.messages_after, files_of(&world))
    });
    assert_eq!(outcomes[0].0, outcomes[1].0);
    assert!(outcomes[0] == outcomes[1]);
    assert!(outcomes[0].0 > 270);
}

/// Returns every file of the store outside its compaction folder, with its content.
fn log_and_queues(world: &World) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![world.path.clone()];
    while let Some(folder) = folders.pop() {
        for entry in world.vfs.list(&folder).unwrap() {
            let path = folder.join(&entry.name);
            match entry.stat.kind {
                mqstore_io::FileKind::Directory if path == world.path.join("compaction") => {}
                mqstore_io::FileKind::Directory => folders.push(path),
                _ => {
                    found.insert(path.clone(), world.vfs.read_file(&path, 1 << 20).unwrap());
                }
            }
        }
    }
    found
}

/// Replaces the log, its queues and all other files outside the compaction folder by older ones.
fn put_back(world: &World, older: &BTreeMap<PathBuf, Vec<u8>>) {
    for path in log_and_queues(world).into_keys() {
        world.vfs.remove_file(&path).unwrap();
    }
    for (path, bytes) in older {
        let file = world.vfs.create_new(path).unwrap();
        file.set_len(bytes.len() as u64).unwrap();
        file.write_all_at(bytes, 0).unwrap();
        file.sync_data().unwrap();
    }
}

#[test]
fn a_log_that_lost_its_end_goes_on_behind_the_copies() {
    // A few messages, and more than a queue can skip without a gap in the log.
    for (lost, segments, compacted) in [(40, 1, true), (40, 1, false), (1500, 2, true), (1500, 2, false)] {
        let options = StoreOptions { segment_bytes: 512 << 10, ..feeding() };
        let (world, _, _) = World::simulated();
        let store = world.open(OpenMode::Create, &options).unwrap();
        store.create_topic(TABLE, 1, &[("cleanup.policy".to_owned(), "COMPACTION".to_owned())]).unwrap();
        fill(&store, 0, 20, 1);
        store.close().unwrap();
        let older = log_and_queues(&world);
        let store = world.open(OpenMode::ReadWrite, &options).unwrap();
        fill(&store, 20, 20 + lost, 1);
        if compacted {
            compact(&store, Keyless::Drop);
        }
        store.close().unwrap();
        let (copies, end) = (held(&world, 0), i64::from(20 + lost));

        put_back(&world, &older);
        for round in 0..2 {
            let store = world.open(OpenMode::ReadWrite, &options).unwrap();
            let told = store.notes().iter().any(|note| note.contains("the log has lost its end"));
            assert_eq!(told, round == 0, "{:?}", store.notes());
            let at = put(&store, TABLE, 0, b"new", &format!("new-{round}"));
            assert_eq!(at.queue_offset, end + round);
            step(&store);
            let read: Vec<i64> = read_all(&store, TABLE, 0).into_iter().map(|row| row.0).collect();
            assert!(
                copies.iter().all(|copy| read.contains(copy)),
                "round {round}: {read:?} without {copies:?}"
            );
            assert_eq!(read.last(), Some(&(end + round)));
            store.close().unwrap();
        }
        assert_eq!(held(&world, 0), [copies, vec![end, end + 1]].concat());
        let logs = world.vfs.list(&world.path.join("commitlog")).unwrap();
        assert_eq!(logs.len(), segments);
        let report = mqstore_inspect::verify(&world.files(), &options, &mut |_| Ok(())).unwrap();
        let kinds: Vec<&str> = report.problems.iter().map(|problem| problem.kind).collect();
        assert_eq!(kinds, ["queue_gap"], "{report:?}");
        let store = world.open(OpenMode::ReadWrite, &options).unwrap();
        compact(&store, Keyless::Drop);
        assert_eq!(held(&world, 0)[held(&world, 0).len() - 2..], [end, end + 1]);
        store.close().unwrap();
    }
}

#[test]
fn a_full_disk_does_not_keep_a_store_from_closing() {
    let (world, sim, _) = World::simulated();
    let store = create(&world, 1);
    fill(&store, 0, 30, 1);
    let full = Fault::nth(1).on(&[OperationKind::Write]).under(&world.files().jobs()).no_space();
    sim.inject(full.sticky());
    store.close().unwrap();
    assert!(sim.faults_fired() > 0);
    sim.clear_faults();
    let notes = store.notes();
    assert!(notes.iter().any(|note| note.contains("a broker does not serve the messages")), "{notes:?}");
    assert!(world.vfs.stat(&world.files().abort()).is_err(), "the close was a clean one");
    world.open(OpenMode::ReadWrite, &feeding()).unwrap().close().unwrap();
    assert_eq!(held(&world, 0), keyed(30));
}
