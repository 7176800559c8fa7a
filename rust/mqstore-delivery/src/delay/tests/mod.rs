//! Delayed messages on a manual clock and a simulated disk.

mod blocked_messages;
mod broker_files;
mod clock;
mod clock_steps;
mod crashes;
mod damage;
mod level_offsets;
mod levels;
mod model;
mod pending;
mod rebuild;

use std::sync::Arc;
use std::time::Duration;

use mqstore_base::message::{Appended, NewMessage, StoredRecord, encode_properties};
use mqstore_engine::Store;
use mqstore_format::delays::timer::TIMER_TOPIC;
use mqstore_format::properties::{REAL_QID, REAL_TOPIC, TIMER_DELIVER_MS, TIMER_ORIGIN_OFFSET, TIMER_OUT_MS};
use mqstore_io::{Clock, ManualClock, Vfs};

use super::{DelayOptions, Due};
use crate::Broker;
use crate::testing::{BEGIN_MS, SimStore, bodies, body};

/// Small files of the timer log, so that a few messages fill one.
fn options() -> DelayOptions {
    DelayOptions { timer_log_file_bytes: 4096, ..DelayOptions::default() }
}

fn broker(store: &Store) -> Broker {
    let broker = Broker::with_delays(store, options()).unwrap();
    broker.start_delivery().unwrap();
    broker
}

fn later(broker: &Broker, topic: &str, text: &str, due: Due) -> Appended {
    let properties = encode_properties(["k"], Some("T"), None, []).unwrap();
    broker.append_later(&[(message(topic, text, &properties), due)]).unwrap().remove(0).appended
}

fn message<'a>(topic: &'a str, text: &'a str, properties: &'a [u8]) -> NewMessage<'a> {
    NewMessage {
        topic,
        body: text.as_bytes(),
        properties,
        unique_key: None,
        queue_id: None,
        flag: 7,
        born_timestamp_ms: Some(5),
        durable: false,
        ..NewMessage::default()
    }
}

fn read(store: &Store, topic: &str) -> Vec<StoredRecord> {
    match store.read(topic, 0, None, None, None) {
        Ok(mut cursor) => cursor.next_batch(10_000).unwrap(),
        Err(mqstore_base::error::StoreError::TopicNotFound { .. }) => Vec::new(),
        Err(error) => panic!("{error}"),
    }
}

fn advance(clock: &ManualClock, ms: u64) {
    clock.advance(Duration::from_millis(ms));
}

/// Advances the clock by `ms` in increments of `step_ms`, each followed by a step of the store.
fn pass(world: &SimStore, store: &Store, ms: u64, step_ms: u64) {
    for _ in 0..ms.div_ceil(step_ms) {
        advance(&world.clock, step_ms);
        store.step().unwrap();
    }
}

#[test]
fn a_message_comes_at_its_millisecond_and_keeps_what_it_has() {
    let world = SimStore::new();
    let store = world.open();
    let broker = broker(&store);
    for (text, delay) in [("exact", 5_000), ("odd", 5_001), ("soon", 7)] {
        let done = later(&broker, "t", text, Due::At(BEGIN_MS + delay));
        assert_eq!(done.queue_id, 0);
        let record = store.log().get_at(done.commit_log_offset).unwrap();
        assert_eq!(record.view().unwrap().topic, TIMER_TOPIC);
    }
    store.step().unwrap();
    assert_eq!(broker.delay_counts().unwrap().pending, 3);
    assert_eq!(broker.delay_counts().unwrap().next_due_ms, Some(BEGIN_MS + 7));
    advance(&world.clock, 6);
    store.step().unwrap();
    assert!(read(&store, "t").is_empty());
    advance(&world.clock, 1);
    store.step().unwrap();
    assert_eq!(bodies(&read(&store, "t")), ["soon"]);
    pass(&world, &store, 4_992, 13);
    assert_eq!(bodies(&read(&store, "t")), ["soon"]);
    advance(&world.clock, 1);
    store.step().unwrap();
    assert_eq!(bodies(&read(&store, "t")), ["soon", "exact"]);
    advance(&world.clock, 1);
    store.step().unwrap();
    let all = read(&store, "t");
    assert_eq!(bodies(&all), ["soon", "exact", "odd"]);
    let view = all[1].view().unwrap();
    assert_eq!((view.flag, view.born_timestamp, view.tags(), view.queue_id), (7, 5, Some("T"), 0));
    let source: u64 = view.properties.get(TIMER_ORIGIN_OFFSET).unwrap().parse().unwrap();
    let source = store.log().get_at(source).unwrap();
    assert_eq!(source.view().unwrap().unique_key(), view.unique_key());
    assert_eq!(view.properties.get(TIMER_DELIVER_MS), Some("1700000005000"));
    assert_eq!(view.properties.get(TIMER_OUT_MS), Some("1700000004000"));
    assert_eq!((view.properties.get(REAL_TOPIC), view.properties.get(REAL_QID)), (Some("t"), Some("0")));
    let counts = broker.delay_counts().unwrap();
    assert_eq!((counts.pending, counts.delivered, counts.late_max_ms), (0, 3, 0));
}

#[test]
fn what_is_due_already_is_appended_at_once_and_queues_are_settled_when_it_is_accepted() {
    let world = SimStore::new();
    let store = world.open();
    store.create_topic("t", 3, &[]).unwrap();
    let broker = broker(&store);
    later(&broker, "t", "now", Due::At(BEGIN_MS));
    assert_eq!(bodies(&read(&store, "t")), ["now"]);
    for text in ["1", "2", "3"] {
        later(&broker, "t", text, Due::At(BEGIN_MS + 100));
    }
    pass(&world, &store, 100, 50);
    let queue = |id| bodies(&store.read("t", id, None, None, None).unwrap().next_batch(10).unwrap());
    assert_eq!([queue(0), queue(1), queue(2)], [vec!["now", "3"], vec!["1"], vec!["2"]]);
}

#[test]
fn a_cancelled_message_never_comes_and_a_delivered_one_cannot_be_cancelled() {
    let world = SimStore::new();
    let store = world.open();
    let broker = broker(&store);
    let near = later(&broker, "t", "near", Due::At(BEGIN_MS + 300));
    let far = later(&broker, "t", "far", Due::At(BEGIN_MS + 3_600_000));
    later(&broker, "t", "kept", Due::At(BEGIN_MS + 3_600_000));
    store.step().unwrap();
    let id = |done: &Appended| {
        store.log().get_at(done.commit_log_offset).unwrap().view().unwrap().offset_message_id()
    };
    assert!(broker.cancel(&id(&near)).unwrap());
    assert!(!broker.cancel(near.unique_id.as_str()).unwrap());
    assert!(broker.cancel(far.unique_id.as_str()).unwrap());
    assert!(!broker.cancel(&id(&far)).unwrap());
    assert!(!broker.cancel("nobody").unwrap());
    assert_eq!(broker.delay_counts().unwrap().pending, 1);
    let soon = later(&broker, "t", "soon", Due::At(BEGIN_MS + 400));
    pass(&world, &store, 3_600_000, 60_000);
    assert_eq!(bodies(&read(&store, "t")), ["soon", "kept"]);
    assert!(!broker.cancel(soon.unique_id.as_str()).unwrap());
    assert_eq!(broker.delay_counts().unwrap().cancelled, 2);
}

#[test]
fn a_message_can_be_moved() {
    let world = SimStore::new();
    let store = world.open();
    let broker = broker(&store);
    let first = later(&broker, "t", "moved", Due::At(BEGIN_MS + 1_000));
    let again = broker.reschedule(first.unique_id.as_str(), BEGIN_MS + 5_000).unwrap().unwrap();
    assert_eq!(again.appended.unique_id, first.unique_id);
    pass(&world, &store, 4_999, 7);
    assert!(read(&store, "t").is_empty() || world.clock.now_ms() >= BEGIN_MS + 5_000);
    pass(&world, &store, 100, 10);
    assert_eq!(bodies(&read(&store, "t")), ["moved"]);
    assert_eq!(broker.reschedule(first.unique_id.as_str(), BEGIN_MS + 9_000).unwrap(), None);
}

#[test]
fn what_waits_is_there_after_a_close_and_after_any_rest() {
    let world = SimStore::new();
    for (round, rest_ms) in [2_000, 86_400_000, 40 * 86_400_000].into_iter().enumerate() {
        let store = world.open();
        let broker = broker(&store);
        let begin = world.clock.now_ms();
        for number in 0..200 {
            later(&broker, "t", &format!("{round}/{number}"), Due::At(begin + 60_000 + number * 40));
        }
        store.step().unwrap();
        store.close().unwrap();
        drop(broker);
        advance(&world.clock, rest_ms);
        let store = world.open();
        let broker = self::broker(&store);
        assert_eq!(broker.delay_counts().unwrap().pending, 200, "{round}");
        pass(&world, &store, 70_000, 250);
        assert_eq!(read(&store, "t").len(), (round + 1) * 200);
        let counts = broker.delay_counts().unwrap();
        assert_eq!((counts.pending, counts.delivered, counts.dropped), (0, 200, 0));
        store.close().unwrap();
    }
}

#[test]
fn who_waits_for_weeks_is_put_back_into_the_wheel_on_the_way() {
    const DAY: u64 = 86_400_000;
    let world = SimStore::new();
    let store = world.open();
    let broker = broker(&store);
    let due = BEGIN_MS + 30 * DAY as i64 + 123;
    later(&broker, "t", "far", Due::At(due));
    let cancelled = later(&broker, "t", "cancelled", Due::At(due));
    pass(&world, &store, 9 * DAY, 3_600_000);
    assert_eq!(broker.delay_counts().unwrap().pending, 2);
    assert!(broker.cancel(cancelled.unique_id.as_str()).unwrap());
    pass(&world, &store, 21 * DAY, 3_600_000);
    assert!(read(&store, "t").is_empty());
    pass(&world, &store, 123, 41);
    let all = read(&store, "t");
    assert_eq!(bodies(&all), ["far"]);
    assert_eq!(all[0].view().unwrap().properties.get("TIMER_ROLL_TIMES"), Some("14"));
    assert_eq!(broker.delay_counts().unwrap().pending, 0);
}

#[test]
fn levels_wait_as_long_as_their_table_says() {
    let world = SimStore::new();
    let store = world.open();
    let broker = broker(&store);
    for (text, level) in [("10s", 3), ("1s", 1), ("2h", 99), ("5s", 2)] {
        let done = later(&broker, "t", text, Due::Level(level));
        assert_eq!(done.queue_id, level.min(18) - 1);
    }
    assert!(broker.append_later(&[(message("t", "x", b""), Due::Level(0))]).is_err());
    store.step().unwrap();
    assert_eq!(broker.delay_counts().unwrap().pending, 4);
    pass(&world, &store, 999, 37);
    pass(&world, &store, 4_100, 100);
    assert_eq!(bodies(&read(&store, "t")), ["1s", "5s"]);
    store.close().unwrap();
    drop(broker);
    let store = world.open();
    let broker = self::broker(&store);
    pass(&world, &store, 7_200_000, 60_000);
    let all = read(&store, "t");
    assert_eq!(bodies(&all), ["1s", "5s", "10s", "2h"]);
    assert_eq!(all[3].view().unwrap().properties.get("DELAY"), Some("18"));
    assert_eq!(broker.delay_counts().unwrap().pending, 0);
    store.close().unwrap();
    let text =
        world.vfs.read_file(std::path::Path::new("/data/store/config/delayOffset.json"), 4096).unwrap();
    let file = mqstore_format::json::DelayOffsets::parse(&text).unwrap();
    assert_eq!([file.table[&1], file.table[&2], file.table[&3], file.table[&18]], [1; 4]);
}

#[test]
fn a_topic_that_refuses_holds_up_its_own_messages_only() {
    let world = SimStore::new();
    let store = world.open();
    let broker = broker(&store);
    later(&broker, "shut", "1", Due::At(BEGIN_MS + 100));
    later(&broker, "t", "2", Due::At(BEGIN_MS + 100));
    let change = |perm| mqstore_engine::TopicChange { perm: Some(perm), ..Default::default() };
    store.change_topic("shut", change(4)).unwrap();
    pass(&world, &store, 3_000, 500);
    assert_eq!(bodies(&read(&store, "t")), ["2"]);
    assert!(store.user_notes().take_lines()[0].contains("takes no messages"));
    store.change_topic("shut", change(6)).unwrap();
    pass(&world, &store, 2_000, 500);
    assert_eq!(bodies(&read(&store, "shut")), ["1"]);
}

#[test]
fn a_thread_delivers_on_the_machines_clock() {
    let real = crate::testing::DiskStore::new();
    let broker = real.broker();
    let due = real.store.clock().now_ms() + 30;
    later(&broker, "t", "real", Due::At(due));
    assert!(real.store.wait("t", 0, 0, Duration::from_secs(20)).unwrap());
    let all = read(&real.store, "t");
    assert!(all[0].view().unwrap().store_timestamp >= due);
    drop(broker);
    real.store.close().unwrap();
}

#[test]
fn a_clock_that_goes_back_makes_nothing_early() {
    let world = SimStore::new();
    let store = world.open();
    let broker = broker(&store);
    later(&broker, "t", "first", Due::At(BEGIN_MS + 1_000));
    pass(&world, &store, 100_000, 10_000);
    world.clock.set(BEGIN_MS + 50_000);
    later(&broker, "t", "behind", Due::At(BEGIN_MS + 52_500));
    store.step().unwrap();
    assert_eq!(bodies(&read(&store, "t")), ["first"]);
    store.close().unwrap();
    drop(broker);
    let store = world.open();
    let _broker = self::broker(&store);
    pass(&world, &store, 2_499, 833);
    assert_eq!(bodies(&read(&store, "t")), ["first"]);
    pass(&world, &store, 1, 1);
    assert_eq!(bodies(&read(&store, "t")), ["first", "behind"]);
}

#[test]
fn a_reader_delivers_nothing_and_a_lost_wheel_is_made_anew() {
    let world = SimStore::new();
    let store = world.open();
    let broker = broker(&store);
    for number in 0..100 {
        later(&broker, "t", &number.to_string(), Due::At(BEGIN_MS + 1_000 + number * 100));
    }
    let gone = later(&broker, "t", "gone", Due::At(BEGIN_MS + 9_000));
    broker.cancel(gone.unique_id.as_str()).unwrap();
    pass(&world, &store, 5_000, 100);
    store.close().unwrap();
    drop(broker);
    let before = world.vfs.fingerprint();
    let clock: Arc<dyn Clock> = world.clock.clone();
    let path = std::path::Path::new("/data/store");
    let reader = Store::open(
        Arc::new(world.vfs.clone()),
        clock,
        path,
        mqstore_base::options::OpenMode::Read,
        &crate::testing::small(),
    )
    .unwrap();
    assert!(Broker::new(&reader).is_err());
    let counts = crate::DelayCounts::of_reader(&reader).unwrap();
    assert_eq!((counts.pending, counts.next_due_ms), (59, Some(BEGIN_MS + 6_000)));
    assert_eq!(read(&reader, "t").len(), 41);
    drop(reader);
    assert_eq!(world.vfs.fingerprint(), before);
    for name in ["timerwheel", "timerlog/00000000000000000000"] {
        let kept = world.vfs.look().unwrap();
        kept.remove_file(&path.join(name)).unwrap();
        let other = SimStore { vfs: kept, clock: Arc::new(ManualClock::new(world.clock.now_ms())) };
        let store = other.open();
        let broker = self::broker(&store);
        assert_eq!(broker.delay_counts().unwrap().pending, 59, "{name}");
        pass(&other, &store, 10_000, 500);
        let all = read(&store, "t");
        let texts: std::collections::BTreeSet<_> = bodies(&all).into_iter().collect();
        assert_eq!((all.len(), texts.len()), (100, 100), "{name}");
        assert!(!texts.contains("gone"));
        store.close().unwrap();
    }
}
