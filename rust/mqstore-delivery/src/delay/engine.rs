//! The waiting messages in memory: the next part of the wheel, to the millisecond.
//!
//! A record passes through four places, in this order: the timer queue from `queue_next` on; `waiting`, by slot; the
//! wheel, once [`DelayEngine::save`] has written it there; and `live`, from shortly before its slot's time on.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};

use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_engine::Store;
use mqstore_format::delays::timer::{TIMER_PRECISION_MS, TIMER_TOPIC, WHEEL_SLOTS};

use super::state_file::{LevelOffsets, SaveState};
use super::stats::Lateness;
use super::timer_log::TimerLog;
use super::timer_record::{CancelTarget, Timed, delivery_key, has_delete_key, timed};
use super::timer_wheel::TimerWheel;

/// Records of the timer queue in one read.
const AT_ONCE: usize = 1024;
/// Maximum records of the timer queue that one call reads, and number of unsaved records at which they are saved early.
/// So an open that builds wheel and timer log again does not hold a long queue in memory.
pub(super) const MOST_READ: usize = if cfg!(test) { 100 } else { 1 << 17 };
/// Number of messages in memory at which no further slot is loaded until some are delivered.
const MOST_LIVE: usize = 1 << 19;

/// A message in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingMessage {
    pub(super) slot: i64,
    pub(super) due_ms: i64,
    /// Time of the next attempt.
    pub(super) at_ms: i64,
    pub(super) size: u32,
    pub(super) rolls: bool,
    /// Whether it moves to a later slot because its topic refused it for over two days; see [`DelayEngine::deliver`].
    pub(super) held: bool,
    pub(super) write_ms: i64,
}

/// A slot in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadedSlot {
    /// Number of its messages that remain.
    pub(super) left: u64,
    /// The slot's deliveries are in the log after this log offset.
    pub(super) from: u64,
}

/// Deliveries that an open found in the log, by the record that they were made from.
#[derive(Debug, Default)]
pub(super) struct FoundDeliveries {
    /// The slot and the queue offset of the record, by its log offset.
    pub(super) records: HashMap<u64, (i64, i64)>,
    /// The log offset at which the search started.
    pub(super) from: u64,
    /// Number of deliveries by a broker, which stores no origin, by unique key and slot time.
    pub(super) keys: HashMap<(String, i64), u32>,
}

/// The state of delayed messages in memory; see the module's text.
pub(super) struct DelayEngine {
    pub(super) store: Store,
    pub(super) wheel: TimerWheel,
    pub(super) log: TimerLog,
    pub(super) saved: SaveState,
    pub(super) levels: LevelOffsets,
    /// Slots before this one were delivered.
    pub(super) read_slot: i64,
    /// Slots before this one are in memory.
    pub(super) loaded_to: i64,
    /// The next offset of the timer queue.
    pub(super) queue_next: i64,
    /// The log offset of the record before it.
    pub(super) last_record: i64,
    /// The end of the last record that this engine has read or written.
    pub(super) log_seen: u64,
    pub(super) slots: BTreeMap<i64, LoadedSlot>,
    pub(super) live: HashMap<u64, PendingMessage>,
    pub(super) heap: BinaryHeap<Reverse<(i64, u64)>>,
    /// Records of slots that are neither in memory nor in the wheel.
    pub(super) waiting: BTreeMap<i64, Vec<Timed>>,
    /// Records that are not in the timer log, in the order of their queue.
    pub(super) unwritten: Vec<Timed>,
    /// Cancelled records of slots that are not in memory.
    pub(super) cancelled: HashMap<i64, HashSet<u64>>,
    /// No message before this offset of the timer queue waits.
    pub(super) none_pending_before: i64,
    /// Cancellations that were applied before their turn, by log offset.
    pub(super) cancels_ahead: HashSet<u64>,
    /// The offset of the timer queue up to which they were looked for.
    pub(super) cancels_read_to: i64,
    /// What brokers cancelled, by key.
    pub(super) cancelled_keys: HashMap<i64, Vec<Box<str>>>,
    /// Slots whose deletion units are already in `cancelled` and `cancelled_keys`.
    pub(super) known_cancelled: HashSet<i64>,
    pub(super) delivered: FoundDeliveries,
    pub(super) pending: u64,
    pub(super) counts: DelayCounters,
    pub(super) lateness: Lateness,
    pub(super) notes: Vec<String>,
}

/// Counters since the open.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DelayCounters {
    pub(super) delivered: u64,
    pub(super) cancelled: u64,
    pub(super) dropped: u64,
}

pub(super) fn slot_of(ms: i64) -> i64 {
    ms.div_euclid(TIMER_PRECISION_MS)
}

impl DelayEngine {
    /// Adds `note` for the user, unless it is already there.
    pub(super) fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Reads new records of the timer queue, about [`MOST_READ`]. Returns whether there were any. Stops at a record whose
    /// slot is too far ahead for the wheel.
    pub(super) fn read_timer_records(&mut self) -> Result<bool, StoreError> {
        let (mut any, mut read) = (false, 0);
        let (min, max) = match self.store.bounds(TIMER_TOPIC, 0) {
            Err(StoreError::TopicNotFound { .. }) => return Ok(false),
            bounds => bounds?,
        };
        if self.queue_next < min {
            self.counts.dropped += (min - self.queue_next) as u64;
            self.queue_next = min;
        }
        if self.queue_next >= max {
            return Ok(false);
        }
        self.saved.dirty = true;
        let mut cursor = self.store.read(TIMER_TOPIC, 0, Some(self.queue_next), None, None)?;
        loop {
            if read >= MOST_READ {
                return Ok(true);
            }
            let records = cursor.next_batch(AT_ONCE.min(MOST_READ))?;
            if records.is_empty() {
                self.queue_next = self.queue_next.max(cursor.position());
                return Ok(any);
            }
            read += records.len();
            for record in &records {
                match timed(record) {
                    Some(timed) if timed.slot >= self.read_slot + WHEEL_SLOTS => {
                        self.read_cancels_ahead()?;
                        return Ok(any);
                    }
                    Some(timed) if self.cancels_ahead.remove(&timed.offset) => {}
                    Some(timed) => self.admit(timed)?,
                    None => self.counts.dropped += 1,
                }
                any = true;
                self.see(record);
                self.queue_next = record.queue_offset + 1;
                self.last_record = record.commit_log_offset as i64;
            }
        }
    }

    /// Whether memory holds the maximum number of messages and some are due: these are delivered before more are read.
    pub(super) fn is_swamped(&self, now_ms: i64) -> bool {
        self.live.len() >= MOST_LIVE && self.heap.peek().is_some_and(|Reverse((at_ms, _))| *at_ms <= now_ms)
    }

    /// Applies cancellations after the first record that is further ahead than the wheel reaches: a message that they name
    /// may be due before that record is read. Those that name a record which was not read either are applied in their
    /// order.
    fn read_cancels_ahead(&mut self) -> Result<(), StoreError> {
        let from = self.cancels_read_to.max(self.queue_next);
        let mut cursor = self.store.read(TIMER_TOPIC, 0, Some(from), None, None)?;
        loop {
            let records = cursor.next_batch(AT_ONCE)?;
            if records.is_empty() {
                self.cancels_read_to = cursor.position();
                return Ok(());
            }
            for record in &records {
                let Some(timed) = timed(record) else { continue };
                let was_read = |offset: &u64| i64::try_from(*offset).is_ok_and(|it| it <= self.last_record);
                if matches!(&timed.cancels, Some(CancelTarget::Record(offset)) if was_read(offset)) {
                    self.cancels_ahead.insert(timed.offset);
                    self.admit(timed)?;
                    self.see(record);
                }
            }
        }
    }

    /// Records that the log was read up to the end of `record`.
    fn see(&mut self, record: &StoredRecord) {
        self.log_seen = self.log_seen.max(record.commit_log_offset + record.bytes().len() as u64);
    }

    fn admit(&mut self, mut timed: Timed) -> Result<(), StoreError> {
        if let Some(target) = timed.cancels.clone() {
            if let CancelTarget::Record(offset) = &target
                && let Some(slot) = self.slot_of_record(*offset)?
            {
                timed.slot = slot;
            }
            timed.slot = timed.slot.max(self.read_slot);
            self.apply_cancel(&target, timed.slot)?;
            self.unwritten.push(timed);
            return Ok(());
        }
        if self.delivered.records.contains_key(&timed.offset) {
            // Until its slot is loaded, a cancellation may ask for it.
            if timed.slot < self.loaded_to {
                self.delivered.records.remove(&timed.offset);
            }
            return Ok(());
        }
        if self.is_delivered_by_key(&timed)? {
            return Ok(());
        }
        let late = timed.slot < self.read_slot;
        timed.slot = timed.slot.max(self.read_slot);
        self.pending += 1;
        if late || timed.slot < self.loaded_to {
            self.attach(&timed);
        } else {
            self.waiting.entry(timed.slot).or_default().push(timed.clone());
        }
        self.unwritten.push(timed);
        Ok(())
    }

    /// Returns the slot in which the timer record at `offset` entered the wheel; `None` if the record no longer exists.
    fn slot_of_record(&self, offset: u64) -> Result<Option<i64>, StoreError> {
        if let Some(live) = self.live.get(&offset) {
            return Ok(Some(live.slot));
        }
        Ok(self.store.log().record_at(offset)?.as_ref().and_then(timed).map(|timed| timed.slot))
    }

    fn is_delivered_by_key(&mut self, timed: &Timed) -> Result<bool, StoreError> {
        if self.delivered.keys.is_empty() {
            return Ok(false);
        }
        let Some(record) = self.store.log().records_at(&[(timed.offset, timed.size)])?.pop().flatten() else {
            return Ok(false);
        };
        let Some(key) = delivery_key(&record) else { return Ok(false) };
        let Some(count) = self.delivered.keys.get_mut(&key) else { return Ok(false) };
        *count -= 1;
        if *count == 0 {
            self.delivered.keys.remove(&key);
        }
        Ok(true)
    }

    /// Adds a message to memory.
    fn attach(&mut self, timed: &Timed) {
        let live = PendingMessage {
            slot: timed.slot,
            due_ms: timed.due_ms,
            at_ms: timed.due_ms,
            size: timed.size,
            rolls: timed.rolls,
            held: false,
            write_ms: timed.write_ms,
        };
        if self.live.insert(timed.offset, live).is_none() {
            self.slot_in_memory(timed.slot).left += 1;
            self.heap.push(Reverse((live.at_ms, timed.offset)));
        }
    }

    fn slot_in_memory(&mut self, slot: i64) -> &mut LoadedSlot {
        let from = self.log_seen;
        self.slots.entry(slot).or_insert(LoadedSlot { left: 0, from })
    }

    /// Until the slot is passed, an open must find its deliveries.
    fn mark_slot_unfinished(&mut self, slot: i64) {
        let from = self.delivered.from;
        let loaded = self.slot_in_memory(slot);
        loaded.from = loaded.from.min(from);
    }

    /// Removes a message from memory.
    pub(super) fn detach(&mut self, offset: u64) -> Option<PendingMessage> {
        let live = self.live.remove(&offset)?;
        if let Some(slot) = self.slots.get_mut(&live.slot) {
            slot.left = slot.left.saturating_sub(1);
        }
        self.pending = self.pending.saturating_sub(1);
        self.saved.dirty = true;
        Some(live)
    }

    /// Cancels the waiting messages that `target` names.
    fn apply_cancel(&mut self, target: &CancelTarget, slot: i64) -> Result<(), StoreError> {
        match target {
            CancelTarget::Record(offset) if self.live.contains_key(offset) => {
                self.detach(*offset);
                self.counts.cancelled += 1;
            }
            CancelTarget::Record(offset)
                if slot >= self.loaded_to && !self.delivered.records.contains_key(offset) =>
            {
                self.learn_cancelled(slot)?;
                if self.cancelled.entry(slot).or_default().insert(*offset) {
                    self.pending = self.pending.saturating_sub(1);
                    self.counts.cancelled += 1;
                }
            }
            CancelTarget::Record(_) => {}
            CancelTarget::Key(key) => {
                if slot >= self.loaded_to {
                    self.cancelled_keys.entry(slot).or_default().push(key.clone());
                }
                let of_slot = self.live.iter().filter(|(_, live)| live.slot == slot);
                let places: Vec<_> = of_slot.map(|(offset, live)| (*offset, live.size)).collect();
                for record in self.store.log().records_at(&places)?.into_iter().flatten() {
                    if record.view().is_ok_and(|view| has_delete_key(&view, key)) {
                        self.detach(record.commit_log_offset);
                        self.counts.cancelled += 1;
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the first slot that has messages and is not in memory.
    pub(super) fn next_slot(&mut self) -> Result<Option<i64>, StoreError> {
        let waiting = self.waiting.range(self.loaded_to..).next().map(|(slot, _)| *slot);
        let used = self.wheel.next_used_slot(self.loaded_to)?;
        Ok(waiting.into_iter().chain(used).min())
    }

    /// Loads the slots whose time is near.
    pub(super) fn load(&mut self, now_ms: i64) -> Result<(), StoreError> {
        let until = slot_of(now_ms.saturating_add(TIMER_PRECISION_MS)) + 1;
        while self.live.len() < MOST_LIVE && self.loaded_to < until {
            match self.next_slot()?.filter(|slot| *slot < until) {
                Some(slot) => {
                    self.load_slot(slot)?;
                    self.loaded_to = slot + 1;
                }
                None => self.loaded_to = until,
            }
        }
        Ok(())
    }

    /// Returns the units of a slot of the wheel, oldest first: messages, then deletions.
    pub(super) fn units(&mut self, slot: i64) -> Result<[Vec<(u64, u32)>; 2], StoreError> {
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

    /// Reads the deletion units of a slot of the wheel.
    pub(super) fn learn_cancelled(&mut self, slot: i64) -> Result<(), StoreError> {
        if !self.known_cancelled.insert(slot) {
            return Ok(());
        }
        let [_, units] = self.units(slot)?;
        for record in self.store.log().records_at(&units)?.into_iter().flatten() {
            match timed(&record).and_then(|timed| timed.cancels) {
                // Already counted when it entered the wheel.
                Some(CancelTarget::Record(offset)) => {
                    self.cancelled.entry(slot).or_default().insert(offset);
                }
                Some(CancelTarget::Key(key)) => self.cancelled_keys.entry(slot).or_default().push(key),
                None => {}
            }
        }
        Ok(())
    }

    /// Loads one slot into memory.
    pub(super) fn load_slot(&mut self, slot: i64) -> Result<(), StoreError> {
        let [messages, _] = self.units(slot)?;
        self.learn_cancelled(slot)?;
        self.slot_in_memory(slot);
        let cancelled = self.cancelled.remove(&slot).unwrap_or_default();
        let keys = self.cancelled_keys.remove(&slot).unwrap_or_default();
        self.known_cancelled.remove(&slot);
        let waiting = self.waiting.remove(&slot).unwrap_or_default();
        let known: Vec<_> = messages
            .into_iter()
            .filter(|(offset, _)| !cancelled.contains(offset) && !self.live.contains_key(offset))
            .collect();
        for places in known.chunks(AT_ONCE) {
            let records = self.store.log().records_at(places)?;
            for ((offset, _), record) in places.iter().zip(records) {
                if self.delivered.records.contains_key(offset) {
                    self.mark_slot_unfinished(slot);
                    continue;
                }
                let Some(mut timed) = record.as_ref().and_then(timed).filter(|timed| timed.cancels.is_none())
                else {
                    self.counts.dropped += 1;
                    self.pending = self.pending.saturating_sub(1);
                    continue;
                };
                if self.is_delivered_by_key(&timed)? {
                    self.pending = self.pending.saturating_sub(1);
                    continue;
                }
                timed.slot = slot;
                self.attach(&timed);
            }
        }
        for timed in waiting.iter().filter(|timed| !cancelled.contains(&timed.offset)) {
            self.attach(timed);
        }
        if self.delivered.records.values().any(|(of, _)| *of == slot) {
            self.mark_slot_unfinished(slot);
            let next = self.queue_next;
            self.delivered.records.retain(|_, (of, queue_offset)| *of != slot || *queue_offset >= next);
        }
        for key in keys {
            self.apply_cancel(&CancelTarget::Key(key), slot)?;
        }
        Ok(())
    }

    /// Passes slots whose time is over and whose messages are all done.
    pub(super) fn pass(&mut self, now_ms: i64) {
        let until = slot_of(now_ms).min(self.loaded_to);
        while self.read_slot < until {
            match self.slots.first_key_value().map(|(slot, loaded)| (*slot, loaded.left)) {
                Some((slot, 0)) if slot < until => {
                    self.slots.remove(&slot);
                    self.read_slot = slot + 1;
                }
                Some((slot, _)) => {
                    self.read_slot = self.read_slot.max(slot.min(until));
                    return;
                }
                None => self.read_slot = until,
            }
        }
    }
}
