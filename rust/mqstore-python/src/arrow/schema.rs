//! The columns of a scan: names, types, order. `docs/arrow.md` has the same table.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit};
use mqstore::arrow::{entries_field, key_field};
use mqstore::error::StoreError;

/// A column, with the name of the `StoredMessage` attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    Topic,
    QueueId,
    QueueOffset,
    CommitLogOffset,
    Size,
    MessageId,
    UniqueId,
    Keys,
    Tags,
    Properties,
    Flag,
    SysFlag,
    BornTimestamp,
    BornHost,
    StoreTimestamp,
    StoreHost,
    ReconsumeTimes,
    PreparedTransactionOffset,
    BodyCrc,
    BodySize,
    Body,
}

/// All columns in order.
const COLUMNS: [(&str, Column); 21] = [
    ("topic", Column::Topic),
    ("queue_id", Column::QueueId),
    ("queue_offset", Column::QueueOffset),
    ("commit_log_offset", Column::CommitLogOffset),
    ("size", Column::Size),
    ("message_id", Column::MessageId),
    ("unique_id", Column::UniqueId),
    ("keys", Column::Keys),
    ("tags", Column::Tags),
    ("properties", Column::Properties),
    ("flag", Column::Flag),
    ("sys_flag", Column::SysFlag),
    ("born_timestamp", Column::BornTimestamp),
    ("born_host", Column::BornHost),
    ("store_timestamp", Column::StoreTimestamp),
    ("store_host", Column::StoreHost),
    ("reconsume_times", Column::ReconsumeTimes),
    ("prepared_transaction_offset", Column::PreparedTransactionOffset),
    ("body_crc", Column::BodyCrc),
    ("body_size", Column::BodySize),
    ("body", Column::Body),
];

/// Whether a scan has a column called `name`.
pub(crate) fn is_scan_column(name: &str) -> bool {
    COLUMNS.iter().any(|(known, _)| *known == name)
}

/// The form of the column `body`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyForm {
    /// Bytes.
    Binary,
    /// Text; a body that is not valid UTF-8 is null.
    Text,
    /// Text that is one JSON document; any other body is null.
    Json,
}

impl BodyForm {
    pub(crate) fn parse(text: &str) -> Result<Self, StoreError> {
        match text {
            "binary" => Ok(Self::Binary),
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(StoreError::InvalidOption {
                option: "body",
                reason: format!("{text:?} is not one of \"binary\", \"text\", \"json\""),
            }),
        }
    }
}

/// The columns that a scan builds.
pub(crate) struct Layout {
    pub(crate) columns: Vec<Column>,
    pub(crate) schema: SchemaRef,
    pub(crate) body: BodyForm,
    /// Maximum rows of a batch.
    pub(crate) batch_rows: usize,
}

impl Layout {
    /// Selects the columns called `names`, in this order; all columns for `None`.
    pub(crate) fn new(
        names: Option<&[String]>,
        body: BodyForm,
        batch_rows: usize,
    ) -> Result<Self, StoreError> {
        let refuse = |reason: String| StoreError::InvalidOption { option: "columns", reason };
        let mut columns: Vec<(&str, Column)> = Vec::new();
        match names {
            None => columns.extend(COLUMNS),
            Some(names) => {
                for name in names {
                    let known = COLUMNS.iter().find(|(known, _)| known == name);
                    let known = known.ok_or_else(|| {
                        let all: Vec<_> = COLUMNS.iter().map(|(name, _)| *name).collect();
                        refuse(format!("there is no column {name:?}; there are {}", all.join(", ")))
                    })?;
                    if columns.contains(known) {
                        return Err(refuse(format!("{name:?} is named twice")));
                    }
                    columns.push(*known);
                }
            }
        }
        let fields: Fields =
            columns.iter().map(|(name, column)| Field::new(*name, data_type(*column, body), true)).collect();
        let schema = Arc::new(Schema::new(fields));
        let columns = columns.into_iter().map(|(_, column)| column).collect();
        Ok(Self { columns, schema, body, batch_rows })
    }

    pub(crate) fn has(&self, column: Column) -> bool {
        self.columns.contains(&column)
    }
}

fn data_type(column: Column, body: BodyForm) -> DataType {
    match column {
        Column::QueueId
        | Column::Size
        | Column::Flag
        | Column::SysFlag
        | Column::ReconsumeTimes
        | Column::BodyCrc
        | Column::BodySize => DataType::Int32,
        Column::QueueOffset | Column::CommitLogOffset | Column::PreparedTransactionOffset => DataType::Int64,
        Column::BornTimestamp | Column::StoreTimestamp => {
            DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
        }
        Column::Keys => DataType::List(key_field()),
        Column::Properties => DataType::Map(entries_field(), false),
        Column::Body if body == BodyForm::Binary => DataType::Binary,
        Column::Topic
        | Column::MessageId
        | Column::UniqueId
        | Column::Tags
        | Column::BornHost
        | Column::StoreHost
        | Column::Body => DataType::Utf8,
    }
}
