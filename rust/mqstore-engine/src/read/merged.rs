//! The messages of several queues in one order.
//!
//! Each queue has a cursor that finds its next message; the merge returns the first of these messages. So it keeps one
//! record of each queue in memory, whatever the number of messages. The cursors share one reader of the log, because
//! neighbouring records often belong to different queues. The messages of a queue keep their order, even if the clock
//! was set back between them. Never writes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::cursor::{QueueCursor, RecordBatch};
use super::floor_watch::FloorWatch;
use super::query::{Boundary, no_queue, queue_cursor, time_offset};
use super::view::StoreView;
use mqstore_base::error::StoreError;
use mqstore_base::message::{MessageFilter, StoredRecord};
use mqstore_base::options::DamagePolicy;
use mqstore_log::commit_log::RecordReader;

/// Number of units that the cursors of a merge keep in memory, all together. Each keeps some, however many they are.
const UNITS: usize = 1 << 17;

/// The order in which a merge returns the messages of different queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MergeOrder {
    /// By store time, then by log offset.
    StoreTime,
    /// By log offset: the order of arrival.
    LogOffset,
}

/// Where a read begins or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadBound {
    /// A queue offset.
    Offset(i64),
    /// A store time, in epoch milliseconds.
    TimeMs(i64),
}

impl ReadBound {
    /// Returns the queue offset; `None` for a time.
    pub fn offset(self) -> Option<i64> {
        match self {
            Self::Offset(offset) => Some(offset),
            Self::TimeMs(_) => None,
        }
    }
}

/// The messages that a read of a topic returns.
#[derive(Clone, Copy, Debug)]
pub struct TopicRead<'a> {
    /// The topic.
    pub topic: &'a str,
    /// Only this queue.
    pub queue_id: Option<i32>,
    /// The first message of each queue; `None` is its first readable one.
    pub start: Option<ReadBound>,
    /// The message before which the read of each queue ends; `None` reads all messages that exist at the call.
    pub end: Option<ReadBound>,
    /// Only messages that match.
    pub filter: Option<&'a MessageFilter>,
    /// The behaviour at damaged records.
    pub on_damage: DamagePolicy,
}

/// The messages of several queues, each queue in ascending order of its offsets; see the header of this module.
pub struct MergedCursor {
    view: StoreView,
    order: MergeOrder,
    queues: Vec<QueueHead>,
    /// The place of the next record of each queue in the order, the first one first.
    heads: BinaryHeap<Reverse<(i64, u64, usize)>>,
    /// The queues whose next record is not known.
    unread: Vec<usize>,
    /// The reader that the cursors use in turn.
    reader: RecordReader,
    /// Log offset before which the merge ends, except for queues with compaction files.
    limit: Option<u64>,
    /// An error that the next call returns.
    failed: Option<StoreError>,
    /// The floors that the next records respect.
    floors: FloorWatch,
}

struct QueueHead {
    cursor: QueueCursor,
    /// The next record of the queue.
    record: Option<StoredRecord>,
}

impl MergedCursor {
    /// Merges `cursors`; with `limit`, only up to that log offset. `view` has caught up to log offset `end` or later.
    pub(crate) fn new(
        (view, end): (StoreView, u64),
        order: MergeOrder,
        cursors: Vec<QueueCursor>,
        limit: Option<u64>,
    ) -> Self {
        let reader = RecordReader::new(view.log(), view.list(), end);
        let unread = (0..cursors.len()).rev().collect();
        let (units, floors) = (UNITS / cursors.len().max(1), FloorWatch::new(&*view));
        let queues = cursors
            .into_iter()
            .map(|cursor| QueueHead { cursor: cursor.with_units(units), record: None })
            .collect();
        Self { view, order, queues, heads: BinaryHeap::new(), unread, reader, limit, failed: None, floors }
    }

    /// Returns the topic that it reads; `None` if it has no queues.
    pub fn topic(&self) -> Option<&str> {
        self.queues.first().map(|queue| queue.cursor.topic())
    }

    /// Whether a queue has its next messages before the log. After an error, the next call tries again.
    pub fn is_before_log(&self) -> bool {
        self.queues.iter().any(|queue| queue.cursor.is_before_log())
    }

    /// Returns each queue with the minimum offset of its next record.
    pub(crate) fn positions(&self) -> impl Iterator<Item = (i32, i64)> {
        self.queues.iter().map(|queue| {
            let next = queue.record.as_ref().map(|record| record.queue_offset);
            (queue.cursor.queue_id(), next.unwrap_or_else(|| queue.cursor.position()))
        })
    }

    /// Whether all remaining records are in the last `bytes` of the log. They are new then, and quick to read.
    pub fn is_near_end(&mut self, bytes: u64) -> Result<bool, StoreError> {
        if self.view.log().is_none() {
            return Ok(false);
        }
        let end = self.view.list().end_offset().min(self.reader.limit());
        for queue in &mut self.queues {
            let is_near = match &queue.record {
                Some(record) => end.saturating_sub(record.commit_log_offset) <= bytes,
                None => queue.cursor.is_near_end(bytes)?,
            };
            if !is_near {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns up to `max` records, and reads at most about `looks` of them; see [`QueueCursor::next_of`].
    pub fn next_of(&mut self, max: usize, looks: usize) -> Result<RecordBatch, StoreError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if let (None, [only]) = (self.limit, self.queues.as_mut_slice()) {
            return only.cursor.next_of(max, looks);
        }
        if let Some(change) = self.floors.follow(&*self.view)? {
            for queue in &mut self.queues {
                if let Some(record) = queue.record.take_if(|record| change.hides(&*self.view, record)) {
                    queue.cursor.check_hidden(record.queue_offset)?;
                }
            }
        }
        let (mut records, mut ended, mut looks) = (Vec::new(), false, looks);
        while records.len() < max && looks > 0 {
            if let Some(at) = self.unread.pop() {
                match self.read_head(at, looks) {
                    Ok(used_looks) => looks = looks.saturating_sub(used_looks),
                    Err(error) => {
                        self.unread.push(at);
                        if records.is_empty() {
                            return Err(error);
                        }
                        // Return the records read so far; the next call returns the error.
                        self.failed = Some(error);
                        break;
                    }
                }
                continue;
            }
            let Some(Reverse((_, _, at))) = self.heads.pop() else {
                ended = true;
                break;
            };
            records.extend(self.queues.get_mut(at).and_then(|queue| queue.record.take()));
            self.unread.push(at);
        }
        if ended && records.is_empty() {
            self.reader.release();
        }
        Ok(RecordBatch { records, ended })
    }

    /// Finds the next record of a queue. Returns about how many records it read for that.
    fn read_head(&mut self, at: usize, looks: usize) -> Result<usize, StoreError> {
        let Some(queue) = self.queues.get_mut(at) else { return Ok(0) };
        let before = queue.cursor.position();
        queue.cursor.exchange_reader(&mut self.reader);
        let read = queue.cursor.next_of(1, looks);
        queue.cursor.exchange_reader(&mut self.reader);
        let RecordBatch { mut records, ended } = read?;
        let passed = queue.cursor.position().saturating_sub(before);
        let used_looks = usize::try_from(passed).unwrap_or(looks).max(1);
        let Some(record) = records.pop() else {
            if !ended {
                // A filter skipped all records that were read.
                self.unread.push(at);
            }
            return Ok(used_looks);
        };
        let is_wanted =
            self.limit.is_none_or(|limit| record.commit_log_offset < limit || queue.cursor.has_compacted());
        if is_wanted {
            let time = match self.order {
                MergeOrder::LogOffset => 0,
                MergeOrder::StoreTime => {
                    let view = record.view().map_err(|error| {
                        StoreError::format(&self.view.files().commit_log(), record.commit_log_offset, &error)
                    })?;
                    view.store_timestamp
                }
            };
            self.heads.push(Reverse((time, record.commit_log_offset, at)));
        }
        queue.record = Some(record);
        Ok(used_looks)
    }
}

/// Returns a cursor on the messages of all queues of a topic, or of one of them, in order of their store time, then
/// of their log offset. It ends with the messages that exist at the call.
///
/// # Errors
/// [`StoreError::TopicNotFound`]; [`StoreError::OffsetOutOfRange`] if `start` is an offset below the minimum or above
/// the maximum of a queue.
pub(crate) fn read_topic(view: &StoreView, read: &TopicRead<'_>) -> Result<MergedCursor, StoreError> {
    let limit = view.catch_up()?;
    let ids = match read.queue_id {
        Some(id) => vec![id],
        None => view.queue_ids(read.topic)?,
    };
    if ids.is_empty() {
        return Err(no_queue(read.topic, None));
    }
    let cursors = ids.iter().map(|id| bounded_cursor((view, limit), read, *id));
    let cursors = cursors.collect::<Result<Vec<_>, _>>()?;
    // The queues were opened one after the other, so a later one can have newer messages.
    let limit_of_merge = (ids.len() > 1).then_some(limit);
    Ok(MergedCursor::new((view.clone(), limit), MergeOrder::StoreTime, cursors, limit_of_merge))
}

/// Returns a cursor on the part of a queue that `read` selects.
fn bounded_cursor(
    (view, limit): (&StoreView, u64),
    read: &TopicRead<'_>,
    queue_id: i32,
) -> Result<QueueCursor, StoreError> {
    let queue = (read.topic, queue_id);
    let offset = |bound: ReadBound| match bound {
        ReadBound::Offset(at) => Ok(at),
        ReadBound::TimeMs(time_ms) => time_offset((view, limit), queue, time_ms, Boundary::Lower),
    };
    let end = read.end.map(offset).transpose()?;
    let cursor = match read.start {
        Some(time @ ReadBound::TimeMs(_)) => {
            cursor_from((view, limit), queue, (offset(time)?, end), read.filter)?
        }
        start => {
            let start = start.and_then(ReadBound::offset);
            queue_cursor((view, limit), queue, (start, end), read.filter)?
        }
    };
    Ok(cursor.on_damage(read.on_damage))
}

/// Returns a cursor from offset `start` on, or from the minimum if the messages before it were deleted meanwhile.
pub(crate) fn cursor_from(
    place: (&StoreView, u64),
    queue: (&str, i32),
    (start, end): (i64, Option<i64>),
    filter: Option<&MessageFilter>,
) -> Result<QueueCursor, StoreError> {
    match queue_cursor(place, queue, (Some(start), end), filter) {
        Err(StoreError::OffsetOutOfRange { min_offset, .. }) if start < min_offset => {
            queue_cursor(place, queue, (Some(min_offset), end), filter)
        }
        cursor => cursor,
    }
}
