//! Look-ups of messages: by queue, log offset, id, key and time.

use mqstore_format::delays::timer::TIMER_TOPIC;
use mqstore_format::topic::{DLQ_TOPIC_PREFIX, HALF_TOPIC, RETRY_TOPIC_PREFIX, is_system_topic};
use mqstore_format::{CqUnit, RecordView, SCHEDULE_TOPIC, index_key_hash, parse_offset_message_id};

use super::cursor::{NextRecord, QueueCursor, is_hidden, next_record, place, skip_damage};
use super::lookup::{KeyQuery, LogLookup, LookupCursor};
use super::view::{StoreView, View};
use mqstore_base::error::StoreError;
use mqstore_base::message::{MessageFilter, StoredRecord};
use mqstore_compaction::CompactedQueue;
use mqstore_log::commit_log::{LogScanner, RecordReader, ScanChecks};

/// Which offset a look-up by time returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boundary {
    /// The first offset whose store time is not before the given time.
    Lower,
    /// The last offset whose store time is not after the given time.
    Upper,
}

/// One queue of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueInfo {
    /// The queue.
    pub queue_id: i32,
    /// The smallest offset that can be read.
    pub min_offset: i64,
    /// One more than the largest offset that can be read.
    pub max_offset: i64,
    /// Store time of the first message, in epoch milliseconds.
    pub min_store_timestamp_ms: Option<i64>,
    /// Store time of the last message, in epoch milliseconds.
    pub max_store_timestamp_ms: Option<i64>,
}

/// Returns the queues of `topic` with their bounds.
pub(crate) fn queues(view: &StoreView, topic: &str) -> Result<Vec<QueueInfo>, StoreError> {
    let limit = view.catch_up()?;
    let ids = view.queue_ids(topic)?;
    if ids.is_empty() {
        return Err(no_queue(topic, None));
    }
    let mut infos = Vec::with_capacity(ids.len());
    for queue_id in ids {
        let (first, max_offset) = view.bounds(topic, queue_id)?.unwrap_or((0, 0));
        let compacted = compacted(&**view, topic, queue_id, (first, max_offset))?;
        let min_offset = compacted.as_ref().map_or(first, CompactedQueue::min_offset);
        let mut times = TimeSearch::new(&**view, topic, queue_id, limit).with_compacted(compacted);
        infos.push(QueueInfo {
            queue_id,
            min_offset,
            max_offset,
            min_store_timestamp_ms: times.at_or_after(min_offset)?.map(|(_, time)| time),
            max_store_timestamp_ms: times.last(min_offset, max_offset)?,
        });
    }
    Ok(infos)
}

/// Returns the smallest offset of a queue that can be read, and one more than the largest.
///
/// # Errors
/// [`StoreError::TopicNotFound`].
pub(crate) fn readable_bounds(
    view: &StoreView,
    topic: &str,
    queue_id: i32,
) -> Result<(i64, i64), StoreError> {
    view.catch_up()?;
    let (first, max_offset) = bounds(view, topic, queue_id)?;
    let compacted = compacted(&**view, topic, queue_id, (first, max_offset))?;
    Ok((compacted.as_ref().map_or(first, CompactedQueue::min_offset), max_offset))
}

/// Returns a cursor on the messages of a queue from `start` (default: the oldest one) up to `end` (exclusive; default:
/// the current maximum) that match `filter`. In a compacted queue, `start` can be any offset up to the maximum: if
/// that message was dropped, the read starts at the next one.
///
/// # Errors
/// [`StoreError::TopicNotFound`]; [`StoreError::OffsetOutOfRange`] if `start` is before the oldest message or above the
/// maximum.
pub(crate) fn read(
    view: &StoreView,
    topic: &str,
    queue_id: i32,
    start: Option<i64>,
    end: Option<i64>,
    filter: Option<&MessageFilter>,
) -> Result<QueueCursor, StoreError> {
    let limit = view.catch_up()?;
    queue_cursor((view, limit), (topic, queue_id), (start, end), filter)
}

/// Like [`read`], with a view that has caught up to log offset `limit`.
pub(crate) fn queue_cursor(
    (view, limit): (&StoreView, u64),
    (topic, queue_id): (&str, i32),
    (start, end): (Option<i64>, Option<i64>),
    filter: Option<&MessageFilter>,
) -> Result<QueueCursor, StoreError> {
    let (first, max_offset) = bounds(view, topic, queue_id)?;
    let compacted = compacted(&**view, topic, queue_id, (first, max_offset))?;
    let min_offset = compacted.as_ref().map_or(first, CompactedQueue::min_offset);
    let to_newest = end.is_none();
    let end = end.unwrap_or(max_offset).min(max_offset);
    let cursor =
        |first| QueueCursor::new(view.clone(), topic, queue_id, (first, end), filter.cloned(), limit);
    let lowest = if compacted.is_some() { 0 } else { min_offset };
    let mut oldest = min_offset;
    if start.is_none_or(|start| start < lowest) {
        oldest = view.oldest_offset(topic, queue_id, min_offset)?;
        if oldest < min_offset && start.is_none_or(|start| start >= oldest) {
            return Ok(cursor(start.unwrap_or(oldest)).before_log(min_offset));
        }
    }
    let first = start.unwrap_or(min_offset);
    if first < lowest || first > max_offset {
        let (topic, offset, min_offset) = (topic.to_owned(), first, oldest);
        return Err(StoreError::OffsetOutOfRange { topic, queue_id, offset, min_offset, max_offset });
    }
    let cursor = cursor(view.start_of(topic, queue_id, first)?);
    Ok(match &compacted {
        Some(compacted) => cursor.with_compacted(compacted, to_newest),
        None => cursor,
    })
}

/// Returns the queue offset below which [`read`] uses the compaction files of a queue, and from which it
/// uses the commit log; `None` if the queue has no compaction files.
///
/// # Errors
/// [`StoreError::TopicNotFound`]; I/O errors; damaged compaction files.
pub(crate) fn compacted_end(view: &StoreView, topic: &str, queue_id: i32) -> Result<Option<i64>, StoreError> {
    view.catch_up()?;
    let bounds = bounds(view, topic, queue_id)?;
    Ok(compacted(&**view, topic, queue_id, bounds)?.map(|queue| queue.max_offset()))
}

/// Returns the compaction files of a queue with these bounds, for compaction topics.
pub(crate) fn compacted(
    view: &dyn View,
    topic: &str,
    queue_id: i32,
    bounds: (i64, i64),
) -> Result<Option<CompactedQueue>, StoreError> {
    if !view.keeps_newest(topic) {
        return Ok(None);
    }
    match CompactedQueue::open(view.files(), topic, queue_id)? {
        // A stop left the files of a topic that was deleted since.
        Some(queue) if queue.max_offset() <= view.floors().first_offset(topic, queue_id) => Ok(None),
        Some(queue) => queue.without_copies(view.manifests(), bounds),
        None => Ok(None),
    }
}

/// Returns the record at a log offset.
///
/// # Errors
/// [`StoreError::Corrupt`] if no record starts there, if its topic was deleted since, or if the retention of the
/// topic hides it.
pub(crate) fn get_at(view: &StoreView, commit_log_offset: u64) -> Result<StoredRecord, StoreError> {
    let found = get_at_in_log(view, commit_log_offset);
    let is_before = || view.continues() && commit_log_offset < view.list().min_offset();
    match found {
        Err(error @ StoreError::Corrupt { .. }) if is_before() => match view.older()? {
            Some(older) => older.messages.at(&older.floors, commit_log_offset)?.ok_or(error),
            None => Err(error),
        },
        found => found,
    }
}

fn get_at_in_log(view: &StoreView, commit_log_offset: u64) -> Result<StoredRecord, StoreError> {
    let record = any_record_at(view, commit_log_offset)?;
    let floors = view.floors();
    if let Ok(found) = record.view()
        && (floors.hides(found.topic, commit_log_offset) || found.is_placeholder())
    {
        let reason = if found.is_placeholder() {
            "the record was removed, and a placeholder is in its place"
        } else if commit_log_offset < floors.deleted(found.topic) {
            "the topic of the record was deleted"
        } else {
            "the retention of its topic hides the record"
        };
        return Err(StoreError::corrupt(&view.files().commit_log(), commit_log_offset, reason.to_owned()));
    }
    Ok(record)
}

/// Like [`get_at`], also for records of deleted topics.
pub(crate) fn any_record_at(view: &StoreView, commit_log_offset: u64) -> Result<StoredRecord, StoreError> {
    let limit = view.catch_up()?;
    let place = || view.files().commit_log();
    if commit_log_offset >= limit {
        let reason = format!("no record starts here; the log ends at {limit}");
        return Err(StoreError::corrupt(&place(), commit_log_offset, reason));
    }
    let deleted = |min: u64| {
        let reason =
            format!("no record starts here; the log begins at {min}, and earlier segments were removed");
        StoreError::corrupt(&place(), commit_log_offset, reason)
    };
    let list = view.list();
    if commit_log_offset < list.min_offset() {
        return Err(deleted(list.min_offset()));
    }
    let mut reader = RecordReader::new(view.log(), list, limit);
    let bytes = match reader.record_at(view.files(), commit_log_offset) {
        Err(error) if error.is_gone() => {
            view.catch_up()?;
            let min = view.list().min_offset();
            return Err(if commit_log_offset < min { deleted(min) } else { error });
        }
        read => read?,
    };
    StoredRecord::new(bytes, commit_log_offset, None)
        .map_err(|error| StoreError::format(&place(), commit_log_offset, &error))
}

/// Returns the record with an offset message id or a unique key; `None` if there is none. Of several records with the
/// unique key, returns the message that consumers get, else a dead letter or retry, else the newest record in which a
/// message waits or waited.
pub(crate) fn get(view: &StoreView, id: &str) -> Result<Option<StoredRecord>, StoreError> {
    let found = get_in_log(view, id)?;
    // With another unique id, it is the message with this message id.
    let is_answer = |record: &StoredRecord| {
        record.view().is_ok_and(|found| {
            found.unique_key() != Some(id) || RecordRank::of(found.topic) == RecordRank::Message
        })
    };
    if found.as_ref().is_some_and(is_answer) {
        return Ok(found);
    }
    let Some(older) = view.older()? else { return Ok(found) };
    // The log can have the dead letter of a message that is before the log.
    let mut best = BestMatch::default();
    for record in [found, older.messages.by_id(&older.floors, id, older.log_start)?].into_iter().flatten() {
        best.add(record);
    }
    Ok(best.into_record())
}

fn get_in_log(view: &StoreView, id: &str) -> Result<Option<StoredRecord>, StoreError> {
    if let Ok((host, offset)) = parse_offset_message_id(id) {
        let record = u64::try_from(offset).ok().and_then(|offset| get_at_in_log(view, offset).ok());
        let own = |record: &StoredRecord| record.view().is_ok_and(|view| view.store_host == host);
        if let Some(record) = record.filter(own) {
            return Ok(Some(record));
        }
    }
    get_by_unique_key(view, id)
}

fn get_by_unique_key(view: &StoreView, id: &str) -> Result<Option<StoredRecord>, StoreError> {
    let limit = view.catch_up()?;
    let (mut scan_from, floors) = (limit, view.floors());
    let wanted = |record: &RecordView<'_>, offset: u64| {
        record.unique_key() == Some(id) && !floors.hides(record.topic, offset)
    };
    let mut best = BestMatch::default();
    let mut reader = RecordReader::new(view.log(), view.list(), limit);
    for topic in view.topics()? {
        let Some((offsets, complete_to)) = view.candidates(index_key_hash(&topic, id))? else {
            scan_from = view.list().min_offset();
            break;
        };
        scan_from = scan_from.min(complete_to);
        for offset in offsets {
            let Ok(bytes) = reader.record_at(view.files(), offset) else { continue };
            let Ok(record) = StoredRecord::new(bytes, offset, None) else { continue };
            if record.view().is_ok_and(|view| wanted(&view, offset)) && best.add(record) {
                return Ok(best.into_record());
            }
        }
    }
    let mut scanner = LogScanner::new(view.list(), scan_from, limit, ScanChecks { crc: true });
    loop {
        match next_record(&**view, &mut scanner, limit, wanted)? {
            NextRecord::Record(offset, bytes) => {
                let record = StoredRecord::new(bytes, offset, None)
                    .map_err(|error| StoreError::format(&view.files().commit_log(), offset, &error))?;
                if best.add(record) {
                    return Ok(best.into_record());
                }
            }
            NextRecord::Deleted(_) => {}
            NextRecord::Damaged(damage) => drop(skip_damage(&mut scanner, &damage)?),
            NextRecord::End => return Ok(best.into_record()),
        }
    }
}

/// Returns a cursor on the messages of `topic` that have `key` as one of their keys or as their unique key, oldest
/// first, stored in `start_ms..=end_ms`, at most `limit`.
///
/// # Errors
/// [`StoreError::TopicNotFound`].
pub(crate) fn lookup(
    view: &StoreView,
    topic: &str,
    key: &str,
    start_ms: Option<i64>,
    end_ms: Option<i64>,
    limit: Option<usize>,
) -> Result<LookupCursor, StoreError> {
    let end = view.catch_up()?;
    let (offsets, scan_from) = match view.candidates(index_key_hash(topic, key))? {
        Some((offsets, complete_to)) => (offsets, complete_to),
        None => (Vec::new(), view.list().min_offset()),
    };
    let floor = view.floors().log_offset(topic);
    // A topic with hits exists, unless it was deleted.
    if (offsets.is_empty() || floor > 0) && view.queue_ids(topic)?.is_empty() {
        return Err(no_queue(topic, None));
    }
    let scanner =
        (scan_from < end).then(|| LogScanner::new(view.list(), scan_from, end, ScanChecks { crc: true }));
    let log = LogLookup {
        reader: RecordReader::new(view.log(), view.list(), end),
        view: view.clone(),
        wanted: KeyQuery {
            topic: topic.to_owned(),
            key: key.to_owned(),
            floor,
            start_ms: start_ms.unwrap_or(i64::MIN),
            end_ms: end_ms.unwrap_or(i64::MAX),
        },
        to_turn: false,
        offsets: offsets.into(),
        expected: 0,
        scanner,
        limit: end,
    };
    Ok(LookupCursor::new(log, limit.unwrap_or(usize::MAX)))
}

/// Returns the offset in a queue for a store time; see [`Boundary`]. For a time before the first message, the
/// result is the minimum. For a time after the last message, it is the maximum for [`Boundary::Lower`] and the last
/// offset for [`Boundary::Upper`], as in RocketMQ.
pub(crate) fn offset_for_time(
    view: &StoreView,
    topic: &str,
    queue_id: i32,
    time_ms: i64,
    boundary: Boundary,
) -> Result<i64, StoreError> {
    let limit = view.catch_up()?;
    time_offset((view, limit), (topic, queue_id), time_ms, boundary)
}

/// Like [`offset_for_time`], with a view that has caught up to log offset `limit`.
pub(crate) fn time_offset(
    (view, limit): (&StoreView, u64),
    (topic, queue_id): (&str, i32),
    time_ms: i64,
    boundary: Boundary,
) -> Result<i64, StoreError> {
    let (first, max) = bounds(view, topic, queue_id)?;
    let compacted = compacted(&**view, topic, queue_id, (first, max))?;
    let min = compacted.as_ref().map_or(first, CompactedQueue::min_offset);
    let mut search = TimeSearch::new(&**view, topic, queue_id, limit).with_compacted(compacted);
    // The first offset whose time is not before (Lower) or is after (Upper) the given time.
    let low = search.first_offset((min, max), &|time| match boundary {
        Boundary::Lower => time < time_ms,
        Boundary::Upper => time <= time_ms,
    })?;
    let found = match boundary {
        Boundary::Lower => search.at_or_after(low)?.map_or(max, |(offset, _)| offset),
        Boundary::Upper => search.at_or_before(low - 1, min)?.unwrap_or(min),
    };
    if found > first && view.continues() && found <= bounds(view, topic, queue_id)?.0 {
        // Retention deleted messages during the search, which has found the first one that is left.
        return time_offset((view, limit), (topic, queue_id), time_ms, boundary);
    }
    // With `Upper`, the first message of the log can be the last one that is not later.
    if found > min
        || !view.continues()
        || boundary == Boundary::Upper && search.at_or_after(min)?.is_some_and(|(_, time)| time <= time_ms)
    {
        return Ok(found);
    }
    let Some(older) = view.older_of(topic)? else { return Ok(found) };
    let (messages, floors) = (&older.messages, &older.floors);
    let before = match boundary {
        Boundary::Lower => messages.offset_for_time(floors, topic, queue_id, time_ms)?,
        Boundary::Upper => match messages.last_offset(floors, topic, queue_id, time_ms, min)? {
            None => messages.first_offset(floors, topic, queue_id)?,
            last => last,
        },
    };
    Ok(before.map_or(found, |before| before.min(found)))
}

/// The best of the records with one unique key.
#[derive(Default)]
struct BestMatch(Option<(RecordRank, StoredRecord)>);

/// What a record is for a caller who knows only the unique key; the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordRank {
    /// The message that consumers get.
    Message,
    /// A dead letter or retry.
    Copy,
    /// A record of another topic of the system.
    Internal,
    /// A record in which a message waits or waited.
    Waiting,
}

impl RecordRank {
    /// Returns the rank of the records of a topic.
    pub fn of(topic: &str) -> Self {
        match topic {
            TIMER_TOPIC | SCHEDULE_TOPIC | HALF_TOPIC => Self::Waiting,
            _ if is_system_topic(topic) => Self::Internal,
            _ if [DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX].iter().any(|prefix| topic.starts_with(prefix)) => {
                Self::Copy
            }
            _ => Self::Message,
        }
    }
}

impl BestMatch {
    /// Adds a record. Returns whether no better one can follow.
    fn add(&mut self, record: StoredRecord) -> bool {
        let rank = RecordRank::of(record.view().map_or("", |view| view.topic));
        // A message that waits can get a new record.
        let is_better = self.0.as_ref().is_none_or(|(best, before)| {
            let is_newer = record.commit_log_offset > before.commit_log_offset;
            rank < *best || rank == *best && rank == RecordRank::Waiting && is_newer
        });
        if is_better {
            self.0 = Some((rank, record));
        }
        rank == RecordRank::Message
    }

    fn into_record(self) -> Option<StoredRecord> {
        self.0.map(|(_, record)| record)
    }
}

pub(crate) fn no_queue(topic: &str, queue_id: Option<i32>) -> StoreError {
    StoreError::TopicNotFound { topic: topic.to_owned(), queue_id }
}

pub(crate) fn bounds(view: &StoreView, topic: &str, queue_id: i32) -> Result<(i64, i64), StoreError> {
    if let Some(bounds) = view.bounds(topic, queue_id)? {
        return Ok(bounds);
    }
    let known = !view.queue_ids(topic)?.is_empty();
    Err(no_queue(topic, known.then_some(queue_id)))
}

/// Search for store times of a queue's messages, which it reads from their records.
pub(crate) struct TimeSearch<'a> {
    view: &'a dyn View,
    topic: &'a str,
    queue_id: i32,
    reader: RecordReader,
    /// The compacted messages, used below their end.
    compacted: Option<CompactedQueue>,
}

impl<'a> TimeSearch<'a> {
    pub(crate) fn new(view: &'a dyn View, topic: &'a str, queue_id: i32, limit: u64) -> Self {
        // A search for times returns no message, so it does not count as a late reader.
        let reader = RecordReader::new(view.log(), view.list(), limit).without_counting();
        Self { view, topic, queue_id, reader, compacted: None }
    }

    pub(crate) fn with_compacted(mut self, compacted: Option<CompactedQueue>) -> Self {
        self.compacted = compacted;
        self
    }

    /// Returns the first offset between `low` and `high` whose message has a store time that is not `before`; `high` if
    /// there is none. Offsets without a readable message count like the next message.
    pub(crate) fn first_offset(
        &mut self,
        (mut low, mut high): (i64, i64),
        before: &dyn Fn(i64) -> bool,
    ) -> Result<i64, StoreError> {
        while low < high {
            let middle = low + (high - low) / 2;
            match self.at_or_after(middle)?.filter(|(offset, _)| *offset < high) {
                Some((offset, time)) if before(time) => low = offset + 1,
                _ => high = middle,
            }
        }
        Ok(low)
    }

    /// Returns offset and store time of the first readable message at or after `offset`.
    pub(crate) fn at_or_after(&mut self, offset: i64) -> Result<Option<(i64, i64)>, StoreError> {
        let mut from = offset;
        if let Some(compacted) = self.compacted.as_ref().filter(|compacted| offset < compacted.max_offset()) {
            let next = compacted.read(offset).next().transpose()?;
            if let Some(record) = next.filter(|record| record.queue_offset < compacted.max_offset()) {
                let view = record.view();
                let view = view.map_err(|error| {
                    StoreError::format(&self.view.files().compaction(), record.commit_log_offset, &error)
                })?;
                return Ok(Some((record.queue_offset, view.store_timestamp)));
            }
            from = compacted.max_offset();
        }
        loop {
            let mut units = Vec::new();
            self.view.units(self.topic, self.queue_id, from, 1, &mut units)?;
            let Some((offset, unit)) = units.first().copied() else { return Ok(None) };
            let time = place(&unit).and_then(|(position, size)| {
                let bytes = self.reader.record(self.view.files(), position, size).ok()?;
                let record = RecordView::decode(bytes.as_slice()).ok()?;
                let is_visible = !is_hidden(self.view, &record, self.topic, position);
                Some(is_visible.then_some(record.store_timestamp))
            });
            match time {
                Some(Some(time)) => return Ok(Some((offset, time))),
                Some(None) => from = offset + 1,
                None => from = self.skip_unreadable(offset, unit)?,
            }
        }
    }

    /// Returns the offset at which to continue if the record of a unit cannot be read: the same offset if the queue was
    /// derived again because of it.
    fn skip_unreadable(&self, offset: i64, unit: CqUnit) -> Result<i64, StoreError> {
        self.view.catch_up()?;
        if u64::try_from(unit.physical_offset).is_ok_and(|at| at < self.view.list().min_offset()) {
            // The record was removed since the unit was read, perhaps by a writer in another process: the queue is
            // right.
            let bounds = self.view.bounds(self.topic, self.queue_id)?;
            return Ok(bounds.map_or(0, |(min, _)| min).max(offset + 1));
        }
        let again = self.view.distrust(self.topic, self.queue_id, "a unit points to no record")?;
        Ok(if again { offset } else { offset + 1 })
    }

    /// Returns the last readable offset in `min..=offset`.
    fn at_or_before(&mut self, offset: i64, min: i64) -> Result<Option<i64>, StoreError> {
        let mut step = 0;
        while offset - step >= min {
            if let Some((found, _)) = self.at_or_after(offset - step)?.filter(|(found, _)| *found <= offset) {
                return Ok(Some(found));
            }
            step = step * 2 + 1;
        }
        Ok(None)
    }

    fn last(&mut self, min: i64, max: i64) -> Result<Option<i64>, StoreError> {
        match self.at_or_before(max - 1, min)? {
            Some(offset) => Ok(self.at_or_after(offset)?.map(|(_, time)| time)),
            None => Ok(None),
        }
    }
}
