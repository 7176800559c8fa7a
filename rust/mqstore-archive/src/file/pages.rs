//! The pages of a column: checks each page, and decompresses it in bounded memory, before its values are decoded.
//!
//! ```text
//! header (Thrift)  lengths, number and encoding of the values, CRC-32 of the compressed bytes
//! bytes            compressed with zstd, or as they are
//! ```
//!
//! Source: `PageHeader` in `parquet.thrift` of Apache Parquet. Files of an archive have pages of version 1.

use bytes::Bytes;
use parquet::basic::{Compression, Encoding};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result as ParquetResult};

use super::FileError;
use super::thrift::{STRUCT, Thrift};

const DATA_PAGE: i64 = 0;
const DICTIONARY_PAGE: i64 = 2;

/// What the pages of a column can have at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageLimits {
    /// Bytes of all pages together, decompressed.
    pub(super) bytes: usize,
    /// Values of all pages together.
    pub(super) values: usize,
}

/// The header of a page.
#[derive(Clone, Copy, Debug, Default)]
struct Header {
    kind: i64,
    unpacked: i64,
    packed: i64,
    crc: Option<u32>,
    values: i64,
    encoding: i64,
    definition_encoding: i64,
    repetition_encoding: i64,
}

impl Header {
    /// Returns the header at the start of `content`, and its length.
    fn read(content: &[u8]) -> Result<(Self, usize), FileError> {
        let mut found =
            Self { kind: -1, unpacked: -1, packed: -1, values: -1, encoding: -1, ..Self::default() };
        let mut thrift = Thrift::new(content);
        thrift.each_field(|thrift, number, kind| {
            match number {
                1 => found.kind = thrift.integer()?,
                2 => found.unpacked = thrift.integer()?,
                3 => found.packed = thrift.integer()?,
                4 => found.crc = Some(thrift.integer()? as u32),
                5 | 7 if kind == STRUCT => found.read_values(thrift)?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok((found, thrift.position()))
    }

    /// Reads the header of the values of a data page or of a dictionary page, whose first two fields are the same.
    fn read_values(&mut self, thrift: &mut Thrift<'_>) -> Result<(), FileError> {
        thrift.each_field(|thrift, number, kind| {
            match number {
                1 => self.values = thrift.integer()?,
                2 => self.encoding = thrift.integer()?,
                3 if kind > 2 => self.definition_encoding = thrift.integer()?,
                4 if kind > 2 => self.repetition_encoding = thrift.integer()?,
                _ => return Ok(false),
            }
            Ok(true)
        })
    }
}

/// The encodings of columns of an archive, and of their levels.
fn encoding_of(number: i64) -> Result<Encoding, FileError> {
    match number {
        0 => Ok(Encoding::PLAIN),
        2 => Ok(Encoding::PLAIN_DICTIONARY),
        3 => Ok(Encoding::RLE),
        5 => Ok(Encoding::DELTA_BINARY_PACKED),
        8 => Ok(Encoding::RLE_DICTIONARY),
        _ => Err(FileError::damaged(format!("a page has the encoding {number}"))),
    }
}

/// Neighbouring pages of one column of a row group, from the first one that is wanted on.
#[derive(Debug)]
pub(super) struct Pages {
    content: Bytes,
    at: usize,
    is_packed: bool,
    left: PageLimits,
    next: Option<(Header, usize)>,
}

impl Pages {
    /// Takes the bytes of the pages.
    pub(super) fn new(
        content: Bytes,
        compression: Compression,
        limits: PageLimits,
    ) -> Result<Self, FileError> {
        let is_packed = match compression {
            Compression::UNCOMPRESSED => false,
            Compression::ZSTD(_) => true,
            other => return Err(FileError::damaged(format!("a column has the compression {other}"))),
        };
        Ok(Self { content, at: 0, is_packed, left: limits, next: None })
    }

    /// Returns the header of the next page and the place of its bytes, checked; `None` at the end.
    fn header(&mut self) -> Result<Option<(Header, usize)>, FileError> {
        if self.next.is_none() && self.at < self.content.len() {
            let content = self.content.get(self.at..).unwrap_or_default();
            let (header, length) = Header::read(content)?;
            let fits = |value: i64, most: usize| usize::try_from(value).is_ok_and(|value| value <= most);
            if !fits(header.packed, content.len() - length) {
                return Err(FileError::damaged("a page is longer than its place"));
            }
            if !fits(header.unpacked, self.left.bytes) || !fits(header.values, self.left.values) {
                return Err(FileError::damaged("a page has more values than its row group can have"));
            }
            self.next = Some((header, self.at + length));
        }
        Ok(self.next)
    }

    /// Moves to the page after the one with this header.
    fn pass(&mut self, header: &Header, start: usize) {
        self.next = None;
        self.at = start + header.packed as usize;
        if header.kind == DATA_PAGE {
            self.left.values -= header.values as usize;
        }
        self.left.bytes -= header.unpacked as usize;
    }

    fn next_page(&mut self) -> Result<Option<Page>, FileError> {
        let Some((header, start)) = self.header()? else { return Ok(None) };
        self.pass(&header, start);
        let packed = self.content.slice(start..self.at);
        if header.crc.is_some_and(|crc| crc != crc32fast::hash(&packed)) {
            return Err(FileError::damaged("a page does not match its checksum"));
        }
        let buf = if self.is_packed { unpacked(&packed, header.unpacked as usize)? } else { packed };
        let (num_values, encoding) = (header.values as u32, encoding_of(header.encoding)?);
        match header.kind {
            DATA_PAGE => Ok(Some(Page::DataPage {
                buf,
                num_values,
                encoding,
                def_level_encoding: encoding_of(header.definition_encoding)?,
                rep_level_encoding: encoding_of(header.repetition_encoding)?,
                statistics: None,
            })),
            DICTIONARY_PAGE => Ok(Some(Page::DictionaryPage { buf, num_values, encoding, is_sorted: false })),
            kind => Err(FileError::damaged(format!("a page has the type {kind}"))),
        }
    }
}

fn unpacked(packed: &[u8], length: usize) -> Result<Bytes, FileError> {
    let mut found = Vec::with_capacity(length);
    if length > 0 {
        let mut decompressor = zstd::bulk::Decompressor::new().map_err(FileError::damaged)?;
        decompressor
            .decompress_to_buffer(packed, &mut found)
            .map_err(|error| FileError::damaged(format!("a page cannot be decompressed: {error}")))?;
    }
    if found.len() == length {
        return Ok(Bytes::from(found));
    }
    Err(FileError::damaged("a page has another length than its header says"))
}

fn external(error: FileError) -> ParquetError {
    ParquetError::External(Box::new(error))
}

impl Iterator for Pages {
    type Item = ParquetResult<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> ParquetResult<Option<Page>> {
        self.next_page().map_err(external)
    }

    fn peek_next_page(&mut self) -> ParquetResult<Option<PageMetadata>> {
        let header = self.header().map_err(external)?;
        Ok(header.map(|(header, _)| PageMetadata {
            num_rows: None,
            num_levels: Some(header.values as usize),
            is_dict: header.kind == DICTIONARY_PAGE,
        }))
    }

    fn skip_next_page(&mut self) -> ParquetResult<()> {
        if let Some((header, start)) = self.header().map_err(external)? {
            self.pass(&header, start);
        }
        Ok(())
    }
}
