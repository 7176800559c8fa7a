//! Snapshots contain exactly the messages appended before, and open like a closed store.

use std::path::Path;

use super::repair::{SEGMENT, segment};
use crate::SnapshotReport;
use mqstore_compaction::testing::{Broker, Sent};
use mqstore_engine::testing::*;

fn fill(store: &Store, from: u32, to: u32) {
    for number in from..to {
        put(
            store,
            "orders",
            (number % 2).cast_signed(),
            format!("{number}").as_bytes(),
            &format!("k{number}"),
        );
    }
}

fn snapshot(store: &Store, output: &Path) -> SnapshotReport {
    crate::snapshot(store, output, &mut |_| Ok(())).unwrap()
}

/// Checks that the store in `output` has the first `count` messages, is clean, and accepts appends.
fn check(world: &World, output: &Path, count: i64) {
    let copy = World { path: output.into(), ..world.on(world.vfs.clone()) };
    assert!(copy.vfs.stat(&copy.files().abort()).is_err());
    let found = crate::verify::verify(&copy.files(), &small(), &mut |_| Ok(())).unwrap();
    assert_eq!((found.problems, found.messages), (vec![], count as u64));
    for mode in [OpenMode::Read, OpenMode::ReadWrite] {
        let store = copy.open(mode, &small()).unwrap();
        assert_eq!(store.notes(), [""; 0]);
        let mut bodies: Vec<i64> = (0..2)
            .flat_map(|queue| read_all(&store, "orders", queue))
            .map(|(_, body)| String::from_utf8(body).unwrap().parse().unwrap())
            .collect();
        bodies.sort_unstable();
        assert_eq!(bodies, (0..count).collect::<Vec<_>>());
        let mut hits = store.lookup("orders", &format!("k{}", count - 1), None, None, None).unwrap();
        assert_eq!(hits.next_batch(9).unwrap().len(), 1);
        if mode == OpenMode::ReadWrite {
            assert_eq!(put(&store, "orders", 0, b"on", "on").queue_offset, (count + 1) / 2);
        }
        store.close().unwrap();
    }
}

#[test]
fn a_snapshot_holds_what_was_there_and_both_go_on() {
    let (world, _, _) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    store.create_topic("orders", 2, &[]).unwrap();
    fill(&store, 0, 300);
    let (one, two) = (Path::new("/data/one"), Path::new("/data/two"));
    let report = snapshot(&store, one);
    assert_eq!(report.messages, 300);
    assert_eq!((report.log_min_offset, report.log_max_offset), (0, store.stats().unwrap().log_max_offset));
    assert_eq!((report.linked_segments, report.copied_segments), (report.log_max_offset / SEGMENT, 1));
    fill(&store, 300, 400);
    let reader = world.open(OpenMode::Read, &small()).unwrap();
    assert_eq!(snapshot(&reader, two).messages, 400);
    reader.close().unwrap();
    assert!(matches!(crate::snapshot(&store, one, &mut |_| Ok(())), Err(StoreError::Io { .. })));
    fill(&store, 400, 450);
    store.close().unwrap();
    check(&world, one, 300);
    check(&world, two, 400);
    assert_eq!(crate::verify::verify(&world.files(), &small(), &mut |_| Ok(())).unwrap().messages, 450);
    assert!(matches!(
        crate::snapshot(&store, Path::new("/data/x"), &mut |_| Ok(())),
        Err(StoreError::Closed { .. })
    ));
    for left in ["/data/one.partial", "/data/two.partial", "/data/x.partial"] {
        assert!(world.vfs.stat(Path::new(left)).is_err(), "{left}");
    }
}

#[test]
fn who_stops_a_snapshot_leaves_nothing() {
    let (world, _, _) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    store.create_topic("orders", 2, &[]).unwrap();
    fill(&store, 0, 300);
    let stop = crate::snapshot(&store, Path::new("/data/one"), &mut |_| {
        Err(StoreError::Busy { reason: "enough".into() })
    });
    assert!(matches!(stop, Err(StoreError::Busy { .. })));
    assert!(world.vfs.list(Path::new("/data")).unwrap().iter().all(|entry| entry.name == "store"));
    store.close().unwrap();
}

/// A write or repair of a segment leaves the linked one in the snapshot unchanged.
#[test]
fn a_linked_segment_stays_as_it_was() {
    let (world, _, clock) = World::simulated();
    let options =
        StoreOptions { retention_ms: Some(1000), secure_wipe: true, delete_when: "*".into(), ..small() };
    let store = world.open(OpenMode::Create, &options).unwrap();
    store.create_topic("orders", 2, &[]).unwrap();
    fill(&store, 0, 300);
    let output = Path::new("/data/one");
    assert!(snapshot(&store, output).linked_segments > 0);
    clock.advance(std::time::Duration::from_secs(60));
    put(&store, "others", 0, b"last", "k");
    assert!(!store.expire(false, &mut || Ok(())).unwrap().files.is_empty());
    assert!(world.vfs.stat(&segment(&world, 0)).is_err());
    store.close().unwrap();
    check(&world, output, 300);
}

#[test]
fn a_snapshot_while_a_thread_appends_holds_a_prefix() {
    let world = World::real();
    let options = StoreOptions { dispatch_threads: Some(1), ..small() };
    let store = world.open(OpenMode::Create, &options).unwrap();
    store.create_topic("orders", 2, &[]).unwrap();
    fill(&store, 0, 200);
    let counts: Vec<u64> = std::thread::scope(|scope| {
        let appends = scope.spawn(|| fill(&store, 200, 3000));
        let counts =
            (0..4).map(|number| snapshot(&store, &world.path.with_extension(number.to_string())).messages);
        let counts = counts.collect();
        appends.join().unwrap();
        counts
    });
    store.close().unwrap();
    for (number, count) in counts.into_iter().enumerate() {
        assert!((200..=3000).contains(&count));
        check(&world, &world.path.with_extension(number.to_string()), count as i64);
    }
}

#[test]
fn a_copy_is_whole_or_not_there() {
    let (world, sim, _) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    store.create_topic("orders", 2, &[]).unwrap();
    fill(&store, 0, 300);
    store.close().unwrap();
    let output = Path::new("/data/one");
    let begin = sim.operations();
    sim.freeze_at_each(begin..begin + 3000);
    crate::copy_store(&world.files(), output, &mut |_| Ok(())).unwrap();
    let end = sim.operations();
    let frozen: Vec<_> =
        sim.take_all_frozen().into_iter().filter(|(operation, _)| *operation <= end).collect();
    check(&world, output, 300);
    assert!(frozen.len() > 100);
    let mut whole = 0;
    for (operation, stopped) in frozen.into_iter().rev().step_by(5) {
        let world = world.on(Arc::new(stopped.crash(operation).unwrap()));
        if world.vfs.stat(output).is_err() {
            crate::copy_store(&world.files(), output, &mut |_| Ok(())).unwrap();
        } else {
            whole += 1;
        }
        check(&world, output, 300);
    }
    assert!(whole < 3, "{whole}");
}

#[test]
fn compaction_logs_of_a_snapshot_end_with_their_units() {
    let (world, _, _) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    let mut broker = Broker::new(&world.files(), 2048, 46 * 8);
    for offset in 0..5 {
        broker.append(offset, &Sent::new(&format!("k{offset}"), "a body"));
    }
    // The writer has appended the record of the last unit, and not yet the unit.
    broker.write("compactionCq", 0, 4 * 46, &[0; 46]);
    snapshot(&store, Path::new("/data/one"));
    store.close().unwrap();
    let copy = World { path: "/data/one".into(), ..world.on(world.vfs.clone()) };
    for (files, problems) in [(world.files(), 1), (copy.files(), 0)] {
        let found = crate::verify::verify(&files, &small(), &mut |_| Ok(())).unwrap().problems;
        let found: Vec<_> = found.iter().filter(|problem| problem.kind == "compaction_entry_wrong").collect();
        assert_eq!(found.len(), problems, "{found:?}");
    }
}
