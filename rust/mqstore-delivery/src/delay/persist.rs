//! Saving the state of delayed messages: timer log, wheel, mqstore's own state, and a broker's checkpoint.
//!
//! ```text
//! 0  a snapshot in memory: delivered slots, records that entered the wheel, end of the log
//! 1  once the log is durable up to there: units appended to the timer log, synced
//! 2  mqstore's own state, with that end of the timer log and the position up to which the wheel on disk is complete;
//!    synced
//! 3  the wheel, synced
//! 4  timercheck and delayOffset.json
//! ```
//!
//! No step refers to bytes that earlier steps have not synced. After a stop later than step 2, recovery completes the
//! wheel from the timer log. Nothing here waits for a sync of the log: the snapshot waits instead.

use std::collections::HashMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use mqstore_base::error::StoreError;
use mqstore_format::crc32;
use mqstore_format::delays::timer::{TIMER_PRECISION_MS, TimerCheckpoint, TimerSlot, TimerUnit};

use super::engine::{DelayEngine, MOST_READ};
use super::state_file::{DelayState, SaveSnapshot};
use super::timer_record::Timed;

/// Maximum records in memory while waiting for a background sync of the log; above this, the log is flushed.
const MOST_UNWRITTEN: usize = 1 << 20;
/// Bytes of the log after which the start of the search for deliveries is saved again.
const MOST_TO_SCAN: u64 = 64 << 20;

impl DelayEngine {
    /// Saves the changes if it is time. With `now`, saves in any case and waits for the log.
    pub(super) fn save(&mut self, now: bool, interval: Duration) -> Result<(), StoreError> {
        if self.saved.failed {
            return Ok(());
        }
        let time = self.store.clock().monotonic();
        let is_time = now || time.saturating_sub(self.saved.taken) >= interval;
        if is_time && self.saved.snapshot.is_none() && self.is_worth_saving(now)? {
            self.saved.taken = time;
            self.take_snapshot();
        }
        if now || self.unwritten.len() > MOST_UNWRITTEN {
            self.store.flush()?;
        }
        let Some(snapshot) = self.saved.snapshot.take() else { return Ok(()) };
        if self.store.system_appends().durable_position()? < snapshot.state.as_of {
            self.saved.snapshot = Some(snapshot);
            return Ok(());
        }
        let mut snapshot = snapshot;
        let outcome = self.write(&mut snapshot);
        if let Err(error) = &outcome {
            self.saved.dirty = true;
            // It is unknown whether a failed sync kept anything.
            if !matches!(error, StoreError::DiskFull { .. }) && !error.is_out_of_files() {
                self.saved.failed = true;
                self.note(format!(
                    "cannot save the state of delayed messages ({error}); the next open recovers it from the log"
                ));
            }
            self.unwritten.splice(0..0, snapshot.units);
        }
        if now && self.saved.dirty && outcome.is_ok() {
            return self.save(now, interval);
        }
        outcome
    }

    /// Saves before its time if many records are in memory only.
    pub(super) fn save_early(&mut self) -> Result<(), StoreError> {
        if self.unwritten.len() < MOST_READ {
            return Ok(());
        }
        self.save(false, Duration::ZERO)
    }

    /// Whether anything changed, or an open would have to search much of the log.
    fn is_worth_saving(&mut self, now: bool) -> Result<bool, StoreError> {
        let saved = self.saved.state.read_slot;
        if !self.saved.dirty && (self.pending > 0 || self.wheel.next_used_slot(saved)?.is_some()) {
            let (_, end) = self.store.log().bounds()?;
            let much = end.saturating_sub(self.saved.state.scan_from) > MOST_TO_SCAN;
            if much || now && self.read_slot > saved {
                self.log_seen = end;
                self.saved.dirty = true;
            }
        }
        Ok(self.saved.dirty)
    }

    fn take_snapshot(&mut self) {
        let read_slot = self.read_slot;
        let units = std::mem::take(&mut self.unwritten)
            .into_iter()
            .filter(|timed| {
                let waits = timed.slot >= self.loaded_to || self.live.contains_key(&timed.offset);
                timed.slot >= read_slot && (waits || timed.cancels.is_some())
            })
            .collect();
        let found = (!self.delivered.records.is_empty()).then_some(self.delivered.from);
        let from = self.slots.values().map(|slot| slot.from).chain(found).min();
        let state = DelayState {
            read_slot,
            scan_from: from.unwrap_or(self.log_seen).min(self.log_seen),
            as_of: self.log_seen,
            queue_next: self.queue_next,
            last_record: self.last_record,
            pending: self.pending,
            levels: self.levels.next.clone(),
            ..DelayState::default()
        };
        self.saved.dirty = false;
        self.saved.snapshot = Some(Box::new(SaveSnapshot { state, units }));
    }

    fn write(&mut self, snapshot: &mut SaveSnapshot) -> Result<(), StoreError> {
        let now_ms = self.store.clock().now_ms();
        let slots = self.write_units(&snapshot.units)?;
        for slot in slots.values() {
            self.wheel.put(slot)?;
        }
        snapshot.units.clear();
        self.unload_slots(slots.keys(), snapshot.state.queue_next);
        let (log_min, _) = self.store.log().bounds()?;
        let mut state = DelayState {
            log_begin: self.log.first_kept_file(log_min)?,
            log_end: self.log.end(),
            wheel_end: self.saved.state.wheel_end,
            check: self.saved.state.check,
            offsets: self.saved.state.offsets,
            ..snapshot.state.clone()
        };
        let check = TimerCheckpoint {
            last_read_time_ms: state.read_slot.saturating_mul(TIMER_PRECISION_MS),
            last_timer_log_flush_pos: state.log_end as i64,
            last_timer_queue_offset: state.queue_next,
            master_timer_queue_offset: state.queue_next,
            state_version: self.saved.check.state_version,
            timestamp_ms: now_ms,
            counter: self.saved.check.counter.saturating_add(1),
        };
        let fields = check.encode_fields();
        let text = self.levels.changed.then(|| self.levels.write_json(now_ms));
        state.check[1] = crc32(&fields);
        if let Some(text) = &text {
            state.offsets[1] = crc32(text.as_bytes());
        }
        self.saved.files.store(&mut state)?;
        self.saved.state = state;
        self.wheel.flush()?;
        self.saved.files.write_timer_check(&fields)?;
        self.saved.check = check;
        self.saved.state.check[0] = self.saved.state.check[1];
        if let Some(text) = &text {
            self.saved.files.write_delay_offsets(text.as_bytes())?;
            self.saved.state.offsets[0] = self.saved.state.offsets[1];
            self.levels.changed = false;
        }
        self.saved.state.wheel_end = self.saved.state.log_end;
        self.log.remove_before(self.saved.state.log_begin)
    }

    /// Appends units to the timer log, and returns the slots that lead to them.
    fn write_units(&mut self, units: &[Timed]) -> Result<HashMap<i64, TimerSlot>, StoreError> {
        let mut slots = HashMap::new();
        let mut places = Vec::with_capacity(units.len());
        let mut end = self.log.end();
        for timed in units {
            let place = self.log.next_unit_position(end);
            end = place + mqstore_format::delays::timer::TIMER_UNIT_BYTES as u64;
            let slot = match slots.get(&timed.slot) {
                Some(slot) => *slot,
                None => self.wheel.slot(timed.slot)?.unwrap_or_else(|| empty(timed.slot)),
            };
            let unit = unit(timed, slot.last);
            slots.insert(timed.slot, slot_ending_at(slot, place as i64, unit.deletes));
            places.push((place, unit));
        }
        self.log.append(&places)?;
        self.log.sync()?;
        Ok(slots)
    }

    /// Removes records from `waiting` that are now in the wheel: those of these slots before `queue_offset`.
    fn unload_slots<'a>(&mut self, slots: impl Iterator<Item = &'a i64>, queue_offset: i64) {
        for slot in slots {
            if let Entry::Occupied(mut waiting) = self.waiting.entry(*slot) {
                waiting.get_mut().retain(|timed| timed.queue_offset >= queue_offset);
                if waiting.get().is_empty() {
                    waiting.remove();
                }
            }
        }
    }
}

/// Returns a slot without units.
pub(super) fn empty(time: i64) -> TimerSlot {
    TimerSlot { time, first: -1, last: -1, count: 0, magic: 0 }
}

/// Returns the slot after a unit at `place` became its last.
pub(super) fn slot_ending_at(slot: TimerSlot, place: i64, deletes: bool) -> TimerSlot {
    TimerSlot {
        first: if slot.first < 0 { place } else { slot.first },
        last: place,
        count: slot.count.saturating_add(if deletes { -1 } else { 1 }),
        ..slot
    }
}

fn unit(timed: &Timed, previous: i64) -> TimerUnit {
    let slot_ms = timed.slot.saturating_mul(TIMER_PRECISION_MS);
    // A record that was late for its slot is in a later one.
    let write_ms = timed.write_ms.min(slot_ms);
    let (write_ms, delay_ms) = match i32::try_from(slot_ms.saturating_sub(write_ms)) {
        Ok(delay_ms) => (write_ms, delay_ms),
        Err(_) => (slot_ms, 0),
    };
    TimerUnit {
        previous,
        rolls: timed.rolls,
        deletes: timed.cancels.is_some(),
        write_ms,
        delay_ms,
        physical_offset: timed.offset as i64,
        size: timed.size.cast_signed(),
        topic_hash: timed.topic_hash,
    }
}
