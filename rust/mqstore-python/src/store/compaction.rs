//! Compaction jobs: the three steps, and a whole job in this process.
//!
//! Plans, tasks, results and reports travel as JSON texts, because they go through other processes on
//! their way. A job that was planned here and is not yet over keeps its lock in [`RUNNING`], so that
//! no other driver sweeps its folder; `compaction_publish` and `compaction_abandon` end it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use mqstore_base::error::StoreError;
use mqstore_base::files::StoreFiles;
use mqstore_compaction::{
    CompactedQueue, CompactionOptions, CompactionPlan, Control, Document, Job, Next, QueueTask, Step,
    Strategy, TaskResult, Worker, compact, expected_bytes, next, preview, published_report, rehearse,
    run_step, split,
};
use mqstore_compaction::{plan, publish};
use mqstore_engine::{Store, restore_compaction};
use mqstore_io::{Clock, OsVfs, SystemClock};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::runtime::{SLICE, Shared, clock, detached};
use crate::store::NativeStore;

/// Jobs that this process drives, by store and id.
static RUNNING: Mutex<Option<HashMap<(PathBuf, String), Job>>> = Mutex::new(None);

/// A compacted record: queue offset, KEYS, body as stored, the whole record.
type Record<'py> = (i64, Option<String>, Bound<'py, PyBytes>, Bound<'py, PyBytes>);

/// Topics, options, threads, bytes a second: see `compaction_run`.
type Request = (Option<Vec<String>>, String, usize, u64);

/// The same for an open store, and the store that lost files are made anew from, if they are to be.
pub(crate) type StoreRequest = (Option<Vec<String>>, String, usize, u64, Option<Py<NativeStore>>);

/// Adds the functions of this file to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(compaction_plan, module)?)?;
    module.add_function(wrap_pyfunction!(compaction_preview, module)?)?;
    module.add_function(wrap_pyfunction!(compaction_split, module)?)?;
    module.add_function(wrap_pyfunction!(compaction_run_step, module)?)?;
    module.add_function(wrap_pyfunction!(compaction_next, module)?)?;
    module.add_function(wrap_pyfunction!(compaction_publish, module)?)?;
    module.add_function(wrap_pyfunction!(compaction_abandon, module)?)?;
    module.add_function(wrap_pyfunction!(compaction_report, module)?)?;
    module.add_function(wrap_pyfunction!(compaction_run, module)?)?;
    module.add_function(wrap_pyfunction!(compaction_restore, module)?)?;
    module.add_function(wrap_pyfunction!(compaction_read, module)?)?;
    module.add_function(wrap_pyfunction!(compaction_end, module)?)?;
    Ok(())
}

fn files_at(path: &Path) -> StoreFiles {
    StoreFiles::new(Arc::new(OsVfs::new()), Arc::new(SystemClock::new()), path)
}

fn take_job(path: &Path, job_id: &str) -> Option<Job> {
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    running.as_mut()?.remove(&(path.to_path_buf(), job_id.to_owned()))
}

fn keep_job(path: &Path, job: Job) {
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    running.get_or_insert_default().insert((path.to_path_buf(), job.id().to_owned()), job);
}

/// Plans a job for the store at `path` and starts it; the plan as JSON.
///
/// `topics` of `None` stands for all compaction topics; `options` is a JSON object.
#[pyfunction]
#[pyo3(signature = (path, topics, options))]
fn compaction_plan(
    py: Python<'_>,
    path: PathBuf,
    topics: Option<Vec<String>>,
    options: &str,
) -> PyResult<String> {
    detached(py, || {
        let options = CompactionOptions::from_json(options)?;
        let planned = plan(&files_at(&path), topics.as_deref(), &options)?;
        let text = planned.plan.to_json()?;
        if let Some(job) = planned.job {
            keep_job(&path, job);
        }
        Ok(text)
    })
}

/// What `compaction_plan` would plan; changes nothing.
#[pyfunction]
#[pyo3(signature = (path, topics, options))]
fn compaction_preview(
    py: Python<'_>,
    path: PathBuf,
    topics: Option<Vec<String>>,
    options: &str,
) -> PyResult<String> {
    detached(py, || {
        let options = CompactionOptions::from_json(options)?;
        preview(&files_at(&path), topics.as_deref(), &options)?.to_json()
    })
}

/// The first round of steps, as JSON, that do a task of a plan, with about `parts` workers; `strategy` is `auto`,
/// `partition` or `ranged`. And the bytes of the queue's records, about.
#[pyfunction]
#[pyo3(signature = (task, strategy, parts))]
fn compaction_split(py: Python<'_>, task: &str, strategy: &str, parts: u32) -> PyResult<(Vec<String>, u64)> {
    detached(py, || {
        let task = QueueTask::from_json(task)?;
        let files = files_at(&task.root);
        let steps = texts(&split(&files, &task, Strategy::from_name(strategy)?, parts)?)?;
        Ok((steps, expected_bytes(&files, &task)?))
    })
}

fn texts(steps: &[Step]) -> Result<Vec<String>, StoreError> {
    steps.iter().map(Step::to_json).collect()
}

/// Runs one step in the folder `staging`; the answer as JSON. `progress` is called with the bytes that were read, and
/// with the same again; an error that it raises ends the step.
#[pyfunction]
#[pyo3(signature = (step, staging, progress))]
fn compaction_run_step(
    py: Python<'_>,
    step: &str,
    staging: PathBuf,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let module: String = py.import("mqstore._mqstore")?.getattr("__file__")?.extract()?;
    let step = detached(py, || Step::from_json(step))?;
    let root = step.task().root.clone();
    let files = files_at(&root);
    let work = move |control: &Control| {
        let environment = files.vfs.environment();
        let worker = Worker { pid: environment.pid, host: environment.hostname, module };
        run_step(&files, &step, &staging, worker, control)?.to_json()
    };
    match progress {
        None => detached(py, || work(&Control::default())),
        Some(progress) => drive(py, &root, 0, Some(&progress), move |control| work(control)),
    }
}

/// What follows a round of steps and their answers: the result of the task as JSON, or the steps of the next round.
#[pyfunction]
#[pyo3(signature = (steps, answers))]
fn compaction_next(
    py: Python<'_>,
    steps: Vec<String>,
    answers: Vec<String>,
) -> PyResult<(Option<String>, Vec<String>)> {
    detached(py, || {
        let steps = steps.iter().map(|step| Step::from_json(step)).collect::<Result<Vec<_>, _>>()?;
        let answers =
            answers.iter().map(|answer| TaskResult::from_json(answer)).collect::<Result<Vec<_>, _>>()?;
        let root = steps.first().map(|step| step.task().root.clone()).unwrap_or_default();
        Ok(match next(&files_at(&root), &steps, &answers)? {
            Next::Steps(steps) => (None, texts(&steps)?),
            Next::Done(result) => (Some(result.to_json()?), Vec::new()),
        })
    })
}

/// Publishes a job: `plan` as planned, `results` a JSON list of what its tasks returned; the report as
/// JSON. `dry_run`: it is checked and thrown away.
#[pyfunction]
#[pyo3(signature = (path, plan, results, dry_run))]
fn compaction_publish(
    py: Python<'_>,
    path: PathBuf,
    plan: &str,
    results: &str,
    dry_run: bool,
) -> PyResult<String> {
    detached(py, || {
        let plan = CompactionPlan::from_json(plan)?;
        let results = TaskResult::list_from_json(results)?;
        let (files, job) = (files_at(&path), take_job(&path, &plan.job_id));
        let publish = if dry_run { rehearse } else { publish };
        publish(&files, job, &plan, &results)?.to_json()
    })
}

/// Ends a job that this process planned and will not publish; an unknown one is none of its business.
#[pyfunction]
#[pyo3(signature = (path, job_id))]
fn compaction_abandon(py: Python<'_>, path: PathBuf, job_id: &str) -> PyResult<()> {
    detached(py, || take_job(&path, job_id).map_or(Ok(()), |job| job.abandon(&files_at(&path))))
}

/// The report of a published job as JSON; `None` when it was not published.
#[pyfunction]
#[pyo3(signature = (path, job_id))]
fn compaction_report(py: Python<'_>, path: PathBuf, job_id: &str) -> PyResult<Option<String>> {
    detached(py, || published_report(&files_at(&path), job_id)?.map(|report| report.to_json()).transpose())
}

/// A whole job in this process, on at most `threads` threads that read and write at most
/// `bytes_per_second` together (0: no limit); the report as JSON. Answers Ctrl-C; `progress` is called with
/// the bytes done and the bytes in all.
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
    let work = move |control: &Arc<Control>| {
        compact(&files, topics.as_deref(), &options, threads, control)?.to_json()
    };
    drive(py, &path, bytes_per_second, progress.as_ref(), work)
}

/// Lost compaction files made anew from the open store `source`; the report as JSON.
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
    let work = move |control: &Arc<Control>| {
        let report =
            restore_compaction(&files, open(&source)?, topics.as_deref(), &options, threads, control)?;
        report.to_json()
    };
    drive(py, &path, bytes_per_second, progress.as_ref(), work)
}

/// The store, unless it was closed.
fn open(shared: &Arc<Shared>) -> Result<&Store, StoreError> {
    shared.store().map_err(|_| StoreError::Closed { path: PathBuf::from(shared.path()) })
}

/// As `compaction_run`, of an open store; as `compaction_restore` with a `source`.
pub(crate) fn compact_store(
    py: Python<'_>,
    shared: Arc<Shared>,
    request: StoreRequest,
    progress: Option<&Py<PyAny>>,
) -> PyResult<String> {
    let (topics, options, threads, bytes_per_second, source) = request;
    let source = source.map(|source| source.get().shared());
    let options = detached(py, || CompactionOptions::from_json(&options))?;
    let path = PathBuf::from(shared.path());
    let work = move |control: &Arc<Control>| {
        let (store, topics) = (open(&shared)?, topics.as_deref());
        match &source {
            None => store.compact(topics, &options, threads, control)?.to_json(),
            Some(source) => {
                store.restore_compaction(open(source)?, topics, &options, threads, control)?.to_json()
            }
        }
    };
    drive(py, &path, bytes_per_second, progress, work)
}

/// Runs `work` in a thread of its own; a signal, or an error of `progress`, ends it.
fn drive(
    py: Python<'_>,
    path: &Path,
    bytes_per_second: u64,
    progress: Option<&Py<PyAny>>,
    work: impl FnOnce(&Arc<Control>) -> Result<String, StoreError> + Send + 'static,
) -> PyResult<String> {
    let control = Arc::new(Control::with_bytes_per_second(bytes_per_second));
    let shared = Arc::clone(&control);
    let run = move || work(&shared);
    let thread = detached(py, || {
        mqstore_io::sync::spawn("mq-compaction", run)
            .map_err(|error| StoreError::io(path, "starting a thread", error))
    })?;
    let mut raised = None;
    let mut told = 0;
    while !thread.is_finished() {
        py.detach(|| clock().sleep(SLICE));
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

/// Records of a compacted queue from the first one at or after `from_offset` on, at most `limit`: the
/// minimum, the maximum and the records; `None` for a queue without compacted files.
#[pyfunction]
#[pyo3(signature = (path, topic, queue_id, from_offset, limit))]
fn compaction_read<'py>(
    py: Python<'py>,
    path: PathBuf,
    topic: &str,
    queue_id: i32,
    from_offset: i64,
    limit: usize,
) -> PyResult<Option<(i64, i64, Vec<Record<'py>>)>> {
    let found = detached(py, || {
        let Some(queue) = CompactedQueue::open(&files_at(&path), topic, queue_id)? else {
            return Ok(None);
        };
        let records = queue.read(from_offset).take(limit).collect::<Result<Vec<_>, _>>()?;
        Ok(Some((queue.min_offset(), queue.max_offset(), records)))
    })?;
    let Some((min_offset, max_offset, records)) = found else {
        return Ok(None);
    };
    let mut rows = Vec::with_capacity(records.len());
    for record in &records {
        let view = record
            .view()
            .map_err(|error| crate::convert::error::bad_record(record.commit_log_offset, &error))?;
        let keys = view.keys().map(str::to_owned);
        rows.push((record.queue_offset, keys, PyBytes::new(py, view.body), PyBytes::new(py, view.bytes)));
    }
    Ok(Some((min_offset, max_offset, rows)))
}

/// The queue offset below which reads of a queue are answered from its compaction files; `None` where nothing was compacted.
#[pyfunction]
#[pyo3(signature = (store, topic, queue_id))]
fn compaction_end(store: &Bound<'_, NativeStore>, topic: &str, queue_id: i32) -> PyResult<Option<i64>> {
    let shared = store.get().shared();
    let open = shared.store()?;
    detached(store.py(), || open.compacted_end(topic, queue_id))
}
