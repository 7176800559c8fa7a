//! What was lost before the first and behind the last record that a queue still has.
//!
//! Owns the judgement; reads the queues as they were before they are made anew, and writes nothing. The log alone tells of
//! gaps between records. At the begin and at the end of a queue the entries tell that lead into what was lost:
//!
//! ```text
//! log     | ????????? | record 2 | record 3 | ????????? | zeros
//! queue     0     1       2           3         4           5
//!           lost          agree with the log    lost
//! ```
//!
//! Entries count only next to one that agrees with its record: a queue of another store says nothing. In a log that begins
//! at offset 0 nothing expired, so that a queue without its offset 0 lost it to damage before its first record.

use std::collections::BTreeMap;

use super::LostOffsets;
use super::walk::Walked;
use crate::consume_queue::{ConsumeQueue, QueueSet};
use crate::error::StoreError;

/// Entries that are read at once.
const UNITS_AT_ONCE: i64 = 4096;

/// The first and the last record of a queue: queue offset, and place in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Edge {
    pub(super) first: (i64, u64),
    pub(super) last: (i64, u64),
}

impl Edge {
    /// Takes a record in; those of a log come in its order.
    pub(super) fn add(edge: &mut Option<Self>, offset: i64, place: u64) {
        let here = (offset, place);
        match edge {
            None => *edge = Some(Self { first: here, last: here }),
            Some(edge) => {
                edge.first = edge.first.min(here);
                if offset > edge.last.0 {
                    edge.last = here;
                }
            }
        }
    }
}

/// The queues' first and last records.
pub(super) type Edges = BTreeMap<String, BTreeMap<i32, Edge>>;

/// Offsets that are lost at the edges of queues. `log_min` is where the log begins.
pub(super) fn lost(walked: &Walked, queues: &QueueSet, log_min: u64) -> Result<Vec<LostOffsets>, StoreError> {
    let mut found = Vec::new();
    if log_min == 0 {
        for (topic, ids) in &walked.edges {
            for (queue_id, Edge { first: (offset, place), .. }) in ids {
                if *offset > 0 && walked.pieces.iter().any(|piece| piece.from < *place) {
                    found.push(LostOffsets {
                        topic: topic.clone(),
                        queue_id: *queue_id,
                        from: 0,
                        to: *offset,
                    });
                }
            }
        }
    }
    for queue in queues.all() {
        if queue.damaged().is_some() {
            continue;
        }
        let (topic, queue_id) = (queue.topic(), queue.queue_id());
        let edge = walked.edges.get(topic).and_then(|ids| ids.get(&queue_id)).copied();
        let ranges = [begin(walked, &queue, edge, log_min)?, end(walked, &queue, edge)?];
        for (from, to) in ranges.into_iter().flatten() {
            found.push(LostOffsets { topic: topic.to_owned(), queue_id, from, to });
        }
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// Offsets before the first record; of a queue without one, all that led into damage.
fn begin(
    walked: &Walked,
    queue: &ConsumeQueue,
    edge: Option<Edge>,
    log_min: u64,
) -> Result<Option<(i64, i64)>, StoreError> {
    if edge.is_some() && log_min == 0 {
        return Ok(None);
    }
    let to = edge.map_or(queue.max_offset(), |edge| edge.first.0);
    if !agrees(queue, edge.map(|edge| edge.first))? {
        return Ok(None);
    }
    let mut range: Option<(i64, i64)> = None;
    each(queue, queue.min_offset(), to, |offset, place| {
        if is_damaged(walked, place) {
            range = Some((range.map_or(offset, |(from, _)| from), offset + 1));
        }
    })?;
    Ok(range.map(|(from, last)| (from, if edge.is_some() { to } else { last })))
}

/// Offsets behind the last record.
fn end(walked: &Walked, queue: &ConsumeQueue, edge: Option<Edge>) -> Result<Option<(i64, i64)>, StoreError> {
    let Some(edge) = edge.filter(|edge| edge.last.0 + 1 < queue.max_offset()) else { return Ok(None) };
    if !agrees(queue, Some(edge.last))? {
        return Ok(None);
    }
    let from = edge.last.0 + 1;
    let mut to = from;
    each(queue, from, queue.max_offset(), |offset, place| {
        if is_damaged(walked, place) || place >= walked.end {
            to = offset + 1;
        }
    })?;
    Ok((to > from).then_some((from, to)))
}

fn is_damaged(walked: &Walked, place: u64) -> bool {
    let behind = walked.pieces.partition_point(|piece| piece.from <= place);
    behind.checked_sub(1).and_then(|at| walked.pieces.get(at)).is_some_and(|piece| place < piece.to)
}

/// Whether the queue has an entry for a record that leads to it; a queue without a record has none to be asked for.
fn agrees(queue: &ConsumeQueue, record: Option<(i64, u64)>) -> Result<bool, StoreError> {
    let Some((offset, place)) = record else { return Ok(true) };
    let mut same = false;
    each(queue, offset, offset + 1, |_, found| same = found == place)?;
    Ok(same)
}

/// Visits the entries from `from` to before `to` that lead somewhere.
fn each(queue: &ConsumeQueue, from: i64, to: i64, mut visit: impl FnMut(i64, u64)) -> Result<(), StoreError> {
    let to = to.min(queue.max_offset());
    let (mut from, mut units) = (from.max(queue.min_offset()), Vec::new());
    while from < to {
        units.clear();
        match queue.read(from, UNITS_AT_ONCE.min(to - from) as usize, &mut units) {
            Err(error @ StoreError::Io { .. }) => return Err(error),
            // A file that is missing says nothing.
            Err(_) => units.clear(),
            Ok(()) => {}
        }
        for (offset, unit) in (from..to).zip(&units) {
            if let Ok(place) = u64::try_from(unit.physical_offset)
                && !unit.is_blank()
                && unit.size > 0
            {
                visit(offset, place);
            }
        }
        from += UNITS_AT_ONCE;
    }
    Ok(())
}
