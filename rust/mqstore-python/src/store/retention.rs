//! The retention of single topics, and the space of their hidden messages.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore::compaction::JobControl;
use mqstore::store::{ReclaimReport, ReclaimRequest, TopicRetention};
use pyo3::prelude::*;

use crate::runtime::{about_topic_verb, delivered, detached, interruptible, reading};

use crate::store::NativeStore;
use crate::store::compaction::{drive, open};
use crate::store::folder::StoreFolder;
use crate::store::topics::{given, milliseconds};

/// The limits of a topic: time in milliseconds, bytes, messages.
type Limits = (Option<u64>, Option<u64>, Option<u64>);

/// A topic, its limits, its floor, and its bytes: live, dead, reclaimable.
type UsageRow = (String, Limits, u64, (u64, u64, u64));

/// A topic and its bytes: live, dead, estimated, reclaimed.
type TopicRow = (String, u64, u64, u64, u64);

/// The path and the log offset of a segment, and its bytes: all, live, dead, estimated, reclaimed.
type SegmentRow = (String, u64, u64, u64, u64, u64, u64);

/// The path and the log offset of a segment, its dead and estimated bytes, and why it stays.
type KeptRow = (String, u64, u64, u64, String);

/// Whether it is a preview; topics, segments that were rewritten, segments that were not.
type ReclaimRow = (bool, Vec<TopicRow>, Vec<SegmentRow>, Vec<KeptRow>, Vec<String>);

fn row(limits: TopicRetention) -> Limits {
    (limits.keep_ms, limits.max_bytes, limits.max_messages)
}

/// Sets the limits of a topic; `Store.set_retention`.
#[pyfunction]
fn set_retention(
    store: &Bound<'_, NativeStore>,
    topic: &str,
    keep: Option<&Bound<'_, PyAny>>,
    max_bytes: Option<&Bound<'_, PyAny>>,
    max_messages: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let keep_ms = keep.map(|keep| milliseconds("keep", keep)).transpose()?;
    let limits = TopicRetention {
        keep_ms: keep_ms.map(i64::unsigned_abs),
        max_bytes: given("max_bytes", max_bytes)?,
        max_messages: given("max_messages", max_messages)?,
    };
    let (core, verbs) = (store.get().core()?, store.get().verbs()?);
    about_topic_verb(store.py(), core, || verbs.set_retention(topic, limits))
}

/// Returns the topics with a retention, and their limits, of an open store or of the directory with this path.
#[pyfunction]
fn retention_limits(source: &Bound<'_, PyAny>) -> PyResult<Vec<(String, Limits)>> {
    let py = source.py();
    let found = if let Ok(store) = source.cast::<NativeStore>() {
        let core = store.get().core()?;
        reading(py, core, || core.retention().list())?
    } else {
        let folder = StoreFolder::of(source)?;
        detached(py, || folder.read_log(|store| store.retention().list()))?
    };
    Ok(found.into_iter().map(|(topic, limits)| (topic.to_string(), row(limits))).collect())
}

/// Returns the topics with a retention or hidden records: limits, floor, and bytes (live, dead, reclaimable);
/// `Store.retention`.
#[pyfunction]
fn retention_usage(store: &Bound<'_, NativeStore>) -> PyResult<Vec<UsageRow>> {
    let core = store.get().core()?;
    let found = interruptible(store.py(), core, |pause| core.retention().usage(pause))?;
    let rows = found.into_iter().map(|usage| {
        let bytes = (usage.live_bytes, usage.dead_bytes, usage.reclaimable_bytes);
        (usage.topic, row(usage.limits), usage.log_offset, bytes)
    });
    Ok(rows.collect())
}

/// Rewrites segments without their hidden records; `Store.reclaim`. `bytes_per_second` is 0 without a limit.
#[pyfunction]
fn reclaim(
    store: &Bound<'_, NativeStore>,
    dry_run: bool,
    erase: Vec<String>,
    bytes_per_second: u64,
) -> PyResult<ReclaimRow> {
    let shared = store.get().shared();
    let path = PathBuf::from(shared.path());
    if shared.is_away()? {
        let (verbs, erase) = (shared.verbs()?, erase.into_iter().collect());
        let report = delivered(store.py(), || verbs.reclaim(dry_run, erase, bytes_per_second))?;
        return Ok(reclaim_row(report));
    }
    let request = ReclaimRequest { dry_run, erase: erase.into_iter().collect() };
    let work = move |control: &Arc<JobControl>| open(&shared)?.reclaim(&request, control).map(reclaim_row);
    drive(store.py(), &path, JobControl::with_bytes_per_second(bytes_per_second), None, work)
}

fn reclaim_row(report: ReclaimReport) -> ReclaimRow {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let topics = report
        .topics
        .into_iter()
        .map(|one| (one.topic, one.live_bytes, one.dead_bytes, one.estimated_bytes, one.reclaimed_bytes));
    let segments = report.segments.into_iter().map(|one| {
        let place = (text(&one.path), one.log_offset, one.bytes);
        let counts = (one.live_bytes, one.dead_bytes, one.estimated_bytes, one.reclaimed_bytes);
        (place.0, place.1, place.2, counts.0, counts.1, counts.2, counts.3)
    });
    let kept = report
        .kept
        .into_iter()
        .map(|one| (text(&one.path), one.log_offset, one.dead_bytes, one.estimated_bytes, one.reason));
    (report.dry_run, topics.collect(), segments.collect(), kept.collect(), report.copies)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(set_retention, module)?)?;
    module.add_function(wrap_pyfunction!(retention_limits, module)?)?;
    module.add_function(wrap_pyfunction!(retention_usage, module)?)?;
    module.add_function(wrap_pyfunction!(reclaim, module)?)?;
    Ok(())
}
