//! What messages that wait, delayed or in a transaction, need of the store: where they will go, and their records by log offset.

use mqstore_format::record::MAX_PROPERTIES_BYTES;
use mqstore_format::{CqUnit, DelayLevels, MIN_RECORD_BYTES, RecordView, SCHEDULE_TOPIC};

use super::encode::route;
use crate::Store;
use crate::store::OpenSide;
use mqstore_base::error::StoreError;
use mqstore_base::message::{NewMessage, StoredRecord};
use mqstore_base::store_files::{DelayTables, StoreFiles};
use mqstore_log::commit_log::RecordReader;

/// What the properties of a message that waits have at most beside those of the same message that does not: two topics,
/// and numbers.
const MORE_BYTES: u64 = 768;

impl Store {
    /// The files of the store.
    pub fn files(&self) -> &StoreFiles {
        &self.inner.files
    }

    /// The queue that `message` would go to if it was appended now: the one it names, by its key, or the next in turn.
    /// Makes its topic as an append would, and refuses what could not be delivered later.
    ///
    /// # Errors
    /// Those of [`Store::append`]; [`StoreError::InvalidMessage`] for a topic with batch queues.
    pub fn target_queue(&self, message: &NewMessage<'_>) -> Result<i32, StoreError> {
        let writer = self.writer("append")?;
        let properties = message.properties.len() as u64 + MORE_BYTES;
        let limit = MAX_PROPERTIES_BYTES as u64;
        if properties > limit {
            let reason = format!(
                "{} bytes of properties leave no room for those of a message that waits",
                message.properties.len()
            );
            return Err(StoreError::InvalidMessage { reason });
        }
        let size = MIN_RECORD_BYTES as u64 + properties + message.body.len() as u64;
        let limit = writer.log.max_record_bytes();
        if size > limit {
            return Err(StoreError::TooLarge { what: "the record", size, limit });
        }
        writer.before_append()?;
        let topic = match writer.topics.get(message.topic) {
            Some(topic) => topic,
            None => writer.make_topic(message.topic, message.queue_id)?,
        };
        if topic.batch {
            let reason =
                format!("topic {} keeps batch queues, which take no message that waits", message.topic);
            return Err(StoreError::InvalidMessage { reason });
        }
        route(&topic, message)
    }

    /// The records that lie at `places`, log offsets and sizes, in the order asked for; `None` where there is no such record
    /// (any more).
    ///
    /// # Errors
    /// What keeps the log from being read; damage of single records is none.
    pub fn records_at(&self, places: &[(u64, u32)]) -> Result<Vec<Option<StoredRecord>>, StoreError> {
        self.check()?;
        let view = self.view();
        let limit = view.catch_up()?;
        let list = view.list();
        let min = list.min_offset();
        let mut reader = RecordReader::new(view.log(), list, limit);
        reader.expect(places.iter().copied());
        let mut found = Vec::with_capacity(places.len());
        for (offset, size) in places {
            let end = offset.checked_add(u64::from(*size));
            if *offset < min || end.is_none_or(|end| end > limit) {
                found.push(None);
                continue;
            }
            found.push(match reader.record(view.files(), *offset, *size) {
                Ok(bytes) => {
                    let view = RecordView::decode(bytes.as_slice());
                    let queue_offset = view.ok().filter(|view| view.size == *size).map(|v| v.queue_offset);
                    queue_offset.map(|queue_offset| StoredRecord::decoded(bytes, *offset, queue_offset))
                }
                Err(StoreError::Corrupt { .. }) => None,
                Err(error) if error.is_gone() => None,
                Err(error) => return Err(error),
            });
        }
        Ok(found)
    }

    /// The tables of delay levels: those that its log was written with, and the one that counts now.
    pub fn delay_tables(&self) -> &DelayTables {
        match &self.inner.side {
            OpenSide::Writer(writer, _) => &writer.dispatcher.rules().delays,
            OpenSide::Reader(reader) => reader.delays(),
        }
    }

    /// When a message of a delay level is due, in epoch milliseconds, as its queue has it: in the place of what other
    /// queues have of tags; earlier where the level waits less long by now. `None` where the queue has no such message (any
    /// more).
    ///
    /// # Errors
    /// What keeps the queue from being read.
    pub fn level_due_ms(&self, queue_id: i32, queue_offset: i64) -> Result<Option<i64>, StoreError> {
        let units = self.level_units(queue_id, queue_offset, 1)?;
        let unit = entry_of(&units, queue_offset);
        Ok(unit.map(|unit| self.level_due_by(queue_id, unit.physical_offset as u64, unit.tags_code)))
    }

    /// When `record` is due, as [`Self::level_due_ms`] has it, and by the tables alone where its entry cannot be right. `None`
    /// for what has no delay level.
    ///
    /// # Errors
    /// What keeps the queue from being read.
    pub fn level_due_of(&self, record: &StoredRecord) -> Result<Option<i64>, StoreError> {
        let Some(view) = record.view().ok().filter(|view| view.topic == SCHEDULE_TOPIC) else {
            return Ok(None);
        };
        let units = self.level_units(view.queue_id, record.queue_offset, 1)?;
        Ok(self.level_due_among(record, &units))
    }

    /// As [`Self::level_due_of`], for records of one delay level in the order of its queue: one read of it for those that
    /// follow one another.
    ///
    /// # Errors
    /// What keeps the queue from being read.
    pub fn level_dues_of(
        &self,
        queue_id: i32,
        records: &[StoredRecord],
    ) -> Result<Vec<Option<i64>>, StoreError> {
        let Some(first) = records.first() else { return Ok(Vec::new()) };
        let units = self.level_units(queue_id, first.queue_offset, records.len())?;
        let due = |record: &StoredRecord| match entry_of(&units, record.queue_offset) {
            Some(_) => Ok(self.level_due_among(record, &units)),
            None => self.level_due_of(record),
        };
        records.iter().map(due).collect()
    }

    fn level_due_among(&self, record: &StoredRecord, units: &[(i64, CqUnit)]) -> Option<i64> {
        let view = record.view().ok().filter(|view| view.topic == SCHEDULE_TOPIC)?;
        let (level, stored) = (view.queue_id.saturating_add(1), view.store_timestamp);
        let offset = record.commit_log_offset;
        let unit = entry_of(units, record.queue_offset).filter(|unit| {
            unit.physical_offset == offset as i64 && DelayLevels::is_delivery_time(unit.tags_code, stored)
        });
        let by_table = || self.delay_tables().at(offset).delivery_time(level, stored);
        let entry_ms = unit.map_or_else(by_table, |unit| unit.tags_code);
        Some(self.level_due_by(view.queue_id, offset, entry_ms))
    }

    fn level_due_by(&self, queue_id: i32, offset: u64, entry_ms: i64) -> i64 {
        self.delay_tables().due_ms(queue_id.saturating_add(1), offset, entry_ms)
    }

    fn level_units(&self, queue_id: i32, from: i64, most: usize) -> Result<Vec<(i64, CqUnit)>, StoreError> {
        self.check()?;
        let mut units = Vec::new();
        self.view().units(SCHEDULE_TOPIC, queue_id, from, most, &mut units)?;
        Ok(units)
    }

    /// Where the last segment of the log begins whose first message was stored before `time_ms`; else where the log
    /// begins.
    pub fn log_offset_before(&self, time_ms: i64) -> Result<u64, StoreError> {
        self.check()?;
        let view = self.view();
        let limit = view.catch_up()?;
        let list = view.list();
        let mut reader = RecordReader::new(view.log(), view.list(), limit);
        for segment in list.segments().iter().rev().filter(|segment| segment.base_offset() < limit) {
            let Ok(bytes) = reader.record_at(view.files(), segment.base_offset()) else { continue };
            if RecordView::decode(bytes.as_slice()).is_ok_and(|record| record.store_timestamp < time_ms) {
                return Ok(segment.base_offset());
            }
        }
        Ok(list.min_offset())
    }
}

/// Of units in ascending order of their queue offsets, the one of `queue_offset`.
fn entry_of(units: &[(i64, CqUnit)], queue_offset: i64) -> Option<&CqUnit> {
    let place = units.binary_search_by_key(&queue_offset, |(offset, _)| *offset).ok()?;
    units.get(place).map(|(_, unit)| unit)
}
