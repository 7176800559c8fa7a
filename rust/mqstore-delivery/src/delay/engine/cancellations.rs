//! Cancelled messages of slots that are not in memory, and cancellations that were applied before their turn.
//!
//! A cancellation of mqstore names a record, one of a broker a key. Both are units of the slot of their message, and
//! are read from the wheel when the slot is first asked about.

use std::collections::{HashMap, HashSet};

use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_engine::Store;

use crate::delay::files::DelayJournal;
use crate::delay::timer_record::{CancelTarget, has_delete_key, timed};
use crate::error::view;

/// The cancellations; see the module's text.
#[derive(Debug, Default)]
pub(super) struct Cancellations {
    /// Log offsets of cancelled records, by slot.
    records: HashMap<i64, HashSet<u64>>,
    /// Keys of the messages that brokers cancelled, by slot.
    keys: HashMap<i64, Vec<Box<str>>>,
    /// Slots whose deletion units were read.
    known_slots: HashSet<i64>,
    /// Cancellations that were applied before their turn, by log offset.
    applied_ahead: HashSet<u64>,
    /// The offset of the timer queue up to which they were looked for.
    ahead_read_to: i64,
}

impl Cancellations {
    /// Reads the deletion units of a slot of the wheel, once.
    pub(super) fn learn(
        &mut self,
        slot: i64,
        journal: &mut DelayJournal,
        store: &Store,
    ) -> Result<(), StoreError> {
        if !self.known_slots.insert(slot) {
            return Ok(());
        }
        let [_, deletions] = journal.records_of(slot)?;
        for record in store.log().records_at(&deletions)?.into_iter().flatten() {
            match timed(&record).and_then(|timed| timed.cancels) {
                // Already counted when it entered the wheel.
                Some(CancelTarget::Record(offset)) => {
                    self.add_record(slot, offset);
                }
                Some(CancelTarget::Key(key)) => self.add_key(slot, key),
                None => {}
            }
        }
        Ok(())
    }

    /// Adds a cancelled record of `slot`. Returns whether it is new.
    pub(super) fn add_record(&mut self, slot: i64, offset: u64) -> bool {
        self.records.entry(slot).or_default().insert(offset)
    }

    pub(super) fn add_key(&mut self, slot: i64, key: Box<str>) {
        self.keys.entry(slot).or_default().push(key);
    }

    /// Whether `record`, a message of `slot`, is cancelled.
    pub(super) fn contains(&self, slot: i64, record: &StoredRecord) -> Result<bool, StoreError> {
        let view = view(record)?;
        let by_key =
            self.keys.get(&slot).is_some_and(|keys| keys.iter().any(|key| has_delete_key(&view, key)));
        let by_record =
            self.records.get(&slot).is_some_and(|records| records.contains(&record.commit_log_offset));
        Ok(by_key || by_record)
    }

    /// Removes the cancelled records and keys of a slot, which is loaded.
    pub(super) fn take_slot(&mut self, slot: i64) -> (HashSet<u64>, Vec<Box<str>>) {
        self.known_slots.remove(&slot);
        (self.records.remove(&slot).unwrap_or_default(), self.keys.remove(&slot).unwrap_or_default())
    }

    /// Returns the offset of the timer queue from which cancellations are looked for ahead of their turn, if the queue
    /// was read up to `next`.
    pub(super) fn ahead_start(&self, next: i64) -> i64 {
        self.ahead_read_to.max(next)
    }

    /// Notes that they were looked for up to this offset of the timer queue.
    pub(super) fn end_ahead(&mut self, offset: i64) {
        self.ahead_read_to = offset;
    }

    /// Notes that the cancellation at this log offset was applied before its turn.
    pub(super) fn add_ahead(&mut self, offset: u64) {
        self.applied_ahead.insert(offset);
    }

    /// Whether the cancellation at this log offset, whose turn it is, was applied before.
    pub(super) fn take_ahead(&mut self, offset: u64) -> bool {
        self.applied_ahead.remove(&offset)
    }
}
