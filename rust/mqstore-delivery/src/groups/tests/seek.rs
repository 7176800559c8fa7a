//! Seeks, resets, and queues whose messages the retention deleted before the group read them.

use mqstore_base::options::StoreOptions;

use super::*;
use crate::LostMessagePolicy;
use crate::testing::small;

#[test]
fn offsets_go_back_only_when_asked() {
    let world = SimStore::new();
    let store = world.open();
    fill(&store, "t", 1, 0..10);
    let broker = Broker::new(&store).unwrap();
    let consumer = consumer(&broker, "g", "t");
    let committed = || consumer.committed("t", 0).unwrap();
    poll(&consumer, 6);
    consumer.commit(false).unwrap();
    assert_eq!(committed(), Some(6));
    consumer.commit_offsets(&[(queue("t", 0), 4)], false).unwrap();
    assert_eq!(committed(), Some(6), "a late commit of another thread changes nothing");
    assert!(consumer.commit_offsets(&[(queue("t", 0), 11)], false).is_err());
    assert!(store.user_notes().take_lines().is_empty());
    consumer.seek("t", 0, 2).unwrap();
    assert_eq!((consumer.position("t", 0).unwrap(), committed()), (2, Some(6)));
    assert_eq!(bodies(&poll(&consumer, 1)), ["2"]);
    consumer.commit(false).unwrap();
    assert_eq!(committed(), Some(3));
    assert_eq!(store.user_notes().take_lines().len(), 1);
    assert!(store.user_notes().take_lines().is_empty());
    consumer.commit_offsets(&[(queue("t", 0), 1)], false).unwrap();
    assert_eq!(committed(), Some(3));
    for bad in [-1, 11] {
        let refused = consumer.seek("t", 0, bad);
        assert!(matches!(refused, Err(BrokerError::Store(StoreError::OffsetOutOfRange { .. }))), "{bad}");
    }
    consumer.seek("t", 0, 10).unwrap();
    assert!(poll(&consumer, 1).is_empty());
    consumer.reset(StartOffset::Earliest, true).unwrap();
    assert_eq!(committed(), Some(0));
    assert_eq!(consumer.lag().unwrap(), [(queue("t", 0), 10)]);
    consumer.reset(StartOffset::Latest, false).unwrap();
    assert_eq!(committed(), Some(10));
    assert_eq!(consumer.lag().unwrap(), [(queue("t", 0), 0)]);
}

#[test]
fn a_time_is_found_in_every_queue() {
    let world = SimStore::new();
    let store = world.open();
    store.create_topic("t", 2, &[]).unwrap();
    let mut times = Vec::new();
    for number in 0..6 {
        times.push(mqstore_io::Clock::now_ms(&*world.clock));
        fill(&store, "t", 2, number..number + 1);
        world.clock.advance(Duration::from_secs(1));
    }
    let broker = Broker::new(&store).unwrap();
    let consumer = consumer(&broker, "g", "t");
    assert_eq!(consumer.next_once(Duration::ZERO).unwrap().map(|record| body(&record)), Some("0".into()));
    consumer.seek_to_time(times[3]).unwrap();
    let mut found = bodies(&poll(&consumer, 9));
    found.sort();
    assert_eq!(found, ["3", "4", "5"]);
    consumer.reset(StartOffset::Time(times[4]), false).unwrap();
    assert_eq!(consumer.committed("t", 0).unwrap(), Some(2));
    assert_eq!(consumer.committed("t", 1).unwrap(), Some(2));
    consumer.seek_to_time(i64::MAX).unwrap();
    assert!(poll(&consumer, 9).is_empty());
}

#[test]
fn what_was_read_ahead_does_not_come_behind_a_seek() {
    let world = SimStore::new();
    let store = world.open();
    fill(&store, "t", 1, 0..10);
    let broker = Broker::new(&store).unwrap();
    let consumer = consumer(&broker, "g", "t");
    let next = || consumer.next_once(Duration::ZERO).unwrap().map(|record| body(&record));
    assert_eq!(next().as_deref(), Some("0"));
    consumer.seek("t", 0, 7).unwrap();
    assert_eq!(next().as_deref(), Some("7"));
    // A poll first takes messages that iteration read ahead.
    assert_eq!(bodies(&poll(&consumer, 9)), ["8", "9"]);
    consumer.commit(false).unwrap();
    assert_eq!(consumer.committed("t", 0).unwrap(), Some(10));
}

#[test]
fn the_retention_may_be_faster() {
    let world = SimStore::new();
    let options = StoreOptions { retention_bytes: Some(1), ..small() };
    let store = world.try_open(&options).unwrap();
    let broker = Broker::new(&store).unwrap();
    store.create_topic("t", 1, &[]).unwrap();
    let goes_on = consumer(&broker, "goes-on", "t");
    let fails = ConsumerOptions { on_lost: LostMessagePolicy::Fail, ..self::options() };
    let fails = broker.consumer("fails", &["t"], fails).unwrap();
    let filter = MessageFilter::tags("T").unwrap();
    let filtered = ConsumerOptions { filter, ..self::options() };
    let filtered = broker.consumer("filtered", &["t"], filtered).unwrap();
    fill(&store, "t", 1, 0..3);
    for consumer in [&goes_on, &fails, &filtered] {
        assert_eq!(poll(consumer, 1).len(), 1);
    }
    let long = "x".repeat(3000);
    for _ in 0..20 {
        put(&store, "t", 0, &long, "T");
    }
    store.flush().unwrap();
    let report = store.expire(false, &mut || Ok(())).unwrap();
    assert!(report.segments > 0);
    let (min, max) = store.bounds("t", 0).unwrap();
    assert!(min > 3);
    for consumer in [&goes_on, &filtered] {
        let mut found = poll(consumer, 100);
        // Messages whose units were already read may still come.
        found.extend(poll(consumer, 100));
        let offsets: Vec<_> = found.iter().map(|record| record.queue_offset).filter(|at| *at >= 3).collect();
        assert_eq!(offsets, (min..max).collect::<Vec<_>>());
        let notes = store.user_notes().take_lines();
        assert!(notes.len() == 1 && notes[0].contains("were deleted before"), "{notes:?}");
        assert!(poll(consumer, 100).is_empty());
        consumer.commit(false).unwrap();
    }
    // Messages in a segment that the consumer uses may still come.
    for _ in 1..3 {
        let _ = fails.poll(1, Some(Duration::ZERO));
    }
    for _ in 0..2 {
        let error = fails.poll(9, Some(Duration::ZERO)).unwrap_err();
        assert!(matches!(error, BrokerError::Store(StoreError::OffsetOutOfRange { .. })), "{error}");
    }
    fails.seek("t", 0, min).unwrap();
    assert_eq!(poll(&fails, 1)[0].queue_offset, min);
}
