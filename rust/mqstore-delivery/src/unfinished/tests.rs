//! Thirty days with a retention on a manual clock, and the messages that wait for a delivery.

use std::collections::BTreeSet;
use std::time::Duration;

use mqstore_base::message::{NewMessage, encode_properties};
use mqstore_base::options::{RetentionPolicy, StoreOptions};
use mqstore_engine::{ExpireReport, HolderKind, Store};
use mqstore_io::Clock;

use crate::testing::{BEGIN_MS, SimStore, bodies, body, put, small};
use crate::{Broker, ConsumerOptions, Due, NewHalfMessage, WorkQueueOptions};

const HOUR: Duration = Duration::from_secs(3600);
const DAY_MS: u64 = 86_400_000;
const DAYS: u64 = 30;
/// Messages of a day. With these bodies they fill two to three segments.
const PER_DAY: u64 = 40;
const NOW: Option<Duration> = Some(Duration::ZERO);

/// The defaults of a store with a retention of a week.
fn a_week() -> StoreOptions {
    StoreOptions { retention_ms: Some(7 * DAY_MS), ..small() }
}

/// Lets a day pass, in which the background removes what is due.
fn pass_a_day(world: &SimStore, store: &Store) {
    for _ in 0..24 {
        world.clock.advance(HOUR);
        store.step().unwrap();
    }
}

/// Appends the messages of a day; each names its day and its number.
fn put_a_day(store: &Store, topic: &str, day: u64) {
    for number in 0..PER_DAY {
        put(store, topic, 0, &text(day, number), "T");
    }
}

fn text(day: u64, number: u64) -> String {
    format!("{day} {number} {}", "x".repeat(800))
}

fn name(body: &str) -> String {
    body.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

fn oldest_day(store: &Store, topic: &str) -> u64 {
    let first = store.read(topic, 0, None, None, None).unwrap().next_batch(1).unwrap().remove(0);
    body(&first).split(' ').next().unwrap().parse().unwrap()
}

fn expire(store: &Store, dry_run: bool) -> ExpireReport {
    store.expire(dry_run, &mut || Ok(())).unwrap()
}

#[test]
fn thirty_days_of_a_plain_log_keep_each_message_for_a_week() {
    let world = SimStore::new();
    let store = world.try_open(&a_week()).unwrap();
    let _broker = Broker::start(&store).unwrap();
    for day in 0..DAYS {
        put_a_day(&store, "log", day);
        pass_a_day(&world, &store);
        // Whole segments go, so a part of a day may stay longer, and nothing goes earlier.
        let oldest = oldest_day(&store, "log");
        assert!(oldest <= (day + 1).saturating_sub(6), "day {day}: {oldest}");
        assert!(oldest + 9 > day, "day {day}: {oldest}");
    }
    assert_eq!(store.stats().unwrap().segments_kept_by, []);
    store.close().unwrap();
}

#[test]
fn thirty_days_of_a_work_queue_lose_no_job() {
    let world = SimStore::new();
    let mut store = world.try_open(&a_week()).unwrap();
    let mut broker = Broker::start(&store).unwrap();
    let open = |broker: &Broker| broker.work_queue("jobs", "workers", WorkQueueOptions::default()).unwrap();
    let mut queue = open(&broker);
    let mut done = BTreeSet::new();
    for day in 0..DAYS {
        put_a_day(&store, "jobs", day);
        // From day 3 to day 16 no worker runs.
        if !(3..17).contains(&day) {
            while let Some(job) = queue.get_many(1, NOW).unwrap().pop() {
                if name(&body(&job)) == "1 7" && day < 15 {
                    // This one is put off, again and again.
                    job.lease.nack(Some(HOUR * 24 * 14)).unwrap();
                    continue;
                }
                job.lease.ack(false).unwrap();
                assert!(done.insert(name(&body(&job))), "done twice");
            }
        }
        if day == 10 {
            // The program ends and starts again.
            drop(queue);
            drop(broker);
            store.close().unwrap();
            store = world.try_open(&a_week()).unwrap();
            broker = Broker::start(&store).unwrap();
            queue = open(&broker);
        }
        pass_a_day(&world, &store);
        if day == 16 {
            let kept_by = store.stats().unwrap().segments_kept_by;
            let [holder] = &kept_by[..] else { panic!("{kept_by:?}") };
            assert_eq!((holder.kind, holder.group.as_deref()), (HolderKind::Group, Some("workers")));
            let first = (holder.topic.as_str(), holder.offset);
            assert_eq!(first, ("jobs", (PER_DAY + 7) as i64), "the job that was put off");
        }
    }
    let all: BTreeSet<_> =
        (0..DAYS).flat_map(|day| (0..PER_DAY).map(move |n| format!("{day} {n}"))).collect();
    assert_eq!(done, all);
    assert!(oldest_day(&store, "jobs") >= DAYS - 9, "finished jobs go after a week");
    assert_eq!(store.stats().unwrap().segments_kept_by, []);
    store.close().unwrap();
}

#[test]
fn thirty_days_of_consumer_groups_keep_the_log_for_the_slowest() {
    let two_days = Some(2 * DAY_MS);
    for (policy, group_timeout_ms) in [
        (RetentionPolicy::Finished, None),
        (RetentionPolicy::Finished, two_days),
        (RetentionPolicy::Time, None),
    ] {
        let world = SimStore::new();
        let options = StoreOptions { retention_policy: policy, group_timeout_ms, ..a_week() };
        let store = world.try_open(&options).unwrap();
        let broker = Broker::start(&store).unwrap();
        store.create_topic("t", 1, &[]).unwrap();
        let consumer = |group| broker.consumer(group, &["t"], ConsumerOptions::default()).unwrap();
        // The third one reads and never commits.
        let (fast, dead, silent) = (consumer("fast"), consumer("dead"), consumer("silent"));
        let mut seen = 0;
        for day in 0..DAYS {
            put_a_day(&store, "t", day);
            seen += fast.poll(1000, NOW).unwrap().len();
            fast.commit(false).unwrap();
            if day < 5 {
                assert!(!dead.poll(1000, NOW).unwrap().is_empty());
                dead.commit(false).unwrap();
            }
            if day < 2 {
                assert!(!silent.poll(1000, NOW).unwrap().is_empty());
            }
            pass_a_day(&world, &store);
        }
        assert_eq!(seen as u64, DAYS * PER_DAY);
        let kept_by = store.stats().unwrap().segments_kept_by;
        let groups: Vec<_> = kept_by.iter().filter_map(|holder| holder.group.as_deref()).collect();
        if policy == RetentionPolicy::Finished && group_timeout_ms.is_none() {
            assert_eq!((oldest_day(&store, "t"), groups), (0, vec!["silent"]));
            silent.commit(false).unwrap();
            silent.close();
            // The other group needs the messages from day 5 on.
            let reset = broker.consumer("silent", &["t"], ConsumerOptions::default()).unwrap();
            while !reset.poll(1000, NOW).unwrap().is_empty() {}
            reset.commit(false).unwrap();
            expire(&store, false);
            assert_eq!(oldest_day(&store, "t"), 4, "the segment with the last messages that it read");
            assert_eq!(store.stats().unwrap().segments_kept_by[0].group.as_deref(), Some("dead"));
        } else {
            assert!(oldest_day(&store, "t") >= DAYS - 10, "{policy:?} {}", oldest_day(&store, "t"));
            assert_eq!(groups, Vec::<&str>::new());
        }
        store.close().unwrap();
    }
}

/// Retention of an hour, for messages that wait for longer.
fn an_hour(policy: RetentionPolicy) -> StoreOptions {
    StoreOptions { retention_ms: Some(DAY_MS / 24), retention_policy: policy, ..small() }
}

#[test]
fn delayed_messages_keep_their_segments_until_they_are_delivered() {
    for (policy, due) in [
        (RetentionPolicy::Finished, Due::At(BEGIN_MS + 36 * 3_600_000)),
        (RetentionPolicy::Time, Due::At(BEGIN_MS + 36 * 3_600_000)),
        (RetentionPolicy::Finished, Due::Level(1)),
    ] {
        let world = SimStore::new();
        let options = StoreOptions {
            delay_levels: Some(mqstore_format::DelayLevels::parse("36h").unwrap()),
            ..an_hour(policy)
        };
        let store = world.try_open(&options).unwrap();
        let broker = Broker::start(&store).unwrap();
        let properties = encode_properties([], None, None, []).unwrap();
        let message = NewMessage {
            topic: "later",
            body: b"reminder",
            properties: &properties,
            unique_key: None,
            queue_id: Some(0),
            flag: 0,
            born_timestamp_ms: None,
            durable: false,
            ..NewMessage::default()
        };
        store.create_topic("later", 1, &[]).unwrap();
        let waiting = broker.append_later(&[(message, due)]).unwrap().remove(0).appended;
        put_a_day(&store, "t", 0);
        pass_a_day(&world, &store);
        let kept_by = store.stats().unwrap().segments_kept_by;
        let [holder] = &kept_by[..] else { panic!("{kept_by:?}") };
        assert_eq!(
            (holder.kind, holder.group.as_deref(), holder.topic.as_str()),
            (HolderKind::Delayed, None, "later")
        );
        assert_eq!(holder.log_offset, waiting.commit_log_offset);
        assert_eq!(store.stats().unwrap().log_min_offset, 0);
        let planned = expire(&store, true);
        assert_eq!((planned.segments, planned.kept_by), (0, kept_by));
        pass_a_day(&world, &store);
        let mut cursor = store.read("later", 0, None, None, None).unwrap();
        assert_eq!(bodies(&cursor.next_batch(9).unwrap()), ["reminder"]);
        assert!(store.stats().unwrap().log_min_offset > 0);
        assert_eq!(store.stats().unwrap().segments_kept_by, []);
        store.close().unwrap();
    }
}

#[test]
fn undecided_transactions_keep_their_segments() {
    let world = SimStore::new();
    let store = world.try_open(&an_hour(RetentionPolicy::Finished)).unwrap();
    let broker = Broker::start(&store).unwrap();
    let transactions = broker.transactions().unwrap();
    let transaction = transactions.begin("shop").unwrap();
    let half =
        NewHalfMessage { topic: "orders", body: b"paid", queue_id: Some(0), ..NewHalfMessage::default() };
    transaction.append(&half).unwrap();
    put_a_day(&store, "t", 0);
    pass_a_day(&world, &store);
    let kept_by = store.stats().unwrap().segments_kept_by;
    let [holder] = &kept_by[..] else { panic!("{kept_by:?}") };
    assert_eq!((holder.kind, holder.group.as_deref()), (HolderKind::Transaction, Some("shop")));
    assert_eq!((holder.topic.as_str(), holder.offset), ("orders", 0));
    transaction.commit(false).unwrap();
    pass_a_day(&world, &store);
    assert!(store.stats().unwrap().log_min_offset > 0);
    assert_eq!(world.clock.now_ms(), BEGIN_MS + 2 * DAY_MS as i64);
    let mut cursor = store.read("orders", 0, None, None, None).unwrap();
    assert_eq!(bodies(&cursor.next_batch(9).unwrap()), ["paid"]);
    store.close().unwrap();
}

#[test]
fn a_consumer_that_never_committed_is_a_group_of_its_topic() {
    let world = SimStore::new();
    let store = world.try_open(&an_hour(RetentionPolicy::Finished)).unwrap();
    let broker = Broker::start(&store).unwrap();
    store.create_topic("t", 1, &[]).unwrap();
    drop(broker.consumer("new", &["t"], ConsumerOptions::default()).unwrap());
    put_a_day(&store, "t", 0);
    pass_a_day(&world, &store);
    assert_eq!(expire(&store, false).kept_by[0].group.as_deref(), Some("new"));
    let consumer = broker.consumer("new", &["t"], ConsumerOptions::default()).unwrap();
    assert_eq!(consumer.poll(1000, NOW).unwrap().len() as u64, PER_DAY);
    store.close().unwrap();
}
