//! Reads of messages at single offsets of a queue, in any order.
//!
//! In the writing process, queue files and log are in memory. Such a read then waits mainly for memory, several times
//! in a row: for the unit, then for both ends of the record. If one call reads several messages, these waits overlap.
//! Next to a writer in another process, `reader::random` reads the files.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use mqstore_format::{CqUnit, RecordView};

use super::cursor::{belongs, is_hidden, place};
use super::query::read;
use super::view::{StoreView, View};
use crate::engine::Engine;
use mqstore_base::error::StoreError;
use mqstore_base::message::{RecordBytes, StoredRecord};
use mqstore_log::commit_log::{MappedPart, RecordReader};
use mqstore_log::consume_queue::{ConsumeQueue, MappedUnit};

/// Number of messages whose memory waits overlap.
const SIDE_BY_SIDE: usize = 16;

/// Returns the messages at `offsets` of a queue, in the given order; see [`crate::Store::message_at`].
pub(crate) fn messages_at(
    view: &StoreView,
    topic: &str,
    queue_id: i32,
    offsets: &[i64],
) -> Result<Vec<Option<StoredRecord>>, StoreError> {
    let mut found = view.messages_near(topic, queue_id, offsets)?;
    found.resize_with(offsets.len(), || None);
    if offsets.len() > 1 {
        let missing = offsets.iter().zip(&found).filter(|(_, found)| found.is_none());
        prefetch(&**view, topic, queue_id, missing.map(|(offset, _)| *offset));
    }
    for (offset, found) in offsets.iter().zip(&mut found) {
        if found.is_none() {
            *found = find_message(view, topic, queue_id, *offset)?;
        }
    }
    Ok(found)
}

/// Asks the system to fetch the messages at `offsets` that are probably not in memory.
fn prefetch(view: &dyn View, topic: &str, queue_id: i32, offsets: impl Iterator<Item = i64>) {
    let (mut places, mut units) = (Vec::new(), Vec::new());
    for offset in offsets {
        units.clear();
        // The reads find and report any error.
        if view.units(topic, queue_id, offset, 1, &mut units).is_ok() {
            places.extend(units.first().and_then(|(_, unit)| place(unit)));
        }
    }
    RecordReader::new(view.log(), view.list(), u64::MAX).prefetch(places.into_iter());
}

/// Returns the message at `offset`, from memory or disk.
fn find_message(
    view: &StoreView,
    topic: &str,
    queue_id: i32,
    offset: i64,
) -> Result<Option<StoredRecord>, StoreError> {
    let end = offset.saturating_add(1);
    let mut cursor = read(view, topic, queue_id, Some(offset), Some(end), None)?;
    if view.log().is_none() {
        cursor = cursor.raising();
    }
    if let Some(record) = cursor.next_batch(1)?.pop() {
        return Ok(Some(record));
    }
    let Some((min_offset, max_offset)) = view.bounds(topic, queue_id)? else { return Ok(None) };
    if offset < max_offset {
        return Ok(None);
    }
    Err(StoreError::OffsetOutOfRange { topic: topic.to_owned(), queue_id, offset, min_offset, max_offset })
}

impl Engine {
    /// Returns the messages that are valid and in memory, for a queue of plain units that no compaction replaces. `None`
    /// stands for any other message, which needs a normal read.
    pub(super) fn messages_in_memory(
        &self,
        topic: &str,
        queue_id: i32,
        offsets: &[i64],
    ) -> Result<Vec<Option<StoredRecord>>, StoreError> {
        self.catch_up()?;
        let mut found = Vec::with_capacity(offsets.len());
        let Some(queue) = self.queues.get(topic, queue_id).filter(|_| !self.keeps_newest(topic)) else {
            return Ok(found);
        };
        let mut parts = Vec::new();
        if let [offset] = offsets {
            self.push_side_by_side::<1>(&queue, topic, &[*offset], (&mut parts, None), &mut found);
        } else {
            let mut reader = RecordReader::new(Some(Arc::clone(&self.log)), self.log.list(), u64::MAX);
            for offsets in offsets.chunks(SIDE_BY_SIDE) {
                let pages = (&mut parts, Some(&mut reader));
                self.push_side_by_side::<SIDE_BY_SIDE>(&queue, topic, offsets, pages, &mut found);
            }
        }
        let hot = found.iter().flatten().count() as u64;
        self.log.read_counts().hot.fetch_add(hot, Ordering::Relaxed);
        Ok(found)
    }

    /// Adds the messages at up to `N` offsets, so that their waits for memory overlap. `reader` asks the system for
    /// pages that are not in memory.
    fn push_side_by_side<const N: usize>(
        &self,
        queue: &ConsumeQueue,
        topic: &str,
        offsets: &[i64],
        (parts, reader): (&mut Vec<MappedPart>, Option<&mut RecordReader>),
        found: &mut Vec<Option<StoredRecord>>,
    ) {
        let mut units: [Option<MappedUnit>; N] = [const { None }; N];
        for (unit, offset) in units.iter_mut().zip(offsets) {
            *unit = queue.mapped_unit(*offset);
        }
        let mut places: [Option<MemoryPlace>; N] = [const { None }; N];
        for (place, unit) in places.iter_mut().zip(&units) {
            *place = unit.as_ref().and_then(MappedUnit::unit).and_then(|unit| self.place(unit, parts));
        }
        if let Some(reader) = reader {
            reader.prefetch(places.iter().flatten().map(|place| (place.position, place.size)));
        }
        for (offset, place) in offsets.iter().zip(&places) {
            let at = (topic, queue.queue_id(), *offset);
            found.push(place.as_ref().and_then(|place| place.message(self, parts, at)));
        }
    }

    /// Returns the position of the record of `unit` in memory, and starts to fetch it into the cache.
    fn place(&self, unit: CqUnit, parts: &mut Vec<MappedPart>) -> Option<MemoryPlace> {
        let (position, size) = place(&unit)?;
        let known = parts.iter().position(|part| part.holds(position));
        if known.is_none() {
            parts.push(self.log.mapped(position)?);
        }
        let part = known.unwrap_or(parts.len() - 1);
        parts.get(part)?.prefetch(position, size);
        Some(MemoryPlace { part, position, size })
    }
}

/// A record in memory.
struct MemoryPlace {
    /// The index of the mapped part.
    part: usize,
    position: u64,
    size: u32,
}

impl MemoryPlace {
    /// Returns the record, if it is complete, belongs to this offset of this queue, and is not hidden.
    fn message(
        &self,
        view: &dyn View,
        parts: &[MappedPart],
        (topic, queue_id, offset): (&str, i32, i64),
    ) -> Option<StoredRecord> {
        let bytes = parts.get(self.part)?.prefetched(self.position, self.size)?;
        message_of(view, bytes, (self.position, self.size), (topic, queue_id, offset))
    }
}

/// Returns the message at `offset` of a queue, if `bytes` are its record: complete, at the place of the queue's unit
/// (position and size), not hidden, and of no inner batch.
pub(super) fn message_of(
    view: &dyn View,
    bytes: RecordBytes,
    (position, size): (u64, u32),
    (topic, queue_id, offset): (&str, i32, i64),
) -> Option<StoredRecord> {
    let record = RecordView::decode(bytes.as_slice()).ok()?;
    let whole = record.size == size && !record.sys_flag.inner_batch();
    (whole && belongs(&record, topic, queue_id, offset) && !is_hidden(view, &record, topic, position))
        .then(|| StoredRecord::decoded(bytes, position, offset))
}
