//! `LoopLink`: a store for the event loop of a thread.
//!
//! Waits and appends go to the core. Their results come back as events in an inbox. The thread that produces an event,
//! for example the one that dispatches, puts it there and rings the bell, a descriptor that the loop watches. It needs
//! no interpreter. One thread of the loop's owner serves the appends that can block.

use std::collections::HashMap;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mqstore::append::{AppendQueue, AppendRequest};
use mqstore::error::StoreError;
use mqstore::format::Host;
use mqstore::io::WakeDescriptor;
use mqstore::message::Appended;
use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyString};

use crate::convert::append_input::{
    CompressionArguments, MessageBatch, MessageParts, compress_in_loop, parts, rule_for_many,
};
use crate::convert::append_result::AppendResult;
use crate::convert::append_results::AppendResults;
use crate::convert::arguments::{body_or_json, offset, queue, text};
use crate::convert::batch_input::BatchInput;
use crate::error::to_py;
use crate::runtime::{ForkGuarded, SharedStore, detached};
use crate::store::NativeStore;

/// An event for the number of its request.
enum LoopEvent {
    /// The loop should try again.
    Call,
    Appended(Result<Vec<Appended>, StoreError>),
}

/// The events that the loop has not taken yet.
pub(crate) struct EventInbox {
    bell: WakeDescriptor,
    waiting: Mutex<Vec<(u64, LoopEvent)>>,
}

impl EventInbox {
    /// Calls the loop under `number`.
    pub(crate) fn call(&self, number: u64) {
        self.leave(number, LoopEvent::Call);
    }

    fn leave(&self, number: u64, news: LoopEvent) {
        let mut waiting = locked(&self.waiting);
        let first = waiting.is_empty();
        waiting.push((number, news));
        drop(waiting);
        // The loop takes later events together with the first.
        if first {
            self.bell.ring();
        }
    }

    fn take(&self) -> Vec<(u64, LoopEvent)> {
        self.bell.silence();
        mem::take(&mut *locked(&self.waiting))
    }
}

/// The link between a store and one event loop; created by `mqstore.aio`.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct LoopLink {
    pub(crate) shared: Arc<SharedStore>,
    /// Keeps the store alive while the link exists.
    owner: Py<NativeStore>,
    host: Host,
    pub(crate) letters: Arc<EventInbox>,
    appends: AppendQueue,
    /// The appends without a taken answer.
    asked: Mutex<HashMap<u64, AskedAppend>>,
}

/// What the loop must know of a queued append to take its answer.
struct AskedAppend {
    topic: Py<PyString>,
    many: bool,
    bytes: u64,
    durable: bool,
}

impl LoopLink {
    /// Whether an append may run in the thread of the loop. An earlier one that is queued must come first.
    pub(crate) fn may_append(&self) -> bool {
        !self.appends.has_plain()
    }

    /// Queues an append for the thread in `serve`. `held` is dropped when it is answered or taken back.
    pub(crate) fn queue(
        &self,
        number: u64,
        topic: &Bound<'_, PyString>,
        request: AppendRequest,
        held: Option<Box<dyn Send>>,
    ) {
        let asked = AskedAppend {
            topic: topic.clone().unbind(),
            many: request.many,
            bytes: request.bytes(),
            durable: request.durable,
        };
        locked(&self.asked).insert(number, asked);
        let letters = Arc::clone(&self.letters);
        let done = move |answer| {
            drop(held);
            letters.leave(number, LoopEvent::Appended(answer));
        };
        self.appends.put(number, request, Box::new(done));
    }

    /// Appends the messages that `convert` makes of the arguments if that does not block; otherwise queues the append
    /// and returns None. Returns False if a thread must append them.
    fn append_all<'py, B: MessageBatch>(
        &self,
        number: u64,
        topic: &Bound<'py, PyAny>,
        convert: impl FnOnce() -> PyResult<B>,
        queue_id: Option<&Bound<'py, PyAny>>,
        (durable, replicated): (bool, bool),
        (compression, compress_over): CompressionArguments<'_, 'py>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.owner.get().check_replicated(replicated)?;
        let (py, store) = (topic.py(), self.shared.store()?);
        if self.shared.is_away()? {
            return Ok(Some(PyBool::new(py, false).to_owned().into_any()));
        }
        let topic = text("topic", topic)?;
        let queue_id = queue_id.map(crate::convert::arguments::queue_id).transpose()?;
        let batch = convert()?;
        let name = topic.to_str()?;
        let rule = rule_for_many(store, name, self.owner.get().compression(compression, compress_over)?);
        let (compressed, left) = compress_in_loop(py, &batch, rule)?;
        if left.is_none() && !replicated && self.may_append() {
            let messages = batch.messages(name, queue_id, durable);
            let stored = compressed.apply(&messages);
            if let Some(appended) = detached(py, || store.nonblocking().try_append_many(&stored))? {
                return self.results(&topic, true, appended).map(Some);
            }
        }
        let (topic_name, messages) = (name.to_owned(), batch.into_stored(compressed));
        let (many, compression) = (true, left);
        let request =
            AppendRequest { topic: topic_name, queue_id, durable, replicated, many, compression, messages };
        self.queue(number, &topic, request, None);
        Ok(None)
    }

    /// Converts the results of an append.
    fn results<'py>(
        &self,
        topic: &Bound<'py, PyString>,
        many: bool,
        appended: Vec<Appended>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if many {
            return Ok(AppendResults::of(topic, self.host, appended)?.into_any());
        }
        let one = appended.into_iter().next();
        let one = one.ok_or_else(|| PyRuntimeError::new_err("the append returned no result"))?;
        Ok(Bound::new(topic.py(), AppendResult::from_core(topic, self.host, one))?.into_any())
    }
}

#[pymethods]
impl LoopLink {
    #[new]
    fn new(store: &Bound<'_, NativeStore>, most: usize, most_bytes: u64) -> PyResult<Self> {
        let core = store.get().core()?;
        let bell = WakeDescriptor::new().map_err(|error| PyOSError::new_err(error.to_string()))?;
        Ok(Self {
            shared: store.get().shared(),
            owner: store.clone().unbind(),
            host: store.get().host(),
            letters: Arc::new(EventInbox { bell, waiting: Mutex::default() }),
            appends: AppendQueue::new(core, most, most_bytes),
            asked: Mutex::default(),
        })
    }

    /// Returns the descriptor that is readable while the inbox has events.
    fn fileno(&self) -> i32 {
        self.letters.bell.descriptor()
    }

    /// Takes all events: for each its number, and None for a call, else the result or the error.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Vec<(u64, Bound<'py, PyAny>)>> {
        // A forked child shares the descriptor and would take the events from its parent.
        self.shared.store()?;
        let mut taken = Vec::new();
        for (number, news) in self.letters.take() {
            let outcome = match news {
                LoopEvent::Call => py.None().into_bound(py),
                LoopEvent::Appended(answer) => {
                    let Some(asked) = locked(&self.asked).remove(&number) else { continue };
                    self.appends.taken(asked.bytes, asked.durable);
                    match answer {
                        Ok(appended) => self.results(asked.topic.bind(py), asked.many, appended)?,
                        Err(error) => to_py(error).into_value(py).into_bound(py).into_any(),
                    }
                }
            };
            taken.push((number, outcome));
        }
        Ok(taken)
    }

    /// Requests a call under `number` once `offset` of a queue may be readable; None if it is readable now.
    fn wait(
        &self,
        py: Python<'_>,
        topic: &str,
        #[pyo3(from_py_with = queue)] queue_id: i32,
        #[pyo3(from_py_with = offset)] offset: i64,
        number: u64,
    ) -> PyResult<Option<LoopWait>> {
        let store = self.shared.store()?;
        let letters = Arc::clone(&self.letters);
        let call = move || letters.call(number);
        let waiter = detached(py, || store.wait_with(topic, queue_id, offset, call))?;
        let over = waiter.is_over();
        let guarded = ForkGuarded::new(Arc::clone(&self.shared), waiter);
        Ok((!over).then(|| LoopWait::new(guarded, None)))
    }

    /// Returns whether `offset` of a queue can be read; None if the answer can block.
    fn look(
        &self,
        py: Python<'_>,
        topic: &str,
        #[pyo3(from_py_with = queue)] queue_id: i32,
        #[pyo3(from_py_with = offset)] offset: i64,
    ) -> PyResult<Option<bool>> {
        let store = self.shared.store()?;
        detached(py, || {
            if store.nonblocking().is_caught_up() {
                store.wait(topic, queue_id, offset, Duration::ZERO).map(Some)
            } else {
                Ok(None)
            }
        })
    }

    /// Returns which of these queues (topic, queue and offset) can be read at their offset; can block.
    fn arrived(&self, py: Python<'_>, waits: Vec<(String, i32, i64)>) -> PyResult<Vec<bool>> {
        let store = self.shared.store()?;
        detached(py, || store.nonblocking().arrived(&waits))
    }

    /// Appends like `Store.append` if that does not block; otherwise queues the append and returns None.
    ///
    /// The result of a queued append arrives under `number`. Numbers ascend. Returns False for a delayed message, for
    /// one with light queues, and in a process that is not the owner of a shared store: a thread must append it.
    #[pyo3(
        signature = (number, topic, body = None, *, json = None, keys = None, tags = None, properties = None, queue_id = None, flag = None,
                     born_timestamp = None, durable = false, replicated = false, delay = None, deliver_at = None, delay_level = None,
                     light_queues = None, compression = None, compress_over = None),
        text_signature = None
    )]
    #[expect(clippy::too_many_arguments, reason = "a message has this many parts")]
    fn append<'py>(
        &self,
        number: u64,
        topic: &Bound<'py, PyAny>,
        body: Option<&Bound<'py, PyAny>>,
        json: Option<&Bound<'py, PyAny>>,
        keys: Option<&Bound<'py, PyAny>>,
        tags: Option<&Bound<'py, PyAny>>,
        properties: Option<&Bound<'py, PyAny>>,
        queue_id: Option<&Bound<'py, PyAny>>,
        flag: Option<&Bound<'py, PyAny>>,
        born_timestamp: Option<&Bound<'py, PyAny>>,
        durable: bool,
        replicated: bool,
        delay: Option<&Bound<'py, PyAny>>,
        deliver_at: Option<&Bound<'py, PyAny>>,
        delay_level: Option<&Bound<'py, PyAny>>,
        light_queues: Option<&Bound<'py, PyAny>>,
        compression: Option<&Bound<'py, PyAny>>,
        compress_over: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.owner.get().check_replicated(replicated)?;
        let is_delayed = delay.or(deliver_at).or(delay_level).is_some();
        if is_delayed || light_queues.map_or(Ok(false), PyAnyMethods::is_truthy)? || self.shared.is_away()? {
            return Ok(Some(PyBool::new(topic.py(), false).to_owned().into_any()));
        }
        let (py, store) = (topic.py(), self.shared.store()?);
        let topic = text("topic", topic)?;
        let mut part =
            MessageParts::of(body_or_json(py, body, json)?, keys, tags, properties, flag, born_timestamp)?;
        let queue_id = queue_id.map(crate::convert::arguments::queue_id).transpose()?;
        let name = topic.to_str()?;
        let rule = self.owner.get().compression(compression, compress_over)?;
        let left = part.compress_in_loop(rule)?;
        if left.is_none() && !replicated && self.may_append() {
            let message = part.message(name, queue_id, durable);
            if let Some(appended) = detached(py, || store.nonblocking().try_append(&message))? {
                let done = Bound::new(py, AppendResult::from_core(&topic, self.host, appended))?;
                return Ok(Some(done.into_any()));
            }
        }
        let (topic_name, messages) = (name.to_owned(), vec![part.into_owned()]);
        let (many, compression) = (false, left);
        let request =
            AppendRequest { topic: topic_name, queue_id, durable, replicated, many, compression, messages };
        self.queue(number, &topic, request, None);
        Ok(None)
    }

    /// Like `append`, for `Store.append_many`.
    #[pyo3(
        signature = (number, topic, messages, *, queue_id = None, durable = false, replicated = false,
                     compression = None, compress_over = None),
        text_signature = None
    )]
    #[expect(clippy::too_many_arguments, reason = "each is a separate argument in Python")]
    fn append_many<'py>(
        &self,
        number: u64,
        topic: &Bound<'py, PyAny>,
        messages: &Bound<'py, PyAny>,
        queue_id: Option<&Bound<'py, PyAny>>,
        durable: bool,
        replicated: bool,
        compression: Option<&Bound<'py, PyAny>>,
        compress_over: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.append_all(
            number,
            topic,
            || parts(messages),
            queue_id,
            (durable, replicated),
            (compression, compress_over),
        )
    }

    /// Like `append`, for `Store.append_batch`.
    #[pyo3(
        signature = (number, topic, bodies, keys = None, tags = None, properties = None, *, queue_id = None,
                     durable = false, replicated = false, compression = None, compress_over = None),
        text_signature = None
    )]
    #[expect(clippy::too_many_arguments, reason = "each is a separate argument in Python")]
    fn append_batch<'py>(
        &self,
        number: u64,
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
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let convert = || BatchInput::of(bodies, keys, tags, properties);
        self.append_all(number, topic, convert, queue_id, (durable, replicated), (compression, compress_over))
    }

    /// Hands over the queued appends to the thread in `serve`.
    fn hand_over(&self) {
        if !self.shared.is_forked() {
            self.appends.hand_over();
        }
    }

    /// Takes back an append that was not started; returns whether it was still queued.
    fn take_back(&self, number: u64) -> bool {
        // A forked child may have a copy of the lock that no thread will release.
        let taken = !self.shared.is_forked() && self.appends.take_back(number);
        if taken {
            locked(&self.asked).remove(&number);
        }
        taken
    }

    /// Serves the queued appends until `end`; for a thread of its own.
    fn serve(&self, py: Python<'_>) -> PyResult<()> {
        let store = self.shared.store()?;
        detached(py, || {
            self.appends.run(store);
            Ok(())
        })
    }

    /// Makes `serve` return once the appends that may be in progress are done. All others are refused.
    fn end(&self) {
        if !self.shared.is_forked() {
            self.appends.end();
        }
    }
}

/// A wait of a loop. `cancel`, or the drop of this object, takes it back.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct LoopWait {
    /// The value whose drop takes the wait back.
    wait: Mutex<Option<Box<dyn Send>>>,
    /// Seconds after which to try again in any case; None if only a call ends the wait.
    #[pyo3(get)]
    longest: Option<f64>,
}

impl LoopWait {
    /// Creates a wait that the drop of `wait` takes back. A forked child takes nothing back: another thread may have
    /// held the lock of the list of waits during the fork, and in the child it is never released.
    pub(crate) fn new<T: Send + 'static>(wait: ForkGuarded<T>, longest: Option<Duration>) -> Self {
        Self { wait: Mutex::new(Some(Box::new(wait))), longest: longest.map(|longest| longest.as_secs_f64()) }
    }
}

#[pymethods]
impl LoopWait {
    /// Takes the wait back. No later event calls the loop, but the inbox may already contain one.
    fn cancel(&self) {
        let wait = locked(&self.wait).take();
        drop(wait);
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
