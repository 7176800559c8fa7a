//! Finds the floor that the limits of a topic demand. Changes nothing.
//!
//! Store times grow with the log. So one log offset separates the messages of a topic that stay from those that go, in
//! all its queues. If the clock was set back, a message stays until no older message of its topic stays.
//!
//! A binary search in each queue finds the age. The queue units give the number of bytes and messages;
//! [`MeasuredTopic`] keeps the sum between two passes, so that a pass reads the units of new and of hidden messages
//! only.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use mqstore_base::error::StoreError;
use mqstore_base::topic_floors::TopicRetention;
use mqstore_format::CqUnit;
use mqstore_format::topic::{LIGHT_QUEUE_PREFIX, is_system_topic};

use super::state::{MeasuredQueue, MeasuredTopic};
use crate::read::older::{OlderLimits, OlderSource};
use crate::read::query::TimeSearch;
use crate::read::view::View;
use crate::retention::ExpiredTopic;

/// Number of units in one read.
const UNITS: usize = 512;

/// A floor that the limits of a topic demand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DueFloor {
    /// The records of the topic before this log offset are due.
    pub log_offset: u64,
    /// The first offset that stays, of each queue with messages; the maximum if none stays.
    pub queues: BTreeMap<i32, i64>,
    /// Number of queue offsets before these.
    pub messages: u64,
}

/// The place of a topic's messages: a view that has caught up to log offset `end`, and the messages before the log.
#[derive(Clone, Copy)]
pub(super) struct TopicPlace<'a> {
    pub view: &'a dyn View,
    pub topic: &'a str,
    pub end: u64,
    pub older: Option<&'a dyn OlderSource>,
}

/// Returns why the topic can have no retention; `None` if it can. A compaction topic cannot either.
pub(super) fn refusal(topic: &str) -> Option<&'static str> {
    if is_system_topic(topic) {
        return Some("the store or a broker keeps delayed messages, transactions or its own state in it");
    }
    topic.starts_with(LIGHT_QUEUE_PREFIX).then_some(
        "a light queue has no records of its own; set the retention of the topic that its messages were appended to",
    )
}

/// Returns what a pass over all topics with limits would hide, without any change.
pub(super) fn expiry_of<'a>(
    view: &dyn View,
    older: Option<&dyn OlderSource>,
    limits: impl Iterator<Item = (&'a str, TopicRetention)>,
    end: u64,
) -> Result<Vec<ExpiredTopic>, StoreError> {
    let now_ms = view.files().clock.now_ms();
    let mut found = Vec::new();
    for (topic, limits) in limits {
        let due = TopicPlace { view, topic, end, older }.due_floor(
            limits,
            now_ms,
            &mut MeasuredTopic::default(),
        )?;
        found.extend(due.map(|due| due.report(topic)));
    }
    Ok(found)
}

impl DueFloor {
    /// Returns the report for `topic`.
    pub(super) fn report(&self, topic: &str) -> ExpiredTopic {
        ExpiredTopic { topic: topic.to_owned(), messages: self.messages, log_offset: self.log_offset }
    }
}

impl TopicPlace<'_> {
    /// Returns the floor that `limits` demand at `now_ms`; `None` if all messages stay.
    pub(super) fn due_floor(
        &self,
        limits: TopicRetention,
        now_ms: i64,
        measured: &mut MeasuredTopic,
    ) -> Result<Option<DueFloor>, StoreError> {
        if refusal(self.topic).is_some() || self.view.keeps_newest(self.topic) {
            return Ok(None);
        }
        let (mut lows, mut queues) = (BTreeMap::new(), BTreeMap::new());
        for queue_id in self.view.queue_ids(self.topic)? {
            if let Some((min, max)) = self.view.bounds(self.topic, queue_id)? {
                lows.insert(queue_id, min);
                if min < max {
                    queues.insert(queue_id, (min, max));
                }
            }
        }
        let messages: u64 = queues.values().map(|(min, max)| (max - min) as u64).sum();
        let mut floor = match limits.keep_ms {
            Some(keep_ms) => self.floor_of_age(&queues, now_ms.saturating_sub_unsigned(keep_ms))?,
            None => 0,
        };
        if limits.max_bytes.is_some() || limits.max_messages.is_some() {
            floor = self.floor_of_size(&queues, limits, floor, measured)?;
        }
        let mut due = DueFloor { log_offset: floor, ..DueFloor::default() };
        for (queue_id, (min, max)) in queues {
            let first = self.first_after((queue_id, min, max), floor)?;
            due.messages += (first - min).max(0) as u64;
            due.queues.insert(queue_id, first);
        }
        if due.messages > 0 {
            // All older messages are hidden, too.
            return Ok(Some(due));
        }
        let bytes = measured.0.values().map(|queue| queue.bytes).sum::<u64>();
        let left = OlderLimits {
            since_ms: limits.keep_ms.map(|keep_ms| now_ms.saturating_sub_unsigned(keep_ms)),
            max_bytes: limits.max_bytes.map(|most| most.saturating_sub(bytes)),
            max_messages: limits.max_messages.map(|most| most.saturating_sub(messages)),
        };
        self.older_floor(&lows, left)
    }

    /// Returns the floor that `left`, the rest of the limits, demands before the log. Its queues keep their offsets,
    /// which are those of the log.
    fn older_floor(
        &self,
        lows: &BTreeMap<i32, i64>,
        left: OlderLimits,
    ) -> Result<Option<DueFloor>, StoreError> {
        let log_start = self.view.log_start();
        let Some(older) = self.older.filter(|_| log_start > 0) else { return Ok(None) };
        if log_start <= older.begin() {
            return Ok(None);
        }
        let floors = self.view.floors();
        let found = older.before(log_start)?.due_floor(&floors, self.topic, log_start, lows, left)?;
        Ok(found.map(|floor| DueFloor {
            log_offset: floor.log_offset,
            messages: floor.messages,
            ..DueFloor::default()
        }))
    }

    /// Returns the log offset of the topic's first message that was stored at `since_ms` or later; the end of the log
    /// if there is none.
    fn floor_of_age(&self, queues: &BTreeMap<i32, (i64, i64)>, since_ms: i64) -> Result<u64, StoreError> {
        let mut floor = self.end;
        for (queue_id, (min, max)) in queues {
            let mut search = TimeSearch::new(self.view, self.topic, *queue_id, self.end);
            let before = |time: i64| time < since_ms;
            // Most passes find nothing due.
            let is_due = search.at_or_after(*min)?.is_some_and(|(_, time)| before(time));
            let first = if is_due { search.first_offset((*min, *max), &before)? } else { *min };
            if let Some((_, unit)) = self.pages((*queue_id, first, *max), 1).next()? {
                floor = floor.min(log_offset_of(&unit));
            }
        }
        Ok(floor)
    }

    /// Returns the first offset between `min` and `max` whose record is at or after log offset `floor`; `max` if there
    /// is none.
    fn first_after(&self, (queue_id, min, max): (i32, i64, i64), floor: u64) -> Result<i64, StoreError> {
        let (mut low, mut high) = match self.pages((queue_id, min, max), 1).next()? {
            // Most passes find nothing due.
            Some((offset, unit)) if log_offset_of(&unit) >= floor => return Ok(offset),
            Some((offset, _)) => (offset + 1, max),
            None => return Ok(max),
        };
        while low < high {
            let middle = low + (high - low) / 2;
            match self.pages((queue_id, middle, high), 1).next()? {
                Some((offset, unit)) if log_offset_of(&unit) < floor => low = offset + 1,
                _ => high = middle,
            }
        }
        Ok(self.pages((queue_id, low, max), 1).next()?.map_or(max, |(offset, _)| offset))
    }

    /// Returns the smallest floor, at least `least`, after which the topic has at most the given bytes and messages.
    fn floor_of_size(
        &self,
        queues: &BTreeMap<i32, (i64, i64)>,
        limits: TopicRetention,
        least: u64,
        measured: &mut MeasuredTopic,
    ) -> Result<u64, StoreError> {
        if limits.max_bytes.is_some() {
            self.measure(queues, measured)?;
        }
        let mut bytes: u64 = measured.0.values().map(|queue| queue.bytes).sum();
        let mut messages: u64 = queues.values().map(|(min, max)| (max - min) as u64).sum();
        let is_over = |bytes: u64, messages: u64| {
            limits.max_bytes.is_some_and(|most| bytes > most)
                || limits.max_messages.is_some_and(|most| messages > most)
        };
        let mut pages: Vec<(i64, UnitPages<'_>)> = queues
            .iter()
            .map(|(queue_id, (min, max))| (*min, self.pages((*queue_id, *min, *max), UNITS)))
            .collect();
        let mut fronts = BinaryHeap::new();
        for (place, (_, pages)) in pages.iter_mut().enumerate() {
            fronts.extend(pages.peek()?.map(|(_, unit)| Reverse((log_offset_of(&unit), place))));
        }
        while let Some(Reverse((front, place))) = fronts.peek().copied() {
            if front >= least && (front >= self.end || !is_over(bytes, messages)) {
                break;
            }
            fronts.pop();
            let Some((from, pages)) = pages.get_mut(place) else { break };
            let size = pages.next()?.map_or(0, |(_, unit)| u64::try_from(unit.size).unwrap_or(0));
            let next = pages.peek()?;
            let first = next.map_or(pages.end, |(offset, _)| offset);
            messages = messages.saturating_sub((first - *from).max(0) as u64);
            *from = first;
            bytes = bytes.saturating_sub(size);
            measured.drop_front(pages.queue_id, first, size);
            fronts.extend(next.map(|(_, unit)| Reverse((log_offset_of(&unit), place))));
        }
        let first = fronts.peek().map_or(self.end, |Reverse((front, _))| *front);
        Ok(first.min(self.end))
    }

    /// Adds the messages that are not measured yet, and measures queues again that lost messages to something else.
    fn measure(
        &self,
        queues: &BTreeMap<i32, (i64, i64)>,
        measured: &mut MeasuredTopic,
    ) -> Result<(), StoreError> {
        measured.0.retain(|queue_id, _| queues.contains_key(queue_id));
        for (queue_id, (min, max)) in queues {
            let known =
                measured.0.get(queue_id).copied().filter(|known| known.from == *min && known.to <= *max);
            let mut queue = known.unwrap_or(MeasuredQueue { from: *min, to: *min, bytes: 0 });
            let mut pages = self.pages((*queue_id, queue.to, *max), UNITS);
            while let Some((_, unit)) = pages.next()? {
                queue.bytes = queue.bytes.saturating_add(u64::try_from(unit.size).unwrap_or(0));
            }
            queue.to = *max;
            measured.0.insert(*queue_id, queue);
        }
        Ok(())
    }

    fn pages(&self, (queue_id, from, end): (i32, i64, i64), most: usize) -> UnitPages<'_> {
        UnitPages { place: *self, queue_id, from, end, most, read: VecDeque::new() }
    }
}

fn log_offset_of(unit: &CqUnit) -> u64 {
    u64::try_from(unit.physical_offset).unwrap_or(0)
}

/// The units of a queue from offset `from` to `end` (exclusive), with their offsets; blank units are left out.
struct UnitPages<'a> {
    place: TopicPlace<'a>,
    queue_id: i32,
    from: i64,
    end: i64,
    /// Number of units in one read.
    most: usize,
    read: VecDeque<(i64, CqUnit)>,
}

impl UnitPages<'_> {
    fn peek(&mut self) -> Result<Option<(i64, CqUnit)>, StoreError> {
        if self.read.is_empty() && self.from < self.end {
            let mut units = Vec::new();
            let TopicPlace { view, topic, .. } = self.place;
            view.units(topic, self.queue_id, self.from, self.most, &mut units)?;
            self.from = units.last().map_or(self.end, |(offset, _)| offset + 1);
            self.read.extend(units.into_iter().filter(|(offset, _)| *offset < self.end));
        }
        Ok(self.read.front().copied())
    }

    fn next(&mut self) -> Result<Option<(i64, CqUnit)>, StoreError> {
        self.peek()?;
        Ok(self.read.pop_front())
    }
}
