//! Messages that used up their attempts.

use mqstore_base::message::{NewMessage, encode_properties};
use mqstore_format::Host;
use mqstore_format::record::{MAX_PROPERTIES_BYTES, PROPERTY_CRC_BYTES};

use super::*;
use crate::testing::body;
use crate::work::dead_letters::{MAX_REASON_BYTES, push_reason, stored_reason};

fn limited(broker: &Broker, most: u32) -> WorkQueue {
    let options = WorkQueueOptions { max_attempts: Some(most), ..options() };
    broker.work_queue("jobs", "workers", options).unwrap()
}

fn dead(store: &mqstore_engine::Store) -> Vec<String> {
    let mut cursor = match store.read("%DLQ%workers", 0, None, None, None) {
        Err(StoreError::TopicNotFound { .. }) => return Vec::new(),
        cursor => cursor.unwrap(),
    };
    cursor.next_batch(1000).unwrap().iter().map(body).collect()
}

#[test]
fn the_last_delivery_that_fails_makes_a_dead_letter() {
    let (_world, store, broker) = SimStore::with_broker();
    let queue = limited(&broker, 2);
    let properties = encode_properties(["k1", "k2"], Some("tag"), None, [("own", "value")]).unwrap();
    let original =
        queue.put(&NewWork { body: b"poison", properties: &properties, ..NewWork::default() }, NOW).unwrap();
    get(&queue).unwrap().lease.nack(Some(Duration::ZERO)).unwrap();
    assert!(dead(&store).is_empty());
    let last = get(&queue).unwrap();
    // The delay does not matter for the last attempt.
    last.lease.nack(Some(seconds(99))).unwrap();
    assert_eq!(dead(&store), ["poison"]);
    assert_eq!(got(&queue), None);
    assert!(queue.join(NOW).unwrap());
    assert!(is_lost(&last.lease.nack(None)));
    let letter = store.message_at("%DLQ%workers", 0, 0).unwrap().unwrap();
    let letter = letter.view().unwrap();
    let record = store.log().get_at(original.commit_log_offset).unwrap();
    let record = record.view().unwrap();
    let id = record.offset_message_id();
    for (name, value) in [
        ("KEYS", "k1 k2"),
        ("TAGS", "tag"),
        ("own", "value"),
        ("UNIQ_KEY", original.unique_id.as_str()),
        ("RETRY_TOPIC", "jobs"),
        ("ORIGIN_MESSAGE_ID", &id),
        ("DLQ_ORIGIN_TOPIC", "jobs"),
        ("DLQ_ORIGIN_MESSAGE_ID", &id),
    ] {
        assert_eq!(letter.properties.get(name), Some(value), "{name}");
    }
    assert_eq!(letter.reconsume_times, 2);
    assert_eq!(letter.born_timestamp, record.born_timestamp);
    assert_eq!(letter.born_host, record.born_host);
    assert_eq!(store.queues("%DLQ%workers").unwrap().len(), 1);
    let found = store.lookup("%DLQ%workers", "k2", None, None, None).unwrap().next_batch(9).unwrap();
    assert_eq!(found.len(), 1);
}

#[test]
fn leases_that_end_count_too() {
    let (world, store, broker) = SimStore::with_broker();
    let queue = limited(&broker, 2);
    for number in 0..5 {
        put_work(&queue, &number.to_string());
    }
    for attempt in 1..3 {
        let all = queue.get_many(9, NOW).unwrap();
        assert_eq!(all.len(), 5);
        assert!(all.iter().all(|message| message.lease.attempt() == attempt));
        world.clock.advance(seconds(30));
    }
    put_work(&queue, "new");
    // No worker has to call `get` for them.
    assert!(!queue.join(NOW).unwrap());
    assert_eq!(dead(&store), ["0", "1", "2", "3", "4"]);
    assert_eq!(got(&queue), Some(("new".into(), 1)));
    world.clock.advance(seconds(30));
    assert_eq!(got(&queue), Some(("new".into(), 2)));
    world.clock.advance(seconds(30));
    assert_eq!(got(&queue), None);
    assert_eq!(dead(&store).len(), 6);
    assert!(queue.join(NOW).unwrap());
}

#[test]
fn without_a_limit_there_are_none() {
    let (_world, store, broker) = SimStore::with_broker();
    let options = WorkQueueOptions { max_attempts: None, ..options() };
    let queue = broker.work_queue("jobs", "workers", options).unwrap();
    put_work(&queue, "a");
    for attempt in 1..40 {
        let message = get(&queue).unwrap();
        assert_eq!(message.lease.attempt(), attempt);
        message.lease.nack(Some(Duration::ZERO)).unwrap();
    }
    assert!(dead(&store).is_empty());
}

#[test]
fn dead_letters_go_back_where_they_came_from() {
    let (_world, store, broker) = SimStore::with_broker();
    let queue = limited(&broker, 1);
    let other = WorkQueueOptions { max_attempts: Some(1), ..options() };
    let other = broker.work_queue("other", "workers", other).unwrap();
    assert_eq!(queue.redrive(None).unwrap(), 0);
    for number in 0..4 {
        put_work(&queue, &number.to_string());
        get(&queue).unwrap().lease.nack(None).unwrap();
    }
    put_work(&other, "elsewhere");
    get(&other).unwrap().lease.nack(None).unwrap();
    // A message that another program appended there.
    put(&store, "%DLQ%workers", 0, "stray", "T");
    assert_eq!(dead(&store).len(), 6);
    assert_eq!(queue.redrive(Some(1)).unwrap(), 1);
    let back = get(&queue).unwrap();
    let view = back.view().unwrap();
    assert_eq!((body(&back).as_str(), back.lease.attempt(), view.reconsume_times), ("0", 1, 0));
    assert_eq!(view.properties.get("DLQ_ORIGIN_TOPIC"), None);
    assert_eq!(view.properties.get("RETRY_TOPIC"), None);
    back.lease.ack(false).unwrap();
    assert_eq!(queue.redrive(None).unwrap(), 5);
    assert_eq!(queue.redrive(None).unwrap(), 0);
    let again: Vec<_> = queue.get_many(9, NOW).unwrap().iter().map(|message| body(message)).collect();
    assert_eq!(again, ["1", "2", "3", "stray"]);
    assert_eq!(got(&other), Some(("elsewhere".into(), 1)));
    assert_eq!(dead(&store).len(), 6, "the dead letters stay in their topic");
    assert_eq!(queue.dead_letters(), "%DLQ%workers");
}

#[test]
fn a_copy_that_is_there_already_is_not_made_again() {
    let (_world, store, broker) = SimStore::with_broker();
    let queue = limited(&broker, 1);
    for number in 0..3 {
        put_work(&queue, &number.to_string());
    }
    let all = queue.get_many(3, NOW).unwrap();
    all[0].lease.nack(None).unwrap();
    assert_eq!(dead(&store), ["0"]);
    // Two intents after a stop: one has its copy, after a message of another program.
    let meta = broker.meta();
    let progress = meta.progress(meta.queue_key("workers", "jobs", 0).unwrap());
    for offset in [1, 2] {
        let intent = mqstore_meta::ProgressRecord::DeadLetter { offset, dlq_offset: 1 };
        meta.append_progress(&progress, &[intent]).unwrap();
    }
    put(&store, "%DLQ%workers", 0, "stray", "T");
    let view = all[2].view().unwrap();
    let mut copied = view.properties.raw().to_vec();
    for (name, value) in
        [("DLQ_ORIGIN_TOPIC", "jobs"), ("DLQ_ORIGIN_MESSAGE_ID", view.offset_message_id().as_str())]
    {
        copied.extend_from_slice(format!("{name}\x01{value}\x02").as_bytes());
    }
    let copied = mqstore_format::without_property(&copied, "__CRC32#").into_owned();
    let message = NewMessage {
        topic: "%DLQ%workers",
        body: view.body,
        properties: &copied,
        unique_key: view.unique_key(),
        queue_id: Some(0),
        flag: 0,
        born_timestamp_ms: None,
        durable: false,
        ..NewMessage::default()
    };
    store.append(&message).unwrap();
    assert_eq!(view.born_host, Host { ..view.born_host });
    drop((queue, all));
    let queue = limited(&broker, 1);
    assert_eq!(dead(&store), ["0", "stray", "2", "1"]);
    assert!(queue.join(NOW).unwrap());
    assert!(store.user_notes().take_lines().is_empty());
}

#[test]
fn a_reason_survives_a_stop_before_the_copy() {
    let world = SimStore::new();
    {
        let store = world.open();
        let broker = Broker::new(&store).unwrap();
        let queue = limited(&broker, 2);
        for job in ["returned", "on its way"] {
            put_work(&queue, job);
        }
        let all = queue.get_many(2, NOW).unwrap();
        all[0].lease.nack_with(Some(Duration::ZERO), Some("no paper")).unwrap();
        // The records of the last `nack`, without the copy.
        let meta = broker.meta();
        let progress = meta.progress(meta.queue_key("workers", "jobs", 0).unwrap());
        let reason = mqstore_meta::ProgressRecord::Reason { offset: 1, reason: "no ink".into() };
        let intent = mqstore_meta::ProgressRecord::DeadLetter { offset: 1, dlq_offset: 0 };
        meta.append_progress(&progress, &[reason, intent]).unwrap();
        drop((queue, all, broker));
        store.close().unwrap();
    }
    let store = world.open();
    let broker = Broker::new(&store).unwrap();
    let queue = limited(&broker, 2);
    // A lease that ends leaves the last reason that a worker gave.
    assert_eq!(got(&queue), Some(("returned".into(), 2)));
    world.clock.advance(seconds(31));
    assert!(queue.join(NOW).unwrap());
    let letters = store.read("%DLQ%workers", 0, None, None, None).unwrap().next_batch(9).unwrap();
    let shown: Vec<_> = letters
        .iter()
        .map(|letter| {
            let reason = letter.view().unwrap().properties.get("mqstore.reason").map(str::to_owned);
            (body(letter), reason)
        })
        .collect();
    let expected = [("on its way", "no ink"), ("returned", "no paper")];
    assert_eq!(shown, expected.map(|(body, reason)| (body.to_owned(), Some(reason.to_owned()))));
}

#[test]
fn a_stored_reason_fits_a_property() {
    assert_eq!(stored_reason(" no\u{1}disk\u{2}").as_deref(), Some("no disk"));
    assert_eq!(stored_reason(" \u{1} "), None);
    let long = "é".repeat(2000);
    assert_eq!(stored_reason(&long).unwrap().len(), MAX_REASON_BYTES);
}

#[test]
fn a_reason_leaves_the_properties_within_their_limit() {
    for used in [0, MAX_PROPERTIES_BYTES - 60, MAX_PROPERTIES_BYTES - 30, MAX_PROPERTIES_BYTES] {
        let mut properties = vec![b'x'; used];
        push_reason(&mut properties, "out of paper");
        assert!(properties.len() + PROPERTY_CRC_BYTES <= MAX_PROPERTIES_BYTES.max(used + PROPERTY_CRC_BYTES));
        assert_eq!(properties.len() > used, used < MAX_PROPERTIES_BYTES - 36, "{used}");
    }
}
