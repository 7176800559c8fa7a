//! Consumers whose next messages are only before the log.

use std::sync::Arc;

use super::{consumer, options, poll, queue};
use crate::testing::{SimStore, put, small};
use crate::{Broker, BrokerError, ConsumerOptions, LostMessagePolicy, StartOffset};
use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_base::options::StoreOptions;
use mqstore_engine::Store;
use mqstore_engine::testing::OlderRecords;

fn offsets(records: &[StoredRecord]) -> Vec<i64> {
    records.iter().map(|record| record.queue_offset).collect()
}

/// Makes a store whose log has lost its first messages. Returns all messages.
fn aged(store: &Store) -> Vec<StoredRecord> {
    let long = "x".repeat(3000);
    store.create_topic("t", 1, &[]).unwrap();
    for _ in 0..40 {
        put(store, "t", 0, &long, "T");
    }
    let records = store.read("t", 0, None, None, None).unwrap().next_batch(100).unwrap();
    store.flush().unwrap();
    assert!(store.expire(false, &mut || Ok(())).unwrap().segments > 0);
    assert!(store.bounds("t", 0).unwrap().0 > 8);
    records
}

#[test]
fn a_group_begins_and_continues_before_the_log() {
    let world = SimStore::new();
    let store = world.try_open(&StoreOptions { retention_bytes: Some(1), ..small() }).unwrap();
    let broker = Broker::new(&store).unwrap();
    let records = aged(&store);
    store.set_older(Some(Arc::new(OlderRecords::new(records.clone(), 16))));
    for ordered in [false, true] {
        let group = format!("g-{ordered}");
        let with = || ConsumerOptions { ordered, ..ConsumerOptions::default() };
        let first = broker.consumer(&group, &["t"], with()).unwrap();
        assert_eq!(first.position("t", 0).unwrap(), 0);
        assert_eq!(offsets(&poll(&first, 5)), [0, 1, 2, 3, 4]);
        first.commit(false).unwrap();
        assert_eq!(first.committed("t", 0).unwrap(), Some(5));
        assert_eq!(first.lag().unwrap(), [(queue("t", 0), 35)]);
        // Read and not committed.
        assert_eq!(offsets(&poll(&first, 3)), [5, 6, 7]);
        first.close();
        let second = broker.consumer(&group, &["t"], with()).unwrap();
        let mut found = Vec::new();
        while found.len() < 35 {
            let some = poll(&second, 100);
            assert!(!some.is_empty());
            found.extend(some);
        }
        assert_eq!(offsets(&found), offsets(&records[5..]));
        second.commit(false).unwrap();
        second.seek("t", 0, 2).unwrap();
        let next = second.next_once(std::time::Duration::ZERO).unwrap();
        assert_eq!(next.map(|record| record.queue_offset), Some(2));
        second.reset(StartOffset::Earliest, false).unwrap();
        assert_eq!(second.committed("t", 0).unwrap(), Some(0));
        let time_ms = records[11].view().unwrap().store_timestamp;
        second.reset(StartOffset::Time(time_ms), false).unwrap();
        let at = second.committed("t", 0).unwrap().unwrap();
        assert_eq!(records[at as usize].view().unwrap().store_timestamp, time_ms);
        assert!(store.user_notes().take_lines().iter().all(|note| !note.contains("were deleted")));
    }
}

#[test]
fn what_nobody_has_is_lost() {
    let world = SimStore::new();
    let store = world.try_open(&StoreOptions { retention_bytes: Some(1), ..small() }).unwrap();
    let broker = Broker::new(&store).unwrap();
    store.create_topic("t", 1, &[]).unwrap();
    let goes_on = consumer(&broker, "g", "t");
    goes_on.commit(false).unwrap();
    drop(goes_on);
    let records = aged(&store);
    for (fails, group) in [(false, "g"), (true, "h")] {
        let on_lost = if fails { LostMessagePolicy::Fail } else { LostMessagePolicy::GoOn };
        store.set_older(Some(Arc::new(OlderRecords::new(records[4..].to_vec(), 16))));
        let consumer = broker.consumer(group, &["t"], ConsumerOptions { on_lost, ..options() }).unwrap();
        if fails {
            // A new group begins with the first message that exists.
            assert_eq!(consumer.position("t", 0).unwrap(), 4);
            consumer.commit_offsets(&[(queue("t", 0), 4)], false).unwrap();
            let error = consumer.seek("t", 0, 3).unwrap_err();
            assert!(matches!(error, BrokerError::Store(StoreError::OffsetOutOfRange { min_offset: 4, .. })));
        }
        assert_eq!(offsets(&poll(&consumer, 2)), [4, 5]);
        assert_eq!(store.user_notes().take_lines().len(), usize::from(!fails));
    }
}
