//! The floors of deleted topics.
//!
//! The floor of a topic is the log offset at which the topic was last deleted, with the queue offsets at which its queues
//! continue. A record of the topic before that log offset is in no queue and in no answer. The metadata log stores the
//! floors, and the threads of a store share one [`TopicFloors`].

use std::collections::BTreeMap;
use std::sync::Arc;

use mqstore_io::sync::RwLock;

/// The floor of one topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicFloor {
    /// Log offset at which the topic was deleted: its records before it do not count.
    pub log_offset: u64,
    /// First queue offset of each queue that had messages, by queue id. It counts while the queue has no messages; a
    /// program that derives the queue from the log may have given it smaller offsets since.
    pub queues: BTreeMap<i32, i64>,
}

/// The floors of all topics at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FloorTable(BTreeMap<Arc<str>, TopicFloor>);

impl FloorTable {
    /// Whether a record of `topic` at `log_offset` was deleted with its topic.
    #[inline]
    pub fn hides(&self, topic: &str, log_offset: u64) -> bool {
        !self.0.is_empty() && log_offset < self.log_offset(topic)
    }

    /// Returns the log offset at which `topic` was last deleted; 0 if it never was.
    pub fn log_offset(&self, topic: &str) -> u64 {
        self.0.get(topic).map_or(0, |floor| floor.log_offset)
    }

    /// Returns the first offset of a queue without messages; 0 if its topic was never deleted.
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

/// The floors of one store. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct TopicFloors(Arc<RwLock<Arc<FloorTable>>>);

impl TopicFloors {
    /// Creates the floors of a store.
    pub fn new(table: FloorTable) -> Self {
        let floors = Self::default();
        floors.replace(table);
        floors
    }

    /// Returns the current floors.
    pub fn now(&self) -> Arc<FloorTable> {
        Arc::clone(&self.0.read())
    }

    /// Replaces all floors.
    pub fn replace(&self, table: FloorTable) {
        *self.0.write() = Arc::new(table);
    }

    /// Sets the floors of `floors`, and keeps those of other topics.
    pub fn set(&self, floors: impl IntoIterator<Item = (Arc<str>, TopicFloor)>) {
        let mut table = self.0.write();
        let mut next = FloorTable::clone(&table);
        for (topic, floor) in floors {
            next.insert(topic, floor);
        }
        *table = Arc::new(next);
    }

    /// Returns the log offset at which `topic` was last deleted; 0 if it never was.
    pub fn log_offset(&self, topic: &str) -> u64 {
        self.0.read().log_offset(topic)
    }

    /// Returns the first offset of a queue without messages; 0 if its topic was never deleted.
    pub fn first_offset(&self, topic: &str, queue_id: i32) -> i64 {
        self.0.read().first_offset(topic, queue_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_hides_older_records_of_its_topic_only() {
        let floors = TopicFloors::default();
        let before = floors.now();
        let floor = TopicFloor { log_offset: 500, queues: BTreeMap::from([(3, 1000)]) };
        floors.clone().set([("orders".into(), floor)]);
        let now = floors.now();
        assert_eq!([499, 500].map(|at| now.hides("orders", at)), [true, false]);
        assert!(!now.hides("other", 0) && !before.hides("orders", 0));
        assert_eq!([3, 4].map(|queue_id| now.first_offset("orders", queue_id)), [1000, 0]);
        assert_eq!((floors.log_offset("orders"), floors.log_offset("other")), (500, 0));
    }
}
