//! Finds the delivered messages of delay levels in the log, for an open that has no saved state of them.
//!
//! `config/delayOffset.json` has the next offset of each level. If the file is missing or damaged, or a broker wrote
//! it seconds before it stopped, the offsets are too low. The log has the deliveries: a delivered message is a record
//! of its own topic and queue with the unique key, the body and the number of retries of its record in
//! [`SCHEDULE_TOPIC`]. Each delivery stands for one such record.
//!
//! Source: `ScheduleMessageService#messageTimeUp`, `#load`.

use std::collections::{BTreeSet, HashMap, HashSet};

use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_format::properties::{REAL_QID, REAL_TOPIC};
use mqstore_format::{RecordView, SCHEDULE_TOPIC};

use crate::delay::engine::DelayEngine;
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

    /// Whether there is a delivery of `record`, a record of a level. Each delivery by a broker counts once.
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
    pub(in crate::delay) fn find_delivered_levels(&mut self) -> Result<(), StoreError> {
        if self.count_level_pending()? == 0 {
            return Ok(());
        }
        let begin = self.store.stats()?.log_min_offset;
        let from = self.first_undelivered_level_record()?.max(begin);
        let mut deliveries = Deliveries::default();
        let mut cursor = self.store.scan_log(Some(from))?;
        loop {
            let records = cursor.next_batch(AT_ONCE)?;
            if records.is_empty() {
                break;
            }
            records.iter().for_each(|record| deliveries.add(record));
        }
        let mut found = 0;
        for queue_id in self.store.queue_ids(SCHEDULE_TOPIC)? {
            found += self.find_delivered_level(queue_id, &mut deliveries)?;
        }
        if found > 0 {
            self.levels.changed = true;
            self.saved.dirty = true;
            self.store.add_note(&format!(
                "config/delayOffset.json does not count {found} delayed messages as delivered, but the log has their \
                 deliveries; they are not delivered again"
            ));
        }
        Ok(())
    }

    fn find_delivered_level(
        &mut self,
        queue_id: i32,
        deliveries: &mut Deliveries,
    ) -> Result<u64, StoreError> {
        let level = queue_id.saturating_add(1);
        let (min, max) = self.store.bounds(SCHEDULE_TOPIC, queue_id)?;
        let known = self.levels.next.get(&level).copied().unwrap_or(min).clamp(min, max);
        let mut found = BTreeSet::new();
        let mut cursor = self.store.read(SCHEDULE_TOPIC, queue_id, Some(known), Some(max), None)?;
        loop {
            let records = cursor.next_batch(AT_ONCE)?;
            if records.is_empty() {
                break;
            }
            found.extend(
                records.iter().filter(|record| deliveries.take(record)).map(|record| record.queue_offset),
            );
        }
        let count = found.len() as u64;
        if count > 0 {
            self.levels.delivered.insert(level, found);
            let next = self.levels.skip_delivered(level, known);
            self.levels.next.insert(level, next);
        }
        Ok(count)
    }
}
