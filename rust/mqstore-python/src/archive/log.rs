//! The records of a part of the log, with the columns of an archive.

use std::sync::Arc;

use mqstore::archive::records::ArchiveBuilder;
use mqstore::archive::run::records_of_log;
use mqstore::arrow::BufferPool;
use mqstore::read::MakeSink;
use pyo3::prelude::*;

use crate::scan::running_scan::ScanHandle;
use crate::scan::scan_rows::{ScanRows, arrow_bug};

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
    let pool = Arc::<BufferPool>::default();
    let make: MakeSink<ArchiveBuilder> = Arc::new(move || ArchiveBuilder::new(&pool));
    let request = records_of_log(start, end, threads);
    Ok(ArchiveStream { pass: ScanHandle::begin(store, &request, make)? })
}

/// Adds the classes and the function.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ArchiveStream>()?;
    module.add_function(wrap_pyfunction!(scan_archive, module)?)
}
