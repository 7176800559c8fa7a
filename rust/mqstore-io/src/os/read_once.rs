//! Reads that leave no new pages in memory, and the file systems that offer them.
//!
//! Linux 6.14 has the flag `RWF_DONTCACHE`: such a read uses the pages in memory and drops only the pages that it
//! brought in itself. Each file system offers it or not, so the first such read of a file system is a probe. Without
//! the flag, the reads are ordinary ones: `posix_fadvise(DONTNEED)` would also drop the pages that other readers use.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::OnceLock;

use parking_lot::Mutex;
use rustix::io::{Errno, ReadWriteFlags};

use super::descriptor::retry;
use super::paced_reads::read_with;

/// `RWF_DONTCACHE` of `linux/fs.h`, which rustix does not name.
pub(super) const DONT_CACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// An offset after the end of every file of a store.
const AFTER_ALL_FILES: u64 = 1 << 40;

/// The answers of the file systems that were asked, by device number.
static ANSWERS: Mutex<BTreeMap<u64, bool>> = Mutex::new(BTreeMap::new());

/// Whether a file can be read in this way; found out at the first use.
#[derive(Debug, Default)]
pub(super) struct ReadOnce(OnceLock<bool>);

impl ReadOnce {
    /// Returns whether the file system of `file` offers such reads.
    pub(super) fn is_offered(&self, file: &File) -> bool {
        *self.0.get_or_init(|| offers(file))
    }
}

/// Asks the file system of `file`, once for each of them.
fn offers(file: &File) -> bool {
    let Ok(stat) = retry(|| rustix::fs::fstat(file)) else { return false };
    #[expect(clippy::useless_conversion, reason = "the field is shorter on machines of 32 bits")]
    let device = u64::from(stat.st_dev);
    if let Some(answer) = ANSWERS.lock().get(&device) {
        return *answer;
    }
    // The kernel checks the flags before it looks for the byte. After the end of a file it reads nothing ahead.
    let answer = match read_with(file, &mut [0], AFTER_ALL_FILES, DONT_CACHE) {
        Ok(_) => true,
        // Kernels and file systems without the flag, and sandboxes without the call.
        Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS | Errno::PERM) => false,
        // This file cannot be read, which says nothing about the others.
        Err(_) => return false,
    };
    ANSWERS.lock().insert(device, answer);
    answer
}
