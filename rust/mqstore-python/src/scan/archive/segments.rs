//! The segments of a restored log, for Python: rows of an archive become records at their places.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::ffi_stream::RecordBatchStreamReader;
use mqstore::error::StoreError;
use mqstore::inspect::RestoredLog;
use mqstore::io::OsVfs;
use pyo3::prelude::*;

use super::records::{ArchiveRows, wrong};
use crate::arrow::append_stream::open_stream;
use crate::runtime::detached;

/// Maximum bytes of one write of neighbouring records.
const WRITE_BYTES: usize = 1 << 20;

/// The segments of a log that is restored from an archive.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct ArchiveLog {
    log: Mutex<RestoredLog>,
}

#[pymethods]
impl ArchiveLog {
    /// Takes an existing folder.
    #[new]
    fn new(folder: PathBuf) -> Self {
        Self { log: Mutex::new(RestoredLog::new(Arc::new(OsVfs::new()), &folder)) }
    }

    /// Creates the segment with this log offset and length; all its bytes are zero.
    fn add(&self, py: Python<'_>, base_offset: u64, length: u64) -> PyResult<()> {
        detached(py, || self.with(|log| log.add(base_offset, length)))
    }

    /// Writes the records of rows of an archive.
    ///
    /// Leaves out those of segments that were not added. Returns the number of the records written.
    fn write_rows(&self, rows: &Bound<'_, PyAny>) -> PyResult<u64> {
        let stream = open_stream(rows)?;
        detached(rows.py(), || self.with(|log| write_rows(log, stream)))
    }

    /// Writes other bytes.
    fn write(&self, py: Python<'_>, offset: u64, content: &[u8]) -> PyResult<()> {
        detached(py, || self.with(|log| log.write(offset, content)))
    }

    /// Completes the log between two log offsets.
    ///
    /// Writes the filler at the end of each segment, and with `placeholder_ms`, the store time of placeholders,
    /// replaces all other missing records. Returns the missing ranges that are left: log offset and length.
    fn complete(
        &self,
        py: Python<'_>,
        start: u64,
        end: u64,
        placeholder_ms: Option<i64>,
    ) -> PyResult<Vec<(u64, u64)>> {
        detached(py, || self.with(|log| log.complete(start, end, placeholder_ms)))
    }

    /// Syncs all segments and their folder.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || self.with(|log| log.sync()))
    }
}

impl ArchiveLog {
    fn with<T>(&self, call: impl FnOnce(&mut RestoredLog) -> Result<T, StoreError>) -> Result<T, StoreError> {
        call(&mut self.log.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Writes the records of all rows in segments that were added, and returns their number.
fn write_rows(log: &mut RestoredLog, stream: RecordBatchStreamReader) -> Result<u64, StoreError> {
    let mut records = 0;
    let (mut buffer, mut places) = (Vec::new(), Vec::new());
    for batch in stream {
        let batch = batch.map_err(wrong)?;
        let rows = ArchiveRows::of(&batch)?;
        places.clear();
        for row in 0..batch.num_rows() {
            let offset = rows.log_offset(row)?;
            if log.contains(offset) {
                places.push((offset, row));
            }
        }
        places.sort_unstable();
        records += places.len() as u64;
        let mut start = None;
        for (offset, row) in &places {
            let begin = *start.get_or_insert(*offset);
            if begin + buffer.len() as u64 != *offset || buffer.len() >= WRITE_BYTES {
                log.write(begin, &buffer)?;
                buffer.clear();
                start = Some(*offset);
            }
            rows.encode(*row, &mut buffer)?;
        }
        if let Some(start) = start {
            log.write(start, &buffer)?;
            buffer.clear();
        }
    }
    Ok(records)
}
