//! `TableLoad`: a queue on its way into a table.
//!
//! The core reads and keeps one row a key, with the interpreter released; then rows become objects, a slice a
//! call, so that other threads and Ctrl-C have their turn.

use std::sync::{Arc, Mutex, PoisonError};
use std::vec::IntoIter;

use mqstore_core::store::{TableLoad as Load, TableRow};
use mqstore_io::Clock;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::message::StoredMessage;
use crate::runtime::{SLICE, Shared, clock, detached};
use crate::store::NativeStore;

/// Messages that are read between two looks at the clock.
const AT_ONCE: usize = 512;

/// Rows that become objects in one call.
const SLICE_ROWS: usize = 4096;

/// Where a load is.
enum State {
    Reading(Box<Load>),
    Read(IntoIter<(String, TableRow)>),
    /// An error ended it.
    Failed,
}

/// The load of one queue into a table; made by `Table`.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct TableLoad {
    shared: Arc<Shared>,
    /// Keeps the store from being forgotten meanwhile.
    _owner: Py<NativeStore>,
    queue_id: i32,
    state: Mutex<(State, i64)>,
}

#[pymethods]
impl TableLoad {
    #[new]
    fn new(
        store: &Bound<'_, NativeStore>,
        topic: &str,
        queue_id: i32,
        keeps_messages: bool,
    ) -> PyResult<Self> {
        let core = store.get().core()?;
        let load = detached(store.py(), || core.load_table(topic, queue_id, keeps_messages))?;
        let state = Mutex::new((State::Reading(Box::new(load)), 0));
        Ok(Self { shared: store.get().shared(), _owner: store.clone().unbind(), queue_id, state })
    }

    /// Reads on for a while; False when all is read.
    fn step(&self, py: Python<'_>) -> PyResult<bool> {
        let goes_on = detached(py, || {
            let mut guard = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let (state, reached) = &mut *guard;
            let State::Reading(load) = state else { return Ok(false) };
            let until = clock().monotonic().saturating_add(SLICE);
            loop {
                match load.step(AT_ONCE) {
                    Ok(true) if clock().monotonic() < until => {}
                    Ok(true) => return Ok(true),
                    Ok(false) => break,
                    Err(error) => {
                        *state = State::Failed;
                        return Err(error);
                    }
                }
            }
            *reached = load.reached();
            if let State::Reading(load) = std::mem::replace(state, State::Failed) {
                *state = State::Read(load.into_rows().into_iter());
            }
            Ok(false)
        })?;
        self.shared.say_notes(py, 1)?;
        Ok(goes_on)
    }

    /// Puts some of what was read into `entries`, in the order of the messages; False when nothing is left.
    fn take(&self, py: Python<'_>, entries: &Bound<'_, PyDict>) -> PyResult<bool> {
        let part: Vec<_> = py.detach(|| {
            let mut guard = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            match &mut guard.0 {
                State::Read(rows) => rows.by_ref().take(SLICE_ROWS).collect(),
                State::Reading(_) | State::Failed => Vec::new(),
            }
        });
        let goes_on = !part.is_empty();
        for (key, row) in part {
            let message = row.record.map(StoredMessage::from);
            entries.set_item(key, (self.queue_id, row.queue_offset, row.store_timestamp, message))?;
        }
        Ok(goes_on)
    }

    /// One past the last offset of the queue that was read.
    #[getter]
    fn reached(&self, py: Python<'_>) -> i64 {
        py.detach(|| self.state.lock().unwrap_or_else(PoisonError::into_inner).1)
    }
}
