//! The messages of the slots in memory, by due time to the millisecond.
//!
//! ```text
//! slots   passed | in memory: some messages may remain | in the wheel, or in the timer queue only
//!                ^ read_slot                           ^ loaded_to
//! ```
//!
//! A slot is passed once its time is over and none of its messages remain.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use mqstore_format::delays::timer::ROLL_WINDOW_SLOTS;

use crate::delay::timer_record::{Timed, slot_of};

/// Number of messages in memory at which no further slot is loaded until some are delivered.
const MOST_IN_MEMORY: usize = 1 << 19;

/// A message in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingMessage {
    pub(super) slot: i64,
    pub(super) due_ms: i64,
    /// Time of the next attempt.
    at_ms: i64,
    pub(super) size: u32,
    pub(super) rolls: bool,
    /// Whether it moves to a later slot because its topic refused it for over two days.
    pub(super) held: bool,
    pub(super) write_ms: i64,
}

/// A slot in memory.
#[derive(Clone, Copy, Debug)]
struct LoadedSlot {
    /// Number of its messages that remain.
    left: u64,
    /// The slot's deliveries are in the log after this log offset.
    from: u64,
}

/// The messages in memory; see the module's text.
#[derive(Debug)]
pub(super) struct DueMessages {
    read_slot: i64,
    loaded_to: i64,
    slots: BTreeMap<i64, LoadedSlot>,
    /// By the log offset of their record.
    messages: HashMap<u64, PendingMessage>,
    /// Times of attempts, and log offsets. Some of these messages are gone.
    order: BinaryHeap<Reverse<(i64, u64)>>,
}

impl DueMessages {
    /// Returns no messages, before all slots from `slot` on.
    pub(super) fn new(slot: i64) -> Self {
        Self {
            read_slot: slot,
            loaded_to: slot,
            slots: BTreeMap::new(),
            messages: HashMap::new(),
            order: BinaryHeap::new(),
        }
    }

    /// Starts at `slot`, while no messages are in memory.
    pub(super) fn start_at(&mut self, slot: i64) {
        self.read_slot = slot;
        self.loaded_to = slot;
    }

    /// Slots before this one were delivered.
    pub(super) fn read_slot(&self) -> i64 {
        self.read_slot
    }

    /// Slots before this one are in memory.
    pub(super) fn loaded_to(&self) -> i64 {
        self.loaded_to
    }

    /// Notes that all slots before `slot` are in memory.
    pub(super) fn set_loaded_to(&mut self, slot: i64) {
        self.loaded_to = slot;
    }

    /// Whether memory holds the maximum number of messages.
    pub(super) fn is_full(&self) -> bool {
        self.messages.len() >= MOST_IN_MEMORY
    }

    pub(super) fn contains(&self, offset: u64) -> bool {
        self.messages.contains_key(&offset)
    }

    pub(super) fn slot_of(&self, offset: u64) -> Option<i64> {
        self.messages.get(&offset).map(|message| message.slot)
    }

    /// Returns log offsets and sizes of the messages of a slot.
    pub(super) fn in_slot(&self, slot: i64) -> Vec<(u64, u32)> {
        let in_slot = self.messages.iter().filter(|(_, message)| message.slot == slot);
        in_slot.map(|(offset, message)| (*offset, message.size)).collect()
    }

    /// Notes that `slot` is in memory. Its deliveries are in the log after `from`.
    pub(super) fn add_slot(&mut self, slot: i64, from: u64) {
        let loaded = self.slots.entry(slot).or_insert(LoadedSlot { left: 0, from });
        loaded.from = loaded.from.min(from);
    }

    /// Adds a message. If its slot is new in memory, the slot's deliveries are in the log after `from`.
    pub(super) fn insert(&mut self, timed: &Timed, from: u64) {
        let message = PendingMessage {
            slot: timed.slot,
            due_ms: timed.due_ms,
            at_ms: timed.due_ms,
            size: timed.size,
            rolls: timed.rolls,
            held: false,
            write_ms: timed.write_ms,
        };
        if self.messages.insert(timed.offset, message).is_none() {
            self.slots.entry(timed.slot).or_insert(LoadedSlot { left: 0, from }).left += 1;
            self.order.push(Reverse((message.at_ms, timed.offset)));
        }
    }

    /// Removes a message. Returns whether it was there.
    pub(super) fn remove(&mut self, offset: u64) -> bool {
        let Some(message) = self.messages.remove(&offset) else { return false };
        if let Some(slot) = self.slots.get_mut(&message.slot) {
            slot.left = slot.left.saturating_sub(1);
        }
        true
    }

    /// Removes due messages from the order of attempts: at most `most`, of about `most_bytes`.
    pub(super) fn take_due(
        &mut self,
        now_ms: i64,
        most: usize,
        most_bytes: u64,
    ) -> Vec<(u64, PendingMessage)> {
        let (mut due, mut bytes) = (Vec::new(), 0);
        while due.len() < most && bytes < most_bytes {
            let Some(Reverse((at_ms, offset))) = self.order.peek().copied().filter(|next| next.0.0 <= now_ms)
            else {
                break;
            };
            self.order.pop();
            // A cancelled message is still in the order.
            if let Some(message) = self.messages.get(&offset).filter(|message| message.at_ms == at_ms) {
                bytes += u64::from(message.size);
                due.push((offset, *message));
            }
        }
        due
    }

    /// Puts messages back into the order of attempts, at their times.
    pub(super) fn put_back(&mut self, due: &[(u64, PendingMessage)]) {
        self.order.extend(due.iter().map(|(offset, message)| Reverse((message.at_ms, *offset))));
    }

    /// Puts a message that its topic refused back, for an attempt at `at_ms`.
    pub(super) fn retry(&mut self, offset: u64, now_ms: i64, at_ms: i64) {
        if let Some(message) = self.messages.get_mut(&offset) {
            message.at_ms = at_ms;
            message.held = slot_of(now_ms).saturating_sub(message.slot) > ROLL_WINDOW_SLOTS;
        }
        self.order.push(Reverse((at_ms, offset)));
    }

    pub(super) fn next_attempt_ms(&self) -> Option<i64> {
        self.order.peek().map(|next| next.0.0)
    }

    pub(super) fn first_due_ms(&self) -> Option<i64> {
        self.messages.values().map(|message| message.due_ms).min()
    }

    /// Returns the log offset after which the deliveries of all slots in memory are.
    pub(super) fn deliveries_from(&self) -> Option<u64> {
        self.slots.values().map(|slot| slot.from).min()
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
