//! `NativeConsumer`: a consumer's verbs, one Python call to one call of the broker crate.
//!
//! `mqstore.Consumer` is its subclass and adds what needs no speed. What may wait does so in slices with the interpreter
//! released, so that Ctrl-C is answered.

use std::collections::HashMap;
use std::sync::Arc;

use mqstore_delivery::{
    BrokerError, Consumer, ConsumerOptions, LostMessagePolicy, OffsetHistory, Queue, StartOffset,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use crate::convert::arguments::{duration, offset, queue, time};
use crate::convert::error::log_notes;
use crate::convert::filter::message_filter;
use crate::convert::stored_message::StoredMessage;
use crate::runtime::{Kept, Shared, awaited, delivered, detached};
use crate::store::NativeStore;

/// The native part of `mqstore.Consumer`.
#[pyclass(frozen, subclass, module = "mqstore._mqstore")]
pub(crate) struct NativeConsumer {
    consumer: Kept<Consumer>,
    shared: Arc<Shared>,
    /// Keeps the store from being forgotten while somebody consumes.
    _owner: Py<NativeStore>,
}

impl NativeConsumer {
    pub(crate) fn consumer(&self) -> PyResult<&Consumer> {
        self.consumer.get()
    }

    /// Calls the broker crate, and tells the log what it has to say.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Consumer) -> Result<T, BrokerError> + Send,
    ) -> PyResult<T> {
        let consumer = self.consumer()?;
        let result = delivered(py, || call(consumer));
        log_notes(py, consumer.take_notes())?;
        result
    }
}

/// Where to begin, or to go to: a word or a time.
fn place(name: &str, value: &Bound<'_, PyAny>) -> PyResult<StartOffset> {
    let Ok(word) = value.cast::<PyString>() else { return time(name, value).map(StartOffset::Time) };
    match word.to_str()? {
        "earliest" => Ok(StartOffset::Earliest),
        "latest" => Ok(StartOffset::Latest),
        other => Err(PyValueError::new_err(format!(
            "{name} must be \"earliest\", \"latest\" or a time, not {other:?}"
        ))),
    }
}

/// Offsets by queue, as `commit` takes them.
pub(crate) fn places(offsets: &Bound<'_, PyDict>) -> PyResult<Vec<(Queue, i64)>> {
    let mut known = HashMap::<String, Arc<str>>::new();
    let place = |(key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
        let (topic, queue_id): (String, Bound<'_, PyAny>) = key.extract()?;
        let topic = Arc::clone(known.entry(topic).or_insert_with_key(|topic| Arc::from(topic.as_str())));
        Ok((Queue { topic, queue_id: queue(&queue_id)? }, offset(&value)?))
    };
    offsets.iter().map(place).collect()
}

/// The names of all groups, sorted; `Store.groups`.
#[pyfunction]
pub(crate) fn groups(store: &Bound<'_, NativeStore>) -> PyResult<Vec<String>> {
    let core = store.get().core()?;
    detached(store.py(), || core.groups())
}

/// What was committed, oldest first: topic, queue, offset and time; `Store.offset_history`.
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
    #[pyo3(signature = (store, group, topics, filter, start, ordered, broadcast, name, commit_interval, on_lost, history))]
    #[expect(clippy::too_many_arguments, reason = "each is an argument of its own in Python")]
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
    ) -> PyResult<Self> {
        let (py, native) = (store.py(), store.get());
        let (core, shared) = (native.core()?, native.shared());
        let options = ConsumerOptions {
            filter: message_filter(filter)?,
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
            history,
        };
        let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
        let consumer = delivered(py, || shared.broker(core)?.consumer(group, &topics, options))?;
        log_notes(py, consumer.take_notes())?;
        let consumer = Kept::new(Arc::clone(&shared), consumer);
        Ok(Self { consumer, shared, _owner: store.clone().unbind() })
    }

    /// Its group.
    #[getter]
    fn group(&self) -> PyResult<&str> {
        Ok(self.consumer()?.group())
    }

    /// Its topics, sorted.
    #[getter]
    fn topics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.consumer()?.topics().collect::<Vec<_>>())
    }

    /// Whether it was closed, or its store.
    #[getter]
    fn closed(&self) -> bool {
        self.shared.is_closed() || self.consumer().map_or(true, Consumer::is_closed)
    }

    /// The queues that it has now, each a topic and a queue id, sorted; none once it is closed.
    #[getter]
    fn assignment<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let queues = self.call(py, Consumer::assignment)?;
        PyTuple::new(py, queues.iter().map(|queue| (&*queue.topic, queue.queue_id)).collect::<Vec<_>>())
    }

    /// The next messages, in the order of their queue, from one queue after the other.
    ///
    /// Args:
    ///     max_messages: the most to return.
    ///     timeout: how long to wait for the first, in seconds or as a `timedelta`; None is for ever, 0 does not wait.
    ///
    /// Returns:
    ///     At least one message unless `timeout` passes first.
    ///
    /// Raises:
    ///     ConsumerClosedError: it was closed, before the call or during it.
    ///     OffsetOutOfRangeError: messages were deleted before the group read them, and `on_lost` is `"raise"`.
    #[pyo3(signature = (max_messages = 1000, timeout = None))]
    fn poll<'py>(
        &self,
        py: Python<'py>,
        max_messages: usize,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let consumer = self.consumer()?;
        let timeout = timeout.map(|timeout| duration("timeout", timeout)).transpose()?;
        let found = awaited(py, timeout, |wait| {
            let found = consumer.poll_once(max_messages, wait)?;
            Ok(Some(found).filter(|found| !found.is_empty() || max_messages == 0))
        });
        log_notes(py, consumer.take_notes())?;
        let messages = found?.unwrap_or_default().into_iter();
        let messages = messages.map(|record| Bound::new(py, StoredMessage::from(record)));
        PyList::new(py, messages.collect::<PyResult<Vec<_>>>()?)
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<StoredMessage>> {
        let consumer = self.consumer()?;
        let found = awaited(py, None, |wait| match consumer.next_once(wait) {
            // The end of the iteration.
            Err(BrokerError::ConsumerClosed { .. }) => Ok(Some(None)),
            found => Ok(found?.map(Some)),
        });
        log_notes(py, consumer.take_notes())?;
        Ok(found?.flatten().map(StoredMessage::from))
    }

    /// Stores how far the group has come: for each queue the offset behind the last message that was returned here.
    ///
    /// It survives a kill of the process when this returns, and a loss of power within `commit_interval`.
    ///
    /// Args:
    ///     offsets: the next offset to be read of single queues instead, by topic and queue id: `{("orders", 0): 17}`.
    ///     sync: whether to wait until it is on the disk.
    ///
    /// Raises:
    ///     QueueNotAssignedError: a queue in `offsets` is not this consumer's; nothing was stored.
    ///     OffsetOutOfRangeError: an offset lies behind the queue's end.
    #[pyo3(signature = (offsets = None, *, sync = false))]
    fn commit(&self, py: Python<'_>, offsets: Option<&Bound<'_, PyDict>>, sync: bool) -> PyResult<()> {
        match offsets {
            None => self.call(py, |consumer| consumer.commit(sync)),
            Some(offsets) => {
                let offsets = places(offsets)?;
                self.call(py, |consumer| consumer.commit_offsets(&offsets, sync))
            }
        }
    }

    /// Goes on at `offset` of a queue.
    ///
    /// The next commit stores where it came to from there, also if that is further back than before.
    ///
    /// Raises:
    ///     QueueNotAssignedError: the queue is not this consumer's.
    ///     OffsetOutOfRangeError: the queue does not hold the offset, and it is not its end.
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

    /// Goes on, in each queue that it has, at the first message stored at or after `time`.
    fn seek_to_time(&self, py: Python<'_>, time: &Bound<'_, PyAny>) -> PyResult<()> {
        let when = crate::convert::arguments::time("time", time)?;
        self.call(py, |consumer| consumer.seek_to_time(when))
    }

    /// Moves the group, in each queue that this consumer has, and stores that.
    ///
    /// Args:
    ///     to: `"earliest"`, `"latest"`, or a time: the first message stored at or after it.
    ///     sync: whether to wait until it is on the disk.
    #[pyo3(signature = (to, *, sync = false))]
    fn reset(&self, py: Python<'_>, to: &Bound<'_, PyAny>, sync: bool) -> PyResult<()> {
        let to = place("to", to)?;
        self.call(py, |consumer| consumer.reset(to, sync))
    }

    /// The offset of the next message that it returns of a queue, at least.
    ///
    /// Raises:
    ///     QueueNotAssignedError: the queue is not this consumer's.
    #[pyo3(signature = (topic, queue_id))]
    fn position(
        &self,
        py: Python<'_>,
        topic: &str,
        #[pyo3(from_py_with = queue)] queue_id: i32,
    ) -> PyResult<i64> {
        self.call(py, |consumer| consumer.position(topic, queue_id))
    }

    /// The offset that is stored for a queue: the next one the group is to read; None where none is.
    ///
    /// Raises:
    ///     QueueNotAssignedError: the queue is not this consumer's.
    #[pyo3(signature = (topic, queue_id))]
    fn committed(
        &self,
        py: Python<'_>,
        topic: &str,
        #[pyo3(from_py_with = queue)] queue_id: i32,
    ) -> PyResult<Option<i64>> {
        self.call(py, |consumer| consumer.committed(topic, queue_id))
    }

    /// How many messages lie between what is committed and the end, for each queue that it has.
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

    /// Gives its queues to the others of its group; a second call does nothing.
    ///
    /// What was returned and not committed comes again.
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
