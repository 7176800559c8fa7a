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

use super::{PHYSICAL_OFFSET_POSITION, RecordView, encode::seal_property_crc, whole_record};
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

/// Moves a record from position `from` in the log of its queue to log offset `to`: replaces PHYSICALOFFSET, and the value
/// of a `__CRC32#` property, which was not valid there. A record whose PHYSICALOFFSET is not `from` is damaged and stays.
/// Returns whether the record was moved.
pub fn move_tiered_record(record: &mut [u8], from: i64, to: i64) -> bool {
    if whole_record(record).is_err() || i64::from_be_bytes(field(record, PHYSICAL_OFFSET_POSITION)) != from {
        return false;
    }
    put(record, PHYSICAL_OFFSET_POSITION, to.to_be_bytes());
    // The text of the property at the end of a body can reach into the last 20 bytes of a record without it.
    if RecordView::decode(record).is_ok_and(|record| record.has_property_crc()) {
        let _ = seal_property_crc(record);
    }
    true
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

    #[test]
    fn only_a_record_at_its_position_is_moved() {
        let mut short = [0; 40];
        assert!(!move_tiered_record(&mut short, 0, 9));
        assert_eq!(short, [0; 40]);
    }
}
