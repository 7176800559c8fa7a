//! Reads for messages that wait: their records by log offset, and the due times of messages with a delay level.

use mqstore_format::{CqUnit, DelayLevels, RecordView, SCHEDULE_TOPIC};

use super::view::StoreView;
use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_log::commit_log::RecordReader;

/// Returns the records at `places` (log offset and size), in the same order; `None` if there is no such record, or
/// no longer one.
///
/// # Errors
/// Errors of reading the log. Damage of single records is no error.
pub(crate) fn records_at(
    view: &StoreView,
    places: &[(u64, u32)],
) -> Result<Vec<Option<StoredRecord>>, StoreError> {
    let limit = view.catch_up()?;
    let list = view.list();
    let min = list.min_offset();
    let mut reader = RecordReader::new(view.log(), list, limit);
    reader.prefetch(places.iter().copied());
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

/// Returns the start of the last segment whose first message was stored before `time_ms`; if there is none, the
/// start of the log.
pub(crate) fn log_offset_before(view: &StoreView, time_ms: i64) -> Result<u64, StoreError> {
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
/// The due times of messages with a delay level. They come from the units of the queues in which the messages wait, and
/// from the tables of delay levels.
pub struct LevelTimes {
    view: StoreView,
}

impl LevelTimes {
    pub(crate) fn new(view: StoreView) -> Self {
        Self { view }
    }

    /// Returns the due time of a message with a delay level, in epoch milliseconds. Its unit contains this time instead
    /// of a tags code. The result is earlier if the delay of the level is shorter now. `None` if the queue has no such
    /// message, or no longer one.
    ///
    /// # Errors
    /// Errors of reading the queue.
    pub fn due_ms(&self, queue_id: i32, queue_offset: i64) -> Result<Option<i64>, StoreError> {
        let units = self.units(queue_id, queue_offset, 1)?;
        let unit = entry_of(&units, queue_offset);
        Ok(unit.map(|unit| self.due_by(queue_id, unit.physical_offset as u64, unit.tags_code)))
    }

    /// Returns the due time of `record`, like [`Self::due_ms`]; if its unit cannot be right, the tables alone
    /// decide. `None` for a record without a delay level.
    ///
    /// # Errors
    /// Errors of reading the queue.
    pub fn due_of(&self, record: &StoredRecord) -> Result<Option<i64>, StoreError> {
        let Some(view) = record.view().ok().filter(|view| view.topic == SCHEDULE_TOPIC) else {
            return Ok(None);
        };
        let units = self.units(view.queue_id, record.queue_offset, 1)?;
        Ok(self.due_among(record, &units))
    }

    /// Like [`Self::due_of`], for records of one delay level in queue order. Consecutive records share one read
    /// of the queue.
    ///
    /// # Errors
    /// Errors of reading the queue.
    pub fn dues_of(&self, queue_id: i32, records: &[StoredRecord]) -> Result<Vec<Option<i64>>, StoreError> {
        let Some(first) = records.first() else { return Ok(Vec::new()) };
        let units = self.units(queue_id, first.queue_offset, records.len())?;
        let due = |record: &StoredRecord| match entry_of(&units, record.queue_offset) {
            Some(_) => Ok(self.due_among(record, &units)),
            None => self.due_of(record),
        };
        records.iter().map(due).collect()
    }

    fn due_among(&self, record: &StoredRecord, units: &[(i64, CqUnit)]) -> Option<i64> {
        let view = record.view().ok().filter(|view| view.topic == SCHEDULE_TOPIC)?;
        let (level, stored) = (view.queue_id.saturating_add(1), view.store_timestamp);
        let offset = record.commit_log_offset;
        let unit = entry_of(units, record.queue_offset).filter(|unit| {
            unit.physical_offset == offset as i64 && DelayLevels::is_delivery_time(unit.tags_code, stored)
        });
        let by_table = || self.view.delays().at(offset).delivery_time(level, stored);
        let entry_ms = unit.map_or_else(by_table, |unit| unit.tags_code);
        Some(self.due_by(view.queue_id, offset, entry_ms))
    }

    fn due_by(&self, queue_id: i32, offset: u64, entry_ms: i64) -> i64 {
        self.view.delays().due_ms(queue_id.saturating_add(1), offset, entry_ms)
    }

    fn units(&self, queue_id: i32, from: i64, most: usize) -> Result<Vec<(i64, CqUnit)>, StoreError> {
        let mut units = Vec::new();
        self.view.units(SCHEDULE_TOPIC, queue_id, from, most, &mut units)?;
        Ok(units)
    }
}

/// Returns the unit at `queue_offset`; the units are in ascending order of their queue offsets.
fn entry_of(units: &[(i64, CqUnit)], queue_offset: i64) -> Option<&CqUnit> {
    let place = units.binary_search_by_key(&queue_offset, |(offset, _)| *offset).ok()?;
    units.get(place).map(|(_, unit)| unit)
}
