//! Exports and imports of JSON lines.

use std::sync::Arc;

use mqstore::append::{MessageOrigin, check_copy};
use mqstore::body_compression::{BodyCompression, CompressedBody};
use mqstore::delivery::{Due, LATEST_DUE_MS};
use mqstore::format::delays::pending::{DELIVER_AT, is_system_topic};
use mqstore::format::{Host, PropertiesBuilder, SysFlag};
use mqstore::options::StoreOptions;
use mqstore::read::MakeSink;
use mqstore::transfer::NOT_COPIED;
use mqstore_server::wire::request::{DueTime, ImportedMessage, Message};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::export_rules::{ExportRules, ExportSink, LeftOut, counts_by_name};
use super::json_lines::JsonLinesBuilder;
use super::request::{export_request, layout};
use super::running_scan::ScanHandle;
use crate::arrow::schema::Layout;
use crate::convert::arguments::body as body_of;
use crate::error::{invalid, of_message, to_py};
use crate::runtime::{delivered, detached};
use crate::store::NativeStore;

/// One pass over the messages as JSON lines; created by `scan_lines`.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct LineStream {
    pass: ScanHandle<ExportSink<JsonLinesBuilder>>,
}

#[pymethods]
impl LineStream {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Returns some lines, their number, the numbers of records left out by reason, and the log offset from which a
    /// scan returns the following lines.
    #[expect(clippy::type_complexity, reason = "a tuple for Python")]
    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyBytes>, u64, LeftOut, u64)>> {
        let Some(batch) = self.pass.next(py)? else { return Ok(None) };
        let (lines, left_out) = batch.rows;
        let (text, rows) = lines.unwrap_or_default();
        Ok(Some((PyBytes::new(py, &text), rows, counts_by_name(&left_out), batch.end)))
    }

    /// The log offset at which the scan began.
    #[getter]
    fn start(&self) -> u64 {
        self.pass.start
    }

    /// The log offset at which the scan ends.
    #[getter]
    fn limit(&self) -> u64 {
        self.pass.limit
    }

    /// Ends the scan. Its threads have stopped when this returns.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.pass.take()));
    }
}

/// Starts a pass that produces JSON lines, over the directory with this path.
#[pyfunction]
pub(crate) fn scan_lines(
    source: &Bound<'_, PyAny>,
    request: &Bound<'_, PyDict>,
    rules: &Bound<'_, ExportRules>,
) -> PyResult<LineStream> {
    let layout: Arc<Layout> = Arc::new(layout(request)?);
    let rules = Arc::clone(&rules.get().core);
    let make: MakeSink<ExportSink<JsonLinesBuilder>> =
        Arc::new(move || ExportSink::new(&rules, JsonLinesBuilder::new(Arc::clone(&layout))));
    Ok(LineStream { pass: ScanHandle::begin(source, &export_request(request)?, make)? })
}

/// A message for `append_rows`: topic, queue, body, properties, flag, born time and host, reconsume times, and the
/// flags of a compressed body and of a batch.
type TransferRow<'py> = (
    String,
    Option<i32>,
    Bound<'py, PyAny>,
    Vec<(String, String)>,
    i32,
    Option<i64>,
    Option<String>,
    i32,
    i32,
);

/// Appends messages of a file and returns their number. If one of them cannot be appended, returns the number before it;
/// the next call, which begins with this message, raises the error and appends none.
///
/// `compression` says how bodies are compressed. Batches and bodies that are compressed already do not change.
#[pyfunction]
#[pyo3(signature = (target, rows, compression, compress_over))]
pub(crate) fn append_rows(
    target: &Bound<'_, NativeStore>,
    rows: Vec<TransferRow<'_>>,
    compression: Option<&Bound<'_, PyAny>>,
    compress_over: Option<&Bound<'_, PyAny>>,
) -> PyResult<u64> {
    let (py, host) = (target.py(), target.get().host());
    let rule = target.get().compression(compression, compress_over)?;
    let mut parts = parts_of(py, rows, host)?;
    compress_rows(py, &mut parts, &rule)?;
    let messages: Vec<_> = parts.iter().map(RowParts::imported).collect();
    let verbs = target.get().verbs()?;
    delivered(py, || verbs.import(messages))
}

/// Checks that each message can be appended to a store that does not exist yet.
#[pyfunction]
pub(crate) fn check_rows(py: Python<'_>, rows: Vec<TransferRow<'_>>) -> PyResult<()> {
    let host = StoreOptions::default().store_host;
    for (index, part) in parts_of(py, rows, host)?.iter().enumerate() {
        let checked = check_copy(&part.imported().new_message().0, &part.origin).map_err(to_py);
        checked.map_err(|error| of_message(py, index, error))?;
    }
    Ok(())
}

/// The parts of a row.
struct RowParts<'py> {
    topic: String,
    queue_id: Option<i32>,
    body: Bound<'py, PyBytes>,
    compressed: Option<Vec<u8>>,
    properties: Vec<u8>,
    flag: i32,
    born: Option<i64>,
    unique: Option<String>,
    due: Due,
    origin: MessageOrigin,
}

impl RowParts<'_> {
    fn imported(&self) -> ImportedMessage<'_> {
        ImportedMessage {
            topic: &self.topic,
            queue_id: self.queue_id,
            message: Message {
                body: self.compressed.as_deref().unwrap_or_else(|| self.body.as_bytes()),
                properties: &self.properties,
                unique_key: self.unique.as_deref().unwrap_or_default(),
                sys_flag: self.origin.sys_flag.0,
                flag: self.flag,
                born_timestamp_ms: self.born,
            },
            due: DueTime::of(self.due),
            born_host: (self.origin.born_host.ip, self.origin.born_host.port),
            reconsume_times: self.origin.reconsume_times,
        }
    }
}

/// Compresses the bodies that `rule` covers.
fn compress_rows(py: Python<'_>, parts: &mut [RowParts<'_>], rule: &BodyCompression) -> PyResult<()> {
    let bodies: Vec<_> = parts
        .iter_mut()
        .filter(|part| part.origin.sys_flag == SysFlag(0) && rule.covers(part.body.as_bytes().len()))
        .map(|part| (part.body.as_bytes(), &mut part.compressed, &mut part.origin))
        .collect();
    if bodies.is_empty() {
        return Ok(());
    }
    detached(py, || {
        for (body, compressed, origin) in bodies {
            if let Some(CompressedBody { bytes, sys_flag }) = rule.compress(body) {
                (*compressed, origin.sys_flag) = (Some(bytes), sys_flag);
            }
        }
        Ok(())
    })
}

fn parts_of<'py>(py: Python<'py>, rows: Vec<TransferRow<'py>>, host: Host) -> PyResult<Vec<RowParts<'py>>> {
    let part =
        |(topic, queue_id, body, pairs, flag, born, born_host, reconsume_times, sys_flag): TransferRow<
            'py,
        >| {
            if is_system_topic(&topic) {
                return Err(invalid(format!(
                    "topic {topic} belongs to the store itself and is not imported; export again with this version \
                     of mqstore, leave out the row, or give topic= to import the rows as plain messages"
                )));
            }
            let due = due_of(&pairs)?;
            let mut properties = PropertiesBuilder::new();
            let not_copied = |name: &str| NOT_COPIED.contains(&name) || name == DELIVER_AT;
            for (name, value) in pairs.iter().filter(|(name, _)| !not_copied(name)) {
                properties.push_reserved(name, value).map_err(|error| invalid(error.to_string()))?;
            }
            let born_host = born_host.map(|text| text.parse::<Host>()).transpose();
            let born_host = born_host.map_err(|error| invalid(error.to_string()))?.unwrap_or(host);
            let unique =
                pairs.iter().rev().find(|(name, _)| name == "UNIQ_KEY").map(|(_, value)| value.clone());
            let origin = MessageOrigin { sys_flag: SysFlag(sys_flag), born_host, reconsume_times };
            let (body, properties) = (body_of(&body)?, properties.finish());
            let compressed = None;
            Ok(RowParts { topic, queue_id, body, compressed, properties, flag, born, unique, due, origin })
        };
    let numbered = rows.into_iter().enumerate();
    numbered.map(|(index, row)| part(row).map_err(|error| of_message(py, index, error))).collect()
}

/// Returns when a message with these properties is due.
fn due_of(pairs: &[(String, String)]) -> PyResult<Due> {
    let Some((_, text)) = pairs.iter().rev().find(|(name, _)| name == DELIVER_AT) else {
        return Ok(Due::Now);
    };
    let due_ms = text.parse().ok().filter(|due_ms| *due_ms <= LATEST_DUE_MS);
    let bad = || invalid(format!("property {DELIVER_AT} must be a time in epoch milliseconds, not {text:?}"));
    due_ms.map(Due::At).ok_or_else(bad)
}

/// Adds the classes and functions of exports and imports to the native module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<LineStream>()?;
    module.add_function(wrap_pyfunction!(scan_lines, module)?)?;
    module.add_function(wrap_pyfunction!(append_rows, module)?)?;
    module.add_function(wrap_pyfunction!(check_rows, module)?)?;
    Ok(())
}
