//! The 20-byte unit of a consume queue.
//!
//! ```text
//! 0  8  physical offset of the record
//! 8  4  size of the record
//! 12 8  tags code; in delay queues the delivery time; or the address of an extension unit
//! ```
//!
//! The unit of queue offset n is at byte 20 n of the queue. There is no header. Space that was never written is zero.
//! Source: `ConsumeQueue` (`CQ_STORE_UNIT_SIZE`, `#fillPreBlank`).

use crate::bytes::{field, put};

/// Byte length of a unit.
pub const CQ_UNIT_BYTES: usize = 20;

/// The unit that fills a queue before its first entry, or fills a gap.
pub const BLANK_UNIT: CqUnit = CqUnit { physical_offset: 0, size: i32::MAX, tags_code: 0 };

/// One entry of a consume queue.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct CqUnit {
    /// Log offset of the record.
    pub physical_offset: i64,
    /// Byte length of the record.
    pub size: i32,
    /// Sign-extended hash of the tags, delivery time or extension address.
    pub tags_code: i64,
}

impl CqUnit {
    /// Returns the unit's bytes.
    #[inline]
    pub fn encode(&self) -> [u8; CQ_UNIT_BYTES] {
        let mut bytes = [0; CQ_UNIT_BYTES];
        put(&mut bytes, 0, self.physical_offset.to_be_bytes());
        put(&mut bytes, 8, self.size.to_be_bytes());
        put(&mut bytes, 12, self.tags_code.to_be_bytes());
        bytes
    }

    /// Decodes a unit. Any twenty bytes decode; [`is_valid`](Self::is_valid) checks the meaning.
    pub fn decode(bytes: &[u8; CQ_UNIT_BYTES]) -> Self {
        Self {
            physical_offset: i64::from_be_bytes(field(bytes, 0)),
            size: i32::from_be_bytes(field(bytes, 8)),
            tags_code: i64::from_be_bytes(field(bytes, 12)),
        }
    }

    /// Decodes the units of a part of a queue, without an incomplete unit at the end.
    pub fn decode_all(bytes: &[u8]) -> impl DoubleEndedIterator<Item = Self> + ExactSizeIterator + '_ {
        bytes.as_chunks().0.iter().map(Self::decode)
    }

    /// Returns whether the unit points to a record: offset 0 or more, size above 0, and not [blank](Self::is_blank).
    pub fn is_valid(&self) -> bool {
        self.is_written() && !self.is_blank()
    }

    /// Returns whether the unit was written, blank or not: the units that RocketMQ's recovery accepts
    /// (`ConsumeQueue#recover`).
    pub fn is_written(&self) -> bool {
        self.physical_offset >= 0 && self.size > 0
    }

    /// Returns whether the unit is a [`BLANK_UNIT`].
    #[inline]
    pub fn is_blank(&self) -> bool {
        *self == BLANK_UNIT
    }

    /// Returns the log offset after the record's end.
    pub fn physical_end(&self) -> i64 {
        self.physical_offset.saturating_add(i64::from(self.size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(text: &str) -> [u8; 20] {
        crate::testing::hex(text).try_into().unwrap()
    }

    #[test]
    fn the_specified_examples() {
        let examples = [
            (1024, 167, 2_598_919, "0000000000000400 000000a7 000000000027a807"),
            (2048, 124, -392_709_271, "0000000000000800 0000007c ffffffffe897bb69"),
            (4096, 133, 1_700_000_010_123, "0000000000001000 00000085 0000018bcfe58f8b"),
            (987_654, 412, 1_700_000_010_123, "00000000000f1206 0000019c 0000018bcfe58f8b"),
        ];
        for (physical_offset, size, tags_code, text) in examples {
            let unit = CqUnit { physical_offset, size, tags_code };
            assert_eq!(unit.encode(), bytes(text));
            assert_eq!(CqUnit::decode(&bytes(text)), unit);
            assert!(unit.is_valid());
            assert_eq!(unit.physical_end(), physical_offset + i64::from(size));
        }
        assert_eq!(BLANK_UNIT.encode(), bytes("0000000000000000 7fffffff 0000000000000000"));
    }

    #[test]
    fn blank_zero_and_negative_units_name_no_record() {
        assert!(BLANK_UNIT.is_blank() && BLANK_UNIT.is_written() && !BLANK_UNIT.is_valid());
        let zero = CqUnit::decode(&[0; 20]);
        assert!(!zero.is_written() && !zero.is_valid() && !zero.is_blank());
        for (physical_offset, size) in [(-1, 100), (100, 0), (100, -1)] {
            assert!(!CqUnit { physical_offset, size, tags_code: 0 }.is_valid());
        }
        // The first record of a log is at offset 0, and its unit is not blank.
        assert!(CqUnit { physical_offset: 0, size: 91, tags_code: 0 }.is_valid());
    }

    proptest! {
        #[test]
        fn any_bytes_come_back(bytes in any::<[u8; 20]>()) {
            prop_assert_eq!(CqUnit::decode(&bytes).encode(), bytes);
            let _ = CqUnit::decode(&bytes).physical_end();
        }

        #[test]
        fn stretches_are_cut_into_units(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let units: Vec<u8> = CqUnit::decode_all(&bytes).flat_map(|unit| unit.encode()).collect();
            prop_assert_eq!(&units[..], &bytes[..bytes.len() / 20 * 20]);
        }
    }
}
