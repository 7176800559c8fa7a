//! Deleted topics: after a stop at any step, and in a store that a broker or an older version continued.

use std::collections::BTreeMap;
use std::sync::Arc;

use mqstore_io::sim::{Fault, OperationKind};
use mqstore_io::{SimVfs, Vfs};

use crate::Store;
use crate::testing::{World, put, read_all, small};
use mqstore_base::error::StoreError;
use mqstore_base::options::{Durability, OpenMode, RecoveryMode, StoreOptions};
use mqstore_base::progress::Progress;

fn verify_clean(world: &World, options: &StoreOptions) {
    let report = mqstore_inspect::verify(&world.files(), options, &mut |_| Ok(())).unwrap();
    assert!(report.ok, "{:#?}", report.problems);
}

fn rebuild(world: &World, options: &StoreOptions) {
    mqstore_inspect::rebuild(&world.files(), options, false, &mut |_: Progress| Ok(())).unwrap();
}

fn old_messages(count: usize) -> Vec<(i64, Vec<u8>)> {
    (0..count).map(|number| (number as i64, format!("old {number}").into_bytes())).collect()
}

/// Makes a topic with 13 messages in queue 0 and one in queue 1, all durable, and one message of another topic.
fn filled(world: &World, options: &StoreOptions) -> Store {
    let store = world.open(OpenMode::Create, options).unwrap();
    store.create_topic("orders", 2, &[]).unwrap();
    for (_, body) in old_messages(13) {
        put(&store, "orders", 0, &body, "k");
    }
    put(&store, "orders", 1, b"old", "k");
    put(&store, "other", 0, b"stays", "k");
    store.flush().unwrap();
    store
}

fn found_by_key(store: &Store, topic: &str) -> usize {
    match store.lookup(topic, "k", None, None, None) {
        Err(StoreError::TopicNotFound { .. }) => 0,
        cursor => cursor.unwrap().next_batch(usize::MAX).unwrap().len(),
    }
}

/// Checks a store in which the topic is deleted: a new topic of the name is empty and continues at the floor.
fn expect_deleted(world: &World, options: &StoreOptions) {
    let store = world.open(OpenMode::ReadWrite, options).unwrap();
    assert_eq!(store.topics().unwrap(), ["other"]);
    assert!(world.vfs.stat(&world.files().consume_queue().join("orders")).is_err());
    store.create_topic("orders", 2, &[]).unwrap();
    assert_eq!([0, 1].map(|queue_id| store.bounds("orders", queue_id).unwrap()), [(20, 20), (10, 10)]);
    assert_eq!(found_by_key(&store, "orders"), 0);
    assert_eq!(put(&store, "orders", 0, b"new", "k").queue_offset, 20);
    assert_eq!(read_all(&store, "orders", 0), [(20, b"new".to_vec())]);
    assert_eq!((found_by_key(&store, "orders"), found_by_key(&store, "other")), (1, 1));
    store.close().unwrap();
    verify_clean(world, options);
}

#[test]
fn a_stop_at_any_step_leaves_the_topic_complete_or_deleted() {
    for durability in [Durability::Async, Durability::Sync, Durability::Manual, Durability::Pooled] {
        let options = StoreOptions { durability, ..small() };
        let (world, sim, _) = World::simulated();
        let store = filled(&world, &options);
        put(&store, "orders", 0, b"old 13", "k");
        let begin = sim.operations();
        sim.freeze_at_each(begin..begin + 2000);
        store.remove_topic("orders").unwrap();
        let mut states = sim.take_all_frozen();
        assert!(states.len() > 10, "{}", states.len());
        states.push((0, sim.kill().unwrap()));
        let mut outcomes = BTreeMap::new();
        for (at, state) in states {
            let stops = [state.kill(), state.crash(at), state.crash_with(&mut |_| false)];
            for (how, stopped) in stops.into_iter().enumerate() {
                let world = world.on(Arc::new(stopped.unwrap()));
                let store = world.open(OpenMode::ReadWrite, &options).unwrap();
                let exists = store.topics().unwrap().contains(&"orders".to_owned());
                assert!(!exists || at > 0, "a deletion that has returned is durable");
                if exists {
                    let kept = read_all(&store, "orders", 0);
                    assert_eq!(kept, old_messages(kept.len()), "{durability:?}, {at}");
                    assert!(kept.len() >= 13, "{durability:?}, {at}, {how}: {}", kept.len());
                    store.remove_topic("orders").unwrap();
                }
                store.close().unwrap();
                expect_deleted(&world, &options);
                *outcomes.entry(exists).or_insert(0) += 1;
            }
        }
        assert_eq!(outcomes.len(), 2, "{outcomes:?}");
        assert_eq!(sim.violations(), Vec::<String>::new());
    }
}

#[test]
fn a_reader_hides_the_topic_before_an_open_removes_its_files() {
    let (world, sim, _) = World::simulated();
    let store = filled(&world, &small());
    let begin = sim.operations();
    sim.freeze_at_each(begin..begin + 2000);
    store.remove_topic("orders").unwrap();
    for (_, state) in sim.take_all_frozen() {
        let world = world.on(Arc::new(state.kill().unwrap()));
        let reader = world.open(OpenMode::Read, &small()).unwrap();
        if reader.topics().unwrap().len() == 2 {
            assert_eq!(read_all(&reader, "orders", 0), old_messages(13));
            continue;
        }
        assert_eq!(
            (reader.topics().unwrap(), found_by_key(&reader, "orders")),
            (vec!["other".to_owned()], 0)
        );
        assert!(matches!(reader.bounds("orders", 0), Err(StoreError::TopicNotFound { .. })));
    }
}

#[test]
fn readers_that_have_not_read_a_queue_yet_follow_a_deletion() {
    let (world, _, _) = World::simulated();
    let options = small();
    let store = filled(&world, &options);
    let log_reader =
        || Store::open_log(world.vfs.clone(), world.clock.clone(), &world.path, &options).unwrap();
    let (readers, later) = ([log_reader(), log_reader()], log_reader());
    let in_log = |reader: &Store| reader.log().scan(None).unwrap().next_batch(usize::MAX).unwrap().len();
    assert_eq!(readers.each_ref().map(in_log), [15, 15]);
    store.remove_topic("orders").unwrap();
    assert_eq!(readers.each_ref().map(in_log), [1, 1]);
    assert_eq!(readers[0].topics().unwrap(), ["other"]);
    store.create_topic("orders", 2, &[]).unwrap();
    put(&store, "orders", 0, b"new", "k");
    for reader in readers.iter().chain([&later]) {
        assert_eq!((read_all(reader, "orders", 0), in_log(reader)), (vec![(20, b"new".to_vec())], 2));
        assert_eq!(reader.bounds("orders", 1).unwrap(), (10, 10));
    }
    store.remove_topic("orders").unwrap();
    store.close().unwrap();
    assert_eq!(readers.each_ref().map(in_log), [1, 1]);
}

#[test]
fn a_rebuild_needs_no_entries_for_deleted_records() {
    let (world, sim, _) = World::simulated();
    let store = filled(&world, &small());
    store.remove_topic("orders").unwrap();
    store.rebuild(&mut |_: Progress| Ok(())).unwrap();
    drop(store);
    rebuild(&world, &small());
    verify_clean(&world, &small());
    let store = world.open(OpenMode::ReadWrite, &small()).unwrap();
    assert_eq!(store.notes(), Vec::<String>::new());
    put(&store, "other", 0, b"more", "k");
    let world = world.on(Arc::new(sim.kill().unwrap()));
    let store = world.open(OpenMode::ReadWrite, &small()).unwrap();
    assert_eq!(store.notes(), Vec::<String>::new());
    assert_eq!(found_by_key(&store, "other"), 2);
    store.close().unwrap();
    expect_deleted_without(&world);
}

fn expect_deleted_without(world: &World) {
    let reader = world.open(OpenMode::Read, &small()).unwrap();
    assert_eq!((reader.topics().unwrap(), found_by_key(&reader, "orders")), (vec!["other".to_owned()], 0));
}

/// A broker does not know the floor: its queue of a new topic begins at offset 0.
#[test]
fn a_queue_with_smaller_offsets_keeps_its_messages() {
    let (world, sim, _) = World::simulated();
    let store = filled(&world, &small());
    store.remove_topic("orders").unwrap();
    store.close().unwrap();
    // As if a broker had appended: a store that lost its metadata, and with it the floor.
    let files = world.files();
    let meta = sim.list(&files.meta()).unwrap().pop().unwrap().name;
    let kept = sim.read_file(&files.meta().join(&meta), 1 << 20).unwrap();
    sim.remove_dir_all(&files.meta()).unwrap();
    sim.remove_dir_all(&files.consume_queue()).unwrap();
    let salvage = StoreOptions { recovery: RecoveryMode::Salvage, ..small() };
    let store = world.open(OpenMode::ReadWrite, &salvage).unwrap();
    assert_eq!(read_all(&store, "orders", 0), old_messages(13), "without the floor, the messages are back");
    put(&store, "orders", 0, b"of a broker", "k");
    store.close().unwrap();
    let _ = sim.remove_dir_all(&files.meta());
    files.ensure_folder(&files.meta()).unwrap();
    sim.create_new(&files.meta().join(&meta)).unwrap().write_all_at(&kept, 0).unwrap();
    for derived in [true, false] {
        let store = world.open(OpenMode::ReadWrite, &small()).unwrap();
        store.create_topic("orders", 2, &[]).unwrap();
        assert_eq!(read_all(&store, "orders", 0).last().unwrap().1, b"of a broker", "{derived}");
        assert_eq!(store.bounds("orders", 0).unwrap(), (13, 14));
        store.close().unwrap();
        verify_clean(&world, &small());
        rebuild(&world, &small());
    }
}

/// A log that loses its end gives the log offsets before the floor to new records, which must not be hidden.
#[test]
fn a_floor_after_the_end_of_the_log_moves_to_the_end() {
    let (world, sim, _) = World::simulated();
    let store = filled(&world, &small());
    store.remove_topic("orders").unwrap();
    store.close().unwrap();
    let files = world.files();
    for folder in [files.commit_log(), files.consume_queue(), files.index()] {
        SimVfs::remove_dir_all(&sim, &folder).unwrap();
    }
    sim.create_dir(&files.commit_log()).unwrap();
    for mark in ["state.a", "state.b", "queues"] {
        let _ = sim.remove_file(&files.side().join(mark));
    }
    let store = world.open(OpenMode::ReadWrite, &small()).unwrap();
    let first = put(&store, "orders", 0, b"new", "k");
    assert_eq!((first.commit_log_offset, first.queue_offset), (0, 20));
    store.close().unwrap();
    let store = world.open(OpenMode::Read, &small()).unwrap();
    assert_eq!(
        (read_all(&store, "orders", 0), found_by_key(&store, "orders")),
        (vec![(20, b"new".to_vec())], 1)
    );
}

#[test]
fn a_message_that_had_chosen_its_topic_is_refused() {
    let world = World::real();
    let options = StoreOptions { dispatch_threads: Some(1), ..small() };
    let store = world.open(OpenMode::Create, &options).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut appended = 0;
            for _ in 0..3000 {
                let message = crate::testing::plain("orders", b"x");
                match store.append(&message) {
                    Ok(_) => appended += 1,
                    Err(StoreError::TopicNotFound { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            appended
        });
        while !writer.is_finished() {
            match store.remove_topic("orders") {
                Ok(()) | Err(StoreError::TopicNotFound { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert!(writer.join().unwrap() > 0);
    });
    put(&store, "orders", 0, b"last", "k");
    let known = read_all(&store, "orders", 0);
    assert_eq!(known.last().unwrap().1, b"last");
    store.close().unwrap();
    verify_clean(&world, &options);
    let store = world.open(OpenMode::ReadWrite, &options).unwrap();
    assert_eq!(read_all(&store, "orders", 0), known);
}

#[test]
fn a_reader_that_cannot_read_the_topics_finds_every_message_later() {
    let (world, vfs, _) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    store.create_topic("other", 1, &[]).unwrap();
    let put_some = |numbers: std::ops::Range<u32>| {
        for number in numbers {
            put(&store, "orders", 0, number.to_string().as_bytes(), "key");
        }
    };
    put_some(0..3);
    store.remove_topic("other").unwrap();
    let reader = world.open(OpenMode::Read, &small()).unwrap();
    assert_eq!(read_all(&reader, "orders", 0).len(), 3);
    // The topics change, but no floor does, so that the queues need not be read again.
    store.create_topic("other", 1, &[]).unwrap();
    put_some(3..5);
    let meta = world.files().meta();
    vfs.inject(Fault::nth(1).on(&[OperationKind::List, OperationKind::Read]).under(&meta).sticky());
    assert!(reader.read("orders", 0, None, None, None).is_err());
    vfs.clear_faults();
    let seen: Vec<_> = read_all(&reader, "orders", 0).into_iter().map(|(offset, _)| offset).collect();
    assert_eq!(seen, [0, 1, 2, 3, 4]);
    store.close().unwrap();
}
