//! Regions with an observer for writes and flushes. With them, a simulated file, or a file with faults, sees the
//! changes of its maps.

use std::fmt;
use std::io;
use std::sync::Arc;

use super::{Advice, Backing, MapAccess, Region, RegionError};

/// The observer of the maps of a file.
pub(crate) trait MapObserver: Send + Sync + fmt::Debug {
    /// Handles a write to bytes `at` to `at + len` of the map: calls `copy` once, which writes, or fails.
    fn write(&self, at: usize, len: usize, copy: &mut dyn FnMut()) -> Result<(), RegionError>;
    /// Handles a flush of bytes `at` to `at + len` of the map.
    fn flush(&self, at: usize, len: usize) -> io::Result<()>;
}

/// A part of another region's memory, with an observer.
#[derive(Debug)]
struct Observed {
    observer: Arc<dyn MapObserver>,
    /// Keeps the memory alive.
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
    /// Returns bytes `at` to `at + len` of this region as a region of its own. It shares the memory, and `observer`
    /// handles its writes and flushes.
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

    /// Returns the number of other handles, maps and views of this memory.
    #[cfg(feature = "sim")]
    pub(crate) fn sharers(&self) -> usize {
        Arc::strong_count(&self.backing) - 1
    }
}
