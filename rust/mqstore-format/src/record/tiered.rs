//! RocketMQ's tiered store in its POSIX layout: names of files and folders, and the records in its logs.
//!
//! ```text
//! <H(cluster)>_<cluster>/<broker>/<topic>/<queue id>/COMMIT_LOG/<name>       the records of one queue
//! <H(cluster)>_<cluster>/<broker>/<topic>/<queue id>/CONSUME_QUEUE/<name>    one unit of 20 bytes for each record
//! <H(cluster)>_<cluster>/<broker>/rmq_sys_INDEX/0/INDEX/<name>               the key index of the broker
//! ```
//!
//! H is the first eight hexadecimal digits of an MD5. A name is H of the decimal offset of the file's first byte in its
//! queue, then this offset with twenty digits. A record is stored unchanged, except for PHYSICALOFFSET: that is its
//! position in the log of its queue. So BODYCRC holds, and the `__CRC32#` property does not.
//!
//! Source: `PosixFileSegment`, `MessageStoreUtil#offset2FileName`, `CommitLogInputStream`.

use std::fmt::Write;

use md5::{Digest, Md5};

use super::{
    CrcCheck, MAGIC_POSITION, MIN_RECORD_BYTES, PHYSICAL_OFFSET_POSITION, QUEUE_ID_POSITION,
    QUEUE_OFFSET_POSITION, RecordView, SYS_FLAG_POSITION, Version, encode::seal_property_crc,
};
use crate::bytes::{field, put};
use crate::names::{offset_file_name, parse_offset_file_name};

/// Folder with the log of a queue.
pub const TIERED_LOG_DIR: &str = "COMMIT_LOG";
/// Folder with the units of a queue.
pub const TIERED_QUEUE_DIR: &str = "CONSUME_QUEUE";
/// Folder with the key index, below [`TIERED_INDEX_TOPIC`].
pub const TIERED_INDEX_DIR: &str = "INDEX";
/// The name in the place of a topic for the key index.
pub const TIERED_INDEX_TOPIC: &str = "rmq_sys_INDEX";

/// Bytes of a record that [`TieredLog::head`] reads.
pub const TIERED_HEAD_BYTES: usize = SYS_FLAG_POSITION;

/// Number of digits of H.
const HASH_DIGITS: usize = 8;

/// Returns the first eight hexadecimal digits of the MD5 of `text`.
fn hash_digits(text: &str) -> String {
    let digest: [u8; 16] = Md5::digest(text.as_bytes()).into();
    let mut digits = String::with_capacity(HASH_DIGITS);
    for byte in digest.iter().take(HASH_DIGITS / 2) {
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

/// Returns the name of the file whose first byte is at `offset` of its queue.
pub fn tiered_file_name(offset: u64) -> String {
    format!("{}{}", hash_digits(&offset.to_string()), offset_file_name(offset))
}

/// Returns the offset in the name of such a file; `None` for any other name.
pub fn parse_tiered_file_name(name: &str) -> Option<u64> {
    let (hash, offset) = name.split_at_checked(HASH_DIGITS)?;
    let offset = parse_offset_file_name(offset)?;
    (hash == hash_digits(&offset.to_string())).then_some(offset)
}

/// Returns the name of a cluster's folder.
pub fn tiered_cluster_folder(cluster: &str) -> String {
    format!("{}_{cluster}", hash_digits(cluster))
}

/// Returns the cluster in the name of its folder; `None` for any other name.
pub fn parse_tiered_cluster_folder(name: &str) -> Option<&str> {
    let (hash, cluster) = name.split_at_checked(HASH_DIGITS)?;
    let cluster = cluster.strip_prefix('_')?;
    (hash == hash_digits(cluster)).then_some(cluster)
}

/// The log of one queue in a tiered store.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct TieredLog<'a> {
    /// The topic of its records.
    pub topic: &'a str,
    /// Their queue.
    pub queue_id: i32,
}

impl TieredLog<'_> {
    /// Returns TOTALSIZE and QUEUEOFFSET if `head`, the bytes at `position` of this log, can begin a record of it.
    #[inline]
    pub fn head(&self, head: &[u8; TIERED_HEAD_BYTES], position: u64) -> Option<(u32, i64)> {
        let is_here = u64::from_be_bytes(field(head, PHYSICAL_OFFSET_POSITION)) == position;
        let is_record = Version::from_magic(u32::from_be_bytes(field(head, MAGIC_POSITION))).is_some();
        let is_ours = i32::from_be_bytes(field(head, QUEUE_ID_POSITION)) == self.queue_id;
        let size = u32::from_be_bytes(field(head, 0));
        let is_possible = is_here && is_record && is_ours && size as usize >= MIN_RECORD_BYTES;
        is_possible.then(|| (size, i64::from_be_bytes(field(head, QUEUE_OFFSET_POSITION))))
    }

    /// Decodes the record at the front of `bytes`, which are at `position` of this log. Returns `None` if the record is
    /// damaged: it does not decode, or it names another position or queue. Checksums are not verified.
    pub fn record<'a>(&self, bytes: &'a [u8], position: u64) -> Option<RecordView<'a>> {
        let record = RecordView::decode(bytes).ok()?;
        let is_here = record.physical_offset >= 0 && record.physical_offset.unsigned_abs() == position;
        let is_ours = record.topic == self.topic && record.queue_id == self.queue_id;
        // RocketMQ copies only records with a unit. A flag of a batch without its numbers is damage.
        let has_unit = record.queue_offset >= 0
            && record.dispatches_to_queue()
            && (!record.sys_flag.inner_batch() || record.inner_batch().is_some());
        (is_here && is_ours && has_unit).then_some(record)
    }

    /// Moves the record at position `from` of this log, with queue offset `queue_offset`, to log offset `to`: replaces
    /// PHYSICALOFFSET, and the value of a `__CRC32#` property, which was not valid in this log. Returns whether the
    /// record was moved; a damaged one stays unchanged. The property of a record whose body or property is damaged keeps
    /// its value, so that every reader of the record finds the damage.
    pub fn move_record(&self, record: &mut [u8], from: u64, to: u64, queue_offset: i64) -> bool {
        let Some(view) = self.record(record, from) else { return false };
        if view.queue_offset != queue_offset || view.bytes.len() != record.len() {
            return false;
        }
        let body = CrcCheck { body: true, property: false };
        // The text of the property at the end of a body can reach into the last 20 bytes of a record without it.
        let can_be_sealed = view.outline().has_whole_property_crc() && view.check_crc(body).is_ok();
        put(record, PHYSICAL_OFFSET_POSITION, to.to_be_bytes());
        if can_be_sealed {
            let _ = seal_property_crc(record);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_rocketmq() {
        for (offset, name) in [
            (0, "cfcd208400000000000000000000"),
            (1_073_741_824, "952eb02900000000001073741824"),
            (6_000_000, "11bdc31800000000000006000000"),
        ] {
            assert_eq!(tiered_file_name(offset), name);
            assert_eq!(parse_tiered_file_name(name), Some(offset));
        }
        assert_eq!(tiered_cluster_folder("DefaultCluster"), "212d6b50_DefaultCluster");
        assert_eq!(parse_tiered_cluster_folder("212d6b50_DefaultCluster"), Some("DefaultCluster"));
    }

    #[test]
    fn other_names_are_refused() {
        for name in [
            "",
            "cfcd2084",
            "cfcd2085000000000000000000",
            "cfcd208500000000000000000000",
            "é000000000000000000000000000",
        ] {
            assert_eq!(parse_tiered_file_name(name), None, "{name}");
        }
        for name in
            ["", "212d6b50", "212d6b51_DefaultCluster", "212d6b50-DefaultCluster", "commitlog", "ééééé"]
        {
            assert_eq!(parse_tiered_cluster_folder(name), None, "{name}");
        }
    }
}
