//! Calls that need no worker: count and look at the next messages, list the leases and the messages that are due later,
//! finish all that wait.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

use mqstore_base::message::StoredRecord;
use mqstore_base::options::DamagePolicy;
use mqstore_meta::{Progress, ProgressRecord};

use super::inner::{WorkQueueCounts, WorkQueueInner, WorkQueueState};
use super::queue_leases::put_delay_until;
use super::source::{QueuePlace, WorkSource};
use crate::error::BrokerError;

/// Number of messages that one step reads while it looks for those that are not delayed.
const READ_TOGETHER: usize = 64;

/// A lease, as seen by others than its worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseInfo {
    /// The topic of the message: that of the queue, or one of RocketMQ's retry topics for it.
    pub topic: Arc<str>,
    /// The queue of the message.
    pub queue_id: i32,
    /// The offset of the message in its queue.
    pub queue_offset: i64,
    /// Number of the delivery; 1 is the first.
    pub attempt: u32,
    /// The end of the lease, in epoch milliseconds.
    pub invisible_until_ms: i64,
}

/// A message that is due later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DelayInfo {
    /// The topic of the message: that of the queue, or one of RocketMQ's retry topics for it.
    pub topic: Arc<str>,
    /// The queue of the message.
    pub queue_id: i32,
    /// The offset of the message in its queue.
    pub queue_offset: i64,
    /// Number of its deliveries so far.
    pub attempts: u32,
    /// The time from which a worker can get it, in epoch milliseconds.
    pub due_ms: i64,
}

impl WorkQueueInner {
    /// Returns the number of messages in each state. Reads the new messages once, because only they themselves say that
    /// a put holds them back.
    pub(super) fn exact_counts(&self, state: &mut WorkQueueState) -> Result<WorkQueueCounts, BrokerError> {
        let now_ms = self.store().clock().now_ms();
        for source in &mut state.sources {
            self.look_for_held_back(source, now_ms)?;
        }
        let mut counts = self.counts(state)?;
        for source in &state.sources {
            let progress = source.place.progress.lock();
            let held_back = source.held_back.due_ms.range(progress.next()..);
            let held_back = held_back.filter(|(offset, _)| !progress.is_finished(**offset)).count() as u64;
            let held_back = held_back.min(counts.ready);
            counts.ready -= held_back;
            counts.delayed += held_back;
        }
        counts.dead = self.dead_letter_count()?;
        Ok(counts)
    }

    /// Notes which new messages a put holds back until after `now_ms`, and forgets those that are due or passed.
    fn look_for_held_back(&self, source: &mut WorkSource, now_ms: i64) -> Result<(), BrokerError> {
        let (min, max) = source.bounds(self.store())?;
        let next = source.place.progress.lock().next().max(min);
        let held_back = &mut source.held_back;
        held_back.due_ms.retain(|offset, due_ms| *offset >= next && *due_ms > now_ms);
        // A queue that was deleted begins again.
        let from = if held_back.looked_to > max { next } else { next.max(held_back.looked_to) };
        if from < max {
            let QueuePlace { topic, queue_id, .. } = &*source.place;
            let cursor = self.store().read(topic, *queue_id, Some(from), Some(max), None)?;
            // A damaged message counts as ready: the get of it raises.
            let mut cursor = cursor.on_damage(DamagePolicy::Skip);
            loop {
                let records = cursor.next_batch(READ_TOGETHER)?;
                if records.is_empty() {
                    break;
                }
                let delays = records.iter().map(|record| (record.queue_offset, put_delay_until(record)));
                let delays = delays.filter_map(|(offset, due_ms)| Some((offset, due_ms?)));
                held_back.due_ms.extend(delays.filter(|(_, due_ms)| *due_ms > now_ms));
            }
        }
        held_back.looked_to = max;
        Ok(())
    }

    /// Returns the messages that are due later, the one that is due first at first.
    pub(super) fn delays(&self, state: &mut WorkQueueState) -> Result<Vec<DelayInfo>, BrokerError> {
        let now_ms = self.store().clock().now_ms();
        let mut found = Vec::new();
        for source in &mut state.sources {
            self.look_for_held_back(source, now_ms)?;
            let (min, _) = source.bounds(self.store())?;
            let progress = source.place.progress.lock();
            let returned = progress.all_waiting().map(|(offset, one)| (offset, one.attempt, one.visible_ms));
            let new = source
                .held_back
                .due_ms
                .range(progress.next()..)
                .map(|(offset, due_ms)| (*offset, 0, *due_ms))
                .filter(|(offset, ..)| !progress.is_finished(*offset));
            let later = returned.chain(new).filter(|(offset, _, due_ms)| *offset >= min && *due_ms > now_ms);
            found.extend(later.map(|(queue_offset, attempts, due_ms)| DelayInfo {
                topic: Arc::clone(&source.place.topic),
                queue_id: source.place.queue_id,
                queue_offset,
                attempts,
                due_ms,
            }));
        }
        found.sort_by_key(|one| (one.due_ms, one.queue_id, one.queue_offset));
        Ok(found)
    }

    pub(super) fn peek(&self, count: usize) -> Result<Vec<StoredRecord>, BrokerError> {
        self.store().catch_up()?;
        let now_ms = self.store().clock().now_ms();
        let most = self.options.max_attempts;
        let mut found = Vec::new();
        for place in self.places()? {
            let (due, next) = {
                let progress = place.progress.lock();
                let may_be_delivered =
                    |offset: &i64| most.is_none_or(|most| attempts(&progress, *offset) < most);
                let due: Vec<i64> = progress
                    .due(now_ms, usize::MAX)
                    .into_iter()
                    .filter(may_be_delivered)
                    .take(count)
                    .collect();
                (due, progress.next())
            };
            for offset in due {
                found.extend(self.message(&place, offset)?);
            }
            found.extend(self.peek_new(&place, next, now_ms, count)?);
        }
        found.sort_unstable_by_key(|record| record.commit_log_offset);
        found.truncate(count);
        Ok(found)
    }

    /// Returns up to `count` messages of a queue from `next` on that no put delays until later than `now_ms`.
    fn peek_new(
        &self,
        place: &QueuePlace,
        next: i64,
        now_ms: i64,
        count: usize,
    ) -> Result<Vec<StoredRecord>, BrokerError> {
        let (min, max) = self.store().bounds(&place.topic, place.queue_id)?;
        let start = next.clamp(min, max.max(min));
        let cursor = self.store().read(&place.topic, place.queue_id, Some(start), None, None)?;
        let mut cursor = cursor.on_damage(self.options.on_damage);
        let mut found = Vec::new();
        while found.len() < count {
            let records = cursor.next_batch(READ_TOGETHER.min(count))?;
            if records.is_empty() {
                break;
            }
            let is_due =
                |record: &StoredRecord| put_delay_until(record).is_none_or(|visible_ms| visible_ms <= now_ms);
            let progress = place.progress.lock();
            let is_open =
                |record: &StoredRecord| !progress.is_finished(record.queue_offset) && is_due(record);
            found.extend(records.into_iter().filter(is_open));
        }
        found.truncate(count);
        Ok(found)
    }

    pub(super) fn leases(&self) -> Result<Vec<LeaseInfo>, BrokerError> {
        // Raises the error of a closed store.
        self.store().catch_up()?;
        let mut found = Vec::new();
        for place in self.places()? {
            let progress = place.progress.lock();
            found.extend(progress.leases().map(|(queue_offset, lease)| LeaseInfo {
                topic: Arc::clone(&place.topic),
                queue_id: place.queue_id,
                queue_offset,
                attempt: lease.attempt,
                invisible_until_ms: lease.invisible_until_ms,
            }));
        }
        found.sort_by_key(|lease| lease.invisible_until_ms);
        Ok(found)
    }

    pub(super) fn purge(&self) -> Result<u64, BrokerError> {
        self.store().catch_up()?;
        let now_ms = self.store().clock().now_ms();
        let mut purged = 0;
        {
            let mut state = self.state.lock();
            // A queue that is new since the last search has messages to purge too.
            state.looked = None;
            self.look_for_queues(&mut state)?;
            for source in &mut state.sources {
                let (_, max) = source.bounds(self.store())?;
                let ((count, next), _) =
                    self.meta().change_progress(&source.place.progress, |progress, records| {
                        (finish_unleased(progress, max, now_ms, records), progress.next().max(max))
                    })?;
                source.skip_read_ahead(next);
                purged += count;
            }
        }
        self.meta().sync(self.meta().place())?;
        for signal in [&self.ready, &self.space, &self.done] {
            signal.ring();
        }
        Ok(purged)
    }

    /// Returns the queues with the group's progress.
    pub(super) fn places(&self) -> Result<Vec<Arc<QueuePlace>>, BrokerError> {
        let mut state = self.state.lock();
        self.look_for_queues(&mut state)?;
        Ok(state.sources.iter().map(|source| Arc::clone(&source.place)).collect())
    }
}

/// Returns the number of deliveries of a message that waits or is leased.
fn attempts(progress: &Progress, offset: i64) -> u32 {
    let leased = progress.lease(offset).map(|lease| lease.attempt);
    leased.or_else(|| progress.waiting(offset).map(|waiting| waiting.attempt)).unwrap_or(0)
}

/// Pushes records that finish each message below `max` that no worker has. Returns the number of these messages. A
/// message that becomes a dead letter is left to its move.
fn finish_unleased(progress: &Progress, max: i64, now_ms: i64, records: &mut Vec<ProgressRecord>) -> u64 {
    let held =
        progress.leases().filter(|(_, lease)| lease.invisible_until_ms > now_ms).map(|(offset, _)| offset);
    let dying = progress.dead_letters().map(|(offset, _)| offset);
    let mut kept: Vec<i64> = held.chain(dying).collect();
    kept.sort_unstable();
    let ended = progress.leases().filter(|(_, lease)| lease.invisible_until_ms <= now_ms).count();
    let open = progress.all_waiting().len() + ended;
    let end = progress.next().max(max);
    let mut from = progress.committed();
    for to in kept.into_iter().chain([end]) {
        if from < to {
            records.push(ProgressRecord::Finished { from, to });
        }
        from = to.saturating_add(1);
    }
    open as u64 + progress.new_messages(end)
}
