//! The footer of a file, and the places of the pages of its long columns.
//!
//! ```text
//! columns, row group by row group    page indexes    Bloom filters    footer (Thrift)    length    PAR1
//! ```
//!
//! A footer has no checksum: columns, numbers of rows and places are checked.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parquet::arrow::parquet_to_arrow_schema;
use parquet::bloom_filter::Sbbf;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataReader};
use parquet::file::statistics::Statistics;

use super::pages::PageLimits;
use super::schema::{COLUMN_PATHS, KEYS, LONG, OTHER_PATHS, UNIQUE_ID, has_columns, others, schema};
use super::thrift::{LIST, STRUCT, Thrift};
use super::{ByteSource, FileError, fenced};

const MAGIC: &[u8; 4] = b"PAR1";

/// Bytes after the footer: its length and the magic.
const TAIL_BYTES: u64 = 8;

/// The first request for a footer. It contains the page index of most files.
const FIRST_BYTES: u64 = 256 << 10;

/// Longest footer. The footer of a file of 128 MiB with records of 200 bytes has 250 KB.
const MAX_FOOTER_BYTES: u64 = 32 << 20;

/// Most elements of the schema, so that its nesting has a limit. A file of records has 24.
const MAX_SCHEMA_ELEMENTS: usize = 64;

/// Numbers of fields of the footer: those of the file, of a row group, of a column, and of its facts.
const SCHEMA: i64 = 2;
const ROW_GROUPS: i64 = 4;
const COLUMNS: i64 = 1;
const COLUMN_FACTS: i64 = 3;
const COLUMN_PATH: i64 = 3;

/// Most rows of a row group of records. Files of all versions have 8,192 at most.
const MAX_GROUP_ROWS: usize = 64 << 10;

/// Bytes of a column in addition to those of the records: offsets, hosts as text, dictionaries.
const ROW_BYTES: usize = 128;
const MORE_BYTES: usize = 4 << 20;

/// A page of a long column.
#[derive(Clone, Copy, Debug)]
pub(super) struct PagePlace {
    start: u64,
    end: u64,
    /// The first row in the row group.
    first_row: usize,
}

/// Some neighbouring pages of a long column.
#[derive(Clone, Debug)]
pub(super) struct Span {
    /// Their bytes in the file.
    pub(super) range: Range<u64>,
    /// Their rows in the row group.
    pub(super) rows: Range<usize>,
}

/// A row group.
#[derive(Debug)]
pub struct Group {
    /// Its first row in the file.
    pub first_row: usize,
    /// Number of its rows.
    pub rows: usize,
    /// The pages of the long columns; empty if their places are not known.
    pages: [Vec<PagePlace>; 2],
}

/// See the header of this file.
#[derive(Debug)]
pub struct Footer {
    pub(super) metadata: Arc<ParquetMetaData>,
    groups: Vec<Group>,
    record_bytes: usize,
    has_records: bool,
    bytes: usize,
}

impl Footer {
    /// Reads the footer of a file.
    ///
    /// `record_bytes` is the sum of the lengths of its records, which bounds the memory for its columns; without it, it
    /// is that of the footer, which can be wrong.
    ///
    /// # Errors
    /// The file is damaged, or cannot be read.
    pub fn read(source: &dyn ByteSource, record_bytes: Option<u64>) -> Result<Self, FileError> {
        let size = source.length();
        let start = size.saturating_sub(FIRST_BYTES);
        let mut tail = Tail { start, content: one(source, start..size)? };
        let length = tail.footer_length()?;
        if length > size.saturating_sub(TAIL_BYTES).min(MAX_FOOTER_BYTES) {
            return Err(FileError::damaged("its footer is longer than the file, or than any footer"));
        }
        let begin = size - TAIL_BYTES - length;
        tail.extend_to(source, begin)?;
        let content = tail.slice(begin..size - TAIL_BYTES)?;
        check_footer(&content)?;
        let metadata = fenced(|| Ok(ParquetMetaDataReader::decode_metadata(&content)?))?;
        let mut found = Self::checked(metadata, size, record_bytes, 8 * content.len())?;
        found.read_page_places(source, &mut tail)?;
        Ok(found)
    }

    fn checked(
        metadata: ParquetMetaData,
        size: u64,
        record_bytes: Option<u64>,
        bytes: usize,
    ) -> Result<Self, FileError> {
        let file = metadata.file_metadata();
        let columns = fenced(|| Ok(parquet_to_arrow_schema(file.schema_descr(), None)?))?;
        let has_records = has_columns(&columns, &schema());
        if !has_records && !has_columns(&columns, &others()) {
            return Err(FileError::damaged("it has other columns than a file of an archive"));
        }
        let (mut groups, mut row) = (Vec::new(), 0_usize);
        for group in metadata.row_groups() {
            let rows = usize::try_from(group.num_rows()).unwrap_or(usize::MAX);
            if has_records && rows > MAX_GROUP_ROWS {
                return Err(FileError::damaged("a row group has too many rows"));
            }
            groups.push(Group { first_row: row, rows, pages: <[Vec<PagePlace>; 2]>::default() });
            row = row.saturating_add(rows);
            for chunk in group.columns() {
                chunk_range(chunk, size)?;
            }
        }
        if i64::try_from(row) != Ok(file.num_rows()) {
            return Err(FileError::damaged("its row groups have another number of rows than the file"));
        }
        let mut found = Self { metadata: Arc::new(metadata), groups, record_bytes: 0, has_records, bytes };
        let known = record_bytes.or_else(|| found.fact("record_bytes")?.parse().ok());
        let known =
            known.ok_or_else(|| FileError::damaged("its footer does not have the facts of an archive"))?;
        found.record_bytes = usize::try_from(known).unwrap_or(usize::MAX);
        Ok(found)
    }

    /// Returns the row groups.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Returns the number of rows of the file.
    pub fn rows(&self) -> usize {
        self.groups.last().map_or(0, |group| group.first_row + group.rows)
    }

    /// Whether it is a file of records; otherwise it is one of other bytes of the log.
    pub fn has_records(&self) -> bool {
        self.has_records
    }

    /// Returns the approximate memory of the footer.
    pub fn bytes(&self) -> usize {
        let pages = self.groups.iter().flat_map(|group| &group.pages).map(Vec::len).sum::<usize>();
        self.bytes + pages * size_of::<PagePlace>()
    }

    /// Returns the number of the row group with a row of the file.
    pub fn group_of(&self, row: usize) -> usize {
        self.groups.partition_point(|group| group.first_row <= row).saturating_sub(1)
    }

    /// Returns a text of the run that wrote the file.
    pub fn fact(&self, name: &str) -> Option<&str> {
        self.facts().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// Returns all texts of the run that wrote the file, by name.
    pub fn facts(&self) -> impl Iterator<Item = (&str, &str)> {
        let pairs = self.metadata.file_metadata().key_value_metadata();
        pairs.into_iter().flatten().filter_map(|pair| {
            Some((pair.key.strip_prefix(super::write::FACT_PREFIX)?, pair.value.as_deref()?))
        })
    }

    /// Returns the bounds of the store times of a row group in microseconds, if the file has them.
    pub fn store_times(&self, group: usize) -> Option<(i64, i64)> {
        self.bounds(group, 5)
    }

    /// Returns the bounds of the log offsets of a row group, if the file has them.
    pub fn log_offsets(&self, group: usize) -> Option<(i64, i64)> {
        self.bounds(group, 3)
    }

    fn bounds(&self, group: usize, column: usize) -> Option<(i64, i64)> {
        match self.chunk(group, column)?.statistics()? {
            Statistics::Int64(found) => Some((*found.min_opt()?, *found.max_opt()?)),
            _ => None,
        }
    }

    /// Returns the places of the Bloom filters of a row group; `None` if a value can be in a column without a filter.
    pub(super) fn bloom_filters(&self, group: usize) -> Option<Vec<Range<u64>>> {
        let mut found = Vec::new();
        for column in [UNIQUE_ID, KEYS] {
            let chunk = self.chunk(group, column)?;
            let start = chunk.bloom_filter_offset().and_then(|at| u64::try_from(at).ok());
            let length = chunk.bloom_filter_length().and_then(|length| u64::try_from(length).ok());
            match start.zip(length).filter(|(_, length)| *length > 0) {
                Some((start, length)) => found.push(start..start.saturating_add(length)),
                None if is_null(chunk) => {}
                None => return None,
            }
        }
        Some(found)
    }

    /// Returns what the pages of a column of a row group can have at most.
    pub(super) fn limits(&self, group: usize, column: usize) -> PageLimits {
        let rows = self.groups.get(group).map_or(0, |group| group.rows);
        let bytes =
            self.record_bytes.saturating_add(rows.saturating_mul(ROW_BYTES)).saturating_add(MORE_BYTES);
        let values = if self.has_records && column == KEYS { rows + self.record_bytes } else { rows };
        // A dictionary has a value for a row at most.
        PageLimits { bytes, values: values.saturating_add(1) }
    }

    pub(super) fn chunk(&self, group: usize, column: usize) -> Option<&ColumnChunkMetaData> {
        self.metadata.row_groups().get(group)?.columns().get(column)
    }

    /// Returns the bytes of a column of a row group in the file.
    pub(super) fn chunk_range(&self, group: usize, column: usize) -> Result<Range<u64>, FileError> {
        let chunk = self.chunk(group, column).ok_or_else(|| FileError::damaged("a column is missing"))?;
        chunk_range(chunk, u64::MAX)
    }

    /// Returns the pages of a long column with some rows of a row group; `None` if their places are not known.
    pub(super) fn span(
        &self,
        group: usize,
        column: usize,
        rows: &Range<usize>,
    ) -> Result<Option<Span>, FileError> {
        let Some(chunk) = self.chunk(group, column) else { return Ok(None) };
        let Some(known) = self.groups.get(group) else { return Ok(None) };
        let pages = known.pages.get(column - LONG.start).map_or(&[][..], Vec::as_slice);
        let has_dictionary = chunk.dictionary_page_offset().is_some_and(|at| at > 0);
        let of = |row: usize| pages.partition_point(|page| page.first_row <= row).saturating_sub(1);
        let (first, last) = (of(rows.start), of(rows.end.saturating_sub(1)));
        let (Some(low), Some(high)) = (pages.get(first), pages.get(last)) else { return Ok(None) };
        if has_dictionary {
            return Ok(None);
        }
        let whole = chunk_range(chunk, u64::MAX)?;
        if !(whole.start <= low.start && low.start < high.end && high.end <= whole.end) {
            return Err(FileError::damaged("a page index points outside its column"));
        }
        let end_row = pages.get(last + 1).map_or(known.rows, |page| page.first_row);
        Ok(Some(Span { range: low.start..high.end, rows: low.first_row..end_row }))
    }

    /// Returns the row after the page of the bodies with a row; the end of the row group if the places are not known.
    pub fn page_end(&self, group: usize, row: usize) -> usize {
        let Some(group) = self.groups.get(group) else { return row };
        let [_, pages] = &group.pages;
        let next = pages.get(pages.partition_point(|page| page.first_row <= row));
        next.map_or(group.rows, |page| page.first_row)
    }

    fn read_page_places(&mut self, source: &dyn ByteSource, tail: &mut Tail) -> Result<(), FileError> {
        if !self.has_records {
            return Ok(());
        }
        let size = source.length();
        let mut places = Vec::new();
        for number in 0..self.groups.len() {
            for column in LONG {
                let Some(chunk) = self.chunk(number, column) else { continue };
                let start = chunk.offset_index_offset().and_then(|at| u64::try_from(at).ok());
                let length = chunk.offset_index_length().and_then(|length| u64::try_from(length).ok());
                let Some((start, length)) = start.zip(length).filter(|(start, _)| *start > 0) else {
                    continue;
                };
                let end = start.checked_add(length).filter(|end| *end <= size);
                let end = end.ok_or_else(|| FileError::damaged("its footer points outside the file"))?;
                places.push((number, column - LONG.start, start..end));
            }
        }
        let Some(first) = places.iter().map(|(_, _, range)| range.start).min() else { return Ok(()) };
        if size - first > MAX_FOOTER_BYTES {
            return Err(FileError::damaged("its page indexes are longer than any"));
        }
        tail.extend_to(source, first)?;
        for (number, column, range) in places {
            let pages = page_places(&tail.slice(range)?)?;
            if let Some(kept) = self.groups.get_mut(number).and_then(|group| group.pages.get_mut(column)) {
                *kept = pages;
            }
        }
        Ok(())
    }
}

/// The last bytes of a file.
struct Tail {
    start: u64,
    content: Bytes,
}

impl Tail {
    fn footer_length(&self) -> Result<u64, FileError> {
        match self.content.last_chunk::<8>() {
            Some([a, b, c, d, magic @ ..]) if magic == MAGIC => {
                // Parquet is little-endian.
                Ok(u64::from(u32::from_be_bytes([*d, *c, *b, *a])))
            }
            _ => Err(FileError::damaged("it does not end like a Parquet file")),
        }
    }

    /// Makes sure that the bytes from `start` on are there.
    fn extend_to(&mut self, source: &dyn ByteSource, start: u64) -> Result<(), FileError> {
        if start < self.start {
            let more = one(source, start..self.start)?;
            self.content = Bytes::from([more, self.content.clone()].concat());
            self.start = start;
        }
        Ok(())
    }

    fn slice(&self, range: Range<u64>) -> Result<Bytes, FileError> {
        let place = |at: u64| usize::try_from(at.checked_sub(self.start)?).ok();
        let (start, end) = (place(range.start), place(range.end));
        match start.zip(end).filter(|(start, end)| start <= end && *end <= self.content.len()) {
            Some((start, end)) => Ok(self.content.slice(start..end)),
            None => Err(FileError::damaged("its footer points outside the file")),
        }
    }
}

fn one(source: &dyn ByteSource, range: Range<u64>) -> Result<Bytes, FileError> {
    let found = source.read(&[range])?.pop();
    found.ok_or_else(|| FileError::damaged("a range could not be read"))
}

/// Checks what the decoder of the footer does not: the length of the schema, and that each column of a row group is the
/// column that its place says.
fn check_footer(footer: &[u8]) -> Result<(), FileError> {
    let wrong = || FileError::damaged("it has other columns than a file of an archive");
    Thrift::new(footer).each_field(|thrift, number, kind| match (number, kind) {
        (SCHEMA, LIST) => {
            let count = thrift.structs(|thrift| thrift.each_field(|_, _, _| Ok(false)))?;
            if count > MAX_SCHEMA_ELEMENTS { Err(wrong()) } else { Ok(true) }
        }
        (SCHEMA, _) => Err(wrong()),
        (ROW_GROUPS, LIST) => {
            thrift.structs(check_group)?;
            Ok(true)
        }
        _ => Ok(false),
    })
}

fn check_group(thrift: &mut Thrift<'_>) -> Result<(), FileError> {
    thrift.each_field(|thrift, number, kind| {
        if (number, kind) != (COLUMNS, LIST) {
            return Ok(false);
        }
        let mut place = 0;
        thrift.structs(|thrift| {
            let path = path_of(thrift)?;
            place += 1;
            let names = COLUMN_PATHS.get(place - 1).or_else(|| OTHER_PATHS.get(place - 1));
            let is_right =
                |names: &&[&str]| names.iter().map(|name| name.as_bytes()).eq(path.iter().copied());
            let is_other = OTHER_PATHS.get(place - 1).is_some_and(is_right);
            if names.is_some_and(is_right) || is_other {
                return Ok(());
            }
            Err(FileError::damaged("it has other columns than a file of an archive"))
        })?;
        Ok(true)
    })
}

/// Returns the path of a column of a row group.
fn path_of<'a>(thrift: &mut Thrift<'a>) -> Result<Vec<&'a [u8]>, FileError> {
    let mut path = Vec::new();
    thrift.each_field(|thrift, number, kind| {
        if (number, kind) != (COLUMN_FACTS, STRUCT) {
            return Ok(false);
        }
        thrift.each_field(|thrift, number, kind| {
            if (number, kind) != (COLUMN_PATH, LIST) {
                return Ok(false);
            }
            let (_, count) = thrift.list()?;
            for _ in 0..count {
                path.push(thrift.binary()?);
            }
            Ok(true)
        })?;
        Ok(true)
    })?;
    Ok(path)
}

/// Returns the bytes of a column of a row group.
fn chunk_range(chunk: &ColumnChunkMetaData, size: u64) -> Result<Range<u64>, FileError> {
    let data = chunk.data_page_offset();
    let start = chunk.dictionary_page_offset().filter(|at| (1..data).contains(at)).unwrap_or(data);
    let place = u64::try_from(start).ok().zip(u64::try_from(chunk.compressed_size()).ok());
    let range = place.and_then(|(start, length)| Some(start..start.checked_add(length)?));
    let range = range.filter(|range| range.end <= size);
    range.ok_or_else(|| FileError::damaged("its footer points outside the file"))
}

/// Whether a column of a row group has no value.
fn is_null(chunk: &ColumnChunkMetaData) -> bool {
    let nulls = chunk.statistics().and_then(Statistics::null_count_opt);
    nulls.is_some_and(|nulls| i64::try_from(nulls).is_ok_and(|nulls| nulls >= chunk.num_values()))
}

/// Returns the pages of an offset index.
pub(super) fn page_places(content: &[u8]) -> Result<Vec<PagePlace>, FileError> {
    let mut found: Vec<PagePlace> = Vec::new();
    Thrift::new(content).each_field(|thrift, number, kind| {
        if (number, kind) != (1, LIST) {
            return Ok(false);
        }
        thrift.structs(|thrift| {
            found.push(page_place(thrift)?);
            Ok(())
        })?;
        Ok(true)
    })?;
    let ascends = found.windows(2).all(|pair| matches!(pair, [a, b] if a.first_row < b.first_row));
    if !ascends || found.first().is_some_and(|page| page.first_row != 0) {
        return Err(FileError::damaged("a page index is not in the order of the rows"));
    }
    Ok(found)
}

fn page_place(thrift: &mut Thrift<'_>) -> Result<PagePlace, FileError> {
    let (mut start, mut length, mut row) = (-1, -1, -1);
    thrift.each_field(|thrift, number, _| {
        match number {
            1 => start = thrift.integer()?,
            2 => length = thrift.integer()?,
            3 => row = thrift.integer()?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let place = || {
        let start = u64::try_from(start).ok()?;
        let length = u64::try_from(length).ok().filter(|length| *length > 0)?;
        Some(PagePlace { start, end: start.checked_add(length)?, first_row: usize::try_from(row).ok()? })
    };
    place().ok_or_else(|| FileError::damaged("a page index is wrong"))
}

/// Returns whether a Bloom filter, with its header, may contain a value.
pub(super) fn may_contain(content: &[u8], value: &str) -> Result<bool, FileError> {
    fenced(|| {
        let filter = Sbbf::from_bytes(content)?;
        if filter.num_blocks() == 0 {
            return Err(FileError::damaged("a Bloom filter is empty"));
        }
        Ok(filter.check(value))
    })
}
