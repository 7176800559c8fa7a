//! Lists the delayed messages that wait as of one log offset. Changes no file, and may run next to a writer.
//!
//! The candidates come from the files on which an open would rely. They are read before or at the log offset, so no
//! later delivery hides a message. Deliveries and cancellations between the saved state and the log offset are found in
//! the log, as by an open. Memory: 8 bytes for each message with an exact time, 16 for each with a delay level.

use std::collections::{HashMap, HashSet};

use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_engine::Store;
use mqstore_format::SCHEDULE_TOPIC;
use mqstore_format::delays::timer::TIMER_TOPIC;
use mqstore_format::properties::TIMER_DEQUEUE_MS;

use super::files::{BEFORE_MS, LevelQueue, RecoveryBasis};
use super::pending::{AT_ONCE, PendingScan, SavedDelays};
use super::timer_record::{delivery_key, is_copy_of, origin_of, timed};
use crate::error::view;

/// The delayed messages of a log that wait for their delivery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WaitingDelays {
    /// Log offsets of the records in the timer topic, ascending.
    pub(crate) timer: Vec<u64>,
    /// Log offsets and due times, in epoch milliseconds, of the records of delay levels, ascending.
    pub(crate) levels: Vec<(u64, i64)>,
}

/// Deliveries after the saved state.
#[derive(Default)]
struct LaterDeliveries {
    /// Log offsets of the records from which they were made.
    origins: HashSet<u64>,
    /// Deliveries by a broker, which name no record, by unique key and slot time.
    keys: HashMap<(String, i64), u32>,
}

impl WaitingDelays {
    /// Lists the messages that wait in `store` at the current end of its log. Also returns this log offset.
    pub(crate) fn of(store: &Store) -> Result<(Self, u64), StoreError> {
        // Read the state before the end of the log: a state after it could count deliveries beyond it.
        let mut saved = SavedDelays::load(store)?;
        let (_, limit) = store.log().bounds()?;
        let basis = saved.basis(store)?;
        let mut waiting = Self {
            timer: timer_records(store, &mut saved, basis, (None, limit))?,
            levels: level_records(store, &saved, limit)?,
        };
        waiting.remove_delivered(store, (&saved, basis), limit)?;
        Ok((waiting, limit))
    }

    /// Whether the message of `record`, which is in the timer topic or in that of the delay levels, waits now. It was
    /// not delivered, put back or cancelled. Reads one slot of the wheel, and the log since the last save.
    pub(crate) fn contains(store: &Store, record: &StoredRecord) -> Result<bool, StoreError> {
        let mut saved = SavedDelays::load(store)?;
        let (_, limit) = store.log().bounds()?;
        let basis = saved.basis(store)?;
        let (offset, queue_id) = (record.commit_log_offset, view(record)?.queue_id);
        let mut waiting = Self::default();
        if let Some(timed) = timed(record) {
            waiting.timer = timer_records(store, &mut saved, basis, (Some(timed.slot), limit))?;
            waiting.timer.retain(|waiting| *waiting == offset);
        } else if !saved.levels.is_before_next(queue_id.saturating_add(1), record.queue_offset) {
            waiting.levels = vec![(offset, 0)];
        }
        waiting.remove_delivered(store, (&saved, basis), limit)?;
        Ok(waiting.has(offset))
    }

    /// Removes the messages whose deliveries are in the log before `limit`.
    fn remove_delivered(
        &mut self,
        store: &Store,
        (saved, basis): (&SavedDelays, RecoveryBasis),
        limit: u64,
    ) -> Result<(), StoreError> {
        let levels = self.levels.first().map(|(offset, _)| *offset);
        let Some(first) = self.timer.first().copied().into_iter().chain(levels).min() else {
            return Ok(());
        };
        // A delivery is after the record that it was made from.
        let from = first.max(deliveries_start(store, saved, basis)?);
        let later = self.deliveries(store, (from, limit), basis != RecoveryBasis::Ours)?;
        self.remove(store, later)
    }

    fn has(&self, offset: u64) -> bool {
        self.timer.binary_search(&offset).is_ok() || self.level_due_ms(offset).is_some()
    }

    /// Returns the due time of the waiting record of a delay level, in epoch milliseconds.
    pub(crate) fn level_due_ms(&self, offset: u64) -> Option<i64> {
        let found = self.levels.binary_search_by_key(&offset, |(offset, _)| *offset).ok()?;
        self.levels.get(found).map(|(_, due_ms)| *due_ms)
    }

    fn deliveries(
        &self,
        store: &Store,
        (from, limit): (u64, u64),
        by_key: bool,
    ) -> Result<LaterDeliveries, StoreError> {
        let mut found = LaterDeliveries::default();
        let (begin, _) = store.log().bounds()?;
        let mut cursor = store.log().scan(Some(from.max(begin)))?.with_deleted();
        loop {
            let records = cursor.next_batch(AT_ONCE)?;
            if records.is_empty() {
                return Ok(found);
            }
            for record in &records {
                if record.commit_log_offset >= limit {
                    return Ok(found);
                }
                let Ok(view) = record.view() else { continue };
                match origin_of(&view) {
                    Some(origin) if self.has(origin) => {
                        let source = store.log().record_at(origin)?;
                        if source.is_some_and(|source| source.view().is_ok_and(|of| is_copy_of(&view, &of))) {
                            found.origins.insert(origin);
                        }
                    }
                    None if by_key && view.properties.get(TIMER_DEQUEUE_MS).is_some() => {
                        if let Some(key) = delivery_key(record) {
                            *found.keys.entry(key).or_default() += 1;
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    fn remove(&mut self, store: &Store, mut later: LaterDeliveries) -> Result<(), StoreError> {
        self.levels.retain(|(offset, _)| !later.origins.contains(offset));
        self.timer.retain(|offset| !later.origins.contains(offset));
        if later.keys.is_empty() {
            return Ok(());
        }
        let mut kept = Vec::with_capacity(self.timer.len());
        for offset in self.timer.drain(..) {
            let key = store.log().record_at(offset)?.as_ref().and_then(delivery_key);
            let left = key.and_then(|key| later.keys.get_mut(&key)).filter(|left| **left > 0);
            match left {
                Some(left) => *left -= 1,
                None => kept.push(offset),
            }
        }
        self.timer = kept;
        Ok(())
    }
}

/// Returns the log offset from which deliveries are not in the saved state yet.
fn deliveries_start(store: &Store, saved: &SavedDelays, basis: RecoveryBasis) -> Result<u64, StoreError> {
    let known = saved.state.as_ref().map_or(0, |state| state.scan_from);
    Ok(match basis {
        RecoveryBasis::Ours => known,
        RecoveryBasis::Broker => {
            let read_ms = saved.check.last_read_time_ms;
            known.max(store.log().offset_before(read_ms.saturating_sub(BEFORE_MS))?)
        }
        RecoveryBasis::Queue => 0,
    })
}

/// Returns the log offsets of timer records that were not delivered when the state was saved, ascending. With `slot`,
/// only those that can have this slot, and others.
fn timer_records(
    store: &Store,
    saved: &mut SavedDelays,
    basis: RecoveryBasis,
    (slot, limit): (Option<i64>, u64),
) -> Result<Vec<u64>, StoreError> {
    let mut scan = PendingScan::new(store, store.clock().now_ms()).listing(slot, limit);
    if basis == RecoveryBasis::Queue {
        match store.bounds(TIMER_TOPIC, 0) {
            Err(StoreError::TopicNotFound { .. }) => {}
            bounds => {
                let (min, _) = bounds?;
                scan.learn_cancelled(min)?;
                scan.count_queue(min, min, i64::MIN)?;
            }
        }
    } else {
        if basis == RecoveryBasis::Ours {
            saved.use_newest_positions();
        }
        scan.timer(saved, &mut Vec::new())?;
    }
    let mut offsets = scan.into_offsets();
    offsets.sort_unstable();
    offsets.dedup();
    Ok(offsets)
}

/// Returns log offsets and due times of level records that were not delivered when the state was saved, ascending.
fn level_records(store: &Store, saved: &SavedDelays, limit: u64) -> Result<Vec<(u64, i64)>, StoreError> {
    let mut found = Vec::new();
    for LevelQueue { queue_id, next, max, .. } in saved.levels.queues(store)? {
        let mut cursor = store.read(SCHEDULE_TOPIC, queue_id, Some(next), Some(max), None)?;
        loop {
            let records = cursor.next_batch(AT_ONCE)?;
            if records.is_empty() {
                break;
            }
            let dues = store.level_times()?.dues_of(queue_id, &records)?;
            let with_dues = records.iter().map(|record| record.commit_log_offset).zip(dues);
            found.extend(with_dues.filter_map(|(offset, due_ms)| Some((offset, due_ms?))));
        }
    }
    found.retain(|(offset, _)| *offset < limit);
    found.sort_unstable();
    Ok(found)
}
