//! The `checkpoint` file: the times up to which the other files are durable.
//!
//! ```text
//! 0  8  physicMsgTimestamp       24 8  masterFlushedOffset
//! 8  8  logicsMsgTimestamp       32 8  confirmPhyOffset
//! 16 8  indexMsgTimestamp        40 8  logicsPhysicalOffset (RocketMQ 5.5; older versions do not use it)
//! 48 .. 4095 zero
//! ```
//!
//! The numbers are lower bounds. All zeros, or a missing file, mean "nothing is known". Source: `StoreCheckpoint`.

use crate::bytes::put;

/// Byte length of the file.
pub const CHECKPOINT_BYTES: usize = 4096;
/// Byte length of the used part.
pub const CHECKPOINT_FIELD_BYTES: usize = 48;
/// Distance of [`Checkpoint::min_timestamp`] before the stored times, in milliseconds.
const SAFETY_MARGIN_MS: i64 = 3_000;

/// The six numbers of the file.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Store time up to which the commit log is durable.
    pub physic_msg_timestamp: i64,
    /// Store time up to which the queues are durable.
    pub logics_msg_timestamp: i64,
    /// Store time up to which full index files are durable.
    pub index_msg_timestamp: i64,
    /// For replication: flushed position of the master.
    pub master_flushed_offset: i64,
    /// Log offset that dispatch can trust; the start of the last record in a plain broker.
    pub confirm_physical_offset: i64,
    /// Log offset of a record whose queue unit is durable; 0 from brokers before 5.5.
    pub logics_physical_offset: i64,
}

impl Checkpoint {
    /// Returns the used bytes, to overwrite the front of an existing file.
    pub fn encode_fields(&self) -> [u8; CHECKPOINT_FIELD_BYTES] {
        let mut bytes = [0; CHECKPOINT_FIELD_BYTES];
        for (at, value) in (0..).step_by(8).zip(self.values()) {
            put(&mut bytes, at, value.to_be_bytes());
        }
        bytes
    }

    /// Returns the whole file.
    pub fn encode(&self) -> [u8; CHECKPOINT_BYTES] {
        let mut bytes = [0; CHECKPOINT_BYTES];
        put(&mut bytes, 0, self.encode_fields());
        bytes
    }

    /// Reads a file of any length. Missing fields are 0.
    pub fn decode(bytes: &[u8]) -> Self {
        let mut values = [0; 6];
        for (value, stored) in values.iter_mut().zip(bytes.as_chunks().0) {
            *value = i64::from_be_bytes(*stored);
        }
        let [physic, logics, index, master, confirm, logics_physical] = values;
        Self {
            physic_msg_timestamp: physic,
            logics_msg_timestamp: logics,
            index_msg_timestamp: index,
            master_flushed_offset: master,
            confirm_physical_offset: confirm,
            logics_physical_offset: logics_physical,
        }
    }

    /// Returns the store time from which a start after a crash searches for lost records: the older of log and queue
    /// time, minus three seconds, and not below 0 (`StoreCheckpoint#getMinTimestamp`).
    pub fn min_timestamp(&self) -> i64 {
        self.physic_msg_timestamp.min(self.logics_msg_timestamp).saturating_sub(SAFETY_MARGIN_MS).max(0)
    }

    fn values(&self) -> [i64; 6] {
        [
            self.physic_msg_timestamp,
            self.logics_msg_timestamp,
            self.index_msg_timestamp,
            self.master_flushed_offset,
            self.confirm_physical_offset,
            self.logics_physical_offset,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::hex;
    use proptest::prelude::*;

    #[test]
    fn the_specified_example() {
        let checkpoint = Checkpoint {
            physic_msg_timestamp: 1_700_000_000_000,
            logics_msg_timestamp: 1_700_000_000_123,
            ..Checkpoint::default()
        };
        let file = checkpoint.encode();
        assert_eq!(file[..16], hex("0000018bcfe56800 0000018bcfe5687b"));
        assert!(file[16..].iter().all(|byte| *byte == 0));
        assert_eq!(checkpoint.min_timestamp(), 1_699_999_997_000);
        assert_eq!(Checkpoint::decode(&file), checkpoint);
    }

    #[test]
    fn short_files_and_odd_numbers() {
        assert_eq!(Checkpoint::decode(&[]), Checkpoint::default());
        assert_eq!(Checkpoint::decode(&[0xff; 12]).physic_msg_timestamp, -1);
        assert_eq!(Checkpoint::decode(&[0xff; 12]).logics_msg_timestamp, 0);
        assert_eq!(Checkpoint::decode(&[0xff; 4096]).min_timestamp(), 0);
        let lowest = Checkpoint { physic_msg_timestamp: i64::MIN, ..Checkpoint::default() };
        assert_eq!(lowest.min_timestamp(), 0);
        let sixth = Checkpoint { logics_physical_offset: 7, ..Checkpoint::default() };
        assert_eq!(sixth.encode()[40..48], [0, 0, 0, 0, 0, 0, 0, 7]);
    }

    proptest! {
        #[test]
        fn fields_come_back(bytes in proptest::collection::vec(any::<u8>(), 48)) {
            prop_assert_eq!(Checkpoint::decode(&bytes).encode_fields().to_vec(), bytes);
        }

        #[test]
        fn any_length_is_read(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Checkpoint::decode(&bytes).min_timestamp();
        }
    }
}
