//! Counts the delayed messages of a store that is open for reading, by due time. Changes no file.
//!
//! ```text
//! timer topic   ... | in the wheel, by slot ................. | not in the wheel yet
//! SCHEDULE_TOPIC_XXXX    delivered | waiting, in due order
//! ```
//!
//! The counts are those that the writer saved; next to a running writer they are at most a second old. Deliveries
//! since then are still counted. Memory grows with the number of cancelled messages; the wheel takes at most 38 MB.
//! [`super::WaitingDelays`] lists the messages exactly, as of one log offset.

use std::collections::{HashMap, HashSet};

use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_engine::Store;
use mqstore_format::crc32;
use mqstore_format::delays::pending::TimerRecord;
use mqstore_format::delays::timer::{TIMER_LOG_FILE_BYTES, TIMER_PRECISION_MS, TIMER_TOPIC, TimerCheckpoint};
use mqstore_io::Access;

use super::files::{
    DelayState, LevelOffsets, LevelQueue, RecoveryBasis, StateFiles, TimerLog, TimerWheel, basis,
    broker_scan_start, check_bytes_in_use, replay_units,
};
use super::stats::DelayCounts;
use super::timer_record::{CancelTarget, has_delete_key, slot_of, timed};

/// Records in one read.
pub(super) const AT_ONCE: usize = 1024;

/// Waiting messages by due time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DueCounts {
    /// Number of messages.
    pub messages: u64,
    /// Due time of the first message, in epoch milliseconds. For a message in the wheel: the end of its second.
    pub first_due_ms: Option<i64>,
    /// Numbers of messages that are overdue, due within a minute, an hour, a day, three days, and later.
    pub by_due: [u64; 6],
}

/// Ends of the parts of [`DueCounts::by_due`], in milliseconds from now.
const ENDS_MS: [i64; 5] = [0, 60_000, 3_600_000, 86_400_000, 3 * 86_400_000];

impl DueCounts {
    fn add(&mut self, due_ms: i64, now_ms: i64, messages: u64) {
        if messages == 0 {
            return;
        }
        self.messages += messages;
        self.first_due_ms = Some(self.first_due_ms.map_or(due_ms, |first| first.min(due_ms)));
        let left_ms = due_ms.saturating_sub(now_ms);
        let place = ENDS_MS.iter().filter(|end| left_ms > **end).count();
        if let Some(count) = self.by_due.get_mut(place) {
            *count += messages;
        }
    }

    /// Adds `other`, but at most `most` messages: the others were delivered.
    fn include(&mut self, other: &Self, most: u64, now_ms: i64) {
        let Some(first_ms) = other.first_due_ms else { return };
        if other.messages > most {
            self.add(first_ms, now_ms, most);
            return;
        }
        self.messages += other.messages;
        self.first_due_ms = Some(self.first_due_ms.map_or(first_ms, |first| first.min(first_ms)));
        self.by_due.iter_mut().zip(other.by_due).for_each(|(count, more)| *count += more);
    }
}

/// Waiting delayed messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingDelays {
    /// Messages with an exact time.
    pub timer: DueCounts,
    /// Messages with a delay level.
    pub levels: DueCounts,
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl PendingDelays {
    /// Counts the waiting messages of `store` at the time of its clock, from its files alone; see the module's text.
    ///
    /// # Errors
    /// Errors of reading the files.
    pub fn of(store: &Store) -> Result<Self, StoreError> {
        let now_ms = store.clock().now_ms();
        let mut saved = SavedDelays::load(store)?;
        if saved.basis(store)? == RecoveryBasis::Ours {
            saved.use_newest_positions();
        }
        let mut look = PendingScan::new(store, now_ms);
        let mut pending = Self::default();
        look.timer(&mut saved, &mut pending.notes)?;
        pending.timer = look.counts;
        look.counts = DueCounts::default();
        look.levels(&saved)?;
        pending.levels = look.counts;
        Ok(pending)
    }
}

impl DelayCounts {
    /// Counts the waiting messages of `store` in its writer's files. Next to a writer the counts are up to a second
    /// old, and deliveries since its last save still count.
    ///
    /// # Errors
    /// Errors of reading the files.
    pub fn of_reader(store: &Store) -> Result<Self, StoreError> {
        let PendingDelays { timer, levels, .. } = PendingDelays::of(store)?;
        Ok(Self {
            pending: timer.messages + levels.messages,
            next_due_ms: timer.first_due_ms.into_iter().chain(levels.first_due_ms).min(),
            ..Self::default()
        })
    }
}

/// Cancelled messages.
#[derive(Debug, Default)]
struct CancelledIds {
    records: HashSet<u64>,
    /// By slot.
    keys: HashMap<i64, Vec<Box<str>>>,
}

impl CancelledIds {
    fn add(&mut self, target: CancelTarget, slot: i64) {
        match target {
            CancelTarget::Record(offset) => {
                self.records.insert(offset);
            }
            CancelTarget::Key(key) => self.keys.entry(slot).or_default().push(key),
        }
    }

    fn has(&self, record: &StoredRecord, slot: i64) -> bool {
        self.records.contains(&record.commit_log_offset)
            || self.keys.get(&slot).is_some_and(|keys| {
                record.view().is_ok_and(|view| keys.iter().any(|key| has_delete_key(&view, key)))
            })
    }
}

/// The saved state of delays, as far as a reader needs it.
pub(super) struct SavedDelays {
    /// Description of damage in the file of the saved state.
    damage: Option<String>,
    check_bytes: Vec<u8>,
    pub(super) check: TimerCheckpoint,
    pub(super) state: Option<DelayState>,
    /// The first undelivered offset of each level.
    pub(super) levels: LevelOffsets,
    /// `None` if the file is not valid.
    wheel: Option<TimerWheel>,
    log: Option<TimerLog>,
}

impl SavedDelays {
    pub(super) fn load(store: &Store) -> Result<Self, StoreError> {
        let files = store.files();
        let (state_files, state) = StateFiles::load(files)?;
        let damage = state_files.damage_note(false)?;
        let mut levels = LevelOffsets::new(state_files.offsets()?, None);
        for (level, next) in state.iter().flat_map(|state| &state.levels) {
            levels.raise(*level, *next);
        }
        let check_bytes = state_files.check();
        let check = TimerCheckpoint::decode(&check_bytes);
        let wheel = TimerWheel::open(files, Access::Read)?;
        let log = TimerLog::open(files, TIMER_LOG_FILE_BYTES, Access::Read)?;
        Ok(Self { damage, check_bytes, check, state, levels, wheel, log })
    }

    /// Returns the files on which an open of `store` would rely.
    pub(super) fn basis(&self, store: &Store) -> Result<RecoveryBasis, StoreError> {
        basis(store, self.state.as_ref(), (self.wheel.as_ref(), self.log.as_ref()), &self.check_bytes)
    }

    /// Takes the positions of the state: a writer writes it before the checkpoint, which may be older.
    pub(super) fn use_newest_positions(&mut self) {
        if let Some(state) = &self.state {
            self.check.last_read_time_ms = state.read_slot.saturating_mul(TIMER_PRECISION_MS);
            self.check.last_timer_queue_offset = state.queue_next;
        }
    }
}

pub(super) struct PendingScan<'a> {
    store: &'a Store,
    now_ms: i64,
    cancelled: CancelledIds,
    counts: DueCounts,
    /// The slot of the records that the caller wants; `None` for all. Records that came late are in a later slot, which
    /// is due.
    slot: Option<i64>,
    /// Log offsets of the waiting timer records, if the caller wants them.
    listed: Option<Vec<u64>>,
    /// Records from this log offset on are ignored.
    limit: u64,
}

impl<'a> PendingScan<'a> {
    pub(super) fn new(store: &'a Store, now_ms: i64) -> Self {
        let (cancelled, counts) = (CancelledIds::default(), DueCounts::default());
        Self { store, now_ms, cancelled, counts, slot: None, listed: None, limit: u64::MAX }
    }

    /// Also lists the messages before log offset `limit`; with `slot`, only those that can have this slot.
    pub(super) fn listing(self, slot: Option<i64>, limit: u64) -> Self {
        Self { listed: Some(Vec::new()), slot, limit, ..self }
    }

    pub(super) fn into_offsets(self) -> Vec<u64> {
        self.listed.unwrap_or_default()
    }

    pub(super) fn timer(
        &mut self,
        saved: &mut SavedDelays,
        notes: &mut Vec<String>,
    ) -> Result<(), StoreError> {
        let (min, max) = match self.store.bounds(TIMER_TOPIC, 0) {
            Err(StoreError::TopicNotFound { .. }) => return Ok(()),
            bounds => bounds?,
        };
        notes.extend(saved.damage.take());
        let SavedDelays { check_bytes, check, state, wheel, log, .. } = saved;
        let read_slot = slot_of(check.last_read_time_ms);
        let by_us =
            state.as_ref().filter(|state| state.check.contains(&crc32(&check_bytes_in_use(check_bytes))));
        let wheel = wheel.as_mut().filter(|wheel| wheel.exists());
        let log = log.as_mut().filter(|log| log.bounds().1 > 0);
        let (Some(wheel), Some(log)) = (wheel, log) else {
            let next = check.last_timer_queue_offset.clamp(min, max);
            // A message that waits has a unit once it is read.
            if next == min || by_us.is_some_and(|state| state.log_end == 0) {
                self.learn_cancelled(next)?;
                return self.count_queue(next, next, i64::MIN);
            }
            notes.push(
                "timerwheel or timerlog is missing or damaged; delayed messages are counted from the records of \
                 their topic"
                    .to_owned(),
            );
            self.learn_cancelled(min)?;
            return self.count_queue(min, next, read_slot);
        };
        let (_, files_end) = log.bounds();
        let from = match &by_us {
            Some(state) => state.wheel_end,
            None => broker_scan_start(log, check),
        };
        let end = by_us.as_ref().map_or(files_end, |state| state.log_end);
        let last = replay_units(wheel, log, from, end)?;
        let mut next = check.last_timer_queue_offset;
        if by_us.is_none()
            && let Some(unit) = last
        {
            // As at an open: after the record of the last unit, whatever a broker's checkpoint says.
            let place = (unit.physical_offset as u64, unit.size.cast_unsigned());
            let record = self.store.log().records_at(&[place])?.pop().flatten();
            next = record.map_or(next, |record| record.queue_offset + 1);
        }
        let next = next.clamp(min, max);
        self.learn_cancelled(next)?;
        let mut current = DueCounts::default();
        let mut slot = wheel.next_used_slot(read_slot)?;
        while let Some(time) = slot {
            let last = wheel.slot(time)?.map_or(-1, |slot| slot.last);
            if self.slot.is_none_or(|wanted| time == wanted || time <= slot_of(self.now_ms)) {
                self.count_slot(log, time, last)?;
            }
            if time == read_slot && by_us.is_some() {
                current = std::mem::take(&mut self.counts);
            }
            slot = wheel.next_used_slot(time + 1)?.filter(|next| *next > time);
        }
        // The writer delivers the messages of a slot one by one, and its total excludes those that it has delivered.
        let in_later_slots = self.counts.messages;
        let most = by_us.map_or(0, |state| state.pending.saturating_sub(in_later_slots));
        self.counts.include(&current, most, self.now_ms);
        self.count_queue(next, next, i64::MIN)
    }

    /// Counts the waiting messages in the slot of `time`, whose last unit is at `last`.
    fn count_slot(&mut self, log: &TimerLog, time: i64, last: i64) -> Result<(), StoreError> {
        let (log_min, _) = self.store.log().bounds()?;
        let (mut messages, mut deletions, mut rolls) = (0_u64, Vec::new(), false);
        let listed = self.listed.as_ref().map_or(0, Vec::len);
        let mut place = last;
        while let Some(unit) = log.unit(place)? {
            let offset = unit.physical_offset as u64;
            place = unit.previous;
            if offset >= self.limit {
                continue;
            }
            if unit.deletes {
                deletions.push((offset, unit.size.cast_unsigned()));
            } else if offset >= log_min {
                messages += 1;
                rolls |= unit.rolls;
                self.list(offset);
            }
        }
        for some in deletions.chunks(AT_ONCE) {
            for record in self.store.log().records_at(some)?.into_iter().flatten() {
                if let Some(target) = timed(&record).and_then(|timed| timed.cancels) {
                    self.cancelled.add(target, time);
                }
            }
        }
        let due_ms = (time + 1).saturating_mul(TIMER_PRECISION_MS);
        let none_cancelled = self.cancelled.records.is_empty() && !self.cancelled.keys.contains_key(&time);
        if none_cancelled && !rolls {
            self.counts.add(due_ms, self.now_ms, messages);
            return Ok(());
        }
        self.listed.iter_mut().for_each(|known| known.truncate(listed));
        let mut place = last;
        let mut some = Vec::with_capacity(AT_ONCE);
        while let Some(unit) = log.unit(place)? {
            place = unit.previous;
            if !unit.deletes && (unit.physical_offset as u64) < self.limit {
                some.push((unit.physical_offset as u64, unit.size.cast_unsigned()));
            }
            if some.len() == AT_ONCE {
                self.count_records(&some, time)?;
                some.clear();
            }
        }
        self.count_records(&some, time)?;
        // The slot is completely counted.
        self.cancelled.keys.remove(&time);
        Ok(())
    }

    fn count_records(&mut self, places: &[(u64, u32)], slot: i64) -> Result<(), StoreError> {
        for record in self.store.log().records_at(places)?.into_iter().flatten() {
            if !self.cancelled.has(&record, slot) {
                self.count_record(&record, Some(slot));
            }
        }
        Ok(())
    }

    /// Counts one record, which is in slot `slot`, or in no slot yet.
    fn count_record(&mut self, record: &StoredRecord, slot: Option<i64>) {
        let Ok(view) = record.view() else { return };
        let Some(found) = TimerRecord::of(&view) else { return };
        let due_ms = match slot {
            Some(slot) if !found.rolls => (slot + 1).saturating_mul(TIMER_PRECISION_MS),
            _ => found.due_ms,
        };
        self.counts.add(due_ms, self.now_ms, 1);
        self.list(record.commit_log_offset);
    }

    fn list(&mut self, offset: u64) {
        self.listed.iter_mut().for_each(|listed| listed.push(offset));
    }

    /// Reads the cancellations in the timer queue from `from` on.
    pub(super) fn learn_cancelled(&mut self, from: i64) -> Result<(), StoreError> {
        let limit = self.limit;
        for_each_record(self.store, from, limit, |record| {
            if let Some(timed) = timed(record)
                && let Some(target) = timed.cancels
            {
                self.cancelled.add(target, timed.slot);
            }
        })
    }

    /// Counts the messages of the timer queue from `from` on; before `next`, only those whose slot is `first_slot` or
    /// later.
    pub(super) fn count_queue(&mut self, from: i64, next: i64, first_slot: i64) -> Result<(), StoreError> {
        for_each_record(self.store, from, self.limit, |record| {
            let waits = |timed: &super::timer_record::Timed| {
                timed.cancels.is_none() && (timed.queue_offset >= next || timed.slot >= first_slot)
            };
            if let Some(timed) = timed(record).filter(waits)
                && !self.cancelled.has(record, timed.slot)
            {
                self.count_record(record, None);
            }
        })
    }

    /// Counts the messages of delay levels. Within one level, they are due in queue order.
    fn levels(&mut self, saved: &SavedDelays) -> Result<(), StoreError> {
        for LevelQueue { queue_id, next, max, .. } in saved.levels.queues(self.store)? {
            self.count_level(queue_id, next, max)?;
        }
        Ok(())
    }

    fn count_level(&mut self, queue_id: i32, next: i64, end: i64) -> Result<(), StoreError> {
        let mut from = next;
        let ends = ENDS_MS.map(|end_ms| self.now_ms.saturating_add(end_ms));
        for until_ms in ends.into_iter().chain([i64::MAX]) {
            let (mut low, mut high) = (from, end);
            while low < high {
                let middle = low + (high - low) / 2;
                match self.store.level_times()?.due_ms(queue_id, middle)? {
                    Some(due_ms) if due_ms > until_ms => high = middle,
                    _ => low = middle + 1,
                }
            }
            if low > from {
                let first = self.store.level_times()?.due_ms(queue_id, from)?;
                self.counts.add(first.unwrap_or(until_ms), self.now_ms, (low - from).unsigned_abs());
            }
            from = low;
        }
        Ok(())
    }
}

/// Calls `look` with the records of the timer queue from `from` on that are before `limit` in the log.
fn for_each_record(
    store: &Store,
    from: i64,
    limit: u64,
    mut look: impl FnMut(&StoredRecord),
) -> Result<(), StoreError> {
    let mut cursor = store.read(TIMER_TOPIC, 0, Some(from), None, None)?;
    loop {
        let records = cursor.next_batch(AT_ONCE)?;
        if records.is_empty() {
            return Ok(());
        }
        for record in &records {
            if record.commit_log_offset >= limit {
                return Ok(());
            }
            look(record);
        }
    }
}
