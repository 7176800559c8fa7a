//! The Parquet files of an archive.
//!
//! `schema` has the columns, `write` and `checksums` make a file, `source` has its bytes, `footer`, `pages` and `decode`
//! read parts of it.
//! The bytes of a file come from a disk or a server: lengths are checked before memory is taken for them, and nothing
//! that a file contains ends the process.

mod checksums;
mod decode;
mod footer;
mod pages;
mod schema;
mod source;
#[cfg(test)]
mod tests;
mod thrift;
mod write;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use mqstore_base::error::StoreError;
use parquet::errors::ParquetError;

pub use decode::{
    bloom_filters, columns, groups_with_key, other_bytes, paged_rows, short_columns, whole_group,
};
pub use footer::{Footer, Group};
pub use schema::{KEYS, LONG, NEEDED, SHORT, UNIQUE_ID, schema};
pub use source::ByteSource;
pub use write::{FileFact, FileSizes, write_bytes, write_rows};

/// Why a file cannot be read.
#[derive(Debug)]
pub enum FileError {
    /// It is damaged: the reason.
    Damaged(String),
    /// Its bytes could not be read.
    Store(StoreError),
}

impl FileError {
    pub(crate) fn damaged(reason: impl fmt::Display) -> Self {
        Self::Damaged(reason.to_string())
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged(reason) => out.write_str(reason),
            Self::Store(error) => error.fmt(out),
        }
    }
}

impl std::error::Error for FileError {}

impl From<StoreError> for FileError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<ParquetError> for FileError {
    fn from(error: ParquetError) -> Self {
        match error {
            ParquetError::External(inner) => match inner.downcast::<Self>() {
                Ok(error) => *error,
                Err(inner) => Self::damaged(inner),
            },
            other => Self::damaged(other),
        }
    }
}

/// Runs a decoder of another crate. A panic of it becomes an error, because the bytes can be any.
fn fenced<T>(decode: impl FnOnce() -> Result<T, FileError>) -> Result<T, FileError> {
    let decoded = catch_unwind(AssertUnwindSafe(decode));
    decoded.unwrap_or_else(|_| Err(FileError::damaged("its bytes have no meaning as columns")))
}
