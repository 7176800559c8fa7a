//! Records of mqstore that replace damaged ones, and hidden ones.
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
//! A reclaim of space replaces adjacent hidden records by the first of them, changed:
//!
//! ```text
//! TOTALSIZE   of all of them               SYSFLAG     0xC, no bit of compression, batches or tags
//! BODY        zeros: a hole of the file    PROPERTIES  none, or __CRC32# if the first record has it
//! RECONSUMETIMES, PREPARED TRANSACTION OFFSET   0      everything else as in the first record
//! ```
//!
//! Source: `CommitLogDispatcherBuildConsumeQueue`, `IndexService#buildIndex`.

use super::{
    BORN_HOST_POSITION, FLAG_POSITION, MAX_TOPIC_BYTES_V1, MIN_RECORD_BYTES, PROPERTY_CRC_BYTES,
    RecordOutline, RecordParts, RecordSpec, RecordView, Version,
};
use crate::bytes::field;
use crate::error::FormatError;
use crate::host::Host;
use crate::properties::PROPERTY_CRC_HEAD;
use crate::sys_flag::{SysFlag, TransactionType};

/// The topic of placeholders, truncated in a very small record.
pub const PLACEHOLDER_TOPIC: &str = "MQSTORE_LOST";

/// The FLAG of placeholders: "MQLO".
const PLACEHOLDER_FLAG: i32 = 0x4D51_4C4F;

/// Maximum size of a placeholder, equal to RocketMQ's own limit of a message.
const MAX_PLACEHOLDER_BYTES: u64 = 4 << 20;

/// Maximum size of a placeholder for several hidden records: RocketMQ's recovery reads a whole record into memory.
pub const MAX_HIDDEN_BYTES: u64 = 1 << 20;

impl RecordOutline<'_> {
    /// Returns whether the record only replaces lost or hidden records.
    #[inline]
    pub fn is_placeholder(&self) -> bool {
        self.sys_flag.transaction() == TransactionType::Rollback
            && is_placeholder(
                (i32::from_be_bytes(field(self.bytes, FLAG_POSITION)), self.topic),
                self.body,
                self.properties.raw(),
            )
    }
}

impl RecordView<'_> {
    /// Like [`RecordOutline::is_placeholder`].
    #[inline]
    pub fn is_placeholder(&self) -> bool {
        self.sys_flag.transaction() == TransactionType::Rollback
            && is_placeholder((self.flag, self.topic), self.body, self.properties.raw())
    }

    /// Whether the record replaces hidden records, so that a reclaim wrote it, and no repair.
    pub fn replaces_hidden(&self) -> bool {
        self.is_placeholder() && !is_of_repair(self.flag, self.topic)
    }
}

fn is_of_repair(flag: i32, topic: &str) -> bool {
    flag == PLACEHOLDER_FLAG && PLACEHOLDER_TOPIC.starts_with(topic)
}

/// Whether a rolled-back record with these parts is a placeholder.
#[cold]
fn is_placeholder((flag, topic): (i32, &str), body: &[u8], properties: &[u8]) -> bool {
    if is_of_repair(flag, topic) {
        return true;
    }
    let has_crc_only = properties.len() == PROPERTY_CRC_BYTES && properties.starts_with(PROPERTY_CRC_HEAD);
    (properties.is_empty() || has_crc_only) && body.iter().fold(0, |all, byte| all | byte) == 0
}

/// A placeholder for hidden records: the bytes before and after its body, which is zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HiddenPlaceholder {
    /// The bytes before the body.
    pub head: Vec<u8>,
    /// Byte length of the body.
    pub body_bytes: u64,
    /// The bytes after the body.
    pub tail: Vec<u8>,
}

impl HiddenPlaceholder {
    /// Returns the byte lengths of head and tail for hidden records that begin with `first`.
    pub fn frame_bytes(first: &RecordView<'_>) -> (u64, u64) {
        let hosts = first.born_host.encoded_len() + first.store_host.encoded_len();
        let head = BORN_HOST_POSITION + hosts + 8 + 16;
        let topic = if first.topic.len() > MAX_TOPIC_BYTES_V1 { Version::V2 } else { Version::V1 };
        let crc = if first.has_property_crc() { PROPERTY_CRC_BYTES } else { 0 };
        let tail = topic.topic_length_bytes() + first.topic.len() + 2 + crc;
        (head as u64, tail as u64)
    }

    /// Creates the placeholder of `size` bytes for hidden records that begin with `first`.
    ///
    /// # Errors
    /// [`FormatError::TooLarge`] if `size` is less than the size of `first`, or no size of a record.
    pub fn new(first: &RecordView<'_>, size: u64) -> Result<Self, FormatError> {
        let property_crc = first.has_property_crc();
        let sys_flag = first
            .sys_flag
            .with_transaction(TransactionType::Rollback)
            .with_compressed(false)
            .with_inner_batch(false)
            .with_multi_tags(false);
        let spec = RecordSpec {
            sys_flag,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body: &[],
            properties: &[],
            property_crc,
            ..RecordSpec::from(first)
        };
        let least = spec.encoded_len()? as u64;
        let too_large = || FormatError::TooLarge { what: "placeholder", value: least, limit: size };
        let body_bytes = size.checked_sub(least).ok_or_else(too_large)?;
        // Fresh zeros take no memory until they are written.
        let body = vec![0; usize::try_from(body_bytes).map_err(|_| too_large())?];
        let (mut head, mut tail) = (Vec::new(), Vec::new());
        RecordSpec { body: &body, ..spec }.encode_parts(&mut head, &mut tail)?;
        let mut parts = RecordParts { head: &mut head, body: &body, tail: &mut tail, property_crc };
        parts.place(first.queue_offset, first.physical_offset, first.store_timestamp)?;
        Ok(Self { head, body_bytes, tail })
    }
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
            assert!(!record.replaces_hidden());
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
            let spec = RecordSpec { flag, sys_flag, ..RecordSpec::new(topic, b"mark", host, host) };
            spec.encode_into(&mut bytes).unwrap();
            assert_eq!(RecordView::decode(&bytes).unwrap().is_placeholder(), is);
        }
    }

    /// Returns a record with all fields set, as a broker may have stored it.
    fn hidden(topic: &str, host: Host, property_crc: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        let spec = RecordSpec {
            queue_id: 3,
            flag: 17,
            queue_offset: 99,
            physical_offset: 4711,
            sys_flag: SysFlag(0x101).with_inner_batch(true).with_multi_tags(true),
            born_timestamp: 5,
            store_timestamp: 6,
            reconsume_times: 7,
            prepared_transaction_offset: 8,
            properties: b"KEYS\x01secret\x02",
            property_crc,
            ..RecordSpec::new(topic, b"secret body", host, host)
        };
        spec.encode_into(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_placeholder_of_hidden_records_keeps_the_place_of_the_first() {
        let v4 = Host::new([10, 0, 0, 1], 10911);
        let v6 = Host::new(std::net::Ipv6Addr::LOCALHOST, 10911);
        let long = "t".repeat(200);
        for (topic, host, property_crc) in
            [("orders", v4, false), ("orders", v6, true), (&long, v4, true), (&long, v6, false)]
        {
            let first = hidden(topic, host, property_crc);
            let first = RecordView::decode(&first).unwrap();
            assert!(!first.is_placeholder());
            let own = u64::from(first.size);
            for size in [own, own + 1, own + 91, 70_000, MAX_HIDDEN_BYTES] {
                let made = HiddenPlaceholder::new(&first, size).unwrap();
                let frame = (made.head.len() as u64, made.tail.len() as u64);
                assert_eq!(frame, HiddenPlaceholder::frame_bytes(&first));
                let body = vec![0; made.body_bytes as usize];
                let bytes = [made.head, body, made.tail].concat();
                assert_eq!(bytes.len() as u64, size);
                let record = RecordView::decode(&bytes).unwrap();
                record.check_crc(CrcCheck::ALL).unwrap();
                assert!(record.is_placeholder() && record.outline().is_placeholder());
                assert!(record.replaces_hidden());
                assert!(!record.dispatches_to_queue() && !record.indexed() && record.inner_batch().is_none());
                assert_eq!(record.has_property_crc(), property_crc);
                let place = |record: &RecordView<'_>| {
                    let numbers = (record.queue_id, record.flag, record.queue_offset, record.physical_offset);
                    let times = (record.born_timestamp, record.store_timestamp);
                    (numbers, times, record.born_host, record.store_host, record.topic.to_owned())
                };
                assert_eq!(place(&record), place(&first));
                assert_eq!((record.reconsume_times, record.prepared_transaction_offset), (0, 0));
                let text = b"secret";
                assert!(!bytes.windows(text.len()).any(|part| part == text));
            }
            assert!(HiddenPlaceholder::new(&first, MIN_RECORD_BYTES as u64).is_err());
        }
    }
}
