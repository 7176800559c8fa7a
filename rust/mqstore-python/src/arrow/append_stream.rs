//! Appends of Arrow rows: any object with `__arrow_c_stream__`.
//!
//! Rows stay in Arrow's buffers until the append copies their bodies to the log. No Python object is created for a row.

use arrow_array::RecordBatch;
use arrow_array::ffi_stream::RecordBatchStreamReader;
use mqstore::Store;
use mqstore::append::RefusedMessage;
use mqstore::body_compression::BodyCompression;
use mqstore::error::StoreError;
use mqstore::format::SysFlag;
use mqstore::message::NewMessage;
use mqstore_server::share::Verbs;
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use super::message_columns::{MessageColumns, RowMessage};
use crate::convert::append_input::rule_for_many;
use crate::convert::buffer::take_stream;
use crate::error::{MQStoreError, invalid, of_store, to_py};
use crate::runtime::{about_topic, interruptible};

/// Maximum messages of one append, and the bytes of their bodies, so that other appends can take turns.
const GROUP_ROWS: usize = 1000;
const GROUP_BYTES: usize = 1 << 20;

/// Opens the stream of an object with `__arrow_c_stream__`.
pub(crate) fn open_stream(rows: &Bound<'_, PyAny>) -> PyResult<RecordBatchStreamReader> {
    let method = rows.getattr_opt(intern!(rows.py(), "__arrow_c_stream__"))?.ok_or_else(|| {
        let kind = rows.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
        PyTypeError::new_err(format!(
            "table_or_stream must be rows in Arrow's C stream interface, such as a table of pyarrow, Polars or \
             DuckDB, not {kind}"
        ))
    })?;
    let stream = take_stream(method.call0()?.cast::<PyCapsule>()?)?;
    // The producer may need the interpreter in another thread.
    let reader = rows.py().detach(|| RecordBatchStreamReader::try_new(stream));
    reader.map_err(|error| invalid(format!("the rows are no table: {error}")))
}

/// The rows of one record batch as messages. Their property text is in one buffer.
struct RowMessages<'a> {
    text: Vec<u8>,
    /// Each message, its topic, and the end of its text.
    rows: Vec<(RowMessage<'a>, &'a str, usize)>,
}

impl<'a> RowMessages<'a> {
    /// Converts all rows. `before` is the number of rows before the batch, all of them appended.
    fn of(
        columns: &MessageColumns<'a>,
        count: usize,
        topic: Option<&'a str>,
        before: u64,
    ) -> Result<Self, StoreError> {
        let (mut text, mut rows) = (Vec::new(), Vec::with_capacity(count));
        for row in 0..count {
            let message = match topic {
                Some(topic) => Ok(Some(topic)),
                None => columns.topic(row),
            }
            .and_then(|topic| {
                let (message, _) = columns.message(row, topic, &mut text, None::<fn() -> String>)?;
                Ok((message, topic.unwrap_or_default()))
            });
            let (message, topic) = message.map_err(|why| {
                let (column, reason, row) = (why.column, why.reason, before + row as u64);
                let reason = format!(
                    "row {row}, column {column}: {reason}; the {before} rows before its record batch are appended"
                );
                StoreError::InvalidMessage { reason }
            })?;
            rows.push((message, topic, text.len()));
        }
        Ok(Self { text, rows })
    }

    fn messages(&self, queue_id: Option<i32>) -> Vec<NewMessage<'_>> {
        let mut start = 0;
        let message = |(row, topic, end): &'_ (RowMessage<'a>, &'a str, usize)| {
            let properties = self.text.get(start..*end).unwrap_or_default();
            start = *end;
            NewMessage {
                topic,
                body: row.body,
                properties,
                unique_key: row.unique_key,
                queue_id: row.queue_id.or(queue_id),
                flag: row.flag,
                born_timestamp_ms: row.born_timestamp_ms,
                durable: false,
                sys_flag: SysFlag(0),
            }
        };
        self.rows.iter().map(message).collect()
    }
}

/// Returns the number of the first messages that one append takes.
fn group(messages: &[NewMessage<'_>]) -> usize {
    let mut bytes = 0;
    let fits = |message: &&NewMessage<'_>| {
        bytes += message.body.len();
        bytes <= GROUP_BYTES
    };
    messages.iter().take(GROUP_ROWS).take_while(fits).count().max(1)
}

/// Why a stream was not appended as a whole.
enum Ended {
    /// The stream had an error after this number of rows.
    Stream(u64, String),
    /// The store refuses a row of the batch after this number of rows.
    Refused(u64, RefusedMessage),
}

/// Appends the rows of one record batch, or none of them if the store refuses one.
fn append_batch(
    store: &Store,
    verbs: Verbs<'_>,
    batch: &RecordBatch,
    (topic, queue_id): (Option<&str>, Option<i32>),
    rule: BodyCompression,
    before: u64,
    pause: &mut dyn FnMut() -> Result<(), StoreError>,
) -> Result<Option<RefusedMessage>, StoreError> {
    let columns = MessageColumns::of(batch)?;
    let rows = RowMessages::of(&columns, batch.num_rows(), topic, before)?;
    let messages = rows.messages(queue_id);
    let (mut rest, mut groups) = (messages.as_slice(), Vec::new());
    while !rest.is_empty() {
        pause()?;
        let (some, more) = rest.split_at(group(rest));
        let topic = some.first().map_or("", |message| message.topic);
        let rule = rule_for_many(store, topic, rule);
        groups.push((some, rule.compress_all(some.iter().map(|message| message.body))));
        rest = more;
    }
    let stored: Vec<_> = groups.iter().map(|(some, compressed)| compressed.apply(some)).collect();
    // A client cannot ask the owner about rows before it sends them: the owner checks each group.
    if store.mode().writes()
        && let Some(refused) = store.system_appends().refused_append(stored.iter().map(AsRef::as_ref))?
    {
        return Ok(Some(refused));
    }
    for some in &stored {
        pause()?;
        verbs.append_many(some).map_err(of_store)?;
    }
    Ok(None)
}

/// Appends all rows and returns their number. `rule` says how their bodies are compressed.
pub(crate) fn append_rows(
    py: Python<'_>,
    store: &Store,
    verbs: Verbs<'_>,
    rows: &Bound<'_, PyAny>,
    target: (Option<&str>, Option<i32>),
    rule: BodyCompression,
    durable: bool,
) -> PyResult<u64> {
    let stream = open_stream(rows)?;
    let appended = interruptible(py, store, |pause| {
        let mut appended = 0;
        for batch in stream {
            let batch = match batch {
                Ok(batch) => batch,
                Err(error) => return Ok(Err(Ended::Stream(appended, error.to_string()))),
            };
            if let Some(refused) = append_batch(store, verbs, &batch, target, rule, appended, pause)? {
                return Ok(Err(Ended::Refused(appended, refused)));
            }
            appended += batch.num_rows() as u64;
        }
        if durable {
            verbs.flush().map_err(of_store)?;
        }
        Ok(Ok(appended))
    })?;
    match appended {
        Ok(appended) => Ok(appended),
        Err(Ended::Stream(appended, error)) => Err(MQStoreError::new_err((format!(
            "the stream of rows ended with an error after {appended} rows: {error}"
        ),))),
        Err(Ended::Refused(before, refused)) => refuse(py, store, before, refused),
    }
}

/// Raises the error for a row that the store refuses.
fn refuse(py: Python<'_>, store: &Store, before: u64, refused: RefusedMessage) -> PyResult<u64> {
    let RefusedMessage { index, field, error } = refused;
    let row = before + index as u64;
    let appended = format!("the {before} rows before its record batch are appended");
    if matches!(error, StoreError::TooLarge { .. } | StoreError::InvalidMessage { .. }) {
        let reason = to_py(error).value(py).to_string();
        return Err(invalid(format!("row {row}, column {field}: {reason}; {appended}")));
    }
    // The class says what is wrong, as for other appends.
    about_topic(py, store, || Err(error)).inspect_err(|error| {
        let note = format!("row {row}, column {field}; {appended}");
        let _ = error.value(py).call_method1(intern!(py, "add_note"), (note,));
    })
}
