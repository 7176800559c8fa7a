//! Converts Python's request dict of a scan for the core.

use mqstore::error::StoreError;
use mqstore::options::DamagePolicy;
use mqstore::read::{ScanPlan, ScanRange, ScanRequest};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use regex::bytes::Regex;

use crate::arrow::schema::{BodyForm, Layout};
use crate::convert::filter::message_filter;
use crate::convert::options::damage_policy;
use crate::error::to_py;

/// Returns an entry of the request, if it is not None.
pub(super) fn entry<'py, T: FromPyObjectOwned<'py>>(
    request: &Bound<'py, PyDict>,
    name: &str,
) -> PyResult<Option<T>> {
    match request.get_item(name)? {
        Some(value) if !value.is_none() => value.extract().map(Some).map_err(Into::into),
        _ => Ok(None),
    }
}

/// Returns the requested columns.
pub(crate) fn layout(request: &Bound<'_, PyDict>) -> PyResult<Layout> {
    let columns: Option<Vec<String>> = entry(request, "columns")?;
    let body: Option<String> = entry(request, "body")?;
    let form = BodyForm::parse(body.as_deref().unwrap_or("binary")).map_err(to_py)?;
    let rows: Option<usize> = entry(request, "batch_size")?;
    Layout::new(columns.as_deref(), form, rows.unwrap_or(usize::MAX).max(1)).map_err(to_py)
}

/// Returns the request for messages.
pub(crate) fn scan_request(request: &Bound<'_, PyDict>) -> PyResult<ScanRequest> {
    let filter: Option<Bound<'_, PyAny>> = entry(request, "filter")?;
    let body: Option<String> = entry(request, "body_matches")?;
    let body = body.map(|pattern| Regex::new(&pattern)).transpose().map_err(|error| {
        to_py(StoreError::InvalidOption { option: "body_matches", reason: error.to_string() })
    })?;
    let plan: Option<String> = entry(request, "plan")?;
    let ranges: Option<Vec<(String, i32, i64, i64)>> = entry(request, "ranges")?;
    let range = |(topic, queue_id, start, end)| ScanRange { topic, queue_id, start, end };
    Ok(ScanRequest {
        ranges: ranges.map(|ranges| ranges.into_iter().map(range).collect()),
        to: entry(request, "to")?,
        topics: entry(request, "topics")?,
        record_topic: entry(request, "record_topic")?,
        queue_id: entry(request, "queue_id")?,
        start_offset: entry(request, "start")?,
        end_offset: entry(request, "end")?,
        start_ms: entry(request, "start_time")?,
        end_ms: entry(request, "end_time")?,
        keys: entry(request, "keys")?.unwrap_or_default(),
        filter: message_filter(filter.as_ref())?,
        body,
        from: entry(request, "from")?,
        on_damage: match entry::<Bound<'_, PyAny>>(request, "on_damage")? {
            Some(policy) => damage_policy(&policy)?,
            None => DamagePolicy::Skip,
        },
        as_reads: entry(request, "as_reads")?.unwrap_or(false),
        with_older: entry(request, "older")?.unwrap_or(false),
        with_deleted: false,
        expects_deletion: false,
        threads: entry(request, "threads")?.unwrap_or(1),
        plan: match plan.as_deref() {
            Some("log") => ScanPlan::Log,
            Some("queues") => ScanPlan::Queues,
            Some("messages") => ScanPlan::Messages,
            _ => ScanPlan::Cheapest,
        },
    })
}

/// Returns the request for the records of an export. The rules of the export count those of deleted topics.
pub(super) fn export_request(request: &Bound<'_, PyDict>) -> PyResult<ScanRequest> {
    Ok(ScanRequest { with_deleted: true, ..scan_request(request)? })
}
