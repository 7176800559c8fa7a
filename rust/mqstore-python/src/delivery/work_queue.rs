//! `NativeWorkQueue`: a work queue's verbs, one Python call to one call of the broker crate.
//!
//! `mqstore.WorkQueue` is its subclass and adds what needs no speed. What may wait does so in slices with the interpreter
//! released, so that Ctrl-C is answered.

use std::sync::Arc;
use std::time::Duration;

use mqstore_base::message::Appended;
use mqstore_delivery::{LeasedMessage as Leased, NewWork, WorkQueue, WorkQueueOptions};
use mqstore_format::Host;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

use crate::convert::append_input::parts;
use crate::convert::append_result::AppendResult;
use crate::convert::arguments::{EncodedProperties, count, duration, encode, number};
use crate::convert::error::{broker_to_py, log_notes};
use crate::delivery::leased_message::LeasedMessage;
use crate::runtime::{Kept, Shared, awaited, delivered};
use crate::store::NativeStore;

/// Dead letters that are put back between two looks for Ctrl-C.
const REDRIVEN_AT_ONCE: u64 = 256;

/// The native part of `mqstore.WorkQueue`.
#[pyclass(frozen, subclass, module = "mqstore._mqstore")]
pub(crate) struct NativeWorkQueue {
    queue: Kept<WorkQueue>,
    shared: Arc<Shared>,
    /// Keeps the store from being forgotten while somebody works.
    _owner: Py<NativeStore>,
    host: Host,
    topic: Py<PyString>,
    backoff: Option<Py<PyAny>>,
}

impl NativeWorkQueue {
    pub(crate) fn queue(&self) -> PyResult<&WorkQueue> {
        self.queue.get()
    }

    /// The results of messages that were put.
    pub(crate) fn appended<'py>(
        &self,
        py: Python<'py>,
        appended: Vec<Appended>,
    ) -> PyResult<Vec<Bound<'py, AppendResult>>> {
        let topic = self.topic.bind(py);
        appended
            .into_iter()
            .map(|one| Bound::new(py, AppendResult::from_core(topic, self.host, one)))
            .collect()
    }

    /// The messages that were got.
    pub(crate) fn leased<'py>(
        &self,
        py: Python<'py>,
        found: Vec<Leased>,
    ) -> PyResult<Vec<Bound<'py, LeasedMessage>>> {
        log_notes(py, self.queue()?.take_notes())?;
        found.into_iter().map(|message| LeasedMessage::from_core(py, &self.shared, message)).collect()
    }

    /// How long a message waits that is given back: what the caller says, or else what the queue's function does.
    pub(crate) fn delay(
        &self,
        py: Python<'_>,
        delay: Option<&Bound<'_, PyAny>>,
        attempt: u32,
    ) -> PyResult<Option<Duration>> {
        match (delay, &self.backoff) {
            (Some(delay), _) => duration("delay", delay).map(Some),
            (None, Some(backoff)) => duration("backoff", &backoff.bind(py).call1((attempt,))?).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// Its topic.
    pub(crate) fn name<'a, 'py>(&'a self, py: Python<'py>) -> &'a Bound<'py, PyString> {
        self.topic.bind(py)
    }

    fn put_work<'py>(
        &self,
        py: Python<'py>,
        work: &[NewWork<'_>],
        timeout: Option<Duration>,
    ) -> PyResult<Vec<Bound<'py, AppendResult>>> {
        let queue = self.queue()?;
        let mut appended = awaited(py, timeout, |wait| queue.put_once(work, wait))?;
        if appended.is_none() {
            // Once more, to learn what there is no room in.
            appended = awaited(py, Some(Duration::ZERO), |wait| queue.put_once(work, wait))?;
        }
        let Some(appended) = appended else { return Err(broker_to_py(queue.full())) };
        self.appended(py, appended)
    }

    fn got<'py>(
        &self,
        py: Python<'py>,
        count: usize,
        timeout: Option<Duration>,
    ) -> PyResult<Vec<Bound<'py, LeasedMessage>>> {
        let queue = self.queue()?;
        let found = awaited(py, timeout, |wait| {
            let found = queue.get_once(count, wait)?;
            Ok(Some(found).filter(|found| !found.is_empty() || count == 0))
        })?;
        self.leased(py, found.unwrap_or_default())
    }
}

/// How long a call may wait, by the rules of `queue.Queue`; `None` is for ever.
fn patience(
    block: Option<&Bound<'_, PyAny>>,
    timeout: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<Duration>> {
    if !block.map_or(Ok(true), PyAnyMethods::is_truthy)? {
        return Ok(Some(Duration::ZERO));
    }
    let Some(timeout) = timeout else { return Ok(None) };
    // Less than nothing is nothing elsewhere.
    if timeout.lt(0).unwrap_or(false) {
        return Err(PyValueError::new_err("'timeout' must be a non-negative number"));
    }
    duration("timeout", timeout).map(Some)
}

#[pymethods]
impl NativeWorkQueue {
    #[new]
    #[pyo3(signature = (store, topic, group, invisible_duration, max_attempts, backoff, maxsize))]
    fn new(
        store: &Bound<'_, NativeStore>,
        topic: &Bound<'_, PyString>,
        group: &str,
        invisible_duration: &Bound<'_, PyAny>,
        max_attempts: Option<&Bound<'_, PyAny>>,
        backoff: Option<Py<PyAny>>,
        maxsize: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let (py, native) = (store.py(), store.get());
        let (core, shared, name) = (native.core()?, native.shared(), topic.to_str()?);
        let options = WorkQueueOptions {
            invisible: duration("invisible_duration", invisible_duration)?,
            max_attempts: max_attempts.map(|most| count("max_attempts", most)).transpose()?,
            maxsize: count("maxsize", maxsize)?,
            ..WorkQueueOptions::default()
        };
        let queue = delivered(py, || shared.broker(core)?.work_queue(name, group, options))?;
        log_notes(py, queue.take_notes())?;
        Ok(Self {
            queue: Kept::new(Arc::clone(&shared), queue),
            shared,
            _owner: store.clone().unbind(),
            host: native.host(),
            topic: topic.clone().unbind(),
            backoff,
        })
    }

    /// The topic whose messages it hands out.
    #[getter]
    fn topic(&self, py: Python<'_>) -> Py<PyString> {
        self.topic.clone_ref(py)
    }

    /// The group that finishes them.
    #[getter]
    fn group(&self) -> PyResult<&str> {
        Ok(self.queue()?.group())
    }

    /// The topic of the group's dead letters: `%DLQ%` and the group's name.
    #[getter]
    fn dead_letters(&self) -> PyResult<&str> {
        Ok(self.queue()?.dead_letters())
    }

    /// How long a message that was got stays out of sight of others, in seconds.
    #[getter]
    fn invisible_duration(&self) -> PyResult<f64> {
        Ok(self.queue()?.options().invisible.as_secs_f64())
    }

    /// After so many deliveries a message goes to the dead letters; None is never.
    #[getter]
    fn max_attempts(&self) -> PyResult<Option<u32>> {
        Ok(self.queue()?.options().max_attempts)
    }

    /// How many messages that nobody has the queue may hold before a put waits; 0 is no limit.
    #[getter]
    fn maxsize(&self) -> PyResult<u64> {
        Ok(self.queue()?.options().maxsize)
    }

    /// Whether this handle was closed, or its store.
    #[getter]
    fn closed(&self) -> bool {
        self.shared.is_closed() || self.queue().map_or(true, WorkQueue::is_closed)
    }

    /// Puts a message in.
    ///
    /// Args:
    ///     body: any bytes-like object.
    ///     keys: one key or several, as for `Store.append`.
    ///     tags: the tag.
    ///     properties: the message's own, as for `Store.append`.
    ///     delay: how long it is held back, in seconds or as a `timedelta`, at most 30 days. It keeps its place in the
    ///         log, and every group holds it back.
    ///     durable: whether to wait for a sync whatever the store's durability.
    ///     block: whether to wait for room where there is a `maxsize`.
    ///     timeout: how long to wait; None is for ever.
    ///
    /// Raises:
    ///     Full: no room, or none in time.
    ///     ShutDown: the queue was shut down, or this handle closed.
    ///     InvalidMessageError: text or a number that the format cannot hold; nothing was written.
    #[pyo3(
        signature = (body, *, keys = None, tags = None, properties = None, delay = None, durable = false, block = None,
                     timeout = None),
        text_signature = "($self, body, *, keys=(), tags=None, properties=None, delay=None, durable=False, \
                          block=True, timeout=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "a message has this many parts")]
    fn put<'py>(
        &self,
        py: Python<'py>,
        body: &Bound<'py, PyAny>,
        keys: Option<&Bound<'py, PyAny>>,
        tags: Option<&Bound<'py, PyAny>>,
        properties: Option<&Bound<'py, PyAny>>,
        delay: Option<&Bound<'py, PyAny>>,
        durable: bool,
        block: Option<&Bound<'py, PyAny>>,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, AppendResult>> {
        let body = crate::convert::arguments::body(body)?;
        let EncodedProperties { properties, unique_key } = encode(keys, tags, properties)?;
        let work = NewWork {
            body: body.as_bytes(),
            properties: &properties,
            unique_key: unique_key.as_deref(),
            delay: delay.map(|delay| duration("delay", delay)).transpose()?,
            durable,
            ..NewWork::default()
        };
        let put = self.put_work(py, &[work], patience(block, timeout)?)?.pop();
        put.map_or_else(|| Err(broker_to_py(self.queue()?.full())), Ok)
    }

    /// Puts messages in together, under one lock and with one sync; results in the order given.
    ///
    /// Waits until there is room for all of them. After a crash a prefix of them may be there.
    ///
    /// Args:
    ///     messages: bodies or `Message`s.
    ///     delay: how long all of them are held back.
    ///     durable: as for `put`.
    ///     block: as for `put`.
    ///     timeout: as for `put`.
    ///
    /// Raises:
    ///     Full: no room, or none in time; none was put in.
    ///     ShutDown: the queue was shut down, or this handle closed.
    #[pyo3(
        signature = (messages, *, delay = None, durable = false, block = None, timeout = None),
        text_signature = "($self, messages, *, delay=None, durable=False, block=True, timeout=None)"
    )]
    fn put_many<'py>(
        &self,
        py: Python<'py>,
        messages: &Bound<'py, PyAny>,
        delay: Option<&Bound<'py, PyAny>>,
        durable: bool,
        block: Option<&Bound<'py, PyAny>>,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let delay = delay.map(|delay| duration("delay", delay)).transpose()?;
        let parts = parts(messages)?;
        let work: Vec<_> = parts
            .iter()
            .map(|part| NewWork {
                body: part.body.as_bytes(),
                properties: &part.encoded.properties,
                unique_key: part.encoded.unique_key.as_deref(),
                flag: part.flag,
                born_timestamp_ms: part.born_timestamp_ms,
                delay,
                durable,
            })
            .collect();
        PyList::new(py, self.put_work(py, &work, patience(block, timeout)?)?)
    }

    /// Gets a message and has it alone for `invisible_duration`; a message that is due again and a new one in turn.
    ///
    /// Args:
    ///     block: whether to wait for one.
    ///     timeout: how long to wait; None is for ever.
    ///
    /// Raises:
    ///     Empty: there is none, or none in time.
    ///     ShutDown: the queue was shut down and holds nothing more, or this handle was closed.
    #[pyo3(signature = (block = None, timeout = None), text_signature = "($self, block=True, timeout=None)")]
    fn get<'py>(
        &self,
        py: Python<'py>,
        block: Option<&Bound<'py, PyAny>>,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, LeasedMessage>> {
        let got = self.got(py, 1, patience(block, timeout)?)?.pop();
        got.map_or_else(|| Err(broker_to_py(self.queue()?.empty())), Ok)
    }

    /// Gets up to `count` messages, at least one unless `timeout` passes first; none is an empty list.
    ///
    /// Args:
    ///     count: the most to get.
    ///     timeout: how long to wait for the first; None is for ever, 0 does not wait.
    ///
    /// Raises:
    ///     ShutDown: the queue was shut down and holds nothing more, or this handle was closed.
    #[pyo3(signature = (count, timeout = None))]
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        count: usize,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.got(py, count, patience(None, timeout)?)?)
    }

    /// Finishes a message: it is not delivered again. To finish one again changes nothing.
    ///
    /// Args:
    ///     message: what `get` returned.
    ///     durable: whether to wait until that is on the disk; else it is within 0.1 s.
    ///
    /// Raises:
    ///     LeaseLostError: its time was over and somebody else got it, or it was given back.
    #[pyo3(signature = (message, *, durable = false))]
    fn ack(&self, py: Python<'_>, message: &Bound<'_, LeasedMessage>, durable: bool) -> PyResult<()> {
        let (queue, lease) = (self.queue()?, message.get().lease()?);
        delivered(py, || queue.ack(lease, durable))
    }

    /// Finishes messages; with `durable` one sync serves all of them.
    ///
    /// Raises:
    ///     LeaseLostError: one of them is somebody else's now; those before it are finished.
    #[pyo3(signature = (messages, *, durable = false))]
    fn ack_many(&self, py: Python<'_>, messages: &Bound<'_, PyAny>, durable: bool) -> PyResult<()> {
        let queue = self.queue()?;
        let messages: Vec<Bound<'_, LeasedMessage>> =
            messages.try_iter()?.map(|message| Ok(message?.cast_into()?)).collect::<PyResult<_>>()?;
        let leases = messages.iter().map(|message| message.get().lease()).collect::<PyResult<Vec<_>>>()?;
        delivered(py, || queue.ack_all(leases, durable))
    }

    /// Gives a message back, to be delivered again later.
    ///
    /// One that was delivered `max_attempts` times goes to the dead letters.
    ///
    /// Args:
    ///     message: what `get` returned.
    ///     delay: how long it waits, in seconds or as a `timedelta`, at most 30 days; None is what the queue's
    ///         `backoff` says.
    ///
    /// Raises:
    ///     LeaseLostError: its time was over and somebody else got it, or it was given back before.
    #[pyo3(signature = (message, delay = None))]
    fn nack(
        &self,
        py: Python<'_>,
        message: &Bound<'_, LeasedMessage>,
        delay: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let (queue, lease) = (self.queue()?, message.get().lease()?);
        let delay = self.delay(py, delay, lease.attempt())?;
        delivered(py, || queue.nack(lease, delay))?;
        log_notes(py, queue.take_notes())
    }

    /// Keeps a message for `duration` from now, whatever was left of its time.
    ///
    /// Args:
    ///     message: what `get` returned.
    ///     duration: seconds or a `timedelta`, 1 ms to 30 days.
    ///
    /// Raises:
    ///     LeaseLostError: its time was over and somebody else got it, or it was given back.
    ///     InvalidOptionError: `duration` is out of bounds.
    #[pyo3(signature = (message, duration))]
    fn extend(
        &self,
        py: Python<'_>,
        message: &Bound<'_, LeasedMessage>,
        duration: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (queue, lease) = (self.queue()?, message.get().lease()?);
        let time = crate::convert::arguments::duration("duration", duration)?;
        delivered(py, || queue.extend(lease, time))
    }

    /// Finishes `message`; without one the message that this thread got first, by `get`, of those that it still has.
    ///
    /// Raises:
    ///     ValueError: this thread has none.
    ///     LeaseLostError: as for `ack`.
    #[pyo3(signature = (message = None))]
    fn task_done(&self, py: Python<'_>, message: Option<&Bound<'_, LeasedMessage>>) -> PyResult<()> {
        if let Some(message) = message {
            return self.ack(py, message, false);
        }
        let queue = self.queue()?;
        delivered(py, || queue.task_done())
    }

    /// Waits until every message that was put in is finished, or a dead letter.
    ///
    /// After a shutdown at once it waits for what somebody has only.
    ///
    /// Args:
    ///     timeout: how long to wait; None is for ever.
    ///
    /// Returns:
    ///     False when `timeout` passed first.
    #[pyo3(signature = (timeout = None))]
    fn join(&self, py: Python<'_>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        let queue = self.queue()?;
        let done = awaited(py, patience(None, timeout)?, |wait| Ok(queue.join_once(wait)?.then_some(())))?;
        log_notes(py, queue.take_notes())?;
        Ok(done.is_some())
    }

    /// How many messages the queue holds that nobody has, those included that are not due yet.
    fn qsize(&self, py: Python<'_>) -> PyResult<u64> {
        let queue = self.queue()?;
        delivered(py, || queue.qsize())
    }

    /// Whether `qsize()` is 0.
    fn empty(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.qsize(py)? == 0)
    }

    /// Whether `qsize()` has reached `maxsize`; never without one.
    fn full(&self, py: Python<'_>) -> PyResult<bool> {
        let maxsize = self.maxsize()?;
        Ok(maxsize > 0 && self.qsize(py)? >= maxsize)
    }

    fn _counts(&self, py: Python<'_>) -> PyResult<(u64, u64, u64, u64)> {
        let queue = self.queue()?;
        let counts = delivered(py, || queue.counts())?;
        Ok((counts.ready, counts.delayed, counts.leased, counts.dying))
    }

    /// Refuses further puts on every handle of this queue that was made up to now, and gets once nothing is left.
    ///
    /// Nothing is lost: what is in the queue is there for handles that are made later, in this process or another.
    ///
    /// Args:
    ///     immediate: refuses gets at once.
    #[pyo3(signature = (immediate = false))]
    fn shutdown(&self, py: Python<'_>, immediate: bool) -> PyResult<()> {
        let queue = self.queue()?;
        delivered(py, || {
            queue.shutdown(immediate);
            Ok(())
        })
    }

    /// Puts dead letters of the group back into the topics that they came from, the oldest first.
    ///
    /// They are new messages there, that nobody got yet. A kill in the middle may put up to 64 of them back once more.
    ///
    /// Args:
    ///     limit: at most so many; None is all.
    ///
    /// Returns:
    ///     How many.
    #[pyo3(signature = (limit = None))]
    fn redrive(&self, py: Python<'_>, limit: Option<&Bound<'_, PyAny>>) -> PyResult<u64> {
        let queue = self.queue()?;
        let limit = limit.map(|limit| number("limit", limit)).transpose()?;
        let limit = limit
            .map(u64::try_from)
            .transpose()
            .map_err(|_| PyValueError::new_err("limit must not be negative"))?
            .unwrap_or(u64::MAX);
        let mut moved = 0;
        while moved < limit {
            let wanted = REDRIVEN_AT_ONCE.min(limit - moved);
            let some = delivered(py, || queue.redrive(Some(wanted)))?;
            moved += some;
            py.check_signals()?;
            if some < wanted {
                break;
            }
        }
        Ok(moved)
    }

    /// Lets go of the queue: this handle gets and puts nothing more. A second call does nothing.
    ///
    /// What was got by it stays leased until its time is over, and can still be finished.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Ok(queue) = self.queue() else { return Ok(()) };
        delivered(py, || {
            queue.close();
            Ok(())
        })
    }
}
