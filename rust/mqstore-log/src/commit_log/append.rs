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
//! | `async`, `manual` with `durable` | the file, by a positional write | at once |
//! | `sync` | the pool | when the leader of a group commit writes it |
//! | `pooled` | the pool | when the background writes it, or a reader asks |
//!
//! Source: `CommitLog#asyncPutMessage`, `DefaultAppendMessageCallback#doAppend`.

use std::time::Duration;

use mqstore_io::Region;
use mqstore_io::sync::Ordering;

use super::log::{CommitLog, EncodedRecord, Placed, PutState};
use super::pool::Pool;
use super::put_lock::{PutBusy, PutGuard};
use mqstore_base::error::{IoContext, StoreError};

/// Bytes of a batch from which the gathered records are written; the record that reaches the bound is included.
const MOST_AT_ONCE_BYTES: usize = 1 << 20;

/// Maximum bytes of a record's destination to prefetch; the processor prefetches the rest by itself.
const MOST_EXPECTED_BYTES: usize = 4096;

impl CommitLog {
    /// Appends records at consecutive log offsets, fills in [`EncodedRecord::placed`], and returns the end of the last
    /// record.
    ///
    /// All records become visible together, after all of them are copied. If a batch larger than a segment meets a full
    /// disk, the records that were already copied stay. With `through_file`, a positional write appends the records,
    /// which a sync makes durable cheaply. A log with a pool always writes through the file.
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
        let (mut put, past_pool) = self.lock_with_space(records, now_ms)?;
        let refused = if past_pool || (through_file && self.pool.is_none()) {
            self.write_records(&mut put, records)?
        } else {
            self.copy_records(&mut put, records)?
        };
        let end = self.publish(&put);
        drop(put);
        refused.map_or(Ok(end), Err)
    }

    /// Takes the put lock once `records` fit the active segment and the pool. Batches that are too large for either
    /// also get the lock. The flag says that the records must bypass the pool.
    fn lock_with_space(
        &self,
        records: &[EncodedRecord<'_>],
        now_ms: i64,
    ) -> Result<(PutGuard<'_, PutState>, bool), StoreError> {
        let total: u64 = records.iter().map(|record| record.parts.len() as u64).sum();
        loop {
            let mut put = self.lock_put()?;
            if put.sealed {
                return Err(StoreError::Closed { path: self.files.root.clone() });
            }
            self.check_copied(&put)?;
            self.admit(records)?;
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
                Some(pool) if !pool.has_room_to(put.point.position + total) => {
                    drop(put);
                    self.wait_for_pool(pool)?;
                }
                _ => return Ok((put, false)),
            }
        }
    }

    pub(super) fn lock_put(&self) -> Result<PutGuard<'_, PutState>, StoreError> {
        self.front.put.lock(&*self.files.clock).map_err(|busy| {
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
        let ms = self.front.put.limits().queue_wait_ms;
        let drained = pool.drain_within(&self.row, self.appended(), Duration::from_millis(ms));
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
    pub(super) fn admit(&self, records: &[EncodedRecord<'_>]) -> Result<(), StoreError> {
        if records.iter().all(|record| record.room.is_unlimited()) {
            return Ok(());
        }
        if let Some(record) = records.iter().find(|record| record.room.is_closed()) {
            return Err(StoreError::TopicNotFound { topic: record.room.topic().to_owned(), queue_id: None });
        }
        let full = records.iter().find_map(|record| {
            let limit = record.room.limit()?;
            (!record.room.request_messages(record.messages.into(), limit)).then_some((record.room, limit))
        });
        for record in records {
            record.room.end_request();
        }
        let Some((room, limit)) = full else { return Ok(()) };
        Err(StoreError::Full {
            path: self.files.root.clone(),
            topic: Some(room.topic().to_owned()),
            quota: "max_messages",
            limit,
            used: u64::try_from(room.used()).unwrap_or(0),
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
        let mut gathered = Vec::new();
        let mut first = true;
        for record in records {
            let size = record.parts.len() as u64;
            if gathered.len() >= MOST_AT_ONCE_BYTES || !put.has_space(size) {
                self.write_gathered(put, &mut gathered)?;
            }
            if let Err(refused) = self.ensure_space(put, size, first) {
                self.write_gathered(put, &mut gathered)?;
                return Ok(Some(refused));
            }
            first = false;
            self.assign(put, record);
            fill_in(record).map_err(|error| self.poison("appending", &error.to_string()))?;
            record.parts.slices().iter().for_each(|slice| gathered.extend_from_slice(slice));
        }
        self.write_gathered(put, &mut gathered)?;
        Ok(None)
    }

    /// Writes the gathered bytes, which end at the point of `put` and belong to one segment.
    fn write_gathered(&self, put: &PutState, gathered: &mut Vec<u8>) -> Result<(), StoreError> {
        if gathered.is_empty() {
            return Ok(());
        }
        let end = put.point.position;
        let start = end - gathered.len() as u64;
        let segment = &self.active_of(put)?.segment;
        segment
            .file()
            .and_then(|file| file.write_all_at(gathered, start - segment.base_offset()))
            .map_err(|error| self.poison("appending", &error.to_string()))?;
        segment.advance_wrote(end - segment.base_offset());
        gathered.clear();
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
