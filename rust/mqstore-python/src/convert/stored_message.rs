//! `StoredMessage`: a stored record for Python.
//!
//! Holds the stored bytes and decodes a field on demand, so that a read of a million messages for their offsets creates
//! no strings. The bytes never change, and live as long as the object.

use std::borrow::Cow;
use std::sync::Arc;

use mqstore::format::{RecordView, decode_batch};
use mqstore::message::{RecordBytes, StoredRecord};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyMemoryView, PyTuple};

use crate::convert::buffer::RecordBuffer;
use crate::convert::message::Message;
use crate::convert::shown::{datetime, repr, shown_body};
use crate::error::bad_record;

/// A stored message.
///
/// Frozen, equal by value, picklable. Integers are signed as in Java. Timestamps are epoch milliseconds.
#[pyclass(frozen, subclass, module = "mqstore")]
pub(crate) struct StoredMessage {
    record: StoredRecord,
    /// The unpacked body, kept for compressed bodies only.
    unpacked: PyOnceLock<Py<PyBytes>>,
}

impl From<StoredRecord> for StoredMessage {
    fn from(record: StoredRecord) -> Self {
        Self { record, unpacked: PyOnceLock::new() }
    }
}

impl StoredMessage {
    pub(crate) fn record(&self) -> &StoredRecord {
        &self.record
    }

    pub(crate) fn view(&self) -> PyResult<RecordView<'_>> {
        self.record.view().map_err(|error| bad_record(self.record.commit_log_offset, &error))
    }

    fn unpack<'py>(&self, py: Python<'py>, view: &RecordView<'_>) -> PyResult<Bound<'py, PyBytes>> {
        let body = py
            .detach(|| view.unpacked_body().map(Cow::into_owned))
            .map_err(|error| bad_record(self.record.commit_log_offset, &error))?;
        Ok(PyBytes::new(py, &body))
    }

    /// Returns the text of `repr` after `kind`.
    pub(crate) fn shown(&self, py: Python<'_>, kind: &str) -> PyResult<String> {
        let view = self.view()?;
        let body = shown_body(py, view.body)?;
        let tags = view.tags().map_or_else(|| Ok("None".to_owned()), |tags| repr(py, tags))?;
        Ok(format!(
            "{kind}topic={}, queue_id={}, queue_offset={}, commit_log_offset={}, size={}, keys={}, tags={tags}, \
             body={body})",
            repr(py, view.topic)?,
            view.queue_id,
            self.record.queue_offset,
            self.record.commit_log_offset,
            view.bytes.len(),
            Self::key_tuple(py, &view)?.repr()?,
        ))
    }

    fn key_tuple<'py>(py: Python<'py>, view: &RecordView<'_>) -> PyResult<Bound<'py, PyTuple>> {
        let keys = view.keys().unwrap_or_default().split(' ').filter(|key| !key.is_empty());
        PyTuple::new(py, keys.collect::<Vec<_>>())
    }
}

#[pymethods]
impl StoredMessage {
    /// Topic of the record.
    #[getter]
    fn topic(&self) -> PyResult<&str> {
        Ok(self.view()?.topic)
    }

    /// Queue id of the record.
    #[getter]
    fn queue_id(&self) -> PyResult<i32> {
        Ok(self.view()?.queue_id)
    }

    /// The offset in the queue that was read, or else the record's own.
    #[getter]
    fn queue_offset(&self) -> i64 {
        self.record.queue_offset
    }

    /// The log offset of the record, in bytes.
    #[getter]
    fn commit_log_offset(&self) -> u64 {
        self.record.commit_log_offset
    }

    /// Byte length of the record.
    #[getter]
    fn size(&self) -> usize {
        self.record.bytes().len()
    }

    /// The offset id: store host and log offset, in upper-case hex.
    #[getter]
    fn message_id(&self) -> PyResult<String> {
        Ok(self.view()?.offset_message_id())
    }

    /// The `UNIQ_KEY` property, or None.
    #[getter]
    fn unique_id(&self) -> PyResult<Option<&str>> {
        Ok(self.view()?.unique_key())
    }

    /// The body, decompressed if the sender compressed it.
    ///
    /// Raises `CorruptionError` if it does not unpack. `body_view` has the stored bytes.
    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let view = self.view()?;
        if !view.sys_flag.compressed() {
            return Ok(PyBytes::new(py, view.body));
        }
        if let Some(body) = self.unpacked.get(py) {
            return Ok(body.bind(py).clone());
        }
        let body = self.unpack(py, &view)?;
        Ok(self.unpacked.get_or_init(py, || body.unbind()).bind(py).clone())
    }

    /// The body's bytes as stored on disk: a read-only memoryview, without a copy.
    #[getter]
    fn body_view<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        let view = self.view()?;
        let start = (view.body.as_ptr() as usize).saturating_sub(view.bytes.as_ptr() as usize);
        let buffer = RecordBuffer::new(self.record.clone(), start..start + view.body.len());
        PyMemoryView::from(Bound::new(py, buffer)?.as_any())
    }

    /// The keys, in the order given.
    #[getter]
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        Self::key_tuple(py, &self.view()?)
    }

    /// Tag, or None.
    #[getter]
    fn tags(&self) -> PyResult<Option<&str>> {
        Ok(self.view()?.tags())
    }

    /// All stored properties, including reserved names; a new dict each time.
    #[getter]
    fn properties<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let found = PyDict::new(py);
        for (name, value) in self.view()?.properties.iter() {
            found.set_item(name, value)?;
        }
        Ok(found)
    }

    /// The application's 32-bit number.
    #[getter]
    fn flag(&self) -> PyResult<i32> {
        Ok(self.view()?.flag)
    }

    /// RocketMQ's flag bits: compression, transaction state, address families.
    #[getter]
    fn sys_flag(&self) -> PyResult<i32> {
        Ok(self.view()?.sys_flag.0)
    }

    /// The time at which the message was created, in epoch milliseconds.
    #[getter]
    fn born_timestamp(&self) -> PyResult<i64> {
        Ok(self.view()?.born_timestamp)
    }

    /// The host that created the message: `ip:port` or `[v6]:port`.
    #[getter]
    fn born_host(&self) -> PyResult<String> {
        Ok(self.view()?.born_host.to_string())
    }

    /// The time at which the record was stored, in epoch milliseconds.
    #[getter]
    fn store_timestamp(&self) -> PyResult<i64> {
        Ok(self.view()?.store_timestamp)
    }

    /// The host that stored the record: `ip:port` or `[v6]:port`.
    #[getter]
    fn store_host(&self) -> PyResult<String> {
        Ok(self.view()?.store_host.to_string())
    }

    /// The number of times that a consumer group has sent the message back.
    #[getter]
    fn reconsume_times(&self) -> PyResult<i32> {
        Ok(self.view()?.reconsume_times)
    }

    /// The log offset of the transaction's half message; 0 outside transactions.
    #[getter]
    fn prepared_transaction_offset(&self) -> PyResult<i64> {
        Ok(self.view()?.prepared_transaction_offset)
    }

    /// CRC of the stored body.
    #[getter]
    fn body_crc(&self) -> PyResult<i32> {
        Ok(self.view()?.body_crc.cast_signed())
    }

    /// `born_timestamp` as an aware UTC datetime.
    #[getter]
    fn born_time<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        datetime(py, self.view()?.born_timestamp)
    }

    /// `store_timestamp` as an aware UTC datetime.
    #[getter]
    fn store_time<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        datetime(py, self.view()?.store_timestamp)
    }

    /// Returns the messages of an inner batch, in order, as given to `append_many`.
    ///
    /// Empty for any other record. A batch is one record in a topic with batch queues. Its n-th message, counted from
    /// 0, has the queue offset `queue_offset + n`.
    ///
    /// Raises `CorruptionError` if the body is not a batch.
    fn batch<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, Message>>> {
        if !self.view()?.sys_flag.inner_batch() {
            return Ok(Vec::new());
        }
        let body = self.body(py)?;
        let items = decode_batch(body.as_bytes()).map(|item| {
            let item = item.map_err(|error| bad_record(self.record.commit_log_offset, &error))?;
            Bound::new(py, Message::from_batch_item(py, &item)?)
        });
        items.collect()
    }

    /// Returns the body as text.
    #[pyo3(signature = (encoding = "utf-8", errors = "strict"))]
    fn text<'py>(&self, py: Python<'py>, encoding: &str, errors: &str) -> PyResult<Bound<'py, PyAny>> {
        self.body(py)?.call_method1(intern!(py, "decode"), (encoding, errors))
    }

    /// Returns the body parsed as JSON.
    fn json<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static LOADS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        LOADS.import(py, "json", "loads")?.call1((self.body(py)?,))
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.record.queue_offset == other.record.queue_offset
            && self.record.commit_log_offset == other.record.commit_log_offset
            && self.record.bytes() == other.record.bytes()
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        let view = self.view()?;
        (self.record.commit_log_offset, self.record.queue_offset, view.body_crc, view.topic)
            .into_pyobject(py)?
            .hash()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        self.shown(py, "StoredMessage(")
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        static RESTORE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let restore = RESTORE.import(py, "mqstore._mqstore", "_restore_message")?.clone();
        let bytes = PyBytes::new(py, self.record.bytes());
        let state = (bytes, self.record.commit_log_offset, self.record.queue_offset).into_pyobject(py)?;
        Ok((restore, state))
    }
}

/// Creates a message from a record's bytes, for unpickling.
#[pyfunction]
#[pyo3(name = "_restore_message")]
pub(crate) fn restore_message(
    record: &[u8],
    commit_log_offset: u64,
    queue_offset: i64,
) -> PyResult<StoredMessage> {
    let bytes = RecordBytes::Read(Arc::new(record.to_vec()), 0..record.len());
    StoredRecord::new(bytes, commit_log_offset, Some(queue_offset))
        .map(StoredMessage::from)
        .map_err(|error| bad_record(commit_log_offset, &error))
}
