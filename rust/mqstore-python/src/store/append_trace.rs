//! Traces of appends at a fixed rate, for `mqstore bench --trace`.
//!
//! The functions return dicts in the JSON form. `mqstore.cli.trace` converts them to dataclasses.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mqstore::append::{AppendTrace, CauseTotal, SlowStep, TraceRequest, Work, trace_copies};
use mqstore::io::{Clock, OsVfs, SystemClock};
use mqstore::store::Progress;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::store::NativeStore;
use crate::store::directory::watched;

/// Adds the functions of this file to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(trace_store, module)?)?;
    module.add_function(wrap_pyfunction!(trace_map, module)?)?;
    Ok(())
}

/// Messages, messages a second, bytes of each body or record, nanoseconds from which a step is slow, maximum number of
/// listed steps.
type Plan = (u64, u64, usize, u64, usize);

fn request((messages, rate, body_bytes, slow_ns, listed): Plan) -> TraceRequest<'static> {
    TraceRequest { topic: "bench", body_bytes, rate, messages, slow: Duration::from_nanos(slow_ns), listed }
}

/// Appends to the topic `bench` of `store` at a fixed rate.
#[pyfunction]
fn trace_store<'py>(
    py: Python<'py>,
    store: PyRef<'_, NativeStore>,
    plan: Plan,
) -> PyResult<Bound<'py, PyDict>> {
    let store = store.core()?;
    let trace =
        watched(py, None, |watch| store.trace_appends(&request(plan), &mut || watch(Progress::default())))?;
    trace_dict(py, &trace)
}

/// Copies records into a prepared map of the new file `path` at the same rate, without a store.
#[pyfunction]
fn trace_map(py: Python<'_>, path: PathBuf, plan: Plan) -> PyResult<Bound<'_, PyDict>> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let (vfs, request) = (OsVfs::new(), request(plan));
    let trace = watched(py, None, |watch| {
        let mut check = || watch(Progress::default());
        trace_copies(&vfs, &clock, &path, request.body_bytes, &request, &mut check)
    })?;
    trace_dict(py, &trace)
}

fn trace_dict<'py>(py: Python<'py>, trace: &AppendTrace) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    found.set_item("messages", trace.messages)?;
    found.set_item("bytes", trace.bytes)?;
    found.set_item("elapsed_ns", trace.elapsed_ns)?;
    for (name, part) in [("p50_ns", 0.5), ("p99_ns", 0.99), ("p999_ns", 0.999), ("p9999_ns", 0.9999)] {
        found.set_item(name, trace.latencies.quantile(part))?;
    }
    found.set_item("max_ns", trace.latencies.max())?;
    found.set_item("late", trace.late)?;
    found.set_item("cpu_ns", trace.usage.cpu_ns)?;
    found.set_item("minor_faults", trace.usage.minor_faults)?;
    found.set_item("major_faults", trace.usage.major_faults)?;
    found.set_item("preemptions", trace.usage.preemptions)?;
    let causes = trace.causes.iter().map(|total| cause_dict(py, total));
    found.set_item("causes", PyList::new(py, causes.collect::<PyResult<Vec<_>>>()?)?)?;
    let steps = trace.listed.iter().map(|step| step_dict(py, step));
    found.set_item("slowest", PyList::new(py, steps.collect::<PyResult<Vec<_>>>()?)?)?;
    Ok(found)
}

fn cause_dict<'py>(py: Python<'py>, total: &CauseTotal) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    found.set_item("cause", total.cause.name())?;
    found.set_item("steps", total.steps)?;
    found.set_item("total_ns", total.total_ns)?;
    found.set_item("worst_ns", total.worst_ns)?;
    found.set_item("late", total.late)?;
    found.set_item("meanwhile_ns", meanwhile_dict(py, &total.meanwhile)?)?;
    Ok(found)
}

fn step_dict<'py>(py: Python<'py>, step: &SlowStep) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    found.set_item("at_ns", step.at_ns)?;
    found.set_item("duration_ns", step.duration_ns)?;
    found.set_item("cause", step.cause.name())?;
    found.set_item("cpu_ns", step.usage.cpu_ns)?;
    found.set_item("minor_faults", step.usage.minor_faults)?;
    found.set_item("major_faults", step.usage.major_faults)?;
    found.set_item("waits", step.usage.waits)?;
    found.set_item("preemptions", step.usage.preemptions)?;
    found.set_item("meanwhile_ns", meanwhile_dict(py, &step.meanwhile)?)?;
    Ok(found)
}

fn meanwhile_dict<'py>(py: Python<'py>, meanwhile: &[(Work, u64)]) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    for (work, busy_ns) in meanwhile {
        found.set_item(work.name(), busy_ns)?;
    }
    Ok(found)
}
