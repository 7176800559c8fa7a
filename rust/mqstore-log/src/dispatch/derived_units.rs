//! Queue units derived in memory, for readers that cannot use the queue files.
//!
//! The rules are those of the dispatcher: a record yields one unit at the offset that it names; if two records claim
//! one slot, the first in the log wins. An inner batch is one unit at the offset of its first message, and takes as
//! many offsets as it has messages. Each light queue that a record names gets a unit.
//!
//! If there is damage between two records of a queue and offsets are missing between them, these offsets get units that
//! point to the damage. A read of such a unit finds the damage, as a read of a queue file does.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use mqstore_format::{CqUnit, EntryFields, RecordView, validate_stored_topic};

use mqstore_base::store_files::DelayTables;
use mqstore_base::topic_floors::FloorTable;

/// Bytes of the smallest record that belongs to a queue: a fixed part, a topic of one byte and no body.
const LEAST_RECORD_BYTES: u64 = 92;

/// The tags code of a unit whose record has unknown tags. It is no hash of a tag, so every filter may match it.
pub const ANY_TAGS: i64 = i64::MAX;

/// A record that a walk of the log finds at a log offset, or a damaged range that it skips.
pub enum WalkItem<'a> {
    /// A record and its log offset.
    Record(&'a RecordView<'a>, u64),
    /// A range of the log without a valid record.
    Damaged {
        /// Log offset of the first byte.
        offset: u64,
        /// Log offset of the next record.
        end: u64,
    },
}

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

    /// Returns the offsets in `range` without a unit, at most about `most`. Only for records of one message.
    pub fn missing(&self, range: Range<i64>, most: usize) -> Vec<i64> {
        let (mut found, mut next) = (Vec::new(), range.start);
        let there = self.from(range.start).iter().map(|(offset, _)| *offset);
        for offset in there.take_while(|offset| *offset < range.end).chain([range.end]) {
            found.extend((next..offset).take(most.saturating_sub(found.len())));
            next = offset.saturating_add(1);
        }
        found
    }

    /// Returns the log offset of the record of the message at `offset`, and whether that record is between the ones of
    /// the messages before and after it. Without these, nothing confirms its place.
    fn position_of(&self, offset: i64) -> Option<(i64, bool)> {
        let at = self.units.binary_search_by_key(&offset, |(offset, _)| *offset).ok()?;
        let unit_at = |at: usize| self.units.get(at).map(|(offset, unit)| (*offset, unit.physical_offset));
        let (_, position) = unit_at(at)?;
        let before = at.checked_sub(1).and_then(unit_at).filter(|(before, _)| before + 1 == offset);
        let after = unit_at(at + 1).filter(|(after, _)| offset + 1 == *after);
        let fits = before.is_none_or(|(_, before)| before < position)
            && after.is_none_or(|(_, after)| position < after);
        Some((position, fits && (before.is_some() || after.is_some())))
    }

    fn drop_below(&mut self, log_min: u64) {
        let gone = self
            .units
            .partition_point(|(_, unit)| u64::try_from(unit.physical_offset).is_ok_and(|at| at < log_min));
        self.units.drain(..gone);
    }

    /// Adds units for the last offsets of `offsets`, which are missing, if damage between the last unit and log offset
    /// `position` can have been their records.
    fn add_lost_units(&mut self, offsets: Range<i64>, position: u64, damages: &[(u64, u64)]) {
        let missing = offsets.end.saturating_sub(offsets.start);
        let last = self.units.last().map(|(_, unit)| unit.physical_offset.max(0).unsigned_abs());
        let between =
            damages.iter().filter(|(begin, _)| *begin < position && last.is_none_or(|last| last < *begin));
        let bytes: u64 = between.clone().map(|(begin, end)| end.saturating_sub(*begin)).sum();
        let Some((begin, _)) = between.min() else { return };
        let possible = i64::try_from(bytes / LEAST_RECORD_BYTES).unwrap_or(i64::MAX);
        // Before the first unit, an expiry explains missing offsets too.
        if missing <= 0 || self.units.is_empty() && missing > possible {
            return;
        }
        let unit = CqUnit { physical_offset: *begin as i64, size: 0, tags_code: ANY_TAGS };
        for lost in offsets.end - missing.min(possible)..offsets.end {
            self.add(lost, 1, unit);
        }
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
    floors: Arc<FloorTable>,
    queues: BTreeMap<String, BTreeMap<i32, DerivedQueue>>,
    /// Damaged ranges of the log, in ascending order.
    damages: Vec<(u64, u64)>,
}

impl DerivedQueues {
    /// Creates an empty set. `delays` gives the delivery times of delayed messages, `floors` hides the records before
    /// the floor of their topic.
    pub fn new(delays: &DelayTables, floors: &Arc<FloorTable>) -> Self {
        let (delays, floors) = (delays.clone(), Arc::clone(floors));
        Self { delays, floors, queues: BTreeMap::new(), damages: Vec::new() }
    }

    /// Adds the units of a record, or learns that a range of the log is damaged.
    pub fn add(&mut self, item: &WalkItem<'_>) {
        match item {
            WalkItem::Record(record, offset) => self.add_record(record, *offset),
            WalkItem::Damaged { offset, end } => self.damages.push((*offset, *end)),
        }
    }

    /// Whether a unit points into a damaged range.
    pub fn points_into_damage(&self, unit: CqUnit) -> bool {
        let position = u64::try_from(unit.physical_offset);
        let holds = |(begin, end): &(u64, u64)| position.is_ok_and(|at| (*begin..*end).contains(&at));
        self.damages.iter().any(holds)
    }

    /// Adds the unit of a message that the log no longer shows, so that a read finds its damage.
    pub fn add_lost_unit(&mut self, queue: (&str, i32), offset: i64, unit: CqUnit) {
        self.add_unit(queue, offset, 1, unit);
    }

    /// Whether the message at this offset of a queue is the record at log offset `position`, between its neighbours.
    pub fn confirms(&self, (topic, queue_id): (&str, i32), offset: i64, position: i64) -> bool {
        self.get(topic, queue_id).and_then(|queue| queue.position_of(offset)) == Some((position, true))
    }

    /// Takes the record at log offset `position` from an offset that it names wrongly.
    pub fn remove_misplaced(&mut self, (topic, queue_id): (&str, i32), offset: i64, position: i64) {
        let Some(queues) = self.queues.get_mut(topic) else { return };
        if let Some(queue) = queues.get_mut(&queue_id) {
            queue.units.retain(|(at, unit)| *at != offset || unit.physical_offset != position);
            if queue.end == offset.saturating_add(1) {
                queue.end = queue.units.last().map_or(0, |(last, _)| last.saturating_add(1));
            }
            if queue.units.is_empty() {
                queues.remove(&queue_id);
            }
        }
        if queues.is_empty() {
            self.queues.remove(topic);
        }
    }

    fn add_record(&mut self, record: &RecordView<'_>, offset: u64) {
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
        if !self.floors.hides(record.topic, offset) {
            self.add_unit((record.topic, record.queue_id), queue_offset, i64::from(messages.max(1)), unit);
        }
        for (name, queue_offset) in fields.light_queues(record.topic) {
            if validate_stored_topic(name).is_ok() && !self.floors.hides(name, offset) {
                self.add_unit((name, 0), queue_offset, 1, unit);
            }
        }
    }

    fn add_unit(&mut self, (topic, queue_id): (&str, i32), offset: i64, messages: i64, unit: CqUnit) {
        if !self.queues.contains_key(topic) {
            self.queues.insert(topic.to_owned(), BTreeMap::new());
        }
        if let Some(queues) = self.queues.get_mut(topic) {
            let queue = queues.entry(queue_id).or_default();
            if !self.damages.is_empty() {
                // Damage before a deletion of the topic took no messages of the new one.
                let floor = self.floors.log_offset(topic);
                let first = self.damages.partition_point(|(_, end)| *end <= floor);
                let damages = self.damages.get(first..).unwrap_or_default();
                let missing_from =
                    if queue.end == 0 { self.floors.first_offset(topic, queue_id) } else { queue.end };
                let position = unit.physical_offset.max(0).unsigned_abs();
                queue.add_lost_units(missing_from..offset, position, damages);
            }
            queue.add(offset, messages, unit);
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

    /// Uses other floors, and removes the units of records before them; each queue keeps its maximum. No topic may have
    /// been deleted since the last floors.
    pub fn set_floors(&mut self, floors: &Arc<FloorTable>) {
        for (topic, queues) in &mut self.queues {
            let floor = floors.log_offset(topic);
            if floor > self.floors.log_offset(topic) {
                for queue in queues.values_mut() {
                    queue.drop_below(floor);
                }
            }
        }
        self.floors = Arc::clone(floors);
    }

    /// Removes the units of records before log offset `log_min`; each queue keeps its maximum.
    pub fn drop_below(&mut self, log_min: u64) {
        for queue in self.queues.values_mut().flat_map(BTreeMap::values_mut) {
            queue.drop_below(log_min);
        }
        self.damages.retain(|(_, end)| *end > log_min);
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

#[cfg(test)]
mod tests {
    use super::*;
    use mqstore_base::topic_floors::TopicFloor;

    fn unit(physical_offset: i64) -> CqUnit {
        CqUnit { physical_offset, size: 100, tags_code: 0 }
    }

    /// Offsets and sizes of all units; a lost record has size 0.
    fn units(queue: &DerivedQueue) -> Vec<(i64, i32)> {
        queue.from(0).iter().map(|(offset, unit)| (*offset, unit.size)).collect()
    }

    #[test]
    fn offsets_that_damage_can_explain_get_units() {
        let mut queue = DerivedQueue::default();
        queue.add(0, 1, unit(0));
        queue.add_lost_units(1..3, 500, &[(100, 500)]);
        queue.add(3, 1, unit(500));
        assert_eq!(units(&queue), [(0, 100), (1, 0), (2, 0), (3, 100)]);
        assert!(queue.from(1).first().is_some_and(|(_, unit)| unit.physical_offset == 100));
    }

    #[test]
    fn after_a_deletion_the_queue_begins_at_its_floor() {
        let mut floors = FloorTable::default();
        floors.insert("t".into(), TopicFloor::of_deletion(500, BTreeMap::from([(0, 1000)])));
        let mut queues = DerivedQueues::new(&DelayTables::default(), &Arc::new(floors));
        queues.damages = vec![(100, 500), (600, 800)];
        queues.add_unit(("t", 0), 1001, 1, unit(900));
        let queue = queues.get("t", 0).unwrap();
        assert_eq!(units(queue), [(1000, 0), (1001, 100)]);
        assert!(queue.from(1000).first().is_some_and(|(_, unit)| unit.physical_offset == 600));
    }

    #[test]
    fn other_gaps_stay_gaps() {
        let mut queue = DerivedQueue::default();
        queue.add(0, 1, unit(200));
        // The damage is before the last unit, after the next one, or too short for a record.
        for damage in [(0, 200), (900, 1200), (400, 450)] {
            queue.add_lost_units(1..3, 800, &[damage]);
        }
        assert_eq!(units(&queue), [(0, 100)]);
        // An expiry removed the messages before the first one.
        let mut expired = DerivedQueue::default();
        expired.add_lost_units(0..50, 800, &[(400, 800)]);
        assert!(units(&expired).is_empty());
    }
}
