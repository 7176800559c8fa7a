//! How far the log is ready ahead of its tail, and the next segment until somebody takes it.
//!
//! Owns the staged segment and the counters of [`super::preallocate`], which does the work. Across threads: one service
//! prepares; an append leaves notice of how far it is and takes the segment that is ready.

use std::sync::Arc;

use mqstore_io::sync::{AtomicBool, AtomicU64, Mutex, Ordering, Raise};
use mqstore_io::{Advice, EventCount, Region};

use super::segment_list::Segment;
use mqstore_base::store_files::StoreFiles;

/// The prewritten window is so many times what was appended since the open, so that somebody who opens a
/// store for a few messages does not write a whole one.
pub(super) const WINDOW_FACTOR: u64 = 1024;

/// But at least this.
pub(super) const LEAST_WINDOW_BYTES: u64 = 8 << 20;

/// What is prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreallocateOptions {
    /// Whether anything is.
    pub enabled: bool,
    /// Bytes of the active segment ahead of the tail that are kept ready; 0 for none.
    pub window_bytes: u64,
    /// Whether what is ready has been written to the device.
    pub prewrite: bool,
    /// Whether the window is locked in memory.
    pub lock_memory: bool,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Preallocator {
    pub(super) options: PreallocateOptions,
    /// Where the log ended when it was opened.
    pub(super) opened_at: u64,
    pub(super) staged: Mutex<Option<PreparedSegment>>,
    pub(super) apart: Mutex<Option<PrewriteMap>>,
    /// The log is ready up to here.
    pub(super) warm: AtomicU64,
    /// Whether the window is being prewritten, until it has its length again.
    pub(super) filling: AtomicBool,
    /// The tail at the last look, and the one at which nobody appended between two looks.
    pub(super) looked_at: AtomicU64,
    pub(super) idle_at: AtomicU64,
    /// Pages from here on are locked in memory.
    pub(super) locked_from: AtomicU64,
    /// The tail from which on there is something to do.
    pub(super) wake_at: AtomicU64,
    pub(super) moved: EventCount,
    pub(super) stopped: AtomicBool,
    /// The newest segment that somebody took, or made himself.
    pub(super) taken: AtomicU64,
}

/// The next segment.
#[derive(Debug)]
pub(super) struct PreparedSegment {
    pub(super) segment: Arc<Segment>,
    /// Ready up to here.
    pub(super) warm: u64,
    pub(super) apart: Option<PrewriteMap>,
}

/// The map that a segment is prewritten through.
#[derive(Debug)]
pub(super) struct PrewriteMap {
    base: u64,
    region: Region,
}

impl PrewriteMap {
    /// The map of `segment`, which is made unless it is in `slot`.
    pub(super) fn of(slot: &mut Option<Self>, segment: &Segment) -> std::io::Result<Region> {
        let base = segment.base_offset();
        if let Some(apart) = slot.as_ref().filter(|apart| apart.base == base) {
            return Ok(apart.region.clone());
        }
        let region = segment.map_apart()?;
        // An offer; without it syncs cost more.
        let _ = region.advise(0..region.len(), Advice::Random);
        *slot = Some(Self { base, region: region.clone() });
        Ok(region)
    }
}

impl Preallocator {
    pub(super) fn new(options: PreallocateOptions, end: u64) -> Self {
        Self {
            options,
            opened_at: end,
            staged: Mutex::new(None),
            apart: Mutex::new(None),
            warm: AtomicU64::new(end),
            filling: AtomicBool::new(false),
            looked_at: AtomicU64::new(end),
            idle_at: AtomicU64::new(u64::MAX),
            locked_from: AtomicU64::new(end),
            wake_at: AtomicU64::new(if options.enabled { 0 } else { u64::MAX }),
            moved: EventCount::new(),
            stopped: AtomicBool::new(false),
            taken: AtomicU64::new(0),
        }
    }

    /// Hears that the log reaches to `end` now.
    #[inline]
    pub(super) fn notify_end(&self, end: u64) {
        if end >= self.wake_at.load(Ordering::Relaxed) {
            self.moved.notify_all();
        }
    }

    /// The window at this tail.
    pub(super) fn window(&self, tail: u64) -> u64 {
        let limit = self.options.window_bytes;
        if !self.options.prewrite {
            return limit;
        }
        match tail.saturating_sub(self.opened_at) {
            // Whoever appends nothing needs nothing.
            0 => 0,
            appended => appended.saturating_mul(WINDOW_FACTOR).max(LEAST_WINDOW_BYTES).min(limit),
        }
    }

    /// The segment at `base`, if it is ready.
    pub(super) fn take(&self, files: &StoreFiles, base: u64) -> Option<Arc<Segment>> {
        let mut slot = self.staged.lock();
        // Nobody makes it a second time while it waits for its name.
        self.taken.raise(base, Ordering::AcqRel);
        let staged = slot.take()?;
        drop(slot);
        if staged.segment.base_offset() == base {
            self.warm.raise(base + staged.warm, Ordering::AcqRel);
            return Some(staged.segment);
        }
        // The log went on somewhere else, after an error; this one is of no use.
        let _ = files.vfs.remove_file(&staged.segment.path());
        None
    }
}
