//! Messages that cannot be delivered for a long time do not block other messages.

use mqstore_engine::TopicChange;
use mqstore_format::delays::timer::slot_time_ms;
use mqstore_format::properties::{PropertiesBuilder, TIMER_ROLL_TIMES};

use super::*;

const DAY: u64 = 86_400_000;

#[test]
fn a_topic_that_refuses_for_weeks_holds_up_its_own_messages_only() {
    let world = SimStore::new();
    let mut store = world.open();
    let mut broker = broker(&store);
    later(&broker, "shut", "held", Due::At(BEGIN_MS + 100));
    let change = |perm| TopicChange { perm: Some(perm), ..Default::default() };
    store.change_topic("shut", change(4)).unwrap();
    for week in 0..5 {
        let due = world.clock.now_ms() + 5_000;
        later(&broker, "t", &week.to_string(), Due::At(due));
        pass(&world, &store, 5_000, 500);
        assert_eq!(read(&store, "t").len(), week + 1);
        pass(&world, &store, 7 * DAY, DAY / 4);
        store.close().unwrap();
        drop(broker);
        store = world.open();
        broker = self::broker(&store);
        assert_eq!(broker.delay_counts().unwrap().pending, 1);
    }
    store.change_topic("shut", change(6)).unwrap();
    pass(&world, &store, 2_000, 500);
    let held = read(&store, "shut");
    assert_eq!(bodies(&held), ["held"]);
    assert!(held[0].view().unwrap().properties.get(TIMER_ROLL_TIMES).is_some());
    assert_eq!(broker.delay_counts().unwrap().pending, 0);
}

#[test]
fn a_message_without_a_unique_key_cannot_be_moved_and_is_not_copied() {
    let world = SimStore::new();
    let store = world.open();
    let broker = broker(&store);
    let due = BEGIN_MS + 5_000;
    let mut properties = PropertiesBuilder::new();
    let out = slot_time_ms(due).to_string();
    for (name, value) in [(TIMER_OUT_MS, out.as_str()), (REAL_TOPIC, "t"), (REAL_QID, "0")] {
        properties.push_reserved(name, value).unwrap();
    }
    let properties = properties.finish();
    store.create_topic(TIMER_TOPIC, 1, &[]).unwrap();
    let new = NewMessage {
        unique_key: Some(""),
        queue_id: Some(0),
        ..message(TIMER_TOPIC, "keyless", &properties)
    };
    let appended = store.append(&new).unwrap();
    let record = store.log().get_at(appended.commit_log_offset).unwrap();
    let id = record.view().unwrap().offset_message_id();
    store.step().unwrap();
    for _ in 0..2 {
        assert!(broker.cancel(&id).is_err());
        assert!(broker.reschedule(&id, BEGIN_MS + 7_000).is_err());
    }
    pass(&world, &store, 20_000, 500);
    assert_eq!(bodies(&read(&store, "t")), ["keyless"]);
}
