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

/// Maximum bytes of a read from the disk with a pace. A sync waits for one such read of each reader, which takes a
/// device of 500 MB/s a quarter of a millisecond; smaller pieces would cost more requests than that gains.
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
        read_in_turn(pace, len, |more| read_with(file, piece, offset, flags | more))
    }
}

/// Makes a read of `bytes` bytes with `read`, which gets additional flags: first only from memory. If that is not
/// enough, the read waits for its turn.
fn read_in_turn(
    pace: &ReadPace,
    bytes: usize,
    mut read: impl FnMut(ReadWriteFlags) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    match read(ReadWriteFlags::NOWAIT) {
        Err(Errno::AGAIN) => pace.wait(bytes),
        // Kernels and file systems without the flag. Linux 5.9 and 5.10 can return 0 also before the end of the file.
        Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS | Errno::PERM) | Ok(0) => {}
        result => return result,
    }
    read(ReadWriteFlags::empty())
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::{Clock, ManualClock};
    use crate::read_pace::{SyncCounts, SyncSource};

    #[derive(Debug)]
    struct NoWriter;

    impl SyncSource for NoWriter {
        fn counts(&self) -> Option<SyncCounts> {
            None
        }
    }

    #[test]
    fn a_read_is_made_again_unless_its_bytes_came_from_memory() {
        let clock = Arc::new(ManualClock::new(0));
        let pace = ReadPace::new(Arc::<ManualClock>::clone(&clock), Box::new(NoWriter));
        // The turn after this one is later.
        pace.wait(1 << 20);
        for (first, calls, waits) in [
            (Ok(100), 1, false),
            (Err(Errno::IO), 1, false),
            (Err(Errno::AGAIN), 2, true),
            (Err(Errno::OPNOTSUPP), 2, false),
            (Err(Errno::PERM), 2, false),
            // A kernel that says so before the end of the file.
            (Ok(0), 2, false),
        ] {
            let (mut count, before) = (0, clock.monotonic());
            let found = read_in_turn(&pace, 100, |flags| {
                count += 1;
                if flags.contains(ReadWriteFlags::NOWAIT) { first } else { Ok(77) }
            });
            assert_eq!((found, count), (if calls == 1 { first } else { Ok(77) }, calls), "{first:?}");
            assert_eq!(clock.monotonic().saturating_sub(before) > Duration::ZERO, waits, "{first:?}");
        }
    }
}
