//! The journal of delayed messages: timer log, wheel, mqstore's own state, and a broker's checkpoint, saved together.
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
use std::path::Path;
use std::time::Duration;

use mqstore_base::error::StoreError;
use mqstore_engine::Store;
use mqstore_format::crc32;
use mqstore_format::delays::timer::{
    TIMER_PRECISION_MS, TIMER_UNIT_BYTES, TimerCheckpoint, TimerSlot, TimerUnit,
};
use mqstore_format::names::TIMERWHEEL_FILE;
use mqstore_io::Access;

use super::level_offsets::LevelOffsets;
use super::recovery_basis::{RecoveryBasis, basis, broker_scan_start, check_bytes_in_use};
use super::state_file::{DelayState, StateFiles};
use super::timer_log::TimerLog;
use super::timer_wheel::{TimerWheel, remove, slot_ending_at};
use crate::delay::timer_queue::TimerQueue;
use crate::delay::timer_record::{Timed, slot_of};

/// The files for writing, with the saved state and the changes since then.
#[derive(Debug)]
pub(crate) struct DelayJournal {
    wheel: TimerWheel,
    log: TimerLog,
    files: StateFiles,
    /// The saved state.
    state: DelayState,
    check: TimerCheckpoint,
    /// Whether anything changed since the last snapshot.
    changed: bool,
    snapshot: Option<Box<SaveSnapshot>>,
    /// Time of the last snapshot, on the interval clock.
    taken: Duration,
    /// Whether a sync failed. Then nothing more is saved, and the next open uses the last saved state.
    failed: bool,
}

/// The content of the next save: the state, and the records that enter the timer log.
#[derive(Debug)]
pub(crate) struct SaveSnapshot {
    pub(crate) state: DelayState,
    pub(crate) units: Vec<Timed>,
}

/// The files as an open found them.
pub(crate) struct OpenedFiles {
    pub(crate) journal: DelayJournal,
    pub(crate) levels: LevelOffsets,
    pub(crate) basis: RecoveryBasis,
    /// The saved state, if there is one.
    pub(crate) state: Option<DelayState>,
}

impl DelayJournal {
    /// Opens the files of a store that is open for writing, whose log ends at `log_end`. Replaces those that are not
    /// valid. New files of the timer log have `timer_log_file_bytes`.
    pub(crate) fn open(
        store: &Store,
        log_end: u64,
        timer_log_file_bytes: u64,
    ) -> Result<OpenedFiles, StoreError> {
        let files = store.files();
        let (state_files, state) = StateFiles::load(files)?;
        let wheel = TimerWheel::open(files, Access::ReadWrite)?;
        let log = TimerLog::open(files, timer_log_file_bytes, Access::ReadWrite)?;
        let check_bytes = state_files.check();
        let basis = basis(store, state.as_ref(), (wheel.as_ref(), log.as_ref()), &check_bytes)?;
        let wheel = if let Some(wheel) = wheel {
            wheel
        } else {
            remove(files, &files.root.join(TIMERWHEEL_FILE))?;
            TimerWheel::open(files, Access::ReadWrite)?
                .ok_or_else(|| StoreError::Busy { reason: "cannot create the timer wheel".into() })?
        };
        let log = if let Some(log) = log {
            log
        } else {
            quarantine(store, &files.timer_log())?;
            TimerLog::open(files, timer_log_file_bytes, Access::ReadWrite)?
                .ok_or_else(|| StoreError::Busy { reason: "cannot create the timer log".into() })?
        };
        if let Some(note) = state_files.damage_note(true)? {
            store.add_note(&note);
        }
        let loaded = state_files.offsets()?;
        let had_file = state.as_ref().is_some_and(|state| state.offsets[0] != crc32(b""));
        if loaded.file.is_none() && had_file {
            store.add_note(
                "config/delayOffset.json: missing; mqstore/delays has its offsets, and the log shows later deliveries",
            );
        }
        let levels = LevelOffsets::new(loaded, state.as_ref().filter(|state| state.as_of <= log_end));
        let journal = Self {
            wheel,
            log,
            files: state_files,
            state: DelayState {
                check: [crc32(&check_bytes_in_use(&check_bytes)); 2],
                offsets: [levels.crc(); 2],
                ..state.clone().unwrap_or_default()
            },
            check: TimerCheckpoint::decode(&check_bytes),
            changed: basis != RecoveryBasis::Ours,
            snapshot: None,
            taken: store.clock().monotonic(),
            failed: false,
        };
        Ok(OpenedFiles { journal, levels, basis, state })
    }

    /// Returns the broker's checkpoint, as last read or written.
    pub(crate) fn check(&self) -> &TimerCheckpoint {
        &self.check
    }

    pub(crate) fn log_end(&self) -> u64 {
        self.log.end()
    }

    /// Adds the missing units of the saved state to the wheel, and zeroes the timer log after them.
    pub(crate) fn restore(&mut self, state: &DelayState) -> Result<(), StoreError> {
        replay_units(&mut self.wheel, &mut self.log, state.wheel_end, state.log_end)?;
        self.log.cut(state.log_end)
    }

    /// Takes over the timer log of a broker: adds its missing units to the wheel. Returns its last unit.
    pub(crate) fn take_over(&mut self) -> Result<Option<TimerUnit>, StoreError> {
        let (_, files_end) = self.log.bounds();
        let from = broker_scan_start(&self.log, &self.check);
        replay_units(&mut self.wheel, &mut self.log, from, files_end)?;
        self.log.cut(self.log.end())?;
        self.state.log_end = self.log.end();
        self.state.wheel_end = from.min(self.log.end());
        self.last_unit()
    }

    fn last_unit(&mut self) -> Result<Option<TimerUnit>, StoreError> {
        let (begin, _) = self.log.bounds();
        let end = self.log.end();
        let from = (end.saturating_sub(1)).max(begin) - begin;
        let from = begin + from / self.log.file_bytes().max(1) * self.log.file_bytes();
        let mut last = None;
        self.log.walk(from, end, |_, unit| {
            last = Some(unit);
            Ok(())
        })?;
        Ok(last)
    }

    /// Starts with an empty wheel and an empty timer log. With `had_state`, an earlier state exists.
    pub(crate) fn reset(&mut self, had_state: bool) -> Result<(), StoreError> {
        if had_state || self.wheel.exists() || self.log.bounds().1 > 0 {
            self.log.reset()?;
            self.wheel.reset()?;
        }
        self.state.log_end = 0;
        self.state.wheel_end = 0;
        Ok(())
    }

    /// Returns the first slot from `from` on that has units.
    pub(crate) fn next_used_slot(&mut self, from: i64) -> Result<Option<i64>, StoreError> {
        self.wheel.next_used_slot(from)
    }

    /// Returns the records in a slot of the wheel, oldest first: messages, then deletions.
    pub(crate) fn records_of(&mut self, slot: i64) -> Result<[Vec<(u64, u32)>; 2], StoreError> {
        let [mut messages, mut deletions] = [Vec::new(), Vec::new()];
        let mut next = self.wheel.slot(slot)?.map_or(-1, |slot| slot.last);
        while let Some(unit) = self.log.unit(next)? {
            let list = if unit.deletes { &mut deletions } else { &mut messages };
            list.push((unit.physical_offset as u64, unit.size as u32));
            next = unit.previous;
        }
        messages.reverse();
        Ok([messages, deletions])
    }

    /// The next save contains changes.
    pub(crate) fn mark_changed(&mut self) {
        self.changed = true;
    }

    pub(crate) fn is_changed(&self) -> bool {
        self.changed
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Whether a later save has something to write.
    pub(crate) fn has_unsaved(&self) -> bool {
        (self.changed || self.snapshot.is_some()) && !self.failed
    }

    /// Whether no snapshot waits, and the last one is at least `interval` old.
    pub(crate) fn can_prepare(&self, time: Duration, interval: Duration) -> bool {
        self.snapshot.is_none() && time.saturating_sub(self.taken) >= interval
    }

    /// Returns the first slot that the saved state does not cover, and the log offset from which an open would search
    /// for deliveries.
    pub(crate) fn saved_starts(&self) -> (i64, u64) {
        (self.state.read_slot, self.state.scan_from)
    }

    /// Makes `snapshot` the content of the next save.
    pub(crate) fn prepare(&mut self, snapshot: SaveSnapshot, time: Duration) {
        self.taken = time;
        self.changed = false;
        self.snapshot = Some(Box::new(snapshot));
    }

    /// Returns the end of the log that must be durable before the prepared snapshot is written; `None` without one.
    pub(crate) fn needed_log_end(&self) -> Option<u64> {
        self.snapshot.as_ref().map(|snapshot| snapshot.state.as_of)
    }

    /// Writes the prepared snapshot. The log must be durable up to [`Self::needed_log_end`]. After an error, the records
    /// that are not in the timer log are in `queue` again.
    pub(crate) fn write(
        &mut self,
        store: &Store,
        queue: &mut TimerQueue,
        levels: &mut LevelOffsets,
    ) -> Result<(), StoreError> {
        let Some(mut snapshot) = self.snapshot.take() else { return Ok(()) };
        let outcome = self.write_steps(&mut snapshot, store, queue, levels);
        if let Err(error) = &outcome {
            self.changed = true;
            // It is unknown whether a failed sync kept anything.
            self.failed = !matches!(error, StoreError::DiskFull { .. }) && !error.is_out_of_files();
            queue.put_back(snapshot.units);
        }
        outcome
    }

    fn write_steps(
        &mut self,
        snapshot: &mut SaveSnapshot,
        store: &Store,
        queue: &mut TimerQueue,
        levels: &mut LevelOffsets,
    ) -> Result<(), StoreError> {
        let now_ms = store.clock().now_ms();
        let slots = self.write_units(&snapshot.units)?;
        for slot in slots.values() {
            self.wheel.put(slot)?;
        }
        snapshot.units.clear();
        queue.unload_slots(slots.keys(), snapshot.state.queue_next);
        let (log_min, _) = store.log().bounds()?;
        let mut state = DelayState {
            log_begin: self.log.first_kept_file(log_min)?,
            log_end: self.log.end(),
            wheel_end: self.state.wheel_end,
            check: self.state.check,
            offsets: self.state.offsets,
            ..snapshot.state.clone()
        };
        let check = TimerCheckpoint {
            last_read_time_ms: state.read_slot.saturating_mul(TIMER_PRECISION_MS),
            last_timer_log_flush_pos: state.log_end as i64,
            last_timer_queue_offset: state.queue_next,
            master_timer_queue_offset: state.queue_next,
            state_version: self.check.state_version,
            timestamp_ms: now_ms,
            counter: self.check.counter.saturating_add(1),
        };
        let fields = check.encode_fields();
        let text = levels.text_to_write(now_ms);
        state.check[1] = crc32(&fields);
        if let Some(text) = &text {
            state.offsets[1] = crc32(text.as_bytes());
        }
        self.files.store(&mut state)?;
        self.state = state;
        self.wheel.flush()?;
        self.files.write_timer_check(&fields)?;
        self.check = check;
        self.state.check[0] = self.state.check[1];
        if let Some(text) = &text {
            self.files.write_delay_offsets(text.as_bytes())?;
            self.state.offsets[0] = self.state.offsets[1];
            levels.note_written();
        }
        self.state.wheel_end = self.state.log_end;
        self.log.remove_before(self.state.log_begin)
    }

    /// Appends units to the timer log, and returns the slots that lead to them.
    fn write_units(&mut self, units: &[Timed]) -> Result<HashMap<i64, TimerSlot>, StoreError> {
        let mut slots = HashMap::new();
        let mut placed = Vec::with_capacity(units.len());
        let mut end = self.log.end();
        for timed in units {
            let position = self.log.next_unit_position(end);
            end = position + TIMER_UNIT_BYTES as u64;
            let slot = match slots.get(&timed.slot) {
                Some(slot) => *slot,
                None => self.wheel.slot_or_empty(timed.slot)?,
            };
            let unit = unit(timed, slot.last);
            slots.insert(timed.slot, slot_ending_at(slot, position as i64, unit.deletes));
            placed.push((position, unit));
        }
        self.log.append(&placed)?;
        self.log.sync()?;
        Ok(slots)
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

/// Adds the missing units of `log` in `from..end` to `wheel`, in memory. Returns the last unit.
pub(crate) fn replay_units(
    wheel: &mut TimerWheel,
    log: &mut TimerLog,
    from: u64,
    end: u64,
) -> Result<Option<TimerUnit>, StoreError> {
    let mut last = None;
    log.walk(from, end, |position, unit| {
        let slot = wheel.slot_or_empty(slot_of(unit.slot_ms()))?;
        if slot.last < position {
            wheel.put(&slot_ending_at(slot, position, unit.deletes))?;
        }
        last = Some(unit);
        Ok(())
    })?;
    Ok(last)
}

/// Moves a folder that is not a timer log to lost+found.
fn quarantine(store: &Store, folder: &Path) -> Result<(), StoreError> {
    let files = store.files();
    let aside = files.unused_lost_and_found_name("timerlog")?;
    let moved = files.vfs.rename(folder, &aside);
    moved.map_err(|error| StoreError::io(folder, "moving a damaged timer log to lost+found", error))?;
    files.sync_lost_and_found()
}
