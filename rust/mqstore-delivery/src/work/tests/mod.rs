//! Work queues: which worker gets which message and how often, and what happens to finished and unfinished messages.

mod clock;
mod dead_letters;
mod model;
mod nonblocking;
mod pop_takeover;
mod waiting;
mod year;

use std::time::Duration;

use mqstore_base::error::StoreError;
use mqstore_base::message::TagFilter;
use mqstore_base::options::StoreOptions;
use mqstore_engine::Store;

use crate::testing::{SimStore, body, fill, put, small};
use crate::{Backoff, WorkQueueCounts};
use crate::{Broker, BrokerError, ConsumerOptions, LeasedMessage, NewWork, WorkQueue, WorkQueueOptions};

const NOW: Option<Duration> = Some(Duration::ZERO);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn options() -> WorkQueueOptions {
    WorkQueueOptions::default()
}

fn work(broker: &Broker) -> WorkQueue {
    broker.work_queue("jobs", "workers", options()).unwrap()
}

/// Returns a new world with an open work queue.
fn opened() -> (SimStore, Store, Broker, WorkQueue) {
    let (world, store, broker) = SimStore::with_broker();
    let queue = work(&broker);
    (world, store, broker, queue)
}

fn put_work(queue: &WorkQueue, body: &str) {
    queue.put(&NewWork { body: body.as_bytes(), ..NewWork::default() }, NOW).unwrap();
}

fn get(queue: &WorkQueue) -> Option<LeasedMessage> {
    match queue.get(NOW) {
        Ok(message) => Some(message),
        Err(BrokerError::Empty { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

fn got(queue: &WorkQueue) -> Option<(String, u32)> {
    get(queue).map(|message| (body(&message), message.lease.attempt()))
}

fn is_lost<T: std::fmt::Debug>(outcome: &Result<T, BrokerError>) -> bool {
    matches!(outcome, Err(BrokerError::LeaseLost { .. }))
}

#[test]
fn a_message_is_somebodys_until_it_is_finished() {
    let (world, _store, broker) = SimStore::with_broker();
    let (queue, other) = (work(&broker), work(&broker));
    for number in 0..3 {
        put_work(&queue, &number.to_string());
    }
    assert_eq!(queue.qsize().unwrap(), 3);
    let first = get(&queue).unwrap();
    assert_eq!((body(&first).as_str(), first.lease.attempt()), ("0", 1));
    assert_eq!(first.lease.invisible_until_ms(), crate::testing::BEGIN_MS + 30_000);
    let second = get(&other).unwrap();
    assert_eq!(body(&second), "1");
    let counts = WorkQueueCounts { ready: 1, leased: 2, ..WorkQueueCounts::default() };
    assert_eq!(other.counts().unwrap(), counts);
    second.lease.ack(false).unwrap();
    second.lease.ack(true).unwrap();
    assert_eq!(got(&queue), Some(("2".into(), 1)));
    assert_eq!(got(&queue), None);
    // The lease has ended, but no other worker has the message: it can still be acknowledged.
    world.clock.advance(seconds(31));
    first.lease.ack(false).unwrap();
    assert_eq!(got(&queue), Some(("2".into(), 2)));
    assert_eq!(got(&queue), None);
}

#[test]
fn what_was_not_finished_in_time_is_delivered_again() {
    let (world, _store, _broker, queue) = opened();
    put_work(&queue, "a");
    let first = get(&queue).unwrap();
    world.clock.advance(seconds(20));
    first.lease.extend(seconds(30)).unwrap();
    world.clock.advance(seconds(29));
    assert_eq!(got(&queue), None);
    assert!(first.lease.is_held());
    world.clock.advance(seconds(1));
    let second = get(&queue).unwrap();
    assert_eq!(second.lease.attempt(), 2);
    // The first lease is too late for any change.
    assert!(!first.lease.is_held());
    assert!(is_lost(&first.lease.ack(false)));
    assert!(is_lost(&first.lease.nack(None)));
    assert!(is_lost(&first.lease.extend(seconds(1))));
    second.lease.ack(false).unwrap();
    // The message is finished, so a late ack changes nothing.
    first.lease.ack(false).unwrap();
    assert!(queue.join(NOW).unwrap());
}

#[test]
fn what_is_given_back_waits_as_it_is_told() {
    let (world, _store, _broker, queue) = opened();
    put_work(&queue, "a");
    let first = get(&queue).unwrap();
    first.lease.nack(Some(Duration::ZERO)).unwrap();
    assert!(is_lost(&first.lease.nack(None)));
    assert!(is_lost(&first.lease.ack(false)));
    let second = get(&queue).unwrap();
    assert_eq!(second.lease.attempt(), 2);
    second.lease.nack(Some(seconds(5))).unwrap();
    let counts = WorkQueueCounts { delayed: 1, ..WorkQueueCounts::default() };
    assert_eq!((got(&queue), queue.counts().unwrap(), queue.qsize().unwrap()), (None, counts, 1));
    world.clock.advance(seconds(5));
    assert_eq!(queue.counts().unwrap(), WorkQueueCounts { ready: 1, ..WorkQueueCounts::default() });
    // By RocketMQ's levels: one minute after the third delivery.
    let third = get(&queue).unwrap();
    third.lease.nack(None).unwrap();
    world.clock.advance(seconds(59));
    assert_eq!(got(&queue), None);
    world.clock.advance(seconds(1));
    assert_eq!(got(&queue), Some(("a".into(), 4)));
}

#[test]
fn a_function_may_say_how_long() {
    let (world, _store, broker) = SimStore::with_broker();
    let backoff = Backoff::Function(std::sync::Arc::new(|attempt| seconds(u64::from(attempt) * 7)));
    let options = WorkQueueOptions { backoff, ..options() };
    let queue = broker.work_queue("jobs", "workers", options).unwrap();
    put_work(&queue, "a");
    for attempt in 1..4 {
        let message = get(&queue).unwrap();
        assert_eq!(message.lease.attempt(), attempt);
        message.lease.nack(None).unwrap();
        world.clock.advance(seconds(u64::from(attempt) * 7 - 1));
        assert_eq!(got(&queue), None);
        world.clock.advance(seconds(1));
    }
}

#[test]
fn a_put_may_be_held_back() {
    let (world, _store, broker, queue) = opened();
    let late = NewWork { body: b"late", delay: Some(seconds(60)), ..NewWork::default() };
    queue.put(&late, NOW).unwrap();
    put_work(&queue, "now");
    let done = |queue: &WorkQueue| {
        let message = get(queue)?;
        message.lease.ack(false).unwrap();
        Some((body(&message), message.lease.attempt()))
    };
    assert_eq!(done(&queue), Some(("now".into(), 1)));
    assert_eq!(done(&queue), None);
    let other = broker.work_queue("jobs", "others", options()).unwrap();
    assert_eq!(done(&other), Some(("now".into(), 1)));
    assert_eq!(done(&other), None);
    assert_eq!(queue.counts().unwrap(), WorkQueueCounts { delayed: 1, ..WorkQueueCounts::default() });
    world.clock.advance(seconds(59));
    assert_eq!(done(&other), None);
    world.clock.advance(seconds(1));
    assert_eq!(done(&other), Some(("late".into(), 1)));
    // A delayed message that is first read after its due time is like any other.
    queue.put(&NewWork { body: b"later", delay: Some(seconds(5)), ..NewWork::default() }, NOW).unwrap();
    world.clock.advance(seconds(6));
    let both = [done(&queue).unwrap(), done(&queue).unwrap()];
    assert!(both.contains(&("late".into(), 1)) && both.contains(&("later".into(), 1)), "{both:?}");
    assert!(queue.join(NOW).unwrap());
    let much = NewWork { delay: Some(seconds(31 * 24 * 3600)), ..late };
    assert!(matches!(queue.put(&much, NOW), Err(BrokerError::Store(StoreError::InvalidOption { .. }))));
}

#[test]
fn many_at_once_come_from_all_queues() {
    let world = SimStore::new();
    let store = world.open();
    store.create_topic("jobs", 3, &[]).unwrap();
    fill(&store, "jobs", 3, 0..30);
    let broker = Broker::new(&store).unwrap();
    let queue = work(&broker);
    let turns: Vec<_> = (0..6).map(|_| get(&queue).unwrap().view().unwrap().queue_id).collect();
    assert_eq!(turns, [0, 1, 2, 0, 1, 2]);
    let many = queue.get_many(9, NOW).unwrap();
    let of = |id| many.iter().filter(|message| message.view().unwrap().queue_id == id).count();
    assert_eq!([of(0), of(1), of(2)], [3, 3, 3]);
    let rest = queue.get_many(100, NOW).unwrap();
    assert_eq!(rest.len(), 15);
    queue.ack_all(many.iter().chain(&rest).map(|message| &message.lease), true).unwrap();
    assert_eq!(queue.counts().unwrap().leased, 6);
    // New queues are added.
    store.create_topic("jobs", 4, &[]).unwrap();
    put(&store, "jobs", 3, "new queue", "T");
    world.clock.advance(seconds(1));
    assert_eq!(got(&queue), Some(("new queue".into(), 1)));
}

#[test]
fn one_slow_message_holds_nothing_up() {
    let (_world, _store, broker, queue) = opened();
    put_work(&queue, "slow");
    let slow = get(&queue).unwrap();
    for number in 0..500 {
        put_work(&queue, &number.to_string());
        let message = get(&queue).unwrap();
        assert_eq!(body(&message), number.to_string());
        message.lease.ack(false).unwrap();
    }
    let key = broker.meta().queue_key("workers", "jobs", 0).unwrap();
    let progress = broker.meta().progress(key);
    assert_eq!(progress.lock().committed(), 0);
    assert_eq!(progress.lock().finished().len(), 1);
    slow.lease.ack(false).unwrap();
    assert_eq!(progress.lock().committed(), 501);
}

#[test]
fn retries_and_new_messages_take_turns() {
    let (_world, _store, _broker, queue) = opened();
    for number in 0..20 {
        put_work(&queue, &number.to_string());
    }
    for message in queue.get_many(10, NOW).unwrap() {
        message.lease.nack(Some(Duration::ZERO)).unwrap();
    }
    let attempts: Vec<_> = (0..10).map(|_| got(&queue).unwrap().1).collect();
    assert_eq!(attempts.iter().filter(|attempt| **attempt == 2).count(), 5, "{attempts:?}");
    let both = queue.get_many(10, NOW).unwrap();
    assert_eq!(both.iter().filter(|message| message.lease.attempt() == 2).count(), 5);
    assert_eq!(got(&queue), None);
}

#[test]
fn a_full_queue_takes_no_more() {
    let (world, _store, broker) = SimStore::with_broker();
    let options = WorkQueueOptions { maxsize: 2, ..options() };
    let queue = broker.work_queue("jobs", "workers", options).unwrap();
    put_work(&queue, "a");
    queue.put(&NewWork { body: b"b", delay: Some(seconds(9)), ..NewWork::default() }, NOW).unwrap();
    let full = queue.put(&NewWork::default(), NOW);
    assert!(matches!(full, Err(BrokerError::Full { maxsize: 2, .. })), "{full:?}");
    let message = get(&queue).unwrap();
    put_work(&queue, "c");
    assert!(queue.put(&NewWork::default(), NOW).is_err());
    // A returned message is accepted even if the queue is full.
    message.lease.nack(Some(Duration::ZERO)).unwrap();
    assert_eq!(queue.qsize().unwrap(), 3);
    assert_eq!(queue.get_many(9, NOW).unwrap().len(), 2);
    let three = [NewWork { body: b"x", ..NewWork::default() }; 3];
    assert!(matches!(queue.put_all(&three, NOW), Err(BrokerError::Full { .. })));
    world.clock.advance(seconds(9));
    assert_eq!(queue.get_many(9, NOW).unwrap().len(), 1);
    assert_eq!(queue.put_all(&three, NOW).unwrap().len(), 3, "an empty queue accepts more than maxsize");
}

#[test]
fn tasks_are_done_in_the_order_in_which_a_thread_got_them() {
    let (_world, _store, _broker, queue) = opened();
    assert!(matches!(queue.task_done(), Err(BrokerError::NothingToDo)));
    for number in 0..3 {
        put_work(&queue, &number.to_string());
    }
    let [first, second, third] = [get(&queue).unwrap(), get(&queue).unwrap(), get(&queue).unwrap()];
    queue.task_done().unwrap();
    assert!(!first.lease.is_held() && second.lease.is_held());
    second.lease.ack(false).unwrap();
    assert!(!queue.join(NOW).unwrap());
    // Another thread has no messages.
    std::thread::scope(|scope| {
        let other = scope.spawn(|| queue.task_done());
        assert!(matches!(other.join().unwrap(), Err(BrokerError::NothingToDo)));
    });
    queue.task_done().unwrap();
    assert!(!third.lease.is_held());
    assert!(queue.join(NOW).unwrap());
    assert!(matches!(queue.task_done(), Err(BrokerError::NothingToDo)));
}

#[test]
fn a_shutdown_loses_nothing() {
    let (world, _store, broker) = SimStore::with_broker();
    let (queue, other) = (work(&broker), work(&broker));
    put_work(&queue, "a");
    put_work(&queue, "b");
    let first = get(&queue).unwrap();
    queue.shutdown(false);
    assert!(matches!(other.put(&NewWork::default(), NOW), Err(BrokerError::ShutDown { .. })));
    assert_eq!(got(&other), Some(("b".into(), 1)));
    assert!(matches!(other.get(None), Err(BrokerError::ShutDown { .. })));
    first.lease.nack(Some(Duration::ZERO)).unwrap();
    assert_eq!(got(&other), Some(("a".into(), 2)));
    queue.task_done().unwrap_err();
    other.shutdown(true);
    assert!(matches!(queue.get(None), Err(BrokerError::ShutDown { .. })));
    // A handle that is opened later finds the remaining messages.
    let later = work(&broker);
    put_work(&later, "c");
    assert_eq!(got(&later), Some(("c".into(), 1)));
    world.clock.advance(seconds(60));
    assert_eq!(later.get_many(9, NOW).unwrap().len(), 3);
}

#[test]
fn a_close_ends_one_handle() {
    let (_world, _store, broker) = SimStore::with_broker();
    let (queue, other) = (work(&broker), work(&broker));
    put_work(&queue, "a");
    let message = get(&queue).unwrap();
    queue.close();
    queue.close();
    assert!(matches!(queue.get(None), Err(BrokerError::ShutDown { .. })));
    assert!(matches!(queue.put(&NewWork::default(), None), Err(BrokerError::ShutDown { .. })));
    message.lease.ack(false).unwrap();
    assert!(other.join(NOW).unwrap());
}

#[test]
fn a_group_is_one_or_the_other_at_a_time() {
    let world = SimStore::new();
    let store = world.open();
    fill(&store, "jobs", 1, 0..6);
    let broker = Broker::new(&store).unwrap();
    let refused = |outcome: Result<(), BrokerError>| {
        assert!(matches!(outcome, Err(BrokerError::Store(StoreError::InvalidOption { .. }))), "{outcome:?}");
    };
    let consumer = broker.consumer("workers", &["jobs"], ConsumerOptions::default()).unwrap();
    assert_eq!(consumer.poll(2, NOW).unwrap().len(), 2);
    consumer.commit(false).unwrap();
    refused(broker.work_queue("jobs", "workers", options()).map(drop));
    drop(consumer);
    // The work queue continues at the group's offset.
    let queue = work(&broker);
    assert_eq!(got(&queue), Some(("2".into(), 1)));
    refused(broker.consumer("workers", &["jobs"], ConsumerOptions::default()).map(drop));
    for other in [
        WorkQueueOptions { max_attempts: None, ..options() },
        WorkQueueOptions { maxsize: 1, ..options() },
        WorkQueueOptions { backoff: Backoff::Function(std::sync::Arc::new(|_| seconds(1))), ..options() },
    ] {
        refused(broker.work_queue("jobs", "workers", other).map(drop));
    }
    let quick = WorkQueueOptions { visibility_timeout: seconds(1), ..options() };
    let quick = broker.work_queue("jobs", "workers", quick).unwrap();
    assert_eq!(quick.options().visibility_timeout, seconds(1));
    for bad in ["", "a@b"] {
        refused(broker.work_queue("jobs", bad, options()).map(drop));
    }
    store.create_topic("batches", 1, &[("queue.type".into(), "BatchCQ".into())]).unwrap();
    refused(broker.work_queue("batches", "workers", options()).map(drop));
    assert_eq!(broker.meta().group("workers").unwrap().name, "workers");
}

#[test]
fn topics_are_made_where_that_is_allowed() {
    let world = SimStore::new();
    let store = world.try_open(&StoreOptions { auto_create_topics: false, ..small() }).unwrap();
    let broker = Broker::new(&store).unwrap();
    let refused = broker.work_queue("jobs", "workers", options());
    assert!(matches!(refused, Err(BrokerError::Store(StoreError::TopicNotFound { .. }))));
    store.create_topic("jobs", 1, &[]).unwrap();
    let queue = work(&broker);
    assert_eq!(broker.meta().group("workers").unwrap().retry_max_times, 15);
    put_work(&queue, "a");
    assert!(TagFilter::parse("*").unwrap().is_none());
    assert_eq!(got(&queue), Some(("a".into(), 1)));
}

#[test]
fn the_retention_may_be_faster() {
    let world = SimStore::new();
    let options = StoreOptions { retention_bytes: Some(1), ..small() };
    let store = world.try_open(&options).unwrap();
    let broker = Broker::new(&store).unwrap();
    let queue = work(&broker);
    put_work(&queue, "leased");
    put_work(&queue, "returned");
    put_work(&queue, "never got");
    let [leased, returned] = [get(&queue).unwrap(), get(&queue).unwrap()];
    returned.lease.nack(Some(seconds(1))).unwrap();
    let long = "x".repeat(3000);
    for _ in 0..20 {
        put_work(&queue, &long);
    }
    store.flush().unwrap();
    assert!(store.expire(false, &mut || Ok(())).unwrap().segments > 0);
    let (min, max) = store.bounds("jobs", 0).unwrap();
    world.clock.advance(seconds(60));
    let mut rest = queue.get_many(100, NOW).unwrap();
    rest.extend(queue.get_many(100, NOW).unwrap());
    let offsets: Vec<_> = rest.iter().map(|message| message.queue_offset).filter(|at| *at >= min).collect();
    assert_eq!(offsets, (min..max).collect::<Vec<_>>());
    assert!(!store.user_notes().take_lines().is_empty());
    leased.lease.ack(false).unwrap();
    for message in &rest {
        message.lease.ack(false).unwrap();
    }
    assert!(queue.join(NOW).unwrap());
}
