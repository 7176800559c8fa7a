//! An open remote file.

use std::io;
use std::sync::Arc;

use super::files::{RemoteFiles, read_only};
use super::pages::PAGE_BYTES;
use crate::region::{MapAccess, Region};
use crate::vfs::{FileStat, LockHolder, VfsFile};

/// Maximum bytes of a map, which is a copy in memory. Readers map the live page only.
const MOST_MAPPED_BYTES: usize = 1 << 20;

/// A file of the list, by its number.
#[derive(Debug)]
pub(super) struct RemoteFile {
    files: Arc<RemoteFiles>,
    number: usize,
}

impl RemoteFile {
    pub(super) fn new(files: &Arc<RemoteFiles>, number: usize) -> Self {
        Self { files: Arc::clone(files), number }
    }
}

impl VfsFile for RemoteFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.stat()?.len)
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        read_only()
    }

    fn allocate(&self, _len: u64) -> io::Result<()> {
        read_only()
    }

    fn allocate_range(&self, _offset: u64, _len: u64) -> io::Result<()> {
        read_only()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.files.read(self.number, buf, offset)
    }

    /// The fetch of a long range begins now. The next read that needs a request fetches a short one too.
    fn expect_read(&self, offset: u64, len: u64) -> io::Result<()> {
        let end = offset.saturating_add(len).min(self.len()?);
        if offset < end {
            let pages = offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES);
            self.files.expect(self.number, &pages)?;
        }
        Ok(())
    }

    fn write_all_at(&self, _buf: &[u8], _offset: u64) -> io::Result<()> {
        read_only()
    }

    fn sync_data(&self) -> io::Result<()> {
        read_only()
    }

    fn sync_all(&self) -> io::Result<()> {
        read_only()
    }

    fn lock_holder(&self) -> io::Result<Option<LockHolder>> {
        Ok(None)
    }

    fn set_modified_ms(&self, _modified_ms: i64) -> io::Result<()> {
        read_only()
    }

    fn stat(&self) -> io::Result<FileStat> {
        self.files.check()?;
        Ok(self.files.stat(Some(self.number)))
    }

    fn next_data(&self, from: u64) -> io::Result<Option<u64>> {
        Ok((from < self.len()?).then_some(from))
    }

    fn map(&self, offset: u64, len: usize, access: MapAccess) -> io::Result<Region> {
        if access != MapAccess::Read {
            return read_only();
        }
        let end = offset.checked_add(len as u64).filter(|_| len > 0 && len <= MOST_MAPPED_BYTES);
        let file_len = self.len()?;
        if end.is_none_or(|end| end > file_len) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut bytes = vec![0; len];
        self.read_exact_at(&mut bytes, offset)?;
        let region = Region::heap(len)?;
        region.write(0, &bytes)?;
        Ok(region)
    }
}
