//! Whole files of an archive, and the segments of a log that is restored from them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use mqstore::archive::file::{FileError, FileSizes, LocalFile, write_bytes};
use mqstore::archive::manifest::{ArchivedSegment, LastRecord, Manifest, checksum_of};
use mqstore::archive::owner::check_owner;
use mqstore::archive::records::{ArchiveFile, QueueGaps, RowsSummary};
use mqstore::error::StoreError;
use mqstore::inspect::RestoredLog;
use mqstore::io::OsVfs;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::{invalid, to_py};
use crate::runtime::detached;
use crate::store::NativeStore;

/// Number of rows, sum of the lengths of the records, sum of their CRC-32, smallest and largest store time in epoch
/// milliseconds, and the queues: number, first and last offset, number of rows.
pub(super) type SummaryRow = (u64, u64, u64, Option<i64>, Option<i64>, Vec<(i32, i64, i64, u64)>);

pub(super) fn summary_row(found: RowsSummary) -> SummaryRow {
    let queues = found.queues.iter().map(|one| (one.queue_id, one.first, one.last, one.rows)).collect();
    (found.rows, found.record_bytes, found.crc_sum, found.first_ms, found.last_ms, queues)
}

/// Returns the error for a file; `path` shows it to the user.
pub(super) fn file_error(path: &str, error: FileError) -> StoreError {
    match error {
        FileError::Store(error) => error,
        FileError::Damaged(reason) => StoreError::Corrupt { path: path.into(), offset: 0, reason },
    }
}

/// Opens a file in a folder of this machine.
fn open(path: &Path, record_bytes: Option<u64>) -> Result<ArchiveFile, FileError> {
    ArchiveFile::open(Box::new(LocalFile::open(&OsVfs::new(), path)?), record_bytes)
}

fn with_file<T: Send>(
    py: Python<'_>,
    path: &Path,
    shown: &str,
    record_bytes: Option<u64>,
    call: impl FnOnce(&ArchiveFile) -> Result<T, FileError> + Send,
) -> PyResult<T> {
    detached(py, || {
        open(path, record_bytes).and_then(|file| call(&file)).map_err(|error| file_error(shown, error))
    })
}

/// Encodes all records of a file. Returns what a manifest says of them. `record_bytes` is the sum of their lengths if the
/// manifest has it, and `shown` names the file in errors.
#[pyfunction]
fn archive_file_summary(
    py: Python<'_>,
    path: PathBuf,
    shown: &str,
    record_bytes: Option<u64>,
) -> PyResult<SummaryRow> {
    with_file(py, &path, shown, record_bytes, ArchiveFile::summary).map(summary_row)
}

/// The topic, the texts of the footer by name, what a manifest says of the records, their log offsets, sorted, with their
/// store times in epoch milliseconds, and the length of the last record.
type FactsRow = (Option<String>, Vec<(String, String)>, SummaryRow, Vec<(u64, i64)>, u32);

/// Returns what a file says of itself, as a manifest is made from it.
#[pyfunction]
fn archive_file_facts(py: Python<'_>, path: PathBuf, shown: &str) -> PyResult<FactsRow> {
    with_file(py, &path, shown, None, |file| {
        let facts = file.footer().facts().map(|(name, text)| (name.to_owned(), text.to_owned())).collect();
        let places = if file.footer().has_records() { file.places()? } else { Vec::new() };
        let last = places.last().map_or(0, |(.., length)| *length);
        let places = places.into_iter().map(|(offset, time_ms, _)| (offset, time_ms)).collect();
        Ok((file.topic()?, facts, summary_row(file.summary()?), places, last))
    })
}

/// Returns a new file of bytes of the log that are no records of a topic: log offset, length, and the bytes without final
/// zeros.
#[pyfunction]
fn archive_bytes_file(
    py: Python<'_>,
    pieces: Vec<(u64, u64, Vec<u8>)>,
    level: i32,
    facts: Vec<(String, String)>,
) -> PyResult<Bound<'_, PyBytes>> {
    let made = detached(py, || write_bytes(&pieces, level, &facts).map_err(|error| file_error("", error)))?;
    Ok(PyBytes::new(py, &made))
}

/// Returns why the content of a manifest cannot be used, and the remedy; None if it can be.
#[pyfunction]
fn manifest_problem(py: Python<'_>, content: &[u8]) -> Option<(String, &'static str)> {
    py.detach(|| Manifest::decode(content).err().map(|wrong| (wrong.reason, wrong.remedy)))
}

/// Returns the checksum of the members of a manifest, given as JSON.
#[pyfunction]
fn manifest_checksum(py: Python<'_>, members: &str) -> PyResult<String> {
    let made = py.detach(|| serde_json::from_str(members).map(|values| checksum_of(&values)));
    made.map_err(|error| invalid(error.to_string()))
}

/// Compares the last record of an archive with the log of a store, if the log has it.
///
/// The record has log offset, length and digest. A segment has log offset, length, and the store times of the first and
/// the last record.
#[pyfunction]
fn check_archive_owner(
    store: &Bound<'_, NativeStore>,
    shown: &str,
    last: Option<(u64, u64, String)>,
    segments: Vec<(u64, u64, Option<i64>, i64)>,
    extends: bool,
) -> PyResult<()> {
    let core = store.get().core()?;
    let last = last.map(|(log_offset, bytes, sha256)| LastRecord { log_offset, bytes, sha256 });
    let segment = |(base, bytes, first_ms, last_ms)| ArchivedSegment { base, bytes, first_ms, last_ms };
    let segments: Vec<_> = segments.into_iter().map(segment).collect();
    detached(store.py(), || check_owner(core, shown, last.as_ref(), &segments, extends))
}

/// Returns the sizes of the parts of new files: rows of a row group, bytes of a page, and rows at which it can end.
pub(super) fn file_sizes(sizes: (usize, usize, usize), level: i32) -> FileSizes {
    let (group_rows, page_bytes, page_step_rows) = sizes;
    FileSizes { group_rows, page_bytes, page_step_rows, level }
}

/// The segments of a log that is restored from an archive.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct ArchiveLog {
    inner: Mutex<(RestoredLog, QueueGaps)>,
}

#[pymethods]
impl ArchiveLog {
    /// Takes an existing folder.
    #[new]
    fn new(folder: PathBuf) -> Self {
        let log = RestoredLog::new(Arc::new(OsVfs::new()), &folder);
        Self { inner: Mutex::new((log, QueueGaps::default())) }
    }

    /// Creates the segment with this log offset and length; all its bytes are zero.
    fn add(&self, py: Python<'_>, base_offset: u64, length: u64) -> PyResult<()> {
        detached(py, || self.with(|log, _| log.add(base_offset, length)))
    }

    /// Writes what a file of the archive has of the segments. Returns the number of the records written.
    ///
    /// Files come in the order of the log. `shown` names the file in errors.
    fn write_file(
        &self,
        py: Python<'_>,
        path: PathBuf,
        shown: &str,
        record_bytes: Option<u64>,
    ) -> PyResult<u64> {
        detached(py, || {
            self.with(|log, gaps| {
                let written = open(&path, record_bytes).and_then(|file| file.restore(log, gaps));
                written.map_err(|error| file_error(shown, error))
            })
        })
    }

    /// Writes other bytes.
    fn write(&self, py: Python<'_>, offset: u64, content: &[u8]) -> PyResult<()> {
        detached(py, || self.with(|log, _| log.write(offset, content)))
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
        detached(py, || self.with(|log, _| log.complete(start, end, placeholder_ms)))
    }

    /// Returns the offsets of queues between two records that no record has.
    ///
    /// Each with topic, queue, first offset, and the offset after the last one.
    fn gaps(&self) -> Vec<(String, i32, i64, i64)> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let row = |gap: mqstore::archive::records::QueueGap| (gap.topic, gap.queue_id, gap.start, gap.end);
        inner.1.finish().into_iter().map(row).collect()
    }

    /// Syncs all segments and their folder.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || self.with(|log, _| log.sync()))
    }
}

impl ArchiveLog {
    fn with<T>(
        &self,
        call: impl FnOnce(&mut RestoredLog, &mut QueueGaps) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let (log, gaps) = &mut *inner;
        call(log, gaps)
    }
}

/// Adds the class and the functions.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ArchiveLog>()?;
    module.add_function(wrap_pyfunction!(archive_file_summary, module)?)?;
    module.add_function(wrap_pyfunction!(archive_file_facts, module)?)?;
    module.add_function(wrap_pyfunction!(archive_bytes_file, module)?)?;
    module.add_function(wrap_pyfunction!(check_archive_owner, module)?)?;
    module.add_function(wrap_pyfunction!(manifest_problem, module)?)?;
    module.add_function(wrap_pyfunction!(manifest_checksum, module)?)
}

/// Returns the error for new rows that cannot be encoded, which is a bug.
pub(super) fn new_rows(path: &str, error: FileError) -> PyErr {
    to_py(file_error(path, error))
}
