//! Consumers and work queues for the event loop of a thread.
//!
//! An attempt never blocks. It returns its result, a `LoopWait` for the next attempt, or None: then a thread must call
//! `prepare`. See `TryResult`. `mqstore.aio` decides how tasks wait and take turns.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use mqstore::append::{AppendRequest, OwnedMessage};
use mqstore::body_compression::BodyCompression;
use mqstore::delivery::{BrokerError, NewWork, TryPut, TryResult, Waker};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyList};

use crate::convert::append_input::{MessageBatch, MessageParts, compress_in_loop, parts};
use crate::convert::arguments;
use crate::convert::stored_message::StoredMessage;
use crate::delivery::consumer::{NativeConsumer, places};
use crate::delivery::leased_message::{LeasedMessage, is_settled, reason_of};
use crate::delivery::work_queue::{NativeWorkQueue, put_delay};
use crate::error::broker_to_py;
use crate::event_loop::loop_link::{LoopLink, LoopWait, locked};
use crate::runtime::{ForkGuarded, delivered};
use crate::store::NativeStore;

/// Converts an attempt's answer for Python: the result by `found`, a `LoopWait`, or None.
fn answer<'py, T>(
    py: Python<'py>,
    link: &LoopLink,
    look: TryResult<T>,
    found: impl FnOnce(T) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    match look {
        TryResult::Found(value) => found(value),
        TryResult::Prepare => Ok(py.None().into_bound(py)),
        TryResult::Wait { listening, longest } => {
            let guarded = ForkGuarded::new(Arc::clone(&link.shared), listening);
            Ok(Bound::new(py, LoopWait::new(guarded, longest))?.into_any())
        }
    }
}

/// Returns the function that calls the loop under `number`, for a waiting task.
fn call(link: &LoopLink, number: Option<u64>) -> Option<Waker> {
    let number = number?;
    let letters = Arc::clone(&link.letters);
    Some(Box::new(move || letters.call(number)))
}

/// A work queue for one event loop; created by `mqstore.aio`.
///
/// An attempt returns its result, a `LoopWait` for the next attempt, or None: then a thread must call `prepare`.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct LoopWorkQueue {
    queue: Py<NativeWorkQueue>,
    link: Py<LoopLink>,
}

#[pymethods]
impl LoopWorkQueue {
    #[new]
    fn new(queue: Py<NativeWorkQueue>, link: Py<LoopLink>) -> Self {
        Self { queue, link }
    }

    /// Gets up to `count` messages. If there are none, a call under `number` announces the next attempt.
    ///
    /// With `patience` it waits for another thread that uses this queue. Without a number, an empty queue gives an
    /// empty list.
    fn get<'py>(
        &self,
        py: Python<'py>,
        count: &Bound<'py, PyAny>,
        patience: bool,
        number: Option<u64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let native = self.queue.get();
        let count = arguments::count("count", count)?;
        let (queue, call) = (native.queue()?, call(self.link.get(), number));
        let look = delivered(py, || queue.try_get(count, patience, call))?;
        answer(py, self.link.get(), look, |found| Ok(PyList::new(py, native.leased(py, found)?)?.into_any()))
    }

    /// Reads ahead for up to `count` messages, and moves dead letters; can block.
    fn prepare(&self, py: Python<'_>, count: usize) -> PyResult<()> {
        let queue = self.queue.get().queue()?;
        let done = delivered(py, || queue.prepare(count));
        self.link.get().shared.log_notes(py)?;
        done
    }

    /// Puts messages if that does not block; otherwise queues their append under `append` and returns False.
    ///
    /// If the queue is full, a call under `number` announces the next attempt; without a number it is an error.
    fn put<'py>(
        &self,
        py: Python<'py>,
        put: &LoopPut,
        append: u64,
        patience: bool,
        number: Option<u64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (native, link) = (self.queue.get(), self.link.get());
        let (queue, call) = (native.queue()?, call(link, number));
        let mut messages = locked(&put.messages);
        let Some(own) = messages.as_ref() else {
            return Err(PyRuntimeError::new_err("the messages were already put"));
        };
        let work: Vec<_> = own.iter().map(|message| put.work(message)).collect();
        // The thread that appends compresses large bodies.
        let at_once = put.compression.is_none() && link.may_append();
        let Some(look) = delivered(py, || queue.try_put(&work, at_once, patience, call))? else {
            // A thread puts them at the owner.
            return Ok(PyBool::new(py, true).to_owned().into_any());
        };
        drop(work);
        answer(py, link, look, |done| match done {
            TryPut::Done(appended) => Ok(PyList::new(py, native.appended(py, appended)?)?.into_any()),
            TryPut::Reserved(reservation, delayed) => {
                let mut own = messages.take().unwrap_or_default();
                for (message, delayed) in own.iter_mut().zip(delayed) {
                    if let Some(properties) = delayed {
                        message.properties = properties;
                    }
                }
                let topic = native.name(py);
                let request = AppendRequest {
                    replicated: false,
                    topic: topic.to_str()?.to_owned(),
                    queue_id: None,
                    durable: put.durable,
                    many: put.many,
                    compression: put.compression,
                    messages: own,
                };
                let reservation = ForkGuarded::new(Arc::clone(&link.shared), reservation);
                link.queue(append, topic, request, Some(Box::new(reservation)));
                Ok(PyBool::new(py, false).to_owned().into_any())
            }
        })
    }

    /// Returns whether every message is finished. If not, a call under `number` announces the next attempt.
    fn join<'py>(&self, py: Python<'py>, patience: bool, number: Option<u64>) -> PyResult<Bound<'py, PyAny>> {
        let native = self.queue.get();
        let (queue, call) = (native.queue()?, call(self.link.get(), number));
        let look = delivered(py, || queue.try_join(patience, call))?;
        self.link.get().shared.log_notes(py)?;
        answer(py, self.link.get(), look, |done| Ok(done.into_pyobject(py)?.to_owned().into_any()))
    }

    /// Returns a message to the queue; False, without any change, if that can block.
    fn nack(
        &self,
        py: Python<'_>,
        message: &Bound<'_, LeasedMessage>,
        delay: Option<&Bound<'_, PyAny>>,
        reason: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let native = self.queue.get();
        let lease = message.get().lease()?;
        native.queue()?;
        if lease.is_last() || lease.is_away() {
            return Ok(false);
        }
        native.rules().nack(py, lease, delay, reason)?;
        Ok(true)
    }

    /// Wakes the waiting tasks that no event announces.
    fn look_around(&self, py: Python<'_>) -> PyResult<()> {
        let queue = self.queue.get().queue()?;
        delivered(py, || {
            queue.look_around();
            Ok(())
        })
    }

    /// Raises the error for an empty queue.
    fn empty(&self) -> PyResult<()> {
        Err(broker_to_py(self.queue.get().queue()?.empty()))
    }
}

/// Messages for a work queue, with their arguments checked.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct LoopPut {
    messages: Mutex<Option<Vec<OwnedMessage>>>,
    many: bool,
    /// How the bodies are compressed later, if that takes too long for the thread of the loop.
    compression: Option<BodyCompression>,
    delay: Option<Duration>,
    deliver_at_ms: Option<i64>,
    durable: bool,
}

impl LoopPut {
    fn of(
        messages: Vec<OwnedMessage>,
        (many, compression): (bool, Option<BodyCompression>),
        delay: Option<&Bound<'_, PyAny>>,
        deliver_at: Option<&Bound<'_, PyAny>>,
        durable: bool,
    ) -> PyResult<Self> {
        let (delay, deliver_at_ms) = put_delay(delay, deliver_at)?;
        Ok(Self { messages: Mutex::new(Some(messages)), many, compression, delay, deliver_at_ms, durable })
    }

    fn work<'a>(&self, message: &'a OwnedMessage) -> NewWork<'a> {
        NewWork {
            body: message.body_bytes(),
            sys_flag: message.sys_flag,
            properties: &message.properties,
            unique_key: message.unique_key.as_deref(),
            flag: message.flag,
            born_timestamp_ms: message.born_timestamp_ms,
            delay: self.delay,
            deliver_at_ms: self.deliver_at_ms,
            durable: self.durable,
        }
    }
}

#[pymethods]
impl LoopPut {
    /// Converts the arguments of `WorkQueue.put`, except `dedup_id`, `block` and `timeout`.
    #[staticmethod]
    #[pyo3(
        signature = (queue, body = None, *, json = None, keys = None, tags = None, properties = None, delay = None, deliver_at = None,
                     durable = false, compression = None, compress_over = None),
        text_signature = None
    )]
    #[expect(clippy::too_many_arguments, reason = "each is a separate argument in Python")]
    fn one(
        queue: &Bound<'_, NativeWorkQueue>,
        body: Option<&Bound<'_, PyAny>>,
        json: Option<&Bound<'_, PyAny>>,
        keys: Option<&Bound<'_, PyAny>>,
        tags: Option<&Bound<'_, PyAny>>,
        properties: Option<&Bound<'_, PyAny>>,
        delay: Option<&Bound<'_, PyAny>>,
        deliver_at: Option<&Bound<'_, PyAny>>,
        durable: bool,
        compression: Option<&Bound<'_, PyAny>>,
        compress_over: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let mut part = MessageParts::of(
            arguments::body_or_json(queue.py(), body, json)?,
            keys,
            tags,
            properties,
            None,
            None,
        )?;
        let left = part.compress_in_loop(queue.get().compression(compression, compress_over)?)?;
        Self::of(vec![part.into_owned()], (false, left), delay, deliver_at, durable)
    }

    /// Converts the arguments of `WorkQueue.put_many`, except `block` and `timeout`.
    #[staticmethod]
    #[pyo3(
        signature = (queue, messages, *, delay = None, deliver_at = None, durable = false, compression = None,
                     compress_over = None),
        text_signature = None
    )]
    fn many(
        queue: &Bound<'_, NativeWorkQueue>,
        messages: &Bound<'_, PyAny>,
        delay: Option<&Bound<'_, PyAny>>,
        deliver_at: Option<&Bound<'_, PyAny>>,
        durable: bool,
        compression: Option<&Bound<'_, PyAny>>,
        compress_over: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let rule = queue.get().compression(compression, compress_over)?;
        let batch = parts(messages)?;
        let (compressed, left) = compress_in_loop(messages.py(), &batch, rule)?;
        Self::of(batch.into_stored(compressed), (true, left), delay, deliver_at, durable)
    }
}

/// A consumer for one event loop; created by `mqstore.aio`. Attempts answer like those of `LoopWorkQueue`.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct LoopConsumer {
    consumer: Py<NativeConsumer>,
    link: Py<LoopLink>,
}

#[pymethods]
impl LoopConsumer {
    #[new]
    fn new(consumer: Py<NativeConsumer>, link: Py<LoopLink>) -> Self {
        Self { consumer, link }
    }

    /// Returns up to `most` messages, or the next message if `most` is None.
    fn poll<'py>(
        &self,
        py: Python<'py>,
        most: Option<&Bound<'py, PyAny>>,
        patience: bool,
        number: Option<u64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let most = most.map(|most| arguments::count("max_messages", most)).transpose()?;
        let native = self.consumer.get();
        let (consumer, call) = (native.consumer()?, call(self.link.get(), number));
        let look = delivered(py, || consumer.try_poll(most, patience, call));
        native.tell_notes(py)?;
        answer(py, self.link.get(), look?, |found| {
            let messages = found.into_iter().map(|record| Bound::new(py, StoredMessage::from(record)));
            Ok(PyList::new(py, messages.collect::<PyResult<Vec<_>>>()?)?.into_any())
        })
    }

    /// Applies changes of the assignment, and reads up to `most` messages ahead; can block.
    fn prepare(&self, py: Python<'_>, most: usize) -> PyResult<()> {
        let native = self.consumer.get();
        let consumer = native.consumer()?;
        let done = delivered(py, || consumer.prepare(most));
        native.tell_notes(py)?;
        done
    }

    /// Commits, and returns whether a sync must follow; None, with nothing stored, if that can block.
    fn commit(
        &self,
        py: Python<'_>,
        offsets: Option<&Bound<'_, PyDict>>,
        sync: bool,
    ) -> PyResult<Option<bool>> {
        let consumer = self.consumer.get().consumer()?;
        let offsets = offsets.map(places).transpose()?;
        let done = delivered(py, || consumer.try_commit(offsets.as_deref(), sync));
        self.link.get().shared.log_notes(py)?;
        done
    }

    /// Wakes the waiting tasks that no event announces.
    fn look_around(&self, py: Python<'_>) -> PyResult<()> {
        let consumer = self.consumer.get().consumer()?;
        delivered(py, || {
            consumer.look_around();
            Ok(())
        })
    }
}

/// Returns whether the caller still holds the lease of a message.
#[pyfunction]
fn is_held(message: &Bound<'_, LeasedMessage>) -> PyResult<bool> {
    let lease = message.get().lease()?;
    // The loop must not wait for another process.
    if lease.is_away() {
        return Ok(!lease.is_settled());
    }
    delivered(message.py(), || lease.is_held())
}

/// Returns once every change of the groups made so far is on the disk.
#[pyfunction]
fn sync_groups(store: &Bound<'_, NativeStore>) -> PyResult<()> {
    let core = store.get().core()?;
    delivered(store.py(), || {
        let broker = core.broker()?;
        let meta = broker.meta();
        Ok::<_, BrokerError>(meta.sync(meta.place())?)
    })
}

/// Adds the classes and functions to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<LoopWorkQueue>()?;
    module.add_class::<LoopPut>()?;
    module.add_class::<LoopConsumer>()?;
    module.add_function(wrap_pyfunction!(is_held, module)?)?;
    module.add_function(wrap_pyfunction!(is_settled, module)?)?;
    module.add_function(wrap_pyfunction!(reason_of, module)?)?;
    module.add_function(wrap_pyfunction!(sync_groups, module)?)?;
    Ok(())
}
