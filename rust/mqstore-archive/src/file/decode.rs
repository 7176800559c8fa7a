//! Reads columns of a row group, or the pages of some of its rows.

use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, RecordBatch};
use bytes::Bytes;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, RowGroups};
use parquet::arrow::{ProjectionMask, parquet_to_arrow_field_levels};
use parquet::column::page::{PageIterator, PageReader};
use parquet::errors::Result as ParquetResult;
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};

use super::footer::{Footer, may_contain};
use super::pages::Pages;
use super::schema::{LONG, NEEDED, SHORT, others, schema};
use super::{ByteSource, FileError, fenced};

/// Ranges with less than this between them are one request.
const GAP_BYTES: u64 = 16 << 10;

/// Returns the bytes of ranges; neighbours are one request.
pub(super) fn coalesced(source: &dyn ByteSource, ranges: &[Range<u64>]) -> Result<Vec<Bytes>, FileError> {
    let mut sorted = ranges.to_vec();
    sorted.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in sorted {
        match joined.last_mut() {
            Some(last) if range.start <= last.end.saturating_add(GAP_BYTES) => {
                last.end = last.end.max(range.end);
            }
            _ => joined.push(range),
        }
    }
    if joined.last().is_some_and(|last| last.end > source.length()) {
        return Err(FileError::damaged("its footer points outside the file"));
    }
    let parts = source.read(&joined)?;
    let part_of = |range: &Range<u64>| {
        let number = joined.partition_point(|one| one.start <= range.start).checked_sub(1)?;
        let (place, part) = (joined.get(number)?, parts.get(number)?);
        let start = usize::try_from(range.start - place.start).ok()?;
        let end = usize::try_from(range.end - place.start).ok()?;
        (end <= part.len()).then(|| part.slice(start..end))
    };
    let found = ranges
        .iter()
        .map(|range| part_of(range).ok_or_else(|| FileError::damaged("it is shorter than before")));
    found.collect()
}

/// Columns of one row group whose bytes are known.
struct Columns<'a> {
    footer: &'a Footer,
    group: usize,
    rows: usize,
    parts: Vec<(usize, Bytes)>,
}

impl RowGroups for Columns<'_> {
    fn num_rows(&self) -> usize {
        self.rows
    }

    fn column_chunks(&self, column: usize) -> ParquetResult<Box<dyn PageIterator>> {
        let part = self.parts.iter().find(|(number, _)| *number == column).map(|(_, part)| part.clone());
        let pages = part.zip(self.footer.chunk(self.group, column)).map(|(part, chunk)| {
            Pages::new(part, chunk.compression(), self.footer.limits(self.group, column))
        });
        let pages =
            pages.transpose().map_err(|error| parquet::errors::ParquetError::External(Box::new(error)))?;
        Ok(Box::new(OneChunk(pages)))
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        Box::new(self.footer.metadata.row_groups().get(self.group).into_iter())
    }

    fn metadata(&self) -> &ParquetMetaData {
        &self.footer.metadata
    }
}

/// The pages of the only row group.
struct OneChunk(Option<Pages>);

impl Iterator for OneChunk {
    type Item = ParquetResult<Box<dyn PageReader>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.take().map(|pages| Ok(Box::new(pages) as Box<dyn PageReader>))
    }
}

impl PageIterator for OneChunk {}

impl Columns<'_> {
    /// Starts to decode the columns, `batch` rows at once.
    fn reader(&self, batch: usize) -> Result<ParquetRecordBatchReader, FileError> {
        let descr = self.footer.metadata.file_metadata().schema_descr();
        let mask = ProjectionMask::leaves(descr, self.parts.iter().map(|(column, _)| *column));
        let wanted = if self.footer.has_records() { schema() } else { others() };
        let levels = parquet_to_arrow_field_levels(descr, mask, Some(wanted.fields()))?;
        Ok(ParquetRecordBatchReader::try_new_with_row_groups(&levels, self, batch.max(1), None)?)
    }

    /// Decodes all rows.
    fn decoded(&self) -> Result<RecordBatch, FileError> {
        let found = fenced(|| {
            let next = self.reader(self.rows)?.next();
            next.transpose().map_err(FileError::damaged)
        })?;
        found
            .filter(|batch| batch.num_rows() == self.rows)
            .ok_or_else(|| FileError::damaged("a row group has too few rows"))
    }
}

/// Returns columns of a row group.
///
/// # Errors
/// The file is damaged, or cannot be read.
pub fn columns(
    source: &dyn ByteSource,
    footer: &Footer,
    group: usize,
    wanted: &[usize],
) -> Result<RecordBatch, FileError> {
    let ranges: Vec<_> =
        wanted.iter().map(|column| footer.chunk_range(group, *column)).collect::<Result<_, _>>()?;
    let parts = coalesced(source, &ranges)?;
    let rows = footer.groups().get(group).map_or(0, |group| group.rows);
    let parts = wanted.iter().copied().zip(parts).collect();
    Columns { footer, group, rows, parts }.decoded()
}

/// Returns the columns of a row group that a read fetches as a whole.
///
/// # Errors
/// As for [`columns`].
pub fn short_columns(
    source: &dyn ByteSource,
    footer: &Footer,
    group: usize,
) -> Result<RecordBatch, FileError> {
    columns(source, footer, group, &SHORT.collect::<Vec<_>>())
}

/// Returns all columns of a row group from which records are encoded.
///
/// # Errors
/// As for [`columns`].
pub fn whole_group(source: &dyn ByteSource, footer: &Footer, group: usize) -> Result<RecordBatch, FileError> {
    columns(source, footer, group, &NEEDED.collect::<Vec<_>>())
}

/// Returns some rows of a row group, and its short columns. `short` are these columns, if they are known.
///
/// # Errors
/// As for [`columns`].
pub fn paged_rows(
    source: &dyn ByteSource,
    footer: &Footer,
    group: usize,
    rows: &Range<usize>,
    short: Option<RecordBatch>,
) -> Result<(RecordBatch, RecordBatch), FileError> {
    let spans: Vec<_> = LONG.map(|column| footer.span(group, column, rows)).collect::<Result<_, _>>()?;
    let spans: Option<Vec<_>> = spans.into_iter().collect();
    let Some(spans) = spans else {
        let whole = whole_group(source, footer, group)?;
        let short = whole.project(&SHORT.collect::<Vec<_>>()).map_err(FileError::damaged)?;
        return Ok((slice_of(&whole, rows)?, short));
    };
    let mut ranges: Vec<_> = spans.iter().map(|span| span.range.clone()).collect();
    if short.is_none() {
        // One call, so that an object store answers the requests at the same time.
        for column in SHORT {
            ranges.push(footer.chunk_range(group, column)?);
        }
    }
    let mut parts = coalesced(source, &ranges)?;
    let of_short = parts.split_off(spans.len());
    let short = if let Some(short) = short {
        short
    } else {
        let rows = footer.groups().get(group).map_or(0, |group| group.rows);
        Columns { footer, group, rows, parts: SHORT.zip(of_short).collect() }.decoded()?
    };
    let few = slice_of(&short, rows)?;
    let (mut fields, mut arrays) = (few.schema().fields().to_vec(), few.columns().to_vec());
    for ((column, part), span) in LONG.zip(parts).zip(&spans) {
        let pages =
            Columns { footer, group, rows: span.rows.len(), parts: vec![(column, part)] }.decoded()?;
        let place = rows.start - span.rows.start;
        let values = slice_of(&pages, &(place..place + rows.len()))?;
        fields.extend(values.schema().fields().iter().cloned());
        arrays.extend(values.columns().iter().cloned());
    }
    let schema = std::sync::Arc::new(arrow_schema::Schema::new(fields));
    let found = RecordBatch::try_new(schema, arrays).map_err(FileError::damaged)?;
    Ok((found, short))
}

fn slice_of(batch: &RecordBatch, rows: &Range<usize>) -> Result<RecordBatch, FileError> {
    if rows.start > rows.end || rows.end > batch.num_rows() {
        return Err(FileError::damaged("a row group has too few rows"));
    }
    Ok(batch.slice(rows.start, rows.len()))
}

/// Calls `visit` with the pieces of a file of other bytes of the log: log offset and bytes.
///
/// # Errors
/// Those of `visit`; the file is damaged, or cannot be read.
pub fn other_bytes(
    source: &dyn ByteSource,
    footer: &Footer,
    mut visit: impl FnMut(u64, Vec<u8>) -> Result<(), FileError>,
) -> Result<(), FileError> {
    for (group, facts) in footer.groups().iter().enumerate() {
        let ranges: Vec<_> =
            (0..3).map(|column| footer.chunk_range(group, column)).collect::<Result<_, _>>()?;
        let parts = (0..).zip(coalesced(source, &ranges)?).collect();
        let columns = Columns { footer, group, rows: facts.rows, parts };
        // One after the other, because each can have 64 MiB.
        let mut reader = fenced(|| columns.reader(1))?;
        let mut left = facts.rows;
        while let Some(batch) = fenced(|| reader.next().transpose().map_err(FileError::damaged))? {
            left = left.saturating_sub(batch.num_rows());
            for row in 0..batch.num_rows() {
                let (offset, bytes) = piece(&batch, row, footer)?;
                visit(offset, bytes)?;
            }
        }
        if left > 0 {
            return Err(FileError::damaged("a row group has too few rows"));
        }
    }
    Ok(())
}

fn piece(batch: &RecordBatch, row: usize, footer: &Footer) -> Result<(u64, Vec<u8>), FileError> {
    let number = |column: usize| {
        let array = batch.columns().get(column)?.as_primitive_opt::<Int64Type>()?;
        u64::try_from(array.is_valid(row).then(|| array.value(row))?).ok()
    };
    let raw = batch.columns().get(2).and_then(|array| array.as_binary_opt::<i32>());
    let (Some(offset), Some(size), Some(raw)) = (number(0), number(1), raw) else {
        return Err(FileError::damaged("a piece of it has no place"));
    };
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    let mut bytes = raw.value(row).to_vec();
    if size < bytes.len() || size > footer.limits(0, 2).bytes {
        return Err(FileError::damaged("a piece of it has another length than it says"));
    }
    bytes.resize(size, 0);
    Ok((offset, bytes))
}

/// Returns the row groups of a file that can have a key or a unique id. `filters` are the Bloom filters of each.
///
/// # Errors
/// A filter is damaged.
pub fn groups_with_key(filters: &[Option<Vec<Bytes>>], key: &str) -> Result<Vec<usize>, FileError> {
    let mut found = Vec::new();
    for (group, filters) in filters.iter().enumerate() {
        let mut may_have = filters.is_none();
        for filter in filters.iter().flatten() {
            may_have = may_have || may_contain(filter, key)?;
        }
        if may_have {
            found.push(group);
        }
    }
    Ok(found)
}

/// Returns the Bloom filters of each row group; `None` for a group that can have any key.
///
/// # Errors
/// As for [`columns`].
pub fn bloom_filters(source: &dyn ByteSource, footer: &Footer) -> Result<Vec<Option<Vec<Bytes>>>, FileError> {
    let places: Vec<_> = (0..footer.groups().len()).map(|group| footer.bloom_filters(group)).collect();
    let ranges: Vec<_> = places.iter().flatten().flatten().cloned().collect();
    let mut parts = coalesced(source, &ranges)?.into_iter();
    let filters = places.into_iter().map(|place| Some(parts.by_ref().take(place?.len()).collect()));
    Ok(filters.collect())
}
