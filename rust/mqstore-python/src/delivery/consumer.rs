//! `NativeConsumer`: the methods of a consumer. Each Python method makes one call of the broker crate.
//!
//! The subclass `mqstore.Consumer` adds the methods that need no speed. A method that can block waits in slices with
//! the interpreter released, so that Ctrl-C is handled.

use std::collections::HashMap;
use std::sync::Arc;

use mqstore::delivery::{
    BrokerError, ConsumerOptions, Job, JobRequest, JobState, LostMessagePolicy, OffsetHistory, OffsetRanges,
    Queue, StartOffset, WorkQueueJobs,
};
use mqstore::options::DamagePolicy;
use mqstore::store::{GroupOffset, WorkCounts};
use mqstore_server::share::Consumer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use crate::convert::arguments::{count, duration, offset, queue, time, wait};
use crate::convert::filter::message_filter;
use crate::convert::hooks::counts_row;
use crate::convert::options::damage_policy;
use crate::convert::stored_message::StoredMessage;
use crate::delivery::work_queue::stepped;
use crate::error::{ConsumerClosedError, InvalidOptionError};
use crate::runtime::{ForkGuarded, SharedStore, delivered, detached, reading};
use crate::store::NativeStore;

/// The native part of `mqstore.Consumer`.
#[pyclass(name = "Consumer", frozen, subclass, module = "mqstore._mqstore")]
pub(crate) struct NativeConsumer {
    consumer: ForkGuarded<Consumer>,
    shared: Arc<SharedStore>,
    /// Keeps the store alive while the consumer exists.
    _owner: Py<NativeStore>,
    on_damage: DamagePolicy,
}

impl NativeConsumer {
    pub(crate) fn consumer(&self) -> PyResult<&Consumer> {
        self.consumer.get()
    }

    /// Passes the notes of the group to the logger, and warns of skipped messages.
    pub(crate) fn tell_notes(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.log_notes(py)?;
        match self.on_damage {
            DamagePolicy::Skip if !self.shared.is_closed() => self.shared.say_notes(py),
            _ => Ok(()),
        }
    }

    /// Calls the broker crate and passes its notes to the logger.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Consumer) -> Result<T, BrokerError> + Send,
    ) -> PyResult<T> {
        let consumer = self.consumer()?;
        let result = delivered(py, || call(consumer));
        self.shared.log_notes(py)?;
        result
    }
}

/// Converts a start position: a word or a time.
fn place(name: &str, value: &Bound<'_, PyAny>) -> PyResult<StartOffset> {
    let Ok(word) = value.cast::<PyString>() else { return time(name, value).map(StartOffset::Time) };
    match word.to_str()? {
        "earliest" => Ok(StartOffset::Earliest),
        "latest" => Ok(StartOffset::Latest),
        // Every time in ISO 8601 begins with a digit.
        other if other.trim_start().starts_with(|first: char| first.is_ascii_digit()) => {
            time(name, value).map(StartOffset::Time)
        }
        other => {
            let reason = format!("must be \"earliest\", \"latest\" or a time, not {other:?}");
            Err(InvalidOptionError::new_err((name.to_owned(), reason)))
        }
    }
}

/// Converts the offsets by queue that `commit` takes.
pub(crate) fn places(offsets: &Bound<'_, PyDict>) -> PyResult<Vec<(Queue, i64)>> {
    let mut known = HashMap::<String, Arc<str>>::new();
    let place = |(key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
        let (topic, queue_id): (String, Bound<'_, PyAny>) = key.extract()?;
        let topic = Arc::clone(known.entry(topic).or_insert_with_key(|topic| Arc::from(topic.as_str())));
        Ok((Queue { topic, queue_id: queue(&queue_id)? }, offset(&value)?))
    };
    offsets.iter().map(place).collect()
}

/// Returns the names of all groups, sorted; `Store.groups`.
#[pyfunction]
pub(crate) fn groups(store: &Bound<'_, NativeStore>) -> PyResult<Vec<String>> {
    let core = store.get().core()?;
    reading(store.py(), core, || core.group_table().map(|table| table.names()))
}

/// Returns the lag of all groups: group, topic and messages that the group has not read; for metrics.
#[pyfunction]
pub(crate) fn group_lags(store: &Bound<'_, NativeStore>) -> PyResult<Vec<(String, String, u64)>> {
    let core = store.get().core()?;
    let found = reading(store.py(), core, || core.group_table()?.offsets())?;
    let lag = |queues: &[GroupOffset]| {
        queues.iter().filter_map(|queue| queue.lag).map(|lag| lag.max(0).unsigned_abs()).sum()
    };
    Ok(found.into_iter().map(|of| (of.group, of.topic, lag(&of.queues))).collect())
}

/// Group, topic, and the numbers of ready, delayed, leased and dying messages.
type WorkRow = (String, String, u64, u64, u64, u64);

/// Returns the messages of all work queues: group, topic, ready, delayed, leased and dying; for metrics.
#[pyfunction]
pub(crate) fn work_counts(store: &Bound<'_, NativeStore>) -> PyResult<Vec<WorkRow>> {
    let core = store.get().core()?;
    let found = reading(store.py(), core, || core.group_table()?.work_counts())?;
    let row = |of: WorkCounts| (of.group, of.topic, of.ready, of.delayed, of.leased, of.dying);
    Ok(found.into_iter().map(row).collect())
}

/// State, number of deliveries, the time at which it is due or its lease ends, reason, and the message.
type JobRow = (&'static str, u32, Option<i64>, Option<String>, StoredMessage);

/// Group and topic of a work queue; ready, delayed, leased, dying and dead messages; the listed ones.
type JobsRow = (String, String, (u64, u64, u64, u64, u64), Vec<JobRow>);

/// Returns the work queues of a store, of one topic or of all, each with up to `most` messages of each state.
#[pyfunction]
#[pyo3(signature = (store, topic, most))]
pub(crate) fn jobs(
    store: &Bound<'_, NativeStore>,
    topic: Option<&str>,
    most: usize,
) -> PyResult<Vec<JobsRow>> {
    let core = store.get().core()?;
    let request = JobRequest { topic, most, read: u64::MAX };
    let found = detached(store.py(), || mqstore::delivery::jobs(core, &request))?;
    Ok(found.into_iter().map(|((group, topic), of)| jobs_row(group, topic, of)).collect())
}

/// Returns the groups with dead letters, each with ranges of the offsets of those that were neither redriven nor deleted.
#[pyfunction]
pub(crate) fn dead_letters(store: &Bound<'_, NativeStore>) -> PyResult<Vec<(String, OffsetRanges)>> {
    let core = store.get().core()?;
    detached(store.py(), || mqstore::delivery::dead_letters(core))
}

fn jobs_row(group: String, topic: String, of: WorkQueueJobs) -> JobsRow {
    let row = |job: Job| {
        let state = match job.state {
            JobState::Ready => "ready",
            JobState::Delayed => "delayed",
            JobState::Leased => "leased",
            JobState::Dying => "dying",
            JobState::Dead => "dead",
        };
        let reason = job.reason.map(|reason| reason.to_string());
        (state, job.attempts, job.due_ms, reason, StoredMessage::from(job.record))
    };
    (group, topic, counts_row(of.counts), of.jobs.into_iter().map(row).collect())
}

/// Returns the commits of a group, oldest first, as topic, queue, offset and time; `Store.offset_history`.
#[pyfunction]
pub(crate) fn offset_history(
    store: &Bound<'_, NativeStore>,
    group: &str,
) -> PyResult<Vec<(String, i32, i64, i64)>> {
    let (py, core) = (store.py(), store.get().core()?);
    let mut history = delivered(py, || OffsetHistory::open(core, group))?;
    let mut found = Vec::new();
    loop {
        let some = delivered(py, || history.next_batch())?;
        if some.is_empty() {
            return Ok(found);
        }
        found
            .extend(some.into_iter().map(|each| (each.topic, each.queue_id, each.offset, each.timestamp_ms)));
        py.check_signals()?;
    }
}

#[pymethods]
impl NativeConsumer {
    #[new]
    #[pyo3(signature = (store, group, topics, filter, start, ordered, broadcast, name, commit_interval, on_lost, history, on_damage))]
    #[expect(clippy::too_many_arguments, reason = "each is a separate argument in Python")]
    fn new(
        store: &Bound<'_, NativeStore>,
        group: &str,
        topics: Vec<String>,
        filter: Option<&Bound<'_, PyAny>>,
        start: &Bound<'_, PyAny>,
        ordered: bool,
        broadcast: bool,
        name: Option<String>,
        commit_interval: Option<&Bound<'_, PyAny>>,
        on_lost: &str,
        history: bool,
        on_damage: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let on_damage = damage_policy(on_damage)?;
        let filter = message_filter(filter)?;
        let (py, native) = (store.py(), store.get());
        let (core, shared) = (native.core()?, native.shared());
        let options = ConsumerOptions {
            filter,
            start: place("start", start)?,
            ordered,
            broadcast,
            name,
            commit_interval: commit_interval
                .map(|interval| duration("commit_interval", interval))
                .transpose()?,
            on_lost: match on_lost {
                "continue" => LostMessagePolicy::GoOn,
                "raise" => LostMessagePolicy::Fail,
                other => {
                    let reason = format!("on_lost must be \"continue\" or \"raise\", not {other:?}");
                    return Err(PyValueError::new_err(reason));
                }
            },
            on_damage,
            history,
        };
        let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
        let share = shared.share()?;
        let consumer = delivered(py, || match share {
            Some(share) => share.consumer(group, &topics, &options),
            None => core.consumer(group, &topics, options).map(|own| Consumer::Own(Box::new(own))),
        })?;
        shared.log_notes(py)?;
        let consumer = ForkGuarded::new(Arc::clone(&shared), consumer);
        Ok(Self { consumer, shared, _owner: store.clone().unbind(), on_damage })
    }

    /// The consumer's group.
    #[getter]
    fn group(&self) -> PyResult<&str> {
        Ok(self.consumer()?.group())
    }

    /// The consumer's topics, sorted.
    #[getter]
    fn topics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.consumer()?.topics())
    }

    /// Whether the consumer or its store is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.shared.is_closed() || self.consumer().map_or(true, Consumer::is_closed)
    }

    /// The queues that the consumer owns now, as pairs of topic and queue id, sorted; empty once it is closed.
    #[getter]
    fn assignment<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let queues = self.call(py, Consumer::assignment)?;
        PyTuple::new(py, queues.iter().map(|queue| (&*queue.topic, queue.queue_id)).collect::<Vec<_>>())
    }

    /// Returns the next messages: in order within a queue, and from one queue after the other.
    ///
    /// Args:
    ///     max_messages: maximum number of messages to return.
    ///     timeout: longest wait for the first message; None waits without a limit, 0 does not wait.
    ///
    /// Returns:
    ///     At least one message, or an empty list if `timeout` passes first.
    ///
    /// Raises:
    ///     ConsumerClosedError: the consumer was closed, before the call or during it.
    ///     OffsetOutOfRangeError: messages were deleted before the group read them, and `on_lost` is `"raise"`.
    ///     CorruptionError: the next message is damaged, and `on_damage` is `"raise"`.
    #[pyo3(
        signature = (max_messages = None, timeout = None),
        text_signature = "($self, max_messages=1000, timeout=None)"
    )]
    fn poll<'py>(
        &self,
        py: Python<'py>,
        max_messages: Option<&Bound<'py, PyAny>>,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let consumer = self.consumer()?;
        let max_messages = max_messages.map_or(Ok(1000), |most| count("max_messages", most))?;
        let timeout = timeout.map(|timeout| wait("timeout", timeout)).transpose()?;
        let poll = delivered(py, || consumer.poll(Some(max_messages), timeout))?;
        let found = stepped(py, poll);
        self.tell_notes(py)?;
        let messages = found?.into_iter();
        let messages = messages.map(|record| Bound::new(py, StoredMessage::from(record)));
        PyList::new(py, messages.collect::<PyResult<Vec<_>>>()?)
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<StoredMessage>> {
        let consumer = self.consumer()?;
        let found = delivered(py, || consumer.poll(None, None)).and_then(|poll| stepped(py, poll));
        self.tell_notes(py)?;
        match found {
            // A closed consumer ends the iteration.
            Err(error) if error.is_instance_of::<ConsumerClosedError>(py) => Ok(None),
            found => Ok(found?.into_iter().next().map(StoredMessage::from)),
        }
    }

    /// Stores for each queue the offset after the last message that this consumer returned.
    ///
    /// After `commit` returns, the offset survives a kill of the process. It survives a loss of power after
    /// `commit_interval` at the latest.
    ///
    /// Args:
    ///     offsets: the next offset to read, for the listed queues only, by topic and queue id: `{("orders", 0): 17}`.
    ///     durable: whether to wait until the offsets are on the disk.
    ///
    /// Raises:
    ///     QueueNotAssignedError: this consumer does not own a queue in `offsets`; nothing was stored.
    ///     OffsetOutOfRangeError: an offset is after the end of its queue.
    #[pyo3(signature = (offsets = None, *, durable = false))]
    fn commit(&self, py: Python<'_>, offsets: Option<&Bound<'_, PyDict>>, durable: bool) -> PyResult<()> {
        match offsets {
            None => self.call(py, |consumer| consumer.commit(None, durable)),
            Some(offsets) => {
                let offsets = places(offsets)?;
                self.call(py, |consumer| consumer.commit(Some(&offsets), durable))
            }
        }
    }

    /// Continues at `offset` of a queue.
    ///
    /// The next commit stores the position reached from there, even if it is lower than the committed offset.
    ///
    /// Raises:
    ///     QueueNotAssignedError: this consumer does not own the queue.
    ///     OffsetOutOfRangeError: the offset is neither in the queue nor its end.
    #[pyo3(signature = (topic, queue_id, offset))]
    fn seek(
        &self,
        py: Python<'_>,
        topic: &str,
        #[pyo3(from_py_with = queue)] queue_id: i32,
        #[pyo3(from_py_with = offset)] offset: i64,
    ) -> PyResult<()> {
        self.call(py, |consumer| consumer.seek(topic, queue_id, offset))
    }

    /// Continues, in each owned queue, at the first message stored at or after `time`.
    fn seek_to_time(&self, py: Python<'_>, time: &Bound<'_, PyAny>) -> PyResult<()> {
        let when = crate::convert::arguments::time("time", time)?;
        self.call(py, |consumer| consumer.seek_to_time(when))
    }

    /// Moves the group in each queue that this consumer owns, and commits the new offsets.
    ///
    /// Args:
    ///     to: `"earliest"`, `"latest"`, or a time, which selects the first message stored at or after it.
    ///     durable: whether to wait until the offsets are on the disk.
    #[pyo3(signature = (to, *, durable = false))]
    fn reset(&self, py: Python<'_>, to: &Bound<'_, PyAny>, durable: bool) -> PyResult<()> {
        let to = place("to", to)?;
        self.call(py, |consumer| consumer.reset(to, durable))
    }

    /// Returns the lowest offset that the consumer can return next from a queue.
    ///
    /// Raises:
    ///     QueueNotAssignedError: this consumer does not own the queue.
    #[pyo3(signature = (topic, queue_id))]
    fn position(
        &self,
        py: Python<'_>,
        topic: &str,
        #[pyo3(from_py_with = queue)] queue_id: i32,
    ) -> PyResult<i64> {
        self.call(py, |consumer| consumer.position(topic, queue_id))
    }

    /// Returns the committed offset of a queue: the next one that the group reads. None if there is none.
    ///
    /// Raises:
    ///     QueueNotAssignedError: this consumer does not own the queue.
    #[pyo3(signature = (topic, queue_id))]
    fn committed(
        &self,
        py: Python<'_>,
        topic: &str,
        #[pyo3(from_py_with = queue)] queue_id: i32,
    ) -> PyResult<Option<i64>> {
        self.call(py, |consumer| consumer.committed(topic, queue_id))
    }

    /// Returns, for each owned queue, the number of messages between the committed offset and the end.
    ///
    /// Returns:
    ///     The numbers by topic and queue id: `{("orders", 0): 17}`.
    fn lag<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let lags = PyDict::new(py);
        for (queue, lag) in self.call(py, Consumer::lag)? {
            lags.set_item((&*queue.topic, queue.queue_id), lag)?;
        }
        Ok(lags)
    }

    /// Releases the queues to the other consumers of the group. A second call does nothing.
    ///
    /// Messages that were returned and not committed are delivered again.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.consumer().is_err() {
            return Ok(());
        }
        self.call(py, |consumer| {
            consumer.close();
            Ok(())
        })
    }
}
