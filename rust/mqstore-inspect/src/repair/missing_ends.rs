//! Finds the offsets that a queue lost before its first and after its last remaining record.
//!
//! Owns the decision; reads the old queues before they are rebuilt, and writes nothing. The log alone shows only gaps
//! between records. At the begin and the end of a queue, units that point into damaged ranges show the loss:
//!
//! ```text
//! log     | ????????? | record 2 | record 3 | ????????? | zeros
//! queue     0     1       2           3         4           5
//!           lost          match the log         lost
//! ```
//!
//! Units count only next to a unit that matches its record, because a queue from another store proves nothing. In a log
//! that begins at offset 0, nothing expired. Then a queue without its offset 0 lost it to damage before its first
//! record.

use super::damage_scan::WalkedLog;
use super::queue_records::QueueEnds;
use crate::loss_report::LostOffsets;
use mqstore_base::error::StoreError;
use mqstore_log::consume_queue::{BatchQueue, ConsumeQueue, QueueSet};

/// Number of units in one read.
const UNITS_AT_ONCE: i64 = 4096;

/// Returns the offsets that are lost at the ends of queues. `log_min` is the begin of the log.
pub(crate) fn lost_at_ends(
    walked: &WalkedLog,
    queues: &QueueSet,
    log_min: u64,
) -> Result<Vec<LostOffsets>, StoreError> {
    let mut found = Vec::new();
    let floors = queues.floors().now();
    if log_min == 0 {
        for (topic, ids) in &walked.said.edges {
            for (queue_id, QueueEnds { first: (offset, place), .. }) in ids {
                // A queue of a topic that was deleted before begins there.
                let begin = floors.first_offset(topic, *queue_id);
                if *offset > begin && walked.pieces.iter().any(|piece| piece.from < *place) {
                    found.push(LostOffsets {
                        topic: topic.clone(),
                        queue_id: *queue_id,
                        from: begin,
                        to: *offset,
                    });
                }
            }
        }
    }
    for queue in queues.all().iter().filter(|queue| queue.damaged().is_none()) {
        of_queue(walked, (queue.topic(), queue.queue_id()), &Entries::Plain(queue), log_min, &mut found)?;
    }
    for queue in queues.batches().iter().filter(|queue| queue.damaged().is_none()) {
        of_queue(walked, (queue.topic(), queue.queue_id()), &Entries::Batch(queue), log_min, &mut found)?;
    }
    found.sort();
    found.dedup();
    Ok(found)
}

fn of_queue(
    walked: &WalkedLog,
    (topic, queue_id): (&str, i32),
    queue: &Entries<'_>,
    log_min: u64,
    found: &mut Vec<LostOffsets>,
) -> Result<(), StoreError> {
    let edge = walked.said.edges.get(topic).and_then(|ids| ids.get(&queue_id)).copied();
    let ranges = [lost_before_first(walked, queue, edge, log_min)?, end(walked, queue, edge)?];
    for (from, to) in ranges.into_iter().flatten() {
        found.push(LostOffsets { topic: topic.to_owned(), queue_id, from, to });
    }
    Ok(())
}

/// Adds offsets before the first record; for a queue without records, all that pointed into damage.
fn lost_before_first(
    walked: &WalkedLog,
    queue: &Entries<'_>,
    edge: Option<QueueEnds>,
    log_min: u64,
) -> Result<Option<(i64, i64)>, StoreError> {
    if edge.is_some() && log_min == 0 {
        return Ok(None);
    }
    let (min, max) = queue.bounds();
    let to = edge.map_or(max, |edge| edge.first.0);
    if !queue.agrees(edge.map(|edge| edge.first))? {
        return Ok(None);
    }
    let mut range: Option<(i64, i64)> = None;
    queue.each(min, to, |entry| {
        if walked.is_damaged(entry.place, entry.place + 1) {
            range = Some((range.map_or(entry.from, |(from, _)| from), entry.to));
        }
    })?;
    Ok(range.map(|(from, last)| (from, if edge.is_some() { to } else { last })))
}

/// Adds offsets after the last record.
fn end(
    walked: &WalkedLog,
    queue: &Entries<'_>,
    edge: Option<QueueEnds>,
) -> Result<Option<(i64, i64)>, StoreError> {
    let (_, max) = queue.bounds();
    let Some(edge) = edge.filter(|edge| edge.end < max) else { return Ok(None) };
    if !queue.agrees(Some(edge.last))? {
        return Ok(None);
    }
    let from = edge.end;
    let mut to = from;
    queue.each(from, max, |entry| {
        if walked.is_damaged(entry.place, entry.place + 1) || entry.place >= walked.end {
            to = entry.to;
        }
    })?;
    Ok((to > from).then_some((from, to)))
}

/// A unit that points to a place in the log: its offsets, and the log offset.
struct UnitRange {
    from: i64,
    to: i64,
    place: u64,
}

/// The units of a queue of either kind.
enum Entries<'a> {
    Plain(&'a ConsumeQueue),
    Batch(&'a BatchQueue),
}

impl Entries<'_> {
    fn bounds(&self) -> (i64, i64) {
        match self {
            Self::Plain(queue) => (queue.min_offset(), queue.max_offset()),
            Self::Batch(queue) => (queue.min_offset(), queue.max_offset()),
        }
    }

    /// Whether the queue has a unit that points to `record`. A queue without a record cannot be checked.
    fn agrees(&self, record: Option<(i64, u64)>) -> Result<bool, StoreError> {
        let Some((offset, place)) = record else { return Ok(true) };
        let mut same = false;
        self.each(offset, offset.saturating_add(1), |entry| same = entry.place == place)?;
        Ok(same)
    }

    /// Visits the units that begin from `from` to before `to`.
    fn each(&self, from: i64, to: i64, visit: impl FnMut(&UnitRange)) -> Result<(), StoreError> {
        let (min, max) = self.bounds();
        let (from, to) = (from.max(min), to.min(max));
        match self {
            Self::Plain(queue) => each_plain(queue, from, to, visit),
            Self::Batch(queue) => each_batch(queue, from, to, visit),
        }
    }
}

fn each_plain(
    queue: &ConsumeQueue,
    mut from: i64,
    to: i64,
    mut visit: impl FnMut(&UnitRange),
) -> Result<(), StoreError> {
    let mut units = Vec::new();
    while from < to {
        units.clear();
        // A missing file gives no information.
        if !is_readable(queue.read(from, UNITS_AT_ONCE.min(to - from) as usize, &mut units))? {
            units.clear();
        }
        for (offset, unit) in (from..to).zip(&units) {
            if let Ok(place) = u64::try_from(unit.physical_offset)
                && !unit.is_blank()
                && unit.size > 0
            {
                visit(&UnitRange { from: offset, to: offset + 1, place });
            }
        }
        from += UNITS_AT_ONCE;
    }
    Ok(())
}

fn each_batch(
    queue: &BatchQueue,
    mut from: i64,
    to: i64,
    mut visit: impl FnMut(&UnitRange),
) -> Result<(), StoreError> {
    while from < to {
        let mut next = None;
        let read = queue.read_units(from, UNITS_AT_ONCE as usize, u64::MAX, |unit| {
            next = Some(unit.next_offset());
            if let Ok(place) = u64::try_from(unit.physical_offset)
                && unit.base_offset < to
            {
                visit(&UnitRange { from: unit.base_offset, to: unit.next_offset(), place });
            }
        });
        match next.filter(|next| *next > from) {
            Some(next) if is_readable(read)? => from = next,
            _ => return Ok(()),
        }
    }
    Ok(())
}

/// Whether the read succeeded; damaged or missing bytes give no information.
fn is_readable(read: Result<(), StoreError>) -> Result<bool, StoreError> {
    match read {
        Err(error @ StoreError::Io { .. }) => Err(error),
        read => Ok(read.is_ok()),
    }
}
