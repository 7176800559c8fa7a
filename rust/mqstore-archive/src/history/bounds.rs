//! Offsets of queues in an archive.

use mqstore_base::error::StoreError;
use mqstore_base::topic_floors::FloorTable;

use super::{Damage, History, QueueRange};
use crate::reader::{Fact, QueuePart};

impl History {
    /// Returns the smallest offset of a queue in the archive that is not hidden; `None` if there is none. Records before
    /// log offset `least` do not count either.
    ///
    /// # Errors
    /// The archive is damaged or does not answer.
    pub(super) fn first_from(
        &self,
        floors: &FloorTable,
        topic: &str,
        queue_id: i32,
        least: u64,
    ) -> Result<Option<i64>, StoreError> {
        let floor = least.max(floors.log_offset(topic));
        for part in self.shown_parts(topic, queue_id, floor)? {
            // Records that are no messages have the offset 0.
            if part.file.start >= floor && (part.rows.first != 0 || part.is_dense()) {
                return Ok(Some(part.rows.first));
            }
            let row = part.first_row_at(&self.reader, floor, None)?;
            if row < part.end_row() {
                return part.offset_of(&self.reader, row).map(Some);
            }
        }
        Ok(None)
    }

    /// Returns the number of messages of a queue that are not hidden and have offsets before `end`. A record that contains
    /// several messages counts as one.
    pub(super) fn records_before(
        &self,
        floors: &FloorTable,
        topic: &str,
        queue_id: i32,
        end: i64,
    ) -> Result<u64, StoreError> {
        let floor = floors.log_offset(topic);
        let mut count = 0;
        for part in self.shown_parts(topic, queue_id, floor)? {
            // Records that are no messages have the offset 0.
            if part.file.start >= floor && part.rows.last < end && part.is_dense() {
                count += part.rows.rows;
                continue;
            }
            let facts = self.reader.facts(&part.file, &(floor..u64::MAX))?;
            let is_counted = |fact: &&Fact| fact.queue_id == queue_id && fact.queue_offset < end;
            count += facts.iter().filter(is_counted).count() as u64;
        }
        Ok(count)
    }

    /// Returns the offset of the first message of a queue that was stored at or after a time.
    ///
    /// # Errors
    /// As for [`OlderMessages::first_offset`](mqstore_engine::OlderMessages::first_offset).
    pub(super) fn first_at_time(
        &self,
        floors: &FloorTable,
        topic: &str,
        queue_id: i32,
        time_ms: i64,
    ) -> Result<Option<i64>, StoreError> {
        let floor = floors.log_offset(topic);
        for part in self.shown_parts(topic, queue_id, floor)? {
            if part.file.last_ms.is_none_or(|last| last >= time_ms) {
                let row = part.first_row_at(&self.reader, floor, Some(time_ms))?;
                if row < part.end_row() {
                    return part.offset_of(&self.reader, row).map(Some);
                }
            }
        }
        Ok(None)
    }

    /// Returns the offset of the last message of a queue before offset `end` that was stored at or before a time.
    ///
    /// # Errors
    /// As for [`OlderMessages::first_offset`](mqstore_engine::OlderMessages::first_offset).
    pub(super) fn last_before(
        &self,
        floors: &FloorTable,
        topic: &str,
        queue_id: i32,
        time_ms: i64,
        end: i64,
    ) -> Result<Option<i64>, StoreError> {
        let (reader, floor) = (&self.reader, floors.log_offset(topic));
        for part in self.shown_parts(topic, queue_id, floor)?.iter().rev() {
            if part.file.first_ms.is_some_and(|first| first > time_ms) || part.rows.first >= end {
                continue;
            }
            let after = part.first_row_at(reader, floor, time_ms.checked_add(1))?;
            let row = after.min(part.end_row_of(reader, end)?);
            if let Some(before) = part.row_before(reader, row)?
                && before >= part.first_row_at(reader, floor, None)?
            {
                return part.offset_of(reader, before).map(Some);
            }
        }
        Ok(None)
    }

    /// Returns the parts of a queue with records at or after a log offset. The first of them can have older ones too.
    pub(super) fn shown_parts(
        &self,
        topic: &str,
        queue_id: i32,
        floor: u64,
    ) -> Result<Vec<QueuePart>, StoreError> {
        let mut parts = self.reader.parts(topic, queue_id)?;
        parts.retain(|part| part.file.end > floor);
        Ok(parts)
    }

    /// Returns the parts of a queue with a range of offsets, oldest first. The range ends where the log begins, at log
    /// offset `log_start`.
    ///
    /// # Errors
    /// The archive is damaged or does not answer; segments of the range are missing, unless damage is skipped.
    pub fn parts_of(
        &self,
        floors: &FloorTable,
        topic: &str,
        wanted: QueueRange,
        log_start: u64,
        damage: &mut Damage,
    ) -> Result<Vec<QueuePart>, StoreError> {
        let mut parts = self.shown_parts(topic, wanted.queue_id, floors.log_offset(topic))?;
        parts.retain(|part| part.rows.first < wanted.end);
        let next = parts.iter().skip(1).map(|part| part.rows.first).chain([wanted.end]);
        // A batch at the end of a part can contain later offsets than that of its record.
        let is_kept: Vec<bool> = parts
            .iter()
            .zip(next)
            .map(|(part, next)| part.rows.last >= wanted.start || next > wanted.start)
            .collect();
        let kept: Vec<QueuePart> =
            parts.into_iter().zip(is_kept).filter(|(_, is_kept)| *is_kept).map(|(part, _)| part).collect();
        for pair in kept.windows(2) {
            let [before, after] = pair else { continue };
            if after.rows.first > before.rows.last + 1 && after.rows.first > wanted.start {
                self.check_covered(topic, before, after.file.start, after.rows.first, damage)?;
            }
        }
        if let Some(last) = kept.last().filter(|last| last.rows.last + 1 < wanted.end) {
            self.check_covered(topic, last, log_start, wanted.end, damage)?;
        }
        Ok(kept)
    }

    fn check_covered(
        &self,
        topic: &str,
        part: &QueuePart,
        end: u64,
        offset: i64,
        damage: &mut Damage,
    ) -> Result<(), StoreError> {
        if self.reader.covers(part.file.end, end)? {
            return Ok(());
        }
        let reason = format!(
            "neither the archive nor the log has the segments from log offset {} to {end}, so messages between offset \
             {} and {offset} of queue {topic}/{} are missing; read from offset {offset} on",
            part.file.end, part.rows.last, part.rows.queue_id,
        );
        damage.pass(&self.reader, &reason)
    }
}
