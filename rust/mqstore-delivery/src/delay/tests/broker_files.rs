//! The files that a broker wrote, and the files that a broker would read.

use mqstore_format::delays::timer::{TIMER_UNIT_BYTES, TimerCheckpoint, TimerEntry, TimerSlot, slot_time_ms};
use mqstore_format::properties::{PropertiesBuilder, TIMER_DEL_UNIQKEY, UNIQ_KEY};

use super::*;

/// Appends a timer record as a broker makes it.
fn put(store: &Store, text: &str, key: &str, due_ms: i64, more: &[(&str, &str)]) -> Appended {
    let mut properties = PropertiesBuilder::new();
    let out = slot_time_ms(due_ms).to_string();
    let all = [(UNIQ_KEY, key), (TIMER_OUT_MS, &out), (REAL_TOPIC, "t"), (REAL_QID, "0")];
    for (name, value) in all.into_iter().chain(more.iter().copied()) {
        properties.push_reserved(name, value).unwrap();
    }
    let properties = properties.finish();
    let new =
        NewMessage { unique_key: Some(key), queue_id: Some(0), ..message(TIMER_TOPIC, text, &properties) };
    store.append(&new).unwrap()
}

#[test]
fn a_brokers_message_comes_at_the_end_of_its_slot_and_its_deletions_count() {
    let world = SimStore::new();
    let store = world.open();
    put(&store, "kept", "K1", BEGIN_MS + 2_500, &[]);
    for (text, key) in [("old form", "K2"), ("new form", "K3"), ("unwritten", "K4")] {
        put(&store, text, key, BEGIN_MS + 2_500, &[]);
    }
    put(&store, "0", "D1", BEGIN_MS + 2_500, &[(TIMER_DEL_UNIQKEY, "t+K2")]);
    let broker = broker(&store);
    pass(&world, &store, 500, 500);
    put(&store, "0", "D2", BEGIN_MS + 2_500, &[(TIMER_DEL_UNIQKEY, "K3")]);
    pass(&world, &store, 1_000, 1_000);
    put(&store, "0", "D3", BEGIN_MS + 2_500, &[(TIMER_DEL_UNIQKEY, "K4")]);
    pass(&world, &store, 1_499, 1_499);
    assert!(read(&store, "t").is_empty());
    pass(&world, &store, 1, 1);
    assert_eq!(bodies(&read(&store, "t")), ["kept"]);
    assert_eq!(broker.delay_counts().unwrap().pending, 0);
}

#[test]
fn wheel_log_and_checkpoint_are_as_a_broker_writes_them() {
    let world = SimStore::new();
    let store = world.open();
    let broker = broker(&store);
    let first = later(&broker, "t1", "a", Due::At(BEGIN_MS + 5_500));
    let second = later(&broker, "t1", "b", Due::At(BEGIN_MS + 6_000));
    store.close().unwrap();
    let file =
        |name: &str| world.vfs.read_file(&std::path::Path::new("/data/store").join(name), 64 << 20).unwrap();
    let wheel = file("timerwheel");
    assert_eq!(wheel.len(), 38_707_200);
    let slot = TimerSlot { time: 1_700_000_005, first: 0, last: 52, count: 2, magic: 0 };
    assert_eq!(wheel[16_384_160..][..32], slot.encode());
    let log = file("timerlog/00000000000000000000");
    let units: Vec<_> = log.as_chunks::<TIMER_UNIT_BYTES>().0[..3].to_vec();
    for (unit, (own, previous, done)) in units.iter().zip([(0, -1, &first), (52, 0, &second)]) {
        let TimerEntry::Unit(unit) = TimerEntry::decode(unit, own) else { panic!("no unit") };
        assert_eq!((unit.previous, unit.write_ms, unit.delay_ms), (previous, BEGIN_MS, 5_000));
        assert_eq!(unit.physical_offset, done.commit_log_offset as i64);
        assert_eq!((unit.size, unit.topic_hash), (done.size as i32, 3645));
    }
    assert_eq!(TimerEntry::decode(&units[2], 104), TimerEntry::Empty);
    let check = file("config/timercheck");
    assert_eq!(check.len(), 4096);
    let check = TimerCheckpoint::decode(&check);
    assert_eq!(check.last_read_time_ms, BEGIN_MS);
    assert_eq!((check.last_timer_log_flush_pos, check.last_timer_queue_offset), (104, 2));
    assert_eq!(check.master_timer_queue_offset, 2);
}

#[test]
fn a_directory_that_a_broker_used_last_goes_on_where_the_broker_stood() {
    let world = SimStore::new();
    let store = world.open();
    let broker = broker(&store);
    for number in 0..6 {
        later(&broker, "t", &number.to_string(), Due::At(BEGIN_MS + 1_500 + number * 1_000));
    }
    let cancelled = later(&broker, "t", "cancelled", Due::At(BEGIN_MS + 6_600));
    assert!(broker.cancel(cancelled.unique_id.as_str()).unwrap());
    store.close().unwrap();
    drop(broker);
    // The broker delivers the messages of the first two seconds, and one more that its saved state does not cover.
    let store = world.open();
    let sources = read(&store, TIMER_TOPIC);
    for source in &sources[..3] {
        let view = source.view().unwrap();
        let mut properties = view.properties.raw().to_vec();
        properties.truncate(properties.len() - 20);
        properties.extend_from_slice(b"TIMER_DEQUEUE_MS\x011700000003000\x02");
        let copy = NewMessage {
            topic: "t",
            body: view.body,
            properties: &properties,
            unique_key: view.unique_key(),
            queue_id: Some(0),
            flag: 0,
            born_timestamp_ms: None,
            durable: false,
            ..NewMessage::default()
        };
        store.append(&copy).unwrap();
    }
    store.close().unwrap();
    let path = std::path::Path::new("/data/store/config/timercheck");
    let check = TimerCheckpoint::decode(&world.vfs.read_file(path, 4096).unwrap());
    let check = TimerCheckpoint { last_read_time_ms: BEGIN_MS + 3_000, counter: 99, ..check };
    let file = world.vfs.open(path, mqstore_io::Access::ReadWrite).unwrap();
    file.write_all_at(&check.encode_fields(), 0).unwrap();
    let store = world.open();
    let broker = self::broker(&store);
    assert_eq!(broker.delay_counts().unwrap().pending, 3);
    pass(&world, &store, 10_000, 500);
    let mut all = bodies(&read(&store, "t"));
    all.sort();
    assert_eq!(all, ["0", "1", "2", "3", "4", "5"]);
    assert_eq!(broker.delay_counts().unwrap().pending, 0);
}
