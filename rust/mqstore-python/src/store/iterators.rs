//! `MessageIterator`: messages one by one, fetched in batches with the interpreter released.
//!
//! It serves one thread at a time: threads that share an iterator take turns, and each message goes to exactly one of
//! them. A thread that waits, for its turn or for new messages, returns to the interpreter every [`SLICE`], so that
//! Ctrl-C is handled.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use mqstore::Store;
use mqstore::error::StoreError;
use mqstore::io::Clock;
use mqstore::message::{MessageFilter, StoredRecord};
use mqstore::options::DamagePolicy;
use mqstore::read::{
    FloorWatch, FollowStep, LogCursor, LookupCursor, MergedCursor, QueueCursor, RecordBatch, TopicFollower,
};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::convert::stored_message::StoredMessage;
use crate::error::{StoreClosedError, to_py};
use crate::runtime::{SLICE, SharedStore, clock, reading};
use crate::store::NativeStore;

/// Messages of the first fetch. A caller that wants one message should not wait for hundreds.
const FIRST_BATCH: usize = 16;

/// Maximum messages of a later fetch. Each fetch is four times as large as the one before, up to this number.
const FULL_BATCH: usize = 512;

/// Distance from the end of the log, in bytes, up to which a record is read without another thread.
const NEAR_BYTES: u64 = 256 << 10;

/// Messages that a fetch compares with the filter before it checks for signals.
const LOOKS: usize = 1024;

/// Sleep of a thread between two attempts to get its turn.
const TURN: Duration = Duration::from_millis(5);

/// The source of the messages.
pub(crate) enum IteratorSource {
    Queue(Box<QueueCursor>),
    Topic(Box<MergedCursor>),
    Log(Box<LogCursor>),
    Lookup(Box<LookupCursor>),
    Follow(Box<Follow>),
    FollowTopic(Box<FollowTopic>),
    Done,
    /// Ended by this error, which every call raises again: the end of a failed read is not the end of the messages.
    Failed(PyErr),
}

/// A read of all queues of a topic that waits at its end for new messages.
pub(crate) struct FollowTopic {
    pub(crate) follower: TopicFollower,
    /// The longest wait of one `next`; `None` is without a limit.
    pub(crate) timeout: Option<Duration>,
}

/// A read of one queue that waits at its end for new messages.
pub(crate) struct Follow {
    pub(crate) topic: String,
    pub(crate) queue_id: i32,
    pub(crate) filter: Option<MessageFilter>,
    pub(crate) on_damage: DamagePolicy,
    /// The offset at which the iterator stops, if any.
    pub(crate) end: Option<i64>,
    /// The longest wait of one `next`; `None` is without a limit.
    pub(crate) timeout: Option<Duration>,
    /// The offset after the last entry that was returned or filtered out.
    pub(crate) next: i64,
    pub(crate) cursor: Option<QueueCursor>,
    /// Whether the cursor was opened because a wait found a new message.
    pub(crate) waited: bool,
}

struct IteratorState {
    source: IteratorSource,
    ready: VecDeque<StoredRecord>,
    batch: usize,
    /// The floors that the messages of the last fetch respect.
    floors: Option<FloorWatch>,
}

/// Messages in order; created by `read` and `lookup`. Threads that share an iterator take turns.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct MessageIterator {
    shared: Arc<SharedStore>,
    /// Keeps the store alive during the iteration: `for m in mqstore.open(p).read(t)`.
    _owner: Py<NativeStore>,
    state: Mutex<IteratorState>,
}

/// The result of one step of an iterator.
enum IteratorStep {
    Got(StoredRecord),
    End,
    /// No message yet; call again after a check for signals.
    Later,
}

/// The result of one step for an event loop.
enum LoopStep {
    Got(VecDeque<StoredRecord>),
    End,
    /// No message: wait for one at these queue ids and offsets.
    WaitFor(Vec<(i32, i64)>),
    /// Call again, in a thread that can block.
    Later,
}

impl MessageIterator {
    /// Creates an iterator over `source`.
    pub(crate) fn new(owner: Py<NativeStore>, shared: Arc<SharedStore>, source: IteratorSource) -> Self {
        Self {
            shared,
            _owner: owner,
            state: Mutex::new(IteratorState {
                source,
                ready: VecDeque::new(),
                batch: FIRST_BATCH,
                floors: None,
            }),
        }
    }

    /// Returns the state, if no other thread is using it.
    fn turn(&self) -> Option<MutexGuard<'_, IteratorState>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(PoisonError::into_inner(poisoned)),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Raises the error that ended the iterator.
    fn check_failure(&self, py: Python<'_>) -> PyResult<()> {
        match self.turn().as_deref() {
            Some(IteratorState { source: IteratorSource::Failed(error), .. }) => Err(raised_again(py, error)),
            _ => Ok(()),
        }
    }

    /// Keeps the error of a step that ended the iterator.
    fn note_failure(&self, py: Python<'_>, error: &PyErr) {
        if let Some(mut state) = self.turn().filter(|state| matches!(state.source, IteratorSource::Done)) {
            state.source = IteratorSource::Failed(error.clone_ref(py));
        }
    }

    /// Returns the store, unless it is closed.
    fn open_store(&self) -> PyResult<&Store> {
        let store = self.shared.reads()?;
        if store.is_closed() {
            return Err(StoreClosedError::new_err((self.shared.path().to_owned(),)));
        }
        Ok(store)
    }
}

#[pymethods]
impl MessageIterator {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// For asyncio: returns a list of the next messages, a tuple of the queue ids and offsets to wait for, or None at
    /// the end. With `at_once` the call does not block. If it returns an empty list, call it again in a thread, without
    /// `at_once`.
    fn _step<'py>(&self, py: Python<'py>, at_once: bool) -> PyResult<Bound<'py, PyAny>> {
        let store = self.open_store()?;
        self.check_failure(py)?;
        let ahead = reading(py, store, || {
            let Some(mut state) = self.turn() else { return Ok(LoopStep::Later) };
            state.or_done(|state| state.ahead(store, at_once))
        });
        let ahead = ahead.inspect_err(|error| self.note_failure(py, error))?;
        self.shared.say_notes(py)?;
        let records = match ahead {
            LoopStep::Got(records) => records,
            LoopStep::Later => VecDeque::new(),
            LoopStep::WaitFor(places) => return Ok(PyTuple::new(py, places)?.into_any()),
            LoopStep::End => return Ok(py.None().into_bound(py)),
        };
        let messages = records.into_iter().map(|record| Bound::new(py, StoredMessage::from(record)));
        Ok(PyList::new(py, messages.collect::<PyResult<Vec<_>>>()?)?.into_any())
    }

    /// For asyncio: of `messages`, which `_step` returned and which were not used yet, returns those that are not
    /// hidden by now; None if no floor changed.
    fn _visible<'py>(
        &self,
        py: Python<'py>,
        messages: &Bound<'py, PyList>,
    ) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
        let store = self.open_store()?;
        // If another thread uses the iterator, it reads behind these messages.
        let Some(mut state) = self.turn() else { return Ok(None) };
        if state.has_same_floors(store) {
            return Ok(None);
        }
        reading(py, store, || store.catch_up())?;
        let IteratorState { source, floors: Some(floors), .. } = &mut *state else { return Ok(None) };
        let mut visible = Vec::with_capacity(messages.len());
        let dropped = floors.drop_hidden(store, source.topic(), |is_visible| {
            for message in messages {
                let is_kept =
                    message.cast::<StoredMessage>().is_ok_and(|message| is_visible(message.get().record()));
                visible.extend(is_kept.then_some(message));
            }
        });
        dropped.map_err(to_py)?;
        Ok(Some(visible))
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<StoredMessage>> {
        let store = self.open_store()?;
        // The common case: a fetched message is ready and visible, and no other thread uses the iterator.
        if let Some(record) = self.turn().and_then(|mut state| state.take_ready(store)) {
            return Ok(Some(record.into()));
        }
        let started = clock().monotonic();
        loop {
            self.check_failure(py)?;
            let step = reading(py, store, || {
                let Some(mut state) = self.turn() else {
                    clock().sleep(TURN);
                    return Ok(IteratorStep::Later);
                };
                state.or_done(|state| state.step(store, started))
            });
            let step = step.inspect_err(|error| self.note_failure(py, error))?;
            self.shared.say_notes(py)?;
            match step {
                IteratorStep::Got(record) => return Ok(Some(record.into())),
                IteratorStep::End => return Ok(None),
                IteratorStep::Later => py.check_signals()?,
            }
        }
    }
}

impl IteratorState {
    /// Returns the result of `look`. After an error the iterator ends.
    fn or_done<T>(&mut self, look: impl FnOnce(&mut Self) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let found = look(self);
        // A read of an archive that does not answer tries again at the same place.
        if found.is_err() && !self.source.is_before_log() {
            self.source = IteratorSource::Done;
        }
        found
    }

    fn has_same_floors(&self, store: &Store) -> bool {
        self.floors.as_ref().is_some_and(|floors| floors.is_current_in(store))
    }

    /// Returns the next fetched message, if no floor changed since the fetch.
    fn take_ready(&mut self, store: &Store) -> Option<StoredRecord> {
        if self.has_same_floors(store) { self.ready.pop_front() } else { None }
    }

    /// Drops fetched messages that are hidden by now.
    fn drop_hidden(&mut self, store: &Store) -> Result<(), StoreError> {
        let Self { source, ready, floors: Some(floors), .. } = self else { return Ok(()) };
        floors.drop_hidden(store, source.topic(), |is_visible| ready.retain(|record| is_visible(record)))
    }

    fn step(&mut self, store: &Store, started: Duration) -> Result<IteratorStep, StoreError> {
        self.drop_hidden(store)?;
        if let Some(record) = self.ready.pop_front() {
            return Ok(IteratorStep::Got(record));
        }
        let goes_on = match (self.ahead(store, false)?, &self.source) {
            (LoopStep::Got(records), _) => {
                self.ready = records;
                return Ok(self.ready.pop_front().map_or(IteratorStep::Later, IteratorStep::Got));
            }
            (LoopStep::WaitFor(_), IteratorSource::Follow(follow)) => follow.wait(store, started)?,
            (LoopStep::WaitFor(_), IteratorSource::FollowTopic(follow)) => follow.wait(store, started)?,
            (LoopStep::Later | LoopStep::WaitFor(_), _) => true,
            (LoopStep::End, _) => false,
        };
        if goes_on {
            return Ok(IteratorStep::Later);
        }
        self.source = IteratorSource::Done;
        Ok(IteratorStep::End)
    }

    /// Takes a step that does not wait for messages, and with `at_once` does not block at all.
    fn ahead(&mut self, store: &Store, at_once: bool) -> Result<LoopStep, StoreError> {
        self.drop_hidden(store)?;
        if !self.ready.is_empty() {
            return Ok(LoopStep::Got(std::mem::take(&mut self.ready)));
        }
        self.floors = Some(store.watch_floors());
        if at_once && store.files().vfs.is_remote() {
            return Ok(LoopStep::Later);
        }
        let ahead = match &mut self.source {
            IteratorSource::Done => LoopStep::End,
            // The next check raises the error.
            IteratorSource::Failed(_) => LoopStep::Later,
            IteratorSource::Follow(follow) => follow.ahead(store, self.batch, at_once)?,
            IteratorSource::FollowTopic(follow) => follow.ahead(store, self.batch, at_once)?,
            IteratorSource::Topic(cursor) => {
                if at_once && !cursor.is_near_end(NEAR_BYTES)? {
                    return Ok(LoopStep::Later);
                }
                cursor.next_of(self.batch, LOOKS)?.into()
            }
            IteratorSource::Queue(cursor) => {
                if at_once && !cursor.is_near_end(NEAR_BYTES)? {
                    return Ok(LoopStep::Later);
                }
                cursor.next_of(self.batch, LOOKS)?.into()
            }
            // A read of the index or the log can block on the disk.
            IteratorSource::Log(_) | IteratorSource::Lookup(_) if at_once => LoopStep::Later,
            IteratorSource::Log(cursor) => cursor.next_of(self.batch, LOOKS)?.into(),
            IteratorSource::Lookup(cursor) => {
                let records = cursor.next_batch(self.batch)?;
                RecordBatch { ended: records.is_empty(), records }.into()
            }
        };
        if matches!(ahead, LoopStep::Got(_)) {
            self.batch = (self.batch * 4).min(FULL_BATCH);
        }
        Ok(ahead)
    }
}

impl IteratorSource {
    /// Whether the next messages are from before the log.
    fn is_before_log(&self) -> bool {
        match self {
            Self::Queue(cursor) => cursor.is_before_log(),
            Self::Topic(cursor) => cursor.is_before_log(),
            Self::Follow(follow) => follow.cursor.as_ref().is_some_and(QueueCursor::is_before_log),
            Self::FollowTopic(follow) => follow.follower.is_before_log(),
            Self::Log(_) | Self::Lookup(_) | Self::Done | Self::Failed(_) => false,
        }
    }

    /// Returns the topic whose queues it reads; `None` for a walk of the log and for a look-up, which pass over messages
    /// that were deleted.
    fn topic(&self) -> Option<&str> {
        match self {
            Self::Queue(cursor) => Some(cursor.topic()),
            Self::Topic(cursor) => cursor.topic(),
            Self::Follow(follow) => Some(&follow.topic),
            Self::FollowTopic(follow) => Some(follow.follower.topic()),
            Self::Log(_) | Self::Lookup(_) | Self::Done | Self::Failed(_) => None,
        }
    }
}

/// Returns an error to raise it once more, without the frames of the last time.
pub(crate) fn raised_again(py: Python<'_>, error: &PyErr) -> PyErr {
    let value = error.value(py);
    PyErr::from_value(
        value.call_method1("with_traceback", (py.None(),)).unwrap_or_else(|_| value.clone().into_any()),
    )
}

impl From<RecordBatch> for LoopStep {
    fn from(RecordBatch { records, ended }: RecordBatch) -> Self {
        match (records.is_empty(), ended) {
            (false, _) => Self::Got(records.into()),
            (true, true) => Self::End,
            (true, false) => Self::Later,
        }
    }
}

impl Follow {
    /// Like [`IteratorState::ahead`], with at most `most` messages.
    fn ahead(&mut self, store: &Store, most: usize, at_once: bool) -> Result<LoopStep, StoreError> {
        loop {
            if let Some(cursor) = &mut self.cursor {
                if at_once && !cursor.is_near_end(NEAR_BYTES)? {
                    return Ok(LoopStep::Later);
                }
                let batch = cursor.next_of(most, LOOKS)?;
                let position = cursor.position();
                if !batch.records.is_empty() || !batch.ended {
                    return Ok(batch.into());
                }
                self.cursor = None;
                let stuck = position == self.next && self.waited;
                self.next = position;
                if stuck {
                    // An entry exists and yields no message. That is a bug; at least do not spin.
                    if !at_once {
                        clock().sleep(TURN);
                    }
                    self.waited = false;
                    return Ok(LoopStep::Later);
                }
            }
            if self.end.is_some_and(|end| self.next >= end) {
                return Ok(LoopStep::End);
            }
            if at_once && !(store.nonblocking().is_caught_up() && self.is_in_log(store)?) {
                return Ok(LoopStep::Later);
            }
            if !store.wait(&self.topic, self.queue_id, self.next, Duration::ZERO)? {
                return Ok(LoopStep::WaitFor(vec![(self.queue_id, self.next)]));
            }
            let cursor =
                store.read(&self.topic, self.queue_id, Some(self.next), self.end, self.filter.as_ref())?;
            (self.cursor, self.waited) = (Some(cursor.on_damage(self.on_damage)), true);
        }
    }

    /// Whether the log has the next message, or will have it.
    fn is_in_log(&self, store: &Store) -> Result<bool, StoreError> {
        Ok(self.next >= store.bounds(&self.topic, self.queue_id)?.0)
    }

    /// Waits for a message, for at most one slice; returns whether the iterator continues.
    fn wait(&self, store: &Store, started: Duration) -> Result<bool, StoreError> {
        let waited = clock().monotonic().saturating_sub(started);
        let left = self.timeout.map_or(SLICE, |timeout| timeout.saturating_sub(waited));
        Ok(store.wait(&self.topic, self.queue_id, self.next, left.min(SLICE))? || !left.is_zero())
    }
}

impl FollowTopic {
    /// Like [`IteratorState::ahead`], with at most `most` messages.
    fn ahead(&mut self, store: &Store, most: usize, at_once: bool) -> Result<LoopStep, StoreError> {
        if at_once && !(store.nonblocking().is_caught_up() && self.follower.is_near_end(store, NEAR_BYTES)?) {
            return Ok(LoopStep::Later);
        }
        Ok(match self.follower.next_of(store, most, LOOKS)? {
            FollowStep::Records(records) => LoopStep::Got(records.into()),
            FollowStep::Later => LoopStep::Later,
            FollowStep::Wait => LoopStep::WaitFor(self.follower.places()),
            FollowStep::End => LoopStep::End,
        })
    }

    /// Waits for a message, for at most one slice; returns whether the iterator continues.
    fn wait(&self, store: &Store, started: Duration) -> Result<bool, StoreError> {
        let waited = clock().monotonic().saturating_sub(started);
        let left = self.timeout.map_or(SLICE, |timeout| timeout.saturating_sub(waited));
        Ok(self.follower.wait(store, left.min(SLICE))? || !left.is_zero())
    }
}
