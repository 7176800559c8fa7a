//! Verification finds the same problems with any number of threads, whatever is at the borders of pieces of the log.

use std::path::{Path, PathBuf};

use mqstore_format::{Host, RecordSpec};
use mqstore_io::Access;

use crate::verify::VerifyReport;
use mqstore_engine::testing::*;

fn verify(world: &World, threads: u32) -> VerifyReport {
    let options = StoreOptions { dispatch_threads: Some(threads), ..small() };
    crate::verify::verify(&world.files(), &options, &mut |_| Ok(())).unwrap()
}

/// Verifies with one thread and with several, and checks that the reports are equal.
fn verified(world: &World) -> VerifyReport {
    let report = verify(world, 0);
    for threads in [2, 8] {
        assert_eq!(verify(world, threads), report);
    }
    for parts in [2, 3, 7, 1000] {
        assert_eq!(super::distributed::verified(world, &small(), parts).unwrap(), report, "{parts} parts");
    }
    report
}

fn kinds(report: &VerifyReport) -> Vec<&'static str> {
    report.problems.iter().map(|problem| problem.kind).collect()
}

/// Three hundred messages in four queues, over several segments, queue and index files.
fn filled() -> World {
    let world = World::real();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    store.create_topic("orders", 4, &[]).unwrap();
    for number in 0..300 {
        let body = vec![b'a' + (number % 26) as u8; (number * 37 % 700) as usize];
        put(&store, "orders", number % 4, &body, &format!("k{}", number % 50));
    }
    store.close().unwrap();
    world
}

/// Overwrites bytes of a file below the store.
fn write(world: &World, path: &Path, offset: u64, bytes: &[u8]) {
    let file = world.vfs.open(path, Access::ReadWrite).unwrap();
    file.write_all_at(bytes, offset).unwrap();
}

fn files_in(world: &World, folder: &Path) -> Vec<PathBuf> {
    let mut names: Vec<_> = world.vfs.list(folder).unwrap().into_iter().map(|entry| entry.name).collect();
    names.sort();
    names.into_iter().map(|name| folder.join(name)).collect()
}

#[test]
fn a_whole_store_is_whole() {
    let world = filled();
    let report = verified(&world);
    assert_eq!(report.problems, []);
    assert!(report.ok);
    assert_eq!(report.messages, 300);
}

#[test]
fn damage_is_found_where_it_is_and_hides_nothing() {
    let world = filled();
    let store = world.open(OpenMode::Read, &small()).unwrap();
    let mut cursor = store.log().scan(None).unwrap();
    let mut places = Vec::new();
    while let Some(record) = cursor.next_batch(1).unwrap().first() {
        places.push(record.commit_log_offset);
    }
    store.close().unwrap();
    let (all, segments) = (places.len(), files_in(&world, &world.files().commit_log()));
    let damaged: Vec<u64> = places.iter().copied().skip(7).step_by(31).collect();
    for place in &damaged {
        write(&world, &segments[(place / (16 << 10)) as usize], place % (16 << 10) + 20, &[0xA5; 4]);
    }
    let report = verified(&world);
    let found: Vec<_> = report
        .problems
        .iter()
        .filter(|one| one.kind == "record_damaged")
        .map(|one| one.offset.unwrap())
        .collect();
    assert_eq!(found, damaged.iter().map(|place| place % (16 << 10)).collect::<Vec<_>>());
    assert_eq!(report.messages as usize, all - damaged.len());
    // Each of them still has a unit that points to it, but no record has this offset any more.
    let dangling = report.problems.iter().filter(|one| one.kind == "queue_entry_dangling").count();
    let gaps = kinds(&report).into_iter().filter(|kind| *kind == "queue_gap").count();
    assert_eq!((dangling, gaps), (damaged.len(), damaged.len()));
}

#[test]
fn a_message_that_looks_like_a_piece_of_the_log_is_one_message() {
    let world = World::real();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    store.create_topic("orders", 1, &[]).unwrap();
    for _ in 0..20 {
        let before = put(&store, "orders", 0, b"x", "k");
        // Wherever a piece begins, the first record in it is one inside this body, at its own log offset.
        let body_at = before.commit_log_offset + u64::from(before.size) + 88;
        let host = Host::new([127, 0, 0, 1], 1);
        let mut body = Vec::new();
        while body.len() < 3000 {
            let mut inner = RecordSpec::new("inner", &[b'y'; 40], host, host);
            inner.physical_offset = (body_at + body.len() as u64).cast_signed();
            inner.encode_into(&mut body).unwrap();
        }
        put(&store, "orders", 0, &body, "k");
    }
    store.close().unwrap();
    let report = verified(&world);
    assert_eq!(report.problems, []);
    assert_eq!(report.messages, 40);
}

#[test]
fn wrong_missing_and_foreign_entries_of_queues() {
    let world = filled();
    let queue = |number: u32| world.files().consume_queue().join("orders").join(number.to_string());
    let files = files_in(&world, &queue(1));
    // A unit that points to the record of another offset.
    let bytes = world.vfs.read_file(&files[2], 1 << 20).unwrap();
    write(&world, &files[2], 40, &bytes[60..80]);
    // A blank one.
    write(&world, &files_in(&world, &queue(2))[3], 100, &[0; 8]);
    write(&world, &files_in(&world, &queue(2))[3], 108, &[0x7F, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0, 0, 0, 0, 0]);
    // A queue that has no records in the log.
    let foreign = world.files().consume_queue().join("other").join("0");
    world.vfs.create_dir_all(&foreign).unwrap();
    let name = files[0].file_name().unwrap();
    world.vfs.create_new(&foreign.join(name)).unwrap().write_all_at(&bytes, 0).unwrap();
    // A queue without its files.
    for file in files_in(&world, &queue(3)) {
        world.vfs.remove_file(&file).unwrap();
    }
    world.vfs.remove_dir(&queue(3)).unwrap();
    let report = verified(&world);
    let orders: Vec<_> = report
        .problems
        .iter()
        .filter(|one| one.path.starts_with(world.files().consume_queue().join("orders")))
        .collect();
    assert_eq!(
        orders.iter().map(|one| (one.kind, one.offset)).collect::<Vec<_>>(),
        [("queue_entry_wrong", Some(22 * 20)), ("queue_entry_wrong", Some(35 * 20)), ("queue_missing", None)],
    );
    assert!(orders[1].detail.contains("offsets 35 to 36"), "{}", orders[1].detail);
    assert!(orders[2].detail.starts_with("75 messages"), "{}", orders[2].detail);
    let foreign = kinds(&report).into_iter().filter(|kind| *kind == "queue_entry_dangling").count();
    assert_eq!(foreign, 10);
}

#[test]
fn keys_without_entry_and_chains_that_break() {
    let world = filled();
    let files = files_in(&world, &world.files().index());
    assert!(files.len() > 3);
    // The chain of an entry in the middle ends.
    write(&world, &files[0], 40 + 4 * 7 + 20 * 30 + 16, &[0; 4]);
    let report = verified(&world);
    assert_eq!(kinds(&report), ["index_chain"]);
    // A complete file is missing.
    world.vfs.remove_file(&files[1]).unwrap();
    let report = verified(&world);
    assert_eq!(kinds(&report), ["index_answer", "index_chain"]);
    assert!(
        report.problems[0].detail.contains("are not found by 49 of their keys"),
        "{}",
        report.problems[0].detail
    );
    for file in files_in(&world, &world.files().index()) {
        world.vfs.remove_file(&file).unwrap();
    }
    assert_eq!(kinds(&verified(&world)), ["index_missing"]);
}

#[test]
fn store_times_that_go_back() {
    let world = World::real();
    let options = StoreOptions { record_crc: false, ..small() };
    let store = world.open(OpenMode::Create, &options).unwrap();
    let places: Vec<_> = (0..40).map(|_| put(&store, "orders", 0, b"x", "k").commit_log_offset).collect();
    store.close().unwrap();
    assert_eq!(verified(&world).problems, []);
    // No checksum covers it.
    let segment = &files_in(&world, &world.files().commit_log())[0];
    for time in [1_000, i64::MIN] {
        write(&world, segment, places[20] + 56, &time.to_be_bytes());
        let report = verified(&world);
        // The index stores times in seconds after its begin, so it has no earlier time.
        let (first, others) =
            kinds(&report).split_first().map(|(first, others)| (*first, others.to_vec())).unwrap();
        assert_eq!(first, "store_time_back");
        assert!(others.is_empty() || others == ["index_time"], "{others:?}");
        assert_eq!(report.problems[0].offset, Some(places[20]));
    }
    write(&world, segment, places[39] + 56, &i64::MAX.to_be_bytes());
    let report = crate::info(world.vfs.clone(), world.clock.clone(), &world.path, &options).unwrap();
    assert_eq!(report.hours.len(), 48);
}

#[test]
fn configuration_that_cannot_be_read() {
    let world = filled();
    let path = world.files().config().join("consumerOffset.json");
    world.vfs.create_new(&path).unwrap().write_all_at(b"{\"offsetTable\":", 0).unwrap();
    let report = verified(&world);
    assert_eq!(kinds(&report), ["config_damaged"]);
    assert_eq!(report.problems[0].path, path);
    world.vfs.open(&path, mqstore_io::Access::ReadWrite).unwrap().set_len(0).unwrap();
    let report = verified(&world);
    assert_eq!(kinds(&report), ["config_damaged"]);
    assert!(report.problems[0].detail.contains("the file is empty"));
}

#[test]
fn after_a_kill_queues_and_index_may_lack_the_last_messages() {
    let (world, vfs, _) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    for number in 0..40 {
        if number == 20 {
            store.flush().unwrap();
        }
        put(&store, "a", 0, b"body", &format!("key-{number}"));
    }
    // The process ends before the records after the flush are dispatched.
    let killed = world.on(Arc::new(vfs.kill().unwrap()));
    let report = verified(&killed);
    assert_eq!((report.ok, report.messages), (true, 40), "{report:?}");
    assert!(report.notes[0].contains("this loses nothing"), "{report:?}");
    // Damage before that place counts.
    let unit = killed.files().consume_queue().join("a/0/00000000000000000000");
    killed.vfs.open(&unit, Access::ReadWrite).unwrap().write_all_at(&[9], 3).unwrap();
    assert!(!verified(&killed).ok);
    // The next open for writing adds the entries.
    let reopened = world.on(Arc::new(vfs.kill().unwrap()));
    reopened.open(OpenMode::ReadWrite, &small()).unwrap().close().unwrap();
    let report = verified(&reopened);
    assert!(report.ok && report.notes.is_empty(), "{report:?}");
}

#[test]
fn a_hole_counts_only_among_the_units_that_a_writer_has_finished() {
    let (world, vfs, _) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    for number in 0..20 {
        if number == 14 {
            store.flush().unwrap();
        }
        put(&store, "a", 0, b"body", &format!("key-{number:02}"));
    }
    let killed = world.on(Arc::new(vfs.kill().unwrap()));
    let queue = killed.files().consume_queue().join("a/0");
    // Queue offsets 10 to 19.
    let file = killed.vfs.open(&queue.join("00000000000000000200"), Access::ReadWrite).unwrap();
    // The writer was stopped after its last flush finished offset 13.
    file.write_all_at(&[0; 20], 4 * 20).unwrap();
    assert!(verified(&killed).ok, "{:?}", verified(&killed));
    file.write_all_at(&[0; 20], 2 * 20).unwrap();
    assert!(kinds(&verified(&killed)).contains(&"queue_stray"));
}
