//! Converts Arrow columns to staged messages, and appends staged messages to a store.

#![expect(clippy::host_endian_bytes, reason = "Arrow's buffers are in the byte order of the machine")]

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_base::message::{NewMessage, encode_properties};
use mqstore_engine::{StagedBlock, check_target, staged_messages};
use mqstore_format::properties::UNIQ_KEY;
use mqstore_format::record::MAX_PROPERTIES_BYTES;
use mqstore_format::{MadeKey, UniqueKeyGenerator, is_reserved};
use mqstore_io::Clock;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::arrow_input::{
    NullMask, NumberColumn, Offsets32, RawList, RawMap, RawNumbers, RawText, TextColumn,
};
use super::request::entry;
use crate::convert::error::{invalid, to_py};
use crate::runtime::{clock, detached};
use crate::store::NativeStore;

/// Stages messages from rows; one for each task that writes.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct Stager {
    topic: Option<String>,
    most_body_bytes: usize,
    keys: Arc<UniqueKeyGenerator>,
}

/// A block in the form for Python; see [`Stager::stage`].
type StagedRows<'py> = (Bound<'py, PyBytes>, usize, usize, Vec<(String, i32)>, Vec<RefusedTuple>);

/// Topic, column, number of rows, first row, and its reason.
type RefusedTuple = (Option<String>, &'static str, usize, usize, String);

/// The input columns of some rows.
struct ColumnBuffers<'py> {
    body: RawText<'py>,
    topic: Option<RawText<'py>>,
    key: Option<RawText<'py>>,
    keys: Option<RawList<'py>>,
    tags: Option<RawText<'py>>,
    properties: Option<RawMap<'py>>,
    queue_id: Option<RawNumbers<'py>>,
    flag: Option<RawNumbers<'py>>,
    born_timestamp: Option<RawNumbers<'py>>,
}

/// The same as slices, for a thread without the interpreter.
struct ColumnSlices<'a> {
    body: TextColumn<'a>,
    topic: Option<TextColumn<'a>>,
    key: Option<TextColumn<'a>>,
    keys: Option<(NullMask<'a>, Offsets32<'a>, TextColumn<'a>)>,
    tags: Option<TextColumn<'a>>,
    properties: Option<(NullMask<'a>, Offsets32<'a>, TextColumn<'a>, TextColumn<'a>)>,
    queue_id: Option<NumberColumn<'a, 4>>,
    flag: Option<NumberColumn<'a, 4>>,
    born_timestamp: Option<NumberColumn<'a, 8>>,
}

impl<'py> ColumnBuffers<'py> {
    fn of(columns: &Bound<'py, PyDict>) -> PyResult<Self> {
        Ok(Self {
            body: entry(columns, "body")?.ok_or_else(|| invalid("there is no column body".to_owned()))?,
            topic: entry(columns, "topic")?,
            key: entry(columns, "key")?,
            keys: entry(columns, "keys")?,
            tags: entry(columns, "tags")?,
            properties: entry(columns, "properties")?,
            queue_id: entry(columns, "queue_id")?,
            flag: entry(columns, "flag")?,
            born_timestamp: entry(columns, "born_timestamp")?,
        })
    }

    fn rows(&self) -> ColumnSlices<'_> {
        ColumnSlices {
            body: TextColumn::of(&self.body),
            topic: self.topic.as_ref().map(TextColumn::of),
            key: self.key.as_ref().map(TextColumn::of),
            keys: self.keys.as_ref().map(|(nulls, spans, items)| {
                (NullMask::of(nulls.as_ref()), Offsets32::of(spans), TextColumn::of(items))
            }),
            tags: self.tags.as_ref().map(TextColumn::of),
            properties: self.properties.as_ref().map(|(nulls, spans, names, values)| {
                (
                    NullMask::of(nulls.as_ref()),
                    Offsets32::of(spans),
                    TextColumn::of(names),
                    TextColumn::of(values),
                )
            }),
            queue_id: self.queue_id.as_ref().map(NumberColumn::of),
            flag: self.flag.as_ref().map(NumberColumn::of),
            born_timestamp: self.born_timestamp.as_ref().map(NumberColumn::of),
        }
    }
}

/// Number of topics and columns with refused rows in one block from which further rows are counted by column only.
const MOST_REFUSED: usize = 100;

/// A row that cannot become a message: the column, and the reason.
struct RefusedRow {
    column: &'static str,
    reason: String,
}

impl RefusedRow {
    fn null(column: &'static str) -> Self {
        Self { column, reason: "it is null".to_owned() }
    }

    /// Returns a function that blames `column` for an error.
    fn in_column(column: &'static str) -> impl Fn(StoreError) -> Self {
        move |error| Self { column, reason: error.to_string() }
    }
}

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

/// Returns the value of an optional column.
fn text<'a>(column: Option<&TextColumn<'a>>, row: usize) -> Result<Option<&'a str>, StoreError> {
    column.map_or(Ok(None), |column| column.text(row))
}

impl<'a> ColumnSlices<'a> {
    fn keys(&self, row: usize) -> Result<Vec<&'a str>, StoreError> {
        let mut found: Vec<&str> = text(self.key.as_ref(), row)?.into_iter().collect();
        if let Some((nulls, spans, items)) = &self.keys
            && !nulls.is_null(row)
        {
            for item in spans.get(row)? {
                let null = || StoreError::InvalidMessage { reason: "a key is null".to_owned() };
                found.push(items.text(item)?.ok_or_else(null)?);
            }
        }
        Ok(found)
    }

    /// Returns the properties of the sender, and the unique key if it is one of them. A property without a value does
    /// not exist.
    #[expect(clippy::type_complexity, reason = "two values of one walk")]
    fn properties(&self, row: usize) -> Result<(Vec<(&'a str, &'a str)>, Option<&'a str>), StoreError> {
        let (mut own, mut unique) = (Vec::new(), None);
        if let Some((nulls, spans, names, values)) = &self.properties
            && !nulls.is_null(row)
        {
            for item in spans.get(row)? {
                let Some((name, value)) = names.text(item)?.zip(values.text(item)?) else { continue };
                if name == UNIQ_KEY {
                    unique = Some(value);
                } else if !is_reserved(name) {
                    own.push((name, value));
                }
            }
        }
        Ok((own, unique))
    }
}

impl Stager {
    fn block(
        &self,
        rows: &ColumnSlices<'_>,
        from: usize,
        to: usize,
    ) -> Result<(Vec<u8>, usize, BlockRows), StoreError> {
        let now_ms = clock().now_ms();
        let (mut block, mut found) = (StagedBlock::new(self.most_body_bytes), BlockRows::default());
        let mut row = from;
        while row < to {
            let bytes = rows.body.bytes(row)?.map_or(0, <[u8]>::len);
            if !block.has_room(bytes + (1 << 16)) {
                break;
            }
            let topic = text(rows.topic.as_ref(), row)?.or(self.topic.as_deref());
            if let Err(why) = self.push(rows, row, topic, now_ms, (&mut block, &mut found)) {
                found.refuse(topic, row, why);
            }
            row += 1;
        }
        Ok((block.finish(), row, found))
    }

    /// Adds the message of one row to the block.
    fn push(
        &self,
        rows: &ColumnSlices<'_>,
        row: usize,
        topic: Option<&str>,
        now_ms: i64,
        (block, found): (&mut StagedBlock, &mut BlockRows),
    ) -> Result<(), RefusedRow> {
        let topic = topic.ok_or_else(|| RefusedRow::null("topic"))?;
        check_target(topic).map_err(RefusedRow::in_column("topic"))?;
        let body = rows.body.bytes(row).map_err(RefusedRow::in_column("body"))?;
        let body = body.ok_or_else(|| RefusedRow::null("body"))?;
        if body.len() > self.most_body_bytes {
            let most = self.most_body_bytes;
            let reason = format!("it has {} bytes; maxMessageSize is {most}", body.len());
            return Err(RefusedRow { column: "body", reason });
        }
        let (own, unique) = rows.properties(row).map_err(RefusedRow::in_column("properties"))?;
        let made = unique.is_none().then(|| self.keys.next(now_ms));
        let unique = unique.or_else(|| made.as_ref().map(MadeKey::as_str)).unwrap_or_default();
        let tags = text(rows.tags.as_ref(), row).map_err(RefusedRow::in_column("tags"))?;
        let keys = rows.keys(row).map_err(RefusedRow::in_column("keys"))?;
        let properties = encode(&keys, tags.filter(|tags| !tags.is_empty()), unique, &own)?;
        let number = |column: &Option<NumberColumn<'_, 4>>, name| {
            let found = column.as_ref().map_or(Ok(None), |column| column.get(row));
            found.map(|found| found.map(i32::from_ne_bytes)).map_err(RefusedRow::in_column(name))
        };
        let born = rows.born_timestamp.as_ref().map_or(Ok(None), |column| column.get(row));
        let born = born.map_err(RefusedRow::in_column("born_timestamp"))?;
        let message = NewMessage {
            topic,
            body,
            properties: &properties,
            unique_key: Some(unique),
            queue_id: number(&rows.queue_id, "queue_id")?,
            flag: number(&rows.flag, "flag")?.unwrap_or(0),
            born_timestamp_ms: born.map(|micros| i64::from_ne_bytes(micros).div_euclid(1000)),
            durable: false,
        };
        // Topic and body are checked; long properties and the queue id remain.
        let blame = if properties.len() > MAX_PROPERTIES_BYTES { "properties" } else { "queue_id" };
        block.push(&message).map_err(RefusedRow::in_column(blame))?;
        found.add(&message);
        Ok(())
    }
}

/// Encodes keys, tag and properties. An error names the column that is to blame.
fn encode(
    keys: &[&str],
    tags: Option<&str>,
    unique: &str,
    own: &[(&str, &str)],
) -> Result<Vec<u8>, RefusedRow> {
    let all = encode_properties(keys.iter().copied(), tags, Some(unique), own.iter().copied());
    all.map_err(|error| {
        let column = if encode_properties(keys.iter().copied(), None, None, []).is_err() {
            "keys"
        } else if encode_properties([], tags, None, []).is_err() {
            "tags"
        } else {
            "properties"
        };
        RefusedRow::in_column(column)(error)
    })
}

#[pymethods]
impl Stager {
    #[new]
    fn new(topic: Option<String>, most_body_bytes: usize, process: u32, salt: u32) -> Self {
        let keys = Arc::new(UniqueKeyGenerator::new(IpAddr::V4(Ipv4Addr::LOCALHOST), process, salt));
        Self { topic, most_body_bytes, keys }
    }

    /// Stages the rows from `start` as one block.
    ///
    /// Returns the block, the row after its last one, its number of messages, the largest queue id of each topic or
    /// -1, and the rows that cannot become messages: topic, column, number, first row and its reason.
    fn stage<'py>(
        &self,
        py: Python<'py>,
        columns: &Bound<'py, PyDict>,
        start: usize,
        end: usize,
    ) -> PyResult<StagedRows<'py>> {
        let given = ColumnBuffers::of(columns)?;
        let rows = given.rows();
        let (block, reached, found) = detached(py, || self.block(&rows, start, end))?;
        let BlockRows { messages, topics, refused } = found;
        let refused = refused.into_iter().map(|one| (one.topic, one.column, one.rows, one.first, one.reason));
        let topics = topics.into_iter().collect();
        Ok((PyBytes::new(py, &block), reached, messages, topics, refused.collect()))
    }
}

fn messages(block: &[u8]) -> Result<Vec<NewMessage<'_>>, StoreError> {
    staged_messages(block).ok_or_else(|| StoreError::InvalidMessage {
        reason: "a block of staged messages is damaged: its checksum or a length is wrong".to_owned(),
    })
}

/// Returns topic and unique key of each message of a staged block.
#[pyfunction]
pub(crate) fn staged_ids(block: &Bound<'_, PyBytes>) -> PyResult<Vec<(String, String)>> {
    let found = messages(block.as_bytes()).map_err(to_py)?;
    let id = |message: &NewMessage<'_>| {
        (message.topic.to_owned(), message.unique_key.unwrap_or_default().to_owned())
    };
    Ok(found.iter().map(id).collect())
}

/// Checks that staged messages of this topic can be appended.
#[pyfunction]
pub(crate) fn check_staged(target: &Bound<'_, NativeStore>, topic: &str) -> PyResult<()> {
    let shared = target.get().shared();
    let store = shared.store()?;
    detached(target.py(), || store.check_copies_to(topic))
}

/// Appends the messages of a staged block except the first `skip`. After an error in one message, none is appended.
#[pyfunction]
pub(crate) fn append_staged(
    target: &Bound<'_, NativeStore>,
    block: &Bound<'_, PyBytes>,
    skip: usize,
) -> PyResult<usize> {
    let (shared, host) = (target.get().shared(), target.get().host());
    let (store, bytes) = (shared.store()?, block.as_bytes());
    detached(target.py(), || {
        let found = messages(bytes)?;
        let wanted = found.get(skip..).unwrap_or_default();
        store.append_staged(wanted, host)?;
        Ok(wanted.len())
    })
}

/// Adds the classes and functions of parallel writers to the native module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Stager>()?;
    module.add_function(wrap_pyfunction!(staged_ids, module)?)?;
    module.add_function(wrap_pyfunction!(append_staged, module)?)?;
    module.add_function(wrap_pyfunction!(check_staged, module)?)?;
    Ok(())
}
