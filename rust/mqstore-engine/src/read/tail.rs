//! The newest messages of a topic, and the number of its messages.
//!
//! Never writes. Both can take long, so they call a function of the caller between two steps; its error ends them.

use std::path::Path;

use mqstore_format::topic::LIGHT_QUEUE_PREFIX;
use mqstore_format::{CqUnit, RecordView};

use super::cursor::{QueueCursor, is_hidden, place};
use super::merged::{TopicRead, cursor_from};
use super::query::{Boundary, TimeSearch, bounds, compacted, no_queue, time_offset};
use super::view::{StoreView, View, wanted_queue_ids};
use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_compaction::CompactedQueue;
use mqstore_log::commit_log::RecordReader;

/// Number of offsets of each queue in which the first step looks for messages: at least this number, and for all queues
/// together at least this multiple of the wanted messages.
const LEAST_BACK: usize = 4;
const SPREAD: usize = 2;

/// Factor between the numbers of offsets of two steps.
const FURTHER: i64 = 4;

/// Number of records that one step of a cursor returns, and of those it may read to find them.
const AT_ONCE: usize = 256;
const LOOKS: usize = 1024;

/// Number of units that one step counts.
const UNITS: usize = 4096;

/// Number of units that a count requests from the disk before it reads them: 8 MB.
const EXPECTED_UNITS: i64 = 400_000;

/// The part of a queue that was not read yet: from `min` to `read_from`, exclusive.
struct UnreadPart {
    queue_id: i32,
    min: i64,
    read_from: i64,
    /// Whether `min` is the oldest offset, also before the log.
    is_whole: bool,
}

/// A found record with its place in the order: by store time, then by log offset.
type Found = ((i64, u64), StoredRecord);

/// Returns the newest `most` messages that `read` selects, in order of their store time, then of their log offset.
/// The bounds of `read` are not used. It keeps at most about twice as many records in memory.
///
/// # Errors
/// [`StoreError::TopicNotFound`]; an error of `pause`.
pub(crate) fn tail(
    view: &StoreView,
    read: &TopicRead<'_>,
    most: usize,
    pause: &mut dyn FnMut() -> Result<(), StoreError>,
) -> Result<Vec<StoredRecord>, StoreError> {
    let limit = view.catch_up()?;
    let topic = read.topic;
    let mut parts = Vec::new();
    for queue_id in existing_queues(&**view, topic, read.queue_id)? {
        let (first, max) = bounds(view, topic, queue_id)?;
        let compacted = compacted(&**view, topic, queue_id, (first, max))?;
        let min = compacted.as_ref().map_or(first, CompactedQueue::min_offset);
        parts.push(UnreadPart { queue_id, min, read_from: max, is_whole: !view.continues() });
    }
    let back = (most.saturating_mul(SPREAD) / parts.len().max(1)).max(LEAST_BACK);
    let mut back = i64::try_from(back).unwrap_or(i64::MAX);
    let mut found: Vec<Found> = Vec::new();
    parts.retain(|part| most > 0 && (part.min < part.read_from || !part.is_whole));
    while !parts.is_empty() {
        for part in &mut parts {
            let start = part.read_from.saturating_sub(back).max(part.min);
            let (queue, range) = ((topic, part.queue_id), (start, Some(part.read_from)));
            let cursor = cursor_from((view, limit), queue, range, read.filter)?;
            // A record of several messages can begin before `start`.
            part.read_from = cursor.position().min(start);
            let cursor = cursor.on_damage(read.on_damage);
            read_part((&view.files().commit_log(), limit), cursor, &mut found, most, pause)?;
        }
        keep_newest(&mut found, most);
        let oldest = found.first().filter(|_| found.len() >= most).map(|((time, _), _)| *time);
        let mut unread = Vec::new();
        for part in parts {
            if let Some(part) = may_be_newer(view, limit, topic, part, oldest)? {
                unread.push(part);
            }
        }
        parts = unread;
        back = back.saturating_mul(FURTHER);
    }
    Ok(found.into_iter().map(|(_, record)| record).collect())
}

/// Adds the records of `cursor` before log offset `limit` to `found`, and keeps the newest `most` of all. The queues are
/// read one after the other, so a later one can have newer messages.
fn read_part(
    (log, limit): (&Path, u64),
    mut cursor: QueueCursor,
    found: &mut Vec<Found>,
    most: usize,
    pause: &mut dyn FnMut() -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    loop {
        let batch = cursor.next_of(AT_ONCE, LOOKS)?;
        if batch.records.is_empty() && batch.ended {
            return Ok(());
        }
        for record in batch.records {
            let at = record.commit_log_offset;
            if at >= limit && !cursor.has_compacted() {
                continue;
            }
            let view = record.view();
            let view = view.map_err(|error| StoreError::format(log, at, &error))?;
            let place = (view.store_timestamp, at);
            found.push((place, record));
        }
        if found.len() > most.saturating_mul(2).saturating_add(AT_ONCE) {
            keep_newest(found, most);
        }
        pause()?;
    }
}

/// Returns the unread part of a queue if it can have a message that was stored at `oldest` or later.
fn may_be_newer(
    view: &StoreView,
    limit: u64,
    topic: &str,
    mut part: UnreadPart,
    oldest: Option<i64>,
) -> Result<Option<UnreadPart>, StoreError> {
    let bounds = bounds(view, topic, part.queue_id)?;
    let is_newer = match oldest {
        None => true,
        Some(oldest) if part.read_from < bounds.0 && view.continues() => {
            let from = time_offset((view, limit), (topic, part.queue_id), oldest, Boundary::Lower)?;
            from < part.read_from
        }
        Some(oldest) => {
            let compacted = compacted(&**view, topic, part.queue_id, bounds)?;
            let mut times = TimeSearch::new(&**view, topic, part.queue_id, limit).with_compacted(compacted);
            times.at_or_after(part.read_from)?.is_none_or(|(_, time)| time >= oldest)
        }
    };
    if is_newer && part.read_from <= part.min && !part.is_whole {
        part.is_whole = true;
        part.min = view.oldest_offset(topic, part.queue_id, part.min)?;
    }
    Ok((is_newer && part.read_from > part.min).then_some(part))
}

/// Returns the number of messages that a read of the topic returns, without the bodies. A record that contains
/// several messages counts as one. For a light queue it reads the records before the highest floor.
///
/// # Errors
/// [`StoreError::TopicNotFound`]; damaged compaction files; an error of `pause`.
pub(crate) fn count(
    view: &StoreView,
    topic: &str,
    pause: &mut dyn FnMut() -> Result<(), StoreError>,
) -> Result<u64, StoreError> {
    let limit = view.catch_up()?;
    let mut light = LightUnits::new(&**view, topic, limit);
    let mut messages = 0;
    for queue_id in existing_queues(&**view, topic, None)? {
        messages += count_queue(view, (topic, queue_id), light.as_mut(), pause)?;
    }
    Ok(messages)
}

/// Returns the number of messages of a queue.
fn count_queue(
    view: &StoreView,
    (topic, queue_id): (&str, i32),
    mut light: Option<&mut LightUnits<'_>>,
    pause: &mut dyn FnMut() -> Result<(), StoreError>,
) -> Result<u64, StoreError> {
    let mut counts = |unit: &CqUnit| light.as_mut().is_none_or(|light| !light.is_hidden(unit));
    let (mut messages, mut units) = (0, Vec::new());
    let (mut from, max) = bounds(view, topic, queue_id)?;
    if let Some(older) = view.older_of(topic)? {
        messages += older.messages.count(&older.floors, topic, queue_id, from)?;
    }
    let compacted = compacted(&**view, topic, queue_id, (from, max))?;
    if let Some(compacted) = &compacted {
        for record in compacted.read(compacted.min_offset()) {
            if record?.queue_offset >= compacted.max_offset() {
                break;
            }
            messages += 1;
            if messages % LOOKS as u64 == 0 {
                pause()?;
            }
        }
        from = from.max(compacted.max_offset());
    }
    let mut expected = from;
    loop {
        if from >= expected {
            expected = from.saturating_add(EXPECTED_UNITS);
            view.prefetch_units(topic, queue_id, from, expected.min(max).saturating_sub(from));
        }
        units.clear();
        view.units(topic, queue_id, from, UNITS, &mut units)?;
        let has_gap =
            compacted.is_none() && from < max && units.first().is_none_or(|(offset, _)| *offset > from);
        if has_gap && view.continues() && bounds(view, topic, queue_id)?.0 > from {
            // Retention deleted some of the messages before they were counted: they are before the log now.
            return count_queue(view, (topic, queue_id), light, pause);
        }
        messages += units.iter().filter(|(offset, unit)| *offset < max && counts(unit)).count() as u64;
        match units.last() {
            Some((last, _)) if *last < max => from = last.saturating_add(1),
            _ => return Ok(messages),
        }
        pause()?;
    }
}

/// The units of a light queue in a store with floors: reads leave some of their records out.
struct LightUnits<'a> {
    view: &'a dyn View,
    topic: &'a str,
    reader: RecordReader,
    /// Log offset from which no record is hidden.
    floor: u64,
}

impl<'a> LightUnits<'a> {
    /// `None` if the minimum of each queue hides all that is hidden.
    fn new(view: &'a dyn View, topic: &'a str, limit: u64) -> Option<Self> {
        let floor = view.floors().highest();
        let reader = || RecordReader::new(view.log(), view.list(), limit).without_counting();
        let is_light = floor > 0 && topic.starts_with(LIGHT_QUEUE_PREFIX);
        is_light.then(|| Self { view, topic, reader: reader(), floor })
    }

    /// Whether the record of a unit is hidden. A damaged record is not: a read reports it.
    fn is_hidden(&mut self, unit: &CqUnit) -> bool {
        place(unit).filter(|(at, _)| *at < self.floor).is_some_and(|(at, size)| {
            self.reader.record(self.view.files(), at, size).is_ok_and(|bytes| {
                RecordView::decode(bytes.as_slice())
                    .is_ok_and(|record| is_hidden(self.view, &record, self.topic, at))
            })
        })
    }
}

/// Sorts the records, and drops all but the last `most`.
fn keep_newest(found: &mut Vec<Found>, most: usize) {
    found.sort_by_key(|(place, _)| *place);
    found.drain(..found.len().saturating_sub(most));
}

/// Returns the queues of `topic`, or only `queue_id`.
fn existing_queues(view: &dyn View, topic: &str, queue_id: Option<i32>) -> Result<Vec<i32>, StoreError> {
    let ids = wanted_queue_ids(view, topic, queue_id)?;
    if !ids.is_empty() {
        return Ok(ids);
    }
    let is_known = queue_id.is_some() && !view.queue_ids(topic)?.is_empty();
    Err(no_queue(topic, queue_id.filter(|_| is_known)))
}
