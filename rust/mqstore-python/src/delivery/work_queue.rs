//! `NativeWorkQueue`: the methods of a work queue. Each Python method makes one call of the broker crate.
//!
//! The subclass `mqstore.WorkQueue` adds the methods that need no speed. A method that can block waits in slices with
//! the interpreter released, so that Ctrl-C is handled.

use std::sync::Arc;
use std::time::Duration;

use mqstore::body_compression::BodyCompression;
use mqstore::delivery::{NewWork, WorkQueueOptions};
use mqstore::format::Host;
use mqstore::message::Appended;
use mqstore::options::DamagePolicy;
use mqstore_server::share::{LeasedMessage as Leased, Waiting, WorkQueue};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDelta, PyFloat, PyInt, PyList, PyString};

use crate::convert::append_input::{MessageBatch, MessageParts, compress_all, parts, work};
use crate::convert::append_result::AppendResult;
use crate::convert::arguments::{body_or_json, count, duration, encode_with_id, text_list, time, wait};
use crate::convert::hooks::counts_row;
use crate::convert::options::damage_policy;
use crate::convert::stored_message::StoredMessage;
use crate::delivery::leased_message::{HandleRules, LeasedMessage};
use crate::error::{MQStoreError, broker_to_py};
use crate::runtime::{ForkGuarded, SLICE, SharedStore, delivered};
use crate::store::NativeStore;

/// Dead letters that are redriven between two checks for Ctrl-C.
const REDRIVEN_AT_ONCE: u64 = 256;

/// Topic, queue, queue offset, attempt, and the end of the lease in epoch milliseconds.
type LeaseRow = (String, i32, i64, u32, i64);

/// The native part of `mqstore.WorkQueue`.
#[pyclass(name = "WorkQueue", frozen, subclass, module = "mqstore._mqstore")]
pub(crate) struct NativeWorkQueue {
    queue: ForkGuarded<WorkQueue>,
    shared: Arc<SharedStore>,
    /// Keeps the store alive while the work queue exists.
    owner: Py<NativeStore>,
    host: Host,
    topic: Py<PyString>,
    rules: Arc<HandleRules>,
    on_damage: DamagePolicy,
}

impl NativeWorkQueue {
    pub(crate) fn queue(&self) -> PyResult<&WorkQueue> {
        self.queue.get()
    }

    /// Returns the results of messages that were put.
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

    /// Returns the Python objects of delivered messages.
    pub(crate) fn leased<'py>(
        &self,
        py: Python<'py>,
        found: Vec<Leased>,
    ) -> PyResult<Vec<Bound<'py, LeasedMessage>>> {
        self.tell_notes(py)?;
        let leased = |message| LeasedMessage::from_core(py, &self.shared, message, &self.rules);
        found.into_iter().map(leased).collect()
    }

    /// Passes the notes of the queue to the logger, and warns of skipped messages.
    pub(crate) fn tell_notes(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.log_notes(py)?;
        match self.on_damage {
            DamagePolicy::Skip if !self.shared.is_closed() => self.shared.say_notes(py),
            _ => Ok(()),
        }
    }

    /// Returns how a put compresses bodies, by its arguments.
    pub(crate) fn compression(
        &self,
        kind: Option<&Bound<'_, PyAny>>,
        over: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<BodyCompression> {
        self.owner.get().compression(kind, over)
    }

    /// What this handle decides about a message.
    pub(crate) fn rules(&self) -> &HandleRules {
        &self.rules
    }

    /// The queue's topic.
    pub(crate) fn name<'a, 'py>(&'a self, py: Python<'py>) -> &'a Bound<'py, PyString> {
        self.topic.bind(py)
    }

    /// Puts messages; with `new_only`, one whose unique id is new.
    fn put_work<'py>(
        &self,
        py: Python<'py>,
        work: &[NewWork<'_>],
        new_only: bool,
        timeout: Option<Duration>,
    ) -> PyResult<Vec<Bound<'py, AppendResult>>> {
        let queue = self.queue()?;
        let put = delivered(py, || queue.put(work, new_only, timeout))?;
        // The last try, which does not wait, is an error if there is no space.
        self.appended(py, stepped(py, put)?)
    }

    fn got<'py>(
        &self,
        py: Python<'py>,
        count: usize,
        timeout: Option<Duration>,
    ) -> PyResult<Vec<Bound<'py, LeasedMessage>>> {
        let queue = self.queue()?;
        let get = delivered(py, || queue.get(count, timeout))?;
        let found = stepped(py, get);
        self.tell_notes(py)?;
        self.leased(py, found?)
    }
}

/// Waits for a verb in slices, so that Ctrl-C ends it.
pub(crate) fn stepped<T: Send>(py: Python<'_>, mut waiting: Waiting<'_, T>) -> PyResult<T> {
    loop {
        if let Some(value) = delivered(py, || waiting.step(SLICE))? {
            return Ok(value);
        }
        py.check_signals()?;
    }
}

/// Converts the arguments that delay a put message; at most one of them is given.
pub(crate) fn put_delay(
    delay: Option<&Bound<'_, PyAny>>,
    deliver_at: Option<&Bound<'_, PyAny>>,
) -> PyResult<(Option<Duration>, Option<i64>)> {
    if delay.is_some() && deliver_at.is_some() {
        return Err(PyTypeError::new_err("give only one of delay and deliver_at"));
    }
    let delay = delay.map(|delay| duration("delay", delay)).transpose()?;
    Ok((delay, deliver_at.map(|when| time("deliver_at", when)).transpose()?))
}

/// Refuses a duration as the first argument of `get`: as a `block` that is true, it would be no limit.
#[pyfunction]
pub(crate) fn check_block(block: &Bound<'_, PyAny>) -> PyResult<()> {
    if block.is_instance_of::<PyBool>() {
        return Ok(());
    }
    let is_number = block.is_instance_of::<PyInt>() || block.is_instance_of::<PyFloat>();
    if !is_number && !block.is_instance_of::<PyString>() && !block.is_instance_of::<PyDelta>() {
        return Ok(());
    }
    let shown = block.repr()?;
    let text =
        format!("get(): block must be a bool, not {shown}: for a longest wait, call get(timeout={shown})");
    Err(PyTypeError::new_err(text))
}

/// Returns the longest wait of a call, by the rules of `queue.Queue`; `None` is without a limit.
fn patience(
    block: Option<&Bound<'_, PyAny>>,
    timeout: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<Duration>> {
    if !block.map_or(Ok(true), PyAnyMethods::is_truthy)? {
        return Ok(Some(Duration::ZERO));
    }
    let Some(timeout) = timeout else { return Ok(None) };
    // Other calls take a negative timeout as 0.
    if timeout.lt(0).unwrap_or(false) {
        return Err(PyValueError::new_err("'timeout' must be a non-negative number"));
    }
    wait("timeout", timeout).map(Some)
}

#[pymethods]
impl NativeWorkQueue {
    #[new]
    #[pyo3(signature = (
        store, topic, group, visibility_timeout, max_attempts, backoff, maxsize, on_damage, follows = false
    ))]
    #[expect(clippy::too_many_arguments, reason = "each is a separate argument in Python")]
    fn new(
        store: &Bound<'_, NativeStore>,
        topic: &Bound<'_, PyString>,
        group: Option<&str>,
        visibility_timeout: &Bound<'_, PyAny>,
        max_attempts: Option<&Bound<'_, PyAny>>,
        backoff: Option<Py<PyAny>>,
        maxsize: &Bound<'_, PyAny>,
        on_damage: &Bound<'_, PyAny>,
        follows: bool,
    ) -> PyResult<Self> {
        let on_damage = damage_policy(on_damage)?;
        let (py, native) = (store.py(), store.get());
        let (core, shared, name) = (native.core()?, native.shared(), topic.to_str()?);
        let visibility_timeout = duration("visibility_timeout", visibility_timeout)?;
        let options = WorkQueueOptions {
            visibility_timeout,
            max_attempts: max_attempts.map(|most| count("max_attempts", most)).transpose()?,
            maxsize: count("maxsize", maxsize)?,
            on_damage,
            follows,
            ..WorkQueueOptions::default()
        };
        let share = shared.share()?;
        let queue = delivered(py, || {
            if let Some(share) = share {
                return share.work_queue(name, group, options);
            }
            let broker = core.broker()?;
            let queue = match group {
                Some(group) => broker.work_queue(name, group, options),
                None => broker.work_queue(name, &broker.default_group(name)?, options),
            };
            queue.map(WorkQueue::Own)
        })?;
        shared.log_notes(py)?;
        Ok(Self {
            queue: ForkGuarded::new(Arc::clone(&shared), queue),
            shared,
            owner: store.clone().unbind(),
            host: native.host(),
            topic: topic.clone().unbind(),
            rules: Arc::new(HandleRules { visibility_timeout, backoff }),
            on_damage,
        })
    }

    /// The topic whose messages the queue delivers.
    #[getter]
    fn topic(&self, py: Python<'_>) -> Py<PyString> {
        self.topic.clone_ref(py)
    }

    /// The group that acknowledges them.
    #[getter]
    fn group(&self) -> PyResult<&str> {
        Ok(self.queue()?.group())
    }

    /// The dead-letter topic of the group: `%DLQ%` and the group's name.
    #[getter]
    fn dead_letters(&self) -> PyResult<&str> {
        Ok(self.queue()?.dead_letters())
    }

    /// The visibility timeout of a leased message, in seconds.
    #[getter]
    fn visibility_timeout(&self) -> PyResult<f64> {
        Ok(self.queue()?.options().visibility_timeout.as_secs_f64())
    }

    /// The number of deliveries after which a message becomes a dead letter; None is without a limit.
    #[getter]
    fn max_attempts(&self) -> PyResult<Option<u32>> {
        Ok(self.queue()?.options().max_attempts)
    }

    /// The number of messages without a lease at which `put` waits; 0 is no limit.
    #[getter]
    fn maxsize(&self) -> PyResult<u64> {
        Ok(self.queue()?.options().maxsize)
    }

    /// Whether this handle or its store is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.shared.is_closed() || self.queue().map_or(true, WorkQueue::is_closed)
    }

    /// Appends a message to the queue.
    ///
    /// Args:
    ///     body: any bytes-like object.
    ///     json: a value whose JSON is the body, as for `Store.append`.
    ///     keys: one key or several, as for `Store.append`.
    ///     tags: the tag.
    ///     properties: the message's own properties, as for `Store.append`.
    ///     delay: time before the first delivery, at most 30 days. The message keeps its place in the log, and the
    ///         delay holds for every group.
    ///     deliver_at: time of the first delivery, instead of `delay`, at most 30 days from now.
    ///     dedup_id: an id of your choice. If the topic has a message with this id, nothing is stored, and the result
    ///         is the position of that message. The id is the message's `unique_id`, and the queue remembers it as long
    ///         as the log has the message, finished or not.
    ///     durable: whether to wait for a sync, whatever the store's durability.
    ///     block: whether to wait if the queue has reached `maxsize`.
    ///     timeout: longest wait; None is without a limit.
    ///     compression: as for `Store.append`.
    ///     compress_over: as for `Store.append`.
    ///
    /// Raises:
    ///     Full: the queue is full, or stayed full until the timeout.
    ///     ShutDown: the queue was shut down, or this handle is closed.
    ///     InvalidMessageError: a text or number that the format cannot hold; nothing was written.
    ///     InvalidOptionError: the delay is too long; nothing was written.
    #[pyo3(
        signature = (body = None, *, json = None, keys = None, tags = None, properties = None, delay = None, deliver_at = None,
                     dedup_id = None, durable = false, block = None, timeout = None, compression = None,
                     compress_over = None),
        text_signature = "($self, body=None, *, json=None, keys=(), tags=None, properties=None, delay=None, deliver_at=None, \
                          dedup_id=None, durable=False, block=True, timeout=None, compression=None, \
                          compress_over=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "a message has this many parts")]
    fn put<'py>(
        &self,
        py: Python<'py>,
        body: Option<&Bound<'py, PyAny>>,
        json: Option<&Bound<'py, PyAny>>,
        keys: Option<&Bound<'py, PyAny>>,
        tags: Option<&Bound<'py, PyAny>>,
        properties: Option<&Bound<'py, PyAny>>,
        delay: Option<&Bound<'py, PyAny>>,
        deliver_at: Option<&Bound<'py, PyAny>>,
        dedup_id: Option<&Bound<'py, PyAny>>,
        durable: bool,
        block: Option<&Bound<'py, PyAny>>,
        timeout: Option<&Bound<'py, PyAny>>,
        compression: Option<&Bound<'py, PyAny>>,
        compress_over: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, AppendResult>> {
        let encoded = encode_with_id(keys, tags, properties, dedup_id)?;
        let mut part = MessageParts::of_encoded(body_or_json(py, body, json)?, encoded);
        let (delay, deliver_at_ms) = put_delay(delay, deliver_at)?;
        part.compress(&self.compression(compression, compress_over)?)?;
        let message = part.message(self.name(py).to_str()?, None, durable);
        let work = work(&message, delay, deliver_at_ms);
        let patience = patience(block, timeout)?;
        let put = self.put_work(py, &[work], dedup_id.is_some(), patience)?.pop();
        let none = || MQStoreError::new_err(("the put returned no result",));
        put.ok_or_else(none)
    }

    /// Appends several messages under one lock and with one sync; returns the results in the order given.
    ///
    /// Waits until the queue can take all of them. After a crash, a prefix of them may be in the queue.
    ///
    /// Args:
    ///     messages: bodies or `Message`s.
    ///     delay: as for `put`, for all of them.
    ///     deliver_at: as for `put`, for all of them.
    ///     durable: as for `put`.
    ///     block: as for `put`.
    ///     timeout: as for `put`.
    ///     compression: as for `put`.
    ///     compress_over: as for `put`.
    ///
    /// Raises:
    ///     Full: the queue cannot take all of them, or could not until the timeout; none was put.
    ///     ShutDown: the queue was shut down, or this handle is closed.
    #[pyo3(
        signature = (messages, *, delay = None, deliver_at = None, durable = false, block = None, timeout = None,
                     compression = None, compress_over = None),
        text_signature = "($self, messages, *, delay=None, deliver_at=None, durable=False, block=True, \
                          timeout=None, compression=None, compress_over=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "each is a separate argument in Python")]
    fn put_many<'py>(
        &self,
        py: Python<'py>,
        messages: &Bound<'py, PyAny>,
        delay: Option<&Bound<'py, PyAny>>,
        deliver_at: Option<&Bound<'py, PyAny>>,
        durable: bool,
        block: Option<&Bound<'py, PyAny>>,
        timeout: Option<&Bound<'py, PyAny>>,
        compression: Option<&Bound<'py, PyAny>>,
        compress_over: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let (delay, deliver_at_ms) = put_delay(delay, deliver_at)?;
        let batch = parts(messages)?;
        let rule = self.compression(compression, compress_over)?;
        let compressed = compress_all(py, &batch, &rule)?;
        let messages = batch.messages(self.name(py).to_str()?, None, durable);
        let stored = compressed.apply(&messages);
        let work: Vec<_> = stored.iter().map(|message| work(message, delay, deliver_at_ms)).collect();
        PyList::new(py, self.put_work(py, &work, false, patience(block, timeout)?)?)
    }

    /// Gets a message and leases it for `visibility_timeout`. Redeliveries and new messages take turns.
    ///
    /// Args:
    ///     block: whether to wait for a message.
    ///     timeout: longest wait; None is without a limit.
    ///
    /// Raises:
    ///     Empty: no message, or none before the timeout.
    ///     CorruptionError: the next message is damaged, and `on_damage` is `"raise"`.
    ///     ShutDown: the queue was shut down and has no message left, or this handle is closed.
    ///     TypeError: `block` is a duration: write `get(timeout=5)`, not `get(5)`.
    #[pyo3(signature = (block = None, timeout = None), text_signature = "($self, block=True, timeout=None)")]
    fn get<'py>(
        &self,
        py: Python<'py>,
        block: Option<&Bound<'py, PyAny>>,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, LeasedMessage>> {
        block.map_or(Ok(()), check_block)?;
        let got = self.got(py, 1, patience(block, timeout)?)?.pop();
        got.map_or_else(|| Err(broker_to_py(self.queue()?.empty())), Ok)
    }

    /// Gets up to `count` messages: at least one, or an empty list if `timeout` passes first.
    ///
    /// Args:
    ///     count: maximum number of messages.
    ///     timeout: longest wait for the first message; None is without a limit, 0 does not wait.
    ///
    /// Raises:
    ///     ShutDown: the queue was shut down and has no message left, or this handle is closed.
    #[pyo3(signature = (count, timeout = None))]
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        count: &Bound<'py, PyAny>,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let most = crate::convert::arguments::count("count", count)?;
        PyList::new(py, self.got(py, most, patience(None, timeout)?)?)
    }

    /// Acknowledges a message: it is not delivered again. A second `ack` changes nothing.
    ///
    /// Args:
    ///     message: the message that `get` returned.
    ///     durable: whether to wait until the acknowledgement is on the disk. Without it, that happens within 0.1 s.
    ///
    /// Raises:
    ///     LeaseLostError: the lease ended and another worker got the message, or you returned it.
    #[pyo3(signature = (message, *, durable = false))]
    fn ack(&self, py: Python<'_>, message: &Bound<'_, LeasedMessage>, durable: bool) -> PyResult<()> {
        self.queue()?;
        let lease = message.get().lease()?;
        delivered(py, || lease.ack(durable))
    }

    /// Acknowledges messages; with `durable`, one sync covers all of them.
    ///
    /// Raises:
    ///     LeaseLostError: you lost the lease of one message; the messages before it are acknowledged.
    #[pyo3(signature = (messages, *, durable = false))]
    fn ack_many(&self, py: Python<'_>, messages: &Bound<'_, PyAny>, durable: bool) -> PyResult<()> {
        let queue = self.queue()?;
        let messages: Vec<Bound<'_, LeasedMessage>> =
            messages.try_iter()?.map(|message| Ok(message?.cast_into()?)).collect::<PyResult<_>>()?;
        let leases = messages.iter().map(|message| message.get().lease()).collect::<PyResult<Vec<_>>>()?;
        delivered(py, || queue.ack_all(leases, durable))
    }

    /// Returns a message, so that it is redelivered later.
    ///
    /// A message that was delivered `max_attempts` times becomes a dead letter.
    ///
    /// Args:
    ///     message: the message that `get` returned.
    ///     delay: time before the redelivery, at most 30 days; None uses the queue's `backoff`.
    ///     reason: text that a dead letter keeps as its property `mqstore.reason`, up to 1,024 bytes of UTF-8. The
    ///         last reason counts, also if a lease that expires ends the last attempt.
    ///
    /// Raises:
    ///     LeaseLostError: the lease ended and another worker got the message, or you returned it before.
    #[pyo3(signature = (message, delay = None, *, reason = None))]
    fn nack(
        &self,
        py: Python<'_>,
        message: &Bound<'_, LeasedMessage>,
        delay: Option<&Bound<'_, PyAny>>,
        reason: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.queue()?;
        self.rules.nack(py, message.get().lease()?, delay, reason)
    }

    /// Sets the end of the lease to `duration` from now, whatever time is left.
    ///
    /// Args:
    ///     message: the message that `get` returned.
    ///     duration: time from now, 1 ms to 30 days; None is the `visibility_timeout` of this handle.
    ///
    /// Raises:
    ///     LeaseLostError: the lease ended and another worker got the message, or you returned it.
    ///     InvalidOptionError: `duration` is out of bounds.
    #[pyo3(signature = (message, duration = None))]
    fn extend(
        &self,
        py: Python<'_>,
        message: &Bound<'_, LeasedMessage>,
        duration: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.queue()?;
        self.rules.extend(py, message.get().lease()?, duration)
    }

    /// Acknowledges `message`, or by default the first message that this thread got with `get` and still holds.
    ///
    /// Raises:
    ///     ValueError: this thread holds no message.
    ///     LeaseLostError: as for `ack`.
    #[pyo3(signature = (message = None))]
    fn task_done(&self, py: Python<'_>, message: Option<&Bound<'_, LeasedMessage>>) -> PyResult<()> {
        if let Some(message) = message {
            return self.ack(py, message, false);
        }
        let queue = self.queue()?;
        delivered(py, || queue.task_done())
    }

    /// Waits until every message of the queue is acknowledged or a dead letter.
    ///
    /// After an immediate shutdown it waits for the leased messages only.
    ///
    /// Args:
    ///     timeout: longest wait; None is without a limit.
    ///
    /// Returns:
    ///     False if `timeout` passed first.
    #[pyo3(signature = (timeout = None))]
    fn join(&self, py: Python<'_>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        let queue = self.queue()?;
        let patience = patience(None, timeout)?;
        let join = delivered(py, || queue.join(patience))?;
        let is_done = stepped(py, join)?;
        self.shared.log_notes(py)?;
        Ok(is_done)
    }

    /// Returns the number of messages without a lease, including those that are not due yet.
    fn qsize(&self, py: Python<'_>) -> PyResult<u64> {
        let queue = self.queue()?;
        delivered(py, || queue.qsize())
    }

    /// Returns whether `qsize()` is 0.
    fn empty(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.qsize(py)? == 0)
    }

    /// Returns whether `qsize()` has reached `maxsize`; always False without a `maxsize`.
    fn full(&self, py: Python<'_>) -> PyResult<bool> {
        let maxsize = self.maxsize()?;
        Ok(maxsize > 0 && self.qsize(py)? >= maxsize)
    }

    fn _counts(&self, py: Python<'_>) -> PyResult<(u64, u64, u64, u64, u64)> {
        let queue = self.queue()?;
        Ok(counts_row(delivered(py, || queue.counts())?))
    }

    /// Returns up to `count` messages that `get` could return now, oldest first.
    ///
    /// They stay in the queue without a lease.
    ///
    /// Args:
    ///     count: maximum number of messages.
    ///
    /// Raises:
    ///     ShutDown: this handle is closed.
    ///     CorruptionError: one of the messages is damaged, and `on_damage` is `"raise"`.
    #[pyo3(signature = (count = None), text_signature = "($self, count=1)")]
    fn peek<'py>(&self, py: Python<'py>, count: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyList>> {
        let queue = self.queue()?;
        let most = count.map_or(Ok(1), |most| crate::convert::arguments::count("count", most))?;
        let found = delivered(py, || queue.peek(most))?;
        self.tell_notes(py)?;
        let messages = found.into_iter().map(|record| Bound::new(py, StoredMessage::from(record)));
        PyList::new(py, messages.collect::<PyResult<Vec<_>>>()?)
    }

    /// Finishes every message that no worker has, for the group of this queue only.
    ///
    /// These are new, delayed and returned messages, and those whose lease has ended. They are never delivered to the
    /// group again. Messages with a lease stay with their workers, and dead letters stay in their topic. The purge is
    /// on the disk when the call returns.
    ///
    /// Returns:
    ///     The number of messages.
    ///
    /// Raises:
    ///     ShutDown: this handle is closed.
    fn purge(&self, py: Python<'_>) -> PyResult<u64> {
        let queue = self.queue()?;
        delivered(py, || queue.purge())
    }

    fn _leases(&self, py: Python<'_>) -> PyResult<Vec<LeaseRow>> {
        let queue = self.queue()?;
        let leases = delivered(py, || queue.leases())?;
        let row = |lease: mqstore::delivery::LeaseInfo| {
            (
                lease.topic.to_string(),
                lease.queue_id,
                lease.queue_offset,
                lease.attempt,
                lease.invisible_until_ms,
            )
        };
        Ok(leases.into_iter().map(row).collect())
    }

    fn _delays(&self, py: Python<'_>) -> PyResult<Vec<LeaseRow>> {
        let queue = self.queue()?;
        let delays = delivered(py, || queue.delays())?;
        let row = |one: mqstore::delivery::DelayInfo| {
            (one.topic.to_string(), one.queue_id, one.queue_offset, one.attempts, one.due_ms)
        };
        Ok(delays.into_iter().map(row).collect())
    }

    fn _cancel(&self, py: Python<'_>, id: &str) -> PyResult<bool> {
        let queue = self.queue()?;
        delivered(py, || queue.cancel(id))
    }

    fn _cancel_at(&self, py: Python<'_>, topic: &str, queue_id: i32, queue_offset: i64) -> PyResult<bool> {
        let queue = self.queue()?;
        delivered(py, || queue.cancel_at(topic, queue_id, queue_offset))
    }

    /// Refuses further puts on every existing handle of this queue, and gets once the queue is empty.
    ///
    /// No message is lost. A handle that is created later, in this process or another, delivers the messages that are
    /// left.
    ///
    /// Args:
    ///     immediate: whether gets are refused too, even if messages are left.
    #[pyo3(signature = (immediate = false))]
    fn shutdown(&self, py: Python<'_>, immediate: bool) -> PyResult<()> {
        let queue = self.queue()?;
        delivered(py, || queue.shutdown(immediate))
    }

    /// Appends dead letters of the group to their original topics, oldest first.
    ///
    /// They are new messages there, with no delivery yet. After a kill during the call, up to 64 of them may be
    /// appended twice. Those whose topic was deleted since are passed over.
    ///
    /// Args:
    ///     limit: maximum number of dead letters; None is all.
    ///     ids: only these dead letters, each by an id of the message that was put or of the dead letter.
    ///
    /// Returns:
    ///     The number of dead letters.
    ///
    /// Raises:
    ///     RefusedError: the group has no dead letter with one of the ids; none was redriven.
    #[pyo3(signature = (limit = None, *, ids = None))]
    fn redrive(
        &self,
        py: Python<'_>,
        limit: Option<&Bound<'_, PyAny>>,
        ids: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let queue = self.queue()?;
        if let Some(ids) = ids {
            if limit.is_some() {
                return Err(PyTypeError::new_err("give only one of limit and ids"));
            }
            let ids = text_list("ids", ids)?;
            return delivered(py, || queue.redrive_ids(&ids));
        }
        let limit = limit.map_or(Ok(u64::MAX), |limit| count("limit", limit))?;
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

    /// Deletes dead letters of the group: they are not counted nor redriven any more.
    ///
    /// Their records stay in the topic `dead_letters` until the retention deletes them. The deletion is on the disk
    /// when the call returns.
    ///
    /// Args:
    ///     ids: an id of each: of the message that was put, or of the dead letter.
    ///
    /// Returns:
    ///     The number of dead letters.
    ///
    /// Raises:
    ///     RefusedError: the group has no dead letter with one of the ids; none was deleted.
    ///     ShutDown: this handle is closed.
    fn delete_dead_letters(&self, py: Python<'_>, ids: &Bound<'_, PyAny>) -> PyResult<u64> {
        let (queue, ids) = (self.queue()?, text_list("ids", ids)?);
        delivered(py, || queue.delete_dead_letters(&ids))
    }

    /// Closes this handle: it gets and puts no more messages. A second call does nothing.
    ///
    /// The messages that it got stay leased until their time is over. You can still acknowledge them.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Ok(queue) = self.queue() else { return Ok(()) };
        delivered(py, || {
            queue.close();
            Ok(())
        })
    }
}
