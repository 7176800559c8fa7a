//! Opens, closes, crashes, and the messages that exist afterwards.

use std::sync::Arc;

use mqstore_io::{Access, ManualClock, OsVfs, SimVfs, Vfs};

use crate::Store;
use crate::testing::{World, put, read_all, small};
use mqstore_base::error::StoreError;
use mqstore_base::options::{Durability, OpenMode, StoreOptions};

fn fill(store: &Store, from: i64, count: i64) {
    for index in from..from + count {
        let body = format!("body {index} {}", "x".repeat((index % 7 * 30) as usize));
        put(store, "orders", (index % 3) as i32, body.as_bytes(), &format!("k{}", index % 5));
    }
}

fn expect(store: &Store, count: i64) {
    for queue_id in 0..3_i64 {
        let found = read_all(store, "orders", queue_id as i32);
        let wanted: Vec<_> = (0..count)
            .filter(|index| index % 3 == queue_id)
            .enumerate()
            .map(|(offset, index)| {
                let body = format!("body {index} {}", "x".repeat((index % 7 * 30) as usize));
                (offset as i64, body.into_bytes())
            })
            .collect();
        assert_eq!(found, wanted, "queue {queue_id}");
    }
    for key in 0..5.min(count) {
        let mut cursor = store.lookup("orders", &format!("k{key}"), None, None, None).unwrap();
        let found = cursor.next_batch(usize::MAX).unwrap();
        assert_eq!(found.len() as i64, (count - key + 4) / 5, "key k{key}");
        assert!(found.is_sorted_by_key(|record| record.commit_log_offset));
    }
}

fn verify_clean(world: &World, options: &StoreOptions) {
    let report = mqstore_inspect::verify(&world.files(), options, &mut |_| Ok(())).unwrap();
    assert!(report.ok, "{:#?}", report.problems);
}

#[test]
fn appended_messages_are_read_back_and_survive_a_close() {
    for world in [World::real(), World::simulated().0] {
        for durability in [Durability::Async, Durability::Sync, Durability::Manual] {
            let _ = world.vfs.remove_dir_all(&world.path);
            let options = StoreOptions { durability, ..small() };
            let store = world.open(OpenMode::Create, &options).unwrap();
            store.create_topic("orders", 3, &[]).unwrap();
            fill(&store, 0, 100);
            expect(&store, 100);
            store.close().unwrap();
            store.close().unwrap();
            assert!(matches!(store.topics(), Err(StoreError::Closed { .. })));
            assert!(world.vfs.stat(&world.files().abort()).is_err());
            verify_clean(&world, &options);

            let store = world.open(OpenMode::ReadWrite, &options).unwrap();
            assert_eq!(store.notes(), Vec::<String>::new());
            expect(&store, 100);
            fill(&store, 100, 60);
            expect(&store, 160);
            drop(store);
            let store = world.open(OpenMode::Read, &options).unwrap();
            assert_eq!(store.notes(), Vec::<String>::new());
            expect(&store, 160);
        }
    }
}

#[test]
fn two_opens_in_one_process_share_no_note() {
    let (world, ..) = World::simulated();
    let writer = world.open(OpenMode::Create, &small()).unwrap();
    let reader = world.open(OpenMode::Read, &small()).unwrap();
    writer.add_note("the writer's");
    writer.user_notes().log("the writer's line".to_owned());
    reader.add_note("the reader's");
    assert_eq!(
        (writer.clone().notes(), reader.notes()),
        (vec!["the writer's".to_owned()], vec!["the reader's".to_owned()])
    );
    assert_eq!(reader.user_notes().take_lines(), Vec::<String>::new());
    assert_eq!(writer.clone().user_notes().take_lines(), ["the writer's line"]);
    writer.close().unwrap();
    let again = world.open(OpenMode::ReadWrite, &small()).unwrap();
    assert_eq!((again.notes(), again.user_notes().take_lines()), (Vec::new(), Vec::new()));
}

#[test]
fn an_open_for_writing_removes_the_seals_of_an_older_version() {
    for world in [World::real(), World::simulated().0] {
        let store = world.open(OpenMode::Create, &small()).unwrap();
        store.create_topic("orders", 3, &[]).unwrap();
        fill(&store, 0, 10);
        store.close().unwrap();
        let seals = world.files().side().join("seals");
        let file = world.vfs.create_new(&seals).unwrap();
        file.write_all_at(b"MQSSEAL1, and bounds that no queue has", 0).unwrap();

        let store = world.open(OpenMode::Read, &small()).unwrap();
        expect(&store, 10);
        drop(store);
        assert!(world.vfs.stat(&seals).is_ok(), "an open for reading changes nothing");

        let store = world.open(OpenMode::ReadWrite, &small()).unwrap();
        assert_eq!(store.notes(), Vec::<String>::new());
        expect(&store, 10);
        store.close().unwrap();
        assert!(world.vfs.stat(&seals).is_err());
        let store = world.open(OpenMode::ReadWrite, &small()).unwrap();
        expect(&store, 10);
    }
}

#[test]
fn threads_dispatch_and_flush_in_the_background() {
    let world = World::real();
    let options = StoreOptions { dispatch_threads: Some(1), flush_interval_ms: 5, ..small() };
    let store = world.open(OpenMode::Create, &options).unwrap();
    store.create_topic("orders", 3, &[]).unwrap();
    fill(&store, 0, 300);
    expect(&store, 300);
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(store.stats().unwrap().dispatched_offset, store.stats().unwrap().log_max_offset);
    store.close().unwrap();
    verify_clean(&world, &options);
}

#[test]
fn a_second_writer_is_refused_and_changes_nothing() {
    let world = World::real();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    assert!(matches!(world.open(OpenMode::ReadWrite, &small()), Err(StoreError::Locked { .. })));
    assert!(matches!(world.open(OpenMode::Create, &small()), Err(StoreError::Locked { .. })));
    store.close().unwrap();
    world.open(OpenMode::ReadWrite, &small()).unwrap().close().unwrap();
}

#[test]
fn a_directory_that_is_no_store_is_refused() {
    let world = World::real();
    for mode in [OpenMode::Read, OpenMode::ReadWrite] {
        assert!(matches!(world.open(mode, &small()), Err(StoreError::NotAStore { .. })));
    }
    std::fs::create_dir(&world.path).unwrap();
    std::fs::write(world.path.join("letter.txt"), "dear").unwrap();
    assert!(matches!(world.open(OpenMode::Create, &small()), Err(StoreError::NotAStore { .. })));
    assert_eq!(std::fs::read_dir(&world.path).unwrap().count(), 1);
}

#[test]
fn opens_at_the_same_time_make_different_unique_ids() {
    let clock = Arc::new(ManualClock::new(1_700_000_000_000));
    let mut seen = std::collections::HashSet::new();
    for vfs in [Arc::new(OsVfs::new()) as Arc<dyn Vfs>, Arc::new(SimVfs::default())] {
        let folder = tempfile::tempdir().unwrap();
        vfs.create_dir_all(folder.path()).unwrap();
        for _ in 0..100 {
            let path = folder.path().join("store");
            let clock = Arc::clone(&clock) as Arc<dyn mqstore_io::Clock>;
            let store = Store::open(Arc::clone(&vfs), clock, &path, OpenMode::Create, &small()).unwrap();
            for _ in 0..3 {
                let id = put(&store, "t", 0, b"body", "k").unique_id.as_str().to_owned();
                assert!(seen.insert(id.clone()), "{id} came twice");
            }
            store.close().unwrap();
        }
    }
}

#[test]
fn a_kill_loses_nothing_that_was_appended() {
    for durability in [Durability::Async, Durability::Sync] {
        let (world, vfs, _) = World::simulated();
        let options = StoreOptions { durability, ..small() };
        let store = world.open(OpenMode::Create, &options).unwrap();
        store.create_topic("orders", 3, &[]).unwrap();
        for round in 0..10 {
            fill(&store, round * 20, 20);
            let killed = world.on(Arc::new(vfs.kill().unwrap()));
            let reader = killed.open(OpenMode::Read, &options).unwrap();
            expect(&reader, round * 20 + 20);
            let again = killed.open(OpenMode::ReadWrite, &options).unwrap();
            expect(&again, round * 20 + 20);
            again.close().unwrap();
            verify_clean(&killed, &options);
        }
    }
}

#[test]
fn power_loss_keeps_what_was_acknowledged_in_sync_mode() {
    let (world, vfs, _) = World::simulated();
    let options = StoreOptions { durability: Durability::Sync, ..small() };
    let store = world.open(OpenMode::Create, &options).unwrap();
    store.create_topic("orders", 3, &[]).unwrap();
    for index in 0..120 {
        fill(&store, index, 1);
        let crashed = world.on(Arc::new(vfs.crash(index as u64).unwrap()));
        let again = crashed.open(OpenMode::ReadWrite, &options).unwrap();
        expect(&again, index + 1);
        again.close().unwrap();
        verify_clean(&crashed, &options);
    }
}

#[test]
fn power_loss_in_async_mode_keeps_a_prefix() {
    let (world, vfs, _) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    store.create_topic("orders", 3, &[]).unwrap();
    fill(&store, 0, 40);
    store.flush().unwrap();
    fill(&store, 40, 80);
    for seed in 0..40 {
        let crashed = world.on(Arc::new(vfs.crash(seed).unwrap()));
        let again = crashed.open(OpenMode::ReadWrite, &small()).unwrap();
        let held: i64 = again.queues("orders").unwrap().iter().map(|queue| queue.max_offset).sum();
        assert!((40..=120).contains(&held), "{held} of 120 with seed {seed}");
        expect(&again, held);
        fill(&again, held, 5);
        again.close().unwrap();
        verify_clean(&crashed, &small());
    }
}

#[test]
fn damage_below_the_mark_is_refused_and_nothing_changes() {
    let (world, vfs, _) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    store.create_topic("orders", 3, &[]).unwrap();
    fill(&store, 0, 100);
    store.close().unwrap();
    let segment = world.files().commit_log().join("00000000000000000000");
    let file = vfs.open(&segment, Access::ReadWrite).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 300).unwrap();
    file.write_all_at(&[byte[0] ^ 4], 300).unwrap();
    // The mark is still valid, so recovery starts after the damage; a read reports it.
    let store = world.open(OpenMode::Read, &small()).unwrap();
    let mut cursor = store.log().scan(None).unwrap();
    assert_eq!(cursor.next_batch(usize::MAX).unwrap().len(), 99);
    assert!(store.notes().iter().any(|note| note.contains("skipped")), "{:?}", store.notes());
    let report = mqstore_inspect::verify(&world.files(), &small(), &mut |_| Ok(())).unwrap();
    assert!(report.problems.iter().any(|problem| problem.kind == "record_damaged"), "{report:#?}");
}

#[test]
fn lost_queues_index_checkpoint_and_abort_lose_no_message() {
    for victim in ["consumequeue", "index", "checkpoint", "abort", "mqstore", "consumequeue/orders/1"] {
        for clean in [true, false] {
            let (world, vfs, _) = World::simulated();
            let store = world.open(OpenMode::Create, &small()).unwrap();
            store.create_topic("orders", 3, &[]).unwrap();
            fill(&store, 0, 100);
            let vfs = if clean {
                store.close().unwrap();
                vfs
            } else {
                Arc::new(vfs.kill().unwrap())
            };
            let world = world.on(vfs.clone());
            let path = world.path.join(victim);
            let _ = vfs.remove_dir_all(&path).or_else(|_| vfs.remove_file(&path));
            expect(&world.open(OpenMode::Read, &small()).unwrap(), 100);
            let again = world.open(OpenMode::ReadWrite, &small()).unwrap();
            expect(&again, 100);
            fill(&again, 100, 10);
            again.close().unwrap();
            verify_clean(&world, &small());
        }
    }
}

#[test]
fn a_full_disk_is_an_error_and_ends_with_it() {
    let (world, vfs, _) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    store.create_topic("orders", 3, &[]).unwrap();
    fill(&store, 0, 3);
    vfs.set_space(Some(0));
    let body = vec![0; 4000];
    let mut held = 0;
    let failed = loop {
        let properties = [];
        match store.append(&crate::testing::message("orders", Some(0), &body, &properties)) {
            Ok(_) => held += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(failed, StoreError::DiskFull { .. }), "{failed:?}");
    vfs.set_space(None);
    store.append(&crate::testing::message("orders", Some(0), &body, &[])).unwrap();
    assert_eq!(read_all(&store, "orders", 0).len(), 1 + held + 1);
    store.close().unwrap();
    verify_clean(&world, &small());
}

#[test]
fn a_segment_that_somebody_removes_is_noticed_before_the_next_acknowledgement() {
    let world = World::real();
    let options = StoreOptions { durability: Durability::Sync, ..small() };
    let store = world.open(OpenMode::Create, &options).unwrap();
    put(&store, "orders", 0, b"there", "k");
    std::fs::remove_file(world.files().commit_log().join("00000000000000000000")).unwrap();
    let outcome = store.append(&crate::testing::message("orders", Some(0), b"gone", &[]));
    assert!(matches!(outcome, Err(StoreError::Poisoned { .. })), "{outcome:?}");
    assert!(matches!(store.close(), Err(StoreError::Poisoned { .. })));
}

#[test]
fn a_refused_writer_is_told_who_holds_the_store() {
    let world = World::real();
    let _store = world.open(OpenMode::Create, &small()).unwrap();
    match world.open(OpenMode::ReadWrite, &small()) {
        Err(StoreError::Locked { pid, .. }) => assert_eq!(pid, Some(std::process::id() as i32)),
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("two writers"),
    }
}

#[test]
fn a_closed_store_of_somebody_else_is_not_cut_where_it_is_damaged() {
    let (world, vfs, _) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    store.create_topic("orders", 3, &[]).unwrap();
    fill(&store, 0, 100);
    store.close().unwrap();
    // Without the side folder, the store looks like one of RocketMQ.
    vfs.remove_dir_all(&world.files().side()).unwrap();
    vfs.flip(&world.files().commit_log().join("00000000000000016384"), 300, 4).unwrap();
    match world.open(OpenMode::ReadWrite, &small()) {
        Err(StoreError::Corrupt { path, .. }) => assert!(path.ends_with("00000000000000016384")),
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it was opened"),
    }
    // A refused open changes nothing: there is no trace of a writer.
    assert!(vfs.stat(&world.files().abort()).is_err());
    assert!(vfs.stat(&world.files().side()).is_err());
    let reader = world.open(OpenMode::Read, &small()).unwrap();
    assert_eq!(reader.log().scan(None).unwrap().next_batch(usize::MAX).unwrap().len(), 99);
}

#[test]
fn a_batch_that_a_full_disk_cuts_short_leaves_a_whole_store() {
    let (world, vfs, _) = World::simulated();
    let options = small();
    let store = world.open(OpenMode::Create, &options).unwrap();
    store.create_topic("orders", 3, &[]).unwrap();
    put(&store, "orders", 0, b"first", "k");
    vfs.set_space(Some(0));
    let body = vec![7; 3000];
    let batch: Vec<_> = (0..20).map(|_| crate::testing::message("orders", Some(0), &body, &[])).collect();
    assert!(matches!(store.append_many(&batch), Err(StoreError::DiskFull { .. })));
    vfs.set_space(None);
    store.flush().unwrap();
    let stats = store.stats().unwrap();
    assert_eq!(stats.durable_offset, stats.log_max_offset);
    put(&store, "orders", 0, b"last", "k");
    store.flush().unwrap();
    let held = read_all(&store, "orders", 0);
    assert!(held.len() > 2 && held.len() < 22, "{}", held.len());
    // Everything that can be read is synced, including the part of the batch.
    let crashed = world.on(Arc::new(vfs.crash_with(&mut |_| false).unwrap()));
    assert_eq!(read_all(&crashed.open(OpenMode::ReadWrite, &options).unwrap(), "orders", 0), held);
    store.close().unwrap();
    verify_clean(&world, &options);
}

#[test]
fn a_thousand_queues_are_there_after_each_open() {
    let world = World::real();
    let options = StoreOptions { segment_bytes: 1 << 20, dispatch_threads: Some(2), ..small() };
    let names: Vec<_> = (0..10).map(|topic| format!("t{topic}")).collect();
    let store = world.open(OpenMode::Create, &options).unwrap();
    for name in &names {
        store.create_topic(name, 100, &[]).unwrap();
    }
    for round in 0..10 {
        for queue in 0..1000 {
            let body = format!("{queue} {round}");
            put(&store, &names[queue % 10], (queue / 10) as i32, body.as_bytes(), "k");
        }
    }
    let check = |store: &Store, more: usize| {
        for queue in 0..1000 {
            let (name, id) = (&names[queue % 10], (queue / 10) as i32);
            let found = store.read(name, id, None, None, None).unwrap().next_batch(99).unwrap();
            let bodies: Vec<_> = found.iter().map(|record| record.view().unwrap().body.to_vec()).collect();
            let rounds = if queue < 10 { 10 + more } else { 10 };
            let expected: Vec<_> = (0..rounds).map(|round| format!("{queue} {round}").into_bytes()).collect();
            assert_eq!(bodies, expected);
        }
    };
    check(&store, 0);
    store.close().unwrap();
    let store = world.open(OpenMode::ReadWrite, &options).unwrap();
    check(&store, 0);
    for (queue, name) in names.iter().enumerate() {
        put(&store, name, 0, format!("{queue} 10").as_bytes(), "k");
    }
    store.close().unwrap();
    let store = world.open(OpenMode::ReadWrite, &options).unwrap();
    check(&store, 1);
    store.close().unwrap();
    check(&world.open(OpenMode::Read, &options).unwrap(), 1);
}
