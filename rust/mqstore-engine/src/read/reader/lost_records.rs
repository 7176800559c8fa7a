//! Finds messages that a walk of the log no longer finds, although a queue file names their records.
//!
//! ```text
//! queue file    orders/0:  17 -> r1          the file says that r1 is message 17
//! log           r1: "orderS" queue 0 offset 17          and r1 says something else
//! ```
//!
//! A record without a checksum over all its bytes can have a damaged topic, queue or offset. A walk then derives no unit
//! for its message, or a unit at a wrong place. So the unit of the file stays, and a read that uses it finds the damage.
//! If the record is right and the unit is wrong, the unit is dropped: the log is the truth. A record is right if its
//! messages before and after it surround it, and no queue file gives its place to another record.

use mqstore_format::topic::LIGHT_QUEUE_PREFIX;
use mqstore_format::{CqUnit, RecordView};

use super::{Reader, ReaderState};
use crate::read::cursor::{belongs, place};
use crate::read::units::read_units;
use mqstore_base::error::StoreError;
use mqstore_base::message::RecordBytes;
use mqstore_log::commit_log::read_record;
use mqstore_log::dispatch::DerivedQueues;

/// Maximum number of units of a queue file that are compared with the log.
const MOST_LOST_UNITS: usize = 1 << 16;

impl Reader {
    /// Keeps the units in the files of a queue whose messages are missing in `derived`, if the log lost them.
    pub(super) fn keep_lost_units(
        &self,
        state: &ReaderState,
        derived: &mut DerivedQueues,
        (topic, queue_id): (&str, i32),
    ) -> Result<(), StoreError> {
        let Some(queue) = state.queues.get(topic, queue_id).filter(|queue| !queue.is_empty()) else {
            return Ok(());
        };
        queue.correct_min_offset(state.list.min_offset())?;
        let range = queue.min_offset()..queue.max_offset_for(state.overlay_from)?;
        let missing = match derived.get(topic, queue_id) {
            Some(found) => found.missing(range, MOST_LOST_UNITS),
            None => range.take(MOST_LOST_UNITS).collect(),
        };
        for offset in missing {
            let Some(unit) = unit_of_file(state, (topic, queue_id), offset)? else { continue };
            if derived.points_into_damage(unit)
                || self.names_lost_record(state, derived, (topic, queue_id), (offset, unit))?
            {
                derived.add_lost_unit((topic, queue_id), offset, unit);
            }
        }
        Ok(())
    }

    /// Whether the record of a unit is whole, but does not say that it is the message at this offset, and is wrong. Then
    /// it gives up the place that it names.
    fn names_lost_record(
        &self,
        state: &ReaderState,
        derived: &mut DerivedQueues,
        (topic, queue_id): (&str, i32),
        (offset, unit): (i64, CqUnit),
    ) -> Result<bool, StoreError> {
        let Some(bytes) = self.record_of(state, unit)? else { return Ok(false) };
        let Ok(record) = RecordView::decode(bytes.as_slice()) else { return Ok(false) };
        let position = unit.physical_offset;
        if record.is_placeholder() || self.floors.now().hides(topic, position as u64) {
            return Ok(false);
        }
        if belongs(&record, topic, queue_id, offset) || topic.starts_with(LIGHT_QUEUE_PREFIX) {
            return Ok(true);
        }
        let (named, at) = ((record.topic, record.queue_id), record.queue_offset);
        let rival = unit_of_file(state, named, at)?;
        if rival.is_some_and(|rival| rival.physical_offset == position) {
            return Ok(false);
        }
        let rival = match rival {
            Some(rival) if self.has_message(state, rival, named, at)? => Some(rival),
            _ => None,
        };
        if rival.is_none() && derived.confirms(named, at, position) {
            return Ok(false);
        }
        derived.remove_misplaced(named, at, position);
        if let Some(rival) = rival.filter(|_| derived.get(named.0, named.1).is_some()) {
            derived.add_lost_unit(named, at, rival);
        }
        Ok(true)
    }

    /// Whether the record of a unit says that it is the message at this offset.
    fn has_message(
        &self,
        state: &ReaderState,
        unit: CqUnit,
        (topic, queue_id): (&str, i32),
        offset: i64,
    ) -> Result<bool, StoreError> {
        let Some(bytes) = self.record_of(state, unit)? else { return Ok(false) };
        let record = RecordView::decode(bytes.as_slice());
        Ok(record.is_ok_and(|record| belongs(&record, topic, queue_id, offset)))
    }

    /// Returns the whole record of a unit; `None` if the log has none of this size there.
    fn record_of(&self, state: &ReaderState, unit: CqUnit) -> Result<Option<RecordBytes>, StoreError> {
        let Some((position, size)) = place(&unit).filter(|(position, _)| *position < state.end) else {
            return Ok(None);
        };
        match read_record(&self.files, &state.list, position, size as usize) {
            Ok(bytes) => Ok(Some(bytes).filter(|bytes| bytes.as_slice().len() == size as usize)),
            Err(error) if error.is_damage() || error.is_gone() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Returns what the files of a queue say about the message at `offset`.
fn unit_of_file(
    state: &ReaderState,
    (topic, queue_id): (&str, i32),
    offset: i64,
) -> Result<Option<CqUnit>, StoreError> {
    let Some(queue) = state.queues.get(topic, queue_id).filter(|queue| !queue.is_empty()) else {
        return Ok(None);
    };
    let end = queue.max_offset_for(state.overlay_from)?;
    if !(queue.min_offset()..end).contains(&offset) {
        return Ok(None);
    }
    let mut units = Vec::new();
    match read_units(&queue, offset, end, 1, &mut units) {
        Err(error) if error.is_damage() => return Ok(None),
        read => read?,
    }
    let found = units.first().filter(|(found, _)| *found == offset);
    Ok(found.map(|(_, unit)| *unit))
}
