//! Functions on Arrow columns: decoded records, hashes, ids.
//!
//! The caller handles nulls: the result of a null row has no meaning.

#![expect(clippy::host_endian_bytes, reason = "Arrow's buffers are in the byte order of the machine")]

use std::sync::Arc;

use mqstore::error::StoreError;
use mqstore::format::{CrcCheck, Host, RecordView, index_key_hash, offset_message_id, tags_code};
use mqstore::read::{ScanRow, ScanSink};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::arrow_input::{NumberColumn, RawNumbers, RawText, TextColumn};
use super::column_builder::BatchBuilder;
use super::request::layout;
use super::scan_rows::{ScanRows, arrow_bug};
use crate::runtime::detached;

/// Decodes the rows that are whole records to columns, and returns which rows these are.
#[pyfunction]
pub(crate) fn decode_records(
    request: &Bound<'_, PyDict>,
    records: RawText<'_>,
    rows: usize,
) -> PyResult<(Option<ScanRows>, Vec<usize>)> {
    let layout = Arc::new(layout(request)?);
    let texts = TextColumn::of(&records);
    let (batch, found) = detached(request.py(), || {
        let mut columns = BatchBuilder::new(layout, &Arc::default());
        let mut found = Vec::new();
        for row in 0..rows {
            let Some(bytes) = texts.bytes(row)? else { continue };
            let record = RecordView::decode(bytes).ok();
            if let Some(record) = record.filter(|record| record.check_crc(CrcCheck::ALL).is_ok()) {
                columns.add(&ScanRow::new(&record, u64::try_from(record.physical_offset).unwrap_or(0)));
                found.push(row);
            }
        }
        Ok((columns.take(), found))
    })?;
    let rows = batch.map(|(rows, _)| rows.map_err(|error| arrow_bug(&error))).transpose()?;
    Ok((rows.map(|rows| ScanRows { rows, end: 0 }), found))
}

/// Returns the hash of each tag as in queue entries: 64 bits per row.
#[pyfunction]
pub(crate) fn tags_codes<'py>(
    py: Python<'py>,
    tags: RawText<'py>,
    rows: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    let texts = TextColumn::of(&tags);
    let codes = detached(py, || {
        let mut codes = Vec::with_capacity(rows.saturating_mul(8));
        for row in 0..rows {
            codes.extend_from_slice(&tags_code(texts.text(row)?.unwrap_or_default()).to_ne_bytes());
        }
        Ok(codes)
    })?;
    Ok(PyBytes::new(py, &codes))
}

/// Returns the hash of each topic and key as in the key index: 32 bits per row.
#[pyfunction]
pub(crate) fn key_hashes<'py>(
    py: Python<'py>,
    topics: RawText<'py>,
    keys: RawText<'py>,
    rows: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    let (topics, keys) = (TextColumn::of(&topics), TextColumn::of(&keys));
    let hashes = detached(py, || {
        let mut hashes = Vec::with_capacity(rows.saturating_mul(4));
        for row in 0..rows {
            let (topic, key) = (topics.text(row)?.unwrap_or_default(), keys.text(row)?.unwrap_or_default());
            hashes.extend_from_slice(&index_key_hash(topic, key).to_ne_bytes());
        }
        Ok(hashes)
    })?;
    Ok(PyBytes::new(py, &hashes))
}

/// Returns the offset id of each store host and log offset; None if the host is not valid.
#[pyfunction]
pub(crate) fn message_ids(
    py: Python<'_>,
    hosts: RawText<'_>,
    offsets: RawNumbers<'_>,
    rows: usize,
) -> PyResult<Vec<Option<String>>> {
    let (hosts, offsets) = (TextColumn::of(&hosts), NumberColumn::<8>::of(&offsets));
    detached(py, || -> Result<_, StoreError> {
        let id = |row: usize| -> Result<Option<String>, StoreError> {
            let host = hosts.text(row)?.and_then(|text| text.parse::<Host>().ok());
            let offset = offsets.get(row)?.map(i64::from_ne_bytes);
            Ok(host.zip(offset).map(|(host, offset)| offset_message_id(&host, offset)))
        };
        (0..rows).map(id).collect()
    })
}

/// Adds the functions to the native module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(decode_records, module)?)?;
    module.add_function(wrap_pyfunction!(tags_codes, module)?)?;
    module.add_function(wrap_pyfunction!(key_hashes, module)?)?;
    module.add_function(wrap_pyfunction!(message_ids, module)?)?;
    Ok(())
}
