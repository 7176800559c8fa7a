//! The columns of the files, in the order of their places in a row group: all short columns, which a read of one
//! message fetches together, then the two long ones, then those for queries, without which a record is encoded.
//!
//! The columns have the names and types of a scan where both have the same values. Names, types and field ids never
//! change, so that tables of Iceberg and Delta can use the files.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef, TimeUnit};

/// The columns that a read fetches as a whole.
pub const SHORT: Range<usize> = 0..16;
/// The columns that a read fetches page by page.
pub const LONG: Range<usize> = 16..18;
/// The columns from which a record is encoded.
pub const NEEDED: Range<usize> = 0..18;
/// The column `unique_id`.
pub const UNIQUE_ID: usize = 18;
/// The column `keys`.
pub const KEYS: usize = 19;
/// Paths of the columns that have Bloom filters.
pub(super) const UNIQUE_ID_PATH: [&str; 1] = ["unique_id"];
/// See [`UNIQUE_ID_PATH`].
pub(super) const KEYS_PATH: [&str; 3] = ["keys", "list", "element"];

/// Paths of the columns of a file of records, in their order.
pub(super) const COLUMN_PATHS: [&[&str]; 21] = [
    &["topic"],
    &["queue_id"],
    &["queue_offset"],
    &["commit_log_offset"],
    &["size"],
    &["store_timestamp"],
    &["born_timestamp"],
    &["flag"],
    &["sys_flag"],
    &["reconsume_times"],
    &["prepared_transaction_offset"],
    &["born_host"],
    &["store_host"],
    &["body_crc"],
    &["magic"],
    &["raw"],
    &["properties_raw"],
    &["body"],
    &UNIQUE_ID_PATH,
    &KEYS_PATH,
    &["tags"],
];

/// Paths of the columns of a file of other bytes.
pub(super) const OTHER_PATHS: [&[&str]; 3] = [&["commit_log_offset"], &["size"], &["raw"]];

const FIELD_ID: &str = "PARQUET:field_id";

fn field(number: u32, name: &str, kind: DataType) -> Field {
    let id = HashMap::from([(FIELD_ID.to_owned(), number.to_string())]);
    Field::new(name, kind, true).with_metadata(id)
}

static RECORDS: LazyLock<SchemaRef> = LazyLock::new(|| {
    let time = || DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    let key: FieldRef = Arc::new(field(100, "element", DataType::Utf8));
    Arc::new(Schema::new(vec![
        field(1, "topic", DataType::Utf8),
        field(2, "queue_id", DataType::Int32),
        field(3, "queue_offset", DataType::Int64),
        field(4, "commit_log_offset", DataType::Int64),
        field(5, "size", DataType::Int32),
        field(6, "store_timestamp", time()),
        field(7, "born_timestamp", time()),
        field(11, "flag", DataType::Int32),
        field(12, "sys_flag", DataType::Int32),
        field(13, "reconsume_times", DataType::Int32),
        field(14, "prepared_transaction_offset", DataType::Int64),
        field(15, "born_host", DataType::Utf8),
        field(16, "store_host", DataType::Utf8),
        field(17, "body_crc", DataType::Int32),
        field(18, "magic", DataType::Int32),
        field(21, "raw", DataType::Binary),
        field(19, "properties_raw", DataType::Binary),
        field(20, "body", DataType::Binary),
        field(8, "unique_id", DataType::Utf8),
        field(9, "keys", DataType::List(key)),
        field(10, "tags", DataType::Utf8),
    ]))
});

static OTHERS: LazyLock<SchemaRef> = LazyLock::new(|| {
    Arc::new(Schema::new(vec![
        Field::new("commit_log_offset", DataType::Int64, true),
        Field::new("size", DataType::Int64, true),
        Field::new("raw", DataType::Binary, true),
    ]))
});

/// Returns the columns of a file of records.
pub fn schema() -> SchemaRef {
    Arc::clone(&RECORDS)
}

/// Returns the columns of a file of other bytes of the log: log offset, length, and the bytes without final zeros.
pub(super) fn others() -> SchemaRef {
    Arc::clone(&OTHERS)
}

/// Whether a file with these columns is one with the columns `wanted`.
pub(super) fn has_columns(found: &Schema, wanted: &Schema) -> bool {
    found.fields().len() == wanted.fields().len()
        && found.fields().iter().zip(wanted.fields()).all(|(one, other)| is_same(one, other))
}

/// Whether two columns have the same name and type; their field ids can differ.
fn is_same(one: &Field, other: &Field) -> bool {
    one.name() == other.name()
        && one.is_nullable() == other.is_nullable()
        && match (one.data_type(), other.data_type()) {
            (DataType::List(one), DataType::List(other)) => is_same(one, other),
            (one, other) => one == other,
        }
}
