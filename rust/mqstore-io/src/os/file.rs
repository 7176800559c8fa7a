//! An open file of the real file system: positional reads and writes, space, sync, maps.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
#[cfg(target_os = "linux")]
use std::sync::Arc;

use rustix::buffer::spare_capacity;
use rustix::fs::{FallocateFlags, SeekFrom, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;
#[cfg(target_os = "linux")]
use rustix::io::ReadWriteFlags;

use super::descriptor::{file_stat, retry};
#[cfg(target_os = "linux")]
use super::paced_reads::{PacedReads, read_with};
#[cfg(target_os = "linux")]
use super::read_once::{DONT_CACHE, ReadOnce};
use super::{lock, mmap};
#[cfg(target_os = "linux")]
use crate::read_pace::ReadPace;
use crate::region::{MapAccess, Region};
use crate::vfs::{FileStat, LockHolder, NoSpace, VfsFile, read_cleared};

/// The bytes of one write where space cannot be reserved otherwise.
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// Bytes of a range from which on the system is asked first whether it is in memory. A request to fetch a range looks at
/// each of its pages, which takes long if nothing has to be fetched.
#[cfg(target_os = "linux")]
const PROBED_BYTES: u64 = 1 << 20;

/// Distance of the bytes that show whether a range is in memory.
#[cfg(target_os = "linux")]
const PROBE_STEP_BYTES: usize = 256 << 10;

/// Whether a range is in memory, as far as some of its bytes show. Never waits for the disk.
#[cfg(target_os = "linux")]
pub(super) fn is_in_memory(file: &File, offset: u64, len: u64) -> bool {
    let last = offset.saturating_add(len - 1);
    let mut places = (offset..last).step_by(PROBE_STEP_BYTES).chain([last]);
    places.all(|at| read_with(file, &mut [0], at, ReadWriteFlags::NOWAIT) == Ok(1))
}

/// An open regular file.
#[derive(Debug)]
pub(super) struct OsFile {
    file: File,
    #[cfg(target_os = "linux")]
    once: ReadOnce,
    #[cfg(target_os = "linux")]
    paced: PacedReads,
}

impl OsFile {
    pub(super) fn new(file: File) -> Self {
        Self {
            file,
            #[cfg(target_os = "linux")]
            once: ReadOnce::default(),
            #[cfg(target_os = "linux")]
            paced: PacedReads::default(),
        }
    }

    /// Reserves the space from `old_len` by writes, for a file system without `fallocate`.
    fn write_zeros(&self, old_len: u64, len: u64) -> io::Result<()> {
        let mut at = old_len;
        while at < len {
            let count = usize::try_from(len - at).unwrap_or(usize::MAX).min(ZEROS.len());
            self.file.write_all_at(ZEROS.get(..count).unwrap_or_default(), at)?;
            at += count as u64;
        }
        Ok(())
    }

    /// Adds the requested and the free bytes to an error of a full disk.
    fn explain(&self, error: impl Into<io::Error>, requested_bytes: u64) -> io::Error {
        NoSpace::explain(error.into(), requested_bytes, || {
            let stat = retry(|| rustix::fs::fstatvfs(&self.file)).ok()?;
            Some(stat.f_bavail.saturating_mul(stat.f_frsize))
        })
    }

    fn take_room(&self, old_len: u64, len: u64) -> io::Result<()> {
        // macOS truncates a file that is longer than the given length.
        let end = if cfg!(target_os = "linux") { len } else { len.max(old_len) };
        match retry(|| rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, end)) {
            Err(Errno::NOTSUP | Errno::NOSYS) => self.write_zeros(old_len, len),
            result => Ok(result?),
        }
    }
}

impl VfsFile for OsFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.stat()?.len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let old_len = self.len()?;
        if len == 0 {
            return Ok(());
        }
        self.take_room(old_len, len)
            .inspect_err(|_| {
                // A failed call may have extended the file and hold the last free blocks. If the truncation fails too,
                // nothing better can be done. The first error is the one to report.
                if self.len().is_ok_and(|now| now > old_len) {
                    let _ = self.file.set_len(old_len);
                }
            })
            .map_err(|error| self.explain(error, len.saturating_sub(old_len)))
    }

    fn allocate_range(&self, offset: u64, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        // The call of macOS reserves space at the end of a file only.
        if !cfg!(target_os = "linux") {
            return Err(io::ErrorKind::Unsupported.into());
        }
        match retry(|| rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, offset, len)) {
            Err(Errno::NOTSUP | Errno::NOSYS) => Err(io::ErrorKind::Unsupported.into()),
            result => result.map_err(|error| self.explain(error, len)),
        }
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        #[cfg(target_os = "linux")]
        let read = self.paced.read_at(&self.file, buf, offset, ReadWriteFlags::empty());
        #[cfg(not(target_os = "linux"))]
        let read = retry(|| rustix::io::pread(&self.file, &mut *buf, offset));
        Ok(read?)
    }

    fn read_new(&self, len: usize, offset: u64) -> io::Result<Vec<u8>> {
        // With a pace, the pieces of the read wait for their turns.
        if self.is_paced() {
            return read_cleared(self, len, offset);
        }
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let at = offset + bytes.len() as u64;
            if retry(|| rustix::io::pread(&self.file, spare_capacity(&mut bytes), at))? == 0 {
                break;
            }
        }
        // The allocator can give more than it was asked for.
        bytes.truncate(len);
        Ok(bytes)
    }

    #[cfg(target_os = "linux")]
    fn pace_reads(&self, pace: &Arc<ReadPace>) {
        self.paced.set(pace);
    }

    #[cfg(target_os = "linux")]
    fn is_paced(&self) -> bool {
        self.paced.holding(&self.file).is_some()
    }

    #[cfg(target_os = "linux")]
    fn expect_read(&self, offset: u64, len: u64) -> io::Result<()> {
        // A length of 0 would mean the whole file.
        let Some(wanted) = std::num::NonZeroU64::new(len) else { return Ok(()) };
        if self.is_paced() || len >= PROBED_BYTES && is_in_memory(&self.file, offset, len) {
            return Ok(());
        }
        Ok(retry(|| rustix::fs::fadvise(&self.file, offset, Some(wanted), rustix::fs::Advice::WillNeed))?)
    }

    #[cfg(target_os = "linux")]
    fn read_once_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.once.is_offered(&self.file) {
            match self.paced.read_at(&self.file, buf, offset, DONT_CACHE) {
                // Another file system got the number of the device that was asked.
                Err(Errno::OPNOTSUPP) => {}
                result => return Ok(result?),
            }
        }
        self.read_at(buf, offset)
    }

    #[cfg(target_os = "linux")]
    fn start_writing(&self, offset: u64, len: u64) -> io::Result<()> {
        let Some(len) = std::num::NonZeroU64::new(len) else { return Ok(()) };
        // Starts the write-back of dirty pages. They stay in memory: the kernel drops only clean pages.
        Ok(retry(|| rustix::fs::fadvise(&self.file, offset, Some(len), rustix::fs::Advice::DontNeed))?)
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(buf, offset).map_err(|error| self.explain(error, buf.len() as u64))
    }

    // On macOS, std uses F_FULLFSYNC for both calls, because fsync does not empty the drive's cache there.
    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    fn lock_holder(&self) -> io::Result<Option<LockHolder>> {
        lock::holder_of_open(&self.file)
    }

    fn set_modified_ms(&self, modified_ms: i64) -> io::Result<()> {
        let unchanged = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let last_modification = Timespec {
            tv_sec: modified_ms.div_euclid(1_000),
            tv_nsec: modified_ms.rem_euclid(1_000) * 1_000_000,
        };
        let times = Timestamps { last_access: unchanged, last_modification };
        Ok(retry(|| rustix::fs::futimens(&self.file, &times))?)
    }

    fn stat(&self) -> io::Result<FileStat> {
        Ok(file_stat(&retry(|| rustix::fs::fstat(&self.file))?))
    }

    fn next_data(&self, from: u64) -> io::Result<Option<u64>> {
        match retry(|| rustix::fs::seek(&self.file, SeekFrom::Data(from))) {
            Ok(at) => Ok(Some(at)),
            Err(Errno::NXIO) => Ok(None),
            Err(Errno::INVAL | Errno::NOTSUP) => {
                Ok(Some(from).filter(|_| self.len().is_ok_and(|len| from < len)))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn map(&self, offset: u64, len: usize, access: MapAccess) -> io::Result<Region> {
        let refuse = |text| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        if len == 0 || isize::try_from(len).is_err() {
            return refuse("a map must have at least one byte and fit in the address space");
        }
        if !offset.is_multiple_of(rustix::param::page_size() as u64) {
            return refuse("a map must start at a page border");
        }
        let file_len = self.len()?;
        if offset.checked_add(len as u64).is_none_or(|end| end > file_len) {
            return refuse("a map must end within the file");
        }
        mmap::map(&self.file, offset, len, access)
    }
}
