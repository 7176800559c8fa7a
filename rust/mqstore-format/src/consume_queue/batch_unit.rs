//! The 46-byte unit of batch queues and of the sparse queues of compaction topics.
//!
//! ```text
//! 0  8  physical offset          28 8  base queue offset
//! 8  4  size of the record       36 2  messages in the record
//! 12 8  tags code                38 4  compacted offset, always -1
//! 20 8  store timestamp          42 4  reserved, 0
//! ```
//!
//! Units follow each other. Unlike in a consume queue, the position of a unit does not follow from its queue offset, so
//! readers search. A sparse queue's file that is closed early ends with [`END_MARKER`]. Source: `BatchConsumeQueue`
//! (`CQ_STORE_UNIT_SIZE`), `SparseConsumeQueue#putEndPositionInfo`.

use crate::bytes::{field, put};

/// Byte length of a unit.
pub const BATCH_CQ_UNIT_BYTES: usize = 46;

/// The unit that closes a file of a sparse queue.
pub const END_MARKER: BatchCqUnit = BatchCqUnit {
    physical_offset: -1,
    size: 0,
    tags_code: 0,
    store_timestamp: 0,
    base_offset: 0,
    batch_size: 0,
    compacted_offset: -1,
    reserved: 0,
};

/// One entry of a batch queue or a sparse queue.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct BatchCqUnit {
    /// Offset of the record: in the commit log for batch queues, in the compaction log for sparse ones.
    pub physical_offset: i64,
    /// Byte length of the record.
    pub size: i32,
    /// Sign-extended hash of the tags.
    pub tags_code: i64,
    /// The record's store timestamp, epoch milliseconds.
    pub store_timestamp: i64,
    /// Queue offset of the record's first message.
    pub base_offset: i64,
    /// Number of messages in the record; 1 in sparse queues.
    pub batch_size: i16,
    /// Always -1.
    pub compacted_offset: i32,
    /// Always 0.
    pub reserved: i32,
}

impl BatchCqUnit {
    /// Creates a unit with the two constant fields filled in.
    pub fn new(
        physical_offset: i64,
        size: i32,
        tags_code: i64,
        store_timestamp: i64,
        base_offset: i64,
        batch_size: i16,
    ) -> Self {
        Self { physical_offset, size, tags_code, store_timestamp, base_offset, batch_size, ..END_MARKER }
    }

    /// Returns the unit's bytes.
    pub fn encode(&self) -> [u8; BATCH_CQ_UNIT_BYTES] {
        let mut bytes = [0; BATCH_CQ_UNIT_BYTES];
        put(&mut bytes, 0, self.physical_offset.to_be_bytes());
        put(&mut bytes, 8, self.size.to_be_bytes());
        put(&mut bytes, 12, self.tags_code.to_be_bytes());
        put(&mut bytes, 20, self.store_timestamp.to_be_bytes());
        put(&mut bytes, 28, self.base_offset.to_be_bytes());
        put(&mut bytes, 36, self.batch_size.to_be_bytes());
        put(&mut bytes, 38, self.compacted_offset.to_be_bytes());
        put(&mut bytes, 42, self.reserved.to_be_bytes());
        bytes
    }

    /// Decodes a unit. Any 46 bytes decode; [`is_valid`](Self::is_valid) checks the meaning.
    pub fn decode(bytes: &[u8; BATCH_CQ_UNIT_BYTES]) -> Self {
        Self {
            physical_offset: i64::from_be_bytes(field(bytes, 0)),
            size: i32::from_be_bytes(field(bytes, 8)),
            tags_code: i64::from_be_bytes(field(bytes, 12)),
            store_timestamp: i64::from_be_bytes(field(bytes, 20)),
            base_offset: i64::from_be_bytes(field(bytes, 28)),
            batch_size: i16::from_be_bytes(field(bytes, 36)),
            compacted_offset: i32::from_be_bytes(field(bytes, 38)),
            reserved: i32::from_be_bytes(field(bytes, 42)),
        }
    }

    /// Decodes the units of a part of a queue, without an incomplete unit at the end.
    pub fn decode_all(bytes: &[u8]) -> impl DoubleEndedIterator<Item = Self> + ExactSizeIterator + '_ {
        bytes.as_chunks().0.iter().map(Self::decode)
    }

    /// Returns whether the unit points to a record: offsets 0 or more, size and count above 0
    /// (`BatchConsumeQueue#recover`).
    pub fn is_valid(&self) -> bool {
        self.physical_offset >= 0 && self.size > 0 && self.base_offset >= 0 && self.batch_size > 0
    }

    /// Returns the queue offset after the record's last message.
    pub fn next_offset(&self) -> i64 {
        self.base_offset.saturating_add(i64::from(self.batch_size))
    }

    /// Returns the offset after the record's end.
    pub fn physical_end(&self) -> i64 {
        self.physical_offset.saturating_add(i64::from(self.size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(text: &str) -> [u8; 46] {
        crate::testing::hex(text).try_into().unwrap()
    }

    #[test]
    fn the_specified_examples() {
        let inner_batch = BatchCqUnit::new(1482, 199, 0, 1_700_000_000_123, 100, 2);
        let text = "00000000000005ca 000000c7 0000000000000000 0000018bcfe5687b 0000000000000064 0002 ffffffff 00000000";
        assert_eq!(inner_batch.encode(), bytes(text));
        assert_eq!(BatchCqUnit::decode(&bytes(text)), inner_batch);
        assert!(inner_batch.is_valid());
        assert_eq!((inner_batch.next_offset(), inner_batch.physical_end()), (102, 1681));

        let sparse = BatchCqUnit::new(0, 215, 2_598_919, 1_700_000_000_123, 0, 1);
        let text = "0000000000000000 000000d7 000000000027a807 0000018bcfe5687b 0000000000000000 0001 ffffffff 00000000";
        assert_eq!(sparse.encode(), bytes(text));

        let text = "ffffffffffffffff 00000000 0000000000000000 0000000000000000 0000000000000000 0000 ffffffff 00000000";
        assert_eq!(END_MARKER.encode(), bytes(text));
        assert_eq!(BatchCqUnit::decode(&bytes(text)), END_MARKER);
        assert!(!END_MARKER.is_valid());
        assert!(!BatchCqUnit::decode(&[0; 46]).is_valid());
    }

    proptest! {
        #[test]
        fn any_bytes_come_back(head in any::<[u8; 32]>(), tail in any::<[u8; 14]>()) {
            let bytes: [u8; 46] = [head.as_slice(), &tail].concat().try_into().unwrap();
            let unit = BatchCqUnit::decode(&bytes);
            prop_assert_eq!(unit.encode(), bytes);
            let _ = (unit.next_offset(), unit.physical_end());
            prop_assert_eq!(BatchCqUnit::decode_all(&bytes).len(), 1);
        }
    }
}
