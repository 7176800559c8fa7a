//! Moving a consumer on purpose, and how far it is behind.

use std::sync::Arc;

use mqstore_engine::Boundary;

use super::assigned_queue::AssignedQueue;
use super::assignment::Queue;
use super::consumer::{Consumer, State, out_of_range};
use super::options::StartOffset;
use crate::error::BrokerError;

impl Consumer {
    /// Goes on at `offset` of a queue that it has; the next commit stores where it came to from there, also if that is
    /// less than before.
    ///
    /// # Errors
    /// [`BrokerError::NotAssigned`]; `OffsetOutOfRange` for an offset that the queue does not hold, and is not its end.
    pub fn seek(&self, topic: &str, queue_id: i32, offset: i64) -> Result<(), BrokerError> {
        let mut state = self.start_seek()?;
        let queue = Queue { topic: topic.into(), queue_id };
        let at = self.slot(&state, &queue)?;
        let bounds = self.store().bounds(topic, queue_id)?;
        if !(bounds.0..=bounds.1).contains(&offset) {
            return Err(out_of_range(&queue, offset, bounds).into());
        }
        if let Some(slot) = state.slots.get_mut(at) {
            seek_queue(slot, offset);
        }
        Ok(())
    }

    /// Goes on, in each queue that it has, at the first message stored at or after `time_ms` (epoch milliseconds).
    pub fn seek_to_time(&self, time_ms: i64) -> Result<(), BrokerError> {
        self.seek_all(StartOffset::Time(time_ms)).map(drop)
    }

    /// Moves the group in each queue that this consumer has, and stores that at once; with `sync` it is on the disk when
    /// this returns.
    pub fn reset(&self, to: StartOffset, sync: bool) -> Result<(), BrokerError> {
        let mut state = self.seek_all(to)?;
        let wanted: Vec<_> = state.slots.iter().map(|slot| slot.returned).enumerate().collect();
        let stored = self.store_offsets(&mut state, &wanted)?;
        drop(state);
        self.finish_commit(&stored, sync)
    }

    fn seek_all(&self, to: StartOffset) -> Result<mqstore_io::sync::MutexGuard<'_, State>, BrokerError> {
        let mut state = self.start_seek()?;
        let mut places = Vec::with_capacity(state.slots.len());
        for slot in &state.slots {
            let (topic, queue_id) = (&*slot.queue.topic, slot.queue.queue_id);
            let (min, max) = self.store().bounds(topic, queue_id)?;
            places.push(match to {
                StartOffset::Earliest => min,
                StartOffset::Latest => max,
                StartOffset::Time(ms) => {
                    self.store().offset_for_time(topic, queue_id, ms, Boundary::Lower)?.clamp(min, max)
                }
            });
        }
        for (slot, place) in state.slots.iter_mut().zip(places) {
            seek_queue(slot, place);
        }
        Ok(state)
    }

    fn start_seek(&self) -> Result<mqstore_io::sync::MutexGuard<'_, State>, BrokerError> {
        let mut state = self.state.lock();
        self.check()?;
        self.refresh(&mut state)?;
        // What was read ahead of the old place must not come behind the move.
        state.clear_buffer();
        Ok(state)
    }

    /// The offset that the next message of a queue has at least; what is read ahead counts as not read.
    pub fn position(&self, topic: &str, queue_id: i32) -> Result<i64, BrokerError> {
        self.inspect_queue(topic, queue_id, |slot| slot.returned)
    }

    /// The offset that the group has stored for a queue that this consumer has; `None` when there is none.
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

    /// For each queue that it has, how many messages lie between what its group has committed and the end; where the
    /// group committed nothing, and for a broadcast consumer without a name, between where it began and the end.
    pub fn lag(&self) -> Result<Vec<(Queue, i64)>, BrokerError> {
        let mut state = self.state.lock();
        self.check()?;
        self.refresh(&mut state)?;
        let mut lags = Vec::with_capacity(state.slots.len());
        for slot in &state.slots {
            let (min, max) = self.store().bounds(&slot.queue.topic, slot.queue.queue_id)?;
            let stored = slot.committed(self.meta()).filter(|_| self.stored_as.is_some());
            let from = stored.unwrap_or(slot.begun).max(min);
            lags.push((slot.queue.clone(), (max - from).max(0)));
        }
        Ok(lags)
    }
}

fn seek_queue(slot: &mut AssignedQueue, offset: i64) {
    slot.move_to(offset);
    slot.sought = true;
}
