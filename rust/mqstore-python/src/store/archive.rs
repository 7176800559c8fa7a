//! The store's side of an archive: sealed segments, bytes of the log, and the durable state.

use std::collections::HashMap;
use std::path::PathBuf;

use mqstore::store::{ArchiveState, SealedSegment};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::runtime::{detached, files_at};
use crate::store::NativeStore;

/// Log offset, length, the store times of the first and the last record of a segment, and the last change of its file.
type SegmentRow = (u64, u64, Option<i64>, i64, i64);

/// Returns the sealed segments that end after log offset `start`, oldest first. Syncs a store that is open for writing.
#[pyfunction]
fn sealed_segments(store: &Bound<'_, NativeStore>, start: u64) -> PyResult<Vec<SegmentRow>> {
    let core = store.get().core()?;
    let found = detached(store.py(), || core.archive().sealed_log()?.segments(start))?;
    let row =
        |one: &SealedSegment| (one.base_offset, one.bytes, one.first_ms, one.newest_ms, one.modified_ms);
    Ok(found.iter().map(row).collect())
}

/// Returns the inodes of the segments between two log offsets, by the log offset of their first byte.
#[pyfunction]
fn segment_inodes(store: &Bound<'_, NativeStore>, start: u64, end: u64) -> PyResult<HashMap<u64, u64>> {
    let core = store.get().core()?;
    let found = detached(store.py(), || core.archive().sealed_log()?.inodes(start, end))?;
    Ok(found.into_iter().collect())
}

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
    let core = store.get().core()?;
    let archive = archive.map(|(archived_to, settings)| ArchiveState { archived_to, settings });
    detached(store.py(), || core.archive().set(archive.as_ref()))
}

/// Writes the archive of a new directory at `path`, whose log ends at `log_end` and was made from the archive.
#[pyfunction]
fn set_archive_of_copy(py: Python<'_>, path: PathBuf, log_end: u64, settings: String) -> PyResult<()> {
    let files = files_at(&path);
    let archive = ArchiveState { archived_to: log_end, settings };
    detached(py, || archive.save_for_copy(&files, log_end))
}

/// Moves the log offset of the archive forward and replaces its settings, durably, if it has the settings `known`.
/// Returns whether it has the new ones then.
#[pyfunction]
fn advance_archive(
    store: &Bound<'_, NativeStore>,
    known: &str,
    archived_to: u64,
    settings: String,
) -> PyResult<bool> {
    let core = store.get().core()?;
    let next = ArchiveState { archived_to, settings };
    let found = detached(store.py(), || core.archive().advance(known, &next))?;
    Ok(found.is_some_and(|archive| archive.settings == next.settings))
}

/// Returns the log offset before which the records of a topic are hidden, by its deletion or its retention; 0 if none
/// are.
#[pyfunction]
fn floor_of_topic(store: &Bound<'_, NativeStore>, topic: &str) -> PyResult<u64> {
    Ok(store.get().core()?.floors().log_offset(topic))
}

/// Returns the first offset of a queue that its topic's deletion or retention does not hide; 0 if all count.
#[pyfunction]
fn floor_offset(store: &Bound<'_, NativeStore>, topic: &str, queue_id: i32) -> PyResult<i64> {
    Ok(store.get().core()?.floors().first_offset(topic, queue_id))
}

/// Adds the functions.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(sealed_segments, module)?)?;
    module.add_function(wrap_pyfunction!(segment_inodes, module)?)?;
    module.add_function(wrap_pyfunction!(read_log, module)?)?;
    module.add_function(wrap_pyfunction!(is_reclaimed_at, module)?)?;
    module.add_function(wrap_pyfunction!(archive_state, module)?)?;
    module.add_function(wrap_pyfunction!(set_archive, module)?)?;
    module.add_function(wrap_pyfunction!(set_archive_of_copy, module)?)?;
    module.add_function(wrap_pyfunction!(advance_archive, module)?)?;
    module.add_function(wrap_pyfunction!(floor_offset, module)?)?;
    module.add_function(wrap_pyfunction!(floor_of_topic, module)?)
}
