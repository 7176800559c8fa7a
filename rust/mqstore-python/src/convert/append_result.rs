//! `AppendResult`: the result of an append. Small and frozen; the ids become text on demand.

use mqstore::format::{Host, offset_message_id, parse_offset_message_id};
use mqstore::message::Appended;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple, PyType};

/// The position of an appended message: its queue, its offsets in queue and log, its ids.
///
/// Frozen, equal by value, picklable.
#[pyclass(frozen, module = "mqstore")]
pub(crate) struct AppendResult {
    /// Topic of the message.
    #[pyo3(get)]
    topic: Py<PyString>,
    host: Host,
    appended: Appended,
}

impl AppendResult {
    /// Creates the result of one append to `topic` by a store that writes `host`.
    pub(crate) fn from_core(topic: &Bound<'_, PyString>, host: Host, appended: Appended) -> Self {
        Self { topic: topic.clone().unbind(), host, appended }
    }

    /// Returns the begin and the end of the record.
    pub(crate) fn place(&self) -> (u64, u64) {
        (self.appended.commit_log_offset, self.appended.log_end())
    }

    fn same(&self, py: Python<'_>, other: &Self) -> PyResult<bool> {
        Ok(self.appended == other.appended
            && self.host == other.host
            && self.topic.bind(py).as_any().eq(other.topic.bind(py))?)
    }

    fn values<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        (
            &self.topic,
            self.queue_id(),
            self.queue_offset(),
            self.commit_log_offset(),
            self.size(),
            self.message_id(),
            self.unique_id(),
            self.store_timestamp(),
            self.durable(),
        )
            .into_pyobject(py)
    }
}

#[pymethods]
impl AppendResult {
    #[new]
    #[pyo3(signature = (topic, queue_id, queue_offset, commit_log_offset, size, message_id, unique_id, store_timestamp, durable))]
    #[expect(clippy::too_many_arguments, reason = "the class has this many fields")]
    fn new(
        topic: Py<PyString>,
        queue_id: i32,
        queue_offset: i64,
        commit_log_offset: u64,
        size: u32,
        message_id: &str,
        unique_id: String,
        store_timestamp: i64,
        durable: bool,
    ) -> PyResult<Self> {
        let (host, _) = parse_offset_message_id(message_id)
            .map_err(|error| PyValueError::new_err(format!("message_id {message_id:?}: {error}")))?;
        let appended = Appended {
            queue_id,
            queue_offset,
            commit_log_offset,
            size,
            store_timestamp_ms: store_timestamp,
            durable,
            unique_id: unique_id.into(),
        };
        Ok(Self { topic, host, appended })
    }

    /// Queue id of the message.
    #[getter]
    fn queue_id(&self) -> i32 {
        self.appended.queue_id
    }

    /// Offset of the message in its queue.
    #[getter]
    fn queue_offset(&self) -> i64 {
        self.appended.queue_offset
    }

    /// The log offset of the record, in bytes.
    #[getter]
    fn commit_log_offset(&self) -> u64 {
        self.appended.commit_log_offset
    }

    /// Byte length of the record.
    #[getter]
    fn size(&self) -> u32 {
        self.appended.size
    }

    /// The offset id: store host and log offset, in upper-case hex.
    #[getter]
    fn message_id(&self) -> String {
        offset_message_id(&self.host, self.appended.commit_log_offset as i64)
    }

    /// Unique id of the message: its `UNIQ_KEY` property.
    #[getter]
    fn unique_id(&self) -> &str {
        self.appended.unique_id.as_str()
    }

    /// The time at which the record was stored, in epoch milliseconds.
    #[getter]
    fn store_timestamp(&self) -> i64 {
        self.appended.store_timestamp_ms
    }

    /// Whether a sync already covers the record.
    #[getter]
    fn durable(&self) -> bool {
        self.appended.durable
    }

    fn __eq__(&self, py: Python<'_>, other: &Self) -> PyResult<bool> {
        self.same(py, other)
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        self.values(py)?.hash()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!(
            "AppendResult(topic={}, queue_id={}, queue_offset={}, commit_log_offset={}, size={}, message_id='{}', \
             unique_id={}, store_timestamp={}, durable={})",
            self.topic.bind(py).repr()?,
            self.queue_id(),
            self.queue_offset(),
            self.commit_log_offset(),
            self.size(),
            self.message_id(),
            PyString::new(py, self.unique_id()).repr()?,
            self.store_timestamp(),
            if self.durable() { "True" } else { "False" },
        ))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyType>, Bound<'py, PyTuple>)> {
        Ok((py.get_type::<Self>(), self.values(py)?))
    }
}
