//! Python's hooks: calls from the core's threads into Python, and their answers.
//!
//! An exception of a hook goes to `sys.unraisablehook` and has no other effect: the event is lost, and the segment is
//! kept. Once the interpreter shuts down, hooks are not called and segments are kept.

use std::sync::Arc;

use mqstore::delivery::WorkQueueCounts;
use mqstore::events::{DeleteVerdict, ExpiredFile, Hooks, StoreEvent};
use mqstore::store::{ExpireReport, SegmentHolder};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyList};

use crate::convert::arguments::duration;
use crate::error::InvalidOptionError;

/// Sets the hook `name` to `callback`, unless that is None.
pub(crate) fn set(hooks: &mut Hooks, name: &str, callback: &Bound<'_, PyAny>) -> PyResult<()> {
    if callback.is_none() {
        return Ok(());
    }
    if !callback.is_callable() {
        let reason = format!("must be callable or None, not {}", callback.get_type().name()?);
        return Err(InvalidOptionError::new_err((name.to_owned(), reason)));
    }
    let callback = callback.clone().unbind();
    match name {
        "on_event" => hooks.on_event = Some(Arc::new(move |event| tell(&callback, event))),
        "before_delete" => hooks.before_delete = Some(Arc::new(move |file| ask(&callback, file))),
        _ => {
            hooks.archive_look =
                Some(Arc::new(move |settings, end, start| look(&callback, settings, end, start)));
        }
    }
    Ok(())
}

fn tell(callback: &Py<PyAny>, event: &StoreEvent) {
    Python::try_attach(|py| {
        let called = event_dict(py, event)
            .and_then(|values| made(py, "StoreEvent", &values))
            .and_then(|event| callback.call1(py, (event,)));
        if let Err(error) = called {
            error.write_unraisable(py, Some(callback.bind(py)));
        }
    });
}

fn ask(callback: &Py<PyAny>, file: &ExpiredFile) -> DeleteVerdict {
    let asked = Python::try_attach(|py| {
        let verdict = file_dict(py, file)
            .and_then(|values| made(py, "ExpiredFile", &values))
            .and_then(|file| verdict(callback.bind(py).call1((file,))?));
        verdict.unwrap_or_else(|error| {
            error.write_unraisable(py, Some(callback.bind(py)));
            DeleteVerdict::Keep
        })
    });
    asked.unwrap_or(DeleteVerdict::Keep)
}

/// Calls the function that looks at the archive of the store. Without an answer, nothing is known to be in it.
fn look(callback: &Py<PyAny>, settings: &str, archived_to: u64, log_start: u64) -> Option<String> {
    let unknown = || "the look at the archive failed".to_owned();
    let looked = Python::try_attach(|py| {
        let answer = callback
            .call1(py, (settings, archived_to, log_start))
            .and_then(|answer| answer.extract::<Option<String>>(py));
        answer.unwrap_or_else(|error| {
            error.write_unraisable(py, Some(callback.bind(py)));
            Some(unknown())
        })
    });
    looked.unwrap_or_else(|| Some(unknown()))
}

/// Converts the answer: None and True delete the segment, False keeps it, a duration postpones the deletion.
fn verdict(answer: Bound<'_, PyAny>) -> PyResult<DeleteVerdict> {
    if answer.is_none() {
        return Ok(DeleteVerdict::Delete);
    }
    if let Ok(yes) = answer.cast::<PyBool>() {
        return Ok(if yes.is_true() { DeleteVerdict::Delete } else { DeleteVerdict::Keep });
    }
    duration("before_delete", &answer).map(DeleteVerdict::Later).map_err(|_| {
        PyTypeError::new_err(format!(
            "before_delete must return None, a bool, or a duration of at least 0 (seconds, a timedelta or text), not {}",
            answer.repr().map_or_else(|_| "an object without a repr".to_owned(), |text| text.to_string())
        ))
    })
}

/// Creates the dataclass `class` of `mqstore._reports` from its dict.
fn made<'py>(py: Python<'py>, class: &str, values: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyAny>> {
    py.import("mqstore._reports")?.getattr(class)?.call_method1("_from_dict", (values,))
}

fn event_dict<'py>(py: Python<'py>, event: &StoreEvent) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    found.set_item("kind", event.kind)?;
    found.set_item("file", event.file.as_ref().map(|file| file_dict(py, file)).transpose()?)?;
    found.set_item("detail", &event.detail)?;
    Ok(found)
}

fn file_dict<'py>(py: Python<'py>, file: &ExpiredFile) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    found.set_item("path", file.path.to_string_lossy())?;
    found.set_item("kind", file.kind.word())?;
    found.set_item("bytes", file.bytes)?;
    found.set_item("first_offset", file.first_offset)?;
    found.set_item("last_offset", file.last_offset)?;
    found.set_item("first_store_timestamp", file.first_store_timestamp_ms)?;
    found.set_item("last_store_timestamp", file.last_store_timestamp_ms)?;
    found.set_item("reason", &file.reason)?;
    found.set_item("unfinished", file.unfinished)?;
    Ok(found)
}

/// Converts holders of segments to the arguments of `mqstore.SegmentHolder`.
pub(crate) fn holder_rows(holders: &[SegmentHolder]) -> Vec<HolderRow<'_>> {
    let mut rows = Vec::with_capacity(holders.len());
    for SegmentHolder { kind, group, topic, queue_id, offset, log_offset } in holders {
        rows.push((kind.word(), group.as_deref(), topic.as_str(), *queue_id, *offset, *log_offset));
    }
    rows
}

type HolderRow<'a> = (&'static str, Option<&'a str>, &'a str, i32, i64, u64);

/// Converts the report of an expiry for `mqstore.ExpireReport`.
pub(crate) fn report_dict<'py>(py: Python<'py>, report: &ExpireReport) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    found.set_item("dry_run", report.dry_run)?;
    let files = report.files.iter().map(|file| file_dict(py, file)).collect::<PyResult<Vec<_>>>()?;
    found.set_item("files", PyList::new(py, files)?)?;
    found.set_item("segments", report.segments)?;
    found.set_item("bytes", report.bytes)?;
    let topics = report.topics.iter().map(|one| (&one.topic, one.messages, one.log_offset));
    found.set_item("topics", topics.collect::<Vec<_>>())?;
    found.set_item("log_min_offset", report.log_min_offset)?;
    found.set_item("kept", &report.kept)?;
    found.set_item("stays", &report.stays)?;
    found.set_item("kept_by", holder_rows(&report.kept_by))?;
    Ok(found)
}

/// Returns the numbers of ready, delayed, leased, dying and dead messages.
pub(crate) fn counts_row(counts: WorkQueueCounts) -> (u64, u64, u64, u64, u64) {
    let WorkQueueCounts { ready, delayed, leased, dying, dead } = counts;
    (ready, delayed, leased, dying, dead)
}
