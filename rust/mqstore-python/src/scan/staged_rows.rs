//! Converts Arrow columns to staged messages.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use mqstore::append::StagedBlock;
use mqstore::body_compression::{BodyCompression, CompressedBody};
use mqstore::format::record::MAX_PROPERTIES_BYTES;
use mqstore::format::{MadeKey, UniqueKeyGenerator};
use mqstore::io::Clock;
use mqstore::message::NewMessage;
use mqstore::options::StoreOptions;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::arrow::append_stream::open_stream;
use crate::arrow::message_columns::{MessageColumns, RefusedRow};
use crate::convert::options::compression_of_call;
use crate::error::invalid;
use crate::runtime::{clock, detached};

/// Stages messages from rows; one for each task that writes.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct Stager {
    topic: Option<String>,
    most_body_bytes: usize,
    compression: BodyCompression,
    keys: Arc<UniqueKeyGenerator>,
}

/// A block in the form for Python; see [`Stager::stage`].
type StagedRows<'py> = (Bound<'py, PyBytes>, usize, usize, Vec<(String, i32)>, Vec<RefusedTuple>);

/// Topic, column, number of rows, first row, and its reason.
type RefusedTuple = (Option<String>, &'static str, usize, usize, String);

/// Number of topics and columns with refused rows in one block from which further rows are counted by column only.
const MOST_REFUSED: usize = 100;

/// The rows of one topic that are refused because of one column.
struct RefusedRows {
    topic: Option<String>,
    column: &'static str,
    rows: usize,
    first: usize,
    /// The reason of the first row.
    reason: String,
}

/// The result of a block: its messages by topic, with the largest queue id that a row names or -1, and refused rows.
#[derive(Default)]
struct BlockRows {
    messages: usize,
    topics: HashMap<String, i32>,
    refused: Vec<RefusedRows>,
}

impl BlockRows {
    fn add(&mut self, message: &NewMessage<'_>) {
        self.messages += 1;
        let queue_id = message.queue_id.unwrap_or(-1);
        match self.topics.get_mut(message.topic) {
            Some(largest) => *largest = queue_id.max(*largest),
            None => {
                self.topics.insert(message.topic.to_owned(), queue_id);
            }
        }
    }

    fn refuse(&mut self, topic: Option<&str>, row: usize, why: RefusedRow) {
        // Every row may name another topic.
        let topic = topic.filter(|_| self.refused.len() < MOST_REFUSED);
        let same = |known: &&mut RefusedRows| known.topic.as_deref() == topic && known.column == why.column;
        match self.refused.iter_mut().find(same) {
            Some(known) => known.rows += 1,
            None => self.refused.push(RefusedRows {
                topic: topic.map(str::to_owned),
                column: why.column,
                rows: 1,
                first: row,
                reason: why.reason,
            }),
        }
    }
}

impl Stager {
    fn block(&self, columns: &MessageColumns<'_>, from: usize, to: usize) -> (Vec<u8>, usize, BlockRows) {
        let now_ms = clock().now_ms();
        let (mut block, mut found) = (StagedBlock::new(self.most_body_bytes), BlockRows::default());
        let mut text = Vec::new();
        let mut row = from;
        while row < to {
            if !block.has_room(columns.body_bytes(row) + (1 << 16)) {
                break;
            }
            text.clear();
            let named = columns.topic(row);
            let topic = named.as_ref().ok().copied().flatten().or(self.topic.as_deref());
            let pushed = named
                .and_then(|_| self.push(columns, row, topic, now_ms, (&mut text, &mut block, &mut found)));
            if let Err(why) = pushed {
                found.refuse(topic, row, why);
            }
            row += 1;
        }
        (block.finish(), row, found)
    }

    /// Adds the message of one row to the block.
    fn push(
        &self,
        columns: &MessageColumns<'_>,
        row: usize,
        topic: Option<&str>,
        now_ms: i64,
        (text, block, found): (&mut Vec<u8>, &mut StagedBlock, &mut BlockRows),
    ) -> Result<(), RefusedRow> {
        let (message, made) =
            columns.message(row, topic, text, Some(|| StagedKey(self.keys.next(now_ms))))?;
        let most = self.most_body_bytes;
        if message.body.len() > most {
            let reason = format!("it has {} bytes; maxMessageSize is {most}", message.body.len());
            return Err(RefusedRow::new("body", reason));
        }
        let compressed = self.compression.compress(message.body);
        let (body, sys_flag) = CompressedBody::stored_form(compressed.as_ref(), message.body);
        let message = NewMessage {
            topic: topic.unwrap_or_default(),
            body,
            sys_flag,
            properties: text,
            unique_key: message.unique_key.or(made.as_ref().map(AsRef::as_ref)),
            queue_id: message.queue_id,
            flag: message.flag,
            born_timestamp_ms: message.born_timestamp_ms,
            durable: false,
        };
        // Topic and body are checked; long properties and the queue id remain.
        let blame = if text.len() > MAX_PROPERTIES_BYTES { "properties" } else { "queue_id" };
        block.push(&message).map_err(RefusedRow::in_column(blame))?;
        found.add(&message);
        Ok(())
    }
}

/// The unique key of a staged message.
struct StagedKey(MadeKey);

impl AsRef<str> for StagedKey {
    fn as_ref(&self) -> &str {
        self.0.as_str()
    }
}

#[pymethods]
impl Stager {
    #[new]
    #[pyo3(signature = (topic, most_body_bytes, process, salt, compression = None, compress_over = None))]
    fn new(
        topic: Option<String>,
        most_body_bytes: usize,
        process: u32,
        salt: u32,
        compression: Option<&Bound<'_, PyAny>>,
        compress_over: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let max_message_bytes = u32::try_from(most_body_bytes).unwrap_or(u32::MAX);
        let of_store = StoreOptions { max_message_bytes, ..StoreOptions::default() }.body_compression();
        let compression = compression_of_call(of_store, compression, compress_over)?;
        let keys = Arc::new(UniqueKeyGenerator::new(IpAddr::V4(Ipv4Addr::LOCALHOST), process, salt));
        Ok(Self { topic, most_body_bytes, compression, keys })
    }

    /// Stages the rows of a record batch, from `start` on, as one block.
    ///
    /// Returns the block, the row after its last one, its number of messages, the largest queue id of each topic or
    /// -1, and the rows that cannot become messages: topic, column, number, first row and its reason.
    fn stage<'py>(&self, rows: &Bound<'py, PyAny>, start: usize) -> PyResult<StagedRows<'py>> {
        let py = rows.py();
        let batch = open_stream(rows)?.next().transpose();
        let batch = batch.map_err(|error| invalid(format!("the rows cannot be read: {error}")))?;
        let batch = batch.ok_or_else(|| invalid("there are no rows"))?;
        let (block, reached, found) =
            detached(py, || Ok(self.block(&MessageColumns::of(&batch)?, start, batch.num_rows())))?;
        let BlockRows { messages, topics, refused } = found;
        let refused = refused.into_iter().map(|one| (one.topic, one.column, one.rows, one.first, one.reason));
        let topics = topics.into_iter().collect();
        Ok((PyBytes::new(py, &block), reached, messages, topics, refused.collect()))
    }
}

/// Adds the class to the native module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Stager>()
}
