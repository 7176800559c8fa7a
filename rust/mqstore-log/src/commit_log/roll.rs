//! Roll: the change from a full segment to the next one.
//!
//! If a record and a filler after it do not fit the segment, the record goes to the start of the next one. The filler
//! holds the number of bytes left over. The next segment exists before the filler is written, so a full disk only
//! refuses the append.
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

use mqstore_format::{encode_blank, offset_file_name};
use mqstore_io::{MappedFile, PushError};

use super::active_segment::{ActiveSegment, fits};
use super::log::{CommitLog, EncodedRecord, PutState};
use super::segment_list::Segment;
use mqstore_base::error::{IoContext, StoreError};

/// Bytes at the end of a segment that count as used when an append asks whether it would wait.
const KEPT_FOR_OTHERS_BYTES: u64 = 1 << 20;

/// An append holds the put lock for about a microsecond; a holder that has had it for this long waits for something.
const HELD_LONG_MS: u64 = 2;

impl CommitLog {
    /// Whether an append of `bytes` would fit the active segment and probably not wait for the put lock. Near the end
    /// of a segment the answer is false, because another append may come first.
    pub fn is_ready_for(&self, bytes: u64) -> bool {
        let end = self.active.read().as_ref().map_or(0, |active| active.segment.end_offset());
        let kept = (self.segment_bytes() / 16).min(KEPT_FOR_OTHERS_BYTES);
        let needed = bytes.saturating_add(kept);
        end.saturating_sub(self.appended()) >= needed
            && self.front.put.held_ms(&*self.files.clock) < HELD_LONG_MS
    }

    /// Whether twice `bytes` fit the pool: other appends of the same size may come first.
    pub fn pool_has_space(&self, bytes: u64) -> bool {
        self.pool.as_ref().is_some_and(|pool| pool.has_room_to(self.appended().saturating_add(2 * bytes)))
    }

    /// Makes sure that `bytes` and a filler after them fit the active segment, and rolls if not. `between` says that
    /// all records before are published.
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
        if put.has_space(bytes) { Ok(()) } else { self.roll(put, between) }
    }

    /// Continues in the next segment, however much of this one is left. Returns the new log offset.
    pub fn force_roll(&self) -> Result<u64, StoreError> {
        let mut put = self.lock_put()?;
        self.roll(&mut put, true)?;
        Ok(put.point.position)
    }

    /// Closes the active segment and opens the next one.
    fn roll(&self, put: &mut PutState, between: bool) -> Result<(), StoreError> {
        let base = put.active.as_ref().map_or(put.point.position, |active| active.segment.end_offset());
        self.can_grow_by(1)?;
        let next = self.next_segment(base)?;
        if let (Some(rest), Some(active)) = (put.rest().filter(|rest| *rest > 0), put.active.clone()) {
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

    /// Gives the segment at `base`, prepared or created now, its name. The next sync makes the name durable, before
    /// anything in the segment counts as durable.
    fn next_segment(&self, base: u64) -> Result<Arc<ActiveSegment>, StoreError> {
        // With a second unsynced name, a crash could leave a hole in the sequence.
        self.sync_names()?;
        let segment = match self.ahead.take(&self.files, base) {
            Some(segment) => segment,
            None => self.stage_segment("segment", base)?,
        };
        let path = self.files.name_of_staged(&segment.path(), base)?;
        {
            let mut pending = self.names_pending.lock();
            segment.name(&path).at(&path, "naming a log segment")?;
            *pending = true;
        }
        let active = ActiveSegment::of(Arc::clone(&segment))?;
        let poison = |error: PushError| self.poison("adding a segment", &error.to_string());
        self.row.push(segment).map_err(poison)?;
        self.refresh_list();
        Ok(active)
    }

    /// Creates the segment at `base` in the staging folder: allocated, synced, without its name.
    pub(super) fn stage_segment(&self, prefix: &str, base: u64) -> Result<Arc<Segment>, StoreError> {
        let staging = self.files.segment_staging(base, self.row.file_bytes())?;
        let staged = staging.join(format!("{prefix}-{}", offset_file_name(base)));
        // Removes the file of a failed earlier attempt.
        let _ = self.files.vfs.remove_file(&staged);
        MappedFile::stage(&self.files.vfs, &staged, base, self.row.file_bytes())
            .at(&staged, "creating a log segment")
    }

    /// Checks that the quota of the log allows `segments` more.
    pub(super) fn can_grow_by(&self, segments: u64) -> Result<(), StoreError> {
        let Some(limit) = self.max_bytes.filter(|_| segments > 0) else { return Ok(()) };
        let used = self.segments_bytes();
        let more = segments.saturating_mul(self.segment_bytes());
        if used.saturating_add(more) <= limit {
            return Ok(());
        }
        let path = self.files.root.clone();
        Err(StoreError::Full { path, topic: None, quota: "max_bytes", limit, used })
    }

    /// Checks that the quota of the log allows the segments for `records`, which need more than one.
    pub(super) fn may_hold(&self, put: &PutState, records: &[EncodedRecord<'_>]) -> Result<(), StoreError> {
        if self.max_bytes.is_none() {
            return Ok(());
        }
        let (mut rest, mut segments) = (put.rest().unwrap_or(0), 0);
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
