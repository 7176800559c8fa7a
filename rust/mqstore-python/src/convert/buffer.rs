//! Memory that Python and this module share without a copy: bodies of stored messages, Arrow streams, and the answers of
//! transports.
//!
//! `StoredMessage.body_view` is a `memoryview` of a read-only buffer. It keeps the record's bytes and their mapping
//! alive. As long as a view exists, its segment stays mapped; the segment's file can still be deleted.

#![expect(
    unsafe_code,
    reason = "the buffer protocol and Arrow's streams are C interfaces; no other file uses them"
)]

use std::ffi::c_int;
use std::ops::Range;

use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use mqstore::io::RangeBytes;
use mqstore::message::StoredRecord;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::critical_section::with_critical_section;
use pyo3::types::{PyBytes, PyCapsule, PyMemoryView};

/// Part of a record's bytes, for the buffer protocol.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct RecordBuffer {
    record: StoredRecord,
    range: Range<usize>,
}

impl RecordBuffer {
    /// Creates a buffer over the bytes of `record` in `range`. A range outside the record is empty.
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

    /// Fills `view`. The interpreter calls this with its own `Py_buffer`.
    ///
    /// # Safety
    /// `view` is null or points to a writable `Py_buffer`.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no buffer to fill"));
        }
        let bytes = slf.get().bytes();
        let length = ffi::Py_ssize_t::try_from(bytes.len())?;
        // SAFETY: `bytes` stays in place as long as the exporter lives, and `view` holds a reference to it. The view is
        // read-only, so that no caller writes through the pointer.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), bytes.as_ptr().cast_mut().cast(), length, 1, flags)
        };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

/// Moves the stream out of a capsule of Arrow's C stream interface. A second call gets a stream that has ended.
pub(crate) fn take_stream(capsule: &Bound<'_, PyCapsule>) -> PyResult<FFI_ArrowArrayStream> {
    let stream = capsule.pointer_checked(Some(c"arrow_array_stream"))?.cast::<FFI_ArrowArrayStream>();
    Ok(with_critical_section(capsule, || {
        // SAFETY: by the PyCapsule interface of Arrow, a capsule with this name points to an initialized stream, which
        // lives as long as the capsule. No other call moves it out at the same time: the interpreter is attached, and in
        // a free-threaded one the critical section excludes the others.
        unsafe { FFI_ArrowArrayStream::from_raw(stream.as_ptr()) }
    }))
}

/// The memory of an object whose bytes never change.
struct UnchangingBytes(PyBuffer<u8>);

impl UnchangingBytes {
    /// Returns the memory of `found` if nothing can change it: a `bytes`, or a view of one or of a `Bytes` of obstore,
    /// which is immutable too. A read-only view of any other object says nothing about changes by others.
    fn of(found: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let owner = match found.cast::<PyMemoryView>() {
            Ok(view) => view.getattr("obj")?,
            Err(_) => found.clone(),
        };
        let owner_type = owner.get_type();
        let is_immutable = owner.is_exact_instance_of::<PyBytes>()
            || owner_type.name()? == "Bytes" && owner_type.module()? == "obstore";
        let buffer = PyBuffer::get(found)?;
        Ok((is_immutable && buffer.as_slice_ptr().is_some()).then_some(Self(buffer)))
    }
}

impl AsRef<[u8]> for UnchangingBytes {
    fn as_ref(&self) -> &[u8] {
        let bytes = self.0.as_slice_ptr();
        // SAFETY: the buffer keeps its exporter and the memory alive as long as `self`, the memory is one initialized
        // range, and nothing changes the bytes of the types that `of` accepts.
        bytes.map(|bytes| unsafe { bytes.as_ref() }).unwrap_or_default()
    }
}

/// Returns the bytes of an answer of a transport; copies them only if they could change.
pub(crate) fn range_bytes(found: &Bound<'_, PyAny>) -> PyResult<RangeBytes> {
    Ok(match UnchangingBytes::of(found)? {
        Some(bytes) => Box::new(bytes),
        None => Box::new(PyBuffer::<u8>::get(found)?.to_vec(found.py())?),
    })
}
