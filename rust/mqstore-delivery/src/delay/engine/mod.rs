//! The engine of delayed messages: what waits, its files, and the counts.
//!
//! A record passes through four places, in this order: the timer queue; [`TimerQueue`], by slot; the wheel, once
//! [`DelayEngine::save`] has written it there; and [`DueMessages`], from shortly before its slot's time on.

mod cancel;
mod cancellations;
mod deliver;
mod delivered_levels;
mod due_messages;
mod found_deliveries;
mod levels;
mod recover;

use std::time::Duration;

use mqstore_base::error::StoreError;
use mqstore_engine::Store;
use mqstore_format::delays::timer::{TIMER_PRECISION_MS, TIMER_TOPIC, WHEEL_SLOTS};

use super::files::{DelayJournal, DelayState, LevelOffsets, SaveSnapshot};
use super::stats::{DelayAccounts, DelayCounts};
use super::timer_queue::TimerQueue;
use super::timer_record::{CancelTarget, Timed, has_delete_key, slot_of, timed};
use cancellations::Cancellations;
use due_messages::DueMessages;
use found_deliveries::FoundDeliveries;

/// Records of the timer queue in one read.
const AT_ONCE: usize = 1024;
/// Maximum records of the timer queue that one call reads, and number of unsaved records at which they are saved early.
/// So an open that builds wheel and timer log again does not hold a long queue in memory.
pub(super) const MOST_READ: usize = if cfg!(test) { 100 } else { 1 << 17 };
/// Maximum records in memory while waiting for a background sync of the log; above this, the log is flushed.
const MOST_UNWRITTEN: usize = 1 << 20;
/// Bytes of the log after which the start of the search for deliveries is saved again.
const MOST_TO_SCAN: u64 = 64 << 20;

/// The state of delayed messages; see the module's text.
pub(super) struct DelayEngine {
    store: Store,
    queue: TimerQueue,
    journal: DelayJournal,
    levels: LevelOffsets,
    due: DueMessages,
    cancellations: Cancellations,
    /// Deliveries that an open found in the log.
    found: FoundDeliveries,
    accounts: DelayAccounts,
}

impl DelayEngine {
    /// Reads all of the timer queue, so that the state of each message is known.
    pub(super) fn read_timer_queue(&mut self) -> Result<(), StoreError> {
        while self.read_timer_records()? {}
        Ok(())
    }

    /// Reads new records of the timer queue, about [`MOST_READ`]. Returns whether there were any. Stops at a record
    /// whose slot is too far ahead for the wheel.
    pub(super) fn read_timer_records(&mut self) -> Result<bool, StoreError> {
        let (mut any, mut read) = (false, 0);
        let (min, max) = match self.store.bounds(TIMER_TOPIC, 0) {
            Err(StoreError::TopicNotFound { .. }) => return Ok(false),
            bounds => bounds?,
        };
        self.accounts.add_dropped(min.saturating_sub(self.queue.next()).max(0) as u64);
        self.queue.skip_to(min);
        if self.queue.next() >= max {
            return Ok(false);
        }
        self.journal.mark_changed();
        let mut cursor = self.store.read(TIMER_TOPIC, 0, Some(self.queue.next()), None, None)?;
        loop {
            if read >= MOST_READ {
                return Ok(true);
            }
            let records = cursor.next_batch(AT_ONCE.min(MOST_READ))?;
            if records.is_empty() {
                self.queue.skip_to(cursor.position());
                return Ok(any);
            }
            read += records.len();
            for record in &records {
                match timed(record) {
                    Some(timed) if timed.slot >= self.due.read_slot() + WHEEL_SLOTS => {
                        self.read_cancels_ahead()?;
                        return Ok(any);
                    }
                    Some(timed) if self.cancellations.take_ahead(timed.offset) => {}
                    Some(timed) => self.add(timed)?,
                    None => self.accounts.add_dropped(1),
                }
                any = true;
                self.queue.pass(record);
            }
        }
    }

    /// Whether memory holds the maximum number of messages and some are due: these are delivered before more are read.
    pub(super) fn is_swamped(&self, now_ms: i64) -> bool {
        self.due.is_full() && self.due.next_attempt_ms().is_some_and(|at_ms| at_ms <= now_ms)
    }

    /// Applies cancellations after the first record that is further ahead than the wheel reaches: a message that they
    /// name may be due before that record is read. Those that name a record which was not read either are applied in
    /// their order.
    fn read_cancels_ahead(&mut self) -> Result<(), StoreError> {
        let from = self.cancellations.ahead_start(self.queue.next());
        let mut cursor = self.store.read(TIMER_TOPIC, 0, Some(from), None, None)?;
        loop {
            let records = cursor.next_batch(AT_ONCE)?;
            if records.is_empty() {
                self.cancellations.end_ahead(cursor.position());
                return Ok(());
            }
            for record in &records {
                let Some(timed) = timed(record) else { continue };
                if matches!(&timed.cancels, Some(CancelTarget::Record(offset)) if self.queue.has_read(*offset))
                {
                    self.cancellations.add_ahead(timed.offset);
                    self.add(timed)?;
                    self.queue.note_read(record);
                }
            }
        }
    }

    /// Adds a record of the timer queue: a message that waits, or a cancellation.
    fn add(&mut self, mut timed: Timed) -> Result<(), StoreError> {
        if let Some(target) = timed.cancels.clone() {
            if let CancelTarget::Record(offset) = &target
                && let Some(slot) = self.slot_of_record(*offset)?
            {
                timed.slot = slot;
            }
            timed.slot = timed.slot.max(self.due.read_slot());
            self.apply_cancel(target, timed.slot)?;
            self.queue.add_unwritten(timed);
            return Ok(());
        }
        if self.found.contains(timed.offset) {
            // Until its slot is loaded, a cancellation may ask for it.
            if timed.slot < self.due.loaded_to() {
                self.found.forget(timed.offset);
            }
            return Ok(());
        }
        if self.found.take_by_key(&timed, &self.store)? {
            return Ok(());
        }
        let late = timed.slot < self.due.read_slot();
        timed.slot = timed.slot.max(self.due.read_slot());
        self.accounts.add_pending(1);
        if late || timed.slot < self.due.loaded_to() {
            self.due.insert(&timed, self.queue.log_seen());
            self.queue.add_unwritten(timed);
        } else {
            self.queue.add_waiting(timed);
        }
        Ok(())
    }

    /// Returns the slot in which the timer record at `offset` entered the wheel; `None` if the record no longer exists.
    fn slot_of_record(&self, offset: u64) -> Result<Option<i64>, StoreError> {
        if let Some(slot) = self.due.slot_of(offset) {
            return Ok(Some(slot));
        }
        Ok(self.store.log().record_at(offset)?.as_ref().and_then(timed).map(|timed| timed.slot))
    }

    fn remove(&mut self, offset: u64) {
        if self.due.remove(offset) {
            self.accounts.remove_pending();
            self.journal.mark_changed();
        }
    }

    /// Cancels the waiting messages that `target` names.
    fn apply_cancel(&mut self, target: CancelTarget, slot: i64) -> Result<(), StoreError> {
        let is_loaded = slot < self.due.loaded_to();
        match target {
            CancelTarget::Record(offset) if self.due.contains(offset) => {
                self.remove(offset);
                self.accounts.add_cancelled();
            }
            CancelTarget::Record(offset) if !is_loaded && !self.found.contains(offset) => {
                self.cancellations.learn(slot, &mut self.journal, &self.store)?;
                if self.cancellations.add_record(slot, offset) {
                    self.accounts.remove_pending();
                    self.accounts.add_cancelled();
                }
            }
            CancelTarget::Record(_) => {}
            CancelTarget::Key(key) => {
                for record in self.store.log().records_at(&self.due.in_slot(slot))?.into_iter().flatten() {
                    if record.view().is_ok_and(|view| has_delete_key(&view, &key)) {
                        self.remove(record.commit_log_offset);
                        self.accounts.add_cancelled();
                    }
                }
                if !is_loaded {
                    self.cancellations.add_key(slot, key);
                }
            }
        }
        Ok(())
    }

    /// Returns the first slot that has messages and is not in memory.
    fn next_slot(&mut self) -> Result<Option<i64>, StoreError> {
        let loaded_to = self.due.loaded_to();
        let waiting = self.queue.first_waiting_slot(loaded_to);
        let used = self.journal.next_used_slot(loaded_to)?;
        Ok(waiting.into_iter().chain(used).min())
    }

    /// Loads the slots whose time is near.
    pub(super) fn load(&mut self, now_ms: i64) -> Result<(), StoreError> {
        let until = slot_of(now_ms.saturating_add(TIMER_PRECISION_MS)) + 1;
        while !self.due.is_full() && self.due.loaded_to() < until {
            match self.next_slot()?.filter(|slot| *slot < until) {
                Some(slot) => self.load_slot(slot)?,
                None => self.due.set_loaded_to(until),
            }
        }
        Ok(())
    }

    fn load_slot(&mut self, slot: i64) -> Result<(), StoreError> {
        let [messages, _] = self.journal.records_of(slot)?;
        self.cancellations.learn(slot, &mut self.journal, &self.store)?;
        let log_seen = self.queue.log_seen();
        self.due.add_slot(slot, log_seen);
        let (cancelled, keys) = self.cancellations.take_slot(slot);
        let waiting = self.queue.take_slot(slot);
        let known: Vec<_> = messages
            .into_iter()
            .filter(|(offset, _)| !cancelled.contains(offset) && !self.due.contains(*offset))
            .collect();
        for places in known.chunks(AT_ONCE) {
            let records = self.store.log().records_at(places)?;
            for ((offset, _), record) in places.iter().zip(records) {
                if self.found.contains(*offset) {
                    // Until the slot is passed, an open must find its deliveries.
                    self.due.add_slot(slot, log_seen.min(self.found.from()));
                    continue;
                }
                let Some(mut timed) = record.as_ref().and_then(timed).filter(|timed| timed.cancels.is_none())
                else {
                    self.accounts.add_dropped(1);
                    self.accounts.remove_pending();
                    continue;
                };
                if self.found.take_by_key(&timed, &self.store)? {
                    self.accounts.remove_pending();
                    continue;
                }
                timed.slot = slot;
                self.due.insert(&timed, log_seen);
            }
        }
        for timed in waiting.iter().filter(|timed| !cancelled.contains(&timed.offset)) {
            self.due.insert(timed, log_seen);
        }
        if self.found.has_slot(slot) {
            // Until the slot is passed, an open must find its deliveries.
            self.due.add_slot(slot, log_seen.min(self.found.from()));
            self.found.forget_slot(slot, self.queue.next());
        }
        for key in keys {
            self.apply_cancel(CancelTarget::Key(key), slot)?;
        }
        self.due.set_loaded_to(slot + 1);
        Ok(())
    }

    pub(super) fn pass(&mut self, now_ms: i64) {
        self.due.pass(now_ms);
    }

    /// Saves the changes if it is time. With `now`, saves in any case and waits for the log.
    pub(super) fn save(&mut self, now: bool, interval: Duration) -> Result<(), StoreError> {
        if self.journal.has_failed() {
            return Ok(());
        }
        let time = self.store.clock().monotonic();
        let interval_left = if now { Duration::ZERO } else { interval };
        if self.journal.can_prepare(time, interval_left) && self.is_worth_saving(now)? {
            let snapshot = self.take_snapshot();
            self.journal.prepare(snapshot, time);
        }
        if now || self.queue.unwritten_count() > MOST_UNWRITTEN {
            self.store.flush()?;
        }
        let Some(needed_log_end) = self.journal.needed_log_end() else { return Ok(()) };
        if self.store.system_appends().durable_position()? < needed_log_end {
            return Ok(());
        }
        let outcome = self.journal.write(&self.store, &mut self.queue, &mut self.levels);
        if let Err(error) = &outcome
            && self.journal.has_failed()
        {
            self.note(format!(
                "cannot save the state of delayed messages ({error}); the next open recovers it from the log"
            ));
        }
        if now && self.journal.is_changed() && outcome.is_ok() {
            return self.save(now, interval);
        }
        outcome
    }

    /// Saves before its time if many records are in memory only.
    pub(super) fn save_early(&mut self) -> Result<(), StoreError> {
        if self.queue.unwritten_count() < MOST_READ {
            return Ok(());
        }
        self.save(false, Duration::ZERO)
    }

    /// Whether anything changed, or an open would have to search much of the log.
    fn is_worth_saving(&mut self, now: bool) -> Result<bool, StoreError> {
        let (saved_slot, saved_scan_from) = self.journal.saved_starts();
        if !self.journal.is_changed()
            && (self.accounts.pending() > 0 || self.journal.next_used_slot(saved_slot)?.is_some())
        {
            let (_, end) = self.store.log().bounds()?;
            let much = end.saturating_sub(saved_scan_from) > MOST_TO_SCAN;
            if much || now && self.due.read_slot() > saved_slot {
                self.queue.note_log_end(end);
                self.journal.mark_changed();
            }
        }
        Ok(self.journal.is_changed())
    }

    fn take_snapshot(&mut self) -> SaveSnapshot {
        let (read_slot, loaded_to) = (self.due.read_slot(), self.due.loaded_to());
        let units = self.queue.take_unwritten().into_iter().filter(|timed| {
            let waits = timed.slot >= loaded_to || self.due.contains(timed.offset);
            timed.slot >= read_slot && (waits || timed.cancels.is_some())
        });
        let units = units.collect();
        let log_seen = self.queue.log_seen();
        let from = self.due.deliveries_from().into_iter().chain(self.found.needed_from()).min();
        let state = DelayState {
            read_slot,
            scan_from: from.unwrap_or(log_seen).min(log_seen),
            as_of: log_seen,
            queue_next: self.queue.next(),
            last_record: self.queue.last_record(),
            pending: self.accounts.pending(),
            levels: self.levels.all().clone(),
            ..DelayState::default()
        };
        SaveSnapshot { state, units }
    }

    /// Returns the time of the next work, in epoch milliseconds. The next message of a level is due at `next_level`.
    pub(super) fn next_work_ms(
        &mut self,
        next_level: Option<i64>,
        now_ms: i64,
        save_interval: Duration,
    ) -> Result<i64, StoreError> {
        let next_attempt = self.due.next_attempt_ms();
        // A slot is loaded one second before its time.
        let next_slot = self.next_slot()?.map(|slot| (slot - 1).saturating_mul(TIMER_PRECISION_MS));
        let save = self.journal.has_unsaved();
        let save = save.then(|| now_ms.saturating_add(save_interval.as_millis() as i64));
        let next = [next_level, next_attempt, next_slot, save].into_iter().flatten().min();
        Ok(next.unwrap_or(i64::MAX))
    }

    pub(super) fn counts(&mut self) -> Result<DelayCounts, StoreError> {
        self.read_timer_queue()?;
        // A message that became near after the last step may still be in its slot, which is precise to one second.
        self.load(self.store.clock().now_ms())?;
        let slot = self.next_slot()?.map(|slot| (slot + 1).saturating_mul(TIMER_PRECISION_MS));
        let next_due_ms = self.due.first_due_ms().into_iter().chain(slot).min();
        Ok(self.accounts.counts(self.count_level_pending()?, next_due_ms))
    }

    fn note(&self, note: String) {
        self.store.user_notes().log(note);
    }

    /// Returns the number of records of the timer queue in memory.
    #[cfg(test)]
    pub(super) fn queue_in_memory(&self) -> usize {
        self.queue.in_memory()
    }
}
