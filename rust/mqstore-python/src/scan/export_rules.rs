//! The rules of an export for Python, and the sink that applies them to a scan.

use std::path::PathBuf;
use std::sync::Arc;

use mqstore::delivery::{ExportDecision, ExportSelection, Omission, OmissionCounts};
use mqstore::format::delays::pending::DELIVER_AT;
use mqstore::format::{Properties, RecordView, push_property};
use mqstore::io::OsVfs;
use mqstore::read::{MakeSink, ScanRow, ScanSink};
use mqstore::transfer::load_rules;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::column_builder::BatchBuilder;
use super::request::{export_request, layout};
use super::running_scan::ScanHandle;
use super::scan_rows::{ScanRows, arrow_bug};
use crate::runtime::detached;
use crate::store::folder::StoreFolder;
use mqstore::arrow::BufferPool;

/// The rules of one export: which records it contains, as of one log offset.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct ExportRules {
    pub(super) core: Arc<mqstore::delivery::ExportRules>,
}

pub(super) fn selection(topics: Option<Vec<String>>, keep_waiting: bool) -> ExportSelection {
    ExportSelection { topics: topics.map(|topics| topics.into_iter().collect()), keep_waiting }
}

#[pymethods]
impl ExportRules {
    /// Makes the rules for an export of the directory `path`, as of the current end of its log.
    #[new]
    fn new(
        py: Python<'_>,
        path: &Bound<'_, PyAny>,
        topics: Option<Vec<String>>,
        keep_waiting: bool,
    ) -> PyResult<Self> {
        let folder = StoreFolder::of(path)?;
        let rules = detached(py, || {
            folder
                .read_log(|store| mqstore::delivery::ExportRules::of(&store, selection(topics, keep_waiting)))
        })?;
        Ok(Self { core: Arc::new(rules) })
    }

    /// Loads the rules that an interrupted export to the path `dest` has stored; None if they are not complete.
    #[staticmethod]
    fn stored(
        py: Python<'_>,
        dest: PathBuf,
        topics: Option<Vec<String>>,
        keep_waiting: bool,
    ) -> Option<Self> {
        let rules = py.detach(|| load_rules(&OsVfs::new(), &dest, selection(topics, keep_waiting)))?;
        Some(Self { core: Arc::new(rules) })
    }

    /// Returns the rules as bytes, without the topics.
    fn encode<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &py.detach(|| self.core.encode()))
    }

    /// The log offset at which the export ends.
    #[getter]
    fn limit(&self) -> u64 {
        self.core.limit()
    }

    /// Returns whether a queue of the exported topics in the directory `path` begins after offset 0.
    fn has_late_queue(&self, py: Python<'_>, path: &Bound<'_, PyAny>) -> PyResult<bool> {
        let folder = StoreFolder::of(path)?;
        detached(py, || folder.read_log(|store| self.core.has_late_queue(&store)))
    }

    /// The topics whose records the export must read; None is all.
    #[getter]
    fn topics(&self) -> Option<Vec<String>> {
        self.core.topics_to_read()
    }
}

/// Numbers of records left out, by reason.
pub(super) type LeftOut = Vec<(&'static str, u64)>;

/// Returns the numbers of records that were left out, by the names of the reasons.
pub(super) fn counts_by_name(counts: &OmissionCounts) -> LeftOut {
    let named = Omission::ALL.iter().map(|reason| reason.name()).zip(counts.counts);
    named.filter(|(_, count)| *count > 0).collect()
}

/// A sink that gets only the rows of an export, in their form.
pub(super) struct ExportSink<S> {
    rules: Arc<mqstore::delivery::ExportRules>,
    inner: S,
    left_out: OmissionCounts,
}

impl<S: ScanSink> ExportSink<S> {
    pub(super) fn new(rules: &Arc<mqstore::delivery::ExportRules>, inner: S) -> Self {
        Self { rules: Arc::clone(rules), inner, left_out: OmissionCounts::default() }
    }
}

impl<S: ScanSink> ScanSink for ExportSink<S> {
    type Batch = (Option<S::Batch>, OmissionCounts);

    fn has_room(&self, row: &ScanRow<'_>) -> bool {
        self.inner.has_room(row)
    }

    fn add(&mut self, row: &ScanRow<'_>) {
        match self.rules.decide(row.record, row.offset) {
            ExportDecision::Plain => self.inner.add(row),
            ExportDecision::Waiting(message) => {
                let mut properties = message.properties;
                push_property(&mut properties, DELIVER_AT, message.due_ms.to_string());
                let record = RecordView {
                    topic: message.topic,
                    queue_id: message.queue_id,
                    properties: Properties::new(&properties),
                    ..*row.record
                };
                self.inner.add(&ScanRow::new(&record, row.offset));
            }
            ExportDecision::LeftOut(reason) => self.left_out.add(reason),
            ExportDecision::NotSelected => {}
        }
    }

    fn take(&mut self) -> Option<(Self::Batch, u64)> {
        let left_out = std::mem::take(&mut self.left_out);
        let (rows, bytes) = self.inner.take().map_or((None, 0), |(rows, bytes)| (Some(rows), bytes));
        (rows.is_some() || !left_out.is_empty()).then_some(((rows, left_out), bytes))
    }
}

/// One pass over the messages of an export as Arrow columns; created by `scan_export`.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct ExportStream {
    pass: ScanHandle<ExportSink<BatchBuilder>>,
}

#[pymethods]
impl ExportStream {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Returns some rows or None, the numbers of records left out by reason, and the log offset from which a scan
    /// returns the following rows.
    fn __next__(&self, py: Python<'_>) -> PyResult<Option<(Option<ScanRows>, LeftOut, u64)>> {
        let Some(batch) = self.pass.next(py)? else { return Ok(None) };
        let (rows, left_out) = batch.rows;
        let rows = rows.transpose().map_err(|error| arrow_bug(&error))?;
        let rows = rows.map(|rows| ScanRows { rows, end: batch.end });
        Ok(Some((rows, counts_by_name(&left_out), batch.end)))
    }

    /// The log offset at which the scan began.
    #[getter]
    fn start(&self) -> u64 {
        self.pass.start
    }

    /// The log offset at which the scan ends.
    #[getter]
    fn limit(&self) -> u64 {
        self.pass.limit
    }

    /// Ends the scan. Its threads have stopped when this returns.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.pass.take()));
    }
}

/// Starts a pass that builds Arrow columns, over the directory with this path.
#[pyfunction]
pub(crate) fn scan_export(
    source: &Bound<'_, PyAny>,
    request: &Bound<'_, PyDict>,
    rules: &Bound<'_, ExportRules>,
) -> PyResult<ExportStream> {
    let layout = Arc::new(layout(request)?);
    let (rules, pool) = (Arc::clone(&rules.get().core), Arc::<BufferPool>::default());
    let make: MakeSink<ExportSink<BatchBuilder>> =
        Arc::new(move || ExportSink::new(&rules, BatchBuilder::new(Arc::clone(&layout), &pool)));
    Ok(ExportStream { pass: ScanHandle::begin(source, &export_request(request)?, make)? })
}
