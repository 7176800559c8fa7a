//! Seeks, resets, positions and the lag of a consumer.

use std::sync::Arc;

use mqstore_engine::Boundary;

use super::assigned_queue::AssignedQueue;
use super::assignment::Queue;
use super::consumer::{Consumer, ConsumerState, out_of_range};
use super::options::StartOffset;
use crate::error::BrokerError;

impl Consumer {
    /// Continues at `offset` of a queue that it owns. The next commit stores the new position, even if it is smaller
    /// than before.
    ///
    /// # Errors
    /// [`BrokerError::NotAssigned`]; `OffsetOutOfRange` for an offset below the minimum or above the maximum of the
    /// queue.
    pub fn seek(&self, topic: &str, queue_id: i32, offset: i64) -> Result<(), BrokerError> {
        let mut state = self.start_seek()?;
        let queue = Queue { topic: topic.into(), queue_id };
        let at = self.slot(&state, &queue)?;
        let (min, max) = self.store().bounds(topic, queue_id)?;
        let bounds = (if offset < min { self.earliest(&queue, min)? } else { min }, max);
        if !(bounds.0..=bounds.1).contains(&offset) {
            return Err(out_of_range(&queue, offset, bounds).into());
        }
        if let Some(slot) = state.slots.get_mut(at) {
            seek_queue(slot, offset);
        }
        Ok(())
    }

    /// Continues, in each of its queues, at the first message stored at or after `time_ms` (epoch milliseconds).
    pub fn seek_to_time(&self, time_ms: i64) -> Result<(), BrokerError> {
        self.seek_all(StartOffset::Time(time_ms)).map(drop)
    }

    /// Moves the group in each queue that this consumer owns, and commits that immediately. With `sync` the commit is
    /// durable when this returns.
    pub fn reset(&self, to: StartOffset, sync: bool) -> Result<(), BrokerError> {
        let mut state = self.seek_all(to)?;
        let wanted: Vec<_> = state.slots.iter().map(|slot| slot.returned).enumerate().collect();
        let stored = self.store_offsets(&mut state, &wanted)?;
        drop(state);
        self.finish_commit(&stored, sync)
    }

    fn seek_all(
        &self,
        to: StartOffset,
    ) -> Result<mqstore_io::sync::MutexGuard<'_, ConsumerState>, BrokerError> {
        let mut state = self.start_seek()?;
        let mut places = Vec::with_capacity(state.slots.len());
        for slot in &state.slots {
            let (topic, queue_id) = (&*slot.queue.topic, slot.queue.queue_id);
            let (min, max) = self.store().bounds(topic, queue_id)?;
            places.push(match to {
                StartOffset::Earliest => self.earliest(&slot.queue, min)?,
                StartOffset::Latest => max,
                StartOffset::Time(ms) => self.offset_for_time(&slot.queue, ms, max)?,
            });
        }
        for (slot, place) in state.slots.iter_mut().zip(places) {
            seek_queue(slot, place);
        }
        Ok(state)
    }

    /// Returns the smallest offset of a queue whose log begins at `min`, also of messages from before the log.
    pub(super) fn earliest(&self, queue: &Queue, min: i64) -> Result<i64, BrokerError> {
        Ok(self.store().continued().oldest_offset(&queue.topic, queue.queue_id, min)?)
    }

    /// Returns the offset of the first message of a queue stored at or after a time, also from before the log.
    pub(super) fn offset_for_time(&self, queue: &Queue, time_ms: i64, max: i64) -> Result<i64, BrokerError> {
        let store = self.store().continued();
        let found = store.offset_for_time(&queue.topic, queue.queue_id, time_ms, Boundary::Lower)?;
        Ok(found.min(max))
    }

    fn start_seek(&self) -> Result<mqstore_io::sync::MutexGuard<'_, ConsumerState>, BrokerError> {
        let mut state = self.state.lock();
        self.check()?;
        self.refresh(&mut state)?;
        // Messages that were read ahead at the old position must not come after the move.
        state.clear_buffer();
        Ok(state)
    }

    /// Returns the minimum offset of the next message of a queue. Messages that were only read ahead do not count as
    /// read.
    pub fn position(&self, topic: &str, queue_id: i32) -> Result<i64, BrokerError> {
        self.inspect_queue(topic, queue_id, |slot| slot.returned)
    }

    /// Returns the offset that the group committed for a queue that this consumer owns; `None` if there is none.
    pub fn committed(&self, topic: &str, queue_id: i32) -> Result<Option<i64>, BrokerError> {
        self.inspect_queue(topic, queue_id, |slot| {
            slot.committed(self.meta()).filter(|_| self.stored_as.is_some())
        })
    }

    fn inspect_queue<T>(
        &self,
        topic: &str,
        queue_id: i32,
        look: impl FnOnce(&AssignedQueue) -> T,
    ) -> Result<T, BrokerError> {
        let mut state = self.state.lock();
        self.check()?;
        self.refresh(&mut state)?;
        let queue = Queue { topic: Arc::from(topic), queue_id };
        let at = self.slot(&state, &queue)?;
        let slot = state.slots.get(at).map(look);
        slot.ok_or_else(|| BrokerError::NotAssigned {
            group: self.group.to_string(),
            topic: topic.to_owned(),
            queue_id,
        })
    }

    /// Returns, for each of its queues, the number of messages from the committed offset to the end. If the group
    /// committed nothing, or for a broadcast consumer without a name, it counts from the offset at which this
    /// consumer started.
    pub fn lag(&self) -> Result<Vec<(Queue, i64)>, BrokerError> {
        let mut state = self.state.lock();
        self.check()?;
        self.refresh(&mut state)?;
        let mut lags = Vec::with_capacity(state.slots.len());
        for slot in &state.slots {
            let (min, max) = self.store().bounds(&slot.queue.topic, slot.queue.queue_id)?;
            let stored = slot.committed(self.meta()).filter(|_| self.stored_as.is_some());
            let from = stored.unwrap_or(slot.begun);
            let from = if from < min { from.max(self.earliest(&slot.queue, min)?) } else { from };
            lags.push((slot.queue.clone(), (max - from).max(0)));
        }
        Ok(lags)
    }
}

fn seek_queue(slot: &mut AssignedQueue, offset: i64) {
    slot.move_to(offset);
    slot.sought = true;
}
