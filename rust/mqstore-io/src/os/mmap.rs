//! Shared maps of files, and the two calls on them that the map library leaves unsafe.
//!
//! A map is a `memmap2::MmapRaw`: a pointer and a length, without a claim that the bytes do not change, because other
//! processes share the file. [`Region`] adds the rules. The address stays valid until the last region or view drops the
//! backing, whatever happens to the file's name or descriptor. No process may truncate the file below the end of the
//! map.

#![expect(unsafe_code, reason = "address arithmetic on maps and calls that take addresses")]

use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use memmap2::{Advice as MapAdvice, MmapOptions, MmapRaw, UncheckedAdvice};

use super::descriptor::{retry, retry_open};
use crate::region::{Advice, Backing, MapAccess, Region};

/// Maps `len` bytes of `file` from `offset`. The caller has checked both against the file.
pub(super) fn map(file: &File, offset: u64, len: usize, access: MapAccess) -> io::Result<Region> {
    let mut options = MmapOptions::new();
    options.offset(offset).len(len);
    let map = match access {
        MapAccess::Read => retry_open(|| options.map_raw_read_only(file))?,
        MapAccess::ReadWrite => retry_open(|| options.map_raw(file))?,
    };
    // A forked child must not write to the parent's store through inherited memory.
    #[cfg(target_os = "linux")]
    if access == MapAccess::ReadWrite {
        retry(|| map.advise(MapAdvice::DontFork))?;
    }
    let base = NonNull::new(map.as_mut_ptr()).ok_or(io::ErrorKind::OutOfMemory)?;
    let backing = Arc::new(Mapped { map });
    // SAFETY: the map covers `base` to `base + len` with the protection of `access` until dropped.
    Ok(unsafe { Region::from_raw(base, len, access, backing) })
}

#[derive(Debug)]
struct Mapped {
    map: MmapRaw,
}

impl Backing for Mapped {
    fn flush(&self, at: usize, len: usize) -> io::Result<()> {
        retry(|| self.map.flush_range(at, len))
    }

    fn advise(&self, at: usize, len: usize, advice: Advice) -> io::Result<()> {
        match advice {
            Advice::WillNeed => retry(|| self.map.advise_range(MapAdvice::WillNeed, at, len)),
            Advice::Random => retry(|| self.map.advise_range(MapAdvice::Random, at, len)),
            Advice::Sequential => retry(|| self.map.advise_range(MapAdvice::Sequential, at, len)),
            Advice::DontNeed => {
                // SAFETY: to drop pages of a shared map loses nothing. They are the file's pages, and the next access
                // reads them again.
                retry(|| unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, at, len) })
            }
            Advice::PopulateWrite => self.populate(at, len),
        }
    }

    fn set_locked(&self, at: usize, len: usize, locked: bool) -> io::Result<()> {
        let page = rustix::param::page_size();
        let start = at - at % page;
        let len = len + (at - start);
        let address = self.address(start).cast();
        let result = if locked {
            // SAFETY: the range is in the map (the region has checked it), and the map's base is a page border.
            retry(|| unsafe { rustix::mm::mlock(address, len) })
        } else {
            // SAFETY: as above; an unlock changes no byte.
            retry(|| unsafe { rustix::mm::munlock(address, len) })
        };
        Ok(result?)
    }
}

impl Mapped {
    fn address(&self, at: usize) -> *mut u8 {
        // SAFETY: callers pass positions that the region has checked against the map.
        unsafe { self.map.as_mut_ptr().add(at) }
    }

    #[cfg(target_os = "linux")]
    fn populate(&self, at: usize, len: usize) -> io::Result<()> {
        match retry(|| self.map.advise_range(MapAdvice::PopulateWrite, at, len)) {
            // Kernels before 5.14 do not have this call.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                self.touch(at, len);
                Ok(())
            }
            result => result,
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn populate(&self, at: usize, len: usize) -> io::Result<()> {
        self.touch(at, len);
        Ok(())
    }

    /// Faults in each page for writes, with an atomic OR of 0 on one byte.
    fn touch(&self, at: usize, len: usize) {
        let page = rustix::param::page_size();
        let first = at - at % page;
        for position in (first..at + len).step_by(page) {
            // Touches the first byte of the range, not of the page: the rest of the page is not the caller's.
            let place = self.address(position.max(at));
            // SAFETY: the byte is in the map, and the atomic access does not change the value.
            let byte = unsafe { AtomicU8::from_ptr(place) };
            byte.fetch_or(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touching_pages_changes_nothing() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(3 * 4096).unwrap();
        let map = MmapOptions::new().map_raw(&file).unwrap();
        let mapped = Mapped { map };
        mapped.touch(4000, 5000);
        mapped.touch(0, 1);
        let mut bytes = vec![1; 3 * 4096];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0));
    }
}
