//! Messages of an archive for consumers, and for the limits of topics.
//!
//! The store in Python finds its archive. A consumer calls from a thread that has released the interpreter, with the lock
//! of the consumer. The store uses no consumer, so no thread can wait for the other.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use mqstore::archive::history::{Damage, History, QueueRange, QueueReads};
use mqstore::delivery::OlderMessages;
use mqstore::error::StoreError;
use mqstore::message::{MessageFilter, StoredRecord};
use mqstore::options::DamagePolicy;
use mqstore::store::{FloorTable, OlderFloor, OlderLimits, OlderTopics};
use pyo3::exceptions::PyPermissionError;
use pyo3::prelude::*;

use super::history::{ArchiveHistory, floors_of};
use crate::error::{CorruptionError, warn};
use crate::store::NativeStore;

/// Reads of messages that do not match the filter in one call, so that a poll can check its time.
const STEPS: usize = 4;

/// The archive of a store, as it was found: the history, the floors, and the log offset at which the log begins.
type Found = (History, Arc<FloorTable>, u64);

fn found_of(store: &Bound<'_, PyAny>, found: &Bound<'_, PyAny>) -> PyResult<Option<Found>> {
    let Some((history, log_start)) = found.extract::<Option<(Bound<'_, ArchiveHistory>, u64)>>()? else {
        return Ok(None);
    };
    let store = store.cast::<NativeStore>()?;
    Ok(Some((history.get().history.clone(), floors_of(Some(store))?, log_start)))
}

/// The place at which the read of a queue stopped.
struct Position {
    next: i64,
    end: i64,
    reads: QueueReads,
    /// Messages of the last step that were not returned.
    ready: VecDeque<StoredRecord>,
    /// The offset after the last step.
    after: i64,
}

/// The messages from before the log, for one consumer.
pub(crate) struct PythonMessages {
    /// The store, with `_older_history`.
    store: Py<PyAny>,
    filter: Option<MessageFilter>,
    policy: DamagePolicy,
    positions: Mutex<HashMap<(String, i32), Position>>,
}

impl fmt::Debug for PythonMessages {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("PythonMessages").finish_non_exhaustive()
    }
}

impl PythonMessages {
    pub(crate) fn new(store: Py<PyAny>, filter: Option<MessageFilter>, policy: DamagePolicy) -> Self {
        Self { store, filter, policy, positions: Mutex::default() }
    }

    /// Returns the archive for a topic; `None` if the log has all of the topic.
    fn find(&self, topic: &str) -> Result<Option<Found>, StoreError> {
        Python::attach(|py| {
            let store = self.store.bind(py);
            let found = store.call_method1("_older_history", (topic,));
            found.and_then(|found| found_of(store, &found)).map_err(|error| failure(py, &error))
        })
    }

    fn position(
        &self,
        topic: &str,
        queue_id: i32,
        range: (i64, i64),
    ) -> Result<Option<Position>, StoreError> {
        let Some((history, floors, log_start)) = self.find(topic)? else { return Ok(None) };
        let oldest = history.first_offset(&floors, topic, queue_id, 0)?;
        if oldest.is_none_or(|oldest| oldest >= range.1 || range.0 < oldest) {
            return Ok(None);
        }
        let wanted = QueueRange { queue_id, start: range.0, end: range.1 };
        let damage = Damage::new(self.policy);
        let reads = history.queue(&floors, topic, wanted, log_start, self.filter.as_ref(), damage)?;
        Ok(Some(Position { next: range.0, end: range.1, reads, ready: VecDeque::new(), after: range.0 }))
    }
}

impl OlderMessages for PythonMessages {
    fn first_offset(&self, topic: &str, queue_id: i32) -> Result<Option<i64>, StoreError> {
        let Some((history, floors, _)) = self.find(topic)? else { return Ok(None) };
        history.first_offset(&floors, topic, queue_id, 0)
    }

    fn offset_for_time(&self, topic: &str, queue_id: i32, time_ms: i64) -> Result<Option<i64>, StoreError> {
        let Some((history, floors, _)) = self.find(topic)? else { return Ok(None) };
        history.offset_for_time(&floors, topic, queue_id, time_ms)
    }

    fn read(
        &self,
        topic: &str,
        queue_id: i32,
        range: (i64, i64),
        max: usize,
    ) -> Result<(Vec<StoredRecord>, i64), StoreError> {
        let key = (topic.to_owned(), queue_id);
        let known = self.positions.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
        let known = known.filter(|position| (position.next, position.end) == range);
        let position = match known {
            Some(position) => Some(position),
            None => self.position(topic, queue_id, range)?,
        };
        let Some(mut position) = position else { return Ok((Vec::new(), range.0)) };
        let mut steps = 0;
        while position.ready.is_empty() && steps < STEPS {
            steps += 1;
            let step = position.reads.next_messages();
            say(position.reads.take_warnings())?;
            let Some((found, after)) = step? else {
                // The rest of the range has no messages.
                return Ok((Vec::new(), range.1));
            };
            position.ready.extend(found);
            position.after = position.after.max(after);
        }
        let count = max.min(position.ready.len());
        let found: Vec<StoredRecord> = position.ready.drain(..count).collect();
        position.next = match position.ready.front() {
            Some(next) => next.queue_offset,
            None => position.after.min(range.1),
        };
        let next = position.next;
        if next < range.1 {
            self.positions.lock().unwrap_or_else(PoisonError::into_inner).insert(key, position);
        }
        Ok((found, next))
    }
}

fn say(warnings: Vec<String>) -> Result<(), StoreError> {
    if warnings.is_empty() {
        return Ok(());
    }
    Python::attach(|py| {
        let said = warnings.iter().try_for_each(|text| warn(py, text, 2));
        said.map_err(|error| failure(py, &error))
    })
}

/// The archive for the limits of topics. The background of the store calls it, too, so it does not keep the store.
#[derive(Debug)]
struct PythonTopics {
    /// A weak reference to the store, with `_limit_history`.
    store: Py<PyAny>,
}

impl OlderTopics for PythonTopics {
    fn due_floor(
        &self,
        topic: &str,
        log_start: u64,
        lows: &BTreeMap<i32, i64>,
        limits: OlderLimits,
    ) -> Result<Option<OlderFloor>, StoreError> {
        let asked = Python::try_attach(|py| {
            let find = || {
                let store = self.store.bind(py).call0()?;
                if store.is_none() {
                    return Ok(None);
                }
                found_of(&store, &store.call_method1("_limit_history", (log_start,))?)
            };
            find().map_err(|error| failure(py, &error))
        });
        // The interpreter ends: the next open applies the limits.
        let Some((history, floors, log_start)) = asked.unwrap_or(Ok(None))? else { return Ok(None) };
        history.due_floor(&floors, topic, log_start, lows, limits)
    }
}

/// Converts an exception of the store to an error of the core.
fn failure(py: Python<'_>, error: &PyErr) -> StoreError {
    let value = error.value(py);
    let told = |name: &str| value.getattr(name).ok();
    let path = told("path").or_else(|| told("filename")).and_then(|path| path.extract::<String>().ok());
    let path = path.unwrap_or_else(|| "the archive".to_owned()).into();
    if error.is_instance_of::<CorruptionError>(py) {
        let reason = told("reason").and_then(|reason| reason.extract().ok());
        return StoreError::Corrupt { path, offset: 0, reason: reason.unwrap_or_else(|| value.to_string()) };
    }
    let text = value.to_string();
    let source = if error.is_instance_of::<PyPermissionError>(py) {
        std::io::Error::new(std::io::ErrorKind::PermissionDenied, text)
    } else {
        std::io::Error::other(text)
    };
    StoreError::Io { path, action: "reading the archive", source }
}

/// Sets the weak reference to the store that finds its archive, for limits of topics that are longer than the log; None
/// is without an archive.
#[pyfunction]
fn set_older_topics(store: &Bound<'_, NativeStore>, reference: Option<Py<PyAny>>) -> PyResult<()> {
    let older = reference.map(|store| Arc::new(PythonTopics { store }) as Arc<dyn OlderTopics>);
    store.get().core()?.retention().set_older_topics(older);
    Ok(())
}

/// Adds the function.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(set_older_topics, module)?)
}
