//! Queue units derived in memory, for readers that cannot use the queue files.
//!
//! The rules are those of the dispatcher: a record yields one unit at the offset that it names; if two records claim
//! one slot, the first in the log wins. An inner batch is one unit at the offset of its first message, and takes as
//! many offsets as it has messages. Each light queue that a record names gets a unit.

use std::collections::BTreeMap;

use mqstore_format::{CqUnit, EntryFields, RecordView, validate_stored_topic};

use mqstore_base::store_files::DelayTables;

/// Derived units of one queue, by ascending offset; offsets may have gaps.
#[derive(Clone, Debug, Default)]
pub struct DerivedQueue {
    units: Vec<(i64, CqUnit)>,
    end: i64,
}

impl DerivedQueue {
    /// Offset of the first unit.
    pub fn min_offset(&self) -> Option<i64> {
        self.units.first().map(|(offset, _)| *offset)
    }

    /// One past the last offset that a unit takes.
    pub fn max_offset(&self) -> i64 {
        self.end
    }

    /// Returns the units at or after `from`.
    pub fn from(&self, from: i64) -> &[(i64, CqUnit)] {
        let start = self.units.partition_point(|(offset, _)| *offset < from);
        self.units.get(start..).unwrap_or_default()
    }

    /// Returns the offset of the last unit at or before `offset`; if records hold several messages, its record holds
    /// the message at `offset`. Returns `offset` if no such unit exists.
    pub fn start_of(&self, offset: i64) -> i64 {
        let behind = self.units.partition_point(|(start, _)| *start <= offset);
        let entry = behind.checked_sub(1).and_then(|index| self.units.get(index));
        entry.filter(|_| offset < self.end).map_or(offset, |(start, _)| *start)
    }

    fn drop_below(&mut self, log_min: u64) {
        let gone = self
            .units
            .partition_point(|(_, unit)| u64::try_from(unit.physical_offset).is_ok_and(|at| at < log_min));
        self.units.drain(..gone);
    }

    fn add(&mut self, offset: i64, messages: i64, unit: CqUnit) {
        self.end = self.end.max(offset.saturating_add(messages));
        match self.units.last() {
            Some((last, _)) if *last >= offset => {
                if let Err(place) = self.units.binary_search_by_key(&offset, |(offset, _)| *offset) {
                    self.units.insert(place, (offset, unit));
                }
            }
            _ => self.units.push((offset, unit)),
        }
    }
}

/// Derived units of many queues.
#[derive(Clone, Debug, Default)]
pub struct DerivedQueues {
    delays: DelayTables,
    queues: BTreeMap<String, BTreeMap<i32, DerivedQueue>>,
}

impl DerivedQueues {
    /// Creates an empty set. `delays` gives the delivery times of delayed messages.
    pub fn new(delays: &DelayTables) -> Self {
        Self { delays: delays.clone(), queues: BTreeMap::new() }
    }

    /// Adds the units of `record`, which is at log offset `offset`.
    pub fn add(&mut self, record: &RecordView<'_>, offset: u64) {
        if !record.dispatches_to_queue()
            || record.queue_id < 0
            || record.queue_offset < 0
            || validate_stored_topic(record.topic).is_err()
        {
            return;
        }
        let fields = EntryFields::of(record.properties);
        let tags_code = fields.tags_code(record.topic, record.store_timestamp, self.delays.at(offset));
        let unit = CqUnit { physical_offset: offset as i64, size: record.size as i32, tags_code };
        let batch = record.inner_batch().filter(|(base, _)| record.sys_flag.inner_batch() && *base >= 0);
        let (queue_offset, messages) = batch.unwrap_or((record.queue_offset, 1));
        self.add_unit((record.topic, record.queue_id), queue_offset, i64::from(messages.max(1)), unit);
        for (name, queue_offset) in fields.light_queues(record.topic) {
            if validate_stored_topic(name).is_ok() {
                self.add_unit((name, 0), queue_offset, 1, unit);
            }
        }
    }

    fn add_unit(&mut self, (topic, queue_id): (&str, i32), offset: i64, messages: i64, unit: CqUnit) {
        if !self.queues.contains_key(topic) {
            self.queues.insert(topic.to_owned(), BTreeMap::new());
        }
        if let Some(queues) = self.queues.get_mut(topic) {
            queues.entry(queue_id).or_default().add(offset, messages, unit);
        }
    }

    /// Returns the units of one queue.
    pub fn get(&self, topic: &str, queue_id: i32) -> Option<&DerivedQueue> {
        self.queues.get(topic)?.get(&queue_id)
    }

    /// Moves the units of one queue from `other` to this set; if `other` has none, the queue is empty here.
    pub fn adopt(&mut self, other: &mut Self, topic: &str, queue_id: i32) {
        let queue =
            other.queues.get_mut(topic).and_then(|queues| queues.remove(&queue_id)).unwrap_or_default();
        self.queues.entry(topic.to_owned()).or_default().insert(queue_id, queue);
    }

    /// Removes the units of records before log offset `log_min`; each queue keeps its maximum.
    pub fn drop_below(&mut self, log_min: u64) {
        for queue in self.queues.values_mut().flat_map(BTreeMap::values_mut) {
            queue.drop_below(log_min);
        }
    }

    /// Returns the topics that have a queue here.
    pub fn topics(&self) -> impl Iterator<Item = &str> {
        self.queues.keys().map(String::as_str)
    }

    /// Returns the queue ids of `topic` that exist here.
    pub fn queue_ids(&self, topic: &str) -> impl Iterator<Item = i32> + '_ {
        self.queues.get(topic).into_iter().flat_map(|queues| queues.keys().copied())
    }
}
