//! Messages of an archive for consumers and for the limits of topics. Objects of `mqstore._archive` read them.
//!
//! A consumer calls from a thread that has released the interpreter, with the lock of the consumer. The object uses no
//! consumer, so no thread can wait for the other.

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use mqstore::delivery::OlderMessages;
use mqstore::error::StoreError;
use mqstore::message::StoredRecord;
use mqstore::store::{OlderFloor, OlderLimits, OlderTopics};
use pyo3::exceptions::PyPermissionError;
use pyo3::prelude::*;

use crate::convert::stored_message::StoredMessage;
use crate::error::CorruptionError;

/// The object, with `first_offset`, `offset_for_time` and `read`.
pub(crate) struct PythonMessages {
    pub(crate) object: Py<PyAny>,
}

impl fmt::Debug for PythonMessages {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The object has credentials.
        out.debug_struct("PythonMessages").finish_non_exhaustive()
    }
}

impl OlderMessages for PythonMessages {
    fn first_offset(&self, topic: &str, queue_id: i32) -> Result<Option<i64>, StoreError> {
        self.call(|object| object.call_method1("first_offset", (topic, queue_id))?.extract())
    }

    fn offset_for_time(&self, topic: &str, queue_id: i32, time_ms: i64) -> Result<Option<i64>, StoreError> {
        self.call(|object| object.call_method1("offset_for_time", (topic, queue_id, time_ms))?.extract())
    }

    fn read(
        &self,
        topic: &str,
        queue_id: i32,
        (start, end): (i64, i64),
        max: usize,
    ) -> Result<(Vec<StoredRecord>, i64), StoreError> {
        self.call(|object| {
            let found = object.call_method1("read", (topic, queue_id, start, end, max))?;
            let (messages, next): (Vec<Bound<'_, StoredMessage>>, i64) = found.extract()?;
            Ok((messages.iter().map(|message| message.get().record().clone()).collect(), next))
        })
    }
}

impl PythonMessages {
    fn call<T>(&self, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> Result<T, StoreError> {
        Python::attach(|py| call(self.object.bind(py)).map_err(|error| failure(py, &error)))
    }
}

/// The object for the limits of topics, with `due_floor`. The background of the store calls it, too.
#[derive(Debug)]
pub(crate) struct PythonTopics {
    pub(crate) object: Py<PyAny>,
}

impl OlderTopics for PythonTopics {
    fn due_floor(
        &self,
        topic: &str,
        log_start: u64,
        lows: &BTreeMap<i32, i64>,
        limits: OlderLimits,
    ) -> Result<Option<OlderFloor>, StoreError> {
        let OlderLimits { since_ms, max_bytes, max_messages } = limits;
        let asked = Python::try_attach(|py| {
            let given = (topic, log_start, lows.clone(), since_ms, max_bytes, max_messages);
            let found = self.object.bind(py).call_method1("due_floor", given);
            let floor = found.and_then(|found| found.extract::<Option<(u64, u64)>>());
            floor.map_err(|error| failure(py, &error))
        });
        // The interpreter ends: the next open applies the limits.
        let floor = asked.unwrap_or(Ok(None))?;
        Ok(floor.map(|(log_offset, messages)| OlderFloor { log_offset, messages }))
    }
}

/// Converts an exception of the object to an error of the store.
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
        io::Error::new(io::ErrorKind::PermissionDenied, text)
    } else {
        io::Error::other(text)
    };
    StoreError::Io { path, action: "reading the archive", source }
}
