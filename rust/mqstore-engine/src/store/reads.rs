//! Reads of messages: by queue, topic, key, id, time and log offset, and scans.

use std::collections::BTreeMap;

use mqstore_base::error::StoreError;
use mqstore_base::message::{MessageFilter, StoredRecord};
use mqstore_base::store_files::DelayTables;

use super::log_reads::LogReads;
use super::{OpenSide, Store};
use crate::read::cursor::QueueCursor;
use crate::read::floor_watch::FloorWatch;
use crate::read::levels::LevelTimes;
use crate::read::lookup::LookupCursor;
use crate::read::merged::{self, MergedCursor, TopicRead};
use crate::read::pop_checkpoints::{self, PopState};
use crate::read::query::{self, Boundary, QueueInfo};
use crate::read::table::TableLoad;
use crate::read::view::View;
use crate::read::{random_read, tail};
use crate::scan::{self, MakeSink, Scan, ScanRequest, ScanSink};

impl Store {
    /// Returns the names of all topics, sorted.
    pub fn topics(&self) -> Result<Vec<String>, StoreError> {
        let view = self.usable_view()?;
        view.catch_up()?;
        view.topics()
    }

    /// Returns the queues of `topic` with their bounds.
    pub fn queues(&self, topic: &str) -> Result<Vec<QueueInfo>, StoreError> {
        query::queues(&self.usable_view()?, topic)
    }

    /// Applies everything appended so far. Functions that do not do this themselves see it afterwards.
    pub fn catch_up(&self) -> Result<(), StoreError> {
        self.usable_view()?.catch_up().map(drop)
    }

    /// Returns the ids of the queues of `topic`, sorted; none if the topic does not exist. Reads only memory. In the
    /// writing process, a queue is listed before its first message; in another process, once [`Self::catch_up`] has
    /// passed that message.
    pub fn queue_ids(&self, topic: &str) -> Result<Vec<i32>, StoreError> {
        self.usable_view()?.queue_ids(topic)
    }

    /// Returns the smallest offset of a queue that can be read, and one more than the largest.
    ///
    /// # Errors
    /// [`StoreError::TopicNotFound`].
    pub fn bounds(&self, topic: &str, queue_id: i32) -> Result<(i64, i64), StoreError> {
        query::readable_bounds(&self.usable_view()?, topic, queue_id)
    }

    /// Returns the smallest offset with which a read of a queue can begin; `min` is its minimum in the log. Only reads of
    /// [`Self::continued`] begin before the log.
    ///
    /// # Errors
    /// The messages before the log cannot be read.
    pub fn oldest_offset(&self, topic: &str, queue_id: i32, min: i64) -> Result<i64, StoreError> {
        self.usable_view()?.oldest_offset(topic, queue_id, min)
    }

    /// Returns the offset after the last message of each queue of `topic`; none if it does not exist.
    pub fn ends(&self, topic: &str) -> Result<BTreeMap<i32, i64>, StoreError> {
        let view = self.usable_view()?;
        view.catch_up()?;
        let ends = view.queue_ids(topic)?.into_iter().map(|id| {
            let max = view.bounds(topic, id)?.map_or(0, |(_, max)| max);
            Ok((id, max))
        });
        ends.collect()
    }

    /// Returns a cursor on the messages of a queue from `start` (default: the minimum) up to `end` (exclusive; default:
    /// the current maximum) that match `filter`. In a compacted queue, `start` can be any offset up to the maximum: if
    /// that message was dropped, the read starts at the next one.
    ///
    /// # Errors
    /// [`StoreError::TopicNotFound`]; [`StoreError::OffsetOutOfRange`] if `start` is below the minimum or above the
    /// maximum.
    pub fn read(
        &self,
        topic: &str,
        queue_id: i32,
        start: Option<i64>,
        end: Option<i64>,
        filter: Option<&MessageFilter>,
    ) -> Result<QueueCursor, StoreError> {
        query::read(&self.usable_view()?, topic, queue_id, start, end, filter)
    }

    /// Returns a cursor on the messages of all queues of a topic, or of one of them, in order of their store time, then
    /// of their log offset. It ends with the messages that exist at the call.
    ///
    /// # Errors
    /// [`StoreError::TopicNotFound`]; [`StoreError::OffsetOutOfRange`] if `start` is an offset below the minimum or above
    /// the maximum of a queue.
    pub fn read_topic(&self, read: &TopicRead<'_>) -> Result<MergedCursor, StoreError> {
        merged::read_topic(&self.usable_view()?, read)
    }

    /// Returns the queue offset below which [`Store::read`] uses the compaction files of a queue, and from which it
    /// uses the commit log; `None` if the queue has no compaction files.
    ///
    /// # Errors
    /// [`StoreError::TopicNotFound`]; I/O errors; damaged compaction files.
    pub fn compacted_end(&self, topic: &str, queue_id: i32) -> Result<Option<i64>, StoreError> {
        query::compacted_end(&self.usable_view()?, topic, queue_id)
    }

    /// Returns the message at `offset` of a queue; `None` if the queue has no message there, because a compaction
    /// dropped it or no record ever had this offset. A batch that is stored as one record is found at each of its
    /// offsets.
    ///
    /// # Errors
    /// [`StoreError::TopicNotFound`]; [`StoreError::OffsetOutOfRange`] for an offset below the minimum, or not below
    /// the maximum; the errors of [`Self::read`].
    pub fn message_at(
        &self,
        topic: &str,
        queue_id: i32,
        offset: i64,
    ) -> Result<Option<StoredRecord>, StoreError> {
        Ok(self.messages_at(topic, queue_id, &[offset])?.pop().flatten())
    }

    /// Returns the messages at `offsets` of a queue, in the given order; see [`Self::message_at`].
    pub fn messages_at(
        &self,
        topic: &str,
        queue_id: i32,
        offsets: &[i64],
    ) -> Result<Vec<Option<StoredRecord>>, StoreError> {
        random_read::messages_at(&self.usable_view()?, topic, queue_id, offsets)
    }

    /// Returns the newest `most` messages that `read` selects, in order of their store time, then of their log offset.
    /// The bounds of `read` are not used. It keeps at most about twice as many records in memory.
    ///
    /// # Errors
    /// [`StoreError::TopicNotFound`]; an error of `pause`.
    pub fn tail(
        &self,
        read: &TopicRead<'_>,
        most: usize,
        pause: &mut dyn FnMut() -> Result<(), StoreError>,
    ) -> Result<Vec<StoredRecord>, StoreError> {
        tail::tail(&self.usable_view()?, read, most, pause)
    }

    /// Returns the number of messages that a read of the topic returns, without the bodies. A record that contains
    /// several messages counts as one. For a light queue it reads the records before the highest floor.
    ///
    /// # Errors
    /// [`StoreError::TopicNotFound`]; damaged compaction files; an error of `pause`.
    pub fn count(
        &self,
        topic: &str,
        pause: &mut dyn FnMut() -> Result<(), StoreError>,
    ) -> Result<u64, StoreError> {
        tail::count(&self.usable_view()?, topic, pause)
    }

    /// Returns the offset in a queue for a store time; see [`Boundary`]. For a time before the first message, the
    /// result is the minimum. For a time after the last message, it is the maximum for [`Boundary::Lower`] and the last
    /// offset for [`Boundary::Upper`], as in RocketMQ.
    pub fn offset_for_time(
        &self,
        topic: &str,
        queue_id: i32,
        time_ms: i64,
        boundary: Boundary,
    ) -> Result<i64, StoreError> {
        query::offset_for_time(&self.usable_view()?, topic, queue_id, time_ms, boundary)
    }

    /// Returns a cursor on the messages of `topic` that have `key` as one of their keys or as their unique key, oldest
    /// first, stored in `start_ms..=end_ms`, at most `limit`.
    ///
    /// # Errors
    /// [`StoreError::TopicNotFound`].
    pub fn lookup(
        &self,
        topic: &str,
        key: &str,
        start_ms: Option<i64>,
        end_ms: Option<i64>,
        limit: Option<usize>,
    ) -> Result<LookupCursor, StoreError> {
        query::lookup(&self.usable_view()?, topic, key, start_ms, end_ms, limit)
    }

    /// Returns the record with an offset message id or a unique key; `None` if there is none. Of several records with
    /// the unique key, returns the message that consumers get, else a dead letter or retry, else the newest record in
    /// which a message waits or waited.
    pub fn get(&self, id: &str) -> Result<Option<StoredRecord>, StoreError> {
        query::get(&self.usable_view()?, id)
    }

    /// Starts a scan; `make` returns the sink that builds batches of rows.
    ///
    /// # Errors
    /// [`StoreError::TopicNotFound`].
    pub fn scan<S: ScanSink>(&self, request: &ScanRequest, make: MakeSink<S>) -> Result<Scan<S>, StoreError> {
        scan::scan(&self.usable_view()?, request, make)
    }

    /// Returns the messages that a broker has leased and that are not acknowledged, unless a group of this store has
    /// taken them over.
    ///
    /// # Errors
    /// Errors of reading the two topics.
    pub fn popped(&self) -> Result<PopState, StoreError> {
        let meta = self.writing_engine().map(|engine| &*engine.meta);
        pop_checkpoints::popped(&self.usable_view()?, meta)
    }

    /// Begins to watch the floors. Call this before messages are read ahead.
    pub fn watch_floors(&self) -> FloorWatch {
        FloorWatch::new(&*self.view())
    }

    /// Returns the due times of messages with a delay level.
    ///
    /// # Errors
    /// [`StoreError::Closed`].
    pub fn level_times(&self) -> Result<LevelTimes, StoreError> {
        Ok(LevelTimes::new(self.usable_view()?))
    }

    /// Returns the tables of delay levels with which the log was written, and the one that is valid now.
    pub fn delay_tables(&self) -> &DelayTables {
        match &self.inner.side {
            OpenSide::Writer(writer, _) => View::delays(&*writer.engine),
            OpenSide::Reader(reader) => View::delays(&**reader),
        }
    }

    /// Whether the topic exists and has batch queues.
    pub fn has_batch_queues(&self, topic: &str) -> bool {
        self.view().has_batch_queues(topic)
    }

    /// Whether the topic exists and is a compaction topic, which keeps the newest message of each key.
    pub fn keeps_newest(&self, topic: &str) -> bool {
        self.view().keeps_newest(topic)
    }

    /// Returns the reads of the log.
    pub fn log(&self) -> LogReads<'_> {
        LogReads(self)
    }
}

impl FloorWatch {
    /// Whether no floor changed since the watch began, or since the last [`Self::drop_hidden`].
    #[inline]
    pub fn is_current_in(&self, store: &Store) -> bool {
        match &store.inner.side {
            OpenSide::Writer(writer, _) => self.is_current(&*writer.engine),
            OpenSide::Reader(reader) => self.is_current(&**reader),
        }
    }

    /// Removes the messages that are hidden by now from those that were read before: `retain` keeps a message if its
    /// argument is true. With `topic`, they were read from its queues.
    ///
    /// # Errors
    /// If a message of `topic` itself is hidden, the error of a read from its offset: it must not be skipped silently.
    pub fn drop_hidden(
        &mut self,
        store: &Store,
        topic: Option<&str>,
        mut retain: impl FnMut(&mut dyn FnMut(&StoredRecord) -> bool),
    ) -> Result<(), StoreError> {
        let view = store.view();
        let Some(change) = self.follow(&*view)? else { return Ok(()) };
        let mut lost = None::<(i64, i32)>;
        retain(&mut |record| {
            let is_hidden = change.hides(&*view, record);
            if is_hidden && let Some(found) = record.view().ok().filter(|found| Some(found.topic) == topic) {
                let place = (record.queue_offset, found.queue_id);
                lost = Some(lost.map_or(place, |first| first.min(place)));
            }
            !is_hidden
        });
        match (topic, lost) {
            (Some(topic), Some((offset, queue_id))) => {
                store.read(topic, queue_id, Some(offset), None, None).map(drop)
            }
            _ => Ok(()),
        }
    }
}

impl TableLoad {
    /// Starts to load a queue as a table, with its messages or only with their positions.
    ///
    /// # Errors
    /// Those of [`Store::read`].
    pub fn new(store: &Store, topic: &str, queue_id: i32, keeps_messages: bool) -> Result<Self, StoreError> {
        let cursor = store.read(topic, queue_id, None, None, None)?;
        Ok(Self::of(cursor, store.files().commit_log(), keeps_messages))
    }
}
