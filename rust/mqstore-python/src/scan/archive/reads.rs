//! Rows of an archive as messages and as rows of a scan.
//!
//! A row becomes the record that the log had. Its checksums are verified, and then the conditions of a read or a scan
//! apply to it as to a record of the log.

use std::sync::Arc;

use arrow_array::ffi_stream::RecordBatchStreamReader;
use mqstore::error::StoreError;
use mqstore::format::{CrcCheck, RecordView};
use mqstore::message::{RecordBytes, StoredRecord};
use mqstore::read::{RecordTest, ScanRequest, ScanRow, ScanSink};
use mqstore::store::FloorTable;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::super::column_builder::BatchBuilder;
use super::super::request::{layout, scan_request};
use super::super::scan_rows::{ScanRows, arrow_bug};
use super::records::{for_each_record, wrong};
use crate::arrow::append_stream::open_stream;
use crate::convert::stored_message::StoredMessage;
use crate::runtime::detached;
use crate::store::NativeStore;

/// Returns the test of a request. The floors of the store hide records of deleted topics.
fn test_of(request: &ScanRequest, store: Option<&Bound<'_, NativeStore>>) -> PyResult<RecordTest> {
    let floors = match store {
        Some(store) => store.get().core()?.floors(),
        None => Arc::<FloorTable>::default(),
    };
    Ok(RecordTest::new(request, floors))
}

/// Calls `visit` with each row that meets the conditions, and with the bytes of its record.
fn visit_rows(
    stream: RecordBatchStreamReader,
    test: &RecordTest,
    mut visit: impl FnMut(&ScanRow<'_>),
) -> Result<(), StoreError> {
    for_each_record(stream, |rows, row, bytes| {
        let record = RecordView::decode(bytes).map_err(wrong)?;
        let offset = rows.log_offset(row)?;
        record
            .check_crc(CrcCheck::ALL)
            .map_err(|error| wrong(format!("the record of log offset {offset}: {error}")))?;
        test.visit(&record, offset, &mut visit);
        Ok(())
    })
}

/// Calls `visit` with the record of each row.
pub(in crate::scan) fn visit_archived(
    stream: RecordBatchStreamReader,
    visit: impl FnMut(&ScanRow<'_>),
) -> Result<(), StoreError> {
    visit_rows(stream, &RecordTest::new(&ScanRequest::default(), Arc::default()), visit)
}

/// Returns the messages of rows of an archive that meet the conditions of a request, in the order of the rows.
#[pyfunction]
#[pyo3(signature = (rows, request, store))]
pub(super) fn archive_messages(
    rows: &Bound<'_, PyAny>,
    request: &Bound<'_, PyDict>,
    store: Option<&Bound<'_, NativeStore>>,
) -> PyResult<Vec<StoredMessage>> {
    let test = test_of(&scan_request(request)?, store)?;
    let stream = open_stream(rows)?;
    detached(rows.py(), || {
        let mut found = Vec::new();
        visit_rows(stream, &test, |row| {
            let bytes = row.record.bytes.to_vec();
            let all = 0..bytes.len();
            let record =
                StoredRecord::decoded(RecordBytes::Read(Arc::new(bytes), all), row.offset, row.queue_offset);
            found.push(StoredMessage::from(record));
        })?;
        Ok(found)
    })
}

/// Returns the rows of a scan for rows of an archive, in their order, as batches.
#[pyfunction]
#[pyo3(signature = (rows, request, store))]
pub(super) fn archive_scan_rows(
    rows: &Bound<'_, PyAny>,
    request: &Bound<'_, PyDict>,
    store: Option<&Bound<'_, NativeStore>>,
) -> PyResult<Vec<ScanRows>> {
    let test = test_of(&scan_request(request)?, store)?;
    let columns = Arc::new(layout(request)?);
    let stream = open_stream(rows)?;
    let batches = detached(rows.py(), || {
        let mut columns = BatchBuilder::new(columns, &Arc::default());
        let mut batches = Vec::new();
        visit_rows(stream, &test, |row| {
            if !columns.has_room(row) {
                batches.extend(columns.take());
            }
            columns.add(row);
        })?;
        batches.extend(columns.take());
        Ok(batches)
    })?;
    let made = batches.into_iter().map(|(rows, _)| match rows {
        Ok(rows) => Ok(ScanRows { rows, end: 0 }),
        Err(error) => Err(arrow_bug(&error)),
    });
    made.collect()
}
