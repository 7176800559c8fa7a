//! Steps of staged messages: the files of tasks, and the append of all of them by the driver.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use mqstore::append::{
    StagedFile, StagedFileWriter, StagedStep, StagedWrite, job_in_progress, prepare_stage, was_done,
};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::runtime::{ForkGuarded, SharedStore, detached, files_at};
use crate::store::NativeStore;

/// The staged file of a task.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct StageFile {
    writer: Mutex<Option<StagedFileWriter>>,
}

#[pymethods]
impl StageFile {
    /// Creates the file `name` of `job` in the store at `path`.
    #[new]
    fn new(py: Python<'_>, path: PathBuf, job: &str, name: &str) -> PyResult<Self> {
        let writer = detached(py, || StagedFileWriter::create(&files_at(&path), job, name))?;
        Ok(Self { writer: Mutex::new(Some(writer)) })
    }

    /// Adds a block.
    fn push(&self, block: &Bound<'_, PyBytes>) -> PyResult<()> {
        let bytes = block.as_bytes();
        let pushed = detached(block.py(), || {
            let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
            writer.as_mut().map(|writer| writer.push(bytes)).transpose()
        });
        pushed?.ok_or_else(is_finished)
    }

    /// Syncs the file and its name. Returns its length in bytes.
    fn finish(&self, py: Python<'_>) -> PyResult<u64> {
        let finished = detached(py, || {
            let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
            writer.map(StagedFileWriter::finish).transpose()
        });
        finished?.ok_or_else(is_finished)
    }
}

fn is_finished() -> PyErr {
    PyRuntimeError::new_err("the staged file is finished")
}

/// A step in progress. Each `next` appends a block and returns its number of messages.
///
/// After the last one the step is durable. If it is left in the middle, the next `resume_step` continues it.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct StepWrite {
    shared: Arc<SharedStore>,
    step: Mutex<Option<ForkGuarded<StagedWrite>>>,
}

#[pymethods]
impl StepWrite {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.shared.store()?;
        py.check_signals()?;
        detached(py, || {
            let mut step = self.step.lock().unwrap_or_else(PoisonError::into_inner);
            step.as_mut().and_then(ForkGuarded::get_mut).map_or(Ok(None), StagedWrite::next_block)
        })
    }
}

/// Makes the folder for staged files of the store at `path`, durably. Returns the content of its token: `token` if there
/// was none.
#[pyfunction]
#[pyo3(name = "prepare_stage")]
fn prepare(py: Python<'_>, path: PathBuf, token: &str) -> PyResult<String> {
    detached(py, || prepare_stage(&files_at(&path), token))
}

/// Returns the job of the step in progress in the store at `path`; None if there is none.
#[pyfunction]
fn staged_job(py: Python<'_>, path: PathBuf) -> PyResult<Option<String>> {
    detached(py, || job_in_progress(&files_at(&path)))
}

/// Returns whether the step of a job or of a batch of a query was done.
#[pyfunction]
fn was_step_done(py: Python<'_>, path: PathBuf, name: &str, batch: Option<i64>) -> PyResult<bool> {
    detached(py, || was_done(&files_at(&path), name, batch))
}

/// Begins a step. `files` has path, number of messages and bytes of each staged file of `job`, in their order.
#[pyfunction]
fn begin_step(
    store: &Bound<'_, NativeStore>,
    job: String,
    name: String,
    batch: Option<i64>,
    record: bool,
    files: Vec<(String, u64, u64)>,
) -> PyResult<()> {
    let core = store.get().core()?;
    let files = files.into_iter().map(|(file, rows, bytes)| StagedFile { file, rows, bytes }).collect();
    detached(store.py(), || {
        core.system_appends().begin_staged(StagedStep { job, name, batch, record, files })
    })
}

/// Returns the step that has begun; without one, an iterator that is empty.
#[pyfunction]
fn resume_step(store: &Bound<'_, NativeStore>) -> PyResult<StepWrite> {
    let (core, shared, host) = (store.get().core()?, store.get().shared(), store.get().host());
    let step = detached(store.py(), || core.system_appends().resume_staged(host))?;
    let step = step.map(|step| ForkGuarded::new(Arc::clone(&shared), step));
    Ok(StepWrite { shared, step: Mutex::new(step) })
}

/// Checks that staged messages of this topic can be appended.
#[pyfunction]
fn check_staged(target: &Bound<'_, NativeStore>, topic: &str) -> PyResult<()> {
    let core = target.get().core()?;
    detached(target.py(), || core.system_appends().check_copies_to(topic))
}

/// Adds the classes and functions of steps to the native module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<StageFile>()?;
    module.add_class::<StepWrite>()?;
    module.add_function(wrap_pyfunction!(prepare, module)?)?;
    module.add_function(wrap_pyfunction!(staged_job, module)?)?;
    module.add_function(wrap_pyfunction!(was_step_done, module)?)?;
    module.add_function(wrap_pyfunction!(begin_step, module)?)?;
    module.add_function(wrap_pyfunction!(resume_step, module)?)?;
    module.add_function(wrap_pyfunction!(check_staged, module)?)
}
