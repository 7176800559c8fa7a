//! A read-only buffer over stored bytes, without a copy.
//!
//! `StoredMessage.body_view` is a `memoryview` of one of these. It keeps the record's bytes alive, and
//! with them the mapping they lie in; a view that is held therefore holds back the unmapping of its
//! segment, never its deletion.

#![expect(unsafe_code, reason = "the buffer protocol is a C interface; this file is its only user")]

use std::ffi::c_int;
use std::ops::Range;

use mqstore_base::message::StoredRecord;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

/// Part of a record's bytes, for the buffer protocol.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct RecordBuffer {
    record: StoredRecord,
    range: Range<usize>,
}

impl RecordBuffer {
    /// The bytes of `record` that lie in `range`; a range outside them is empty.
    pub(crate) fn new(record: StoredRecord, range: Range<usize>) -> Self {
        Self { record, range }
    }

    fn bytes(&self) -> &[u8] {
        self.record.bytes().get(self.range.clone()).unwrap_or_default()
    }
}

#[pymethods]
impl RecordBuffer {
    fn __len__(&self) -> usize {
        self.bytes().len()
    }

    /// Fills `view`; the interpreter calls this with a `Py_buffer` of its own.
    ///
    /// # Safety
    /// `view` is null or points to a `Py_buffer` that may be written.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no buffer to fill"));
        }
        let bytes = slf.get().bytes();
        let length = ffi::Py_ssize_t::try_from(bytes.len())?;
        // SAFETY: `bytes` stays where it is for as long as the exporter lives, which `view` holds a
        // reference to, and read-only is demanded, so that nobody writes through the pointer.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), bytes.as_ptr().cast_mut().cast(), length, 1, flags)
        };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
