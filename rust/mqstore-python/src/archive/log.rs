//! The records of the log, range by range, as new files of an archive.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::RecordBatch;
use mqstore::archive::file::FileError;
use mqstore::archive::records::{ArchiveBuilder, ArchiveFile, LogRange};
use mqstore::arrow::BufferPool;
use mqstore::error::StoreError;
use mqstore::options::DamagePolicy;
use mqstore::read::{MakeSink, ScanPlan, ScanRequest};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::files::{SummaryRow, file_error, file_sizes, new_rows, summary_row};
use crate::error::StoreBusyError;
use crate::runtime::detached;
use crate::scan::running_scan::ScanHandle;
use crate::scan::scan_rows::{ScanRows, arrow_bug};

/// One pass over the records of a range of the log; created by `scan_archive`.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct ArchiveStream {
    pass: ScanHandle<ArchiveBuilder>,
    ranges: Mutex<NextRange>,
}

/// What the next range begins with.
struct NextRange {
    /// Log offset of the first byte after the last batch.
    position: u64,
    end: u64,
    waiting: Option<(RecordBatch, u64)>,
    is_over: bool,
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

    /// Returns the records of the next range of the log, of these topics or of all; None at the end.
    ///
    /// A range ends after about so many bytes of columns. Only a single one has no records.
    fn next_range(
        &self,
        py: Python<'_>,
        range_bytes: usize,
        topics: Option<HashSet<String>>,
    ) -> PyResult<Option<ArchiveRange>> {
        // A thread that waited here would keep the interpreter from the one that reads.
        let Ok(mut next) = self.ranges.try_lock() else {
            return Err(StoreBusyError::new_err(("another thread reads the next range of the log",)));
        };
        if next.is_over {
            return Ok(None);
        }
        let start = next.position;
        let mut range = LogRange::new(start);
        let mut held = 0;
        let overlap = |error: FileError| to_overlap(&error);
        loop {
            let batch = match next.waiting.take() {
                Some(waiting) => Some(waiting),
                None => match self.pass.next(py)? {
                    Some(batch) => Some((batch.rows.map_err(|error| arrow_bug(&error))?, batch.end)),
                    None => None,
                },
            };
            let Some((rows, end)) = batch else {
                next.is_over = true;
                return Ok(Some(ArchiveRange::new(py, range, (start, next.end))));
            };
            let has_wanted = LogRange::has_wanted(&rows, |topic| is_wanted(topics.as_ref(), topic));
            if held >= range_bytes && has_wanted {
                next.waiting = Some((rows, end));
                return Ok(Some(ArchiveRange::new(py, range, (start, next.position))));
            }
            next.position = end;
            if has_wanted {
                held += rows.get_array_memory_size();
                py.detach(|| range.add(rows, |topic| is_wanted(topics.as_ref(), topic))).map_err(overlap)?;
            }
        }
    }

    /// Ends the pass. Its threads have stopped when this returns.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.pass.take()));
    }
}

fn is_wanted(topics: Option<&HashSet<String>>, topic: &str) -> bool {
    topics.is_none_or(|topics| topics.contains(topic))
}

fn to_overlap(error: &FileError) -> PyErr {
    crate::error::to_py(StoreError::Corrupt {
        path: "commitlog".into(),
        offset: 0,
        reason: error.to_string(),
    })
}

/// The records of a range of the log. Threads can share it.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct ArchiveRange {
    /// First log offset.
    #[pyo3(get)]
    start: u64,
    /// End.
    #[pyo3(get)]
    end: u64,
    range: Mutex<Option<Arc<LogRange>>>,
}

impl ArchiveRange {
    /// Takes the records between two log offsets, and sorts them.
    fn new(py: Python<'_>, mut range: LogRange, (start, end): (u64, u64)) -> Self {
        py.detach(|| range.finish(end));
        Self { start, end, range: Mutex::new(Some(Arc::new(range))) }
    }

    fn range(&self) -> Arc<LogRange> {
        self.range.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default()
    }
}

#[pymethods]
impl ArchiveRange {
    /// The topics of the records.
    #[getter]
    fn topics(&self) -> Vec<String> {
        self.range().topics().map(str::to_owned).collect()
    }

    /// The parts of the range without wanted records: first log offset and end.
    #[getter]
    fn gaps(&self) -> Vec<(u64, u64)> {
        self.range().gaps().to_vec()
    }

    /// Log offset and length of the last record; None without records.
    #[getter]
    fn last(&self) -> Option<(u64, u64)> {
        self.range().last()
    }

    /// Returns what a manifest says of the records of a topic.
    fn summary(&self, py: Python<'_>, topic: &str) -> PyResult<SummaryRow> {
        let range = self.range();
        detached(py, || range.summary(topic).map_err(|error| file_error(topic, error))).map(summary_row)
    }

    /// Returns a new file with the records of a topic; None if it does not give the same records.
    ///
    /// The file is decoded again and compared with the log.
    ///
    /// Args:
    ///     topic: the topic.
    ///     sizes: rows of a row group, bytes of a page, and the number of rows whose multiples end a page.
    ///     level: compression level of zstd.
    ///     facts: texts of the footer by name.
    fn file<'py>(
        &self,
        py: Python<'py>,
        topic: &str,
        sizes: (usize, usize, usize),
        level: i32,
        facts: Vec<(String, String)>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let range = self.range();
        let made = py.detach(|| {
            let wanted = range.summary(topic)?;
            let sizes = file_sizes(sizes, level);
            let made = bytes::Bytes::from(range.file(topic, wanted.record_bytes, sizes, &facts)?);
            let read = ArchiveFile::open(Box::new(made.clone()), Some(wanted.record_bytes))?.summary()?;
            Ok((read == wanted).then_some(made))
        });
        let made = made.map_err(|error| new_rows(topic, error))?;
        Ok(made.map(|made| PyBytes::new(py, &made)))
    }

    /// Frees the memory of the records.
    fn clear(&self) {
        *self.range.lock().unwrap_or_else(PoisonError::into_inner) = None;
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
    let ranges = Mutex::new(NextRange { position: start, end, waiting: None, is_over: false });
    Ok(ArchiveStream { pass: ScanHandle::begin(store, &request, make)?, ranges })
}

/// Adds the classes and the function.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ArchiveStream>()?;
    module.add_class::<ArchiveRange>()?;
    module.add_function(wrap_pyfunction!(scan_archive, module)?)
}
