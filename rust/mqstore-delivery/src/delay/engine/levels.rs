//! Delay levels: one queue of [`SCHEDULE_TOPIC`] for each level.
//!
//! All messages of a level have the same delay, so they are due in queue order. If the table of levels changed
//! meanwhile, they are still delivered in queue order, and none before its time.
//!
//! The state of a level is one number: the next offset to deliver. Source: `ScheduleMessageService`.

use std::time::Duration;

use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_format::SCHEDULE_TOPIC;

use super::DelayEngine;
use super::deliver::AGAIN_MS;
use crate::delay::files::{LevelQueue, MOST_LEVELS};

/// Messages of a level in one read.
const AT_ONCE: usize = 512;

impl DelayEngine {
    /// Delivers the due messages of all levels. Returns the next due time, in epoch milliseconds.
    pub(crate) fn deliver_levels(&mut self, now_ms: i64) -> Result<Option<i64>, StoreError> {
        let mut next_due = None::<i64>;
        for queue_id in self.store.queue_ids(SCHEDULE_TOPIC)? {
            let level = queue_id.saturating_add(1);
            if level > MOST_LEVELS as i32 {
                continue;
            }
            if let Some(due_ms) = self.deliver_level_records(level, queue_id, now_ms)? {
                next_due = Some(next_due.map_or(due_ms, |next| next.min(due_ms)));
            }
        }
        Ok(next_due)
    }

    fn deliver_level_records(
        &mut self,
        level: i32,
        queue_id: i32,
        now_ms: i64,
    ) -> Result<Option<i64>, StoreError> {
        let (min, max) = self.store.bounds(SCHEDULE_TOPIC, queue_id)?;
        let mut next = self.levels.next_of(queue_id, (min, max));
        while next < max {
            let mut cursor = self.store.read(SCHEDULE_TOPIC, queue_id, Some(next), Some(max), None)?;
            let mut records = cursor.next_batch(AT_ONCE)?;
            if records.is_empty() {
                next = max;
                break;
            }
            // Read the clock after the records. Otherwise records stored meanwhile would seem newer than the clock.
            let now_ms = self.store.clock().now_ms().max(now_ms);
            let dues = self.store.level_times()?.dues_of(queue_id, &records)?;
            let due_ms = |(record, due_ms)| level_due(record, due_ms, now_ms);
            let dues: Vec<i64> = records.iter().zip(dues).map(due_ms).collect();
            let due = dues.iter().take_while(|due_ms| **due_ms <= now_ms).count();
            let first_left = dues.get(due).copied();
            records.truncate(due);
            let last = records.last().map(|record| record.queue_offset + 1);
            records.retain(|record| !self.levels.is_delivered(level, record.queue_offset));
            let dropped = self.accounts.dropped();
            let (due, done) = (records.len(), self.deliver_level(&records, now_ms)?);
            // The offset of the first message that is left, or one past the last.
            let end = records.get(done).map(|record| record.queue_offset).or(last);
            if let Some(end) = end.filter(|end| *end > next) {
                next = self.levels.advance(level, end);
                self.journal.mark_changed();
            }
            if self.accounts.dropped() > dropped {
                // Only the position shows that these messages do not wait.
                self.save(true, Duration::ZERO)?;
            }
            if done < due {
                return Ok(Some(now_ms.saturating_add(AGAIN_MS)));
            }
            if first_left.is_some() {
                return Ok(first_left);
            }
        }
        self.levels.set(level, next);
        Ok(None)
    }

    pub(super) fn count_level_pending(&self) -> Result<u64, StoreError> {
        let mut pending = 0;
        for LevelQueue { queue_id, next, max, .. } in self.levels.queues(&self.store)? {
            let delivered = self.levels.count_delivered(queue_id, next);
            pending += ((max - next) as u64).saturating_sub(delivered);
        }
        Ok(pending)
    }
}

/// Returns the due time of a record of a level, whose entry says `due_ms`.
///
/// Store times never decrease, so a clock that was ahead once lends its time to all records until it gets there again.
/// If the store time is ahead of the clock by more than the delay, the delay counts from the time at which the record
/// was made. If that is ahead too, the clock went back since, and the record is due now.
/// (`ScheduleMessageService#correctDeliverTimestamp`)
fn level_due(record: &StoredRecord, due_ms: Option<i64>, now_ms: i64) -> i64 {
    let Some(due_ms) = due_ms else { return now_ms };
    let Ok(view) = record.view() else { return due_ms };
    let delay_ms = due_ms.saturating_sub(view.store_timestamp).max(0);
    if view.store_timestamp.saturating_sub(now_ms) <= delay_ms {
        return due_ms;
    }
    if view.born_timestamp > now_ms { now_ms } else { view.born_timestamp.saturating_add(delay_ms) }
}
