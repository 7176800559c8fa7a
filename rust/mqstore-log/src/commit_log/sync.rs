//! Sync: writes the log to the device, and stops the log if that fails.
//!
//! The leader of a group commit takes the end of the appended records, writes the bytes in the pool, makes the names of
//! new segments durable and syncs the segments in order. Only then does the durable offset advance: no later failure
//! can lose a byte before it.
//!
//! Across threads: one sync runs at a time. The log keeps the first failure of a write or a sync and reports it for
//! every later call.

use mqstore_io::open_files::is_out_of_files;
use mqstore_io::switch;
use mqstore_io::sync::Ordering;

use super::log::CommitLog;
use super::segment_list::Segment;
use mqstore_base::error::StoreError;

impl CommitLog {
    /// Makes the names of new segments durable.
    pub fn sync_names(&self) -> Result<(), StoreError> {
        // Held during the sync: a thread that finds nothing pending relies on finished syncs.
        let mut pending = self.names_pending.lock();
        if *pending {
            switch::step("commit_log.sync_segment_name", || self.files.sync_logs())
                .map_err(|error| self.poison_unless_passing("syncing the log's folder", error))?;
            *pending = false;
        }
        Ok(())
    }

    /// Writes published bytes up to `position` from the pool to the segments.
    pub(super) fn drain_pool(&self, position: u64) -> Result<(), StoreError> {
        let Some(pool) = &self.pool else { return Ok(()) };
        pool.drain(&self.segments, position)
            .map_err(|error| self.poison("writing the log", &error.to_string()))?;
        self.live.publish(self.readable());
        self.replica_acks.log_grew_after_fence();
        Ok(())
    }

    /// Waits until everything up to `position` is durable, for a caller of the store. Meanwhile, reads of the log from
    /// the disk have a pace.
    pub fn wait_durable(&self, position: u64) -> Result<(), StoreError> {
        self.wait_synced(position, || {
            let bytes = self.appended().saturating_sub(self.durable());
            self.live.time_sync(&*self.files.clock, bytes, || self.sync())
        })
    }

    /// Like [`Self::wait_durable`], for work in the background, which may take longer.
    pub fn flush_to(&self, position: u64) -> Result<(), StoreError> {
        self.wait_synced(position, || self.sync())
    }

    fn wait_synced(
        &self,
        position: u64,
        sync: impl Fn() -> Result<u64, StoreError>,
    ) -> Result<(), StoreError> {
        if self.durable() >= position {
            return self.check();
        }
        self.commit.wait(
            position,
            || self.appended(),
            sync,
            |cause| self.poisoned_error("syncing the log", cause),
        )
    }

    /// Syncs everything appended so far: names first, then segments in order.
    fn sync(&self) -> Result<u64, StoreError> {
        self.check()?;
        let point = {
            let put = self.state.put.lock_without_timeout();
            self.check_copied(&put)?;
            put.point
        };
        let target = point.position;
        self.drain_pool(target)?;
        self.sync_names()?;
        let from = self.synced.lock().position;
        let segments = self.segments.snapshot();
        let first = segments.partition_point(|segment| segment.end_offset() <= from);
        for segment in segments.iter().skip(first).filter(|segment| segment.base_offset() < target) {
            let end = target.min(segment.end_offset()) - segment.base_offset();
            segment.advance_wrote(end);
            self.sync_segment(segment, end)?;
        }
        // Keeps only the newest segment mapped, not each one that the store ever wrote.
        if first + 1 < segments.len() {
            self.segments.unmap_before(target);
        }
        *self.synced.lock() = point;
        self.live.set_durable(target);
        Ok(target)
    }

    /// Syncs the first `end` bytes of a segment. No later byte counts as durable, because other threads may still be
    /// copying there.
    fn sync_segment(&self, segment: &Segment, end: u64) -> Result<(), StoreError> {
        if segment.flushed() >= end {
            return Ok(());
        }
        let stop = |error: std::io::Error| {
            if is_out_of_files(&error) {
                return StoreError::io(&segment.path(), "opening a log segment", error);
            }
            self.poison("syncing the log", &error.to_string())
        };
        // A file written by system calls is synced as a whole, without its timestamps. Through the map, pages that were
        // faulted in after the tail are left out.
        segment.flush_to(end, self.pool.is_none()).map_err(stop)?;
        // If the name leads elsewhere now, the bytes would be lost when the file is closed.
        if !segment.is_linked().map_err(stop)? {
            let cause = format!("{} was removed or replaced by another program", segment.path().display());
            return Err(self.poison("syncing the log", &cause));
        }
        Ok(())
    }

    /// Fails if an earlier write or sync failed.
    #[inline]
    pub fn check(&self) -> Result<(), StoreError> {
        if self.stopped.load(Ordering::Acquire) {
            return Err(self.poisoned_error("appending", "the log was stopped"));
        }
        Ok(())
    }

    /// Stops the log for good and returns the error for it. The log keeps the first cause.
    pub fn poison(&self, stage: &'static str, cause: &str) -> StoreError {
        let mut kept = self.cause.lock();
        let (stage, cause) = kept.get_or_insert_with(|| (stage, cause.to_owned()));
        let error = self.poisoned_with(stage, cause);
        drop(kept);
        self.live.fail();
        self.stopped.store(true, Ordering::Release);
        error
    }

    /// Returns `error` if the cause passes: a file could not be opened, so nothing was written. Any other error stops
    /// the log for good.
    pub(crate) fn poison_unless_passing(&self, stage: &'static str, error: StoreError) -> StoreError {
        if error.is_out_of_files() { error } else { self.poison(stage, &error.to_string()) }
    }

    fn poisoned_error(&self, stage: &'static str, cause: &str) -> StoreError {
        match &*self.cause.lock() {
            Some((stage, cause)) => self.poisoned_with(stage, cause),
            None => self.poisoned_with(stage, cause),
        }
    }

    fn poisoned_with(&self, stage: &'static str, cause: &str) -> StoreError {
        StoreError::Poisoned { path: self.files.root.clone(), stage, cause: cause.to_owned() }
    }
}
