//! Finds the delivered messages of delay levels in the log, for an open that has no saved state of them.
//!
//! `config/delayOffset.json` has the next offset of each level. If the file is missing or damaged, or a broker wrote
//! it seconds before it stopped, the offsets are too low. The log has the deliveries: a delivered message is a record
//! of its own topic and queue with the unique key, the body and the number of retries of its record in
//! [`SCHEDULE_TOPIC`]. Each delivery stands for one such record.
//!
//! Source: `ScheduleMessageService#messageTimeUp`, `#load`.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_format::properties::{REAL_QID, REAL_TOPIC};
use mqstore_format::{RecordView, SCHEDULE_TOPIC};

use super::DelayEngine;
use crate::delay::timer_record::origin_of;

/// Records in one read.
const AT_ONCE: usize = 1024;

/// What a record of a level and its delivery have in common.
#[derive(Debug, PartialEq, Eq, Hash)]
struct DeliveryKey {
    topic: String,
    queue_id: i32,
    unique_key: String,
    reconsume_times: i32,
    born_timestamp: i64,
    body_crc: u32,
}

impl DeliveryKey {
    /// Returns the key of a delivery, or of a record that waits for one; `None` for other records.
    fn of(view: &RecordView<'_>) -> Option<Self> {
        let [topic, queue_id] = view.properties.get_many([REAL_TOPIC, REAL_QID]);
        let (topic, queue_id) = (topic?, queue_id?.parse().ok()?);
        let is_delivery = (topic, queue_id) == (view.topic, view.queue_id);
        (is_delivery || view.topic == SCHEDULE_TOPIC).then(|| Self {
            topic: topic.to_owned(),
            queue_id,
            unique_key: view.unique_key().unwrap_or_default().to_owned(),
            reconsume_times: view.reconsume_times,
            born_timestamp: view.born_timestamp,
            body_crc: view.body_crc,
        })
    }
}

/// The deliveries in a part of the log.
#[derive(Debug, Default)]
struct Deliveries {
    /// Log offsets of records that a delivery of ours names.
    origins: HashSet<u64>,
    /// Numbers of deliveries by a broker, which name no record.
    keys: HashMap<DeliveryKey, u32>,
}

impl Deliveries {
    fn add(&mut self, record: &StoredRecord) {
        let Ok(view) = record.view() else { return };
        if view.topic == SCHEDULE_TOPIC {
            return;
        }
        if let Some(origin) = origin_of(&view) {
            self.origins.insert(origin);
        } else if let Some(key) = DeliveryKey::of(&view) {
            *self.keys.entry(key).or_default() += 1;
        }
    }

    fn has(&self, record: &StoredRecord) -> bool {
        let is_known = |key: DeliveryKey| self.keys.get(&key).is_some_and(|count| *count > 0);
        self.origins.contains(&record.commit_log_offset)
            || record.view().ok().as_ref().and_then(DeliveryKey::of).is_some_and(is_known)
    }

    /// Same as [`Self::has`]. A delivery by a broker stands for one record, and is taken away.
    fn take(&mut self, record: &StoredRecord) -> bool {
        if self.origins.contains(&record.commit_log_offset) {
            return true;
        }
        let key = record.view().ok().as_ref().and_then(DeliveryKey::of);
        let Some(count) = key.and_then(|key| self.keys.get_mut(&key)).filter(|count| **count > 0) else {
            return false;
        };
        *count -= 1;
        true
    }
}

impl DelayEngine {
    /// Finds the waiting messages of levels that the log shows as delivered; they are not delivered again.
    pub(super) fn find_delivered_levels(&mut self) -> Result<(), StoreError> {
        if self.count_level_pending()? == 0 {
            return Ok(());
        }
        let mut deliveries = self.read_deliveries()?;
        let (queues, mut any) = (self.levels.queues(&self.store)?, false);
        for queue in &queues {
            any |=
                self.any_record(queue.queue_id, queue.next..queue.max, &mut |record| deliveries.has(record))?;
        }
        if !any {
            return Ok(());
        }
        // A producer may have sent a message twice. The earlier record, which is not waiting, takes its delivery first.
        for queue in &queues {
            self.each_record(queue.queue_id, queue.min..queue.next, &mut |record| {
                deliveries.take(record);
            })?;
        }
        let mut count = 0;
        for queue in &queues {
            let mut found = BTreeSet::new();
            self.each_record(queue.queue_id, queue.next..queue.max, &mut |record| {
                if deliveries.take(record) {
                    found.insert(record.queue_offset);
                }
            })?;
            count += found.len();
            self.levels.add_delivered(queue.queue_id.saturating_add(1), queue.next, found);
        }
        if count > 0 {
            self.journal.mark_changed();
            self.store.add_note(&format!(
                "config/delayOffset.json does not count {count} delayed messages as delivered, but the log has their \
                 deliveries; they are not delivered again"
            ));
        }
        Ok(())
    }

    /// Reads the deliveries in the log from the first waiting record on.
    fn read_deliveries(&self) -> Result<Deliveries, StoreError> {
        let from = self.first_undelivered_level_record()?.max(self.store.log().bounds()?.0);
        let mut deliveries = Deliveries::default();
        let mut cursor = self.store.log().scan(Some(from))?.with_deleted();
        loop {
            let records = cursor.next_batch(AT_ONCE)?;
            if records.is_empty() {
                return Ok(deliveries);
            }
            for record in &records {
                deliveries.add(record);
            }
        }
    }

    fn each_record(
        &self,
        queue_id: i32,
        range: Range<i64>,
        look: &mut dyn FnMut(&StoredRecord),
    ) -> Result<(), StoreError> {
        self.any_record(queue_id, range, &mut |record| {
            look(record);
            false
        })
        .map(drop)
    }

    fn any_record(
        &self,
        queue_id: i32,
        range: Range<i64>,
        is_wanted: &mut dyn FnMut(&StoredRecord) -> bool,
    ) -> Result<bool, StoreError> {
        if range.is_empty() {
            return Ok(false);
        }
        let mut cursor =
            self.store.read(SCHEDULE_TOPIC, queue_id, Some(range.start), Some(range.end), None)?;
        loop {
            let records = cursor.next_batch(AT_ONCE)?;
            if records.is_empty() {
                return Ok(false);
            }
            if records.iter().any(&mut *is_wanted) {
                return Ok(true);
            }
        }
    }
}
