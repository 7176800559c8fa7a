//! Records of the log as the columns of an archive, and back to the same bytes.
//!
//! `columns` builds the columns in the workers of a scan. `records` encodes rows of these columns, and
//! `segments` writes them to the segments of a restored log. A record is a function of its row: its lengths and its
//! physical offset follow from the other columns. If it is not, the column `raw` has the whole record. `reads` makes
//! messages and rows of a scan from these rows.

mod columns;
mod reads;
mod records;
mod segments;

use std::sync::Arc;

use mqstore::options::DamagePolicy;
use mqstore::read::{MakeSink, ScanPlan, ScanRequest};
use pyo3::prelude::*;

use super::buffer_pool::BufferPool;
use super::running_scan::ScanHandle;
use super::scan_rows::{ScanRows, arrow_bug};
use crate::arrow::append_stream::open_stream;
use crate::runtime::detached;
use columns::ArchiveBuilder;
pub(super) use reads::visit_archived;
use records::checksum;
use segments::ArchiveLog;

/// One pass over the records of a range of the log; created by `scan_archive`.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct ArchiveStream {
    pass: ScanHandle<ArchiveBuilder>,
}

#[pymethods]
impl ArchiveStream {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<ScanRows>> {
        let Some(batch) = self.pass.next(py)? else { return Ok(None) };
        let rows = batch.rows.map_err(|error| arrow_bug(&error))?;
        Ok(Some(ScanRows { rows, end: batch.end }))
    }

    /// Ends the pass. Its threads have stopped when this returns.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.pass.take()));
    }
}

/// Starts a pass over the records of the log between two log offsets, with those of deleted topics. Bytes that are not
/// in a row are fillers, placeholders of a repair, damaged records, and records with an invalid topic.
#[pyfunction]
fn scan_archive(store: &Bound<'_, PyAny>, start: u64, end: u64, threads: u32) -> PyResult<ArchiveStream> {
    let request = ScanRequest {
        from: Some(start),
        to: Some(end),
        on_damage: DamagePolicy::Skip,
        with_deleted: true,
        threads,
        plan: ScanPlan::Log,
        ..ScanRequest::default()
    };
    let pool = Arc::<BufferPool>::default();
    let make: MakeSink<ArchiveBuilder> = Arc::new(move || ArchiveBuilder::new(&pool));
    Ok(ArchiveStream { pass: ScanHandle::begin(store, &request, make)? })
}

/// Encodes the records of rows of an archive. Returns their number, the sum of the CRC-32 of each record, and the sum
/// of their bytes.
#[pyfunction]
fn archive_checksum(rows: &Bound<'_, PyAny>) -> PyResult<(u64, u64, u64)> {
    let stream = open_stream(rows)?;
    detached(rows.py(), || checksum(stream))
}

/// Adds the functions and classes of archives.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ArchiveStream>()?;
    module.add_class::<ArchiveLog>()?;
    module.add_function(wrap_pyfunction!(scan_archive, module)?)?;
    module.add_function(wrap_pyfunction!(reads::archive_messages, module)?)?;
    module.add_function(wrap_pyfunction!(reads::archive_scan_rows, module)?)?;
    module.add_function(wrap_pyfunction!(archive_checksum, module)?)
}
