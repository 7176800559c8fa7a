//! The bytes of records on their way to the places that they have been given.
//!
//! Called outside the put lock, by as many threads as append. Numbers and checksum are filled in here, once
//! the place is known. To the pool and to the map bytes are copied; by position they are written where the
//! caller waits for a sync, which is cheaper then. Nothing of it counts before its ticket is completed.

use std::sync::Arc;

use mqstore_io::Region;

use super::active_segment::ActiveSegment;
use super::append::{CommitLog, EncodedRecord, Placed};
use super::roll::activate;
use mqstore_base::error::{IoContext, StoreError};

/// Records of a batch are gathered to so many bytes, and the one that goes beyond, before they are written.
const MOST_AT_ONCE_BYTES: u64 = 1 << 20;

impl CommitLog {
    /// Copies records to their places, from the segment of `active` on.
    pub(super) fn copy(
        &self,
        records: &mut [EncodedRecord<'_>],
        mut active: Arc<ActiveSegment>,
    ) -> Result<(), StoreError> {
        for record in records {
            let at = record.placed.commit_log_offset;
            if at >= active.segment.end_offset() {
                active = activate(self.segment_at(at)?)?;
            }
            let segment = &active.segment;
            seal(record)?;
            let slices = record.parts.slices();
            if let Some(pool) = &self.pool {
                let mut position = at;
                for slice in slices {
                    pool.write(position, slice)
                        .map_err(std::io::Error::from)
                        .at_file(|| segment.path(), "appending")?;
                    position += slice.len() as u64;
                }
            } else {
                copy_to_map(&active.region, at - segment.base_offset(), slices)
                    .at_file(|| segment.path(), "appending")?;
            }
        }
        Ok(())
    }

    /// Writes records to their places by position, many with one write.
    pub(super) fn write_through(
        &self,
        records: &mut [EncodedRecord<'_>],
        mut active: Arc<ActiveSegment>,
    ) -> Result<(), StoreError> {
        let mut rest = records;
        let mut bytes = Vec::new();
        while let Some(first) = rest.first() {
            let start = first.placed.commit_log_offset;
            if start >= active.segment.end_offset() {
                active = activate(self.segment_at(start)?)?;
            }
            let segment = &active.segment;
            let limit = segment.end_offset().min(start + MOST_AT_ONCE_BYTES);
            let here = rest.iter().take_while(|record| record.placed.commit_log_offset < limit).count();
            let (now, later) = rest.split_at_mut(here);
            bytes.clear();
            for record in now {
                seal(record)?;
                record.parts.slices().iter().for_each(|slice| bytes.extend_from_slice(slice));
            }
            let written =
                segment.file().and_then(|file| file.write_all_at(&bytes, start - segment.base_offset()));
            written.at_file(|| segment.path(), "appending")?;
            rest = later;
        }
        Ok(())
    }
}

/// Writes the numbers of its place into the record, and its checksum.
pub(super) fn seal(record: &mut EncodedRecord<'_>) -> Result<(), StoreError> {
    let Placed { queue_offset, commit_log_offset, store_timestamp_ms } = record.placed;
    record
        .parts
        .place(queue_offset, commit_log_offset as i64, store_timestamp_ms)
        .map_err(|error| StoreError::InvalidMessage { reason: error.to_string() })
}

/// Copies a record to position `at` of a mapped segment, its size last: another process that looks for
/// it there finds all of it, or nothing.
fn copy_to_map(region: &Region, at: u64, [head, body, tail]: [&[u8]; 3]) -> std::io::Result<()> {
    let at = at as usize;
    let Some((size, rest)) = head.split_first_chunk::<4>() else {
        return Err(std::io::ErrorKind::InvalidInput.into());
    };
    region.write(at + 4, rest)?;
    region.write(at + head.len(), body)?;
    region.write(at + head.len() + body.len(), tail)?;
    region.store_u32_be_release(at, u32::from_be_bytes(*size))?;
    Ok(())
}
