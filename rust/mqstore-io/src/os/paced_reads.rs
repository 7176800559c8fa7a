//! Reads of a file whose reads from the disk have a pace.
//!
//! The flag `RWF_NOWAIT` makes a read return at once if its bytes are not in memory. So the read itself finds out
//! whether it needs the disk. Current kernels (6.18) also request the missing pages then, so they arrive while the read
//! waits for its turn. A file system without the flag cannot tell, and its reads have no pace.
//!
//! While the pace holds, the system fetches nothing in advance: it would take up to the device's `read_ahead_kb`
//! (often 128 KiB, but up to 8 MiB) before each of these reads has its turn.

use std::fs::File;
use std::io::IoSliceMut;

use rustix::fs::Advice;
use rustix::io::{Errno, ReadWriteFlags};

use super::descriptor::retry;
use crate::read_pace::ReadPace;
use crate::sync::{Arc, AtomicBool, OnceLock, Ordering};

/// Maximum bytes of a read from the disk with a pace. A sync waits for one such read of each reader, which takes a device of
/// 500 MB/s a quarter of a millisecond; smaller pieces would cost more requests than that gains.
const PIECE_BYTES: usize = 128 << 10;

/// The pace of one open file.
#[derive(Debug, Default)]
pub(super) struct PacedReads {
    pace: OnceLock<Arc<ReadPace>>,
    /// Whether the system fetches nothing in advance for this file.
    without_ahead: AtomicBool,
}

impl PacedReads {
    /// Gives the file a pace, if it has none.
    pub(super) fn set(&self, pace: &Arc<ReadPace>) {
        self.pace.get_or_init(|| Arc::clone(pace));
    }

    /// Returns the pace of `file`, if it holds now.
    pub(super) fn holding(&self, file: &File) -> Option<&ReadPace> {
        let pace = self.pace.get()?;
        let holds = pace.holds();
        if self.without_ahead.load(Ordering::Relaxed) != holds {
            self.without_ahead.store(holds, Ordering::Relaxed);
            let advice = if holds { Advice::Random } else { Advice::Normal };
            // It is a hint. Without it, more is fetched at once.
            let _ = retry(|| rustix::fs::fadvise(file, 0, None, advice));
        }
        holds.then_some(pace)
    }

    /// Reads up to `buf.len()` bytes from `offset`, like `preadv2` with `flags`.
    pub(super) fn read_at(
        &self,
        file: &File,
        buf: &mut [u8],
        offset: u64,
        flags: ReadWriteFlags,
    ) -> Result<usize, Errno> {
        let Some(pace) = self.holding(file) else { return read_with(file, buf, offset, flags) };
        let len = buf.len().min(PIECE_BYTES);
        let piece = buf.get_mut(..len).unwrap_or_default();
        match read_with(file, piece, offset, flags | ReadWriteFlags::NOWAIT) {
            Err(Errno::AGAIN) => pace.wait(len),
            // Kernels and file systems without the flag.
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS | Errno::PERM) => {}
            result => return result,
        }
        read_with(file, piece, offset, flags)
    }
}

/// Reads like `preadv2`; without flags like `pread`, which every kernel and sandbox has.
pub(super) fn read_with(
    file: &File,
    buf: &mut [u8],
    offset: u64,
    flags: ReadWriteFlags,
) -> Result<usize, Errno> {
    if flags.is_empty() {
        return retry(|| rustix::io::pread(file, &mut *buf, offset));
    }
    retry(|| rustix::io::preadv2(file, &mut [IoSliceMut::new(&mut *buf)], offset, flags))
}
