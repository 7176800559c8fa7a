//! Converts rows to Arrow columns, in a scan's workers and without the interpreter.
//!
//! Only the requested columns are built. Without `body` no body is copied, and a compressed one is unpacked only for
//! `body` and `body_size`.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, Int32Array, Int64Array, RecordBatch, RecordBatchOptions, TimestampMicrosecondArray,
};
use arrow_buffer::{NullBufferBuilder, ScalarBuffer};
use arrow_schema::ArrowError;
use mqstore::format::{Host, push_offset_message_id};
use mqstore::read::{ScanRow, ScanSink};
use serde::de::IgnoredAny;

use crate::arrow::schema::{BodyForm, Column, Layout};
use mqstore::arrow::{BufferPool, BytesColumn, KeyListColumn, MapColumn, PropertyColumns, taken};

/// Bytes of the records and unpacked bodies of a batch, unless one message is larger.
const BATCH_BYTES: usize = 32 << 20;

/// A column whose values are not properties.
enum ColumnBuilder {
    Int32(Column, Vec<i32>),
    Int64(Column, Vec<i64>),
    Time(Column, Vec<i64>, NullBufferBuilder),
    Topic(BytesColumn),
    MessageId(BytesColumn),
    Host(Column, BytesColumn, Option<Host>, Vec<u8>),
    BodySize(Vec<i32>, NullBufferBuilder),
    Body(BytesColumn),
}

impl ColumnBuilder {
    fn new(column: Column, pool: &Arc<BufferPool>) -> Option<Self> {
        Some(match column {
            Column::Topic => Self::Topic(BytesColumn::default()),
            Column::MessageId => Self::MessageId(BytesColumn::default()),
            Column::BornHost | Column::StoreHost => {
                Self::Host(column, BytesColumn::default(), None, Vec::new())
            }
            Column::QueueOffset | Column::CommitLogOffset | Column::PreparedTransactionOffset => {
                Self::Int64(column, Vec::new())
            }
            Column::BornTimestamp | Column::StoreTimestamp => {
                Self::Time(column, Vec::new(), NullBufferBuilder::new(0))
            }
            Column::BodySize => Self::BodySize(Vec::new(), NullBufferBuilder::new(0)),
            Column::Body => Self::Body(BytesColumn::pooled(pool)),
            Column::QueueId
            | Column::Size
            | Column::Flag
            | Column::SysFlag
            | Column::ReconsumeTimes
            | Column::BodyCrc => Self::Int32(column, Vec::new()),
            Column::UniqueId | Column::Keys | Column::Tags | Column::Properties => return None,
        })
    }

    #[inline]
    fn push(&mut self, row: &ScanRow<'_>, form: BodyForm) {
        let record = row.record;
        match self {
            Self::Int32(column, values) => values.push(match column {
                Column::QueueId => record.queue_id,
                Column::Size => record.size as i32,
                Column::Flag => record.flag,
                Column::SysFlag => record.sys_flag.0,
                Column::ReconsumeTimes => record.reconsume_times,
                _ => record.body_crc.cast_signed(),
            }),
            Self::Int64(column, values) => values.push(match column {
                Column::QueueOffset => row.queue_offset,
                Column::CommitLogOffset => row.offset as i64,
                _ => record.prepared_transaction_offset,
            }),
            Self::Time(column, values, nulls) => {
                let born = *column == Column::BornTimestamp;
                let time = if born { record.born_timestamp } else { record.store_timestamp };
                let micros = time.checked_mul(1000);
                values.push(micros.unwrap_or(0));
                nulls.append(micros.is_some());
            }
            Self::Topic(values) => values.push(record.topic.as_bytes()),
            Self::MessageId(values) => {
                push_offset_message_id(&record.store_host, record.physical_offset, values.values());
                values.end();
            }
            Self::Host(column, values, last, text) => {
                let host = if *column == Column::BornHost { record.born_host } else { record.store_host };
                if *last != Some(host) {
                    (*last, *text) = (Some(host), host.to_string().into_bytes());
                }
                values.push(text);
            }
            Self::BodySize(values, nulls) => {
                let size = row.body().map(<[u8]>::len);
                // Invariant: no body unpacks to 2 GiB.
                values.push(size.unwrap_or(0) as i32);
                nulls.append(size.is_some());
            }
            Self::Body(values) => values.push_option(row.body().filter(|body| fits(body, form))),
        }
    }

    fn finish(&mut self, form: BodyForm) -> Result<ArrayRef, ArrowError> {
        Ok(match self {
            Self::Int32(_, values) => Arc::new(Int32Array::new(ScalarBuffer::from(taken(values)), None)),
            Self::BodySize(values, nulls) => {
                Arc::new(Int32Array::try_new(ScalarBuffer::from(taken(values)), nulls.finish())?)
            }
            Self::Int64(_, values) => Arc::new(Int64Array::new(ScalarBuffer::from(taken(values)), None)),
            Self::Time(_, values, nulls) => {
                let times = ScalarBuffer::from(taken(values));
                Arc::new(TimestampMicrosecondArray::try_new(times, nulls.finish())?.with_timezone("UTC"))
            }
            Self::Topic(values) | Self::MessageId(values) | Self::Host(_, values, ..) => {
                Arc::new(values.text()?)
            }
            Self::Body(values) if form == BodyForm::Binary => Arc::new(values.binary()?),
            Self::Body(values) => Arc::new(values.text()?),
        })
    }
}

/// Returns whether a body is valid in this form.
fn fits(body: &[u8], form: BodyForm) -> bool {
    match form {
        BodyForm::Binary => true,
        BodyForm::Text => std::str::from_utf8(body).is_ok(),
        BodyForm::Json => {
            serde_json::from_slice::<IgnoredAny>(body).is_ok() && std::str::from_utf8(body).is_ok()
        }
    }
}

/// The columns that one worker builds.
pub(crate) struct BatchBuilder {
    layout: Arc<Layout>,
    growing: Vec<ColumnBuilder>,
    properties: PropertyColumns,
    unpacks: bool,
    rows: usize,
    bytes: usize,
}

impl BatchBuilder {
    /// Creates a builder that keeps bodies in memory of `pool`.
    pub(crate) fn new(layout: Arc<Layout>, pool: &Arc<BufferPool>) -> Self {
        let properties = PropertyColumns {
            unique_id: layout.has(Column::UniqueId).then(BytesColumn::default),
            tags: layout.has(Column::Tags).then(BytesColumn::default),
            keys: layout.has(Column::Keys).then(KeyListColumn::default),
            map: layout.has(Column::Properties).then(MapColumn::default),
        };
        let growing = layout.columns.iter().filter_map(|column| ColumnBuilder::new(*column, pool)).collect();
        let unpacks = layout.has(Column::Body);
        Self { layout, growing, properties, unpacks, rows: 0, bytes: 0 }
    }

    /// Returns the bytes that a row adds to a batch.
    #[inline]
    fn bytes_of(&self, row: &ScanRow<'_>) -> usize {
        let unpacked = if self.unpacks && row.record.sys_flag.compressed() {
            row.body().map_or(0, <[u8]>::len)
        } else {
            0
        };
        row.record.size as usize + unpacked
    }

    fn finish(&mut self, rows: usize) -> Result<RecordBatch, ArrowError> {
        let Self { layout, growing, properties, .. } = self;
        let mut others = growing.iter_mut();
        let absent = || ArrowError::SchemaError("a column is missing".to_owned());
        let mut arrays: Vec<ArrayRef> = Vec::with_capacity(layout.columns.len());
        for column in &layout.columns {
            arrays.push(match column {
                Column::UniqueId => Arc::new(properties.unique_id.as_mut().ok_or_else(absent)?.text()?),
                Column::Tags => Arc::new(properties.tags.as_mut().ok_or_else(absent)?.text()?),
                Column::Keys => properties.keys.as_mut().ok_or_else(absent)?.finish()?,
                Column::Properties => properties.map.as_mut().ok_or_else(absent)?.finish()?,
                _ => others.next().ok_or_else(absent)?.finish(layout.body)?,
            });
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(Arc::clone(&layout.schema), arrays, &options)
    }
}

impl ScanSink for BatchBuilder {
    type Batch = Result<RecordBatch, ArrowError>;

    #[inline]
    fn has_room(&self, row: &ScanRow<'_>) -> bool {
        self.rows == 0
            || (self.rows < self.layout.batch_rows && self.bytes + self.bytes_of(row) <= BATCH_BYTES)
    }

    #[inline]
    fn add(&mut self, row: &ScanRow<'_>) {
        self.rows += 1;
        self.bytes += self.bytes_of(row);
        if !self.properties.is_empty() {
            self.properties.push(row.record.properties);
        }
        for column in &mut self.growing {
            column.push(row, self.layout.body);
        }
    }

    fn take(&mut self) -> Option<(Self::Batch, u64)> {
        let (rows, bytes) = (std::mem::take(&mut self.rows), std::mem::take(&mut self.bytes));
        (rows > 0).then(|| (self.finish(rows), bytes as u64))
    }
}
