//! Custom tables of delay levels.

use std::collections::BTreeMap;

use mqstore_base::error::StoreError;
use mqstore_base::options::{OpenMode, StoreOptions};
use mqstore_base::progress::Progress;
use mqstore_base::store_files::{DelayTables, StoreFiles};
use mqstore_format::delays::pending::WaitingRecord;
use mqstore_format::{DelayLevels, SCHEDULE_TOPIC};
use mqstore_inspect::rebuild;
use mqstore_inspect::verify;
use std::path::{Path, PathBuf};

use super::*;
use crate::testing::small;
use crate::{PendingDelays, WorkQueueOptions};

const ROOT: &str = "/data/store";

fn with(table: &str) -> StoreOptions {
    StoreOptions { delay_levels: Some(DelayLevels::parse(table).unwrap()), ..small() }
}

fn files(world: &SimStore) -> StoreFiles {
    StoreFiles::new(Arc::new(world.vfs.clone()), world.clock.clone(), Path::new(ROOT))
}

fn no_problems(world: &SimStore) {
    let report = verify(&files(world), &StoreOptions::default(), &mut |_: Progress| Ok(())).unwrap();
    assert!(report.ok, "{:?}", report.problems);
}

/// Returns every queue file that has an entry, by its path.
fn queue_files(world: &SimStore) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![Path::new(ROOT).join("consumequeue")];
    while let Some(folder) = folders.pop() {
        for entry in world.vfs.list(&folder).unwrap() {
            let path = folder.join(&entry.name);
            if entry.stat.kind == mqstore_io::FileKind::Directory {
                folders.push(path);
                continue;
            }
            let bytes = world.vfs.read_file(&path, 1 << 20).unwrap();
            if bytes.iter().any(|byte| *byte > 0) {
                found.insert(path, bytes);
            }
        }
    }
    found
}

fn due_times(store: &Store, queue_id: i32) -> Vec<i64> {
    let (min, max) = store.bounds(SCHEDULE_TOPIC, queue_id).unwrap();
    (min..max)
        .map(|offset| store.level_times().unwrap().due_ms(queue_id, offset).unwrap().unwrap() - BEGIN_MS)
        .collect()
}

#[test]
fn messages_wait_by_the_table_that_was_given_and_it_is_remembered() {
    let world = SimStore::new();
    let store = world.try_open(&with("3s 1m")).unwrap();
    let broker = broker(&store);
    for (text, level) in [("one", 1), ("two", 2), ("above", 7)] {
        assert_eq!(later(&broker, "t", text, Due::Level(level)).queue_id, level.min(2) - 1);
    }
    assert_eq!(store.queue_ids(SCHEDULE_TOPIC).unwrap(), [0, 1]);
    assert_eq!((due_times(&store, 0), due_times(&store, 1)), (vec![3_000], vec![60_000; 2]));
    store.step().unwrap();
    pass(&world, &store, 2_999, 2_999);
    assert!(read(&store, "t").is_empty());
    pass(&world, &store, 1, 1);
    assert_eq!(bodies(&read(&store, "t")), ["one"]);
    store.close().unwrap();
    drop(broker);
    no_problems(&world);
    // From here on no open sets the levels.
    let store = world.open();
    let broker = self::broker(&store);
    later(&broker, "t", "three", Due::Level(1));
    store.step().unwrap();
    let pending = PendingDelays::of(&store).unwrap().levels;
    assert_eq!((pending.messages, pending.first_due_ms), (3, Some(BEGIN_MS + 6_000)));
    pass(&world, &store, 3_000, 500);
    pass(&world, &store, 53_999, 53_999);
    assert_eq!(bodies(&read(&store, "t")), ["one", "three"]);
    pass(&world, &store, 1, 1);
    let all = read(&store, "t");
    assert_eq!(bodies(&all), ["one", "three", "two", "above"]);
    assert_eq!(all[3].view().unwrap().properties.get("DELAY"), Some("2"));
    store.close().unwrap();
    no_problems(&world);
}

#[test]
fn another_table_counts_for_what_comes_and_shortens_what_waits() {
    let world = SimStore::new();
    let store = world.try_open(&with("1h 2s 5m")).unwrap();
    let broker = broker(&store);
    for (text, level) in [("hour", 1), ("seconds", 2), ("gone", 3)] {
        later(&broker, "t", text, Due::Level(level));
    }
    store.close().unwrap();
    drop(broker);
    let before = queue_files(&world);
    // Now the first level is shorter, the second is longer, and the third no longer exists.
    advance(&world.clock, 500);
    let store = world.try_open(&with("10s 1h")).unwrap();
    let broker = self::broker(&store);
    later(&broker, "t", "ten", Due::Level(1));
    later(&broker, "t", "later", Due::Level(2));
    store.flush().unwrap();
    assert_eq!(due_times(&store, 0), [10_000, 10_500]);
    assert_eq!(due_times(&store, 1), [2_000, 3_600_500]);
    assert_eq!(due_times(&store, 2), [300_000]);
    for (path, bytes) in &before {
        let now = world.vfs.read_file(path, 1 << 20).unwrap();
        let units = |bytes: &[u8]| {
            bytes.chunks(20).filter(|unit| unit[11] > 0).map(<[u8]>::to_vec).collect::<Vec<_>>()
        };
        assert!(units(&now).starts_with(&units(bytes)), "{path:?}");
    }
    let mut expected = Vec::new();
    let due =
        [("seconds", 2_000), ("hour", 10_000), ("ten", 10_500), ("gone", 300_000), ("later", 3_600_500)];
    for (body, due_ms) in due {
        for ms in [due_ms - 1, due_ms] {
            let left = BEGIN_MS + ms - world.clock.now_ms();
            pass(&world, &store, left as u64, left as u64);
            expected.extend((ms == due_ms).then_some(body));
            assert_eq!(bodies(&read(&store, "t")), expected, "after {ms} ms");
        }
    }
    store.close().unwrap();
    no_problems(&world);
}

/// Opens the store once with each table, and appends a message of each of three levels. The body is the table.
fn use_tables(world: &SimStore, tables: [&str; 3]) {
    for table in tables {
        let store = world.try_open(&with(table)).unwrap();
        let broker = broker(&store);
        for level in [1, 2, 3] {
            later(&broker, "t", table, Due::Level(level));
        }
        store.close().unwrap();
    }
}

#[test]
fn queues_are_made_again_as_they_were_also_after_a_change_of_the_table() {
    let world = SimStore::new();
    use_tables(&world, ["1h 2s", "7s", "1m 1m 1m"]);
    let before = queue_files(&world);
    assert_eq!(before.len(), 3);
    rebuild(&files(&world), &StoreOptions::default(), false, &mut |_| Ok(())).unwrap();
    assert_eq!(queue_files(&world), before);
    no_problems(&world);
    // A reader derives the same if the files are missing.
    let store = world.open();
    let due: Vec<Vec<i64>> = (0..3).map(|queue_id| due_times(&store, queue_id)).collect();
    assert_eq!(due[0], [60_000, 7_000, 7_000, 7_000, 60_000]);
    store.close().unwrap();
    world.vfs.remove_dir_all(&Path::new(ROOT).join("consumequeue")).unwrap();
    let vfs: Arc<dyn Vfs> = Arc::new(world.vfs.clone());
    let reader = Store::open(vfs, world.clock.clone(), Path::new(ROOT), OpenMode::Read, &small()).unwrap();
    let derived: Vec<Vec<i64>> = (0..3).map(|queue_id| due_times(&reader, queue_id)).collect();
    assert_eq!(derived, due);
    for record in read(&reader, SCHEDULE_TOPIC) {
        let levels = reader.delay_tables().at(record.commit_log_offset);
        let view = record.view().unwrap();
        let Some(WaitingRecord::Level(level)) = WaitingRecord::of(&view, levels) else { panic!("{view:?}") };
        assert!(reader.level_times().unwrap().due_of(&record).unwrap().unwrap() <= level.due_ms);
    }
}

#[test]
fn a_stop_anywhere_keeps_the_table_of_each_message() {
    for (call, vfs) in crashes::stops(200, |world| use_tables(world, ["1h 2s", "7s", "1m 5m 9s"])) {
        for (how, vfs) in [("kill", vfs.kill().unwrap()), ("power", vfs.crash(call).unwrap())] {
            let world = SimStore { vfs, clock: Arc::new(ManualClock::new(BEGIN_MS + 900)) };
            let store = world.open();
            later(&broker(&store), "t", &store.delay_tables().latest().to_string(), Due::Level(1));
            let mut cursor = store.log().scan(None).unwrap();
            for record in cursor.next_batch(100).unwrap() {
                let view = record.view().unwrap();
                let table = String::from_utf8(view.body.to_vec()).unwrap();
                let of_record = store.delay_tables().at(record.commit_log_offset);
                if view.topic == SCHEDULE_TOPIC {
                    assert_eq!(of_record.to_string(), table, "{how} at call {call}");
                }
            }
            store.close().unwrap();
            no_problems(&world);
            let before = queue_files(&world);
            rebuild(&files(&world), &StoreOptions::default(), false, &mut |_| Ok(())).unwrap();
            assert_eq!(queue_files(&world), before, "{how} at call {call}");
        }
    }
}

#[test]
fn what_a_broker_wrote_by_a_table_that_nobody_told_waits_as_its_entries_say() {
    let world = SimStore::new();
    let store = world.try_open(&with("4h 9s")).unwrap();
    let broker = broker(&store);
    later(&broker, "t", "one", Due::Level(1));
    later(&broker, "t", "two", Due::Level(2));
    store.close().unwrap();
    drop(broker);
    world.vfs.remove_file(&Path::new(ROOT).join("mqstore/delay-levels")).unwrap();
    no_problems(&world);
    let store = world.open();
    assert_eq!(*store.delay_tables(), DelayTables::default());
    let broker = self::broker(&store);
    assert_eq!((due_times(&store, 0), due_times(&store, 1)), (vec![14_400_000], vec![9_000]));
    pass(&world, &store, 14_399_999, 14_399_999);
    assert_eq!(bodies(&read(&store, "t")), ["two"]);
    pass(&world, &store, 1, 1);
    assert_eq!(bodies(&read(&store, "t")), ["two", "one"]);
    drop(broker);
    store.close().unwrap();
}

#[test]
fn an_entry_that_cannot_be_right_keeps_nobody_waiting() {
    let world = SimStore::new();
    let store = world.try_open(&with("9s")).unwrap();
    let broker = broker(&store);
    later(&broker, "t", "one", Due::Level(1));
    store.close().unwrap();
    drop(broker);
    let path = Path::new(ROOT).join("consumequeue").join(SCHEDULE_TOPIC).join("0").join("0".repeat(20));
    let file = world.vfs.open(&path, mqstore_io::Access::ReadWrite).unwrap();
    // Years later, and by some milliseconds.
    file.write_all_at(&[2], 14).unwrap();
    file.sync_data().unwrap();
    let report = verify(&files(&world), &StoreOptions::default(), &mut |_: Progress| Ok(())).unwrap();
    let kinds: Vec<&str> = report.problems.iter().map(|problem| problem.kind).collect();
    assert_eq!(kinds, ["queue_entry_wrong"]);
    let store = world.open();
    let broker = self::broker(&store);
    pass(&world, &store, 9_000, 9_000);
    assert_eq!(bodies(&read(&store, "t")), ["one"]);
    drop(broker);
    store.close().unwrap();
}

#[test]
fn a_level_is_not_early_where_its_message_is_a_little_newer_than_the_clock() {
    let world = SimStore::new();
    let store = world.open();
    let broker = broker(&store);
    later(&broker, "t", "a second", Due::Level(1));
    // Less than its delay: as if the clock had been read before the message was stored.
    world.clock.set(BEGIN_MS - 900);
    pass(&world, &store, 1_899, 1);
    assert!(read(&store, "t").is_empty());
    pass(&world, &store, 1, 1);
    assert_eq!(bodies(&read(&store, "t")), ["a second"]);
    // More than its delay: the message would wait for as long as the clock went back.
    later(&broker, "t", "at once", Due::Level(1));
    world.clock.set(BEGIN_MS - 86_400_000);
    store.step().unwrap();
    assert_eq!(bodies(&read(&store, "t")), ["a second", "at once"]);
}

#[test]
fn retries_wait_by_the_table_of_the_store() {
    let world = SimStore::new();
    let store = world.try_open(&with("1s 2s 7s 1m")).unwrap();
    let broker = broker(&store);
    let queue = broker.work_queue("t", "g", WorkQueueOptions::default()).unwrap();
    crate::testing::put(&store, "t", 0, "work", "T");
    for wait_ms in [7_000, 60_000, 60_000] {
        let lease = queue.get(Some(Duration::ZERO)).unwrap();
        lease.lease.nack(None).unwrap();
        advance(&world.clock, wait_ms - 1);
        assert!(queue.get(Some(Duration::ZERO)).is_err());
        advance(&world.clock, 1);
    }
}

#[test]
fn tables_out_of_bounds_are_refused() {
    let world = SimStore::new();
    let many = ["1s"; 257].join(" ");
    for (table, told) in [(many.as_str(), "257 levels"), ("1s 36501d", "36500 days")] {
        let error = world.try_open(&with(table)).err().unwrap();
        let StoreError::InvalidOption { option: "delay_levels", reason } = &error else { panic!("{error}") };
        assert!(reason.contains(told), "{reason}");
    }
    assert!(world.try_open(&with(&["1s"; 256].join(" "))).is_ok());
}
