//! What is made ready before the writer gets there, so that no append waits for the disk.
//!
//! ```text
//!   active segment                                       next segment, in the staging folder
//!   written ... tail │ window: present and writable │    made once the active one is half full:
//!                      64 MiB, moved on by half             allocated, synced; without its name
//! ```
//!
//! * **The next segment** is allocated and synced aside. Where records are written through the file
//!   (`sync`, `pooled`) it is also filled with zeros and synced, piece by piece and with pauses: a sync
//!   after a write into blocks that were written before has no block map to change. It gets its name
//!   only when its first record is reserved, because RocketMQ deletes segments without records.
//! * **The window** of a mapped segment is populated, so that appends meet no page fault, advised, and
//!   kept in memory on request (`lock_memory`).
//!
//! Nothing here changes a byte that a reader could see: the tail stays zero. Across a crash: whatever
//! lies in the staging folder is garbage. Across threads: one service calls [`CommitLog::prepare`]; who
//! appends leaves notice of how far it is, and takes the segment that is ready.
//!
//! Source of the idea: `AllocateMappedFileService`, `DefaultMappedFile#warmMappedFile`.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use mqstore_io::switch;
use mqstore_io::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use mqstore_io::{Advice, EventCount, Region};

use super::append::CommitLog;
use super::segments::Segment;
use crate::error::{IoContext, StoreError};
use crate::files::StoreFiles;

/// Bytes that are populated, or filled with zeros, in one step.
const STEP_BYTES: u64 = 4 << 20;

/// What is prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AheadOptions {
    /// Whether anything is.
    pub enabled: bool,
    /// Bytes of the active segment ahead of the tail that are kept present; 0 for none.
    pub window_bytes: u64,
    /// Whether the next segment is filled with zeros and synced.
    pub prewrite: bool,
    /// Whether the window is locked in memory.
    pub lock_memory: bool,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Ahead {
    options: AheadOptions,
    staged: Mutex<Option<Staged>>,
    /// The log is populated up to here.
    warm: AtomicU64,
    /// Pages from here on are locked in memory.
    locked_from: AtomicU64,
    /// The tail from which on there is something to do.
    wake_at: AtomicU64,
    moved: EventCount,
    stopped: AtomicBool,
    /// The newest segment that somebody took, or made himself.
    taken: AtomicU64,
}

/// The next segment.
#[derive(Debug)]
struct Staged {
    segment: Arc<Segment>,
    /// Filled with zeros and synced up to here.
    filled: u64,
    /// Populated up to here.
    warm: u64,
}

impl Ahead {
    pub(super) fn new(options: AheadOptions, end: u64) -> Self {
        Self {
            options,
            staged: Mutex::new(None),
            warm: AtomicU64::new(end),
            locked_from: AtomicU64::new(end),
            wake_at: AtomicU64::new(if options.enabled { 0 } else { u64::MAX }),
            moved: EventCount::new(),
            stopped: AtomicBool::new(false),
            taken: AtomicU64::new(0),
        }
    }

    /// Hears that the log reaches to `end` now.
    #[inline]
    pub(super) fn notice(&self, end: u64) {
        if end >= self.wake_at.load(Ordering::Relaxed) {
            self.moved.notify_all();
        }
    }

    /// The segment at `base`, if it is ready.
    pub(super) fn take(&self, files: &StoreFiles, base: u64) -> Option<Arc<Segment>> {
        let mut slot = self.staged.lock();
        // Nobody makes it a second time while it waits for its name.
        self.taken.fetch_max(base, Ordering::AcqRel);
        let staged = slot.take()?;
        drop(slot);
        if staged.segment.base_offset() == base {
            self.warm.fetch_max(base + staged.warm, Ordering::AcqRel);
            return Some(staged.segment);
        }
        // The log went on somewhere else, after an error; this one is of no use.
        let _ = files.vfs.remove_file(&staged.segment.path());
        None
    }
}

impl CommitLog {
    /// Waits until there is something to prepare, at most `timeout`; whether there is.
    pub fn wait_to_prepare(&self, timeout: Duration) -> bool {
        let due = || {
            self.ahead.stopped.load(Ordering::Acquire)
                || self.reserved() >= self.ahead.wake_at.load(Ordering::Acquire)
        };
        self.ahead.moved.wait_until(Some(timeout), due)
    }

    /// Ends [`Self::wait_to_prepare`] for good and removes the segment that nobody took.
    pub fn stop_preparing(&self) {
        self.ahead.stopped.store(true, Ordering::Release);
        self.ahead.moved.notify_all();
        if let Some(staged) = self.ahead.staged.lock().take() {
            // It is garbage by its place; the next open removes it otherwise.
            let _ = self.files.vfs.remove_file(&staged.segment.path());
        }
    }

    /// Does one step of what is to be done ahead of the tail; `false` when nothing was left to do.
    ///
    /// # Errors
    /// Those of making a segment, which nobody needs to act on: the append that needs the segment makes
    /// it and meets the error itself.
    pub fn prepare(&self) -> Result<bool, StoreError> {
        if !self.ahead.options.enabled || self.ahead.stopped.load(Ordering::Acquire) {
            return Ok(false);
        }
        let Some(active) = self.active().map(|active| Arc::clone(&active.segment)) else { return Ok(false) };
        let tail = self.reserved();
        let warmed = self.warm_active(&active, tail)?;
        let next = !warmed && self.prepare_next(&active, tail)?;
        if !warmed && !next {
            self.ahead.wake_at.store(self.next_notice(&active, tail), Ordering::Release);
        }
        Ok(warmed || next)
    }

    /// The tail at which there is something to do again.
    fn next_notice(&self, active: &Segment, tail: u64) -> u64 {
        let window = self.ahead.options.window_bytes;
        let half = half_of(active);
        let staged = self.ahead.staged.lock().is_some();
        let next = if staged || tail >= half { active.end_offset() } else { half };
        if window == 0 {
            return next;
        }
        let warm = self.ahead.warm.load(Ordering::Acquire);
        next.min(if warm >= active.end_offset() { next } else { warm.saturating_sub(window / 2) })
    }

    /// Populates the window of the active segment, half a window at a time.
    fn warm_active(&self, active: &Segment, tail: u64) -> Result<bool, StoreError> {
        let window = self.ahead.options.window_bytes;
        let mut warm = self.ahead.warm.load(Ordering::Acquire).max(tail).max(active.base_offset());
        let target = tail.saturating_add(window).min(active.end_offset());
        if warm >= target || warm - tail > window / 2 {
            return Ok(false);
        }
        let region = active.region().at_file(|| active.path(), "mapping the active segment")?;
        while warm < target && !self.ahead.stopped.load(Ordering::Acquire) {
            let end = (warm + STEP_BYTES).min(target);
            self.populate(&region, active.base_offset(), warm..end, tail)?;
            warm = end;
            self.ahead.warm.fetch_max(warm, Ordering::AcqRel);
        }
        Ok(true)
    }

    fn populate(&self, region: &Region, base: u64, range: Range<u64>, tail: u64) -> Result<(), StoreError> {
        let in_region = |range: Range<u64>| (range.start - base) as usize..(range.end - base) as usize;
        // Advice is an offer to the kernel; an append that faults is only slower.
        let _ = region.advise(in_region(range.clone()), Advice::PopulateWrite);
        if self.ahead.options.lock_memory {
            region.lock_memory(in_region(range)).map_err(|error| cannot_lock(&error))?;
            let behind = self.ahead.locked_from.swap(tail, Ordering::AcqRel).max(base);
            if behind < tail {
                let _ = region.unlock_memory(in_region(behind..tail));
            }
        }
        Ok(())
    }

    /// Makes the next segment, or the next piece of it.
    fn prepare_next(&self, active: &Segment, tail: u64) -> Result<bool, StoreError> {
        if tail < half_of(active) {
            return Ok(false);
        }
        // Held while a segment is made: who needs it now would have to make the same one.
        let mut slot = self.ahead.staged.lock();
        let base = active.end_offset();
        if self.reserved() >= base || self.ahead.taken.load(Ordering::Acquire) >= base {
            return Ok(false);
        }
        match &mut *slot {
            None => {
                let segment = self.stage_segment("ahead", base)?;
                *slot = Some(Staged { segment, filled: 0, warm: 0 });
                Ok(true)
            }
            Some(staged) => self.improve(staged, tail, base),
        }
    }

    fn improve(&self, staged: &mut Staged, tail: u64, base: u64) -> Result<bool, StoreError> {
        let options = self.ahead.options;
        let len = staged.segment.len();
        if options.prewrite && staged.filled < len {
            let end = (staged.filled + STEP_BYTES).min(len);
            let zeros = vec![0; (end - staged.filled) as usize];
            let written = staged.segment.file().and_then(|file| {
                file.write_all_at(&zeros, staged.filled)?;
                switch::step("commit_log.sync_prewritten", || file.sync_data())
            });
            written.at_file(|| staged.segment.path(), "preparing a log segment")?;
            staged.filled = end;
            return Ok(true);
        }
        let wanted = (tail + options.window_bytes).saturating_sub(base).min(len);
        if staged.warm < wanted {
            let end = (staged.warm + STEP_BYTES).min(wanted);
            let region =
                staged.segment.region().at_file(|| staged.segment.path(), "mapping a log segment")?;
            let _ = region.advise(staged.warm as usize..end as usize, Advice::PopulateWrite);
            staged.warm = end;
            return Ok(true);
        }
        Ok(false)
    }

    /// With `lock_memory`: finds out at the open, not later, whether the system allows it.
    pub(super) fn lock_first_pages(&self) -> Result<(), StoreError> {
        if !(self.ahead.options.enabled && self.ahead.options.lock_memory) {
            return Ok(());
        }
        let Some(active) = self.active() else { return Ok(()) };
        let from = self.reserved() - active.segment.base_offset();
        let to = (from + self.ahead.options.window_bytes).min(active.segment.len());
        active.region.lock_memory(from as usize..to as usize).map_err(|error| cannot_lock(&error))
    }
}

fn half_of(segment: &Segment) -> u64 {
    segment.base_offset() + segment.len() / 2
}

fn cannot_lock(error: &std::io::Error) -> StoreError {
    StoreError::InvalidOption {
        option: "lock_memory",
        reason: format!(
            "the system does not let this process lock its memory ({error}); raise the limit (ulimit -l) or open without it"
        ),
    }
}
