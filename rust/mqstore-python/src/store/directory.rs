//! Functions on whole directories: `rebuild`, `repair`, `info`, and `stats` and `snapshot` of an open store.
//!
//! They return dicts in the JSON form. `mqstore._reports` converts them to dataclasses.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use mqstore::Store;
use mqstore::delivery::{JobRequest, PendingDeliveries, first_unfinished};
use mqstore::error::StoreError;
use mqstore::inspect::{LostRange, Problem, RaftInfo, RepairTarget, TieredInfo};
use mqstore::io::SystemClock;
use mqstore::options::StoreOptions;
use mqstore::store::{Progress, RebuildReport, Stats};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::convert::hooks::{counts_row, holder_rows};
use crate::convert::options;
use crate::error::to_py;
use crate::runtime::{delivered, detached, files_at};
use crate::store::NativeStore;
use crate::store::delay::MOST_READ;
use crate::store::folder::StoreFolder;

/// Rebuilds queues and index of the store at `path`. `options` is the dict of `mqstore._options.native_form`;
/// `progress` as for `verify`.
#[pyfunction]
pub(crate) fn rebuild<'py>(
    py: Python<'py>,
    path: PathBuf,
    options: &Bound<'_, PyDict>,
    dry_run: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let options = options::from_dict(options)?;
    let files = files_at(&path);
    let report =
        watched(py, progress.as_ref(), |watch| mqstore::inspect::rebuild(&files, &options, dry_run, watch))?;
    rebuild_dict(py, &report)
}

/// Rebuilds queues and index of an open store.
pub(crate) fn rebuild_store<'py>(
    py: Python<'py>,
    store: &Store,
    progress: Option<&Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let report = watched(py, progress, |watch| store.rebuild(watch))?;
    rebuild_dict(py, &report)
}

fn rebuild_dict<'py>(py: Python<'py>, report: &RebuildReport) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    found.set_item("messages", report.messages)?;
    found.set_item("bytes", report.bytes)?;
    found.set_item("queues", report.queues)?;
    found.set_item("index_entries", report.index_entries)?;
    found.set_item("skipped", &report.skipped)?;
    Ok(found)
}

/// Repairs the store at `path`, or a copy of it in `output`. `options` as for `rebuild`, `progress` as for `verify`.
#[pyfunction]
pub(crate) fn repair<'py>(
    py: Python<'py>,
    path: PathBuf,
    options: &Bound<'_, PyDict>,
    output: Option<PathBuf>,
    dry_run: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let options = options::from_dict(options)?;
    let files = files_at(&path);
    let report = watched(py, progress.as_ref(), |watch| {
        let target = match &output {
            _ if dry_run => RepairTarget::DryRun,
            Some(output) => RepairTarget::Output(output),
            None => RepairTarget::InPlace,
        };
        mqstore::inspect::repair(&files, &options, target, watch)
    })?;
    let found = PyDict::new(py);
    found.set_item("changed", report.changed)?;
    found.set_item("ok", report.ok)?;
    found.set_item("messages", report.messages)?;
    let lost = report.lost.iter().map(|one| lost_range(py, one)).collect::<PyResult<Vec<_>>>()?;
    found.set_item("lost", lost)?;
    let offsets = report.queue_offsets.iter().map(|one| (&one.topic, one.queue_id, one.from, one.to));
    found.set_item("queue_offsets", offsets.collect::<Vec<_>>())?;
    found.set_item("actions", &report.actions)?;
    let problems = report.problems.iter().map(|one| problem(py, one)).collect::<PyResult<Vec<_>>>()?;
    found.set_item("problems", problems)?;
    found.set_item("more", report.more)?;
    Ok(found)
}

fn lost_range<'py>(py: Python<'py>, lost: &LostRange) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    found.set_item("path", lost.path.to_string_lossy())?;
    found.set_item("offset", lost.offset)?;
    found.set_item("log_offset", lost.log_offset)?;
    found.set_item("bytes", lost.bytes)?;
    found.set_item("reason", &lost.reason)?;
    found.set_item("kept_as", lost.kept_as.as_ref().map(|kept| kept.to_string_lossy()))?;
    Ok(found)
}

/// Copies the store at `path`, which no process writes, to the new folder `output`; `progress` as for `verify`.
#[pyfunction]
pub(crate) fn copy_store(
    py: Python<'_>,
    path: PathBuf,
    output: PathBuf,
    progress: Option<Py<PyAny>>,
) -> PyResult<()> {
    let files = files_at(&path);
    watched(py, progress.as_ref(), |watch| mqstore::inspect::copy_store(&files, &output, watch))
}

/// Copies an open store consistently.
pub(crate) fn snapshot_store<'py>(
    py: Python<'py>,
    store: &Store,
    output: &std::path::Path,
    progress: Option<&Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let report = watched(py, progress, |watch| mqstore::inspect::snapshot(store, output, watch))?;
    let found = PyDict::new(py);
    found.set_item("log_min_offset", report.log_min_offset)?;
    found.set_item("log_max_offset", report.log_max_offset)?;
    found.set_item("messages", report.messages)?;
    found.set_item("linked_segments", report.linked_segments)?;
    found.set_item("copied_segments", report.copied_segments)?;
    Ok(found)
}

/// Returns the process that has the store at `path` open for writing, if the system reports it.
#[pyfunction]
pub(crate) fn writer_pid(py: Python<'_>, path: PathBuf) -> Option<i32> {
    let files = files_at(&path);
    py.detach(|| mqstore::inspect::writer_pid(&files))
}

/// Returns a summary of the store at `path`.
#[pyfunction]
pub(crate) fn info<'py>(py: Python<'py>, path: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
    let folder = StoreFolder::of(path)?;
    let (mut report, (mut waiting, holders, jobs)) = detached(py, || {
        folder.read(|vfs| {
            let (clock, path, options) =
                (Arc::new(SystemClock::new()), folder.path(), StoreOptions::default());
            mqstore::inspect::info_with(vfs, clock, path, &options, |store| {
                store.find_deliveries_with(first_unfinished);
                let request = JobRequest { topic: None, most: 0, read: MOST_READ };
                let jobs = mqstore::delivery::jobs(store, &request);
                (PendingDeliveries::of(store), store.retention().segment_holders(), jobs)
            })
        })
    })?;
    report.notes.append(&mut waiting.notes);
    let holders = holders.unwrap_or_else(|error| {
        report.notes.push(format!("the messages that keep segments are not shown ({error})"));
        Vec::new()
    });
    let jobs = jobs.unwrap_or_else(|error| {
        report.notes.push(format!("the work queues are not shown ({error})"));
        BTreeMap::new()
    });
    let found = PyDict::new(py);
    let queues = jobs.iter().map(|((group, topic), of)| (group, topic, counts_row(of.counts)));
    found.set_item("work_queues", queues.collect::<Vec<_>>())?;
    found.set_item("layout", report.layout)?;
    found.set_item("written_by", report.written_by)?;
    found.set_item("clean", report.clean)?;
    found.set_item("segment_size", report.segment_size)?;
    found.set_item("queue_file_size", report.geometry.queue_file_bytes)?;
    found.set_item("queue_entry_bytes", report.geometry.queue_entry_bytes)?;
    found.set_item("index_slots", report.geometry.index.map(|index| index.slots))?;
    found.set_item("index_entries", report.geometry.index.map(|index| index.entries))?;
    found.set_item("log_min_offset", report.log_min_offset)?;
    found.set_item("log_max_offset", report.log_max_offset)?;
    found.set_item("min_store_timestamp", report.min_store_timestamp_ms)?;
    found.set_item("max_store_timestamp", report.max_store_timestamp_ms)?;
    found.set_item("messages", report.messages)?;
    let hours = report.hours.iter().map(|hour| (hour.start_ms, hour.bytes));
    found.set_item("hours", hours.collect::<Vec<_>>())?;
    let topics = PyList::empty(py);
    for (topic, queues) in report.topics {
        let queues = queues.iter().map(|queue| (queue.queue_id, queue.min_offset, queue.max_offset));
        topics.append((topic, queues.collect::<Vec<_>>()))?;
    }
    found.set_item("topics", topics)?;
    found.set_item("parts", report.parts)?;
    let disk = report.disk.iter().map(|part| {
        let link = part.link.as_ref().map(|folder| folder.display().to_string());
        (part.part, part.files, part.bytes, part.disk_bytes, link)
    });
    found.set_item("disk", disk.collect::<Vec<_>>())?;
    let consumers = PyList::empty(py);
    for group in report.consumers {
        let queues = group.queues.iter().map(|queue| (queue.queue_id, queue.offset, queue.lag));
        consumers.append((group.group, group.topic, queues.collect::<Vec<_>>()))?;
    }
    found.set_item("consumers", consumers)?;
    let popped = report.popped.into_iter().map(crate::store::pop::popped_row);
    found.set_item("popped", popped.collect::<Vec<_>>())?;
    found.set_item("segments_kept_by", holder_rows(&holders))?;
    crate::store::pending::add_waiting(&found, waiting)?;
    let raft = report.raft.map(|raft| {
        let RaftInfo { member, data_files, data_min_offset, first_index, last_index, .. } = raft;
        (
            (member, data_files, data_min_offset, first_index, last_index),
            (raft.committed_index, raft.current_term, raft.terms),
        )
    });
    found.set_item("dledger", raft.into_iter().collect::<Vec<_>>())?;
    let tiered = report.tiered.map(|tiered| {
        let TieredInfo { cluster, broker, folder, files, bytes } = tiered;
        (cluster, broker, folder.display().to_string(), files, bytes)
    });
    found.set_item("tiered", tiered.into_iter().collect::<Vec<_>>())?;
    found.set_item("rocksdb", report.rocksdb)?;
    let databases = report.rocksdb_folders.iter().map(|folder| folder.display().to_string());
    found.set_item("rocksdb_folders", databases.collect::<Vec<_>>())?;
    found.set_item("locked", report.writer.is_some())?;
    found.set_item("writer_pid", report.writer.flatten())?;
    found.set_item("writer_open_files", report.writer_files.map(|files| files.open))?;
    found.set_item("writer_open_files_limit", report.writer_files.map(|files| files.limit))?;
    found.set_item("notes", report.notes)?;
    Ok(found)
}

/// Raises the error for a store that several processes cannot read together.
#[pyfunction]
pub(crate) fn check_division(store: PyRef<'_, NativeStore>) -> PyResult<()> {
    store.core()?.files().refuse_division().map_err(to_py)
}

/// Converts the counters of an open store.
pub(crate) fn stats_dict<'py>(py: Python<'py>, stats: &Stats) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    found.set_item("appends", stats.appends)?;
    found.set_item("appended_bytes", stats.appended_bytes)?;
    found.set_item("log_min_offset", stats.log_min_offset)?;
    found.set_item("log_max_offset", stats.log_max_offset)?;
    found.set_item("durable_offset", stats.durable_offset)?;
    found.set_item("dispatched_offset", stats.dispatched_offset)?;
    found.set_item("segments", stats.segments)?;
    found.set_item("segment_size", stats.segment_bytes)?;
    found.set_item("log_bytes", stats.log_bytes)?;
    found.set_item("max_bytes", stats.max_bytes)?;
    found.set_item("open_files", stats.open_files)?;
    found.set_item("max_open_files", stats.max_open_files)?;
    found.set_item("expired_segments", stats.expired_segments)?;
    found.set_item("expired_bytes", stats.expired_bytes)?;
    let held: Vec<_> = stats.held_files.iter().map(|path| path.display().to_string()).collect();
    found.set_item("held_files", PyTuple::new(py, held)?)?;
    found.set_item("segments_kept_by", holder_rows(&stats.segments_kept_by))?;
    found.set_item("refused_appends", stats.refused_appends)?;
    found.set_item("hot_reads", stats.hot_reads)?;
    found.set_item("cold_reads", stats.cold_reads)?;
    found.set_item("paced_reads", stats.paced_reads)?;
    found.set_item("paced_read_ms", stats.paced_read_ms)?;
    found.set_item("skipped_damage", stats.skipped_damage)?;
    found.set_item("reader_lag_bytes", stats.reader_lag_bytes)?;
    Ok(found)
}

/// Runs `work` without the interpreter and passes its progress to Python. An error raised there ends the work.
pub(crate) fn watched<T: Send, E: Into<mqstore::Error>>(
    py: Python<'_>,
    progress: Option<&Py<PyAny>>,
    work: impl FnOnce(&mut dyn FnMut(Progress) -> Result<(), StoreError>) -> Result<T, E> + Send,
) -> PyResult<T> {
    let (mut raised, mut last) = (None, None);
    let outcome = delivered(py, || {
        work(&mut |step| {
            let is_new = last.replace(step) != Some(step);
            tell(progress.filter(|_| is_new), step).map_err(|error| {
                // Any error ends the work. The caller gets the one that Python raised.
                raised = Some(error);
                StoreError::Busy { reason: "stopped by the caller".to_owned() }
            })
        })
        .map_err(Into::into)
    });
    match raised {
        Some(error) => Err(error),
        None => outcome,
    }
}

/// Calls Python's `progress`, and checks for Ctrl-C.
fn tell(progress: Option<&Py<PyAny>>, step: Progress) -> PyResult<()> {
    Python::attach(|py| {
        py.check_signals()?;
        if let Some(progress) = progress {
            progress.call1(py, (step.done_bytes, step.total_bytes))?;
        }
        Ok(())
    })
}

pub(crate) fn problem<'py>(py: Python<'py>, problem: &Problem) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    found.set_item("kind", problem.kind)?;
    found.set_item("path", problem.path.to_string_lossy())?;
    found.set_item("offset", problem.offset)?;
    found.set_item("detail", &problem.detail)?;
    found.set_item("consequence", problem.consequence)?;
    found.set_item("repair", problem.repair)?;
    Ok(found)
}
