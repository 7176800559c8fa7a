//! Arrow columns for input, as raw buffers.
//!
//! The buffers are not trusted: every offset is checked when it is used.

#![expect(clippy::host_endian_bytes, reason = "Arrow's buffers are in the byte order of the machine")]

use mqstore::error::StoreError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Validity bits, offsets (32 bits) and bytes of a column of text or bytes.
pub(super) type RawText<'py> = (Option<Bound<'py, PyBytes>>, Bound<'py, PyBytes>, Bound<'py, PyBytes>);

/// Validity bits and values of a column of numbers.
pub(super) type RawNumbers<'py> = (Option<Bound<'py, PyBytes>>, Bound<'py, PyBytes>);

fn broken() -> StoreError {
    StoreError::InvalidMessage { reason: "the buffers of an Arrow column contradict each other".to_owned() }
}

/// The validity bits: which rows are null.
#[derive(Clone, Copy)]
struct NullMask<'a>(Option<&'a [u8]>);

impl<'a> NullMask<'a> {
    fn of(bits: Option<&'a Bound<'_, PyBytes>>) -> Self {
        Self(bits.map(PyBytesMethods::as_bytes))
    }

    fn is_null(self, row: usize) -> bool {
        self.0.is_some_and(|bits| bits.get(row / 8).is_none_or(|byte| byte & (1 << (row % 8)) == 0))
    }
}

/// The bounds of each row's value.
#[derive(Clone, Copy)]
struct Offsets32<'a>(&'a [u8]);

impl<'a> Offsets32<'a> {
    fn of(offsets: &'a Bound<'_, PyBytes>) -> Self {
        Self(offsets.as_bytes())
    }

    fn get(self, row: usize) -> Result<std::ops::Range<usize>, StoreError> {
        let number = |row: usize| -> Option<usize> {
            let at = row.checked_mul(4)?;
            let bytes = self.0.get(at..at.checked_add(4)?)?;
            usize::try_from(i32::from_ne_bytes(bytes.try_into().ok()?)).ok()
        };
        let (start, end) = number(row).zip(number(row + 1)).ok_or_else(broken)?;
        if start > end { Err(broken()) } else { Ok(start..end) }
    }
}

/// A column of text or bytes.
#[derive(Clone, Copy)]
pub(super) struct TextColumn<'a> {
    nulls: NullMask<'a>,
    spans: Offsets32<'a>,
    bytes: &'a [u8],
}

impl<'a> TextColumn<'a> {
    pub(super) fn of((nulls, offsets, bytes): &'a RawText<'_>) -> Self {
        Self { nulls: NullMask::of(nulls.as_ref()), spans: Offsets32::of(offsets), bytes: bytes.as_bytes() }
    }

    pub(super) fn bytes(&self, row: usize) -> Result<Option<&'a [u8]>, StoreError> {
        if self.nulls.is_null(row) {
            return Ok(None);
        }
        self.bytes.get(self.spans.get(row)?).map(Some).ok_or_else(broken)
    }

    pub(super) fn text(&self, row: usize) -> Result<Option<&'a str>, StoreError> {
        self.bytes(row)?.map(|bytes| std::str::from_utf8(bytes).map_err(|_| broken())).transpose()
    }
}

/// A column of numbers of `N` bytes.
#[derive(Clone, Copy)]
pub(super) struct NumberColumn<'a, const N: usize> {
    nulls: NullMask<'a>,
    values: &'a [u8],
}

impl<'a, const N: usize> NumberColumn<'a, N> {
    pub(super) fn of((nulls, values): &'a RawNumbers<'_>) -> Self {
        Self { nulls: NullMask::of(nulls.as_ref()), values: values.as_bytes() }
    }

    pub(super) fn get(&self, row: usize) -> Result<Option<[u8; N]>, StoreError> {
        if self.nulls.is_null(row) {
            return Ok(None);
        }
        let at = row.checked_mul(N).ok_or_else(broken)?;
        let bytes = self.values.get(at..at.saturating_add(N)).ok_or_else(broken)?;
        bytes.try_into().map(Some).map_err(|_| broken())
    }
}
