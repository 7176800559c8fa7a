//! Topics with batch queues: several messages in one record, found by each of their offsets.

use mqstore_format::{Compression, SysFlag, decode_batch};
use mqstore_io::{SimVfs, Vfs};

use crate::Store;
use crate::testing::{World, body, message, plain, small};
use mqstore_base::error::StoreError;
use mqstore_base::message::{Appended, NewMessage, encode_properties};
use mqstore_base::options::{OpenMode, StoreOptions};

const TOPIC: &str = "batched";

fn create(world: &World, options: &StoreOptions) -> Store {
    let store = world.open(OpenMode::Create, options).unwrap();
    store.create_topic(TOPIC, 2, &[("queue.type".to_owned(), "BatchCQ".to_owned())]).unwrap();
    store
}

fn put(store: &Store, queue_id: i32, bodies: &[&[u8]]) -> Vec<Appended> {
    let messages: Vec<NewMessage<'_>> =
        bodies.iter().map(|body| message(TOPIC, Some(queue_id), body, &[])).collect();
    store.append_many(&messages).unwrap()
}

/// Returns the records of a queue from `start` on: the offset of each record and the bodies in it.
fn read(store: &Store, queue_id: i32, start: Option<i64>) -> Vec<(i64, Vec<Vec<u8>>)> {
    let mut cursor = store.read(TOPIC, queue_id, start, None, None).unwrap();
    let mut found = Vec::new();
    loop {
        let records = cursor.next_batch(2).unwrap();
        if records.is_empty() {
            return found;
        }
        found.extend(records.iter().map(|record| {
            let view = record.view().unwrap();
            let bodies = if view.sys_flag.inner_batch() {
                decode_batch(view.body).map(|item| item.unwrap().body.to_vec()).collect()
            } else {
                vec![body(record)]
            };
            (record.queue_offset, bodies)
        }));
    }
}

fn texts(bodies: &[&[u8]]) -> Vec<Vec<u8>> {
    bodies.iter().map(|body| body.to_vec()).collect()
}

#[test]
fn one_call_is_one_record_that_takes_an_offset_for_each_message() {
    let (world, ..) = World::simulated();
    let store = create(&world, &small());
    let first = put(&store, 0, &[b"a", b"b", b"c"]);
    assert_eq!(first.iter().map(|one| one.queue_offset).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(first.iter().all(|one| one.commit_log_offset == first[0].commit_log_offset));
    let single = store.append(&plain(TOPIC, b"d")).unwrap();
    assert_eq!(single.queue_offset, 3);
    let second = put(&store, 0, &[b"e", b"f"]);
    assert_eq!((second[0].queue_offset, second[1].queue_offset), (4, 5));
    assert_eq!(put(&store, 1, &[b"x"])[0].queue_offset, 0);

    let expected = [(0, texts(&[b"a", b"b", b"c"])), (3, texts(&[b"d"])), (4, texts(&[b"e", b"f"]))];
    assert_eq!(read(&store, 0, None), expected);
    // A read that begins inside a record returns the whole record.
    for (start, skipped) in [(0, 0), (1, 0), (2, 0), (3, 1), (4, 2), (5, 2), (6, 3)] {
        assert_eq!(read(&store, 0, Some(start)), expected[skipped..], "from {start}");
    }
    let queues = store.queues(TOPIC).unwrap();
    assert_eq!((queues[0].min_offset, queues[0].max_offset), (0, 6));
    assert_eq!((queues[1].min_offset, queues[1].max_offset), (0, 1));

    // The record is the one that RocketMQ's broker makes of a batch.
    let record = store.log().get_at(first[0].commit_log_offset).unwrap();
    let view = record.view().unwrap();
    assert_eq!(view.inner_batch(), Some((0, 3)));
    assert!(view.sys_flag.inner_batch() && view.sys_flag.0 & 0x40 != 0);
    let keys: Vec<_> = decode_batch(view.body)
        .map(|item| {
            mqstore_format::Properties::new(item.unwrap().properties).get("UNIQ_KEY").unwrap().to_owned()
        })
        .collect();
    assert!(keys.iter().all(|key| key.len() == 32) && keys[0] != keys[1] && keys[1] != keys[2]);
    assert_eq!(store.get(first[1].unique_id.as_str()).unwrap().unwrap().commit_log_offset, 0);
}

#[test]
fn a_batch_is_found_by_the_keys_of_its_messages() {
    let (world, ..) = World::simulated();
    let store = create(&world, &small());
    let properties: Vec<Vec<u8>> =
        ["k1", "k2"].iter().map(|key| encode_properties([*key], Some("T"), None, []).unwrap()).collect();
    let messages: Vec<_> =
        properties.iter().map(|properties| message(TOPIC, Some(0), b"body", properties)).collect();
    store.append_many(&messages).unwrap();
    for key in ["k1", "k2"] {
        let found = store.lookup(TOPIC, key, None, None, None).unwrap().next_batch(9).unwrap();
        assert_eq!(found.len(), 1, "{key}");
    }
    let filter = mqstore_base::message::MessageFilter::tags("T").unwrap().unwrap();
    let mut cursor = store.read(TOPIC, 0, None, None, Some(&filter)).unwrap();
    assert_eq!(cursor.next_batch(9).unwrap().len(), 1);
}

#[test]
fn what_cannot_be_one_record_is_refused() {
    let (world, ..) = World::simulated();
    let store = create(&world, &small());
    let mixed = [plain(TOPIC, b"a"), plain("other", b"b")];
    assert!(matches!(store.append_many(&mixed), Err(StoreError::InvalidMessage { .. })));
    let queues = [message(TOPIC, Some(0), b"a", &[]), message(TOPIC, Some(1), b"b", &[])];
    assert!(matches!(store.append_many(&queues), Err(StoreError::InvalidMessage { .. })));
    let many = vec![plain(TOPIC, b""); 32_768];
    let error = store.append_many(&many).unwrap_err().to_string();
    assert!(error.contains("32767"), "{error}");
    // The form of a message in a batch could not say that its body is compressed.
    let packed = NewMessage { sys_flag: SysFlag::of_compressed(Compression::Lz4), ..plain(TOPIC, b"packed") };
    let error = store.append_many(&[packed]).unwrap_err().to_string();
    assert!(error.contains("compressed"), "{error}");
    assert_eq!(put(&store, 0, &[b"still from the start"])[0].queue_offset, 0);
}

#[test]
fn batch_queues_survive_a_close_a_kill_and_the_loss_of_their_files() {
    let (world, vfs, _) = World::simulated();
    let options = small();
    let store = create(&world, &options);
    let mut expected = Vec::new();
    for number in 0..25_i64 {
        let body = number.to_string();
        put(&store, 0, &[body.as_bytes(), b"second"]);
        expected.push((2 * number, vec![body.into_bytes(), b"second".to_vec()]));
    }
    store.close().unwrap();
    // 25 units, in files with ten units each.
    let folder = world.path.join("batchconsumequeue/batched/0");
    assert_eq!(vfs.list(&folder).unwrap().len(), 3);

    let again = world.open(OpenMode::ReadWrite, &options).unwrap();
    assert_eq!(read(&again, 0, None), expected);
    assert_eq!(put(&again, 0, &[b"x", b"y", b"z"])[0].queue_offset, 50);
    expected.push((50, texts(&[b"x", b"y", b"z"])));
    again.flush().unwrap();
    assert_eq!(put(&again, 0, &[b"unsynced"])[0].queue_offset, 53);
    let killed: SimVfs = vfs.kill().unwrap();
    drop(again);

    let world = world.on(std::sync::Arc::new(killed.clone()));
    let reader = world.open(OpenMode::Read, &options).unwrap();
    let mut after = expected.clone();
    after.push((53, texts(&[b"unsynced"])));
    assert_eq!(read(&reader, 0, None), after);
    assert_eq!(read(&reader, 0, Some(51)), after[25..]);
    reader.close().unwrap();
    let store = world.open(OpenMode::ReadWrite, &options).unwrap();
    assert_eq!(read(&store, 0, None), after);
    store.close().unwrap();

    for lost in ["batchconsumequeue", "batchconsumequeue/batched/0"] {
        killed.remove_dir_all(&world.path.join(lost)).unwrap();
        let store = world.open(OpenMode::ReadWrite, &options).unwrap();
        assert_eq!(read(&store, 0, None), after, "without {lost}");
        store.close().unwrap();
    }
    killed.remove_file(&folder.join("00000000000000000460")).unwrap();
    let store = world.open(OpenMode::ReadWrite, &options).unwrap();
    assert_eq!(read(&store, 0, None), after, "without a file");
    store.close().unwrap();
    assert!(mqstore_inspect::verify(&world.files(), &options, &mut |_| Ok(())).unwrap().ok);
}

/// The twelfth unit of a file is in two sectors. If only the second sector reached the device, the unit can contain a
/// log offset that is synced and after the record of the previous unit.
#[test]
fn an_entry_made_of_two_by_a_power_loss_is_made_anew() {
    let (world, vfs, _) = World::simulated();
    let options = StoreOptions { queue_file_entries: 16, ..small() };
    let store = create(&world, &options);
    let records: Vec<_> = (0..11).map(|number| put(&store, 0, &[&[number]])[0].commit_log_offset).collect();
    let end = || store.stats().unwrap().log_max_offset;
    // The next log offset is at least 65,536; the first sector of the unit contains these higher bytes.
    while end() < (1 << 16) + records[10] + 100 {
        put(&store, 1, &[&[0; 500]]);
    }
    store.flush().unwrap();
    let synced = end();
    let place = put(&store, 0, &[&[11]])[0].commit_log_offset;
    let mixed = place % (1 << 16);
    assert!(
        records[10] < mixed && mixed < synced && synced <= place,
        "{mixed} of {place}, {synced} are synced"
    );

    let killed: SimVfs = vfs.kill().unwrap();
    let path = world.path.join("batchconsumequeue/batched/0/00000000000000000000");
    let file = killed.open(&path, mqstore_io::Access::ReadWrite).unwrap();
    file.write_all_at(&[0; 6], 512 - 6).unwrap();
    let world = world.on(std::sync::Arc::new(killed));
    let again = world.open(OpenMode::ReadWrite, &options).unwrap();
    let expected: Vec<_> = (0..12).map(|number: u8| (i64::from(number), vec![vec![number]])).collect();
    assert_eq!(read(&again, 0, None), expected);
    again.close().unwrap();
    assert!(mqstore_inspect::verify(&world.files(), &options, &mut |_| Ok(())).unwrap().ok);
}

#[test]
fn what_a_unit_cannot_say_is_found_and_ends_no_reader() {
    let (world, _, _) = World::simulated();
    let options = small();
    let store = create(&world, &options);
    for number in 0..5_u8 {
        put(&store, 0, &[&[number]]);
    }
    store.close().unwrap();
    let path = world.path.join("batchconsumequeue/batched/0/00000000000000000000");
    let file = world.vfs.open(&path, mqstore_io::Access::ReadWrite).unwrap();
    let mut whole = vec![0; 5 * 46];
    file.read_exact_at(&mut whole, 0).unwrap();
    // The store time, the largest possible offset, and an offset for which no file can have a position.
    for (at, value) in [(20, 7_i64), (28, i64::MAX), (28, i64::MAX - 1)] {
        file.write_all_at(&value.to_be_bytes(), 4 * 46 + at).unwrap();
        let found = mqstore_inspect::verify(&world.files(), &options, &mut |_| Ok(())).unwrap();
        assert!(!found.ok, "{at}: {value}");
        let reader = world.open(OpenMode::Read, &options).unwrap();
        if let Ok(mut cursor) = reader.read("batched", 0, None, None, None) {
            // Any result is accepted, but no panic.
            let _ = cursor.next_batch(100);
        }
        file.write_all_at(&whole, 0).unwrap();
    }
}
