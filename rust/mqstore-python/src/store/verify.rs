//! The verification of a store, in this process or split between several.
//!
//! Plans, steps and answers are bytes of the core. Python carries them between processes and does not read them.

use std::path::PathBuf;

use mqstore::compaction::Document;
use mqstore::error::StoreError;
use mqstore::inspect::VerifyReport;
use mqstore::inspect::distributed::{
    CONFIRMATIONS, PlannedCut, StepAnswer, VerifyPlan, VerifyStep, assemble, log_bytes, plan, run_step,
};
use mqstore::options::StoreOptions;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::runtime::{detached, files_at};
use crate::store::directory::{problem, watched};
use crate::store::folder::StoreFolder;

/// Adds the functions of this file to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(verify, module)?)?;
    module.add_function(wrap_pyfunction!(verify_log_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(verify_plan, module)?)?;
    module.add_function(wrap_pyfunction!(verify_steps, module)?)?;
    module.add_function(wrap_pyfunction!(verify_run_step, module)?)?;
    module.add_function(wrap_pyfunction!(verify_assemble, module)?)?;
    Ok(())
}

/// Returns the options of one of several workers, which uses one thread.
fn of_a_worker() -> StoreOptions {
    StoreOptions { dispatch_threads: Some(1), ..StoreOptions::default() }
}

/// Verifies the store at `path`. `progress` is called with the bytes done and the total bytes.
#[pyfunction]
fn verify<'py>(
    py: Python<'py>,
    path: &Bound<'py, PyAny>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let folder = StoreFolder::of(path)?;
    let report = watched(py, progress.as_ref(), |watch| {
        folder.read_files(|files| mqstore::inspect::verify(files, &StoreOptions::default(), watch))
    })?;
    report_dict(py, &report)
}

/// Returns the bytes of the log at `path` that hold data, and whether the log belongs to a store.
#[pyfunction]
fn verify_log_bytes(py: Python<'_>, path: PathBuf) -> PyResult<(u64, bool)> {
    detached(py, || log_bytes(&files_at(&path)))
}

/// Plans the verification of the store at `path` by several workers; `None` if one process should do it. `cut` is the
/// number of workers, the bytes of a range, and the log size above which the log is split. `job` is the folder of the
/// job, `attempt` the attempt that this call creates in it.
#[pyfunction]
fn verify_plan(
    py: Python<'_>,
    path: PathBuf,
    cut: (u32, u64, u64),
    job: PathBuf,
    attempt: PathBuf,
) -> PyResult<Option<Bound<'_, PyBytes>>> {
    let (parts, stretch_bytes, from_bytes) = cut;
    let cut = PlannedCut { parts, stretch_bytes, from_bytes };
    let planned = detached(py, || {
        let planned = plan(&files_at(&path), &of_a_worker(), cut, &job, &attempt)?;
        planned.map(|plan| plan.to_json()).transpose()
    })?;
    Ok(planned.map(|plan| PyBytes::new(py, plan.as_bytes())))
}

/// Returns the steps of a plan, each with the estimated bytes that it reads.
#[pyfunction]
fn verify_steps<'py>(py: Python<'py>, plan: &[u8]) -> PyResult<Vec<(u64, Bound<'py, PyBytes>)>> {
    let steps = detached(py, || {
        let steps = VerifyPlan::from_json(plan)?.steps();
        steps.iter().map(|step| Ok((step.bytes(), step.to_json()?))).collect::<Result<Vec<_>, StoreError>>()
    })?;
    Ok(steps.iter().map(|(bytes, step)| (*bytes, PyBytes::new(py, step.as_bytes()))).collect())
}

/// Runs one step in the folder `attempt`, which it creates; returns the answer.
#[pyfunction]
fn verify_run_step<'py>(
    py: Python<'py>,
    step: &[u8],
    attempt: PathBuf,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let step = detached(py, || VerifyStep::from_json(step))?;
    let answer = watched(py, progress.as_ref(), |watch| {
        run_step(&files_at(step.root()), &of_a_worker(), &step, &attempt, watch)?.to_json()
    })?;
    Ok(PyBytes::new(py, answer.as_bytes()))
}

/// Combines a plan and the answers of its steps, in order, into the report. Its entry `confirmations` is the number of
/// further checks that must find its problems too, because a writer has the store open.
#[pyfunction]
fn verify_assemble<'py>(
    py: Python<'py>,
    plan: &[u8],
    answers: Vec<Vec<u8>>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let plan = detached(py, || VerifyPlan::from_json(plan))?;
    let report = watched(py, progress.as_ref(), |watch| {
        let answers = answers.iter().map(StepAnswer::from_json).collect::<Result<Vec<_>, _>>()?;
        assemble(&files_at(plan.root()), &of_a_worker(), &plan, &answers, watch)
    })?;
    let is_certain = report.ok || report.more > 0 || !plan.is_next_to_writer();
    let found = report_dict(py, &report)?;
    found.set_item("confirmations", if is_certain { 0 } else { CONFIRMATIONS })?;
    Ok(found)
}

fn report_dict<'py>(py: Python<'py>, report: &VerifyReport) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    found.set_item("ok", report.ok)?;
    found.set_item("messages", report.messages)?;
    found.set_item("bytes", report.bytes)?;
    let problems = report.problems.iter().map(|one| problem(py, one)).collect::<PyResult<Vec<_>>>()?;
    found.set_item("problems", problems)?;
    found.set_item("more", report.more)?;
    found.set_item("notes", &report.notes)?;
    Ok(found)
}
