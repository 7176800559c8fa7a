//! What is made ready before the writer gets there, so that no append waits for the disk.
//!
//! ```text
//!   active segment                                       next segment, in the staging folder
//!   written ... tail │ window: present and writable,     made once the active one is half full:
//!                      or prewritten                        allocated, synced; without its name
//! ```
//!
//! * **The next segment** is allocated and synced aside. It gets its name only when its first record is
//!   placed, because RocketMQ deletes segments without records.
//! * **The window** of a mapped segment is populated, so that appends meet no page fault, advised, and
//!   kept in memory on request (`lock_memory`). It is 64 MiB and moves on by half.
//! * **Prewriting**: with `sync` a window of 128 MiB, and as much of the next segment, is also brought to the
//!   device before there is a record in it. A sync after a write into blocks that were written before has no
//!   block map to change and no journal to wait for. A step keeps the device from those who sync records: the window is filled while nobody
//!   appends, and otherwise when three quarters of it are used up, in small steps with rests between.
//! * `pooled` has no window: its appends never touch the file, and the thread that writes what is pooled is
//!   faster with pages that its large writes make than with ones made before.
//!
//! Prewriting writes no zeros: it makes pages of the file present and writable, which makes them dirty
//! with the bytes that they hold, and has the system write them back. So it cannot overwrite a record,
//! however far the writer comes meanwhile, and needs no lock. The map is advised to be read at random, so
//! that the page cache makes pages of the smallest size: a sync of one record in a page of 2 MiB, as a
//! long write or reading ahead leaves them there, costs half as much again.
//!
//! Nothing here changes a byte that a reader could see: the tail stays zero. Across a crash: whatever
//! lies in the staging folder is garbage. Across threads: one service calls [`CommitLog::prepare`]; who
//! appends leaves notice of how far it is, and takes the segment that is ready. The window is written
//! back through a map and an open of its own: the system reports a failed write once to each open, so
//! that no report is taken away from those who sync records; and such a failure stops the log like any
//! other of that file.
//!
//! Source of the idea: `AllocateMappedFileService`, `DefaultMappedFile#warmMappedFile`.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use mqstore_io::switch;
use mqstore_io::sync::{Ordering, Raise};
use mqstore_io::{Advice, Region};

use super::log::CommitLog;
use super::preallocator::{LEAST_WINDOW_BYTES, PreparedSegment, PrewriteMap, WINDOW_FACTOR};
use super::segment_list::Segment;
use mqstore_base::error::{IoContext, StoreError};

/// Bytes that are populated in one step.
const STEP_BYTES: u64 = 4 << 20;

/// Bytes that are prewritten in one step, at most: a sync of records may have to wait for one.
const PREWRITE_BYTES: u64 = 1 << 20;

/// After a prewriting step the device is left to those who sync records for so many times as long, while
/// there is much left of the window; less when there is not.
const MOST_REST: u64 = 8;

impl CommitLog {
    /// Waits until there is something to prepare, at most `timeout`; whether there may be.
    pub fn wait_to_prepare(&self, timeout: Duration) -> bool {
        let due = || {
            self.ahead.stopped.load(Ordering::Acquire)
                || self.appended() >= self.ahead.wake_at.load(Ordering::Acquire)
        };
        if self.ahead.moved.wait_until(Some(timeout), due) {
            return true;
        }
        let tail = self.appended();
        let idle = self.ahead.looked_at.swap(tail, Ordering::AcqRel) == tail;
        if idle {
            self.ahead.idle_at.store(tail, Ordering::Release);
        }
        idle && self.ahead.options.prewrite
    }

    /// Ends [`Self::wait_to_prepare`] for good and removes the segment that nobody took.
    pub fn stop_preparing(&self) {
        self.ahead.stopped.store(true, Ordering::Release);
        self.ahead.moved.notify_all();
        *self.ahead.apart.lock() = None;
        if let Some(staged) = self.ahead.staged.lock().take() {
            // It is garbage by its place; the next open removes it otherwise.
            let _ = self.files.vfs.remove_file(&staged.segment.path());
        }
    }

    /// Does one step of what is to be done ahead of the tail; `false` when nothing was left to do.
    ///
    /// # Errors
    /// Those of making a segment, which nobody needs to act on: the append that needs the segment makes
    /// it and meets the error itself. [`StoreError::Poisoned`] when prewriting the active segment failed.
    pub fn prepare(&self) -> Result<bool, StoreError> {
        if !self.ahead.options.enabled || self.ahead.stopped.load(Ordering::Acquire) {
            return Ok(false);
        }
        let tail = self.appended();
        let Some(active) = self.active().map(|active| Arc::clone(&active.segment)) else {
            self.ahead.wake_at.store(tail + 1, Ordering::Release);
            return Ok(false);
        };
        let warmed = if self.ahead.options.prewrite {
            self.prewrite_active(&active, tail)?
        } else {
            self.warm_active(&active, tail)?
        };
        let next = !warmed && self.prepare_next(&active, tail)?;
        if !warmed && !next {
            self.ahead.wake_at.store(self.next_notify_offset(&active, tail), Ordering::Release);
        }
        Ok(warmed || next)
    }

    /// How long to rest after a step of [`Self::prepare`] that took so long: the device belongs to those
    /// who wait for a sync.
    pub fn pause_after(&self, took: Duration) -> Duration {
        if !self.ahead.options.prewrite {
            return Duration::ZERO;
        }
        let left = self.ahead.warm.load(Ordering::Acquire).saturating_sub(self.appended());
        let factor = (left / LEAST_WINDOW_BYTES).clamp(1, MOST_REST);
        (took * factor as u32).min(Duration::from_secs(1))
    }

    /// The tail at which there is something to do again.
    fn next_notify_offset(&self, active: &Segment, tail: u64) -> u64 {
        let ahead = &self.ahead;
        let half = half_of(active);
        let staged = ahead.staged.lock().is_some();
        let next = if staged || tail >= half { active.end_offset() } else { half };
        let warm = ahead.warm.load(Ordering::Acquire);
        if ahead.options.window_bytes == 0 || warm >= active.end_offset() {
            return next;
        }
        let window = ahead.window(tail);
        let prewrite = ahead.options.prewrite;
        let mut due = warm.saturating_sub(window / if prewrite { 4 } else { 2 });
        if prewrite && window < ahead.options.window_bytes {
            // When it has twice its length.
            due = due.min(ahead.opened_at + 2 * window / WINDOW_FACTOR + 1);
        }
        next.min(due)
    }

    /// Prewrites one more step of the active segment, if the window has room for it.
    fn prewrite_active(&self, active: &Segment, tail: u64) -> Result<bool, StoreError> {
        let (base, limit) = (active.base_offset(), active.end_offset());
        let warm = self.ahead.warm.load(Ordering::Acquire).max(tail).max(base);
        let window = self.ahead.window(tail);
        let end = (warm + PREWRITE_BYTES.min(window / 4)).min(limit);
        let fits = warm < end && end - tail <= window;
        let urgent = self.ahead.filling.load(Ordering::Acquire) || warm - tail <= window / 4;
        self.ahead.filling.store(urgent && fits, Ordering::Release);
        let idle = self.ahead.idle_at.load(Ordering::Acquire) == tail;
        if !(fits && (urgent || idle)) {
            return Ok(false);
        }
        // Held meanwhile: who ends the preparing waits for this step.
        let mut apart = self.ahead.apart.lock();
        if self.ahead.stopped.load(Ordering::Acquire) {
            return Ok(false);
        }
        let region =
            PrewriteMap::of(&mut apart, active).at_file(|| active.path(), "mapping the active segment")?;
        prewrite(&region, base, warm..end)
            .map_err(|error| self.poison("preparing the log", &error.to_string()))?;
        self.ahead.warm.raise(end, Ordering::AcqRel);
        Ok(true)
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
            self.ahead.warm.raise(warm, Ordering::AcqRel);
        }
        Ok(true)
    }

    fn populate(&self, region: &Region, base: u64, range: Range<u64>, tail: u64) -> Result<(), StoreError> {
        // Advice is an offer to the kernel; an append that faults is only slower.
        let _ = region.advise(map_range(base, &range), Advice::PopulateWrite);
        if self.ahead.options.lock_memory {
            region.lock_memory(map_range(base, &range)).map_err(|error| cannot_lock(&error))?;
            let behind = self.ahead.locked_from.swap(tail, Ordering::AcqRel).max(base);
            if behind < tail {
                let _ = region.unlock_memory(map_range(base, &(behind..tail)));
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
        if self.appended() >= base || self.ahead.taken.load(Ordering::Acquire) >= base {
            return Ok(false);
        }
        match &mut *slot {
            // One that may not get its name would take the room that a quota is to keep free.
            None if self.can_grow_by(1).is_err() => Ok(false),
            None => {
                let segment = self.stage_segment("ahead", base)?;
                *slot = Some(PreparedSegment { segment, warm: 0, apart: None });
                Ok(true)
            }
            Some(staged) => self.extend_prepared(staged, tail, base),
        }
    }

    fn extend_prepared(
        &self,
        staged: &mut PreparedSegment,
        tail: u64,
        base: u64,
    ) -> Result<bool, StoreError> {
        let options = self.ahead.options;
        let len = staged.segment.len();
        let (step, wanted) = if options.prewrite {
            (PREWRITE_BYTES, options.window_bytes.min(len))
        } else {
            (STEP_BYTES, (tail + options.window_bytes).saturating_sub(base).min(len))
        };
        if staged.warm >= wanted {
            return Ok(false);
        }
        let range = staged.warm..(staged.warm + step).min(wanted);
        if options.prewrite {
            // Nothing in it counts yet; and once something does, it is synced anew.
            PrewriteMap::of(&mut staged.apart, &staged.segment)
                .and_then(|region| prewrite(&region, base, base + range.start..base + range.end))
                .at_file(|| staged.segment.path(), "preparing a log segment")?;
        } else {
            let region =
                staged.segment.region().at_file(|| staged.segment.path(), "mapping a log segment")?;
            let _ = region.advise(map_range(0, &range), Advice::PopulateWrite);
        }
        staged.warm = range.end;
        Ok(true)
    }

    /// With `lock_memory`: finds out at the open, not later, whether the system allows it.
    pub(super) fn lock_first_pages(&self) -> Result<(), StoreError> {
        if !(self.ahead.options.enabled && self.ahead.options.lock_memory) {
            return Ok(());
        }
        let Some(active) = self.active() else { return Ok(()) };
        let from = self.appended() - active.segment.base_offset();
        let to = (from + self.ahead.options.window_bytes).min(active.segment.len());
        active.region.lock_memory(from as usize..to as usize).map_err(|error| cannot_lock(&error))
    }
}

/// Has a range of the log whose blocks are allocated written to the device, whatever is in it.
fn prewrite(region: &Region, base: u64, range: Range<u64>) -> std::io::Result<()> {
    // An offer again: what is not dirty is not written, and a sync of records there costs more.
    let _ = region.advise(map_range(base, &range), Advice::PopulateWrite);
    switch::step("commit_log.sync_prewritten", || region.flush(map_range(base, &range)))
}

/// A range of the log in a map that starts at `base`.
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
            "the system does not let this process lock its memory ({error}); raise the limit (ulimit -l) or open without it"
        ),
    }
}
