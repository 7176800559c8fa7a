//! Appends of bytes that another store has written: the log of a master, record by record, at the same log offsets.
//!
//! ```text
//! master   ... record record record | size, blank magic, any bytes |   next segment
//! copy     ... record record record | size, blank magic, any bytes |   next segment
//!              one append, whole      written before it is published
//! ```
//!
//! The records have their offsets, times and checksums. So a copy takes the same steps as an append, but assigns
//! nothing: it gets disk space first, writes, and then publishes whole records only. Across a crash and across threads,
//! the promises are those of `append`.

use mqstore_format::BLANK_HEADER_BYTES;

use super::log::{CommitLog, PutState, SyncPoint};
use mqstore_base::error::StoreError;

/// A part of the log of another store.
#[derive(Clone, Copy, Debug)]
pub enum CopiedPart<'a> {
    /// Whole records of one segment, one after the other.
    Records {
        /// Their bytes.
        bytes: &'a [u8],
        /// Number of records.
        count: u64,
        /// Byte length of the last one.
        last_size: u32,
        /// Newest store time, in epoch milliseconds.
        newest_ms: i64,
    },
    /// Bytes of a filler after its header. They are not published.
    FillerBytes {
        /// Their log offset.
        at: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// The end of a filler that begins at the end of the log: the next segment.
    Roll,
}

impl CommitLog {
    /// Appends `part` at log offset `position`, which must be the end of the log. Returns the new end.
    ///
    /// # Errors
    /// - [`StoreError::Refused`] if the log does not end there, or the part does not fit its segment; errors of creating
    ///   a segment, [`StoreError::DiskFull`]: nothing was appended.
    /// - [`StoreError::Poisoned`] if the log was stopped.
    pub fn append_copied(&self, position: u64, part: CopiedPart<'_>) -> Result<u64, StoreError> {
        self.check()?;
        let mut put = self.lock_put()?;
        if put.sealed {
            return Err(StoreError::Closed { path: self.files.root.clone() });
        }
        self.check_copied(&put)?;
        if put.point.position != position {
            let end = put.point.position;
            return Err(refused(format!("the copied log ends at {end}, not at {position}")));
        }
        match part {
            CopiedPart::Records { bytes, count, last_size, newest_ms } => {
                self.make_space(&mut put, bytes.len() as u64)?;
                self.write_copied(&put, position, bytes)?;
                put.point = SyncPoint {
                    position: position + bytes.len() as u64,
                    last_offset: position + bytes.len() as u64 - u64::from(last_size),
                    last_size,
                    store_timestamp_ms: put.point.store_timestamp_ms.max(newest_ms),
                };
                self.end_write(&put)?;
                self.count(count, bytes.len() as u64);
                Ok(self.publish(&put))
            }
            CopiedPart::FillerBytes { at, bytes } => {
                let rest = put.remaining().unwrap_or(0);
                let from = at.checked_sub(position).filter(|from| *from >= BLANK_HEADER_BYTES as u64);
                let end = from.and_then(|from| from.checked_add(bytes.len() as u64));
                let Some(end) = end.filter(|end| *end <= rest) else {
                    return Err(refused(format!("the filler at {at} does not fit its segment")));
                };
                self.ensure_allocated(&mut put, end - BLANK_HEADER_BYTES as u64)?;
                self.write_copied(&put, at, bytes)?;
                Ok(position)
            }
            CopiedPart::Roll => {
                drop(put);
                self.force_roll()
            }
        }
    }

    /// Makes sure that records of `bytes` fit the active segment, with a filler after them, and have disk space.
    fn make_space(&self, put: &mut PutState, bytes: u64) -> Result<(), StoreError> {
        // At the end of a segment, the next one begins.
        if let Some(rest @ 1..) = put.remaining()
            && !put.has_space(bytes)
        {
            return Err(refused(format!(
                "{bytes} bytes do not fit the {rest} bytes that the segment has left"
            )));
        }
        self.ensure_space(put, bytes, true)
    }

    fn write_copied(&self, put: &PutState, position: u64, bytes: &[u8]) -> Result<(), StoreError> {
        self.drain_locked(put)?;
        self.write_at(put, position, bytes)
    }
}

fn refused(reason: String) -> StoreError {
    StoreError::Refused { reason }
}
