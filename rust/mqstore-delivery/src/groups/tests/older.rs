//! Consumers whose next messages are only before the log.

use std::sync::Arc;

use super::{consumer, options, poll, queue};
use crate::testing::{SimStore, put, small};
use crate::{Broker, BrokerError, ConsumerOptions, LostMessagePolicy, OlderMessages, StartOffset};
use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_base::options::StoreOptions;
use mqstore_engine::Store;

/// Messages of one queue, from an offset on.
#[derive(Debug)]
struct Kept {
    records: Vec<StoredRecord>,
}

impl OlderMessages for Kept {
    fn first_offset(&self, topic: &str, queue_id: i32) -> Result<Option<i64>, StoreError> {
        assert_eq!((topic, queue_id), ("t", 0));
        Ok(self.records.first().map(|record| record.queue_offset))
    }

    fn offset_for_time(&self, _: &str, _: i32, time_ms: i64) -> Result<Option<i64>, StoreError> {
        let is_later =
            |record: &&StoredRecord| record.view().is_ok_and(|view| view.store_timestamp >= time_ms);
        Ok(self.records.iter().find(is_later).map(|record| record.queue_offset))
    }

    fn read(
        &self,
        _: &str,
        _: i32,
        (start, end): (i64, i64),
        max: usize,
    ) -> Result<(Vec<StoredRecord>, i64), StoreError> {
        if self.records.first().is_none_or(|first| start < first.queue_offset) {
            return Ok((Vec::new(), start));
        }
        let wanted = self.records.iter().filter(|record| (start..end).contains(&record.queue_offset));
        let found: Vec<_> = wanted.take(max.min(7)).cloned().collect();
        let next = found.last().map_or(end, |last| last.queue_offset + 1);
        Ok((found, next))
    }
}

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
    let older: Arc<dyn OlderMessages> = Arc::new(Kept { records: records.clone() });
    for ordered in [false, true] {
        let group = format!("g-{ordered}");
        let with =
            || ConsumerOptions { older: Some(Arc::clone(&older)), ordered, ..ConsumerOptions::default() };
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
        let older: Arc<dyn OlderMessages> = Arc::new(Kept { records: records[4..].to_vec() });
        let consumer = broker
            .consumer(group, &["t"], ConsumerOptions { older: Some(older), on_lost, ..options() })
            .unwrap();
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
