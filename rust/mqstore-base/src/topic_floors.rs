//! The floors of topics: the log offsets before which their records do not count.
//!
//! A deletion and the retention of a topic raise its floor. A record of the topic before the floor is in no answer.
//! After a deletion it is in no queue file either, and each queue continues at a new offset. A retention only moves the
//! minimum of the queues: their files keep the units of older records, because a broker counts on them. The metadata
//! log stores the floors, and the threads of a store share one [`TopicFloors`].

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

use mqstore_io::sync::{AtomicU64, Ordering, RwLock};

/// The floor of one topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicFloor {
    /// The records of the topic before this log offset do not count.
    pub log_offset: u64,
    /// Log offset at which the topic was last deleted, at most `log_offset`; 0 if it never was.
    pub deleted: u64,
    /// First queue offset of each queue that had messages, by queue id. It counts while the queue has no messages; a
    /// program that derives the queue from the log may have given it smaller offsets since.
    pub queues: BTreeMap<i32, i64>,
}

impl TopicFloor {
    /// Returns the floor of a topic that was deleted at `log_offset`. `queues` are the offsets at which its queues
    /// continue.
    pub fn of_deletion(log_offset: u64, queues: BTreeMap<i32, i64>) -> Self {
        Self { log_offset, deleted: log_offset, queues }
    }

    /// Lowers the floor to `log_end`, if it is after it.
    pub fn clamp(&mut self, log_end: u64) {
        self.log_offset = self.log_offset.min(log_end);
        self.deleted = self.deleted.min(log_end);
    }
}

/// The floors of all topics at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FloorTable(BTreeMap<Arc<str>, TopicFloor>);

impl FloorTable {
    /// Whether a record of `topic` at `log_offset` is before the floor of the topic.
    #[inline]
    pub fn hides(&self, topic: &str, log_offset: u64) -> bool {
        !self.0.is_empty() && log_offset < self.log_offset(topic)
    }

    /// Returns the log offset before which the records of `topic` do not count; 0 if all count.
    pub fn log_offset(&self, topic: &str) -> u64 {
        self.0.get(topic).map_or(0, |floor| floor.log_offset)
    }

    /// Returns the log offset at which `topic` was last deleted; 0 if it never was.
    pub fn deleted(&self, topic: &str) -> u64 {
        self.0.get(topic).map_or(0, |floor| floor.deleted)
    }

    /// Returns the log offset from which no record is hidden.
    pub fn highest(&self) -> u64 {
        self.0.values().map(|floor| floor.log_offset).max().unwrap_or(0)
    }

    /// Whether both tables have the same deletions.
    pub fn has_same_deletions(&self, other: &Self) -> bool {
        let deletions = |table: &Self| -> Vec<(Arc<str>, u64)> {
            let deleted = table.0.iter().filter(|(_, floor)| floor.deleted > 0);
            deleted.map(|(topic, floor)| (Arc::clone(topic), floor.deleted)).collect()
        };
        deletions(self) == deletions(other)
    }

    /// Returns the first offset of a queue without messages; 0 if its topic has no floor.
    pub fn first_offset(&self, topic: &str, queue_id: i32) -> i64 {
        self.0.get(topic).and_then(|floor| floor.queues.get(&queue_id)).copied().unwrap_or(0)
    }

    /// Returns the floors, by topic.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &TopicFloor)> {
        self.0.iter()
    }

    /// Returns the floor of `topic`.
    pub fn get(&self, topic: &str) -> Option<&TopicFloor> {
        self.0.get(topic)
    }

    /// Sets the floor of `topic`.
    pub fn insert(&mut self, topic: Arc<str>, floor: TopicFloor) {
        self.0.insert(topic, floor);
    }
}

/// The retention of one topic: its limits in the log that all topics share. The default has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicRetention {
    /// Maximum age of a message, in milliseconds.
    pub keep_ms: Option<u64>,
    /// Maximum bytes of the topic's records, each counted with its header and properties.
    pub max_bytes: Option<u64>,
    /// Maximum number of messages, over all queues of the topic.
    pub max_messages: Option<u64>,
}

impl TopicRetention {
    /// Largest value of a limit: 2^53, up to which a float holds every whole number.
    pub const LARGEST: u64 = 1 << 53;

    /// Whether it has no limit.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The floors of one store. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct TopicFloors {
    table: Arc<RwLock<Arc<FloorTable>>>,
    changes: Arc<AtomicU64>,
}

impl TopicFloors {
    /// Creates the floors of a store.
    pub fn new(table: FloorTable) -> Self {
        let floors = Self::default();
        floors.replace(table);
        floors
    }

    /// Returns the current floors.
    pub fn now(&self) -> Arc<FloorTable> {
        Arc::clone(&self.table.read())
    }

    /// Returns how often [`Self::count_change`] was called.
    #[inline]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Counts a change, for those who read messages ahead. Call it when everything that depends on the floors has
    /// changed.
    pub fn count_change(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Replaces all floors.
    pub fn replace(&self, table: FloorTable) {
        *self.table.write() = Arc::new(table);
    }

    /// Sets the floors of `floors`, and keeps those of other topics.
    pub fn set(&self, floors: impl IntoIterator<Item = (Arc<str>, TopicFloor)>) {
        let mut table = self.table.write();
        let mut next = FloorTable::clone(&table);
        for (topic, floor) in floors {
            next.insert(topic, floor);
        }
        *table = Arc::new(next);
    }

    /// Sets those of `floors` that are higher than the floors of their topics.
    pub fn raise(&self, floors: impl IntoIterator<Item = (Arc<str>, TopicFloor)>) {
        let mut table = self.table.write();
        let mut next = FloorTable::clone(&table);
        for (topic, floor) in floors {
            if next.log_offset(&topic) < floor.log_offset {
                next.insert(topic, floor);
            }
        }
        *table = Arc::new(next);
    }

    /// Returns the log offset before which the records of `topic` do not count; 0 if all count.
    pub fn log_offset(&self, topic: &str) -> u64 {
        self.table.read().log_offset(topic)
    }

    /// Returns the log offset at which `topic` was last deleted; 0 if it never was.
    pub fn deleted(&self, topic: &str) -> u64 {
        self.table.read().deleted(topic)
    }

    /// Returns the first offset of a queue without messages; 0 if its topic has no floor.
    pub fn first_offset(&self, topic: &str, queue_id: i32) -> i64 {
        self.table.read().first_offset(topic, queue_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_hides_older_records_of_its_topic_only() {
        let floors = TopicFloors::default();
        let before = floors.now();
        let floor = TopicFloor::of_deletion(500, BTreeMap::from([(3, 1000)]));
        floors.clone().set([("orders".into(), floor)]);
        let now = floors.now();
        assert_eq!([499, 500].map(|at| now.hides("orders", at)), [true, false]);
        assert!(!now.hides("other", 0) && !before.hides("orders", 0));
        assert_eq!([3, 4].map(|queue_id| now.first_offset("orders", queue_id)), [1000, 0]);
        assert_eq!((floors.log_offset("orders"), floors.log_offset("other")), (500, 0));
    }

    #[test]
    fn a_retention_raises_a_floor_and_keeps_the_deletion() {
        let deletion = TopicFloor::of_deletion(500, BTreeMap::new());
        let mut raised = TopicFloor { log_offset: 700, ..deletion.clone() };
        let (mut before, mut after) = (FloorTable::default(), FloorTable::default());
        before.insert("orders".into(), deletion);
        after.insert("orders".into(), raised.clone());
        after.insert("other".into(), TopicFloor { log_offset: 700, ..TopicFloor::default() });
        assert!(after.has_same_deletions(&before) && after != before && after.hides("orders", 699));
        assert_eq!(["orders", "other"].map(|topic| after.deleted(topic)), [500, 0]);
        raised.clamp(600);
        assert_eq!((raised.log_offset, raised.deleted), (600, 500));
        raised.clamp(400);
        assert_eq!((raised.log_offset, raised.deleted), (400, 400));
        after.insert("orders".into(), raised);
        assert!(!after.has_same_deletions(&before));
    }
}
