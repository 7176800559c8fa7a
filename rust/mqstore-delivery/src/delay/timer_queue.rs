//! How far the timer queue was read, and its records that are not in the wheel yet.
//!
//! A record that was read is `unwritten` until it is in the timer log. If its slot is not in memory, it is also in
//! `waiting` until the wheel leads to it, so that its slot can be loaded before the next save.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use mqstore_base::message::StoredRecord;

use super::timer_record::Timed;

/// The read part of the timer queue; see the module's text.
#[derive(Debug)]
pub(super) struct TimerQueue {
    /// The next offset to read.
    next: i64,
    /// The log offset of the record before it; -1 if there is none.
    last_record: i64,
    /// The end of the last record that the engine has read or written.
    log_seen: u64,
    /// No message before this offset waits.
    none_pending_before: i64,
    /// Records of slots that are neither in memory nor in the wheel.
    waiting: BTreeMap<i64, Vec<Timed>>,
    /// Records that are not in the timer log, in the order of the queue.
    unwritten: Vec<Timed>,
}

impl TimerQueue {
    /// Returns a queue without read records, in a log that ends at `log_end`.
    pub(super) fn new(log_end: u64) -> Self {
        Self {
            next: 0,
            last_record: -1,
            log_seen: log_end,
            none_pending_before: 0,
            waiting: BTreeMap::new(),
            unwritten: Vec::new(),
        }
    }

    /// Starts at offset `next`; the record before it is at log offset `last_record`, or -1.
    pub(super) fn start_at(&mut self, next: i64, last_record: i64) {
        self.next = next;
        self.last_record = last_record;
    }

    pub(super) fn next(&self) -> i64 {
        self.next
    }

    pub(super) fn last_record(&self) -> i64 {
        self.last_record
    }

    pub(super) fn log_seen(&self) -> u64 {
        self.log_seen
    }

    /// Whether the timer record at this log offset was read.
    pub(super) fn has_read(&self, log_offset: u64) -> bool {
        i64::try_from(log_offset).is_ok_and(|offset| offset <= self.last_record)
    }

    /// Whether no message at this offset of the queue can wait.
    pub(super) fn is_known_done(&self, queue_offset: i64) -> bool {
        queue_offset < self.none_pending_before
    }

    /// No message that was read so far waits.
    pub(super) fn mark_all_done(&mut self) {
        self.none_pending_before = self.next;
    }

    /// Passes offsets without records.
    pub(super) fn skip_to(&mut self, offset: i64) {
        self.next = self.next.max(offset);
    }

    pub(super) fn pass(&mut self, record: &StoredRecord) {
        self.note_read(record);
        self.next = record.queue_offset + 1;
        self.last_record = record.commit_log_offset as i64;
    }

    /// Notes that the log was read up to the end of `record`.
    pub(super) fn note_read(&mut self, record: &StoredRecord) {
        self.note_log_end(record.commit_log_offset + record.bytes().len() as u64);
    }

    /// Notes that the log was read or written up to `end`.
    pub(super) fn note_log_end(&mut self, end: u64) {
        self.log_seen = self.log_seen.max(end);
    }

    /// Adds a record whose slot is not in memory.
    pub(super) fn add_waiting(&mut self, timed: Timed) {
        self.waiting.entry(timed.slot).or_default().push(timed.clone());
        self.unwritten.push(timed);
    }

    /// Adds a record that only the timer log needs.
    pub(super) fn add_unwritten(&mut self, timed: Timed) {
        self.unwritten.push(timed);
    }

    /// Returns the first slot from `from` on that has records in memory only.
    pub(super) fn first_waiting_slot(&self, from: i64) -> Option<i64> {
        self.waiting.range(from..).next().map(|(slot, _)| *slot)
    }

    /// Removes the waiting records of a slot, which is loaded.
    pub(super) fn take_slot(&mut self, slot: i64) -> Vec<Timed> {
        self.waiting.remove(&slot).unwrap_or_default()
    }

    pub(super) fn unwritten_count(&self) -> usize {
        self.unwritten.len()
    }

    /// Removes the records that the next save writes.
    pub(super) fn take_unwritten(&mut self) -> Vec<Timed> {
        std::mem::take(&mut self.unwritten)
    }

    /// Returns records that a save did not write.
    pub(super) fn put_back(&mut self, units: Vec<Timed>) {
        self.unwritten.splice(0..0, units);
    }

    /// Removes the waiting records that are now in the wheel: those of these slots before `queue_offset`.
    pub(super) fn unload_slots<'a>(&mut self, slots: impl Iterator<Item = &'a i64>, queue_offset: i64) {
        for slot in slots {
            if let Entry::Occupied(mut waiting) = self.waiting.entry(*slot) {
                waiting.get_mut().retain(|timed| timed.queue_offset >= queue_offset);
                if waiting.get().is_empty() {
                    waiting.remove();
                }
            }
        }
    }

    /// Returns the number of records in memory.
    #[cfg(test)]
    pub(super) fn in_memory(&self) -> usize {
        self.unwritten.len() + self.waiting.values().map(Vec::len).sum::<usize>()
    }
}
