//! Records of mqstore that replace damaged ones.
//!
//! RocketMQ accepts a blank only at the end of a segment. A repair therefore fills a lost range between two records
//! with records that no reader sees: marks of a rolled back transaction. RocketMQ builds neither queue entries nor
//! index entries for them, and no compaction reads them.
//!
//! ```text
//! FLAG      0x4D51_4C4F ("MQLO")           SYSFLAG   0xC, rolled back
//! TOPIC     the start of "MQSTORE_LOST"    BODY      zeros
//! STORETIMESTAMP   that of a neighbour     __CRC32#  if the record is large enough
//! everything else 0
//! ```
//!
//! Source: `CommitLogDispatcherBuildConsumeQueue`, `IndexService#buildIndex`.

use super::{
    FLAG_POSITION, Host, MIN_RECORD_BYTES, PROPERTY_CRC_BYTES, RecordOutline, RecordSpec, RecordView,
};
use crate::bytes::field;
use crate::error::FormatError;
use crate::sys_flag::{SysFlag, TransactionType};

/// The topic of placeholders, truncated in a very small record.
pub const PLACEHOLDER_TOPIC: &str = "MQSTORE_LOST";

/// The FLAG of placeholders: "MQLO".
const PLACEHOLDER_FLAG: i32 = 0x4D51_4C4F;

/// Maximum size of a placeholder, equal to RocketMQ's own limit of a message.
const MAX_PLACEHOLDER_BYTES: u64 = 4 << 20;

impl RecordOutline<'_> {
    /// Returns whether the record only replaces lost records.
    #[inline]
    pub fn is_placeholder(&self) -> bool {
        is_placeholder(self.sys_flag, || i32::from_be_bytes(field(self.bytes, FLAG_POSITION)), self.topic)
    }
}

impl RecordView<'_> {
    /// Like [`RecordOutline::is_placeholder`].
    #[inline]
    pub fn is_placeholder(&self) -> bool {
        is_placeholder(self.sys_flag, || self.flag, self.topic)
    }
}

#[inline]
fn is_placeholder(sys_flag: SysFlag, flag: impl FnOnce() -> i32, topic: &str) -> bool {
    sys_flag.transaction() == TransactionType::Rollback
        && flag() == PLACEHOLDER_FLAG
        && PLACEHOLDER_TOPIC.starts_with(topic)
}

/// Returns the size of the first of the placeholders that fill `stretch_bytes` exactly; `None` if no record fits.
///
/// It depends only on the bytes left, so that an interrupted sequence is finished in the same way.
pub fn placeholder_bytes(stretch_bytes: u64) -> Option<u64> {
    match stretch_bytes {
        _ if stretch_bytes < MIN_RECORD_BYTES as u64 => None,
        ..=MAX_PLACEHOLDER_BYTES => Some(stretch_bytes),
        // The last two have about the same size, so that neither is too small.
        _ if stretch_bytes <= 2 * MAX_PLACEHOLDER_BYTES => Some(stretch_bytes.div_ceil(2)),
        _ => Some(MAX_PLACEHOLDER_BYTES),
    }
}

/// Appends the placeholder of `size` bytes for log offset `physical_offset` to `out`. On error `out` is unchanged.
pub fn encode_placeholder(
    size: u64,
    physical_offset: i64,
    store_timestamp: i64,
    out: &mut Vec<u8>,
) -> Result<(), FormatError> {
    let too_small =
        || FormatError::Truncated { what: "placeholder", needed: MIN_RECORD_BYTES, available: size as usize };
    let spare = (size as usize).checked_sub(MIN_RECORD_BYTES).ok_or_else(too_small)?;
    let topic = PLACEHOLDER_TOPIC.get(..spare.min(PLACEHOLDER_TOPIC.len())).unwrap_or_default();
    let spare = spare - topic.len();
    let property_crc = spare >= PROPERTY_CRC_BYTES;
    let body = vec![0; if property_crc { spare - PROPERTY_CRC_BYTES } else { spare }];
    let nobody = Host::new([0, 0, 0, 0], 0);
    let spec = RecordSpec {
        flag: PLACEHOLDER_FLAG,
        physical_offset,
        sys_flag: SysFlag::default().with_transaction(TransactionType::Rollback),
        store_timestamp,
        property_crc,
        ..RecordSpec::new(topic, &body, nobody, nobody)
    };
    spec.encode_into(out).map(drop)
}

#[cfg(test)]
mod tests {
    use super::super::CrcCheck;
    use super::*;

    /// Returns the sizes that fill a range.
    fn row(mut left: u64) -> Vec<u64> {
        let mut sizes = Vec::new();
        while left > 0 {
            let size = placeholder_bytes(left).unwrap();
            sizes.push(size);
            left -= size;
        }
        sizes
    }

    #[test]
    fn any_stretch_of_a_record_or_more_is_filled() {
        const MAX: u64 = MAX_PLACEHOLDER_BYTES;
        assert_eq!(placeholder_bytes(90), None);
        for stretch in [91, 92, MAX - 1, MAX, MAX + 1, MAX + 91, 2 * MAX, 2 * MAX + 1, 3 * MAX + 7] {
            let sizes = row(stretch);
            assert_eq!(sizes.iter().sum::<u64>(), stretch);
            assert!(sizes.iter().all(|size| (91..=MAX).contains(size)), "{stretch}: {sizes:?}");
            // An interrupted sequence continues as planned.
            assert_eq!(row(stretch - sizes[0]), sizes[1..]);
        }
    }

    #[test]
    fn a_placeholder_is_a_record_of_the_wanted_size() {
        for size in (91..180).chain([1000, 70_000]) {
            let mut bytes = vec![7];
            encode_placeholder(size, 4711, 99, &mut bytes).unwrap();
            let record = RecordView::decode(&bytes[1..]).unwrap();
            assert_eq!((u64::from(record.size), record.bytes.len() as u64), (size, size));
            assert_eq!((record.physical_offset, record.store_timestamp), (4711, 99));
            record.check_crc(CrcCheck::ALL).unwrap();
            assert!(record.is_placeholder() && !record.dispatches_to_queue() && !record.indexed());
            assert_eq!(record.has_property_crc(), size >= 91 + 12 + 20);
        }
        let mut bytes = vec![7];
        assert!(encode_placeholder(90, 0, 0, &mut bytes).is_err());
        assert_eq!(bytes, [7]);
    }

    #[test]
    fn other_marks_of_rolled_back_transactions_are_none() {
        let host = Host::new([0, 0, 0, 0], 0);
        let rolled_back = SysFlag::default().with_transaction(TransactionType::Rollback);
        for (flag, sys_flag, topic, is) in [
            (PLACEHOLDER_FLAG, rolled_back, "MQSTORE_LOST", true),
            (PLACEHOLDER_FLAG, rolled_back, "", true),
            (0, rolled_back, "MQSTORE_LOST", false),
            (PLACEHOLDER_FLAG, SysFlag::default(), "MQSTORE_LOST", false),
            (PLACEHOLDER_FLAG, rolled_back, "orders", false),
        ] {
            let mut bytes = Vec::new();
            let spec = RecordSpec { flag, sys_flag, ..RecordSpec::new(topic, b"", host, host) };
            spec.encode_into(&mut bytes).unwrap();
            assert_eq!(RecordView::decode(&bytes).unwrap().is_placeholder(), is);
        }
    }
}
