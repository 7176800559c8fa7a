//! Streaming backups for Python: the objects of a backup, and the session of a store that extends it.

use std::path::{Path, PathBuf};

use mqstore::backup::clean::{CleanRules, clean};
use mqstore::backup::manifest::Manifest;
use mqstore::backup::place::Place;
use mqstore::backup::restore::{Restore, RestorePoint};
use mqstore::backup::round::{RoundReport, RoundSizes, Session};
use mqstore::backup::verify::verify;
use mqstore::io::Clock as _;
use mqstore::io::sync::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::runtime::{clock, detached, files_at, settled};
use crate::store::NativeStore;
use crate::store::directory::watched;
use crate::target::{ObjectRow, object_row, target_of};

/// Number, epoch milliseconds of its creation, generation, completeness, first log offset and end of the log, segments,
/// pieces that it names itself, and the log offset up to which the store has an archive.
type StateRow = (u64, i64, u64, bool, u64, u64, u64, u64, Option<u64>);

/// The objects of a backup. Threads can share it.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct BackupTarget {
    place: Place,
}

#[pymethods]
impl BackupTarget {
    /// Takes a transport, or None for a folder; the backup for errors; and the folder.
    #[new]
    fn new(transport: Option<Py<PyAny>>, shown: String, root: String) -> Self {
        Self { place: Place::new(target_of(transport, shown, root)) }
    }

    fn __repr__(&self) -> String {
        format!("<objects of the backup {}>", self.place.shown())
    }

    /// Begins to back up a store. Makes no request.
    fn session(&self, store: &Bound<'_, NativeStore>) -> PyResult<BackupSession> {
        let session = Session::new(self.place.clone(), store.get().core()?, RoundSizes::default());
        Ok(BackupSession { session: Mutex::new(session) })
    }

    /// Returns the states, the oldest first.
    ///
    /// Each with its number, epoch milliseconds of its creation, generation, completeness, first log offset and end of
    /// the log, segments, pieces, and the log offset up to which the store has an archive.
    fn states(&self, py: Python<'_>) -> PyResult<Vec<StateRow>> {
        Ok(detached(py, || self.place.manifests())?.iter().map(row).collect())
    }

    /// Reads all pieces. Returns the numbers and texts of the report.
    fn verify<'py>(&self, py: Python<'py>, progress: Option<Py<PyAny>>) -> PyResult<Bound<'py, PyDict>> {
        let report = watched(py, progress.as_ref(), |watch| verify(&self.place, watch))?;
        let found = PyDict::new(py);
        found.set_item("states", report.states)?;
        found.set_item("pieces", report.pieces)?;
        found.set_item("bytes", report.bytes)?;
        found.set_item("problems", report.problems)?;
        Ok(found)
    }

    /// Chooses the states of a restore: the newest one, or that of a time in epoch milliseconds or a log offset.
    #[pyo3(signature = (*, at_ms=None, at_offset=None))]
    fn restore(&self, py: Python<'_>, at_ms: Option<i64>, at_offset: Option<u64>) -> PyResult<BackupRestore> {
        let point = match (at_ms, at_offset) {
            (Some(time_ms), _) => RestorePoint::TimeMs(time_ms),
            (None, Some(offset)) => RestorePoint::Offset(offset),
            (None, None) => RestorePoint::Newest,
        };
        detached(py, || Restore::plan(&self.place, point)).map(|restore| BackupRestore { restore })
    }

    /// Removes old states and unused objects; with `dry_run`, only finds them.
    ///
    /// Args:
    ///     keep_ms: age up to which states are kept.
    ///     unused_ms: minimum age of an unused object.
    ///     dry_run: whether to find them only.
    ///
    /// Returns them, each with its path, bytes, and last change in epoch milliseconds; and the number of younger ones.
    fn clean(
        &self,
        py: Python<'_>,
        keep_ms: i64,
        unused_ms: i64,
        dry_run: bool,
    ) -> PyResult<(Vec<ObjectRow>, usize)> {
        let rules = CleanRules { now_ms: clock().now_ms(), keep_ms, unused_ms, dry_run };
        let cleaned = detached(py, || clean(&self.place, rules))?;
        Ok((cleaned.objects.into_iter().map(object_row).collect(), cleaned.kept))
    }
}

fn row(state: &Manifest) -> StateRow {
    (
        state.number,
        state.created_ms,
        state.generation,
        state.is_complete,
        state.log_start(),
        state.log_end,
        state.segments.len() as u64,
        state.pieces().count() as u64,
        state.archive.as_ref().map(|archive| archive.archived_to),
    )
}

/// The backup of a store by this process; created by `BackupTarget.session`. A second thread waits.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct BackupSession {
    session: Mutex<Session>,
}

#[pymethods]
impl BackupSession {
    /// Backs up what is new. Returns the numbers of the report.
    ///
    /// Args:
    ///     store: the store of the session.
    ///     staging: a folder that the round makes and removes.
    ///     timeout_ms: as for `keep_segments`.
    ///     progress: callback with bytes of the log.
    fn round<'py>(
        &self,
        store: &Bound<'py, NativeStore>,
        staging: PathBuf,
        timeout_ms: Option<i64>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let (py, shared) = (store.py(), store.get().shared());
        let core = store.get().core()?;
        let done = watched(py, progress.as_ref(), |watch| {
            settled(core, self.session.lock().round(core, Path::new(&staging), timeout_ms, watch))
        });
        shared.say_notes(py)?;
        report_dict(py, &done?)
    }

    /// Tells the writer to keep what the backup lacks for so many milliseconds from now; None does not change it.
    fn keep_segments(&self, store: &Bound<'_, NativeStore>, timeout_ms: Option<i64>) -> PyResult<()> {
        let core = store.get().core()?;
        detached(store.py(), || self.session.lock().keep_segments(core, timeout_ms))
    }
}

/// Returns the end of the log of a store.
#[pyfunction]
fn log_end(store: &Bound<'_, NativeStore>) -> PyResult<u64> {
    let core = store.get().core()?;
    detached(store.py(), || Ok(core.log().bounds()?.1))
}

fn report_dict<'py>(py: Python<'py>, report: &RoundReport) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    found.set_item("number", report.number)?;
    found.set_item("created_timestamp", report.created_ms)?;
    found.set_item("is_new", report.is_new)?;
    found.set_item("log_start", report.log_start)?;
    found.set_item("log_end", report.log_end)?;
    found.set_item("segments", report.segments)?;
    found.set_item("objects", report.objects)?;
    found.set_item("bytes", report.bytes)?;
    found.set_item("missing_bytes", report.missing_bytes)?;
    found.set_item("is_new_generation", report.is_new_generation)?;
    Ok(found)
}

/// A restore whose states are chosen; created by `BackupTarget.restore`.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct BackupRestore {
    restore: Restore,
}

#[pymethods]
impl BackupRestore {
    /// Restores the store. Returns the numbers and texts of the report.
    ///
    /// Args:
    ///     partial: the directory until it is complete; it exists.
    ///     home: its final path.
    ///     progress: callback with bytes of the log.
    fn run<'py>(
        &self,
        py: Python<'py>,
        partial: PathBuf,
        home: PathBuf,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let files = files_at(&partial);
        let report = watched(py, progress.as_ref(), |watch| self.restore.run(&files, &home, watch))?;
        let found = PyDict::new(py);
        found.set_item("log_start", report.log_start)?;
        found.set_item("log_end", report.log_end)?;
        found.set_item("segments", report.segments)?;
        found.set_item("messages", report.messages)?;
        found.set_item("metadata_timestamp", report.metadata_ms)?;
        found.set_item("archived_to", report.archived_to)?;
        found.set_item("problems", report.problems)?;
        Ok(found)
    }
}

/// Adds the classes.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<BackupTarget>()?;
    module.add_class::<BackupSession>()?;
    module.add_class::<BackupRestore>()?;
    module.add_function(wrap_pyfunction!(log_end, module)?)
}
