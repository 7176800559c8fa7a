//! Opening the delayed messages after a stop, or after a broker used the directory.
//!
//! * **Ours** (the files are as this engine wrote them): recovery adds missing units from the timer log to the wheel,
//!   and zeroes the timer log after its known end. Then it searches the commit log from `scan_from` on for
//!   deliveries. The cost depends on the work since the last save, not on the number of waiting messages.
//! * **A broker's**: the broker's checkpoint, timer log and wheel count, by its rules. Recovery adds missing units to
//!   the wheel; units without a record are dropped when their slot is read. The broker's deliveries since its
//!   checkpoint are known by unique key and slot time. Unlike a broker, an open loses no message that became due
//!   during a long downtime.
//! * **Levels**: if the saved state does not cover them, recovery searches the log for their deliveries
//!   (`delivered_levels`).
//! * **Neither** (a file is missing or damaged, or the commit log ends before the known position): recovery builds
//!   wheel and timer log again from the whole timer queue. It searches the commit log for deliveries from the first
//!   record of the timer queue on.
//!
//! Source: `TimerMessageStore#recover`, `#recoverAndRevise`, `#reviseQueueOffset`.

use std::collections::HashSet;

use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_engine::Store;
use mqstore_format::delays::timer::TIMER_TOPIC;
use mqstore_format::properties::TIMER_DEQUEUE_MS;
use mqstore_format::{RecordView, SCHEDULE_TOPIC};

use super::DelayEngine;
use super::cancellations::Cancellations;
use super::due_messages::DueMessages;
use super::found_deliveries::FoundDeliveries;
use crate::delay::files::{
    BEFORE_MS, DelayJournal, DelayState, LevelQueue, OpenedFiles, RecoveryBasis, is_in_queue,
};
use crate::delay::options::DelayOptions;
use crate::delay::stats::DelayAccounts;
use crate::delay::timer_queue::TimerQueue;
use crate::delay::timer_record::{CancelTarget, delivery_key, is_copy_of, origin_of, slot_of, timed};

/// Records of the log in one read.
const AT_ONCE: usize = 1024;

impl DelayEngine {
    /// Opens the engine of a store that is open for writing.
    pub(crate) fn open(store: &Store, options: &DelayOptions) -> Result<Self, StoreError> {
        let (_, log_end) = store.log().bounds()?;
        let opened = DelayJournal::open(store, log_end, options.timer_log_file_bytes)?;
        let OpenedFiles { journal, levels, basis, state } = opened;
        let mut engine = Self {
            store: store.clone(),
            queue: TimerQueue::new(log_end),
            journal,
            levels,
            due: DueMessages::new(slot_of(store.clock().now_ms())),
            cancellations: Cancellations::default(),
            found: FoundDeliveries::default(),
            accounts: DelayAccounts::default(),
        };
        match (basis, state) {
            (RecoveryBasis::Ours, Some(state)) => engine.load_own_state(&state)?,
            (RecoveryBasis::Broker, state) => engine.load_broker_state(state.as_ref())?,
            (_, state) => engine.rebuild_from_queue(state.is_some())?,
        }
        if basis != RecoveryBasis::Ours || !engine.levels.is_known() {
            engine.find_delivered_levels()?;
        }
        // Messages that were late for their own slot are in the first slot, whatever its time.
        engine.load_slot(engine.due.read_slot())?;
        // Passed slots need no deliveries.
        engine.found.forget_before(engine.due.loaded_to(), engine.queue.next());
        Ok(engine)
    }

    fn load_own_state(&mut self, state: &DelayState) -> Result<(), StoreError> {
        self.due.start_at(state.read_slot);
        self.queue.start_at(state.queue_next, state.last_record);
        self.accounts.add_pending(state.pending);
        self.journal.restore(state)?;
        let nothing_left = state.pending == 0 && self.journal.next_used_slot(state.read_slot)?.is_none();
        if nothing_left && self.queue_end()? <= state.queue_next && self.count_level_pending()? == 0 {
            // The log is not searched for deliveries then, so that only this tells that nothing waits.
            self.queue.mark_all_done();
            return Ok(());
        }
        self.scan_deliveries(state.scan_from, Some(state.as_of), false)
    }

    fn load_broker_state(&mut self, state: Option<&DelayState>) -> Result<(), StoreError> {
        let last_unit = self.journal.take_over()?;
        let check = self.journal.check();
        let (read_ms, checked_next) = (check.last_read_time_ms, check.last_timer_queue_offset);
        self.due.start_at(slot_of(read_ms));
        // After the record of the last unit, whatever the broker's checkpoint says.
        let record = match last_unit {
            Some(unit) => {
                let place = (unit.physical_offset as u64, unit.size.cast_unsigned());
                self.store.log().records_at(&[place])?.pop().flatten()
            }
            None => None,
        };
        let after_last = record.as_ref().and_then(timed).map(|timed| timed.queue_offset + 1);
        let state = state.filter(|state| state.as_of <= self.queue.log_seen());
        // A record that we had read is in the timer log, or it was delivered and has no unit.
        let ours = match state.filter(|state| state.log_end <= self.journal.log_end()) {
            Some(state) if is_in_queue(&self.store, state)? => state.queue_next,
            _ => 0,
        };
        let next = after_last.unwrap_or(checked_next).max(ours).min(self.queue_end()?);
        self.queue.start_at(next, record.map_or(-1, |record| record.commit_log_offset as i64));
        let known = state.map_or(0, |state| state.scan_from);
        let by_time = self.store.log().offset_before(read_ms.saturating_sub(BEFORE_MS))?;
        self.scan_deliveries(known.max(by_time), None, true)?;
        self.count_pending()
    }

    /// Rebuilds wheel and timer log. With `had_state`, an earlier state exists.
    fn rebuild_from_queue(&mut self, had_state: bool) -> Result<(), StoreError> {
        self.journal.reset(had_state)?;
        let first = match self.store.read(TIMER_TOPIC, 0, None, None, None) {
            Err(StoreError::TopicNotFound { .. }) => None,
            cursor => cursor?.next_batch(1)?.pop(),
        };
        let mut from = self.queue.log_seen();
        if let Some(first) = first {
            self.queue.start_at(first.queue_offset, -1);
            from = first.commit_log_offset;
            let stored = first.view().map_or(i64::MAX, |view| view.store_timestamp);
            self.due.start_at(self.due.read_slot().min(slot_of(stored)));
        }
        if self.count_level_pending()? > 0 {
            from = from.min(self.first_undelivered_level_record()?);
        }
        self.scan_deliveries(from, None, true)
    }

    fn queue_end(&self) -> Result<i64, StoreError> {
        match self.store.bounds(TIMER_TOPIC, 0) {
            Err(StoreError::TopicNotFound { .. }) => Ok(0),
            bounds => Ok(bounds?.1),
        }
    }

    /// Returns the log offset of the first record of a level that may be undelivered.
    pub(super) fn first_undelivered_level_record(&self) -> Result<u64, StoreError> {
        let mut first = self.queue.log_seen();
        for LevelQueue { queue_id, next, .. } in self.levels.queues(&self.store)? {
            let mut cursor = self.store.read(SCHEDULE_TOPIC, queue_id, Some(next), None, None)?;
            if let Some(record) = cursor.next_batch(1)?.pop() {
                first = first.min(record.commit_log_offset);
            }
        }
        Ok(first)
    }

    /// Counts the messages in the wheel that are not delivered, because a broker's own counts are not correct. Messages
    /// that only a key shows to be cancelled or delivered count until their slot is loaded.
    fn count_pending(&mut self) -> Result<(), StoreError> {
        let mut next = self.journal.next_used_slot(self.due.read_slot())?;
        while let Some(slot) = next {
            let [messages, deletions] = self.journal.records_of(slot)?;
            let mut waiting: HashSet<u64> = messages.into_iter().map(|(offset, _)| offset).collect();
            for record in self.store.log().records_at(&deletions)?.into_iter().flatten() {
                // Each cancellation of ours has two records, for brokers of two versions.
                if let Some(CancelTarget::Record(offset)) = timed(&record).and_then(|timed| timed.cancels) {
                    waiting.remove(&offset);
                }
            }
            waiting.retain(|offset| !self.found.contains(*offset));
            self.accounts.add_pending(waiting.len() as u64);
            next = self.journal.next_used_slot(slot + 1)?.filter(|next| *next > slot);
        }
        Ok(())
    }

    /// Searches the log from `from` on for deliveries of messages that still seem to wait. Deliveries before `as_of`
    /// are already subtracted from `pending`.
    fn scan_deliveries(&mut self, from: u64, as_of: Option<u64>, by_key: bool) -> Result<(), StoreError> {
        let (begin, _) = self.store.log().bounds()?;
        self.found.start(from);
        let mut cursor = self.store.log().scan(Some(from.max(begin)))?.with_deleted();
        loop {
            let records = cursor.next_batch(AT_ONCE)?;
            if records.is_empty() {
                return Ok(());
            }
            for record in &records {
                let Ok(view) = record.view() else { continue };
                match origin_of(&view) {
                    Some(origin) => self.record_delivery(record, &view, origin, as_of)?,
                    None if by_key && view.properties.get(TIMER_DEQUEUE_MS).is_some() => {
                        if let Some(key) = delivery_key(record) {
                            self.found.add_key(key);
                        }
                    }
                    None => {}
                }
            }
        }
    }

    fn record_delivery(
        &mut self,
        record: &StoredRecord,
        view: &RecordView<'_>,
        origin: u64,
        as_of: Option<u64>,
    ) -> Result<(), StoreError> {
        let source = match self.store.log().get_at(origin) {
            Ok(source) => source,
            Err(StoreError::Corrupt { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        let Ok(source_view) = source.view() else { return Ok(()) };
        if !is_copy_of(view, &source_view) {
            return Ok(());
        }
        if source_view.topic == SCHEDULE_TOPIC {
            let level = source_view.queue_id.saturating_add(1);
            self.levels.raise(level, source_view.queue_offset + 1);
            self.journal.mark_changed();
            return Ok(());
        }
        let Some(timed) = timed(&source) else { return Ok(()) };
        if self.found.add(&timed)
            && as_of.is_some_and(|as_of| record.commit_log_offset >= as_of)
            && timed.queue_offset < self.queue.next()
        {
            self.accounts.remove_pending();
            self.journal.mark_changed();
        }
        Ok(())
    }
}
