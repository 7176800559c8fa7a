//! Reads of whole topics: merged, followed, their end and their number of messages.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::testing::*;
use crate::{FollowStep, MergedCursor, ReadBound, TopicFollower, TopicRead};
use mqstore_base::message::MessageFilter;
use mqstore_base::options::DamagePolicy;

const ALL: TopicRead<'_> = TopicRead {
    topic: "t",
    queue_id: None,
    start: None,
    end: None,
    filter: None,
    on_damage: DamagePolicy::Raise,
};

/// Appends messages with the bodies `numbers` to three queues, one a millisecond.
fn spread(store: &Store, clock: &ManualClock, numbers: std::ops::Range<u32>) {
    for number in numbers {
        put(store, "t", (number * number % 3) as i32, number.to_string().as_bytes(), "k");
        clock.advance(Duration::from_millis(1));
    }
}

fn numbers(records: &[StoredRecord]) -> Vec<u32> {
    records.iter().map(|record| String::from_utf8(body(record)).unwrap().parse().unwrap()).collect()
}

fn rest(cursor: &mut MergedCursor, max: usize) -> Vec<u32> {
    let mut found = Vec::new();
    loop {
        let batch = cursor.next_of(max, 100).unwrap();
        if batch.records.is_empty() && batch.ended {
            return found;
        }
        found.extend(numbers(&batch.records));
    }
}

fn followed(follower: &mut TopicFollower, store: &Store) -> Vec<u32> {
    let mut found = Vec::new();
    loop {
        match follower.next_of(store, 7, 100).unwrap() {
            FollowStep::Records(records) => found.extend(numbers(&records)),
            FollowStep::Later => {}
            FollowStep::Wait | FollowStep::End => return found,
        }
    }
}

#[test]
fn a_merge_returns_each_message_once_in_order() {
    let (world, _, clock) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    store.create_topic("t", 3, &[]).unwrap();
    spread(&store, &clock, 0..300);
    let mut cursor = store.read_topic(&ALL).unwrap();
    // The end was fixed at the call.
    spread(&store, &clock, 300..310);
    for max in [1, 7, 1000] {
        assert_eq!(rest(&mut cursor, max), (0..300).collect::<Vec<_>>(), "{max}");
        cursor =
            store.read_topic(&TopicRead { end: Some(ReadBound::TimeMs(1_700_000_000_300)), ..ALL }).unwrap();
    }
    let times = (ReadBound::TimeMs(1_700_000_000_100), ReadBound::TimeMs(1_700_000_000_200));
    let read = TopicRead { start: Some(times.0), end: Some(times.1), ..ALL };
    assert_eq!(rest(&mut store.read_topic(&read).unwrap(), 9), (100..200).collect::<Vec<_>>());
    let unknown = store.read_topic(&TopicRead { topic: "none", ..ALL });
    assert!(matches!(unknown, Err(StoreError::TopicNotFound { queue_id: None, .. })));
}

#[test]
fn a_merge_gives_back_control_while_a_filter_finds_nothing() {
    let (world, _, clock) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    store.create_topic("t", 3, &[]).unwrap();
    spread(&store, &clock, 0..300);
    let filter = MessageFilter::sql("n = '2'").unwrap();
    let mut cursor = store.read_topic(&TopicRead { filter: Some(&filter), ..ALL }).unwrap();
    let mut steps = 0;
    while !cursor.next_of(10, 20).unwrap().ended {
        steps += 1;
    }
    assert!(steps >= 300 / 20 / 2, "{steps}");
}

#[test]
fn a_follower_returns_messages_in_log_order_after_the_end() {
    let (world, _, clock) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    let reader = world.open(OpenMode::Read, &small()).unwrap();
    store.create_topic("t", 3, &[]).unwrap();
    spread(&store, &clock, 0..50);
    for view in [&store, &reader] {
        let first = store.ends("t").unwrap().values().sum::<i64>() as u32;
        let mut follower = TopicFollower::new(view, &ALL).unwrap();
        assert_eq!(followed(&mut follower, view), (0..first).collect::<Vec<_>>());
        assert!(!follower.wait(view, Duration::ZERO).unwrap());
        spread(&store, &clock, first..first + 40);
        assert!(follower.wait(view, Duration::ZERO).unwrap());
        assert_eq!(followed(&mut follower, view), (first..first + 40).collect::<Vec<_>>());
        assert_eq!(follower.places().into_iter().collect::<BTreeMap<_, _>>(), view.ends("t").unwrap());
        // A queue that the topic gets later.
        store.create_topic("t", 4, &[]).unwrap();
        let more = (first + 40).to_string();
        put(&store, "t", 2, more.as_bytes(), "k");
        assert_eq!(followed(&mut follower, view), [first + 40]);
    }
}

#[test]
fn a_tail_is_the_end_of_a_merge() {
    let (world, _, clock) = World::simulated();
    let store = world.open(OpenMode::Create, &small()).unwrap();
    store.create_topic("t", 3, &[]).unwrap();
    spread(&store, &clock, 0..200);
    // Many messages with one store time.
    for number in 200..260_u32 {
        put(&store, "t", (number % 3) as i32, number.to_string().as_bytes(), "k");
    }
    for most in [0, 1, 5, 59, 60, 61, 130, 260, 1000] {
        let found = store.tail(&ALL, most, &mut || Ok(())).unwrap();
        assert_eq!(numbers(&found), (260_u32.saturating_sub(most as u32)..260).collect::<Vec<_>>());
    }
    assert_eq!(store.count("t", &mut || Ok(())).unwrap(), 260);
    let closed = || StoreError::Closed { path: "here".into() };
    assert!(store.tail(&ALL, 300, &mut || Err(closed())).is_err());
    assert!(store.count("t", &mut || Err(closed())).is_err());
}
