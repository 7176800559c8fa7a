//! Reads structs of Thrift's compact protocol field by field: headers of pages and page indexes.
//!
//! The decoder of `parquet` trusts the lengths of such structs, so they are checked here before it sees their bytes.
//! Source: the compact protocol of Apache Thrift, and `parquet.thrift` of Apache Parquet.

use super::FileError;

/// Deepest nesting of values that are passed over.
const MAX_DEPTH: u32 = 16;

const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const INT16: u8 = 4;
const INT64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
/// The type of a list.
pub(super) const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
/// The type of a struct.
pub(super) const STRUCT: u8 = 12;

/// Bytes of a struct, and the position in them.
pub(super) struct Thrift<'a> {
    content: &'a [u8],
    at: usize,
}

fn ends_early() -> FileError {
    FileError::damaged("its bytes end too early")
}

impl<'a> Thrift<'a> {
    /// Begins with the first byte of `content`.
    pub(super) fn new(content: &'a [u8]) -> Self {
        Self { content, at: 0 }
    }

    /// The number of bytes that were read.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// Reads a struct. `visit` gets the number and the type of each field, and returns whether it has read the value.
    pub(super) fn each_field(
        &mut self,
        mut visit: impl FnMut(&mut Self, i64, u8) -> Result<bool, FileError>,
    ) -> Result<(), FileError> {
        let mut number = 0;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Ok(());
            }
            let delta = i64::from(head >> 4);
            number = if delta == 0 { self.integer()? } else { number + delta };
            if !visit(self, number, head & 15)? {
                self.skip(head & 15, 0)?;
            }
        }
    }

    /// Reads the head of a list: the type of its items, and their number, of which each has at least one byte.
    pub(super) fn list(&mut self) -> Result<(u8, usize), FileError> {
        let head = self.byte()?;
        let count = if head >> 4 == 15 { self.length()? } else { usize::from(head >> 4) };
        if count > self.content.len() - self.at {
            return Err(FileError::damaged("a list is longer than its bytes"));
        }
        Ok((head & 15, count))
    }

    /// Calls `visit` for each struct of a list. Returns their number.
    pub(super) fn structs(
        &mut self,
        mut visit: impl FnMut(&mut Self) -> Result<(), FileError>,
    ) -> Result<usize, FileError> {
        let (kind, count) = self.list()?;
        if kind != STRUCT {
            return Err(FileError::damaged("a list has no structs"));
        }
        (0..count).try_for_each(|_| visit(self))?;
        Ok(count)
    }

    /// Reads bytes.
    pub(super) fn binary(&mut self) -> Result<&'a [u8], FileError> {
        let length = self.length()?;
        let start = self.at;
        self.advance(length)?;
        self.content.get(start..self.at).ok_or_else(ends_early)
    }

    /// Reads an integer.
    pub(super) fn integer(&mut self) -> Result<i64, FileError> {
        let found = self.varint()?;
        Ok((found >> 1).cast_signed() ^ -(found & 1).cast_signed())
    }

    /// Passes over a value.
    fn skip(&mut self, kind: u8, depth: u32) -> Result<(), FileError> {
        if depth > MAX_DEPTH {
            return Err(FileError::damaged("values are nested too deep"));
        }
        match kind {
            TRUE | FALSE => Ok(()),
            BYTE => self.advance(1),
            INT16..=INT64 => self.varint().map(drop),
            DOUBLE => self.advance(8),
            BINARY => {
                let length = self.length()?;
                self.advance(length)
            }
            LIST | SET => {
                let (kind, count) = self.list()?;
                // A boolean in a list is a byte of its own.
                let kind = if kind == TRUE || kind == FALSE { BYTE } else { kind };
                (0..count).try_for_each(|_| self.skip(kind, depth + 1))
            }
            STRUCT => self.skip_fields(depth),
            MAP => Err(FileError::damaged("a field is a map")),
            _ => Err(FileError::damaged(format!("a field has the unknown type {kind}"))),
        }
    }

    fn skip_fields(&mut self, depth: u32) -> Result<(), FileError> {
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Ok(());
            }
            if head >> 4 == 0 {
                self.varint()?;
            }
            self.skip(head & 15, depth + 1)?;
        }
    }

    fn varint(&mut self) -> Result<u64, FileError> {
        let mut found = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            found |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Ok(found);
            }
        }
        Err(FileError::damaged("a number is too long"))
    }

    fn length(&mut self) -> Result<usize, FileError> {
        usize::try_from(self.varint()?).map_err(|_| ends_early())
    }

    fn byte(&mut self) -> Result<u8, FileError> {
        let found = self.content.get(self.at).copied().ok_or_else(ends_early)?;
        self.at += 1;
        Ok(found)
    }

    fn advance(&mut self, length: usize) -> Result<(), FileError> {
        let end = self.at.checked_add(length).filter(|end| *end <= self.content.len());
        self.at = end.ok_or_else(ends_early)?;
        Ok(())
    }
}
