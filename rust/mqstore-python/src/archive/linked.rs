//! The archive of an open store, in which its reads continue.

use std::sync::Arc;

use mqstore::archive::history::{ArchiveSource, Damage, History, QueueRange, UnknownArchive};
use mqstore::error::StoreError;
use pyo3::prelude::*;

use super::place::ArchiveTarget;
use crate::convert::options::damage_policy;
use crate::error::warn;
use crate::runtime::detached;
use crate::store::NativeStore;

/// Lets the reads of a store continue in an archive.
///
/// `begin` is the log offset at which the archive begins, 0 if it is not known. `bloom_bytes` is the memory for Bloom
/// filters.
#[pyfunction]
fn link_archive(
    store: &Bound<'_, NativeStore>,
    target: &Bound<'_, ArchiveTarget>,
    begin: u64,
    bloom_bytes: usize,
) -> PyResult<()> {
    let (core, shared) = (store.get().core()?, store.get().shared());
    let place = target.get().place.clone();
    let source = Arc::new(ArchiveSource::new(core.downgrade(), place, begin, bloom_bytes));
    core.set_older(Some(Arc::<ArchiveSource>::clone(&source)));
    shared.set_archive(Some(source));
    Ok(())
}

/// Lets the reads of a store begin with its log.
#[pyfunction]
fn unlink_archive(store: &Bound<'_, NativeStore>) -> PyResult<()> {
    store.get().core()?.set_older(None);
    store.get().shared().set_archive(None);
    Ok(())
}

/// Lets the reads of a store that begin before its log raise the error of its settings, which cannot be read.
#[pyfunction]
fn link_unknown_archive(store: &Bound<'_, NativeStore>) -> PyResult<()> {
    let core = store.get().core()?;
    core.set_older(Some(Arc::new(UnknownArchive(core.downgrade()))));
    store.get().shared().set_archive(None);
    Ok(())
}

/// Returns whether reads of a store continue in an archive.
#[pyfunction]
fn has_archive(store: &Bound<'_, NativeStore>) -> PyResult<bool> {
    Ok(store.get().core()?.has_older())
}

/// Calls `read` with the records before the log of a store, and the log offset at which the log begins.
fn with_history<T: Send>(
    store: &Bound<'_, NativeStore>,
    read: impl FnOnce(&History, u64) -> Result<T, StoreError> + Send,
) -> PyResult<Option<T>> {
    let (core, shared) = (store.get().core()?, store.get().shared());
    let Some(source) = shared.archive() else { return Ok(None) };
    detached(store.py(), || {
        let (log_start, _) = core.log().bounds()?;
        read(source.history(log_start)?, log_start)
    })
    .map(Some)
}

/// The path of a file, the first log offset and the end of its range of the log, the mean size of a record, and the numbers
/// of ranges.
type FileRow = (String, u64, u64, u64, Vec<usize>);

/// Returns the files of the archive with ranges of queues that end where the log begins, in the order of the log.
///
/// Each with its path, the first log offset and the end of its range of the log, the mean size of a record, and
/// the numbers of the ranges.
#[pyfunction]
fn archived_files(
    store: &Bound<'_, NativeStore>,
    ranges: Vec<(String, i32, i64, i64)>,
    on_damage: &Bound<'_, PyAny>,
) -> PyResult<Vec<FileRow>> {
    let floors = store.get().core()?.floors();
    let mut damage = Damage::new(damage_policy(on_damage)?);
    let found = with_history(store, |history, log_start| {
        let mut found: Vec<FileRow> = Vec::new();
        for (number, (topic, queue_id, start, end)) in ranges.iter().enumerate() {
            let wanted = QueueRange { queue_id: *queue_id, start: *start, end: *end };
            for part in history.parts_of(&floors, topic, wanted, log_start, &mut damage)? {
                let file = &part.file;
                if let Some((.., numbers)) = found.iter_mut().find(|(path, ..)| **path == *file.path) {
                    numbers.push(number);
                } else {
                    let mean = file.record_bytes / file.rows.max(1);
                    found.push((file.path.to_string(), file.start, file.end, mean, vec![number]));
                }
            }
        }
        found.sort_by(|one, other| (one.1, &one.0).cmp(&(other.1, &other.0)));
        Ok(found)
    })?;
    damage.take_warnings().iter().try_for_each(|text| warn(store.py(), text))?;
    Ok(found.unwrap_or_default())
}

/// Reads the footers of all files of the archive. For tests.
#[pyfunction]
fn read_archive_footers(store: &Bound<'_, NativeStore>) -> PyResult<()> {
    let read = |history: &History, _| {
        let reader = history.reader();
        reader.all_files()?.iter().try_for_each(|file| reader.footer(file).map(drop))
    };
    with_history(store, read).map(drop)
}

/// Removes the columns of the archive from memory. For tests.
#[pyfunction]
fn forget_archive_columns(store: &Bound<'_, NativeStore>) -> PyResult<()> {
    with_history(store, |history, _| {
        history.reader().forget_columns();
        Ok(())
    })
    .map(drop)
}

/// Adds the functions.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(link_archive, module)?)?;
    module.add_function(wrap_pyfunction!(unlink_archive, module)?)?;
    module.add_function(wrap_pyfunction!(link_unknown_archive, module)?)?;
    module.add_function(wrap_pyfunction!(has_archive, module)?)?;
    module.add_function(wrap_pyfunction!(archived_files, module)?)?;
    module.add_function(wrap_pyfunction!(read_archive_footers, module)?)?;
    module.add_function(wrap_pyfunction!(forget_archive_columns, module)?)
}
