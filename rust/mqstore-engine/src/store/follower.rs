//! A read of a topic that continues with new messages.
//!
//! It begins as a read of all queues by store time. Then it reads in rounds: each round catches up with the log, and
//! returns the new messages before that end of the log, from all queues, in order of arrival. Never writes.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Store;
use crate::read::cursor::QueueCursor;
use crate::read::merged::{MergeOrder, MergedCursor, ReadBound, TopicRead};
use crate::read::query::queue_cursor;
use crate::read::view::wanted_queue_ids;
use mqstore_base::error::StoreError;
use mqstore_base::message::{MessageFilter, StoredRecord};
use mqstore_base::options::DamagePolicy;

/// A read of a topic that waits at its end for new messages.
pub struct TopicFollower {
    topic: String,
    queue_id: Option<i32>,
    filter: Option<MessageFilter>,
    on_damage: DamagePolicy,
    /// The store time at which the read starts. It can be in the future.
    start_ms: Option<i64>,
    /// The offset of the only queue, or the store time, at which the read ends.
    end: Option<ReadBound>,
    /// The next offset of each queue that was read.
    next: BTreeMap<i32, i64>,
    cursor: Option<MergedCursor>,
    is_over: bool,
}

/// The result of [`TopicFollower::next_of`].
#[derive(Debug)]
pub enum FollowStep {
    /// Some messages, at least one.
    Records(Vec<StoredRecord>),
    /// No message yet; call again.
    Later,
    /// No message: wait for one.
    Wait,
    /// The end of the read.
    End,
}

impl TopicFollower {
    /// Begins a read. It waits for the messages before `end`, if that is given: up to an offset of a single queue, or up
    /// to the first message that was stored at or after a time.
    ///
    /// # Errors
    /// Those of [`Store::read_topic`].
    pub fn new(store: &Store, read: &TopicRead<'_>) -> Result<Self, StoreError> {
        let end = read.end.filter(|end| end.offset().is_some());
        let cursor = store.read_topic(&TopicRead { end, ..*read })?;
        Ok(Self {
            topic: read.topic.to_owned(),
            queue_id: read.queue_id,
            filter: read.filter.cloned(),
            on_damage: read.on_damage,
            start_ms: time_ms(read.start),
            end: read.end,
            next: BTreeMap::new(),
            cursor: Some(cursor),
            is_over: false,
        })
    }

    /// Returns the topic that it reads.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Returns the offset at which the read of its only queue ends.
    fn end_offset(&self) -> i64 {
        self.end.and_then(ReadBound::offset).unwrap_or(i64::MAX)
    }

    /// Whether the next step reads only the last `bytes` of the log.
    pub fn is_near_end(&mut self, store: &Store, bytes: u64) -> Result<bool, StoreError> {
        if let Some(cursor) = &mut self.cursor {
            return cursor.is_near_end(bytes);
        }
        for (queue_id, next) in &self.next {
            // An archive can have the next messages.
            if *next < store.bounds(&self.topic, *queue_id)?.0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the next messages are from before the log. After an error, the next call tries again.
    pub fn is_before_log(&self) -> bool {
        self.cursor.as_ref().is_some_and(MergedCursor::is_before_log)
    }

    /// Returns the queues and the offsets of the messages to wait for.
    pub fn places(&self) -> Vec<(i32, i64)> {
        self.next.iter().map(|(queue_id, offset)| (*queue_id, *offset)).collect()
    }

    /// Returns up to `max` messages, and reads at most about `looks` to find them.
    pub fn next_of(&mut self, store: &Store, max: usize, looks: usize) -> Result<FollowStep, StoreError> {
        while !self.is_over {
            if let Some(cursor) = &mut self.cursor {
                let batch = cursor.next_of(max, looks)?;
                if !batch.records.is_empty() {
                    return Ok(self.within_times(batch.records));
                }
                if !batch.ended || !self.end_round() {
                    return Ok(FollowStep::Later);
                }
            }
            // Before the look for messages: later ones are stored after this time.
            let is_late = time_ms(self.end).is_some_and(|end| store.clock().now_ms() >= end)
                || self.next.values().any(|next| *next >= self.end_offset());
            self.cursor = self.newer(store)?;
            if self.cursor.is_none() && !is_late {
                return Ok(FollowStep::Wait);
            }
            self.is_over = self.cursor.is_none();
        }
        Ok(FollowStep::End)
    }

    /// Waits for a message, for at most `timeout`; returns whether one may be there, or the read is at its end.
    pub fn wait(&self, store: &Store, timeout: Duration) -> Result<bool, StoreError> {
        let to_end = time_ms(self.end).map_or(Duration::MAX, |end| {
            let left = end.saturating_sub(store.clock().now_ms());
            Duration::from_millis(u64::try_from(left).unwrap_or(0))
        });
        let has_come = store.wait_for_topic(&self.topic, self.queue_id, &self.next, timeout.min(to_end))?;
        Ok(has_come || to_end <= timeout)
    }

    /// Returns the messages between the times of the read.
    fn within_times(&mut self, mut records: Vec<StoredRecord>) -> FollowStep {
        let is_at_or_after =
            |record: &StoredRecord, ms: i64| record.view().is_ok_and(|view| view.store_timestamp >= ms);
        if let Some(end_ms) = time_ms(self.end) {
            let kept = records.iter().position(|record| is_at_or_after(record, end_ms));
            self.is_over = kept.is_some();
            records.truncate(kept.unwrap_or(records.len()));
        }
        if let Some(start_ms) = self.start_ms {
            records.retain(|record| is_at_or_after(record, start_ms));
        }
        match (records.is_empty(), self.is_over) {
            (false, _) => FollowStep::Records(records),
            (true, true) => FollowStep::End,
            (true, false) => FollowStep::Later,
        }
    }

    /// Ends a round. Returns whether it passed a message.
    fn end_round(&mut self) -> bool {
        let Some(cursor) = self.cursor.take() else { return false };
        let mut has_moved = false;
        for (queue_id, next) in cursor.positions() {
            has_moved |= self.next.insert(queue_id, next) != Some(next);
        }
        has_moved
    }

    /// Returns a cursor on the new messages.
    fn newer(&mut self, store: &Store) -> Result<Option<MergedCursor>, StoreError> {
        let view = store.usable_view()?;
        let limit = view.catch_up()?;
        let ids = wanted_queue_ids(&*view, &self.topic, self.queue_id)?;
        let mut cursors = Vec::new();
        for queue_id in &ids {
            let Some((min, max)) = view.bounds(&self.topic, *queue_id)? else { continue };
            let max = max.min(self.end_offset());
            let next = *self.next.entry(*queue_id).or_insert(min);
            if next >= max {
                continue;
            }
            let range = (Some(next), Some(max));
            let cursor = queue_cursor((&view, limit), (&self.topic, *queue_id), range, self.filter.as_ref())?;
            cursors.push(cursor.on_damage(self.on_damage));
        }
        if cursors.is_empty() {
            return Ok(None);
        }
        // Records of compaction files have no place in the log.
        let is_compacted = cursors.iter().any(QueueCursor::has_compacted);
        let order = if is_compacted { MergeOrder::StoreTime } else { MergeOrder::LogOffset };
        let limit_of_round = (ids.len() > 1).then_some(limit);
        Ok(Some(MergedCursor::new((view, limit), order, cursors, limit_of_round)))
    }
}

/// Returns the store time of a bound that is one.
fn time_ms(bound: Option<ReadBound>) -> Option<i64> {
    match bound {
        Some(ReadBound::TimeMs(time_ms)) => Some(time_ms),
        _ => None,
    }
}
