//! `TableLoad` and `TableRows`: the keys of a table, and the load of a queue into it.
//!
//! The core reads, keeps one row for each key and decides which message is the newest, with the interpreter released.
//! Only the rows that the caller asks for become Python objects.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mqstore::io::Clock;
use mqstore::read::{TableLoad as Load, TableRow, TableRows as ColumnSlices};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::convert::options::damage_policy;
use crate::convert::stored_message::StoredMessage;
use crate::runtime::{SLICE, SharedStore, clock, reading};
use crate::store::NativeStore;

/// Messages that are read between two checks of the clock.
const AT_ONCE: usize = 512;

/// The load of one queue into a table; created by `Table`.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct TableLoad {
    shared: Arc<SharedStore>,
    /// Keeps the store alive during the load.
    _owner: Py<NativeStore>,
    /// `None` once the load was absorbed, or failed.
    load: Mutex<Option<Load>>,
}

#[pymethods]
impl TableLoad {
    #[new]
    fn new(
        store: &Bound<'_, NativeStore>,
        topic: &str,
        queue_id: i32,
        keeps_messages: bool,
        on_damage: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let on_damage = damage_policy(on_damage)?;
        let core = store.get().core()?;
        let load = reading(store.py(), core, || Load::new(core, topic, queue_id, keeps_messages))?
            .on_damage(on_damage);
        let (shared, load) = (store.get().shared(), Mutex::new(Some(load)));
        Ok(Self { shared, _owner: store.clone().unbind(), load })
    }

    /// Continues to read for a while; returns False when the queue is read completely.
    fn step(&self, py: Python<'_>) -> PyResult<bool> {
        let store = self.shared.store()?;
        let goes_on = reading(py, store, || {
            let mut guard = locked(&self.load);
            let Some(load) = guard.as_mut() else { return Ok(false) };
            let until = clock().monotonic().saturating_add(SLICE);
            loop {
                match load.step(AT_ONCE) {
                    Ok(true) if clock().monotonic() < until => {}
                    Ok(goes_on) => return Ok(goes_on),
                    Err(error) => {
                        *guard = None;
                        return Err(error);
                    }
                }
            }
        })?;
        self.shared.say_notes(py)?;
        Ok(goes_on)
    }
}

/// The keys of a table, with their newest messages.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct TableRows(Mutex<ColumnSlices>);

impl TableRows {
    /// Runs `work` on the rows. Releases the interpreter if another thread uses them.
    fn with<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut ColumnSlices) -> T + Send) -> T {
        match self.0.try_lock() {
            Ok(mut rows) => work(&mut rows),
            Err(_) => py.detach(|| work(&mut locked(&self.0))),
        }
    }
}

#[pymethods]
impl TableRows {
    #[new]
    fn new() -> Self {
        Self(Mutex::new(ColumnSlices::default()))
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        self.with(py, |rows| rows.len())
    }

    fn __contains__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> bool {
        let Ok(key) = key.cast::<PyString>().map(|key| key.to_str()) else { return false };
        // A text that is not valid UTF-8 is the key of no message.
        key.is_ok_and(|key| self.with(py, |rows| rows.contains(key)))
    }

    /// Returns queue, offset and, if it is kept, message of a key.
    fn __getitem__(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
    ) -> PyResult<(i32, i64, Option<StoredMessage>)> {
        let text = key.cast::<PyString>().ok().and_then(|key| key.to_str().ok());
        let found = text.and_then(|text| self.with(py, |rows| rows.get(text)));
        let (queue_id, row) = found.ok_or_else(|| PyKeyError::new_err(key.clone().unbind()))?;
        Ok((queue_id, row.queue_offset, row.record.map(StoredMessage::from)))
    }

    /// Returns the keys in the order of their newest messages.
    fn keys(&self, py: Python<'_>) -> Vec<String> {
        py.detach(|| locked(&self.0).keys())
    }

    /// Applies one message of a queue, and keeps it if the table keeps messages.
    fn put(
        &self,
        py: Python<'_>,
        key: &str,
        queue_id: i32,
        message: &StoredMessage,
        keeps: bool,
    ) -> PyResult<()> {
        let view = message.view()?;
        let (queue_offset, store_timestamp) = (message.record().queue_offset, view.store_timestamp);
        if view.body.is_empty() {
            self.with(py, |rows| rows.delete(key, queue_id, store_timestamp));
        } else {
            let record = keeps.then(|| message.record().clone());
            let row = TableRow { queue_offset, store_timestamp, record };
            self.with(py, |rows| rows.put(key, queue_id, row));
        }
        Ok(())
    }

    /// Removes the values stored up to a time in milliseconds.
    ///
    /// Returns False if values that were removed before have not expired.
    fn expire(&self, py: Python<'_>, to_ms: Option<i64>) -> bool {
        self.with(py, |rows| rows.expire(to_ms))
    }

    /// Applies a queue that was loaded completely; returns the offset after the last one read.
    fn absorb(&self, py: Python<'_>, load: &TableLoad) -> i64 {
        py.detach(|| {
            let Some(read) = locked(&load.load).take() else { return 0 };
            let reached = read.reached();
            locked(&self.0).absorb(read);
            reached
        })
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
