//! The verbs of an archive that read or write whole files, and its comparison with a store.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use mqstore::archive::clean::clean;
use mqstore::archive::file::FileSizes;
use mqstore::archive::manifest::ArchivedFile;
use mqstore::archive::owner::{ArchiveRecorder, configure, look};
use mqstore::archive::place::Place;
use mqstore::archive::rebuild::rebuild_manifest;
use mqstore::archive::restore::{Restore, Restored};
use mqstore::archive::run::{Run, RunReport, RunSettings, RunSizes};
use mqstore::archive::verify::{VerifyReport, verify};
use mqstore::error::StoreError;
use mqstore::inspect::RestoredLog;
use mqstore::io::{Clock, OsVfs};
use mqstore::store::ArchiveState;
use mqstore_server::share::Verbs;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::convert::options;
use crate::error::of_store;
use crate::runtime::{clock, detached, files_at, settled};
use crate::store::NativeStore;
use crate::store::directory::watched;
use crate::target::{ObjectRow, object_row, target_of};

/// Path or URL, topic, first log offset and end of the range of the log, rows, bytes, digest, sum of the lengths of the
/// records, smallest and largest store time in epoch milliseconds, and the queues: number, first and last offset, rows.
type FileRow = (
    String,
    Option<String>,
    u64,
    u64,
    u64,
    u64,
    String,
    u64,
    Option<i64>,
    Option<i64>,
    Vec<(i32, i64, i64, u64)>,
);

/// The objects of an archive. Threads can share it.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct ArchiveTarget {
    pub(super) place: Place,
}

#[pymethods]
impl ArchiveTarget {
    /// Takes a transport, or None for a folder; the archive for errors; and the begin of the paths of its files for other
    /// programs, which is the folder.
    #[new]
    fn new(transport: Option<Py<PyAny>>, shown: String, root: String) -> Self {
        Self { place: Place::new(target_of(transport, shown, root)) }
    }

    fn __repr__(&self) -> String {
        format!("<objects of the archive {}>", self.place.shown())
    }

    /// Returns the files of the newest manifest.
    ///
    /// Each with its path or URL, topic, first log offset and end of the range of the log, rows, bytes, digest, sum of
    /// the lengths of the records, smallest and largest store time in epoch milliseconds, and the queues: number, first
    /// and last offset, rows.
    fn files(&self, py: Python<'_>) -> PyResult<Vec<FileRow>> {
        let manifest = detached(py, || self.place.must_have())?;
        Ok(manifest.files.iter().map(|file| self.row(file)).collect())
    }

    /// Archives all segments of a store that are due. Returns the numbers of the report.
    ///
    /// Args:
    ///     store: the store.
    ///     settings: minimum age of the last record of a segment in milliseconds, the topics, sorted, and the
    ///         compression level.
    ///     recorded: what the store recorded about this archive: log offset and settings.
    ///     advances: whether to move this log offset.
    ///     sizes: sizes by name that replace the default ones.
    ///     progress: callback with bytes of the log.
    fn run<'py>(
        &self,
        store: &Bound<'py, NativeStore>,
        settings: (i64, Option<Vec<String>>, i32),
        recorded: Option<(u64, String)>,
        advances: bool,
        sizes: HashMap<String, u64>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let (py, shared) = (store.py(), store.get().shared());
        let core = store.get().core()?;
        let (older_than_ms, topics, level) = settings;
        let recorded = recorded.map(state_of);
        let recorder = Recorder(store.get().verbs()?);
        let run = Run {
            place: &self.place,
            clock: clock(),
            settings: RunSettings { older_than_ms, topics },
            sizes: sizes_of(&sizes, level),
            recorded: recorded.as_ref(),
            recorder: advances.then_some(&recorder as &dyn ArchiveRecorder),
        };
        let done = watched(py, progress.as_ref(), |watch| settled(core, run.run(core, watch)));
        shared.say_notes(py)?;
        run_dict(py, &done?)
    }

    /// Sets the archive of a store. Returns the log offset at which the archive begins.
    ///
    /// `settings` are JSON with the target, and `topics` those in it.
    fn configure(
        &self,
        store: &Bound<'_, NativeStore>,
        settings: &str,
        topics: Option<Vec<String>>,
    ) -> PyResult<u64> {
        let (core, recorder) = (store.get().core()?, Recorder(store.get().verbs()?));
        detached(store.py(), || configure(core, &recorder, &self.place, settings, topics.as_deref()))
    }

    /// Returns why the archive does not have what a store recorded, or None.
    ///
    /// The arguments are the settings and the log offset that the store recorded, and the start of its log.
    fn look(
        &self,
        py: Python<'_>,
        settings: String,
        archived_to: u64,
        log_start: u64,
    ) -> PyResult<Option<String>> {
        let recorded = ArchiveState { archived_to, settings };
        detached(py, || look(&self.place, &recorded, log_start))
    }

    /// Chooses the segments of a restore.
    fn restore(
        &self,
        py: Python<'_>,
        topics: Option<Vec<String>>,
        since_ms: Option<i64>,
        until_ms: Option<i64>,
    ) -> PyResult<ArchiveRestore> {
        detached(py, || Restore::plan(&self.place, topics, since_ms, until_ms))
            .map(|restore| ArchiveRestore { restore })
    }

    /// Reads all files. Returns the numbers and texts of the report.
    ///
    /// With `rebuild`, makes a new manifest first if the newest one does not name complete files.
    fn verify<'py>(
        &self,
        py: Python<'py>,
        rebuild: bool,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let (report, rebuilt) = watched(py, progress.as_ref(), |watch| {
            let (mut new, mut problems) = (None, Vec::new());
            if rebuild && !self.place.objects()?.is_empty() {
                (new, problems) = rebuild_manifest(&self.place, &OsVfs::new(), clock())?;
            }
            let rebuilt = new.is_some();
            let manifest = new.map_or_else(|| self.place.must_have(), Ok)?;
            let mut report = verify(&self.place, &manifest, watch)?;
            problems.append(&mut report.problems);
            Ok::<_, StoreError>((VerifyReport { problems, ..report }, rebuilt))
        })?;
        let found = PyDict::new(py);
        found.set_item("rebuilt", rebuilt)?;
        found.set_item("files", report.files)?;
        found.set_item("records", report.records)?;
        found.set_item("bytes", report.bytes)?;
        found.set_item("problems", report.problems)?;
        Ok(found)
    }

    /// Removes unused objects of a minimum age in milliseconds; with `dry_run`, only finds them.
    ///
    /// Returns them, each with its path, bytes, and last change in epoch milliseconds; and the number of younger ones.
    fn clean(&self, py: Python<'_>, older_than_ms: i64, dry_run: bool) -> PyResult<(Vec<ObjectRow>, usize)> {
        let newest_ms = clock().now_ms() - older_than_ms;
        let cleaned = detached(py, || clean(&self.place, newest_ms, dry_run))?;
        Ok((cleaned.objects.into_iter().map(object_row).collect(), cleaned.kept))
    }
}

impl ArchiveTarget {
    fn row(&self, file: &Arc<ArchivedFile>) -> FileRow {
        let queues = file.queues.iter().map(|one| (one.queue_id, one.first, one.last, one.rows)).collect();
        (
            self.place.full_path(&file.path).to_string_lossy().into_owned(),
            file.topic.clone(),
            file.start,
            file.end,
            file.rows,
            file.bytes,
            file.sha256.clone(),
            file.record_bytes,
            file.first_ms,
            file.last_ms,
            queues,
        )
    }
}

fn state_of((archived_to, settings): (u64, String)) -> ArchiveState {
    ArchiveState { archived_to, settings }
}

fn sizes_of(known: &HashMap<String, u64>, level: i32) -> RunSizes {
    let RunSizes { range_bytes, commit_bytes, writers, file } = RunSizes::default();
    let size = |name: &str, size: u64| known.get(name).copied().unwrap_or(size);
    RunSizes {
        range_bytes: size("range_bytes", range_bytes as u64) as usize,
        commit_bytes: size("commit_bytes", commit_bytes),
        writers: size("writers", writers.into()) as u32,
        file: FileSizes {
            group_rows: size("group_rows", file.group_rows as u64) as usize,
            page_bytes: size("page_bytes", file.page_bytes as u64) as usize,
            page_step_rows: size("page_step_rows", file.page_step_rows as u64) as usize,
            level,
        },
    }
}

fn run_dict<'py>(py: Python<'py>, report: &RunReport) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    found.set_item("segments", report.segments)?;
    found.set_item("records", report.records)?;
    found.set_item("record_bytes", report.record_bytes)?;
    found.set_item("files", report.files)?;
    found.set_item("bytes", report.bytes)?;
    found.set_item("archived_to", report.archived_to)?;
    found.set_item("missing_bytes", report.missing_bytes)?;
    found.set_item("young_segments", report.young_segments)?;
    Ok(found)
}

/// A restore whose segments are chosen; created by `ArchiveTarget.restore`.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct ArchiveRestore {
    restore: Restore,
}

#[pymethods]
impl ArchiveRestore {
    /// Restores the store. Returns the numbers of the report.
    ///
    /// Args:
    ///     partial: the directory until it is complete; it exists.
    ///     home: its final path.
    ///     target: the archive as the settings of a store name it.
    ///     options: the dict of `mqstore._options.native_form`.
    ///     progress: callback with bytes of the files.
    fn run<'py>(
        &self,
        py: Python<'py>,
        partial: PathBuf,
        home: PathBuf,
        target: &str,
        options: &Bound<'py, PyDict>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let options = options::from_dict(options)?;
        let files = files_at(&partial);
        let report = watched(py, progress.as_ref(), |watch| {
            self.restore.run(&Restored { partial: &files, home: &home, options: &options, target }, watch)
        })?;
        let found = PyDict::new(py);
        found.set_item("segments", report.segments)?;
        found.set_item("first_log_offset", report.first_log_offset)?;
        found.set_item("end_log_offset", report.end_log_offset)?;
        found.set_item("records", report.records)?;
        found.set_item("identical", report.identical)?;
        Ok(found)
    }
}

/// Creates the segment with this log offset and length in an existing folder; all its bytes are zero.
#[pyfunction]
fn create_segment(py: Python<'_>, folder: PathBuf, base_offset: u64, length: u64) -> PyResult<()> {
    detached(py, || RestoredLog::new(Arc::new(OsVfs::new()), &folder).add(base_offset, length))
}

/// Records the state of the archive at the writer of the store, in this process or another.
struct Recorder<'a>(Verbs<'a>);

impl ArchiveRecorder for Recorder<'_> {
    fn set(&self, state: &ArchiveState) -> Result<(), StoreError> {
        self.0.set_archive(Some(state.clone())).map_err(of_store)
    }

    fn advance(&self, settings: &str, next: &ArchiveState) -> Result<Option<ArchiveState>, StoreError> {
        self.0.advance_archive(settings, next).map_err(of_store)
    }
}

/// Adds the classes and the functions.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ArchiveTarget>()?;
    module.add_class::<ArchiveRestore>()?;
    module.add_function(wrap_pyfunction!(create_segment, module)?)
}
