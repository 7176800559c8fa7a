//! The retention of single topics.

use mqstore_base::topic_floors::TopicRetention;
use pyo3::prelude::*;

use crate::runtime::{about_topic, interruptible, reading};
use crate::store::NativeStore;
use crate::store::topics::{given, milliseconds};

/// The limits of a topic: time in milliseconds, bytes, messages.
type Limits = (Option<u64>, Option<u64>, Option<u64>);

/// A topic, its limits, its floor, and its bytes: live, dead, reclaimable.
type UsageRow = (String, Limits, u64, (u64, u64, u64));

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
    let core = store.get().core()?;
    about_topic(store.py(), core, || core.set_retention(topic, limits))
}

/// Returns the topics with a retention, and their limits.
#[pyfunction]
fn retention_limits(store: &Bound<'_, NativeStore>) -> PyResult<Vec<(String, Limits)>> {
    let core = store.get().core()?;
    let found = reading(store.py(), core, || core.retentions())?;
    Ok(found.into_iter().map(|(topic, limits)| (topic.to_string(), row(limits))).collect())
}

/// Returns the topics with a retention or hidden records: limits, floor, and bytes (live, dead, reclaimable);
/// `Store.retention`.
#[pyfunction]
fn retention_usage(store: &Bound<'_, NativeStore>) -> PyResult<Vec<UsageRow>> {
    let core = store.get().core()?;
    let found = interruptible(store.py(), core, |pause| core.retention_usage(pause))?;
    let rows = found.into_iter().map(|usage| {
        let bytes = (usage.live_bytes, usage.dead_bytes, usage.reclaimable_bytes);
        (usage.topic, row(usage.limits), usage.log_offset, bytes)
    });
    Ok(rows.collect())
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(set_retention, module)?)?;
    module.add_function(wrap_pyfunction!(retention_limits, module)?)?;
    module.add_function(wrap_pyfunction!(retention_usage, module)?)?;
    Ok(())
}
