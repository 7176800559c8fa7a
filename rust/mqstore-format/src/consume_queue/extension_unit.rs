//! The extension unit of a consume queue: tags code, store time and a filter bit map. RocketMQ writes it to separate
//! files if `enableConsumeQueueExt` is set.
//!
//! ```text
//! 0  2  size of the unit, 20 + bit map
//! 2  8  tags code
//! 10 8  store timestamp
//! 18 2  bytes of bit map, 0 for none
//! 20 n  bit map
//! ```
//!
//! A file ends with size -1 (`FF FF`) if less than four bytes would be left after the next unit. The queue's unit then
//! holds an *address* in place of the tags code: the offset in the extension with the top bit set. Source:
//! `ConsumeQueueExt`, `ConsumeQueueExt.CqExtUnit`.

use crate::bytes::Reader;
use crate::error::FormatError;

/// Byte length of a unit without bit map.
pub const MIN_CQ_EXT_UNIT_BYTES: usize = 20;
/// Bytes that must be left after the last unit of a file.
pub const CQ_EXT_END_BYTES: usize = 4;
/// The marker that ends an extension file.
pub const CQ_EXT_END_MARKER: [u8; 2] = [0xff, 0xff];
/// The largest address. A sign-extended 32-bit hash is always larger.
pub const CQ_EXT_MAX_ADDRESS: i64 = i32::MIN as i64 - 1;

/// One unit of a consume queue's extension.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct CqExtUnit<'a> {
    /// Hash of the record's tags.
    pub tags_code: i64,
    /// The record's store timestamp, epoch milliseconds.
    pub store_timestamp: i64,
    /// Bits of the consumer groups whose expression is true for the record; may be empty.
    pub bitmap: &'a [u8],
}

impl<'a> CqExtUnit<'a> {
    /// Returns the unit's byte length.
    pub fn encoded_len(&self) -> usize {
        MIN_CQ_EXT_UNIT_BYTES.saturating_add(self.bitmap.len())
    }

    /// Appends the unit and returns its length, at most 32,767.
    pub fn encode_into(&self, out: &mut Vec<u8>) -> Result<usize, FormatError> {
        let total = self.encoded_len();
        let Ok(size) = i16::try_from(total) else {
            let (value, limit) = (total as u64, i16::MAX as u64);
            return Err(FormatError::TooLarge { what: "extension unit", value, limit });
        };
        out.extend_from_slice(&size.to_be_bytes());
        out.extend_from_slice(&self.tags_code.to_be_bytes());
        out.extend_from_slice(&self.store_timestamp.to_be_bytes());
        out.extend_from_slice(&(self.bitmap.len() as u16).to_be_bytes());
        out.extend_from_slice(self.bitmap);
        Ok(total)
    }

    /// Decodes the unit at the front of `bytes`. A size that is not 20 + bit map (0 in unwritten space, -1 at the end
    /// of a file) is [`FormatError::BadLength`].
    pub fn decode(bytes: &'a [u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(bytes, "extension unit");
        let size = i64::from(reader.i16()?);
        if size < MIN_CQ_EXT_UNIT_BYTES as i64 {
            let limit = MIN_CQ_EXT_UNIT_BYTES as i64;
            return Err(FormatError::BadLength { what: "extension unit size", value: size, limit });
        }
        let tags_code = reader.i64()?;
        let store_timestamp = reader.i64()?;
        let bitmap_len = i64::from(reader.i16()?);
        let limit = size - MIN_CQ_EXT_UNIT_BYTES as i64;
        if bitmap_len != limit {
            return Err(FormatError::BadLength { what: "extension bit map", value: bitmap_len, limit });
        }
        let bitmap = reader.take(limit as usize)?;
        Ok(Self { tags_code, store_timestamp, bitmap })
    }

    /// Returns bit `index` of the bit map: byte `index / 8`, lowest bit first (`BitsArray`). `None` after its end.
    pub fn bit(&self, index: usize) -> Option<bool> {
        self.bitmap.get(index / 8).map(|byte| byte >> (index % 8) & 1 == 1)
    }
}

/// Returns the address of the unit at `offset`, which replaces a tags code; `None` for offsets that are negative or
/// above `0x7FFF_FFFF_7FFF_FFFF`.
pub fn ext_address(offset: i64) -> Option<i64> {
    if offset < 0 { None } else { Some(offset.wrapping_add(i64::MIN)).filter(|a| *a <= CQ_EXT_MAX_ADDRESS) }
}

/// Returns the offset in the extension that a unit's third field contains, or `None` if the field is not an address.
pub fn ext_offset(tags_code: i64) -> Option<i64> {
    (tags_code <= CQ_EXT_MAX_ADDRESS).then(|| tags_code.wrapping_sub(i64::MIN))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::hex;
    use proptest::prelude::*;

    #[test]
    fn the_specified_examples() {
        let unit =
            CqExtUnit { tags_code: 2_598_919, store_timestamp: 1_700_000_000_123, bitmap: &[0x05, 0x80] };
        let mut bytes = Vec::new();
        assert_eq!(unit.encode_into(&mut bytes), Ok(22));
        assert_eq!(bytes, hex("0016 000000000027a807 0000018bcfe5687b 0002 0580"));
        assert_eq!(CqExtUnit::decode(&bytes), Ok(unit));
        assert_eq!(ext_address(20), Some(-9_223_372_036_854_775_788));
        assert_eq!(ext_offset(-9_223_372_036_854_775_788), Some(20));
    }

    #[test]
    fn addresses_and_hashes_do_not_mix() {
        assert_eq!(ext_offset(i64::from(i32::MIN)), None);
        assert_eq!(ext_offset(i64::from(i32::MIN) - 1), Some(0x7fff_ffff_7fff_ffff));
        assert_eq!(ext_address(0x7fff_ffff_7fff_ffff), Some(CQ_EXT_MAX_ADDRESS));
        assert_eq!(ext_address(0x7fff_ffff_8000_0000), None);
        assert_eq!((ext_address(-1), ext_offset(0)), (None, None));
    }

    #[test]
    fn bits_are_counted_from_the_lowest() {
        let unit = CqExtUnit { tags_code: 0, store_timestamp: 0, bitmap: &[0x05, 0x80] };
        let set: Vec<usize> = (0..16).filter(|i| unit.bit(*i) == Some(true)).collect();
        assert_eq!((set, unit.bit(16)), (vec![0, 2, 15], None));
    }

    #[test]
    fn ends_are_errors() {
        assert!(matches!(CqExtUnit::decode(&[0; 40]), Err(FormatError::BadLength { value: 0, .. })));
        let end = [CQ_EXT_END_MARKER.as_slice(), &[0; 40]].concat();
        assert!(matches!(CqExtUnit::decode(&end), Err(FormatError::BadLength { value: -1, .. })));
        let bitmap = vec![0; 32_748];
        let large = CqExtUnit { tags_code: 0, store_timestamp: 0, bitmap: &bitmap };
        assert!(matches!(large.encode_into(&mut Vec::new()), Err(FormatError::TooLarge { .. })));
    }

    proptest! {
        #[test]
        fn units_come_back(tags_code: i64, store_timestamp: i64, bitmap in proptest::collection::vec(any::<u8>(), 0..64)) {
            let unit = CqExtUnit { tags_code, store_timestamp, bitmap: &bitmap };
            let mut bytes = Vec::new();
            unit.encode_into(&mut bytes).unwrap();
            for cut in 0..bytes.len() {
                prop_assert!(CqExtUnit::decode(&bytes[..cut]).is_err());
            }
            bytes.push(7);
            prop_assert_eq!(CqExtUnit::decode(&bytes), Ok(unit));
        }

        #[test]
        fn any_bytes_are_a_unit_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = CqExtUnit::decode(&bytes);
        }
    }
}
