//! Preallocation: prepares the log after the tail, so that no append waits for the disk.
//!
//! ```text
//!   active segment                                       next segment, in the staging folder
//!   written ... tail │ window: present and writable, │ hole     created once the active one is half full:
//!                      or prewritten                            its first bytes allocated, synced; without its name
//! ```
//!
//! * **Space**: a segment has its full length from the start, but disk space only for some bytes after the tail: 1 MiB
//!   at first, then more with the bytes appended since the open, up to 256 MiB. Near a full disk it is an eighth of the
//!   free space. An append that meets the end of the space reserves more itself.
//! * **The next segment** is created and synced in the staging folder. It gets its name only when its first record
//!   gets its offset, because RocketMQ deletes segments without records.
//! * **The window** of a mapped segment is faulted in ahead of the appends, so that they meet no page fault. On request
//!   (`lock_memory`) it is locked in memory. It is up to 64 MiB long. It advances in small steps with pauses, and without
//!   pauses once half of it is used: a long run of steps would take the processor from appends.
//!   Large appends that overtake the window are written through the file. That creates pages for less than the window
//!   costs, so the window then stays empty until a small append or a rest.
//! * **Prewriting**: with `sync`, a window of up to 128 MiB, and the same length of the next segment, is also written to
//!   the device before it holds a record. Then a later sync needs no change of the block map and no journal. A prewriting
//!   step delays syncs of records. So the window is filled while no thread appends, or once three quarters of it are
//!   used, in small steps with pauses.
//! * `pooled` has no window: its appends never touch the file, and its large writes create pages faster than a window
//!   would.
//!
//! Prewriting writes no zeros. It makes pages of the file present and writable, which marks them dirty with the bytes
//! that they hold, and lets the system write them back. So it needs no lock and cannot overwrite a record, however far
//! the writer advances meanwhile. The map has the advice for random reads, so that the page cache uses pages of the
//! smallest size. A long write or read-ahead can leave a page of 2 MiB, and the sync of one record in such a page costs
//! half as much again.
//!
//! Preallocation changes no byte that a reader could see: the tail stays zero. Across a crash: files in the staging
//! folder are garbage. Across threads: one service calls [`CommitLog::prepare`]; an append reports the published offset
//! and takes the prepared segment. The window is written back through its own map and its own open file. The system
//! reports a failed write once to each open file, so syncs of records still get their report. A failed prewrite stops
//! the log like any other failure of the file.
//!
//! Source of the idea: `AllocateMappedFileService`, `DefaultMappedFile#warmMappedFile`.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mqstore_io::switch;
use mqstore_io::sync::{Ordering, Raise};
use mqstore_io::vfs::parent_dir;
use mqstore_io::{Advice, NoSpace, Region, is_disk_full};

use super::log::CommitLog;
use super::preallocator::{PREWRITE_FACTOR, PreparedSegment, PrewriteMap};
use super::roll::FILLER_BYTES;
use super::segment_list::Segment;
use mqstore_base::error::{IoContext, StoreError};

/// Bytes populated in one step. Calls that map a file wait for a step.
const STEP_BYTES: u64 = 1 << 20;

/// The pause after a populating step while more than half of the window is ready. With it, the window advances by up to
/// 0.8 GB a second.
const POPULATE_REST: Duration = Duration::from_millis(1);

/// The part of the window that is used when the next populating step is due.
const DUE_PART: u64 = 16;

/// Maximum bytes prewritten in one step: a sync of records may have to wait for one step.
const PREWRITE_BYTES: u64 = 1 << 20;

/// Bytes of the prepared window for which a pause takes as long as the step before it.
const REST_STEP_BYTES: u64 = 8 << 20;

/// The part of a disk's free bytes that one window may take: queues, index and metadata need space too.
const FREE_PART: u64 = 8;

/// Maximum pause after a prewriting step, as a multiple of the duration of the step. The pause is shorter when little
/// of the window is left.
const MOST_REST: u64 = 8;

impl CommitLog {
    /// Waits until the window or the next segment needs work, at most for `timeout`. Returns whether work may exist.
    pub fn wait_to_prepare(&self, timeout: Duration) -> bool {
        let due = || {
            self.preallocator.stopped.load(Ordering::Acquire)
                || self.appended() >= self.preallocator.wake_at.load(Ordering::Acquire)
        };
        if self.preallocator.moved.wait_until(Some(timeout), due) {
            return true;
        }
        let tail = self.appended();
        let idle = self.preallocator.looked_at.swap(tail, Ordering::AcqRel) == tail;
        if idle {
            self.preallocator.idle_at.store(tail, Ordering::Release);
        }
        idle && (self.preallocator.overtaken.swap(false, Ordering::AcqRel)
            || self.preallocator.options.prewrite)
    }

    /// Ends [`Self::wait_to_prepare`] for good and removes a prepared segment that no append took.
    pub fn stop_preparing(&self) {
        self.preallocator.stopped.store(true, Ordering::Release);
        self.preallocator.moved.notify_all();
        *self.preallocator.apart.lock() = None;
        if let Some(staged) = self.preallocator.staged.lock().take() {
            // If this fails, the next open removes the file with the staging folder.
            let _ = self.files.vfs.remove_file(&staged.segment.path());
        }
    }

    /// Does one step of preparation. Returns `false` if nothing was left to do.
    ///
    /// # Errors
    /// - Errors of creating a segment. You can ignore them: the append that needs the segment creates it and meets the
    ///   error itself.
    /// - [`StoreError::Poisoned`] if prewriting the active segment failed.
    pub fn prepare(&self) -> Result<bool, StoreError> {
        if !self.preallocator.options.enabled || self.preallocator.stopped.load(Ordering::Acquire) {
            return Ok(false);
        }
        let tail = self.appended();
        let Some(active) = self.active().map(|active| Arc::clone(&active.segment)) else {
            self.preallocator.wake_at.store(tail + 1, Ordering::Release);
            return Ok(false);
        };
        let mut prepared = self.allocate_active(&active, tail)?;
        if !prepared && self.preallocator.options.prewrite {
            prepared = self.prewrite_active(&active, tail)?;
        } else if !prepared {
            prepared = self.warm_active(&active, tail)?;
        }
        prepared = prepared || self.prepare_next(&active, tail)?;
        if !prepared {
            self.preallocator.wake_at.store(self.next_notify_offset(&active, tail), Ordering::Release);
        }
        Ok(prepared)
    }

    /// Reserves disk space in `segment` for `needed` bytes after the log offset `tail`, and usually for a window.
    #[cold]
    pub(super) fn allocate_after(&self, segment: &Segment, tail: u64, needed: u64) -> Result<(), StoreError> {
        let (path, from) = (segment.path(), tail - segment.base_offset());
        let folder = parent_dir(&path);
        let allocate = |bytes| segment.allocate_ahead(from, from.saturating_add(bytes));
        self.try_window(folder, tail, segment.len() - from, needed, allocate)
            .at(&path, "allocating space for the log")
    }

    /// Calls `allocate` with the length of the window at `tail`; if the disk has no space for it, with `needed`.
    pub(super) fn try_window<T>(
        &self,
        folder: &Path,
        tail: u64,
        rest: u64,
        needed: u64,
        mut allocate: impl FnMut(u64) -> io::Result<T>,
    ) -> io::Result<T> {
        // If the free space is unknown, the allocation itself meets the full disk.
        let space = self.files.vfs.free_space(folder).ok();
        let leaves_reserve = |bytes| space.is_none_or(|space| space.can_take(bytes));
        if !leaves_reserve(needed) {
            let free = space.map(|space| space.available.saturating_sub(space.reserve_bytes()));
            return Err(NoSpace::error(needed, free));
        }
        let window = self.allocation_window(folder, tail, rest).max(needed);
        match allocate(if leaves_reserve(window) { window } else { needed }) {
            Err(error) if is_disk_full(&error) && needed < window => allocate(needed),
            outcome => outcome,
        }
    }

    /// Returns the number of bytes after `tail` that should have disk space, at most `rest`.
    fn allocation_window(&self, folder: &Path, tail: u64, rest: u64) -> u64 {
        let (least, wanted) = (self.preallocator.least_bytes, self.preallocator.allocation(tail).min(rest));
        if wanted <= least {
            return wanted;
        }
        // If the free space is unknown, the reservation itself meets the full disk.
        let part = self.files.vfs.free_space(folder).map_or(u64::MAX, |space| space.available / FREE_PART);
        wanted.min(part.max(least))
    }

    /// Reserves the window of the active segment once less than half of it is left.
    fn allocate_active(&self, active: &Segment, tail: u64) -> Result<bool, StoreError> {
        let before = active.allocated();
        // The log may have rolled since the tail was read.
        let (end, from) = (active.base_offset() + before, tail.saturating_sub(active.base_offset()));
        if before == active.len() || end.saturating_sub(tail) > self.preallocator.allocation(tail) / 2 {
            return Ok(false);
        }
        let path = active.path();
        let window = self.allocation_window(parent_dir(&path), tail, active.len() - from).max(FILLER_BYTES);
        active.allocate_ahead(from, from + window).at(&path, "allocating space for the log")?;
        Ok(active.allocated() > before)
    }

    /// Returns the pause after a step of [`Self::prepare`] that took `took`, which leaves the device to waiting syncs
    /// and the processor to appends.
    pub fn pause_after(&self, took: Duration) -> Duration {
        let tail = self.appended();
        let left = self.preallocator.warm.load(Ordering::Acquire).saturating_sub(tail);
        if !self.preallocator.options.prewrite {
            let is_enough = left > self.preallocator.window(tail) / 2;
            return if is_enough { POPULATE_REST } else { Duration::ZERO };
        }
        let factor = (left / REST_STEP_BYTES).clamp(1, MOST_REST);
        (took * factor as u32).min(Duration::from_secs(1))
    }

    /// Returns the tail from which the next step is due.
    fn next_notify_offset(&self, active: &Segment, tail: u64) -> u64 {
        let preallocator = &self.preallocator;
        let half = half_of(active);
        let staged = preallocator.staged.lock().is_some();
        let mut next = if staged || tail >= half { active.end_offset() } else { half };
        let allocated = active.base_offset() + active.allocated();
        if allocated < active.end_offset() {
            // After a reservation that the free space limited, the next one is due when half of it is used.
            let window = preallocator.allocation(tail).min(allocated.saturating_sub(tail));
            next = next.min(allocated.saturating_sub(window / 2)).max(tail + 1);
        }
        let warm = preallocator.warm.load(Ordering::Acquire);
        if preallocator.options.window_bytes == 0 || warm >= allocated {
            return next;
        }
        let window = preallocator.window(tail);
        let prewrite = preallocator.options.prewrite;
        if !prewrite && preallocator.overtaken.load(Ordering::Acquire) {
            return next.min(tail + window);
        }
        let mut due = warm.saturating_sub(if prewrite { window / 4 } else { window - window / DUE_PART });
        if prewrite && window < preallocator.options.window_bytes {
            // Due when the window has twice its length.
            due = due.min(preallocator.began_at.load(Ordering::Acquire) + 2 * window / PREWRITE_FACTOR + 1);
        }
        next.min(due)
    }

    /// Prewrites one step of the active segment if the window is not complete.
    fn prewrite_active(&self, active: &Segment, tail: u64) -> Result<bool, StoreError> {
        let base = active.base_offset();
        let limit = base + active.allocated();
        let warm = self.preallocator.warm.load(Ordering::Acquire).max(tail).max(base);
        let window = self.preallocator.window(tail);
        let end = (warm + PREWRITE_BYTES.min(window / 4)).min(limit);
        let fits = warm < end && end - tail <= window;
        let urgent = self.preallocator.filling.load(Ordering::Acquire) || warm - tail <= window / 4;
        self.preallocator.filling.store(urgent && fits, Ordering::Release);
        let idle = self.preallocator.idle_at.load(Ordering::Acquire) == tail;
        if !(fits && (urgent || idle)) {
            return Ok(false);
        }
        // Held during the step: `stop_preparing` waits for it.
        let mut apart = self.preallocator.apart.lock();
        if self.preallocator.stopped.load(Ordering::Acquire) {
            return Ok(false);
        }
        let region =
            PrewriteMap::of(&mut apart, active).at_file(|| active.path(), "mapping the active segment")?;
        prewrite(&region, base, warm..end)
            .map_err(|error| self.poison("preparing the log", &error.to_string()))?;
        self.preallocator.warm.raise(end, Ordering::AcqRel);
        Ok(true)
    }

    /// Populates one step of the active segment if a part of the window is used.
    fn warm_active(&self, active: &Segment, tail: u64) -> Result<bool, StoreError> {
        if self.preallocator.overtaken.load(Ordering::Acquire) {
            return Ok(false);
        }
        let window = self.preallocator.window(tail);
        let warm = self.preallocator.warm.load(Ordering::Acquire).max(tail).max(active.base_offset());
        // Pages without disk space are not touched: that would take the space.
        let target = tail.saturating_add(window).min(active.base_offset() + active.allocated());
        let due =
            self.preallocator.filling.load(Ordering::Acquire) || warm - tail <= window - window / DUE_PART;
        self.preallocator.filling.store(due && warm < target, Ordering::Release);
        if !due || warm >= target {
            return Ok(false);
        }
        let region = active.region().at_file(|| active.path(), "mapping the active segment")?;
        let end = (warm + STEP_BYTES).min(target);
        self.populate(&region, active.base_offset(), warm..end, tail)?;
        self.preallocator.warm.raise(end, Ordering::AcqRel);
        Ok(true)
    }

    fn populate(&self, region: &Region, base: u64, range: Range<u64>, tail: u64) -> Result<(), StoreError> {
        // The advice is optional for the kernel; without it an append only meets a page fault.
        let _ = region.advise(map_range(base, &range), Advice::PopulateWrite);
        if self.preallocator.options.lock_memory {
            region.lock_memory(map_range(base, &range)).map_err(|error| cannot_lock(&error))?;
            let behind = self.preallocator.locked_from.swap(tail, Ordering::AcqRel).max(base);
            if behind < tail {
                let _ = region.unlock_memory(map_range(base, &(behind..tail)));
            }
        }
        Ok(())
    }

    /// Creates the next segment, or prepares the next part of it.
    fn prepare_next(&self, active: &Segment, tail: u64) -> Result<bool, StoreError> {
        if tail < half_of(active) {
            return Ok(false);
        }
        // Held while the segment is created: an append that needs it now would have to create the same one.
        let mut slot = self.preallocator.staged.lock();
        let base = active.end_offset();
        if self.appended() >= base || self.preallocator.taken.load(Ordering::Acquire) >= base {
            return Ok(false);
        }
        match &mut *slot {
            // A segment that the quota does not allow would take disk space for nothing.
            None if self.can_grow_by(1).is_err() => Ok(false),
            None => {
                let segment = self.stage_segment("ahead", base, FILLER_BYTES)?;
                *slot = Some(PreparedSegment { segment, warm: 0, apart: None });
                Ok(true)
            }
            Some(staged) if self.preallocator.options.prewrite => self.prewrite_prepared(staged, tail),
            Some(staged) => {
                // An append takes the lock to begin the segment, so it must not wait for a step.
                let (segment, warm) = (Arc::clone(&staged.segment), staged.warm);
                drop(slot);
                self.populate_prepared(&segment, warm, tail)
            }
        }
    }

    /// Reserves the window of the prepared segment, at least its first `needed` bytes.
    fn allocate_prepared(&self, segment: &Segment, tail: u64, needed: u64) -> Result<(), StoreError> {
        if segment.allocated() >= needed {
            return Ok(());
        }
        let path = segment.path();
        let window = self.allocation_window(parent_dir(&path), tail, segment.len()).max(needed);
        segment.allocate_ahead(0, window).at(&path, "allocating space for the log")
    }

    /// Populates the next part of the prepared segment, whose first `warm` bytes are populated.
    fn populate_prepared(&self, segment: &Segment, warm: u64, tail: u64) -> Result<bool, StoreError> {
        let base = segment.base_offset();
        let wanted = (tail + self.preallocator.window(tail)).saturating_sub(base).min(segment.len());
        if warm >= wanted || self.preallocator.overtaken.load(Ordering::Acquire) {
            return Ok(false);
        }
        let range = warm..(warm + STEP_BYTES).min(wanted);
        self.allocate_prepared(segment, tail, range.end)?;
        let region = segment.region().at_file(|| segment.path(), "mapping a log segment")?;
        let _ = region.advise(map_range(0, &range), Advice::PopulateWrite);
        match self.preallocator.staged.lock().as_mut().filter(|staged| staged.segment.base_offset() == base) {
            Some(staged) => staged.warm = range.end,
            // An append has begun the segment meanwhile.
            None => self.preallocator.warm.raise(base + range.end, Ordering::AcqRel),
        }
        Ok(true)
    }

    /// Prewrites the next part of the prepared segment.
    fn prewrite_prepared(&self, staged: &mut PreparedSegment, tail: u64) -> Result<bool, StoreError> {
        let base = staged.segment.base_offset();
        let wanted = self.preallocator.window(tail).min(staged.segment.len());
        if staged.warm >= wanted {
            return Ok(false);
        }
        let range = staged.warm..(staged.warm + PREWRITE_BYTES).min(wanted);
        self.allocate_prepared(&staged.segment, tail, range.end)?;
        // The segment holds no record yet, and is synced again once it does.
        PrewriteMap::of(&mut staged.apart, &staged.segment)
            .and_then(|region| prewrite(&region, base, base + range.start..base + range.end))
            .at_file(|| staged.segment.path(), "preparing a log segment")?;
        staged.warm = range.end;
        Ok(true)
    }

    /// With `lock_memory`, checks during the open whether the system allows it.
    pub(super) fn lock_first_pages(&self) -> Result<(), StoreError> {
        if !(self.preallocator.options.enabled && self.preallocator.options.lock_memory) {
            return Ok(());
        }
        let Some(active) = self.active() else { return Ok(()) };
        let from = self.appended() - active.segment.base_offset();
        let to = (from + self.preallocator.options.window_bytes).min(active.segment.len());
        active.region.lock_memory(from as usize..to as usize).map_err(|error| cannot_lock(&error))
    }
}

/// Writes a range of the log with allocated blocks to the device, with its current bytes.
fn prewrite(region: &Region, base: u64, range: Range<u64>) -> std::io::Result<()> {
    // The advice is optional. Without it, clean pages are not written, and later syncs of records there cost more.
    let _ = region.advise(map_range(base, &range), Advice::PopulateWrite);
    switch::step("commit_log.sync_prewritten", || region.flush(map_range(base, &range)))
}

/// Converts a range of the log to a range in a map that starts at `base`.
fn map_range(base: u64, range: &Range<u64>) -> Range<usize> {
    (range.start - base) as usize..(range.end - base) as usize
}

fn half_of(segment: &Segment) -> u64 {
    segment.base_offset() + segment.len() / 2
}

fn cannot_lock(error: &std::io::Error) -> StoreError {
    StoreError::InvalidOption {
        option: "lock_memory",
        reason: format!(
            "the system does not let this process lock its memory ({error}); raise the limit \
             (ulimit -l), or open the store without this option"
        ),
    }
}
