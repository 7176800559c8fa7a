//! Compaction jobs: in this process, or with steps that workers in other processes run.
//!
//! Steps and answers are bytes of the core. Python carries them between processes and does not read them. Reports are
//! JSON.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mqstore::Store;
use mqstore::compaction::{
    CompactionOptions, DistributedJob, EncodedStep, JobControl, Strategy, WeightedStep, WorkerInfo, compact,
    published_report, restore_compaction,
};
use mqstore::error::StoreError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::runtime::{SLICE, SharedStore, detached, files_at};
use crate::store::NativeStore;
use crate::store::directory::watched;

/// Topics, options, threads, bytes per second: see `compaction_run`.
type Request = (Option<Vec<String>>, String, usize, u64);

/// The same for an open store, and the source store if lost compaction files must be restored.
pub(crate) type StoreRequest = (Option<Vec<String>>, String, usize, u64, Option<Py<NativeStore>>);

/// Adds the functions of this file to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<CompactionJob>()?;
    module.add_function(wrap_pyfunction!(compaction_run_step, module)?)?;
    module.add_function(wrap_pyfunction!(compaction_report, module)?)?;
    module.add_function(wrap_pyfunction!(compaction_run, module)?)?;
    module.add_function(wrap_pyfunction!(compaction_restore, module)?)?;
    module.add_function(wrap_pyfunction!(compaction_end, module)?)?;
    Ok(())
}

/// A compaction whose steps run in other processes.
#[pyclass(frozen, module = "mqstore._mqstore")]
struct CompactionJob(Mutex<DistributedJob>);

/// A step and its weight.
type Steps<'py> = Vec<(u64, Bound<'py, PyBytes>)>;

#[pymethods]
impl CompactionJob {
    /// Plans and starts a job for the store at `path`. `topics=None` selects all compaction topics; `options` is a JSON
    /// object.
    #[new]
    fn new(py: Python<'_>, path: PathBuf, topics: Option<Vec<String>>, options: &str) -> PyResult<Self> {
        detached(py, || {
            let options = CompactionOptions::from_json(options)?;
            Ok(Self(Mutex::new(DistributedJob::begin(files_at(&path), topics.as_deref(), &options)?)))
        })
    }

    /// Id of the job.
    #[getter]
    fn id(&self) -> String {
        self.job().id().to_owned()
    }

    /// Folder of the job.
    #[getter]
    fn dir(&self) -> OsString {
        self.job().dir().into_os_string()
    }

    /// Estimated bytes that all steps read.
    #[getter]
    fn total_bytes(&self) -> u64 {
        self.job().total_bytes()
    }

    /// Returns the first round of steps for about `parts` workers. `strategy` is `auto`, `partition` or `ranged`.
    fn start<'py>(&self, py: Python<'py>, strategy: &str, parts: u32) -> PyResult<Steps<'py>> {
        let steps = detached(py, || self.job().start(Strategy::from_name(strategy)?, parts))?;
        Ok(steps_to_py(py, &steps))
    }

    /// Takes the answers of a round in the order of its steps. Returns the next round, empty after the last one.
    fn next<'py>(&self, py: Python<'py>, answers: Vec<Vec<u8>>) -> PyResult<Steps<'py>> {
        let steps = detached(py, || self.job().next(&answers))?;
        Ok(steps_to_py(py, &steps))
    }

    /// Publishes the job, or only checks it if `dry_run` is set. Returns the report as JSON.
    fn publish(&self, py: Python<'_>, dry_run: bool) -> PyResult<String> {
        detached(py, || {
            let mut job = self.job();
            let report = if dry_run { job.rehearse() } else { job.publish() };
            report?.to_json()
        })
    }

    /// Ends a job that will not be published. Does nothing if the job is over.
    fn abandon(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || self.job().abandon())
    }
}

impl CompactionJob {
    fn job(&self) -> MutexGuard<'_, DistributedJob> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn steps_to_py<'py>(py: Python<'py>, steps: &[WeightedStep]) -> Steps<'py> {
    steps.iter().map(|step| (step.weight, PyBytes::new(py, &step.bytes))).collect()
}

/// Runs one step in the folder `staging` and returns the answer. `progress` is called with the bytes read and the bytes
/// to read. An error that it raises ends the step.
#[pyfunction]
#[pyo3(signature = (step, staging, progress))]
fn compaction_run_step<'py>(
    py: Python<'py>,
    step: &[u8],
    staging: PathBuf,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let module: String = py.import("mqstore._mqstore")?.getattr("__file__")?.extract()?;
    let step = detached(py, || EncodedStep::decode(step))?;
    let (root, total_bytes) = (step.root().to_path_buf(), step.reads_bytes());
    let files = files_at(&root);
    let work = move |control: &JobControl| {
        let environment = files.vfs.environment();
        let worker = WorkerInfo { pid: environment.pid, host: environment.hostname, module };
        step.run(&files, &staging, worker, control)
    };
    let answer = match progress {
        None => detached(py, || work(&JobControl::default()))?,
        Some(progress) => {
            let control = JobControl::with_total_bytes(total_bytes);
            drive(py, &root, control, Some(&progress), move |control| work(control))?
        }
    };
    Ok(PyBytes::new(py, &answer))
}

/// Returns the report of a published job as JSON; `None` if the job was not published.
#[pyfunction]
#[pyo3(signature = (path, job_id))]
fn compaction_report(py: Python<'_>, path: PathBuf, job_id: &str) -> PyResult<Option<String>> {
    detached(py, || published_report(&files_at(&path), job_id)?.map(|report| report.to_json()).transpose())
}

/// Runs a whole job in this process and returns the report as JSON. At most `threads` threads together read and write
/// at most `bytes_per_second` (0: no limit). Ctrl-C ends the job. `progress` is called with the bytes done and the
/// total bytes.
#[pyfunction]
#[pyo3(signature = (path, topics, options, threads, bytes_per_second, progress))]
fn compaction_run(
    py: Python<'_>,
    path: PathBuf,
    topics: Option<Vec<String>>,
    options: &str,
    threads: usize,
    bytes_per_second: u64,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let options = detached(py, || CompactionOptions::from_json(options))?;
    let files = files_at(&path);
    let work = move |control: &Arc<JobControl>| {
        compact(&files, topics.as_deref(), &options, threads, control)?.to_json()
    };
    drive(py, &path, JobControl::with_bytes_per_second(bytes_per_second), progress.as_ref(), work)
}

/// Restores lost compaction files from the open store `source`; returns the report as JSON.
#[pyfunction]
#[pyo3(signature = (path, source, request, progress))]
fn compaction_restore(
    py: Python<'_>,
    path: PathBuf,
    source: PyRef<'_, NativeStore>,
    request: Request,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let (topics, options, threads, bytes_per_second) = request;
    let options = detached(py, || CompactionOptions::from_json(&options))?;
    let (files, source) = (files_at(&path), source.shared());
    let work = move |control: &Arc<JobControl>| {
        let report =
            restore_compaction(&files, open(&source)?, topics.as_deref(), &options, threads, control)?;
        report.to_json()
    };
    drive(py, &path, JobControl::with_bytes_per_second(bytes_per_second), progress.as_ref(), work)
}

/// Returns the store, unless it is closed.
pub(crate) fn open(shared: &Arc<SharedStore>) -> Result<&Store, StoreError> {
    shared.store().map_err(|_| StoreError::Closed { path: PathBuf::from(shared.path()) })
}

/// Like `compaction_run`, for an open store; like `compaction_restore` if there is a `source`.
pub(crate) fn compact_store(
    py: Python<'_>,
    shared: Arc<SharedStore>,
    request: StoreRequest,
    progress: Option<&Py<PyAny>>,
) -> PyResult<String> {
    let (topics, options, threads, bytes_per_second, source) = request;
    let source = source.map(|source| source.get().shared());
    if shared.is_away()? {
        if source.is_some() {
            return Err(shared.only_in_owner("restore the compaction files"));
        }
        let verbs = shared.verbs()?;
        return watched(py, progress, |watch| {
            verbs.compact(topics, &options, threads, bytes_per_second, watch)
        });
    }
    let options = detached(py, || CompactionOptions::from_json(&options))?;
    let path = PathBuf::from(shared.path());
    let work = move |control: &Arc<JobControl>| {
        let (store, topics) = (open(&shared)?, topics.as_deref());
        match &source {
            None => store.compact(topics, &options, threads, control)?.to_json(),
            Some(source) => {
                store.restore_compaction(open(source)?, topics, &options, threads, control)?.to_json()
            }
        }
    };
    drive(py, &path, JobControl::with_bytes_per_second(bytes_per_second), progress, work)
}

/// Runs `work` in a thread of its own. A signal, or an error of `progress`, ends it.
pub(crate) fn drive<T: Send + 'static>(
    py: Python<'_>,
    path: &Path,
    control: JobControl,
    progress: Option<&Py<PyAny>>,
    work: impl FnOnce(&Arc<JobControl>) -> Result<T, StoreError> + Send + 'static,
) -> PyResult<T> {
    let control = Arc::new(control);
    let shared = Arc::clone(&control);
    let (running, mut ended) = mpsc::channel::<()>();
    let run = move || {
        // Dropped at the end, also of a panic, which ends the wait below.
        let _running = running;
        work(&shared)
    };
    let thread = detached(py, || {
        mqstore::io::sync::spawn("mq-job", run)
            .map_err(|error| StoreError::io(path, "starting a thread", error))
    })?;
    let mut raised = None;
    let mut told = 0;
    let mut waited = Err(RecvTimeoutError::Timeout);
    while waited == Err(RecvTimeoutError::Timeout) {
        (ended, waited) = py.detach(move || {
            let waited = ended.recv_timeout(SLICE);
            (ended, waited)
        });
        let at = control.progress();
        let mut looked = py.check_signals();
        if let Some(progress) = progress.filter(|_| at.done_bytes > told) {
            told = at.done_bytes;
            looked = looked.and_then(|()| progress.call1(py, (at.done_bytes, at.total_bytes)).map(drop));
        }
        if let Err(error) = looked {
            control.end();
            raised = Some(error);
            break;
        }
    }
    let report = detached(py, || match thread.join() {
        Ok(report) => report,
        Err(panic) => std::panic::resume_unwind(panic),
    });
    raised.map_or(report, Err)
}

/// Returns the queue offset below which reads use the compaction files; `None` if the queue was never compacted.
#[pyfunction]
#[pyo3(signature = (store, topic, queue_id))]
fn compaction_end(store: &Bound<'_, NativeStore>, topic: &str, queue_id: i32) -> PyResult<Option<i64>> {
    let shared = store.get().shared();
    let open = shared.store()?;
    detached(store.py(), || open.compacted_end(topic, queue_id))
}
