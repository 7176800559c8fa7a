//! Roll: the change from a full segment to the next one.
//!
//! If a record and a filler after it do not fit the segment, the record goes to the start of the next one. The filler
//! holds the number of bytes left over. Before the filler is written, the next segment exists and has space for the
//! record, so a full disk only refuses the append.
//!
//! ```text
//! 00000000000000000000   ... record record | size, blank magic, zeros |
//! 00000000001073741824   record ...
//! ```
//!
//! These functions run under the put lock. Across a crash: the name becomes durable before anything in the segment
//! does, and at most one name waits for its sync, so that a crash leaves no hole in the sequence.
//!
//! Source: `AppendMessageStatus.END_OF_FILE`, `MappedFileQueue#getLastMappedFile`.

use std::sync::Arc;

use mqstore_format::{BLANK_HEADER_BYTES, encode_blank, offset_file_name};
use mqstore_io::{MappedFile, PushError};

use super::active_segment::{ActiveSegment, fits};
use super::log::{CommitLog, EncodedRecord, PutState};
use super::quota::check_max_bytes;
use super::segment_list::Segment;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::live_page::read_pace;

/// Bytes at the end of a segment that count as used when an append asks whether it would wait.
const KEPT_FOR_OTHERS_BYTES: u64 = 1 << 20;

/// Reserved bytes after the tail that count as used when an append asks whether it would wait: an append that reserves
/// disk space makes a system call.
const ALLOCATED_FOR_OTHERS_BYTES: u64 = 64 << 10;

/// Bytes of a filler: every record has space for one after it.
pub(super) const FILLER_BYTES: u64 = BLANK_HEADER_BYTES as u64;

/// An append holds the put lock for about a microsecond; a holder that has had it for this long waits for something.
const HELD_LONG_MS: u64 = 2;

impl CommitLog {
    /// Whether an append of `bytes` would fit the active segment and its disk space, and probably not wait for the put
    /// lock. Near the end of a segment, or of its reserved space, the answer is false, because another append may come
    /// first.
    pub fn is_ready_for(&self, bytes: u64) -> bool {
        let Some(active) = self.active() else { return false };
        let kept = (self.segment_bytes() / 16).min(KEPT_FOR_OTHERS_BYTES);
        let needed = bytes.saturating_add(kept);
        let allocated = bytes.saturating_add(ALLOCATED_FOR_OTHERS_BYTES);
        let tail = self.appended();
        // Another thread may have rolled meanwhile.
        (active.segment.base_offset()..=active.segment.end_offset()).contains(&tail)
            && active.segment.end_offset() - tail >= needed
            && active.is_allocated(tail, allocated)
            && self.state.put.held_ms(&*self.files.clock) < HELD_LONG_MS
    }

    /// Whether twice `bytes` fit the pool: other appends of the same size may come first.
    pub fn pool_has_space(&self, bytes: u64) -> bool {
        self.pool.as_ref().is_some_and(|pool| pool.has_space_to(self.appended().saturating_add(2 * bytes)))
    }

    /// Makes sure that `bytes` and a filler after them fit the active segment, and rolls if not. Then makes sure that
    /// they have disk space. `between` says that all records before are published.
    pub(super) fn ensure_space(
        &self,
        put: &mut PutState,
        bytes: u64,
        between: bool,
    ) -> Result<(), StoreError> {
        let limit = self.max_record_bytes();
        if bytes > limit {
            return Err(StoreError::TooLarge { what: "the record", size: bytes, limit });
        }
        if !put.has_space(bytes) {
            self.can_grow_by(1)?;
            self.roll(put, bytes, between)?;
        }
        self.ensure_allocated(put, bytes)
    }

    /// Makes sure that the disk has space for `bytes` and a filler after the tail.
    #[inline]
    pub(super) fn ensure_allocated(&self, put: &mut PutState, bytes: u64) -> Result<(), StoreError> {
        let needed = bytes + FILLER_BYTES;
        if put.point.position + needed <= put.allocated { Ok(()) } else { self.allocate_put(put, needed) }
    }

    #[cold]
    fn allocate_put(&self, put: &mut PutState, needed: u64) -> Result<(), StoreError> {
        let Some(active) = &put.active else { return Ok(()) };
        let position = put.point.position;
        if !active.is_allocated(position, needed) {
            self.allocate_after(&active.segment, position, needed)?;
        }
        put.allocated = active.segment.base_offset() + active.segment.allocated();
        Ok(())
    }

    /// Continues in the next segment, however much of this one is left. Returns the new log offset.
    pub fn force_roll(&self) -> Result<u64, StoreError> {
        let mut put = self.lock_put()?;
        self.can_grow_by(1)?;
        self.roll(&mut put, 0, true)?;
        Ok(put.point.position)
    }

    /// Closes the active segment, if the log still ends at `end`, so that it can be removed. Returns whether it did. The
    /// quota of the log does not apply, and the next segment takes as little disk space as after an open.
    pub fn close_segment(&self, end: u64) -> Result<bool, StoreError> {
        let mut put = self.lock_put()?;
        let Some(next) = put.active.as_ref().map(|active| active.segment.end_offset()) else {
            return Ok(false);
        };
        if put.sealed || put.point.position != end {
            return Ok(false);
        }
        self.check_copied(&put)?;
        self.preallocator.begin_again(&self.files, next);
        self.roll(&mut put, 0, true)?;
        Ok(true)
    }

    /// Closes the active segment and opens the next one, with disk space for a record of `bytes`.
    fn roll(&self, put: &mut PutState, bytes: u64, between: bool) -> Result<(), StoreError> {
        let base = put.active.as_ref().map_or(put.point.position, |active| active.segment.end_offset());
        // A log that was opened has no space for the filler yet.
        self.ensure_allocated(put, 0)?;
        let next = self.next_segment(base, bytes + FILLER_BYTES)?;
        if let (Some(rest), Some(active)) = (put.remaining().filter(|rest| *rest > 0), put.active.clone()) {
            self.drain_locked(put)?;
            let at = put.point.position - active.segment.base_offset();
            let blank = encode_blank(rest as u32);
            let written = if self.pool.is_some() {
                active.segment.file().and_then(|file| file.write_all_at(&blank, at))
            } else {
                active.region.write(at as usize, &blank).map_err(Into::into)
            };
            written.map_err(|error| self.poison("appending", &error.to_string()))?;
            put.point.position = base;
            if let Some(pool) = &self.pool {
                pool.skip_to(base);
            }
            if between {
                // If a later step fails, the log extends to the end of the filler. In the middle of a batch, the filler
                // is published with the whole batch.
                self.publish(put);
            }
        }
        put.active = Some(Arc::clone(&next));
        *self.active.write() = Some(next);
        Ok(())
    }

    /// Writes all bytes of the pool to the file. The caller keeps other threads from appending.
    pub(super) fn drain_locked(&self, put: &PutState) -> Result<(), StoreError> {
        let position = put.point.position;
        if self.pool.as_ref().is_some_and(|pool| pool.drained() < position) {
            self.drain_pool(position)?;
        }
        Ok(())
    }

    /// Gives the segment at `base`, prepared or created now, its name. Its first `needed` bytes have disk space. The
    /// next sync makes the name durable, before anything in the segment counts as durable.
    fn next_segment(&self, base: u64, needed: u64) -> Result<Arc<ActiveSegment>, StoreError> {
        // With a second unsynced name, a crash could leave a hole in the sequence.
        self.sync_names()?;
        let segment = match self.preallocator.take(&self.files, base) {
            Some(segment) => segment,
            None => self.stage_segment("segment", base, needed)?,
        };
        if let Err(full) = self.allocate_after(&segment, base, needed) {
            // The next attempt creates the segment again. The staging folder must not keep its space.
            let _ = self.files.vfs.remove_file(&segment.path());
            return Err(full);
        }
        let path = self.files.name_of_staged(&segment.path(), base)?;
        {
            let mut pending = self.names_pending.lock();
            segment.name(&path).at(&path, "naming a log segment")?;
            *pending = true;
        }
        let active = ActiveSegment::of(Arc::clone(&segment))?;
        let poison = |error: PushError| self.poison("adding a segment", &error.to_string());
        self.segments.push(segment).map_err(poison)?;
        self.refresh_list();
        Ok(active)
    }

    /// Creates the segment at `base` in the staging folder: with its full length, disk space for its first bytes, at
    /// least for `needed` ones, synced, without its name.
    pub(super) fn stage_segment(
        &self,
        prefix: &str,
        base: u64,
        needed: u64,
    ) -> Result<Arc<Segment>, StoreError> {
        let staging = self.files.segment_staging(base, self.segments.file_bytes())?;
        let staged = staging.join(format!("{prefix}-{}", offset_file_name(base)));
        // Removes the file of a failed earlier attempt.
        let _ = self.files.vfs.remove_file(&staged);
        let len = self.segments.file_bytes();
        let stage = |bytes| MappedFile::stage(&self.files.vfs, &staged, base, len, bytes);
        let segment =
            self.try_window(&staging, base, len, needed, stage).at(&staged, "creating a log segment")?;
        segment.pace_reads(read_pace(&self.files));
        Ok(segment)
    }

    /// Checks that the quota of the log allows `segments` more.
    pub(super) fn can_grow_by(&self, segments: u64) -> Result<(), StoreError> {
        let Some(limit) = self.max_bytes.filter(|_| segments > 0) else { return Ok(()) };
        let more = segments.saturating_mul(self.segment_bytes());
        check_max_bytes(&self.files.root, limit, self.segments_bytes(), more)
    }

    /// Checks that the quota of the log allows the segments for `records`, which need more than one.
    pub(super) fn may_hold(&self, put: &PutState, records: &[EncodedRecord<'_>]) -> Result<(), StoreError> {
        if self.max_bytes.is_none() {
            return Ok(());
        }
        let (mut rest, mut segments) = (put.remaining().unwrap_or(0), 0);
        for record in records {
            let size = record.parts.len() as u64;
            if !fits(rest, size) {
                (rest, segments) = (self.segment_bytes(), segments + 1);
            }
            rest = rest.saturating_sub(size);
        }
        self.can_grow_by(segments)
    }
}
