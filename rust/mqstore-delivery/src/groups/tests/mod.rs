//! Consumers of a group: their messages, their commits, and their queues.

mod model;
mod older;
mod seek;
mod waiting;

use std::time::Duration;

use mqstore_base::error::StoreError;
use mqstore_base::message::{MessageFilter, StoredRecord};

use crate::testing::{SimStore, bodies, body, fill, put, store_with_corrupt_queue};
use crate::{Broker, BrokerError, Consumer, ConsumerOptions, OffsetHistory, Queue, StartOffset};

fn options() -> ConsumerOptions {
    ConsumerOptions::default()
}

fn consumer(broker: &Broker, group: &str, topic: &str) -> Consumer {
    broker.consumer(group, &[topic], options()).unwrap()
}

fn poll(consumer: &Consumer, max: usize) -> Vec<StoredRecord> {
    consumer.poll(max, Some(Duration::ZERO)).unwrap()
}

fn queue(topic: &str, queue_id: i32) -> Queue {
    Queue { topic: topic.into(), queue_id }
}

#[test]
fn a_group_goes_on_where_it_committed() {
    let world = SimStore::new();
    let store = world.open();
    store.create_topic("t", 2, &[]).unwrap();
    fill(&store, "t", 2, 0..10);
    let broker = Broker::new(&store).unwrap();
    let first = consumer(&broker, "g", "t");
    assert_eq!(poll(&first, 4).len(), 4);
    first.commit(false).unwrap();
    let rest = poll(&first, 100);
    assert_eq!(rest.len(), 6);
    first.close();
    assert!(matches!(first.poll(1, None), Err(BrokerError::ConsumerClosed { .. })));
    // Messages that were handed out and not committed come again, in queue order.
    let second = consumer(&broker, "g", "t");
    let again = poll(&second, 100);
    let sorted = |records: &[StoredRecord]| {
        let mut bodies = bodies(records);
        bodies.sort();
        bodies
    };
    assert_eq!(sorted(&again), sorted(&rest));
    second.commit(true).unwrap();
    drop(second);
    assert!(poll(&consumer(&broker, "g", "t"), 100).is_empty());
    // Another group starts at the first message.
    assert_eq!(poll(&consumer(&broker, "other", "t"), 100).len(), 10);
    assert_eq!(broker.meta().groups(), ["g", "other"]);
}

/// With polls, and with iteration, which reads ahead.
#[test]
fn a_queue_that_cannot_be_read_does_not_keep_others_from_being_read() {
    for (bad, ahead) in [(0, false), (1, false), (0, true), (1, true)] {
        let world = SimStore::new();
        let store = store_with_corrupt_queue(&world, bad, &["a", "b", "c"]);
        let broker = Broker::new(&store).unwrap();
        let consumer = consumer(&broker, "g", "jobs");
        let next = || -> Result<Vec<_>, BrokerError> {
            if ahead {
                return Ok(consumer.next_once(Duration::ZERO)?.into_iter().collect());
            }
            consumer.poll(1, Some(Duration::ZERO))
        };
        for text in ["a", "b", "c"] {
            assert_eq!(bodies(&next().unwrap()), [text], "damage in queue {bad}, ahead: {ahead}");
        }
        // No other message is left: each poll returns the error.
        for _ in 0..2 {
            assert!(matches!(next(), Err(BrokerError::Store(StoreError::Corrupt { .. }))));
        }
        let notes = store.user_notes().take_lines();
        let named = format!("cannot read queue jobs/{bad}; other queues continue");
        assert_eq!(notes.iter().filter(|note| note.contains(&named)).count(), 1, "{notes:?}");
        put(&store, "jobs", 1 - bad, "late", "T");
        assert_eq!(bodies(&next().unwrap()), ["late"]);
        assert_eq!(store.user_notes().take_lines(), [""; 0]);
        // A consumer that seeks past the message gets no more errors.
        consumer.seek("jobs", bad, 1).unwrap();
        assert!(next().unwrap().is_empty());
    }
}

#[test]
fn offsets_outlive_the_store() {
    let world = SimStore::new();
    let store = world.open();
    fill(&store, "t", 1, 0..10);
    let broker = Broker::new(&store).unwrap();
    let first = consumer(&broker, "g", "t");
    assert_eq!(bodies(&poll(&first, 3)), ["0", "1", "2"]);
    first.commit(true).unwrap();
    first.close();
    drop((first, broker));
    store.close().unwrap();
    let store = world.open();
    let broker = Broker::new(&store).unwrap();
    assert_eq!(bodies(&poll(&consumer(&broker, "g", "t"), 2)), ["3", "4"]);
}

#[test]
fn a_new_group_begins_where_it_is_told() {
    let world = SimStore::new();
    let store = world.open();
    fill(&store, "t", 1, 0..3);
    world.clock.advance(Duration::from_secs(1));
    let time = mqstore_io::Clock::now_ms(&*world.clock);
    fill(&store, "t", 1, 3..5);
    let broker = Broker::new(&store).unwrap();
    let begin = |group: &str, start| {
        let consumer = broker.consumer(group, &["t"], ConsumerOptions { start, ..options() }).unwrap();
        bodies(&poll(&consumer, 10))
    };
    assert_eq!(begin("a", StartOffset::Earliest), ["0", "1", "2", "3", "4"]);
    assert_eq!(begin("b", StartOffset::Time(time)), ["3", "4"]);
    assert!(begin("c", StartOffset::Latest).is_empty());
    // The group started there, although it committed nothing.
    fill(&store, "t", 1, 5..6);
    assert_eq!(begin("c", StartOffset::Latest), ["5"]);
    assert_eq!(begin("b", StartOffset::Latest), ["3", "4", "5"]);
    // Queues that are added later start at their first message.
    store.create_topic("t", 2, &[]).unwrap();
    put(&store, "t", 1, "new queue", "T");
    assert_eq!(begin("c", StartOffset::Latest), ["5", "new queue"]);
}

#[test]
fn queues_are_shared_and_what_was_lost_cannot_be_committed() {
    let world = SimStore::new();
    let store = world.open();
    store.create_topic("t", 4, &[]).unwrap();
    fill(&store, "t", 4, 0..8);
    let broker = Broker::new(&store).unwrap();
    let first = consumer(&broker, "g", "t");
    assert_eq!(first.assignment().unwrap().len(), 4);
    assert_eq!(poll(&first, 100).len(), 8);
    let second = consumer(&broker, "g", "t");
    let (kept, moved) = (first.assignment().unwrap(), second.assignment().unwrap());
    assert_eq!((kept.len(), moved.len()), (2, 2));
    first.commit(false).unwrap();
    // Only the queues that it still has were committed. The other messages come again, at the new consumer.
    let again = poll(&second, 100);
    assert_eq!(again.len(), 4);
    for record in &again {
        assert!(moved.contains(&queue("t", record.view().unwrap().queue_id)));
    }
    let refused = first.commit_offsets(&[(kept[0].clone(), 2), (moved[0].clone(), 2)], false);
    assert!(matches!(refused, Err(BrokerError::NotAssigned { .. })), "{refused:?}");
    assert!(matches!(first.seek("t", moved[0].queue_id, 0), Err(BrokerError::NotAssigned { .. })));
    second.commit(false).unwrap();
    second.close();
    assert_eq!(first.assignment().unwrap().len(), 4);
    assert!(poll(&first, 100).is_empty());
}

/// Opens an ordered consumer of messages with the tag `T`.
fn ordered_by_tag(broker: &Broker) -> Consumer {
    let filter = MessageFilter::tags("T").unwrap();
    broker.consumer("g", &["t"], ConsumerOptions { ordered: true, filter, ..options() }).unwrap()
}

#[test]
fn an_ordered_queue_of_which_nothing_is_out_waits_for_nothing() {
    let world = SimStore::new();
    let store = world.open();
    store.create_topic("t", 2, &[]).unwrap();
    let broker = Broker::new(&store).unwrap();
    let first = ordered_by_tag(&broker);
    put(&store, "t", 0, "of another tag", "U");
    assert!(poll(&first, 100).is_empty());
    let second = ordered_by_tag(&broker);
    assert_eq!([&first, &second].map(|one| one.assignment().unwrap().len()), [1, 1]);
}

#[test]
fn an_ordered_queue_stays_until_all_that_is_out_is_committed() {
    let world = SimStore::new();
    let store = world.open();
    store.create_topic("t", 2, &[]).unwrap();
    let broker = Broker::new(&store).unwrap();
    let first = ordered_by_tag(&broker);
    fill(&store, "t", 2, 0..6);
    for queue_id in 0..2 {
        put(&store, "t", queue_id, "of another tag", "U");
    }
    assert_eq!(poll(&first, 100).len(), 6);
    let commit = |offset| {
        let offsets = [0, 1].map(|queue_id| (queue("t", queue_id), offset));
        first.commit_offsets(&offsets, false).unwrap();
    };
    commit(2);
    let second = ordered_by_tag(&broker);
    let owned = || [&first, &second].map(|one| one.assignment().unwrap().len());
    assert_eq!(owned(), [2, 0]);
    // After the last message that was handed out, not after those that were filtered out.
    commit(3);
    assert_eq!(owned(), [1, 1]);
    assert!(poll(&second, 100).is_empty());
}

#[test]
fn an_ordered_queue_waits_for_its_commit() {
    let world = SimStore::new();
    let store = world.open();
    store.create_topic("t", 2, &[]).unwrap();
    fill(&store, "t", 2, 0..4);
    let broker = Broker::new(&store).unwrap();
    let ordered = || broker.consumer("g", &["t"], ConsumerOptions { ordered: true, ..options() }).unwrap();
    let first = ordered();
    assert_eq!(first.next_once(Duration::ZERO).unwrap().map(|record| body(&record)), Some("0".into()));
    let second = ordered();
    // No message of queue 1 was handed out, so it moves; queue 0 does not.
    assert_eq!(first.assignment().unwrap(), [queue("t", 0)]);
    assert_eq!(bodies(&poll(&second, 9)), ["1", "3"]);
    let third = ordered();
    assert!(third.assignment().unwrap().is_empty());
    first.close();
    // Messages that were not committed come again, before later ones.
    let heir = if third.assignment().unwrap().is_empty() { &second } else { &third };
    assert_eq!(bodies(&poll(heir, 9)), ["0", "2"]);
    heir.commit(false).unwrap();
    assert!(broker.meta().group("g").unwrap().consume_message_orderly);
}

#[test]
fn broadcast_consumers_get_everything() {
    let world = SimStore::new();
    let store = world.open();
    fill(&store, "t", 1, 0..3);
    let broker = Broker::new(&store).unwrap();
    let named = |name: Option<&str>| {
        let name = name.map(str::to_owned);
        broker.consumer("g", &["t"], ConsumerOptions { broadcast: true, name, ..options() })
    };
    let (one, two, nobody) = (named(Some("one")).unwrap(), named(Some("two")).unwrap(), named(None).unwrap());
    for consumer in [&one, &two, &nobody] {
        assert_eq!(poll(consumer, 9).len(), 3);
    }
    for consumer in [&one, &nobody] {
        consumer.commit(false).unwrap();
        consumer.close();
    }
    assert!(matches!(named(Some("two")), Err(BrokerError::Store(StoreError::InvalidOption { .. }))));
    two.close();
    assert!(poll(&named(Some("one")).unwrap(), 9).is_empty());
    assert_eq!(poll(&named(Some("two")).unwrap(), 9).len(), 3);
    assert_eq!(poll(&named(None).unwrap(), 9).len(), 3);
    let plain = ConsumerOptions { name: Some("one".into()), ..options() };
    assert!(broker.consumer("g", &["t"], plain).is_err());
}

#[test]
fn queues_and_topics_that_come_are_taken_up() {
    let (world, store, broker) = SimStore::with_broker();
    let one = broker.consumer("g", &["t", "later"], options()).unwrap();
    let two = broker.consumer("g", &["later"], options()).unwrap();
    assert!(one.assignment().unwrap().is_empty());
    store.create_topic("t", 1, &[]).unwrap();
    store.create_topic("later", 3, &[]).unwrap();
    fill(&store, "later", 3, 0..3);
    world.clock.advance(Duration::from_secs(1));
    assert_eq!(one.assignment().unwrap().len(), 2);
    assert_eq!(two.assignment().unwrap().len(), 2);
    let mut all = bodies(&poll(&one, 9));
    all.extend(bodies(&poll(&two, 9)));
    all.sort();
    assert_eq!(all, ["0", "1", "2"]);
}

#[test]
fn a_commit_covers_what_was_filtered_out_and_no_more_than_was_handed_out() {
    let world = SimStore::new();
    let store = world.open();
    for (number, tag) in ["a", "b", "b", "a", "a", "b"].into_iter().enumerate() {
        put(&store, "t", 0, &number.to_string(), tag);
    }
    let broker = Broker::new(&store).unwrap();
    let filter = MessageFilter::tags("a").unwrap();
    let consumer = broker.consumer("g", &["t"], ConsumerOptions { filter, ..options() }).unwrap();
    let committed = || {
        consumer.commit(false).unwrap();
        consumer.committed("t", 0).unwrap()
    };
    let next = || consumer.next_once(Duration::ZERO).unwrap().map(|record| body(&record));
    assert_eq!(next().as_deref(), Some("0"));
    // All three were read ahead; the next one to be handed out is 3.
    assert_eq!(committed(), Some(3));
    assert_eq!(next().as_deref(), Some("3"));
    assert_eq!(committed(), Some(4));
    assert_eq!(next().as_deref(), Some("4"));
    assert_eq!(committed(), Some(6));
    assert_eq!(next(), None);
    put(&store, "t", 0, "6", "b");
    assert_eq!(next(), None);
    assert_eq!(committed(), Some(7));
    assert_eq!(consumer.lag().unwrap(), [(queue("t", 0), 0)]);
}

#[test]
fn queues_take_turns() {
    let world = SimStore::new();
    let store = world.open();
    store.create_topic("t", 3, &[]).unwrap();
    fill(&store, "t", 3, 0..30);
    let broker = Broker::new(&store).unwrap();
    let consumer = consumer(&broker, "g", "t");
    let first: Vec<_> = (0..6).map(|_| poll(&consumer, 1)[0].view().unwrap().queue_id).collect();
    assert_eq!(first, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn what_was_committed_can_be_looked_up_later() {
    let world = SimStore::new();
    let store = world.open();
    store.create_topic("t", 2, &[]).unwrap();
    fill(&store, "t", 2, 0..8);
    let broker = Broker::new(&store).unwrap();
    let history = |group: &str| {
        let mut history = OffsetHistory::open(broker.store(), group).unwrap();
        let mut found = Vec::new();
        loop {
            let batch = history.next_batch().unwrap();
            if batch.is_empty() {
                return found;
            }
            found
                .extend(batch.into_iter().map(|one| (one.topic, one.queue_id, one.offset, one.timestamp_ms)));
        }
    };
    assert!(history("g").is_empty());
    let kept = broker.consumer("g", &["t"], ConsumerOptions { history: true, ..options() }).unwrap();
    let other = broker.consumer("h", &["t"], ConsumerOptions { history: true, ..options() }).unwrap();
    assert_eq!(poll(&kept, 2).len(), 2);
    kept.commit(false).unwrap();
    other.commit_offsets(&[(queue("t", 1), 1)], false).unwrap();
    world.clock.advance(Duration::from_secs(5));
    let begin = crate::testing::BEGIN_MS;
    assert_eq!(poll(&kept, 99).len(), 6);
    kept.commit(false).unwrap();
    kept.commit(false).unwrap();
    let found = history("g");
    let of = |queue_id: i32| -> Vec<_> { found.iter().filter(|one| one.1 == queue_id).collect() };
    assert_eq!(of(0).last().unwrap(), &&("t".to_owned(), 0, 4, begin + 5000));
    assert_eq!(of(1).last().unwrap(), &&("t".to_owned(), 1, 4, begin + 5000));
    assert!(found.iter().any(|one| one.3 < begin + 5000));
    assert_eq!(history("h").len(), 1);
    let topics = store.settings().all().unwrap().topics;
    let topic = topics.iter().find(|topic| topic.name == super::offset_history::HISTORY_TOPIC).unwrap();
    assert!(topic.attributes.iter().eq([(&"cleanup.policy".to_owned(), &"COMPACTION".to_owned())]));
}

#[test]
fn groups_and_topics_have_to_be_possible() {
    let (_world, _store, broker) = SimStore::with_broker();
    for (group, topics) in [("a@b", &["t"][..]), ("", &["t"]), ("g", &[])] {
        let refused = broker.consumer(group, topics, options());
        assert!(matches!(refused, Err(BrokerError::Store(StoreError::InvalidOption { .. }))), "{group}");
    }
}
