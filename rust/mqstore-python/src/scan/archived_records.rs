//! Records of an archive that a copy takes before those of its scan.

use mqstore::archive::history::LogRecord;
use pyo3::prelude::*;

use crate::error::CorruptionError;

/// Some records of an archive.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct ArchivedRecords {
    /// Log offset and bytes.
    pub(crate) records: Vec<LogRecord>,
}

#[pymethods]
impl ArchivedRecords {
    /// The log offset after the first byte of the last record.
    #[getter]
    fn end(&self) -> PyResult<u64> {
        let last = self.records.last().map(|(offset, _)| offset + 1);
        last.ok_or_else(|| CorruptionError::new_err(("the archive", 0, "a step has no records")))
    }
}
