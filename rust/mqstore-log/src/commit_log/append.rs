//! Append: one thread at a time takes the put lock, assigns offsets to its records, copies them and publishes them.
//!
//! ```text
//! caller   encode, check | put lock: queue offset, position, time, checksum, copy, publish |
//! another                |                          wait                                   | put lock ...
//! ```
//!
//! Everything that can fail happens before a record gets its offsets: the caller has encoded and checked it, and a full
//! segment is left only after the next one exists. Only a checksum and a copy remain; a failure there stops the log for
//! good ([`StoreError::Poisoned`]). Bytes are copied in log order, so a kill of the process leaves no gap.
//!
//! | durability | bytes go to | in the file |
//! |---|---|---|
//! | `async`, `manual` | the mapped segment | at once |
//! | `async`, `manual`: with `durable`, and large appends to absent pages | the file, by positional writes | at once |
//! | `sync` | the pool | when the leader of a group commit writes it |
//! | `pooled` | the pool | when the background writes it, or a reader asks |
//!
//! A copy is the fastest way to prepared pages (`preallocate`). Where an append overtakes the preparation, each copy to
//! an absent page waits for a page fault and for the clearing of pages. A large append
//! ([`LogOptions::file_write_bytes`](super::LogOptions::file_write_bytes)) writes to the file there instead, which
//! creates pages without a fault and clears none that it fills.
//!
//! Source: `CommitLog#asyncPutMessage`, `DefaultAppendMessageCallback#doAppend`.

use std::time::Duration;

use mqstore_io::Region;
use mqstore_io::sync::Ordering;

use super::log::{CommitLog, EncodedRecord, Placed, PutState};
use super::pool::Pool;
use super::put_lock::{PutBusy, PutGuard};
use mqstore_base::error::{IoContext, StoreError};

/// Maximum number of bytes from which gathered records are written: they are still in a near cache when the system
/// copies them.
const MOST_GATHERED_BYTES: u64 = 256 << 10;

/// Maximum bytes of a record's destination to prefetch; the processor prefetches the rest by itself.
const MOST_EXPECTED_BYTES: usize = 4096;

impl CommitLog {
    /// Appends records at consecutive log offsets, fills in [`EncodedRecord::placed`], and returns the end of the last
    /// record.
    ///
    /// All records become visible together, after all of them are copied. If a batch larger than a segment meets a full
    /// disk, the records that were already copied stay. With `through_file`, a positional write appends the records,
    /// which a sync makes durable cheaply; a large append to absent pages is written in the same way. A log with a pool
    /// always writes through the file.
    ///
    /// # Errors
    /// - [`StoreError::Busy`] if the lock was held or waited for too long, [`StoreError::TooLarge`],
    ///   [`StoreError::Full`], [`StoreError::DiskFull`] and other errors of creating a segment: nothing was appended.
    /// - [`StoreError::Poisoned`] if the log was stopped.
    pub fn append(
        &self,
        records: &mut [EncodedRecord<'_>],
        now_ms: i64,
        through_file: bool,
    ) -> Result<u64, StoreError> {
        self.check()?;
        let total: u64 = records.iter().map(|record| record.parts.len() as u64).sum();
        let (mut put, past_pool) = self.lock_with_space(records, total, now_ms)?;
        let is_large = total >= self.file_write_bytes;
        let overtakes = is_large && !self.has_pages(&put, total);
        if overtakes || !is_large {
            self.preallocator.set_overtaken(overtakes);
        }
        let refused = if past_pool || (self.pool.is_none() && (through_file || overtakes)) {
            self.write_records(&mut put, records)?
        } else {
            self.copy_records(&mut put, records)?
        };
        let end = self.publish(&put);
        drop(put);
        self.replica_acks.log_grew_after_fence();
        refused.map_or(Ok(end), Err)
    }

    /// Takes the put lock once `records`, of `total` bytes, fit the active segment and the pool. Batches that are too
    /// large for either also get the lock. The flag says that the records must bypass the pool.
    fn lock_with_space(
        &self,
        records: &[EncodedRecord<'_>],
        total: u64,
        now_ms: i64,
    ) -> Result<(PutGuard<'_, PutState>, bool), StoreError> {
        loop {
            let mut put = self.lock_put()?;
            if put.sealed {
                return Err(StoreError::Closed { path: self.files.root.clone() });
            }
            self.check_copied(&put)?;
            self.check_topic_quotas(records)?;
            // The clock may step back, but store times never do.
            put.point.store_timestamp_ms = put.point.store_timestamp_ms.max(now_ms);
            let fits_a_segment = total <= self.max_record_bytes();
            if fits_a_segment {
                self.ensure_space(&mut put, total, true)?;
            } else {
                self.may_hold(&put, records)?;
            }
            match &self.pool {
                Some(pool) if total > pool.capacity() / 4 || !fits_a_segment => return Ok((put, true)),
                Some(pool) if !pool.has_space_to(put.point.position + total) => {
                    drop(put);
                    self.wait_for_pool(pool)?;
                }
                _ => return Ok((put, false)),
            }
        }
    }

    /// Whether the pages for `bytes` after the point of `put` are prepared.
    fn has_pages(&self, put: &PutState, bytes: u64) -> bool {
        put.point.position + bytes <= self.preallocator.warm.load(Ordering::Acquire)
    }

    pub(super) fn lock_put(&self) -> Result<PutGuard<'_, PutState>, StoreError> {
        self.state.put.lock(&*self.files.clock).map_err(|busy| {
            self.refused.fetch_add(1, Ordering::Relaxed);
            let reason = match busy {
                PutBusy::HeldFor(ms) => format!(
                    "another append has held the put lock for {ms} ms (busy_after): the disk or the \
                     memory is too slow; try again later"
                ),
                PutBusy::WaitedFor(ms) => format!(
                    "the append waited {ms} ms for its turn (queue_wait_limit): the store receives more \
                     appends than it can write; try again later"
                ),
            };
            StoreError::Busy { reason }
        })
    }

    /// Writes the bytes in the pool, or waits until another thread has written them. The wait has the same limit as the
    /// wait for the lock.
    fn wait_for_pool(&self, pool: &Pool) -> Result<(), StoreError> {
        let ms = self.state.put.limits().queue_wait_ms;
        let drained = pool.drain_within(&self.segments, self.appended(), Duration::from_millis(ms));
        if !drained.map_err(|error| self.poison("writing the log", &error.to_string()))? {
            self.refused.fetch_add(1, Ordering::Relaxed);
            let reason = format!(
                "the pool has been full for {ms} ms (queue_wait_limit): the disk is slower than the \
                 appends; try again later"
            );
            return Err(StoreError::Busy { reason });
        }
        self.live.publish(self.readable());
        Ok(())
    }

    /// Checks that all of `records` fit the quotas of their topics. The caller holds the put lock.
    ///
    /// # Errors
    /// [`StoreError::Full`] if a quota would be exceeded; [`StoreError::TopicNotFound`] for a topic that was deleted
    /// since the caller chose it.
    pub(super) fn check_topic_quotas(&self, records: &[EncodedRecord<'_>]) -> Result<(), StoreError> {
        if records.iter().all(|record| record.quota.is_unlimited()) {
            return Ok(());
        }
        if let Some(record) = records.iter().find(|record| record.quota.is_closed()) {
            return Err(StoreError::TopicNotFound { topic: record.quota.topic().to_owned(), queue_id: None });
        }
        let full = records.iter().find_map(|record| {
            let limit = record.quota.limit()?;
            (!record.quota.request_messages(record.messages.into(), limit)).then_some((record.quota, limit))
        });
        for record in records {
            record.quota.end_request();
        }
        let Some((quota, limit)) = full else { return Ok(()) };
        Err(StoreError::Full {
            path: self.files.root.clone(),
            topic: Some(quota.topic().to_owned()),
            quota: "max_messages",
            limit,
            used: u64::try_from(quota.used()).unwrap_or(0),
        })
    }

    /// Copies records to the pool, or to the map if the log has no pool. If a record is refused, returns that error;
    /// the records before it are copied.
    ///
    /// # Errors
    /// [`StoreError::Poisoned`] if a copy failed.
    pub(super) fn copy_records(
        &self,
        put: &mut PutState,
        records: &mut [EncodedRecord<'_>],
    ) -> Result<Option<StoreError>, StoreError> {
        let mut first = true;
        for record in records {
            if let Err(refused) = self.ensure_space(put, record.parts.len() as u64, first) {
                return Ok(Some(refused));
            }
            first = false;
            self.assign(put, record);
            self.copy(put, record).map_err(|error| self.poison("appending", &error.to_string()))?;
        }
        Ok(None)
    }

    fn copy(&self, put: &PutState, record: &mut EncodedRecord<'_>) -> Result<(), StoreError> {
        let mut position = record.placed.commit_log_offset;
        if let Some(pool) = &self.pool {
            fill_in(record)?;
            for slice in record.parts.slices() {
                let copied = pool.write(position, slice).map_err(std::io::Error::from);
                copied.at(&self.files.root, "appending to the pool")?;
                position += slice.len() as u64;
            }
            return Ok(());
        }
        let active = self.active_of(put)?;
        let at = (position - active.segment.base_offset()) as usize;
        // Prefetches the memory while the checksum is computed.
        active.region.expect_write(at, record.parts.len().min(MOST_EXPECTED_BYTES));
        fill_in(record)?;
        copy_to_map(&active.region, at, record.parts.slices()).at_file(|| active.segment.path(), "appending")
    }

    /// Writes records to their file by position, many with one write, and bypasses the pool. Otherwise like
    /// [`Self::copy_records`].
    pub(super) fn write_records(
        &self,
        put: &mut PutState,
        records: &mut [EncodedRecord<'_>],
    ) -> Result<Option<StoreError>, StoreError> {
        self.drain_locked(put)?;
        let mut gathered = std::mem::take(&mut put.gathered);
        gathered.clear();
        let outcome = self.gather_and_write(put, records, &mut gathered);
        put.gathered = gathered;
        outcome
    }

    fn gather_and_write(
        &self,
        put: &mut PutState,
        records: &mut [EncodedRecord<'_>],
        gathered: &mut Vec<u8>,
    ) -> Result<Option<StoreError>, StoreError> {
        // A record of this size is not gathered.
        let bound = self.file_write_bytes.saturating_mul(4).min(MOST_GATHERED_BYTES);
        let mut first = true;
        for record in records {
            let size = record.parts.len() as u64;
            if gathered.len() as u64 >= bound || size >= bound || !put.has_space(size) {
                self.write_gathered(put, gathered)?;
            }
            if let Err(refused) = self.ensure_space(put, size, first) {
                self.write_gathered(put, gathered)?;
                return Ok(Some(refused));
            }
            first = false;
            self.assign(put, record);
            fill_in(record).map_err(|error| self.poison("appending", &error.to_string()))?;
            if size >= bound {
                self.write_one(put, record)?;
            } else {
                record.parts.slices().iter().for_each(|slice| gathered.extend_from_slice(slice));
            }
        }
        self.write_gathered(put, gathered)?;
        Ok(None)
    }

    /// Writes the gathered bytes, which end at the point of `put` and belong to one segment.
    fn write_gathered(&self, put: &PutState, gathered: &mut Vec<u8>) -> Result<(), StoreError> {
        if gathered.is_empty() {
            return Ok(());
        }
        self.write_at(put, put.point.position - gathered.len() as u64, gathered)?;
        gathered.clear();
        self.end_write(put)
    }

    /// Writes `record`, which ends at the point of `put`. Its head, with the size, comes last, as in a map.
    fn write_one(&self, put: &PutState, record: &EncodedRecord<'_>) -> Result<(), StoreError> {
        let [head, body, tail] = record.parts.slices();
        let start = record.placed.commit_log_offset;
        let body_start = start + head.len() as u64;
        self.write_at(put, body_start, body)?;
        self.write_at(put, body_start + body.len() as u64, tail)?;
        self.write_at(put, start, head)?;
        self.end_write(put)
    }

    pub(super) fn write_at(&self, put: &PutState, position: u64, bytes: &[u8]) -> Result<(), StoreError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let segment = &self.active_of(put)?.segment;
        segment
            .file()
            .and_then(|file| file.write_all_at(bytes, position - segment.base_offset()))
            .map_err(|error| self.poison("appending", &error.to_string()))
    }

    /// Notes that the file has all bytes before the point of `put`.
    pub(super) fn end_write(&self, put: &PutState) -> Result<(), StoreError> {
        let end = put.point.position;
        let segment = &self.active_of(put)?.segment;
        segment.advance_wrote(end - segment.base_offset());
        if let Some(pool) = &self.pool {
            pool.skip_to(end);
        }
        Ok(())
    }
}

/// Writes the assigned offsets, the store time and the checksum into the record.
fn fill_in(record: &mut EncodedRecord<'_>) -> Result<(), StoreError> {
    let Placed { queue_offset, commit_log_offset, store_timestamp_ms } = record.placed;
    record
        .parts
        .place(queue_offset, commit_log_offset as i64, store_timestamp_ms)
        .map_err(|error| StoreError::invalid_message(&error))
}

/// Copies a record to position `at` of a mapped segment. Its size comes last, so that another process finds either the
/// complete record or nothing.
fn copy_to_map(region: &Region, at: usize, [head, body, tail]: [&[u8]; 3]) -> std::io::Result<()> {
    let Some((size, rest)) = head.split_first_chunk::<4>() else {
        return Err(std::io::ErrorKind::InvalidInput.into());
    };
    region.write(at + 4, rest)?;
    region.write(at + head.len(), body)?;
    region.write(at + head.len() + body.len(), tail)?;
    region.store_u32_be_release(at, u32::from_be_bytes(*size))?;
    Ok(())
}
