//! The lengths of the files of a compacted topic.
//!
//! Owns the arithmetic that turns RocketMQ's two settings (`compactionMappedFileSize`,
//! `compactionCqMappedFileSize`) into the actual lengths of its files, and the rule when a pair of files is full. No
//! I/O.
//!
//! Source: constructor of `CompactionLog`, `CompactionLog#getCompactionLogSize`,
//! `CompactionAppendMessageCallback#doAppend`.

use mqstore_format::{BATCH_CQ_UNIT_BYTES, BLANK_HEADER_BYTES};
use serde::{Deserialize, Serialize};

use mqstore_base::error::StoreError;

/// Bytes of one unit of the sparse queue.
pub(crate) const UNIT_BYTES: u64 = BATCH_CQ_UNIT_BYTES as u64;

/// RocketMQ's default of `compactionMappedFileSize`.
pub const DEFAULT_LOG_FILE_BYTES: u64 = 104_857_600;

/// RocketMQ's default of `compactionCqMappedFileSize`.
pub const DEFAULT_QUEUE_FILE_BYTES: u64 = 10_485_760;

/// The largest file that Java can map.
const LARGEST_FILE_BYTES: u64 = i32::MAX as u64;

/// The lengths of the two files of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "FileLengths")]
pub struct CompactionGeometry {
    /// Bytes of a compaction log file.
    pub log_file_bytes: u64,
    /// Bytes of a sparse queue file; a multiple of 46.
    pub queue_file_bytes: u64,
}

/// The lengths in a document, before they are checked.
#[derive(Deserialize)]
struct FileLengths {
    log_file_bytes: u64,
    queue_file_bytes: u64,
}

impl TryFrom<FileLengths> for CompactionGeometry {
    type Error = String;

    fn try_from(lengths: FileLengths) -> Result<Self, String> {
        let FileLengths { log_file_bytes, queue_file_bytes } = lengths;
        Self::of_existing(log_file_bytes, queue_file_bytes).ok_or_else(|| {
            format!("log_file_bytes {log_file_bytes} and queue_file_bytes {queue_file_bytes} are no valid file lengths")
        })
    }
}

impl CompactionGeometry {
    /// Returns the lengths that RocketMQ derives from its two settings, in bytes. The queue length is rounded down to
    /// complete units. The log length becomes a multiple of it, because RocketMQ takes positions modulo both.
    ///
    /// # Errors
    /// [`StoreError::InvalidOption`] if a queue file cannot hold a record and an end marker, or if a file would
    /// be longer than Java can map.
    pub fn from_settings(log_wish_bytes: u64, queue_wish_bytes: u64) -> Result<Self, StoreError> {
        let queue_file_bytes = queue_wish_bytes / UNIT_BYTES * UNIT_BYTES;
        if !(2 * UNIT_BYTES..=LARGEST_FILE_BYTES / 5).contains(&queue_file_bytes) {
            return Err(StoreError::InvalidOption {
                option: "queue_file_bytes",
                reason: format!(
                    "{queue_wish_bytes} is not between {} and {}",
                    2 * UNIT_BYTES,
                    LARGEST_FILE_BYTES / 5
                ),
            });
        }
        let whole = log_wish_bytes / queue_file_bytes;
        let rest = log_wish_bytes % queue_file_bytes;
        let multiple = if whole < 5 {
            5
        } else if rest > 0 && rest < queue_file_bytes / 2 {
            whole
        } else {
            whole.saturating_add(1)
        };
        match queue_file_bytes.checked_mul(multiple) {
            Some(log_file_bytes) if log_file_bytes <= LARGEST_FILE_BYTES => {
                Ok(Self { log_file_bytes, queue_file_bytes })
            }
            _ => Err(StoreError::InvalidOption {
                option: "log_file_bytes",
                reason: format!(
                    "{log_wish_bytes} is more than {LARGEST_FILE_BYTES}, the largest file that RocketMQ maps"
                ),
            }),
        }
    }

    /// Returns the geometry of existing files, if their lengths are valid.
    pub(crate) fn of_existing(log_file_bytes: u64, queue_file_bytes: u64) -> Option<Self> {
        let fits = queue_file_bytes.is_multiple_of(UNIT_BYTES)
            && (2 * UNIT_BYTES..=LARGEST_FILE_BYTES).contains(&queue_file_bytes)
            && log_file_bytes <= LARGEST_FILE_BYTES
            && log_file_bytes >= BLANK_HEADER_BYTES as u64;
        fits.then_some(Self { log_file_bytes, queue_file_bytes })
    }

    /// Whether a pair of files that is filled up to these two positions has room for a record of `size`
    /// bytes. The last unit is reserved for the end marker, and 8 bytes of the log for the filler.
    pub(crate) fn has_room(&self, log_position: u64, queue_position: u64, size: u64) -> bool {
        queue_position + UNIT_BYTES < self.queue_file_bytes
            && size + BLANK_HEADER_BYTES as u64 <= self.log_file_bytes - log_position
    }

    /// Size of the largest record that fits into an empty file.
    pub(crate) fn largest_record(&self) -> u64 {
        self.log_file_bytes.saturating_sub(BLANK_HEADER_BYTES as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(log: u64, queue: u64) -> (u64, u64) {
        let geometry = CompactionGeometry::from_settings(log, queue).unwrap();
        (geometry.log_file_bytes, geometry.queue_file_bytes)
    }

    #[test]
    fn default_lengths_are_those_of_rocketmq() {
        assert_eq!(settings(DEFAULT_LOG_FILE_BYTES, DEFAULT_QUEUE_FILE_BYTES), (104_857_460, 10_485_746));
    }

    #[test]
    fn small_lengths_follow_the_three_cases() {
        assert_eq!(settings(2048, 46 * 8), (2208, 368)); // a remainder of more than half a queue file
        assert_eq!(settings(368 * 4, 368), (1840, 368)); // fewer than five
        assert_eq!(settings(368 * 6, 368), (368 * 7, 368)); // none
        assert_eq!(settings(368 * 6 + 100, 368), (368 * 6, 368)); // less than half
    }

    #[test]
    fn lengths_that_cannot_work_are_refused() {
        assert!(CompactionGeometry::from_settings(2048, 91).is_err());
        assert!(CompactionGeometry::from_settings(u64::MAX, 368).is_err());
        assert!(CompactionGeometry::of_existing(2208, 100).is_none());
        assert!(CompactionGeometry::of_existing(2208, 46).is_none());
    }

    #[test]
    fn the_last_entry_and_eight_bytes_stay_free() {
        let geometry = CompactionGeometry { log_file_bytes: 2208, queue_file_bytes: 368 };
        assert!(geometry.has_room(1290, 6 * 46, 215));
        assert!(!geometry.has_room(1505, 7 * 46, 215));
        assert!(geometry.has_room(2000, 46, 200));
        assert!(!geometry.has_room(2001, 46, 200));
    }
}
