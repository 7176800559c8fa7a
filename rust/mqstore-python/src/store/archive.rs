//! The store's side of an archive: sealed segments, bytes of the log, and the durable state.

use mqstore::store::ArchiveState;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::runtime::{delivered, detached};
use crate::store::NativeStore;

/// Returns bytes of the log, whatever they contain; all of them must be in one segment.
#[pyfunction]
fn read_log<'py>(store: &Bound<'py, NativeStore>, offset: u64, length: u64) -> PyResult<Bound<'py, PyBytes>> {
    let core = store.get().core()?;
    let found = detached(store.py(), || core.archive().sealed_log()?.bytes(offset, length))?;
    Ok(PyBytes::new(store.py(), &found))
}

/// Returns whether a reclaim has replaced the record at a log offset by a placeholder, alone or with others.
#[pyfunction]
fn is_reclaimed_at(store: &Bound<'_, NativeStore>, offset: u64) -> PyResult<bool> {
    let core = store.get().core()?;
    detached(store.py(), || core.archive().sealed_log()?.is_reclaimed_at(offset))
}

/// Returns the log offset up to which the archive covers the log, and its settings; None without an archive.
#[pyfunction]
fn archive_state(store: &Bound<'_, NativeStore>) -> PyResult<Option<(u64, String)>> {
    let core = store.get().core()?;
    let found = detached(store.py(), || core.archive().state())?;
    Ok(found.map(|archive| (archive.archived_to, archive.settings)))
}

/// Sets the archive of the store, durably; None removes it.
#[pyfunction]
fn set_archive(store: &Bound<'_, NativeStore>, archive: Option<(u64, String)>) -> PyResult<()> {
    let verbs = store.get().verbs()?;
    let archive = archive.map(|(archived_to, settings)| ArchiveState { archived_to, settings });
    delivered(store.py(), || verbs.set_archive(archive))
}

/// Returns the first offset of a queue that its topic's deletion or retention does not hide; 0 if all count.
#[pyfunction]
fn floor_offset(store: &Bound<'_, NativeStore>, topic: &str, queue_id: i32) -> PyResult<i64> {
    Ok(store.get().core()?.floors().first_offset(topic, queue_id))
}

/// Adds the functions.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(read_log, module)?)?;
    module.add_function(wrap_pyfunction!(is_reclaimed_at, module)?)?;
    module.add_function(wrap_pyfunction!(archive_state, module)?)?;
    module.add_function(wrap_pyfunction!(set_archive, module)?)?;
    module.add_function(wrap_pyfunction!(floor_offset, module)?)
}
