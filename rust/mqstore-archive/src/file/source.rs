//! The bytes of a file, in memory or among the objects of an archive.

use std::ops::Range;

use bytes::Bytes;
use mqstore_base::error::StoreError;

/// The bytes of a file.
pub trait ByteSource: Send + Sync {
    /// The length of the file.
    fn length(&self) -> u64;

    /// Returns the bytes of ranges that are all in the file.
    ///
    /// # Errors
    /// The file cannot be read, or is shorter than before.
    fn read(&self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>, StoreError>;
}

impl ByteSource for Bytes {
    fn length(&self) -> u64 {
        self.len() as u64
    }

    fn read(&self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>, StoreError> {
        let part = |range: &Range<u64>| {
            let (start, end) = (range.start as usize, range.end as usize);
            if start <= end && end <= self.len() { self.slice(start..end) } else { Bytes::new() }
        };
        Ok(ranges.iter().map(part).collect())
    }
}
