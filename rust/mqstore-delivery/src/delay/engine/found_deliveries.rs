//! Deliveries that an open found in the log, of messages that seem to wait.

use std::collections::HashMap;

use mqstore_base::error::StoreError;
use mqstore_engine::Store;

use crate::delay::timer_record::{Timed, delivery_key};

/// Deliveries that an open found in the log, by the record that they were made from.
#[derive(Debug, Default)]
pub(super) struct FoundDeliveries {
    /// The slot and the queue offset of the record, by its log offset.
    records: HashMap<u64, (i64, i64)>,
    /// The log offset at which the search started.
    from: u64,
    /// Number of deliveries by a broker, which stores no origin, by unique key and slot time.
    keys: HashMap<(String, i64), u32>,
}

impl FoundDeliveries {
    pub(super) fn start(&mut self, from: u64) {
        self.from = from;
    }

    /// Returns the log offset at which the search started.
    pub(super) fn from(&self) -> u64 {
        self.from
    }

    /// Returns the log offset from which an open must search again; `None` if nothing was found.
    pub(super) fn needed_from(&self) -> Option<u64> {
        (!self.records.is_empty()).then_some(self.from)
    }

    /// Adds the delivery of `source`. Returns whether it is the first of this record.
    pub(super) fn add(&mut self, source: &Timed) -> bool {
        self.records.insert(source.offset, (source.slot, source.queue_offset)).is_none()
    }

    pub(super) fn add_key(&mut self, key: (String, i64)) {
        *self.keys.entry(key).or_default() += 1;
    }

    /// Whether the record at this log offset was delivered.
    pub(super) fn contains(&self, offset: u64) -> bool {
        self.records.contains_key(&offset)
    }

    /// Whether a record of `slot` was delivered.
    pub(super) fn has_slot(&self, slot: i64) -> bool {
        self.records.values().any(|(of, _)| *of == slot)
    }

    pub(super) fn forget(&mut self, offset: u64) {
        self.records.remove(&offset);
    }

    /// Forgets the deliveries of a slot, which is loaded. The timer queue was read up to `next`.
    pub(super) fn forget_slot(&mut self, slot: i64, next: i64) {
        self.records.retain(|_, (of, queue_offset)| *of != slot || *queue_offset >= next);
    }

    /// Forgets the deliveries of slots before `loaded_to`. The timer queue was read up to `next`.
    pub(super) fn forget_before(&mut self, loaded_to: i64, next: i64) {
        self.records.retain(|_, (slot, queue_offset)| *slot >= loaded_to || *queue_offset >= next);
    }

    /// Whether a broker delivered the message of this record. Each delivery counts for one record.
    pub(super) fn take_by_key(&mut self, timed: &Timed, store: &Store) -> Result<bool, StoreError> {
        if self.keys.is_empty() {
            return Ok(false);
        }
        let Some(record) = store.log().records_at(&[(timed.offset, timed.size)])?.pop().flatten() else {
            return Ok(false);
        };
        let Some(key) = delivery_key(&record) else { return Ok(false) };
        let Some(count) = self.keys.get_mut(&key) else { return Ok(false) };
        *count -= 1;
        if *count == 0 {
            self.keys.remove(&key);
        }
        Ok(true)
    }
}
