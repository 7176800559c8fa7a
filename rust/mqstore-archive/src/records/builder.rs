//! Builds the columns of an archive, in a scan's workers and without the interpreter.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, Int32Array, Int64Array, ListArray, RecordBatch, TimestampMicrosecondArray};
use arrow_buffer::{NullBufferBuilder, ScalarBuffer};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use mqstore_arrow::{BufferPool, BytesColumn, KeyListColumn, PropertyColumns, taken};
use mqstore_engine::{ScanRow, ScanSink};
use mqstore_format::{Host, RecordSpec, RecordView, crc32, patch_body_crc, validate_stored_topic};

use crate::file::schema;

/// Bytes of the records of a batch, unless one record is larger.
const BATCH_BYTES: usize = 32 << 20;

/// A column of times in microseconds. A time that does not fit is null.
struct TimeColumn {
    values: Vec<i64>,
    nulls: NullBufferBuilder,
}

impl TimeColumn {
    fn new() -> Self {
        Self { values: Vec::new(), nulls: NullBufferBuilder::new(0) }
    }

    /// Adds a time. Returns whether it fits.
    fn push(&mut self, time_ms: i64) -> bool {
        let micros = time_ms.checked_mul(1000);
        self.values.push(micros.unwrap_or(0));
        self.nulls.append(micros.is_some());
        micros.is_some()
    }

    fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        let times = ScalarBuffer::from(taken(&mut self.values));
        Ok(Arc::new(TimestampMicrosecondArray::try_new(times, self.nulls.finish())?.with_timezone("UTC")))
    }
}

/// A column of hosts as text. Neighbours are often equal.
#[derive(Default)]
struct HostColumn {
    values: BytesColumn,
    last: Option<Host>,
    text: Vec<u8>,
}

impl HostColumn {
    fn push(&mut self, host: Host) {
        if self.last != Some(host) {
            (self.last, self.text) = (Some(host), host.to_string().into_bytes());
        }
        self.values.push(&self.text);
    }
}

/// Adds the columns of numbers in the order of their types.
#[derive(Default)]
struct Numbers {
    queue_id: Vec<i32>,
    size: Vec<i32>,
    flag: Vec<i32>,
    sys_flag: Vec<i32>,
    reconsume_times: Vec<i32>,
    body_crc: Vec<i32>,
    magic: Vec<i32>,
    queue_offset: Vec<i64>,
    commit_log_offset: Vec<i64>,
    prepared_transaction_offset: Vec<i64>,
    crc: Vec<i64>,
}

/// The columns that one worker builds.
pub struct ArchiveBuilder {
    topic: BytesColumn,
    last_topic: (String, bool),
    numbers: Numbers,
    store_timestamp: TimeColumn,
    born_timestamp: TimeColumn,
    properties: PropertyColumns,
    born_host: HostColumn,
    store_host: HostColumn,
    properties_raw: BytesColumn,
    body: BytesColumn,
    raw: BytesColumn,
    rows: usize,
    bytes: usize,
    scratch: Vec<u8>,
}

impl ArchiveBuilder {
    /// Creates a builder that keeps bodies in memory of `pool`.
    pub fn new(pool: &Arc<BufferPool>) -> Self {
        Self {
            topic: BytesColumn::default(),
            last_topic: (String::new(), false),
            numbers: Numbers::default(),
            store_timestamp: TimeColumn::new(),
            born_timestamp: TimeColumn::new(),
            properties: PropertyColumns {
                unique_id: Some(BytesColumn::default()),
                tags: Some(BytesColumn::default()),
                keys: Some(KeyListColumn::default()),
                map: None,
            },
            born_host: HostColumn::default(),
            store_host: HostColumn::default(),
            properties_raw: BytesColumn::default(),
            body: BytesColumn::pooled(pool),
            raw: BytesColumn::default(),
            rows: 0,
            bytes: 0,
            scratch: Vec::new(),
        }
    }

    /// Whether the topic of a record can name a folder of an archive.
    fn has_topic(&mut self, topic: &str) -> bool {
        if self.last_topic.0 != topic {
            self.last_topic = (topic.to_owned(), !topic.is_empty() && validate_stored_topic(topic).is_ok());
        }
        self.last_topic.1
    }

    /// Whether the row makes the same bytes again: the head and the tail of the record follow from its fields.
    fn is_exact(&mut self, row: &ScanRow<'_>) -> bool {
        let record = row.record;
        if record.queue_offset != row.queue_offset || i64::try_from(row.offset) != Ok(record.physical_offset)
        {
            return false;
        }
        self.scratch.clear();
        // The body has a column of its own. Without it, the lengths and the rest of the record are compared.
        let bare = RecordSpec { body: &[], ..RecordSpec::from(record) };
        let is_encoded = bare.encode_into(&mut self.scratch).is_ok();
        patch_body_crc(&mut self.scratch, record.body_crc);
        is_encoded && is_frame_of(&self.scratch, record)
    }

    fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        let n = &mut self.numbers;
        let int = |values: &mut Vec<i32>| -> ArrayRef {
            Arc::new(Int32Array::new(ScalarBuffer::from(taken(values)), None))
        };
        let long = |values: &mut Vec<i64>| -> ArrayRef {
            Arc::new(Int64Array::new(ScalarBuffer::from(taken(values)), None))
        };
        let absent = || ArrowError::SchemaError("a column is missing".to_owned());
        let keys = self.properties.keys.as_mut().ok_or_else(absent)?.finish()?;
        let arrays: Vec<ArrayRef> = vec![
            Arc::new(self.topic.text()?),
            int(&mut n.queue_id),
            long(&mut n.queue_offset),
            long(&mut n.commit_log_offset),
            int(&mut n.size),
            self.store_timestamp.finish()?,
            self.born_timestamp.finish()?,
            int(&mut n.flag),
            int(&mut n.sys_flag),
            int(&mut n.reconsume_times),
            long(&mut n.prepared_transaction_offset),
            Arc::new(self.born_host.values.text()?),
            Arc::new(self.store_host.values.text()?),
            int(&mut n.body_crc),
            int(&mut n.magic),
            Arc::new(self.raw.binary()?),
            Arc::new(self.properties_raw.binary()?),
            Arc::new(self.body.binary()?),
            Arc::new(self.properties.unique_id.as_mut().ok_or_else(absent)?.text()?),
            keys_of_file(&keys)?,
            Arc::new(self.properties.tags.as_mut().ok_or_else(absent)?.text()?),
            long(&mut n.crc),
        ];
        RecordBatch::try_new(columns_of_log(), arrays)
    }
}

/// The columns of a file, and `crc`, the CRC-32 of the whole record, which is not part of an archive.
fn columns_of_log() -> SchemaRef {
    let known = schema();
    let crc = Arc::new(Field::new("crc", DataType::Int64, true));
    Arc::new(Schema::new(known.fields().iter().cloned().chain([crc]).collect::<Vec<_>>()))
}

/// Returns lists of keys as a file names their items.
fn keys_of_file(keys: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let known = schema();
    let (DataType::List(item), Some(lists)) =
        (known.field_with_name("keys")?.data_type(), keys.as_list_opt::<i32>())
    else {
        return Err(ArrowError::SchemaError("keys are no lists".to_owned()));
    };
    let (_, offsets, values, nulls) = lists.clone().into_parts();
    Ok(Arc::new(ListArray::try_new(Arc::clone(item), offsets, values, nulls)?))
}

/// Whether `frame`, a record without its body, has the bytes before and after the body of `record`.
fn is_frame_of(frame: &[u8], record: &RecordView<'_>) -> bool {
    let tail = record.version.topic_length_bytes() + record.topic.len() + 2 + record.properties.raw().len();
    let split = |bytes: &[u8]| bytes.len().checked_sub(tail);
    let (Some(head), Some(end)) = (split(frame), split(record.bytes)) else { return false };
    let (Some(ours), Some(theirs)) = (frame.get(4..head), record.bytes.get(4..)) else { return false };
    // The length of the body is the last field before it.
    let Some((ours, _)) = ours.split_last_chunk::<4>() else { return false };
    theirs.starts_with(ours) && frame.get(head..) == record.bytes.get(end..)
}

impl ScanSink for ArchiveBuilder {
    type Batch = Result<RecordBatch, ArrowError>;

    #[inline]
    fn has_room(&self, row: &ScanRow<'_>) -> bool {
        self.rows == 0 || self.bytes + row.record.size as usize <= BATCH_BYTES
    }

    #[inline]
    fn add(&mut self, row: &ScanRow<'_>) {
        let record = row.record;
        if !self.has_topic(record.topic) {
            return;
        }
        self.rows += 1;
        self.bytes += record.size as usize;
        let is_exact = self.is_exact(row);
        self.topic.push(record.topic.as_bytes());
        let n = &mut self.numbers;
        n.queue_id.push(record.queue_id);
        n.queue_offset.push(row.queue_offset);
        n.commit_log_offset.push(row.offset.cast_signed());
        n.size.push(record.size.cast_signed());
        n.flag.push(record.flag);
        n.sys_flag.push(record.sys_flag.0);
        n.reconsume_times.push(record.reconsume_times);
        n.prepared_transaction_offset.push(record.prepared_transaction_offset);
        n.body_crc.push(record.body_crc.cast_signed());
        n.magic.push(record.version.magic().cast_signed());
        n.crc.push(i64::from(crc32(record.bytes)));
        let fits_store = self.store_timestamp.push(record.store_timestamp);
        let fits_born = self.born_timestamp.push(record.born_timestamp);
        self.properties.push(record.properties);
        self.born_host.push(record.born_host);
        self.store_host.push(record.store_host);
        self.properties_raw.push(record.properties.raw());
        self.body.push(record.body);
        self.raw.push_option(Some(record.bytes).filter(|_| !(is_exact && fits_store && fits_born)));
    }

    fn take(&mut self) -> Option<(Self::Batch, u64)> {
        let (rows, bytes) = (std::mem::take(&mut self.rows), std::mem::take(&mut self.bytes));
        (rows > 0).then(|| (self.finish(), bytes as u64))
    }
}
