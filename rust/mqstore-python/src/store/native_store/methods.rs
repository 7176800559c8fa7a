//! The methods of a store, with the signatures and the documentation that users see.
//!
//! PyO3 allows one block of methods for each class. Each method converts its arguments and makes one call of the core;
//! the longer ones continue in the file of their topic.
//!
//! The subclass `mqstore.Store` adds the methods that need no speed.

use std::path::PathBuf;
use std::time::Duration;

use mqstore::delivery::message_of_id;
use mqstore::options::DamagePolicy;
use mqstore::read::{Boundary, TopicRead};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

use super::NativeStore;
use super::reads::Selection;
use crate::arrow::append_stream::append_rows;
use crate::convert::append_input::{MessageParts, parts};
use crate::convert::append_result::AppendResult;
use crate::convert::append_results::AppendResults;
use crate::convert::arguments::{
    body_or_json, count, number, offset, offsets, queue, read_bound, text, time, wait,
};
use crate::convert::batch_input::BatchInput;
use crate::convert::filter::message_filter;
use crate::convert::hooks::report_dict;
use crate::convert::options::damage_policy;
use crate::convert::stored_message::StoredMessage;
use crate::error::StoreClosedError;
use crate::runtime::{about_topic, delivered, detached, interruptible, reading};
use crate::store::compaction::{StoreRequest, compact_store};
use crate::store::delay::DeliveryTime;
use crate::store::directory::{rebuild_store, snapshot_store, stats_dict};
use crate::store::iterators::{IteratorSource, MessageIterator};
use crate::store::replication::{add_figures, follower_dicts};
use crate::testing::{TestClock, TestEnv, TestFaults};

/// Number of messages of `tail` by default.
const TAIL: usize = 10;

/// One queue as Python's `QueueInfo` takes it.
type QueueRow = (i32, i64, i64, Option<i64>, Option<i64>);

#[pymethods]
impl NativeStore {
    #[new]
    #[pyo3(signature = (path, mode, options, progress = None, clock = None, faults = None))]
    fn new(
        py: Python<'_>,
        path: Bound<'_, PyAny>,
        mode: &str,
        options: &Bound<'_, PyDict>,
        progress: Option<Py<PyAny>>,
        clock: Option<PyRef<'_, TestClock>>,
        faults: Option<PyRef<'_, TestFaults>>,
    ) -> PyResult<Self> {
        let env = TestEnv::new(clock.as_deref(), faults.as_deref());
        Self::open(py, path, mode, options, progress.as_ref(), env)
    }

    /// The directory, as given to `open`.
    #[getter]
    fn path(&self, py: Python<'_>) -> Py<PyString> {
        self.path.clone_ref(py)
    }

    /// The place of the store for other verbs: its path, or the `RemoteDirectory` of its URL.
    #[getter]
    fn _place(&self, py: Python<'_>) -> Py<PyAny> {
        self.place.as_ref().map_or_else(|| self.path.clone_ref(py).into_any(), |place| place.clone_ref(py))
    }

    /// `"r"`, `"rw"`, `"create"` or `"share"`; also `"r"` if `recovery="read-only"` found damage.
    #[getter]
    fn mode(&self) -> &'static str {
        self.mode
    }

    /// Whether `close()` was called.
    #[getter]
    fn closed(&self) -> bool {
        self.shared.is_closed()
    }

    /// Whether this process has the store open for writing: with mode `"share"`, whether it is the owner.
    #[getter]
    fn is_owner(&self) -> PyResult<bool> {
        Ok(match self.shared.share()? {
            Some(shared) => shared.is_owner(),
            None => self.core()?.mode().writes(),
        })
    }

    /// The options of a shared store as JSON; None if this process alone has it open.
    #[getter]
    fn _shared_options(&self) -> PyResult<Option<String>> {
        Ok(self.shared.share()?.map(mqstore_server::share::SharedStore::options))
    }

    #[getter]
    fn _forked(&self) -> bool {
        self.shared.is_forked()
    }

    /// Creates a topic, or adds queues if it has fewer than `queues`.
    ///
    /// Args:
    ///     topic: name of 1 to 127 characters of `%|a-zA-Z0-9_-`; retry and dead-letter topics up to 255.
    ///     queues: number of queues, 1 to 65,536; None uses the option `default_queues`.
    ///     attributes: RocketMQ's topic attributes by name; only for a new topic.
    ///     max_messages: quota of the topic; only for a new topic. See `update_topic`.
    ///     expire_after: time after which a value of the table expires; only for a new topic. See `update_topic`.
    ///
    /// Raises:
    ///     InvalidMessageError: the name is not a valid topic name.
    ///     StoreReadOnlyError: the store is open for reading.
    #[pyo3(signature = (topic, queues = None, *, attributes = None, max_messages = None, expire_after = None))]
    fn create_topic(
        &self,
        py: Python<'_>,
        topic: &str,
        queues: Option<&Bound<'_, PyAny>>,
        attributes: Option<&Bound<'_, PyAny>>,
        max_messages: Option<&Bound<'_, PyAny>>,
        expire_after: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let verbs = self.verbs()?;
        let queues = queues.map_or(Ok(self.default_queues), |queues| count("queues", queues))?;
        let attributes = crate::store::topics::attributes(attributes, max_messages, expire_after)?;
        delivered(py, || verbs.create_topic(topic, queues, attributes))
    }

    /// Appends one message and returns its position.
    ///
    /// Args:
    ///     topic: created with `default_queues` queues if it does not exist.
    ///     body: any bytes-like object.
    ///     json: a value whose JSON is the body, in UTF-8 without blanks; give it instead of `body`.
    ///     keys: one key or several, by which `lookup` finds the message. A key contains no space.
    ///     tags: the tag that tag filters compare.
    ///     properties: the message's own properties. Reserved names are refused, except `UNIQ_KEY`, which replaces the
    ///         generated unique id.
    ///     queue_id: the queue; None takes the topic's queues in turn.
    ///     flag: a 32-bit number for the application.
    ///     born_timestamp: time at which the message was created; None is now.
    ///     durable: whether to wait for a sync, whatever the store's durability.
    ///     replicated: whether to wait for the copies of other machines, as with the option `replicated`.
    ///     delay: time before the message appears in its topic.
    ///     deliver_at: the time of delivery, instead of `delay`. A time in the past delivers now.
    ///     delay_level: RocketMQ's delay level, instead of `delay`, by the store's `delay_levels`; by default 18 levels
    ///         of 1 s to 2 h.
    ///     light_queues: names of light queues that also get the message: `"light-0"` or `"%LMQ%light-0"`. Read a light
    ///         queue as the topic `%LMQ%light-0`. Not for delayed messages, batch queues, retry and system topics.
    ///     compression: how the body is compressed, `"zstd"`, `"lz4"`, `"zlib"` or `"none"`; None is the store's option
    ///         `compression`. Readers get the body as you gave it.
    ///     compress_over: bytes that a body needs to be compressed; None is the store's option `compress_over`.
    ///
    /// Returns:
    ///     The position and the ids. For a delayed message they are those of the waiting record; its ids cancel the
    ///     message.
    ///
    /// Raises:
    ///     InvalidMessageError: a text or number that the format cannot hold; nothing was written.
    ///     MessageTooLargeError: the message exceeds `max_message_size`, or does not fit in one segment.
    ///     StoreReadOnlyError: the store is open for reading.
    ///     StorePoisonedError: an earlier write or sync failed.
    ///     TopicNotFoundError: no such queue, or no such topic while `auto_create_topics` is off.
    ///     Full: a quota is used up, `max_messages` of the topic or `max_bytes` of the log.
    ///     StoreTimeoutError: too few copies acknowledged the message in time. It is stored: do not append it again.
    ///     InvalidOptionError: `replicated`, and the store has no option `replication`.
    #[pyo3(
        signature = (topic, body = None, *, json = None, keys = None, tags = None, properties = None, queue_id = None, flag = None,
                     born_timestamp = None, durable = false, replicated = false, delay = None, deliver_at = None, delay_level = None,
                     light_queues = None, compression = None, compress_over = None),
        text_signature = "($self, topic, body=None, *, json=None, keys=(), tags=None, properties=None, queue_id=None, flag=0, \
                          born_timestamp=None, durable=False, replicated=False, delay=None, deliver_at=None, delay_level=None, \
                          light_queues=(), compression=None, compress_over=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "a message has this many parts")]
    fn append(
        &self,
        topic: &Bound<'_, PyAny>,
        body: Option<&Bound<'_, PyAny>>,
        json: Option<&Bound<'_, PyAny>>,
        keys: Option<&Bound<'_, PyAny>>,
        tags: Option<&Bound<'_, PyAny>>,
        properties: Option<&Bound<'_, PyAny>>,
        queue_id: Option<&Bound<'_, PyAny>>,
        flag: Option<&Bound<'_, PyAny>>,
        born_timestamp: Option<&Bound<'_, PyAny>>,
        durable: bool,
        replicated: bool,
        delay: Option<&Bound<'_, PyAny>>,
        deliver_at: Option<&Bound<'_, PyAny>>,
        delay_level: Option<&Bound<'_, PyAny>>,
        light_queues: Option<&Bound<'_, PyAny>>,
        compression: Option<&Bound<'_, PyAny>>,
        compress_over: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<AppendResult> {
        let topic = text("topic", topic)?;
        let mut part = MessageParts::of(
            body_or_json(topic.py(), body, json)?,
            keys,
            tags,
            properties,
            flag,
            born_timestamp,
        )?;
        let queue_id = queue_id.map(crate::convert::arguments::queue_id).transpose()?;
        part.compress(&self.compression(compression, compress_over)?)?;
        let message = part.message(topic.to_str()?, queue_id, durable);
        let when = DeliveryTime { delay, deliver_at, level: delay_level };
        self.append_message(&topic, message, &when, light_queues, replicated)
    }

    /// Appends messages under one lock, with one sync if a sync is due; returns the results in the order given.
    ///
    /// All messages are checked before the first one is written. After a crash, a prefix of them may be in the store.
    /// In a topic with batch queues (attribute `queue.type` is `BatchCQ`) they become one record in one queue, which a
    /// crash keeps or loses as a whole: see `StoredMessage.batch`.
    ///
    /// Args:
    ///     topic: as for `append`.
    ///     messages: bodies or `Message` objects.
    ///     queue_id: queue of all messages; None uses the queues of the topic in turn.
    ///     durable: as for `append`.
    ///     replicated: as for `append`.
    ///     compression: as for `append`; the messages of a batch queue are not compressed.
    ///     compress_over: as for `append`.
    ///
    /// Raises:
    ///     InvalidMessageError: a message is not valid, or there are more than 32,767 for a batch queue.
    ///     Full: the messages would exceed a quota; none was appended.
    #[expect(clippy::too_many_arguments, reason = "each is a separate argument in Python")]
    #[pyo3(signature = (topic, messages, *, queue_id = None, durable = false, replicated = false, compression = None,
                        compress_over = None))]
    fn append_many<'py>(
        &self,
        topic: &Bound<'py, PyAny>,
        messages: &Bound<'py, PyAny>,
        queue_id: Option<&Bound<'py, PyAny>>,
        durable: bool,
        replicated: bool,
        compression: Option<&Bound<'py, PyAny>>,
        compress_over: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, AppendResults>> {
        self.append_all(
            topic,
            || parts(messages),
            queue_id,
            (durable, replicated),
            (compression, compress_over),
        )
    }

    /// Appends messages like `append_many`, from one sequence for each part of a message.
    ///
    /// The fastest way to append many messages from Python: there is no `Message` object for each of them.
    ///
    /// Args:
    ///     topic: as for `append`.
    ///     bodies: the bodies, any bytes-like objects.
    ///     keys: for each body one key, several keys, or None; None if no message has a key.
    ///     tags: one tag for all messages, or for each body a tag or None.
    ///     properties: one mapping for all messages, or for each body a mapping or None. As for `append`.
    ///     queue_id: queue of all messages; None uses the queues of the topic in turn.
    ///     durable: as for `append`.
    ///     replicated: as for `append`.
    ///     compression: as for `append_many`.
    ///     compress_over: as for `append`.
    ///
    /// Returns:
    ///     The results of `append_many`.
    ///
    /// Raises:
    ///     InvalidMessageError: a message is not valid, or `keys`, `tags` or `properties` has not one entry for each
    ///         body; nothing was written.
    ///     Full: the messages would exceed a quota; none was appended.
    #[pyo3(signature = (topic, bodies, keys = None, tags = None, properties = None, *, queue_id = None, durable = false, replicated = false,
                        compression = None, compress_over = None))]
    #[expect(clippy::too_many_arguments, reason = "each is a separate argument in Python")]
    fn append_batch<'py>(
        &self,
        topic: &Bound<'py, PyAny>,
        bodies: &Bound<'py, PyAny>,
        keys: Option<&Bound<'py, PyAny>>,
        tags: Option<&Bound<'py, PyAny>>,
        properties: Option<&Bound<'py, PyAny>>,
        queue_id: Option<&Bound<'py, PyAny>>,
        durable: bool,
        replicated: bool,
        compression: Option<&Bound<'py, PyAny>>,
        compress_over: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, AppendResults>> {
        let convert = || BatchInput::of(bodies, keys, tags, properties);
        self.append_all(topic, convert, queue_id, (durable, replicated), (compression, compress_over))
    }

    /// Appends the rows of a table as messages, without a Python object for each of them.
    ///
    /// The columns are those of a scan, as far as a new message has them: `body` (or `value`), `keys` (or `key`),
    /// `topic`, `tags`, `properties`, `queue_id`, `flag` and `born_timestamp`. Only the body is required. Columns with
    /// the position of a stored message are ignored. Each unique id among the properties is kept.
    ///
    /// The rows of a record batch are checked before the first of them is appended: if the store would refuse one,
    /// none is appended. Then they are appended in groups of up to 1,000, each like a call of `append_many`. A quota,
    /// an error of the disk, or Ctrl-C leaves the groups before it in the store.
    ///
    /// Args:
    ///     topic: topic of all rows; None takes the topic of each row from the column `topic`.
    ///     table_or_stream: any object with `__arrow_c_stream__`: a table or a stream of record batches of pyarrow,
    ///         Polars, DuckDB or pandas, or a `mqstore.Scan`.
    ///     queue_id: queue of the rows that name none; None uses the queues of the topic in turn.
    ///     durable: whether all rows are durable when the call returns, whatever the store's durability.
    ///     compression: as for `append_many`.
    ///     compress_over: as for `append`.
    ///
    /// Returns:
    ///     The number of messages.
    ///
    /// Raises:
    ///     InvalidMessageError: a column is unknown, missing or has the wrong type, or a row cannot become a message or
    ///         is too large; the error names the row and the column.
    ///     TopicNotFoundError: a row names a queue that its topic does not have, or a topic that is not created; a note
    ///         of the error names the row and the column.
    ///     RefusedError: the topic of a row takes no messages; a note names the row.
    ///     TypeError: `table_or_stream` has no `__arrow_c_stream__`.
    #[pyo3(signature = (topic, table_or_stream, *, queue_id = None, durable = false, compression = None,
                        compress_over = None))]
    #[expect(clippy::too_many_arguments, reason = "each is a separate argument in Python")]
    fn append_arrow(
        &self,
        py: Python<'_>,
        topic: Option<&Bound<'_, PyAny>>,
        table_or_stream: &Bound<'_, PyAny>,
        queue_id: Option<&Bound<'_, PyAny>>,
        durable: bool,
        compression: Option<&Bound<'_, PyAny>>,
        compress_over: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let store = self.core()?;
        let topic = topic.map(|topic| text("topic", topic)).transpose()?;
        let topic = topic.as_ref().map(|topic| topic.to_str()).transpose()?;
        let queue_id = queue_id.map(crate::convert::arguments::queue_id).transpose()?;
        let rule = self.compression(compression, compress_over)?;
        append_rows(py, store, self.verbs()?, table_or_stream, (topic, queue_id), rule, durable)
    }

    /// Makes every message appended before the call durable.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let verbs = self.verbs()?;
        delivered(py, || verbs.flush())
    }

    /// Makes every message durable and releases the directory. A second call does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        match detached(py, || self.shared.close()) {
            // After an injected crash, the process reports no more errors.
            Err(_) if self.shared.is_dead() => Ok(()),
            outcome => outcome,
        }
    }

    /// Returns the names of all topics, sorted.
    fn topics(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let store = self.core()?;
        let found = reading(py, store, || store.topics())?;
        self.shared.say_notes(py)?;
        Ok(found)
    }

    fn _check(&self) -> PyResult<()> {
        if self.core()?.is_closed() {
            return Err(StoreClosedError::new_err((self.shared.path().to_owned(),)));
        }
        Ok(())
    }

    fn _stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let store = self.core()?;
        let stats = if self.shared.is_away()? {
            let verbs = self.verbs()?;
            delivered(py, || verbs.stats())?
        } else {
            reading(py, store, || store.stats())?
        };
        let found = stats_dict(py, &stats)?;
        if let Some(status) = self.shared.replication(py)? {
            add_figures(&found, &status)?;
        }
        Ok(found)
    }

    /// Returns the host and port at which replicas connect; None if there are none.
    fn _replication_address(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.check_open(py)?;
        Ok(self.shared.replication(py)?.map(|status| status.address))
    }

    /// Returns the replicas, by the names of `FollowerInfo`.
    fn _followers<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        self.check_open(py)?;
        let status = self.shared.replication(py)?;
        status.map_or_else(|| Ok(Vec::new()), |status| follower_dicts(py, &status))
    }

    /// Rebuilds queues and index. `progress` is called with the bytes done and the total bytes.
    fn _rebuild<'py>(&self, py: Python<'py>, progress: Option<Py<PyAny>>) -> PyResult<Bound<'py, PyDict>> {
        if self.shared.is_away()? {
            return Err(self.shared.only_in_owner("rebuild queues and index"));
        }
        rebuild_store(py, self.core()?, progress.as_ref())
    }

    /// Compacts: keeps the newest message of every key; see `StoreRequest`.
    fn _compact(
        &self,
        py: Python<'_>,
        request: StoreRequest,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<String> {
        compact_store(py, self.shared(), request, progress.as_ref())
    }

    /// Copies the store consistently to the new folder `output`; `progress` as for `_rebuild`.
    fn _snapshot<'py>(
        &self,
        py: Python<'py>,
        output: PathBuf,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        snapshot_store(py, self.core()?, &output, progress.as_ref())
    }

    /// Deletes the segments that are due, or only lists them if `dry_run` is set. Ctrl-C ends the call between two
    /// files.
    fn _expire<'py>(&self, py: Python<'py>, dry_run: bool) -> PyResult<Bound<'py, PyDict>> {
        let store = self.core()?;
        if !self.shared.is_away()? {
            return report_dict(py, &interruptible(py, store, |pause| store.expire(dry_run, pause))?);
        }
        let verbs = self.verbs()?;
        report_dict(py, &delivered(py, || verbs.expire(dry_run))?)
    }

    /// The log offset at which reads and dispatch stop, or None; see `set_confirm_offset`.
    #[getter]
    fn confirm_offset(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        let store = self.core()?;
        detached(py, || store.confirm_offset())
    }

    /// Hides the records at and after this log offset from readers.
    ///
    /// For replication, in which a message counts only after its replicas have it. The limit is not stored: the next
    /// writer sees the whole log.
    ///
    /// Args:
    ///     offset: the start of a record, or the end of the log; None removes the limit.
    ///
    /// Raises:
    ///     InvalidOptionError: no record starts there, or readers may have seen later records.
    ///     StoreReadOnlyError: the store is open for reading.
    #[pyo3(signature = (offset))]
    fn set_confirm_offset(&self, py: Python<'_>, offset: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let verbs = self.verbs()?;
        let offset = offset.map(|offset| number("offset", offset)).transpose()?;
        let offset = offset
            .map(u64::try_from)
            .transpose()
            .map_err(|_| PyValueError::new_err("offset must not be negative"))?;
        delivered(py, || verbs.set_confirm_offset(offset))
    }

    /// Returns the ids of a topic's queues, including those of earlier appends that are not dispatched yet.
    fn _queue_ids(&self, py: Python<'_>, topic: &str) -> PyResult<Vec<i32>> {
        let store = self.core()?;
        reading(py, store, || store.catch_up().and_then(|()| store.queue_ids(topic)))
    }

    /// Returns each queue of a topic with the offset after its last message; empty if the topic does not exist.
    fn _ends(&self, py: Python<'_>, topic: &str) -> PyResult<Vec<(i32, i64)>> {
        let store = self.core()?;
        Ok(reading(py, store, || store.ends(topic))?.into_iter().collect())
    }

    /// Returns whether a queue of the topic, or only `queue_id`, has a message after these ends; for asyncio.
    fn _has_passed(
        &self,
        py: Python<'_>,
        topic: &str,
        queue_id: Option<i32>,
        ends: Vec<(i32, i64)>,
    ) -> PyResult<bool> {
        let (store, ends) = (self.core()?, ends.into_iter().collect());
        detached(py, || store.wait_for_topic(topic, queue_id, &ends, Duration::ZERO))
    }

    /// Returns the smallest offset that a read of a queue can begin with; the log has those from `min_offset` on.
    fn _oldest_offset(&self, py: Python<'_>, topic: &str, queue_id: i32, min_offset: i64) -> PyResult<i64> {
        let store = self.reads()?;
        about_topic(py, store, || store.oldest_offset(topic, queue_id, min_offset))
    }

    fn _queues(&self, py: Python<'_>, topic: &str) -> PyResult<Vec<QueueRow>> {
        let store = self.core()?;
        let found = about_topic(py, store, || store.queues(topic))?;
        self.shared.say_notes(py)?;
        Ok(found
            .into_iter()
            .map(|queue| {
                (
                    queue.queue_id,
                    queue.min_offset,
                    queue.max_offset,
                    queue.min_store_timestamp_ms,
                    queue.max_store_timestamp_ms,
                )
            })
            .collect())
    }

    /// Returns the messages of a topic, or of one of its queues.
    ///
    /// The messages of one queue come in ascending order of their offsets. Those of different queues are merged by
    /// store time, then by log offset.
    ///
    /// Args:
    ///     topic: the topic.
    ///     queue_id: the queue; None is all queues.
    ///     start: the first message: a store time, as an aware `datetime`, as ISO text or as its age (`timedelta`),
    ///         or with `queue_id` a queue offset (int). None is the first readable message.
    ///     end: the message to stop before, like `start`. None is the end at the time of the call.
    ///     filter: tags such as `"paid || shipped"`, or a condition on properties, `mqstore.sql("price > 5")`.
    ///     follow: whether to wait at the end for new messages. From then on, messages come in order of arrival.
    ///     timeout: longest wait of `follow` for one message, after which the iterator ends; None is without a limit.
    ///     on_damage: behaviour at a damaged record. `"raise"` raises `CorruptionError`. `"skip"` continues after the
    ///         record, warns with a `StoreWarning`, and counts it in `StoreStats.skipped_damage`.
    ///
    /// Raises:
    ///     TopicNotFoundError: no such topic or queue.
    ///     OffsetOutOfRangeError: `start` is below the smallest or above the largest offset.
    ///     InvalidOptionError: `start` or `end` is an int without a `queue_id`, or text that is not a time.
    #[pyo3(
        signature = (topic, queue_id = None, start = None, end = None, *, filter = None, follow = false, timeout = None,
                     on_damage = None),
        text_signature = "($self, topic, queue_id=None, start=None, end=None, *, filter=None, follow=False, timeout=None, \
                          on_damage='raise')"
    )]
    #[expect(clippy::too_many_arguments, reason = "each is a separate argument in Python")]
    fn read(
        slf: &Bound<'_, Self>,
        topic: &str,
        queue_id: Option<&Bound<'_, PyAny>>,
        start: Option<&Bound<'_, PyAny>>,
        end: Option<&Bound<'_, PyAny>>,
        filter: Option<&Bound<'_, PyAny>>,
        follow: bool,
        timeout: Option<&Bound<'_, PyAny>>,
        on_damage: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<MessageIterator> {
        let store = slf.get().reads()?;
        if follow {
            slf.get().can_follow(store)?;
        }
        let on_damage = on_damage.map(damage_policy).transpose()?.unwrap_or_default();
        let filter = message_filter(filter)?;
        let timeout = timeout.map(|timeout| wait("timeout", timeout)).transpose()?;
        let queue_id = queue_id.map(queue).transpose()?;
        let (start, end) = (read_bound("start", start, queue_id)?, read_bound("end", end, queue_id)?);
        let selection = Selection { topic, queue_id, start, end, filter, on_damage };
        Self::messages(slf, store, selection, follow, timeout)
    }

    /// Returns the newest messages of a topic, in the order of `read`.
    ///
    /// Args:
    ///     topic: the topic.
    ///     n: maximum number of messages.
    ///     queue_id: only this queue.
    ///     filter: as for `read`.
    ///     on_damage: as for `read`.
    ///
    /// Raises:
    ///     TopicNotFoundError: no such topic or queue.
    ///     InvalidOptionError: `n` is negative.
    #[pyo3(
        signature = (topic, n = None, *, queue_id = None, filter = None, on_damage = None),
        text_signature = "($self, topic, n=10, *, queue_id=None, filter=None, on_damage='raise')"
    )]
    fn tail<'py>(
        &self,
        py: Python<'py>,
        topic: &str,
        n: Option<&Bound<'_, PyAny>>,
        queue_id: Option<&Bound<'_, PyAny>>,
        filter: Option<&Bound<'_, PyAny>>,
        on_damage: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let store = self.reads()?;
        let most = n.map_or(Ok(TAIL), |most| count("n", most))?;
        let queue_id = queue_id.map(queue).transpose()?;
        let filter = message_filter(filter)?;
        let on_damage = on_damage.map(damage_policy).transpose()?.unwrap_or_default();
        let read = TopicRead { topic, queue_id, start: None, end: None, filter: filter.as_ref(), on_damage };
        let found = interruptible(py, store, |pause| store.tail(&read, most, pause))?;
        self.shared.say_notes(py)?;
        let messages = found.into_iter().map(|record| Bound::new(py, StoredMessage::from(record)));
        PyList::new(py, messages.collect::<PyResult<Vec<_>>>()?)
    }

    /// Returns the number of messages that `read(topic)` returns, without reading them.
    ///
    /// It reads the queues only: 20 bytes for each message, except messages in compaction files. An archive has the
    /// numbers in its manifest.
    ///
    /// Raises:
    ///     TopicNotFoundError: no such topic.
    fn count(&self, py: Python<'_>, topic: &str) -> PyResult<u64> {
        let store = self.reads()?;
        let messages = interruptible(py, store, |pause| store.count(topic, pause))?;
        self.shared.say_notes(py)?;
        Ok(messages)
    }

    /// Returns all messages in log order from log offset `start`, whatever the state of the queues.
    #[pyo3(signature = (start = None, filter = None, on_damage = None))]
    fn _scan_log(
        slf: &Bound<'_, Self>,
        start: Option<u64>,
        filter: Option<&Bound<'_, PyAny>>,
        on_damage: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<MessageIterator> {
        let (py, store) = (slf.py(), slf.get().core()?);
        let on_damage = on_damage.map(damage_policy).transpose()?.unwrap_or(DamagePolicy::Skip);
        let cursor = reading(py, store, || store.log().scan(start))?.on_damage(on_damage);
        Self::iterator(slf, IteratorSource::Log(Box::new(cursor.filtered(message_filter(filter)?))))
    }

    /// Returns the message with this `message_id` or `unique_id`, or None.
    ///
    /// A `message_id` names one record. Several records can have one `unique_id`; the answer is the message that
    /// consumers get. While a delayed message or a message of a transaction waits, it is the record in which it waits,
    /// and for a message that is gone, its dead letter.
    fn get(&self, py: Python<'_>, id: &str) -> PyResult<Option<StoredMessage>> {
        let store = self.reads()?;
        let found = reading(py, store, || message_of_id(store, id))?;
        self.shared.say_notes(py)?;
        Ok(found.map(StoredMessage::from))
    }

    /// Returns the message whose record starts at this log offset.
    ///
    /// Raises:
    ///     CorruptionError: no record starts there, or the topic of the record was deleted.
    fn get_at(&self, py: Python<'_>, commit_log_offset: &Bound<'_, PyAny>) -> PyResult<StoredMessage> {
        let store = self.reads()?;
        let offset = number("commit_log_offset", commit_log_offset)?;
        let offset = u64::try_from(offset)
            .map_err(|_| PyValueError::new_err(format!("commit_log_offset {offset} is negative")))?;
        reading(py, store, || store.log().get_at(offset)).map(StoredMessage::from)
    }

    /// Returns the message at an offset of a queue; None if a compaction removed it.
    ///
    /// Raises:
    ///     TopicNotFoundError: no such topic or queue.
    ///     OffsetOutOfRangeError: the queue does not contain this offset.
    fn message_at(
        &self,
        py: Python<'_>,
        topic: &str,
        #[pyo3(from_py_with = queue)] queue_id: i32,
        #[pyo3(from_py_with = offset)] queue_offset: i64,
    ) -> PyResult<Option<StoredMessage>> {
        let store = self.reads()?;
        let found = about_topic(py, store, || store.message_at(topic, queue_id, queue_offset))?;
        Ok(found.map(StoredMessage::from))
    }

    /// Returns the messages at these offsets of a queue, in the order given.
    ///
    /// Each one is the result of `message_at`. One call for many offsets is much faster than many calls.
    fn messages_at(
        &self,
        py: Python<'_>,
        topic: &str,
        #[pyo3(from_py_with = queue)] queue_id: i32,
        #[pyo3(from_py_with = offsets)] queue_offsets: Vec<i64>,
    ) -> PyResult<Vec<Option<StoredMessage>>> {
        let store = self.reads()?;
        let found = about_topic(py, store, || store.messages_at(topic, queue_id, &queue_offsets))?;
        Ok(found.into_iter().map(|found| found.map(StoredMessage::from)).collect())
    }

    /// Returns the messages of `topic` that have `key` as a key or as their unique id, oldest first.
    ///
    /// Args:
    ///     topic: the topic.
    ///     key: the key; an unknown one has no messages.
    ///     start_time: only messages stored at or after this time.
    ///     end_time: only messages stored at or before this time.
    ///     limit: maximum number of messages.
    ///     newest_first: whether the newest message comes first.
    ///
    /// Raises:
    ///     TopicNotFoundError: no such topic.
    #[pyo3(signature = (topic, key, *, start_time = None, end_time = None, limit = None, newest_first = false))]
    fn lookup(
        slf: &Bound<'_, Self>,
        topic: &str,
        key: &str,
        start_time: Option<&Bound<'_, PyAny>>,
        end_time: Option<&Bound<'_, PyAny>>,
        limit: Option<&Bound<'_, PyAny>>,
        newest_first: bool,
    ) -> PyResult<MessageIterator> {
        let (py, store) = (slf.py(), slf.get().reads()?);
        let start = start_time.map(|when| time("start_time", when)).transpose()?;
        let end = end_time.map(|when| time("end_time", when)).transpose()?;
        let limit = limit.map(|limit| count("limit", limit)).transpose()?;
        let cursor = about_topic(py, store, || store.lookup(topic, key, start, end, limit))?;
        let cursor = if newest_first { cursor.newest_first() } else { cursor };
        Self::iterator(slf, IteratorSource::Lookup(Box::new(cursor)))
    }

    /// Returns the offset for a store time.
    ///
    /// Args:
    ///     topic: the topic.
    ///     queue_id: the queue.
    ///     time: the time.
    ///     boundary: `"lower"` finds the first message stored at or after `time`, else the largest offset. `"upper"`
    ///         finds the last one stored at or before it, else the smallest offset.
    #[pyo3(signature = (topic, queue_id, time, *, boundary = "lower"))]
    fn offset_for_time(
        &self,
        py: Python<'_>,
        topic: &str,
        #[pyo3(from_py_with = queue)] queue_id: i32,
        time: &Bound<'_, PyAny>,
        boundary: &str,
    ) -> PyResult<i64> {
        let store = self.reads()?;
        let when = crate::convert::arguments::time("time", time)?;
        let boundary = match boundary {
            "lower" => Boundary::Lower,
            "upper" => Boundary::Upper,
            _ => {
                return Err(PyValueError::new_err(format!(
                    "boundary must be \"lower\" or \"upper\", not {boundary:?}"
                )));
            }
        };
        let found = about_topic(py, store, || store.offset_for_time(topic, queue_id, when, boundary))?;
        self.shared.say_notes(py)?;
        Ok(found)
    }

    /// Waits for a message; returns False if `timeout` passes first.
    ///
    /// `wait(topic)` waits for the next message in any queue. A topic that does not exist yet is waited for, too.
    ///
    /// Args:
    ///     topic: the topic.
    ///     queue_id: only this queue.
    ///     offset: waits until this offset of the queue can be read; needs `queue_id`. None waits for the first message
    ///         that is appended after the call.
    ///     timeout: longest wait; None is without a limit.
    ///
    /// Raises:
    ///     InvalidOptionError: an `offset` without a `queue_id`.
    ///     StoreClosedError: the store was closed during the wait.
    #[pyo3(signature = (topic, queue_id = None, offset = None, timeout = None))]
    fn wait(
        &self,
        py: Python<'_>,
        topic: &str,
        queue_id: Option<&Bound<'_, PyAny>>,
        offset: Option<&Bound<'_, PyAny>>,
        timeout: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let store = self.core()?;
        let queue_id = queue_id.map(queue).transpose()?;
        let offset = offset.map(crate::convert::arguments::offset).transpose()?;
        let timeout = timeout.map(|timeout| wait("timeout", timeout)).transpose()?;
        self.wait_for_message(py, store, topic, queue_id, offset, timeout)
    }
}
