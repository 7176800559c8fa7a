//! The state of preallocation: how far the log is prepared after its tail, and the prepared next segment.
//!
//! This module owns the staged segment and the counters of [`super::preallocate`], which does the work. Across threads:
//! one service prepares; an append reports the published offset and takes the prepared segment.

use std::sync::Arc;

use mqstore_io::sync::{AtomicBool, AtomicU64, Mutex, Ordering, Raise};
use mqstore_io::{Advice, EventCount, Region};

use super::segment_list::Segment;
use mqstore_base::store_files::StoreFiles;

/// Ratio of the window to the bytes appended since the open. A program that opens a store for a few messages takes
/// little disk space, and a fast one soon has a complete window.
const WINDOW_FACTOR: u64 = 4;

/// The same ratio for the prewritten window.
pub(super) const PREWRITE_FACTOR: u64 = 64;

/// Maximum bytes that get disk space at [`WINDOW_FACTOR`] times the bytes appended since the open, unless the window is
/// longer.
const STEEP_ALLOCATED_BYTES: u64 = 64 << 20;

/// Maximum bytes that get disk space at once after that: as many as were appended since the open. An append that meets
/// the end of the space waits for the file system, so the space must last while this service does not get a processor.
const MOST_ALLOCATED_BYTES: u64 = 256 << 20;

/// The options of preallocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreallocateOptions {
    /// Whether preallocation is on.
    pub enabled: bool,
    /// Bytes of the active segment after the tail that are kept prepared; 0 for none.
    pub window_bytes: u64,
    /// Whether the window is also written to the device.
    pub prewrite: bool,
    /// Whether the window is locked in memory.
    pub lock_memory: bool,
}

/// The state of preallocation, as the module describes it.
#[derive(Debug)]
pub(crate) struct Preallocator {
    pub(super) options: PreallocateOptions,
    /// Minimum bytes after the tail that get disk space at once.
    pub(super) least_bytes: u64,
    /// End of the log when it was opened, or when its last segment was closed early.
    pub(super) began_at: AtomicU64,
    pub(super) staged: Mutex<Option<PreparedSegment>>,
    pub(super) apart: Mutex<Option<PrewriteMap>>,
    /// Log offset up to which the log is prepared.
    pub(super) warm: AtomicU64,
    /// Whether the window is being filled, until it is complete again.
    pub(super) filling: AtomicBool,
    /// Whether large appends have overtaken this service and are written through the file.
    pub(super) overtaken: AtomicBool,
    /// The tail at the last check, and the tail at which it stayed unchanged between two checks.
    pub(super) looked_at: AtomicU64,
    pub(super) idle_at: AtomicU64,
    /// Log offset from which pages are locked in memory.
    pub(super) locked_from: AtomicU64,
    /// The tail from which a step is due.
    pub(super) wake_at: AtomicU64,
    pub(super) moved: EventCount,
    pub(super) stopped: AtomicBool,
    /// Base offset of the newest segment that an append took or created.
    pub(super) taken: AtomicU64,
}

/// The prepared next segment.
#[derive(Debug)]
pub(super) struct PreparedSegment {
    pub(super) segment: Arc<Segment>,
    /// Byte length that is prepared.
    pub(super) warm: u64,
    pub(super) apart: Option<PrewriteMap>,
}

/// The map through which a segment is prewritten.
#[derive(Debug)]
pub(super) struct PrewriteMap {
    base: u64,
    region: Region,
}

impl PrewriteMap {
    /// Returns the map of `segment`, which is created unless it is in `slot`.
    pub(super) fn of(slot: &mut Option<Self>, segment: &Segment) -> std::io::Result<Region> {
        let base = segment.base_offset();
        if let Some(apart) = slot.as_ref().filter(|apart| apart.base == base) {
            return Ok(apart.region.clone());
        }
        let region = segment.map_apart()?;
        // The advice is optional; without it syncs cost more.
        let _ = region.advise(0..region.len(), Advice::Random);
        *slot = Some(Self { base, region: region.clone() });
        Ok(region)
    }
}

impl Preallocator {
    pub(super) fn new(options: PreallocateOptions, least_bytes: u64, end: u64) -> Self {
        Self {
            options,
            least_bytes,
            began_at: AtomicU64::new(end),
            staged: Mutex::new(None),
            apart: Mutex::new(None),
            warm: AtomicU64::new(end),
            filling: AtomicBool::new(false),
            overtaken: AtomicBool::new(false),
            looked_at: AtomicU64::new(end),
            idle_at: AtomicU64::new(u64::MAX),
            locked_from: AtomicU64::new(end),
            wake_at: AtomicU64::new(if options.enabled { 0 } else { u64::MAX }),
            moved: EventCount::new(),
            stopped: AtomicBool::new(false),
            taken: AtomicU64::new(0),
        }
    }

    /// Reports that the published offset is `end`.
    #[inline]
    pub(super) fn notify_end(&self, end: u64) {
        if end >= self.wake_at.load(Ordering::Relaxed) {
            self.moved.notify_all();
        }
    }

    /// Notes whether the newest append was written through the file because its pages were absent.
    #[inline]
    pub(super) fn set_overtaken(&self, overtaken: bool) {
        // Without the check, each append would take the cache line from the other processor.
        if self.overtaken.load(Ordering::Relaxed) != overtaken {
            self.overtaken.store(overtaken, Ordering::Relaxed);
        }
    }

    /// Returns the bytes before this tail that were appended since the open.
    fn appended_to(&self, tail: u64) -> u64 {
        tail.saturating_sub(self.began_at.load(Ordering::Acquire))
    }

    /// Begins again at `base`, as after an open: with little disk space, and without a prepared segment.
    pub(super) fn begin_again(&self, files: &StoreFiles, base: u64) {
        self.began_at.raise(base, Ordering::AcqRel);
        if let Some(staged) = self.staged.lock().take() {
            // If this fails, the next open removes the file with the staging folder.
            let _ = files.vfs.remove_file(&staged.segment.path());
        }
    }

    pub(super) fn window(&self, tail: u64) -> u64 {
        let prewrite = self.options.prewrite;
        match self.appended_to(tail) {
            // Without appends, nothing is prewritten.
            0 if prewrite => 0,
            appended => {
                let factor = if prewrite { PREWRITE_FACTOR } else { WINDOW_FACTOR };
                appended.saturating_mul(factor).max(self.least_bytes).min(self.options.window_bytes)
            }
        }
    }

    /// Returns the number of bytes after this tail that should have disk space.
    pub(super) fn allocation(&self, tail: u64) -> u64 {
        let appended = self.appended_to(tail);
        let steep = appended.saturating_mul(WINDOW_FACTOR).min(STEEP_ALLOCATED_BYTES);
        steep.max(appended.min(MOST_ALLOCATED_BYTES)).max(self.least_bytes).max(self.window(tail))
    }

    pub(super) fn take(&self, files: &StoreFiles, base: u64) -> Option<Arc<Segment>> {
        let mut slot = self.staged.lock();
        // The service must not create this segment again while it waits for its name.
        self.taken.raise(base, Ordering::AcqRel);
        let staged = slot.take()?;
        drop(slot);
        if staged.segment.base_offset() == base {
            self.warm.raise(base + staged.warm, Ordering::AcqRel);
            return Some(staged.segment);
        }
        // After an error the log continued at another offset, so this segment is useless.
        let _ = files.vfs.remove_file(&staged.segment.path());
        None
    }
}
