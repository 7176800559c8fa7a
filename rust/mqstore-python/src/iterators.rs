//! `MessageIterator`: messages one by one, fetched in batches with the interpreter released.
//!
//! Serves one thread at a time: threads that share an iterator take turns, and each message goes to
//! exactly one of them. A thread that waits (for its turn or for new messages) comes back to the
//! interpreter every [`SLICE`], so that Ctrl-C is answered.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use mqstore_core::{
    Batch, LogCursor, LookupCursor, MessageFilter, QueueCursor, Store, StoreError, StoredRecord,
};
use mqstore_io::Clock;
use pyo3::prelude::*;

use crate::error::StoreClosedError;
use crate::message::StoredMessage;
use crate::runtime::{SLICE, Shared, clock, detached};
use crate::store::NativeStore;

/// Messages of the first fetch; a reader who wants one should not wait for hundreds.
const FIRST_BATCH: usize = 16;

/// Messages of a fetch once the reader has shown that it goes on.
const FULL_BATCH: usize = 512;

/// Messages that a fetch looks at for those that match, before it looks for signals.
const LOOKS: usize = 1024;

/// How long a thread sleeps between two tries for its turn.
const TURN: Duration = Duration::from_millis(5);

/// Where the messages come from.
pub(crate) enum Source {
    Queue(Box<QueueCursor>),
    Log(Box<LogCursor>),
    Lookup(Box<LookupCursor>),
    Follow(Box<Follow>),
    Done,
}

/// A read of one queue that waits at its end.
pub(crate) struct Follow {
    pub(crate) topic: String,
    pub(crate) queue_id: i32,
    pub(crate) filter: Option<MessageFilter>,
    /// Where the iterator stops even so.
    pub(crate) end: Option<i64>,
    /// How long one `next` waits; `None` is for ever.
    pub(crate) timeout: Option<Duration>,
    /// The offset after the last entry that was read or filtered out.
    pub(crate) next: i64,
    pub(crate) cursor: Option<QueueCursor>,
    /// Whether the cursor was opened because a wait said that there is more.
    pub(crate) waited: bool,
}

struct State {
    source: Source,
    ready: VecDeque<StoredRecord>,
    batch: usize,
}

/// Messages in order; made by `read` and `lookup`. Threads that share one take turns.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct MessageIterator {
    shared: Arc<Shared>,
    /// Keeps the store from being forgotten while somebody iterates: `for m in mqstore.open(p).read(t)`.
    _owner: Py<NativeStore>,
    state: Mutex<State>,
}

/// What one step of an iterator came to.
enum Step {
    Got(StoredRecord),
    End,
    /// Nothing yet; ask again after looking for signals.
    Later,
}

impl MessageIterator {
    /// An iterator over `source`.
    pub(crate) fn new(owner: Py<NativeStore>, shared: Arc<Shared>, source: Source) -> Self {
        Self {
            shared,
            _owner: owner,
            state: Mutex::new(State { source, ready: VecDeque::new(), batch: FIRST_BATCH }),
        }
    }

    /// The state, if no other thread is using it.
    fn turn(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(PoisonError::into_inner(poisoned)),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

#[pymethods]
impl MessageIterator {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<StoredMessage>> {
        let store = self.shared.store()?;
        if store.is_closed() {
            return Err(StoreClosedError::new_err((self.shared.path().to_owned(),)));
        }
        // The common case: a fetched message is at hand and nobody else is here.
        if let Some(record) = self.turn().and_then(|mut state| state.ready.pop_front()) {
            return Ok(Some(record.into()));
        }
        let started = clock().monotonic();
        loop {
            let step = detached(py, || {
                let Some(mut state) = self.turn() else {
                    clock().sleep(TURN);
                    return Ok(Step::Later);
                };
                let step = state.step(store, started);
                if step.is_err() {
                    state.source = Source::Done;
                }
                step
            })?;
            self.shared.say_notes(py, 1)?;
            match step {
                Step::Got(record) => return Ok(Some(record.into())),
                Step::End => return Ok(None),
                Step::Later => py.check_signals()?,
            }
        }
    }
}

impl State {
    fn step(&mut self, store: &Store, started: Duration) -> Result<Step, StoreError> {
        if let Some(record) = self.ready.pop_front() {
            return Ok(Step::Got(record));
        }
        let Batch { records, ended } = match &mut self.source {
            Source::Queue(cursor) => cursor.next_of(self.batch, LOOKS)?,
            Source::Log(cursor) => cursor.next_of(self.batch, LOOKS)?,
            Source::Lookup(cursor) => whole(cursor.next_batch(self.batch)?),
            Source::Follow(follow) => follow.next_batch(store, self.batch, started)?,
            Source::Done => whole(Vec::new()),
        };
        self.ready = records.into();
        if let Some(record) = self.ready.pop_front() {
            self.batch = (self.batch * 4).min(FULL_BATCH);
            return Ok(Step::Got(record));
        }
        if !ended {
            return Ok(Step::Later);
        }
        self.source = Source::Done;
        Ok(Step::End)
    }
}

/// What a cursor gives that is at its end when it gives nothing.
fn whole(records: Vec<StoredRecord>) -> Batch {
    Batch { ended: records.is_empty(), records }
}

impl Follow {
    /// The next batch; nothing, and not the end, when there is nothing yet.
    fn next_batch(&mut self, store: &Store, most: usize, started: Duration) -> Result<Batch, StoreError> {
        let nothing = |ended| Ok(Batch { records: Vec::new(), ended });
        if let Some(cursor) = &mut self.cursor {
            let batch = cursor.next_of(most, LOOKS)?;
            let position = cursor.position();
            if !batch.records.is_empty() {
                return Ok(Batch { ended: false, ..batch });
            }
            if !batch.ended {
                return Ok(batch);
            }
            self.cursor = None;
            if position == self.next && self.waited {
                // Something is there and yields nothing, which should not be; at least do not spin.
                clock().sleep(TURN);
            }
            self.next = position;
        }
        if self.end.is_some_and(|end| self.next >= end) {
            return nothing(true);
        }
        let waited = clock().monotonic().saturating_sub(started);
        let left = self.timeout.map_or(SLICE, |timeout| timeout.saturating_sub(waited));
        if store.wait(&self.topic, self.queue_id, self.next, left.min(SLICE))? {
            let cursor =
                store.read(&self.topic, self.queue_id, Some(self.next), self.end, self.filter.as_ref())?;
            (self.cursor, self.waited) = (Some(cursor), true);
            return nothing(false);
        }
        nothing(left.is_zero())
    }
}
