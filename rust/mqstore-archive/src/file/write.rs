//! Writes a file: order, encodings, sizes of row groups and pages.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BinaryArray, Int64Array, RecordBatch};
use arrow_schema::SchemaRef;
use arrow_select::interleave::interleave_record_batch;
use parquet::arrow::ArrowSchemaConverter;
use parquet::arrow::arrow_writer::{ArrowRowGroupWriterFactory, compute_leaves};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::metadata::{KeyValue, SortingColumn};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::ColumnPath;

use super::FileError;
use super::checksums::PageChecksums;
use super::schema::{KEYS, KEYS_PATH, UNIQUE_ID, UNIQUE_ID_PATH, others, schema};

/// Bytes of the records of a row group.
const GROUP_BYTES: u64 = 32 << 20;

/// The sizes of the parts of a file.
#[derive(Clone, Copy, Debug)]
pub struct FileSizes {
    /// Rows of a row group. A read of one message fetches all short columns of its row group, which are neighbours, and
    /// one page of each long column.
    pub group_rows: usize,
    /// Bytes of a page. A page of bodies has two fifths more, so that they compress well.
    pub page_bytes: usize,
    /// A page ends at a multiple of so many rows, or of fewer if the records are large.
    pub page_step_rows: usize,
    /// Compression level of zstd.
    pub level: i32,
}

/// Bytes of the columns of a row in addition to those of its record.
const ROW_BYTES: u64 = 160;

const FALSE_POSITIVES: f64 = 0.01;

/// Names of the texts in a footer begin so.
pub(super) const FACT_PREFIX: &str = "mqstore.archive.";

const DICTIONARY: [&str; 10] = [
    "topic",
    "queue_id",
    "tags",
    "flag",
    "sys_flag",
    "reconsume_times",
    "prepared_transaction_offset",
    "born_host",
    "store_host",
    "magic",
];
const DELTA: [&str; 5] = ["queue_offset", "commit_log_offset", "size", "store_timestamp", "born_timestamp"];

/// A text for the footer: its name, without the begin that all have, and the text.
pub type FileFact = (String, String);

fn path_of(parts: &[&str]) -> ColumnPath {
    ColumnPath::new(parts.iter().map(|part| (*part).to_owned()).collect())
}

fn properties(level: i32) -> Result<WriterPropertiesBuilder, FileError> {
    let level = ZstdLevel::try_new(level)?;
    Ok(WriterProperties::builder()
        .set_compression(Compression::ZSTD(level))
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::None))
}

/// Writes records of one topic. Returns the bytes of the file.
///
/// # Parameters
/// - `batches`: records with the columns of [`schema`] first.
/// - `order`: the batch and the row in it of each row of the file.
/// - `record_bytes`: sum of the lengths of these records.
///
/// # Errors
/// The columns cannot be encoded, which is a bug.
pub fn write_rows(
    batches: &[RecordBatch],
    order: &[(usize, usize)],
    record_bytes: u64,
    sizes: FileSizes,
    facts: &[FileFact],
) -> Result<Vec<u8>, FileError> {
    let count = order.len().max(1);
    let row_bytes = (record_bytes / count as u64 + ROW_BYTES).max(1);
    let step = (GROUP_BYTES / row_bytes).clamp(1, sizes.group_rows.max(1) as u64) as usize;
    let batch_rows =
        (sizes.page_bytes as u64 / row_bytes).clamp(1, sizes.page_step_rows.max(1) as u64) as usize;
    let wanted: Vec<usize> = (0..schema().fields().len()).collect();
    let batches: Vec<RecordBatch> = batches
        .iter()
        .map(|batch| batch.project(&wanted))
        .collect::<Result<_, _>>()
        .map_err(FileError::damaged)?;
    let mut made = properties(sizes.level)?
        .set_data_page_size_limit(sizes.page_bytes)
        .set_write_batch_size(batch_rows)
        .set_sorting_columns(Some(vec![sorted_by(1), sorted_by(2)]));
    made = made.set_column_data_page_size_limit(path_of(&["body"]), sizes.page_bytes * 7 / 5);
    for name in DICTIONARY {
        made = made.set_column_dictionary_enabled(path_of(&[name]), true);
    }
    for name in DELTA {
        made = made.set_column_encoding(path_of(&[name]), Encoding::DELTA_BINARY_PACKED);
    }
    let paths = DICTIONARY.iter().chain(&DELTA).map(|name| path_of(&[name]));
    for path in paths.chain([path_of(&UNIQUE_ID_PATH), path_of(&KEYS_PATH)]) {
        made = made.set_column_statistics_enabled(path, EnabledStatistics::Page);
    }
    for (path, values) in values_to_find(&batches) {
        // As many as a row group has, if the values are spread evenly.
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        let distinct = (step.min(count) as u64 * values).div_ceil(rows.max(1) as u64);
        if values > 0 {
            made = made
                .set_column_bloom_filter_enabled(path.clone(), true)
                .set_column_bloom_filter_fpp(path.clone(), FALSE_POSITIVES)
                .set_column_bloom_filter_max_ndv(path, distinct.max(1));
        }
    }
    let sources: Vec<&RecordBatch> = batches.iter().collect();
    let groups =
        order.chunks(step).map(|rows| interleave_record_batch(&sources, rows).map_err(FileError::damaged));
    encoded(&schema(), made.build(), facts, groups)
}

fn sorted_by(column: i32) -> SortingColumn {
    SortingColumn { column_idx: column, descending: false, nulls_first: false }
}

/// Returns the columns with Bloom filters, and the number of their values.
fn values_to_find(batches: &[RecordBatch]) -> [(ColumnPath, u64); 2] {
    let (mut ids, mut keys) = (0, 0);
    for batch in batches {
        ids += batch.columns().get(UNIQUE_ID).map_or(0, |ids| (ids.len() - ids.null_count()) as u64);
        let lists = batch.columns().get(KEYS).and_then(|lists| lists.as_list_opt::<i32>());
        keys += lists.map_or(0, |lists| lists.values().len() as u64);
    }
    [(path_of(&UNIQUE_ID_PATH), ids), (path_of(&KEYS_PATH), keys)]
}

/// Writes bytes of the log that are no records of a topic: log offset, length, and the bytes without final zeros.
///
/// # Errors
/// The columns cannot be encoded, which is a bug.
pub fn write_bytes(
    pieces: &[(u64, u64, Vec<u8>)],
    level: i32,
    facts: &[FileFact],
) -> Result<Vec<u8>, FileError> {
    let groups = pieces.iter().map(|(offset, length, bytes)| {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from(vec![offset.cast_signed()])),
            Arc::new(Int64Array::from(vec![length.cast_signed()])),
            Arc::new(BinaryArray::from_vec(vec![bytes])),
        ];
        RecordBatch::try_new(others(), columns).map_err(FileError::damaged)
    });
    encoded(&others(), properties(level)?.build(), facts, groups)
}

/// Encodes row groups.
fn encoded(
    columns: &SchemaRef,
    properties: WriterProperties,
    facts: &[FileFact],
    groups: impl Iterator<Item = Result<RecordBatch, FileError>>,
) -> Result<Vec<u8>, FileError> {
    let parquet = ArrowSchemaConverter::new().convert(columns)?;
    let mut out = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut out, parquet.root_schema_ptr(), Arc::new(properties))?;
    let checksums = Arc::new(PageChecksums::default());
    let factory = ArrowRowGroupWriterFactory::new(&writer, Arc::clone(columns))
        .with_page_store_factory(Arc::clone(&checksums) as _);
    for (number, rows) in groups.enumerate() {
        let rows = rows?;
        let mut leaves = Vec::new();
        for (field, array) in columns.fields().iter().zip(rows.columns()) {
            leaves.extend(compute_leaves(field, array)?);
        }
        let mut chunks = Vec::new();
        for (mut column, leaf) in factory.create_column_writers(number)?.into_iter().zip(&leaves) {
            column.write(leaf)?;
            chunks.push(column.close()?);
        }
        let mut group = writer.next_row_group()?;
        for (column, mut chunk) in chunks.into_iter().enumerate() {
            checksums.apply(column, chunk.close_mut())?;
            chunk.append_to_row_group(&mut group)?;
        }
        group.close()?;
    }
    for (name, text) in facts {
        writer.append_key_value_metadata(KeyValue::new(format!("{FACT_PREFIX}{name}"), Some(text.clone())));
    }
    writer.close()?;
    Ok(out)
}
