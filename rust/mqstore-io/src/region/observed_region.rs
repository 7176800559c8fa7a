//! Regions whose writes and flushes somebody watches: how a simulated file, or one with faults, sees what is done to
//! its maps.

use std::fmt;
use std::io;
use std::sync::Arc;

use super::{Advice, Backing, MapAccess, Region, RegionError};

/// What such a file wants to know about a map of it.
pub(crate) trait MapObserver: Send + Sync + fmt::Debug {
    /// A write to bytes `at` to `at + len` of the map; calls `copy` once, which does it, or fails.
    fn write(&self, at: usize, len: usize, copy: &mut dyn FnMut()) -> Result<(), RegionError>;
    /// A flush of bytes `at` to `at + len` of the map.
    fn flush(&self, at: usize, len: usize) -> io::Result<()>;
}

/// Part of another region's memory, with somebody who watches.
#[derive(Debug)]
struct Observed {
    observer: Arc<dyn MapObserver>,
    /// Keeps the memory.
    _memory: Region,
}

impl Backing for Observed {
    fn flush(&self, at: usize, len: usize) -> io::Result<()> {
        self.observer.flush(at, len)
    }
    fn advise(&self, _: usize, _: usize, _: Advice) -> io::Result<()> {
        Ok(())
    }
    fn set_locked(&self, _: usize, _: usize, _: bool) -> io::Result<()> {
        Ok(())
    }
    fn observe(&self, at: usize, len: usize, copy: &mut dyn FnMut()) -> Result<(), RegionError> {
        self.observer.write(at, len, copy)
    }
}

impl Region {
    /// Bytes `at` to `at + len` of this region as a region of its own: the same memory, but writes and
    /// flushes are told to `observer`.
    pub(crate) fn observed(
        &self,
        at: usize,
        len: usize,
        access: MapAccess,
        observer: Arc<dyn MapObserver>,
    ) -> Result<Self, RegionError> {
        let base = self.range(at, len)?;
        let writable = access == MapAccess::ReadWrite;
        let backing = Arc::new(Observed { observer, _memory: self.clone() });
        Ok(Self { base, len, writable, observed: true, backing })
    }

    /// How many other handles, maps and views keep this memory.
    #[cfg(feature = "sim")]
    pub(crate) fn sharers(&self) -> usize {
        Arc::strong_count(&self.backing) - 1
    }
}
