//! Where the bytes of a file are: in memory, or in a file of the system.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_io::{Access, Vfs, VfsFile};

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

/// A file of the system.
pub struct LocalFile {
    path: PathBuf,
    file: Arc<dyn VfsFile>,
    length: u64,
}

impl LocalFile {
    /// Opens the file.
    ///
    /// # Errors
    /// Those of the system.
    pub fn open(vfs: &dyn Vfs, path: &Path) -> Result<Self, StoreError> {
        let file = vfs.open(path, Access::Read).at(path, "opening a file of the archive")?;
        let length = file.len().at(path, "reading a file of the archive")?;
        Ok(Self { path: path.to_path_buf(), file, length })
    }
}

impl ByteSource for LocalFile {
    fn length(&self) -> u64 {
        self.length
    }

    fn read(&self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>, StoreError> {
        let part = |range: &Range<u64>| {
            let length = (range.end - range.start) as usize;
            let found = self.file.read_new(length, range.start);
            found.map(Bytes::from).at(&self.path, "reading a file of the archive")
        };
        ranges.iter().map(part).collect()
    }
}
