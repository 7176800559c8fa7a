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

use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};

use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_engine::Store;
use mqstore_format::delays::timer::{TIMER_TOPIC, TimerCheckpoint, TimerUnit};
use mqstore_format::properties::TIMER_DEQUEUE_MS;
use mqstore_format::{RecordView, SCHEDULE_TOPIC, crc32};
use mqstore_io::Access;

use super::engine::{DelayCounters, DelayEngine, FoundDeliveries, slot_of};
use super::options::DelayOptions;
use super::persist::{empty, slot_ending_at};
use super::state_file::{DelayState, LevelOffsets, SaveState, StateFiles};
use super::stats::Lateness;
use super::timer_log::TimerLog;
use super::timer_record::{CancelTarget, delivery_key, is_copy_of, origin_of, timed};
use super::timer_wheel::TimerWheel;

/// Records of the log in one read.
const AT_ONCE: usize = 1024;
/// How far before a broker's read time the search for its deliveries starts, in case clocks went back.
pub(super) const BEFORE_MS: i64 = 60_000;

/// The files on which an open relies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecoveryBasis {
    Ours,
    Broker,
    Queue,
}

impl DelayEngine {
    /// Opens the engine of a store that is open for writing.
    pub(super) fn open(store: &Store, options: &DelayOptions) -> Result<Self, StoreError> {
        let files = store.files();
        let (state_files, state) = StateFiles::load(files)?;
        let (_, log_seen) = store.log().bounds()?;
        let wheel = TimerWheel::open(files, Access::ReadWrite)?;
        let log = TimerLog::open(files, options.timer_log_file_bytes, Access::ReadWrite)?;
        let check_bytes = state_files.check();
        let check = TimerCheckpoint::decode(&check_bytes);
        let basis = basis(store, state.as_ref(), (wheel.as_ref(), log.as_ref()), &check_bytes)?;
        let wheel = if let Some(wheel) = wheel {
            wheel
        } else {
            super::timer_wheel::remove(files, &files.root.join(mqstore_format::names::TIMERWHEEL_FILE))?;
            TimerWheel::open(files, Access::ReadWrite)?
                .ok_or_else(|| StoreError::Busy { reason: "cannot create the timer wheel".into() })?
        };
        let log = if let Some(log) = log {
            log
        } else {
            let folder = files.timer_log();
            quarantine(store, &folder)?;
            TimerLog::open(files, options.timer_log_file_bytes, Access::ReadWrite)?
                .ok_or_else(|| StoreError::Busy { reason: "cannot create the timer log".into() })?
        };
        let fits = |state: &&DelayState| state.as_of <= log_seen;
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
        let levels = LevelOffsets::new(loaded, state.as_ref().filter(fits));
        let saved = SaveState {
            files: state_files,
            state: state.clone().unwrap_or_default(),
            check,
            dirty: basis != RecoveryBasis::Ours,
            snapshot: None,
            taken: store.clock().monotonic(),
            failed: false,
        };
        let read_slot = slot_of(store.clock().now_ms());
        let mut core = Self {
            store: store.clone(),
            wheel,
            log,
            saved,
            levels,
            read_slot,
            loaded_to: read_slot,
            queue_next: 0,
            last_record: -1,
            log_seen,
            slots: BTreeMap::new(),
            live: HashMap::new(),
            heap: BinaryHeap::new(),
            waiting: BTreeMap::new(),
            unwritten: Vec::new(),
            cancelled: HashMap::new(),
            none_pending_before: 0,
            cancels_ahead: HashSet::new(),
            cancels_read_to: 0,
            cancelled_keys: HashMap::new(),
            known_cancelled: HashSet::new(),
            delivered: FoundDeliveries::default(),
            pending: 0,
            counts: DelayCounters::default(),
            lateness: Lateness::default(),
            notes: Vec::new(),
        };
        let sums = [crc32(&check_bytes_in_use(&check_bytes)), core.levels.crc];
        core.saved.state.check = [sums[0]; 2];
        core.saved.state.offsets = [sums[1]; 2];
        match (basis, state) {
            (RecoveryBasis::Ours, Some(state)) => core.load_own_state(&state)?,
            (RecoveryBasis::Broker, state) => core.load_broker_state(&check, state.as_ref())?,
            (_, state) => core.rebuild_from_queue(state.is_some())?,
        }
        if basis != RecoveryBasis::Ours || !core.levels.is_known {
            core.find_delivered_levels()?;
        }
        core.loaded_to = core.read_slot;
        core.slots.clear();
        // Messages that were late for their own slot are in the first slot, whatever its time.
        core.load_slot(core.read_slot)?;
        core.loaded_to = core.read_slot + 1;
        // Passed slots need no deliveries.
        let (loaded_to, queue_next) = (core.loaded_to, core.queue_next);
        core.delivered
            .records
            .retain(|_, (slot, queue_offset)| *slot >= loaded_to || *queue_offset >= queue_next);
        Ok(core)
    }

    fn load_own_state(&mut self, state: &DelayState) -> Result<(), StoreError> {
        self.read_slot = state.read_slot;
        self.queue_next = state.queue_next;
        self.last_record = state.last_record;
        self.pending = state.pending;
        self.replay_into_wheel(state.wheel_end, state.log_end)?;
        self.log.cut(state.log_end)?;
        let nothing_left = state.pending == 0 && self.wheel.next_used_slot(state.read_slot)?.is_none();
        if nothing_left && self.queue_end()? <= state.queue_next && self.count_level_pending()? == 0 {
            // The log is not searched for deliveries then, so that only this tells that nothing waits.
            self.none_pending_before = state.queue_next;
            return Ok(());
        }
        self.scan_deliveries(state.scan_from, Some(state.as_of), false)
    }

    fn load_broker_state(
        &mut self,
        check: &TimerCheckpoint,
        state: Option<&DelayState>,
    ) -> Result<(), StoreError> {
        let (_, files_end) = self.log.bounds();
        let from = broker_scan_start(&self.log, check);
        self.replay_into_wheel(from, files_end)?;
        self.log.cut(self.log.end())?;
        self.read_slot = slot_of(check.last_read_time_ms);
        self.saved.state.log_end = self.log.end();
        self.saved.state.wheel_end = from.min(self.log.end());
        // After the record of the last unit, whatever the broker's checkpoint says.
        let mut last = None;
        self.last_unit(&mut last)?;
        let record = match last {
            Some(unit) => {
                let place = (unit.physical_offset as u64, unit.size.cast_unsigned());
                self.store.log().records_at(&[place])?.pop().flatten()
            }
            None => None,
        };
        let behind = record.as_ref().and_then(timed).map(|timed| timed.queue_offset + 1);
        // A record that we had read is in the timer log, or it was delivered and has no unit.
        let ours = match state.filter(|state| state.as_of <= self.log_seen && state.log_end <= self.log.end())
        {
            Some(state) if is_in_queue(&self.store, state)? => state.queue_next,
            _ => 0,
        };
        let behind = behind.unwrap_or(check.last_timer_queue_offset).max(ours);
        self.queue_next = behind.min(self.queue_end()?);
        self.last_record = record.map_or(-1, |record| record.commit_log_offset as i64);
        let known = state.filter(|state| state.as_of <= self.log_seen).map_or(0, |state| state.scan_from);
        let by_time = self.store.log().offset_before(check.last_read_time_ms.saturating_sub(BEFORE_MS))?;
        self.scan_deliveries(known.max(by_time), None, true)?;
        self.count_pending()
    }

    /// Rebuilds wheel and timer log. With `known`, an earlier state exists.
    fn rebuild_from_queue(&mut self, known: bool) -> Result<(), StoreError> {
        if known || self.wheel.exists() || self.log.bounds().1 > 0 {
            self.log.reset()?;
            self.wheel.reset()?;
        }
        self.saved.state.log_end = 0;
        self.saved.state.wheel_end = 0;
        let first = match self.store.read(TIMER_TOPIC, 0, None, None, None) {
            Err(StoreError::TopicNotFound { .. }) => None,
            cursor => cursor?.next_batch(1)?.pop(),
        };
        let mut from = self.log_seen;
        if let Some(first) = first {
            self.queue_next = first.queue_offset;
            from = first.commit_log_offset;
            let stored = first.view().map_or(i64::MAX, |view| view.store_timestamp);
            self.read_slot = self.read_slot.min(slot_of(stored));
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
        let mut first = self.log_seen;
        for queue_id in self.store.queue_ids(SCHEDULE_TOPIC)? {
            let (min, max) = self.store.bounds(SCHEDULE_TOPIC, queue_id)?;
            let next = self.levels.next.get(&queue_id.saturating_add(1)).copied().unwrap_or(min);
            let mut cursor =
                self.store.read(SCHEDULE_TOPIC, queue_id, Some(next.clamp(min, max)), None, None)?;
            if let Some(record) = cursor.next_batch(1)?.pop() {
                first = first.min(record.commit_log_offset);
            }
        }
        Ok(first)
    }

    /// Adds the missing units of `from..end` to the wheel.
    fn replay_into_wheel(&mut self, from: u64, end: u64) -> Result<(), StoreError> {
        replay_units(&mut self.wheel, &mut self.log, from, end).map(drop)
    }

    fn last_unit(&mut self, last: &mut Option<TimerUnit>) -> Result<(), StoreError> {
        let (begin, _) = self.log.bounds();
        let end = self.log.end();
        let from = (end.saturating_sub(1)).max(begin) - begin;
        let from = begin + from / self.log.file_bytes().max(1) * self.log.file_bytes();
        self.log.walk(from, end, |_, unit| {
            *last = Some(unit);
            Ok(())
        })?;
        Ok(())
    }

    /// Counts the messages in the wheel that are not delivered, because a broker's own counts are not correct. Messages
    /// that only a key shows to be cancelled or delivered count until their slot is loaded.
    fn count_pending(&mut self) -> Result<(), StoreError> {
        let mut next = self.wheel.next_used_slot(self.read_slot)?;
        while let Some(slot) = next {
            let [messages, deletions] = self.units(slot)?;
            let mut waiting: HashSet<u64> = messages.into_iter().map(|(offset, _)| offset).collect();
            for record in self.store.log().records_at(&deletions)?.into_iter().flatten() {
                // Each cancellation of ours has two records, for brokers of two versions.
                if let Some(CancelTarget::Record(offset)) = timed(&record).and_then(|timed| timed.cancels) {
                    waiting.remove(&offset);
                }
            }
            waiting.retain(|offset| !self.delivered.records.contains_key(offset));
            self.pending += waiting.len() as u64;
            next = self.wheel.next_used_slot(slot + 1)?.filter(|next| *next > slot);
        }
        Ok(())
    }

    /// Searches the log from `from` on for deliveries of messages that still seem to wait. Deliveries before `as_of`
    /// are already subtracted from `pending`.
    fn scan_deliveries(&mut self, from: u64, as_of: Option<u64>, by_key: bool) -> Result<(), StoreError> {
        let (begin, _) = self.store.log().bounds()?;
        self.delivered.from = from;
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
                            *self.delivered.keys.entry(key).or_default() += 1;
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
            let next = self.levels.next.entry(level).or_insert(0);
            *next = (*next).max(source_view.queue_offset + 1);
            self.levels.changed = true;
            self.saved.dirty = true;
            return Ok(());
        }
        let Some(timed) = timed(&source) else { return Ok(()) };
        let known = self.delivered.records.insert(origin, (timed.slot, timed.queue_offset));
        if known.is_none()
            && as_of.is_some_and(|as_of| record.commit_log_offset >= as_of)
            && timed.queue_offset < self.queue_next
        {
            self.pending = self.pending.saturating_sub(1);
            self.saved.dirty = true;
        }
        Ok(())
    }
}

/// Adds the missing units of `log` in `from..end` to `wheel`, in memory. Returns the last unit.
pub(super) fn replay_units(
    wheel: &mut TimerWheel,
    log: &mut TimerLog,
    from: u64,
    end: u64,
) -> Result<Option<TimerUnit>, StoreError> {
    let mut last = None;
    log.walk(from, end, |place, unit| {
        let time = slot_of(unit.slot_ms());
        let slot = wheel.slot(time)?.unwrap_or_else(|| empty(time));
        if slot.last < place {
            wheel.put(&slot_ending_at(slot, place, unit.deletes))?;
        }
        last = Some(unit);
        Ok(())
    })?;
    Ok(last)
}

/// Returns the position at which the search of a broker's timer log starts: the file before the one of its checkpoint.
pub(super) fn broker_scan_start(log: &TimerLog, check: &TimerCheckpoint) -> u64 {
    let (begin, files_end) = log.bounds();
    let from = u64::try_from(check.last_timer_log_flush_pos).unwrap_or(0);
    let from = from.saturating_sub(log.file_bytes()).max(begin).min(files_end);
    begin + (from - begin) / log.file_bytes().max(1) * log.file_bytes()
}

/// Returns the fields of `timercheck`, or the part of them that exists.
pub(super) fn check_bytes_in_use(bytes: &[u8]) -> Vec<u8> {
    let len = mqstore_format::delays::timer::TIMER_CHECK_FIELD_BYTES;
    bytes.get(..len).unwrap_or(bytes).to_vec()
}

/// Returns the files on which an open relies.
pub(super) fn basis(
    store: &Store,
    state: Option<&DelayState>,
    (wheel, log): (Option<&TimerWheel>, Option<&TimerLog>),
    check: &[u8],
) -> Result<RecoveryBasis, StoreError> {
    let (Some(wheel), Some(log)) = (wheel, log) else { return Ok(RecoveryBasis::Queue) };
    let (begin, end) = log.bounds();
    let (_, log_end) = store.log().bounds()?;
    let by_us = state.is_some_and(|state| state.check.contains(&crc32(&check_bytes_in_use(check))));
    if let Some(state) = state
        && by_us
        && (state.wheel_end == 0 || wheel.exists())
        && begin <= state.log_begin
        && state.log_end <= end.max(begin)
        && state.as_of <= log_end
        && is_in_queue(store, state)?
    {
        return Ok(RecoveryBasis::Ours);
    }
    let read = TimerCheckpoint::decode(check);
    let cut = state.is_some_and(|state| state.as_of > log_end);
    let by_broker = !by_us && !cut && read.last_read_time_ms > 0;
    Ok(if by_broker && wheel.exists() && end > 0 { RecoveryBasis::Broker } else { RecoveryBasis::Queue })
}

/// Whether the last record that entered the wheel is still at its position.
fn is_in_queue(store: &Store, state: &DelayState) -> Result<bool, StoreError> {
    if state.last_record < 0 || state.queue_next == 0 {
        return Ok(true);
    }
    match store.message_at(TIMER_TOPIC, 0, state.queue_next - 1) {
        Ok(record) => Ok(record.is_some_and(|record| record.commit_log_offset as i64 == state.last_record)),
        // It has expired, and so have all records before it.
        Err(StoreError::OffsetOutOfRange { min_offset, .. }) => Ok(min_offset >= state.queue_next),
        Err(StoreError::TopicNotFound { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Moves a folder that is not a timer log to lost+found.
fn quarantine(store: &Store, folder: &std::path::Path) -> Result<(), StoreError> {
    let files = store.files();
    let aside = files.unused_lost_and_found_name("timerlog")?;
    let moved = files.vfs.rename(folder, &aside);
    moved.map_err(|error| StoreError::io(folder, "moving a damaged timer log to lost+found", error))?;
    files.sync_lost_and_found()
}
