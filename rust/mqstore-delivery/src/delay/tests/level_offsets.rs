//! The offsets of delay levels, without a usable `delayOffset.json`.

use std::path::{Path, PathBuf};

use mqstore_format::SCHEDULE_TOPIC;
use mqstore_format::properties::{DELAY, PropertiesBuilder, UNIQ_KEY};

use super::*;

fn config(name: &str) -> PathBuf {
    Path::new("/data/store/config").join(name)
}

fn write(world: &SimStore, name: &str, text: &str) {
    world.vfs.create_dir_all(Path::new("/data/store/config")).unwrap();
    let _ = world.vfs.remove_file(&config(name));
    world.vfs.create_new(&config(name)).unwrap().write_all_at(text.as_bytes(), 0).unwrap();
}

/// Appends a record with these properties, as a broker makes it: one that waits, or the delivery of one.
fn put(store: &Store, (topic, queue_id): (&str, i32), text: &str, key: &str, real: (&str, &str)) {
    let mut properties = PropertiesBuilder::new();
    for (name, value) in [(UNIQ_KEY, key), (REAL_TOPIC, real.0), (REAL_QID, real.1)] {
        properties.push_reserved(name, value).unwrap();
    }
    if topic == SCHEDULE_TOPIC {
        properties.push_reserved(DELAY, &(queue_id + 1).to_string()).unwrap();
    }
    let properties = properties.finish();
    let new =
        NewMessage { unique_key: Some(key), queue_id: Some(queue_id), ..message(topic, text, &properties) };
    store.append(&new).unwrap();
}

/// Returns the store of a broker: five messages wait in level 1 and two in level 3. The broker has delivered the first
/// three and the first one. The last message of level 1 has the key of an earlier one, which a producer sent again.
fn brokers_store() -> SimStore {
    let world = SimStore::new();
    let store = world.open();
    store.create_topic(SCHEDULE_TOPIC, 3, &[]).unwrap();
    store.create_topic("t", 1, &[]).unwrap();
    let keys = [("one", 0), ("two", 0), ("three", 0), ("four", 0), ("other", 2), ("last", 2), ("one", 0)];
    for (key, queue_id) in keys {
        put(&store, (SCHEDULE_TOPIC, queue_id), key, key, ("t", "0"));
    }
    // Messages that are no deliveries.
    put(&store, ("t", 0), "four", "four", ("another", "0"));
    crate::testing::put(&store, "t", 0, "plain", "T");
    for key in ["one", "two", "three", "other"] {
        put(&store, ("t", 0), key, key, ("t", "0"));
    }
    store.close().unwrap();
    for part in ["mqstore/delays", "config/delayOffset.json"] {
        let _ = world.vfs.remove_file(&Path::new("/data/store").join(part));
    }
    world
}

/// Opens the store, waits, and returns the messages that were delivered, and the notes.
fn delivered(world: &SimStore) -> (Vec<String>, Vec<String>) {
    let store = world.open();
    let before = read(&store, "t").len();
    let broker = broker(&store);
    let notes = store.notes();
    pass(world, &store, 60_000, 1_000);
    let mut all = bodies(&read(&store, "t")).split_off(before);
    all.sort();
    assert_eq!(broker.delay_counts().unwrap().pending, 0);
    store.close().unwrap();
    drop(broker);
    (all, notes)
}

#[test]
fn the_log_shows_what_a_broker_delivered() {
    for text in [
        None,
        Some(""),
        Some("{"),
        Some("\0\0\0\0"),
        Some(r#"{"offsetTable":{1:2,3:"#),
        // The broker stopped before it wrote the last offsets.
        Some(r#"{"offsetTable":{1:1,3:0}}"#),
    ] {
        let world = brokers_store();
        if let Some(text) = text {
            write(&world, "delayOffset.json", text);
        }
        let (all, notes) = delivered(&world);
        assert_eq!(all, ["four", "last", "one"], "{text:?}");
        assert!(
            notes.iter().any(|note| note.contains("they are not delivered again")),
            "{text:?}: {notes:?}"
        );
        let is_damaged = text.is_some_and(|text| !text.ends_with('}'));
        let told = notes.iter().filter(|note| note.contains("delayOffset.json: damaged")).count();
        assert_eq!(told, usize::from(is_damaged), "{text:?}: {notes:?}");
        // The offsets are saved, and the file is whole.
        assert_eq!(delivered(&world), (Vec::new(), Vec::new()), "{text:?}");
        let saved = world.vfs.read_file(&config("delayOffset.json"), 1 << 20).unwrap();
        let saved = mqstore_format::json::DelayOffsets::parse(&saved).unwrap();
        assert_eq!(saved.table, [(1, 5), (2, 0), (3, 2)].into());
    }
}

/// A broker that delivers asynchronously may stop between two deliveries.
#[test]
fn an_undelivered_message_before_a_delivered_one_is_delivered() {
    let world = brokers_store();
    let store = world.open();
    put(&store, ("t", 0), "last", "last", ("t", "0"));
    put(&store, (SCHEDULE_TOPIC, 0), "five", "five", ("t", "0"));
    put(&store, ("t", 0), "five", "five", ("t", "0"));
    store.close().unwrap();
    let (all, _) = delivered(&world);
    assert_eq!(all, ["four", "one"]);
    assert_eq!(delivered(&world).0, Vec::<String>::new());
}

#[test]
fn the_saved_state_counts_if_the_file_is_lost() {
    for text in [None, Some(""), Some(r#"{"offsetTable":{1:0"#)] {
        let world = SimStore::new();
        let store = world.open();
        let broker = broker(&store);
        for text in ["one", "two"] {
            later(&broker, "t", text, Due::Level(1));
        }
        later(&broker, "t", "three", Due::Level(3));
        pass(&world, &store, 2_000, 500);
        store.close().unwrap();
        drop(broker);
        match text {
            None => world.vfs.remove_file(&config("delayOffset.json")).unwrap(),
            Some(text) => write(&world, "delayOffset.json", text),
        }
        assert_eq!(delivered(&world).0, ["three"], "{text:?}");
        assert!(world.vfs.stat(&config("delayOffset.json")).is_ok());
    }
}
