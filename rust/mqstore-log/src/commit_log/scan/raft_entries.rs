//! The bytes before the records in a data file of DLedger.
//!
//! ```text
//! | header 48 | record | header 48 | record | header 48, no record | header 48 | record | blank to the end |
//! ```
//!
//! A record names its own log offset, so an intact record is found after a damaged header too. The header matters only
//! for entries without a record. Verification reports the damaged header: see `raft_walk`.
//!
//! Source: `DLedgerCommitLog#checkMessageAndReturnSize`, `DLedgerMmapFileStore`.

use mqstore_format::{Peek, RAFT_HEADER_BYTES, RaftHeader, peek, raft_blank};

use super::own_offset::is_at;

/// Range, from the start of the header, of the field with the log offset of the record.
const OWN_POSITION: std::ops::Range<usize> = RAFT_HEADER_BYTES + 28..RAFT_HEADER_BYTES + 36;

/// Bytes that show what an offset of a data file contains, if it is not the start of a record.
pub(super) const LEAD_BYTES: usize = OWN_POSITION.end;

/// The meaning of bytes that are no record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lead {
    /// A header, a blank or an entry without a record: the next item begins after this number of bytes.
    Skip(u64),
    /// None of these, with the reason.
    Other(String),
}

/// Returns the meaning of `bytes`, which are at log offset `at` of a data file with `rest` bytes left.
pub(super) fn lead(bytes: &[u8], at: u64, rest: u64) -> Lead {
    if let Some(size) = raft_blank(bytes, rest) {
        return Lead::Skip(size);
    }
    if record_after_header(bytes, at, rest).is_some() {
        return Lead::Skip(RAFT_HEADER_BYTES as u64);
    }
    let header = match RaftHeader::decode(bytes) {
        Ok(header) => header,
        Err(error) => return Lead::Other(error.to_string()),
    };
    let size = u64::try_from(header.size).unwrap_or(u64::MAX);
    match header.fault(at) {
        Some(fault) => Lead::Other(format!("no Raft entry starts here: {fault}")),
        None if size > rest => Lead::Other(format!(
            "the Raft entry of {size} bytes exceeds the {rest} bytes left in the data file"
        )),
        None if header.has_no_record() => Lead::Skip(size),
        // The record is damaged, and the scan finds that at its own offset.
        None => Lead::Skip(RAFT_HEADER_BYTES as u64),
    }
}

/// Returns the size of the record after the header at the front of `bytes`, if one begins there that names this place.
pub(super) fn record_after_header(bytes: &[u8], at: u64, rest: u64) -> Option<u64> {
    let own = i64::from_be_bytes(bytes.get(OWN_POSITION)?.try_into().ok()?);
    let Ok(Peek::Record { size, .. }) = peek(bytes.get(RAFT_HEADER_BYTES..)?) else { return None };
    let space = rest.checked_sub(RAFT_HEADER_BYTES as u64)?;
    (u64::from(size) <= space && is_at(own, at + RAFT_HEADER_BYTES as u64)).then_some(u64::from(size))
}

/// Returns the number of `bytes` before the next record, if they are no record; `rest` bytes are left in the data file.
/// `None` if a record begins there, or if the bytes mean nothing.
#[inline]
pub(super) fn lead_in(bytes: &[u8], at: u64, rest: u64) -> Option<usize> {
    match peek(bytes) {
        Ok(Peek::Record { .. } | Peek::Zero) | Err(_) => None,
        Ok(_) => match lead(bytes, at, rest) {
            Lead::Skip(skipped) => usize::try_from(skipped).ok(),
            Lead::Other(_) => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use mqstore_format::MAGIC_V1;

    use super::*;

    /// A header at log offset `at`, and the head of a record of 200 bytes.
    fn entry(at: u64) -> Vec<u8> {
        let mut bytes = RaftHeader::encode_normal(7, 1, at as i64, 200).to_vec();
        bytes.resize(LEAD_BYTES, 0);
        bytes[48..52].copy_from_slice(&200_u32.to_be_bytes());
        bytes[52..56].copy_from_slice(&MAGIC_V1.to_be_bytes());
        bytes[OWN_POSITION].copy_from_slice(&(at + 48).to_be_bytes());
        bytes
    }

    #[test]
    fn a_record_is_found_after_a_header_with_any_damage() {
        for at in 0..48 {
            let mut bytes = entry(4096);
            bytes[at] ^= 0x10;
            assert_eq!(lead(&bytes, 4096, 1000), Lead::Skip(48), "byte {at}");
            assert_eq!(lead_in(&bytes, 4096, 1000), Some(48), "byte {at}");
        }
        assert_eq!(record_after_header(&entry(4096), 4096, 248), Some(200));
        assert_eq!(record_after_header(&entry(4096), 4096, 247), None);
        assert_eq!(record_after_header(&entry(4096), 4000, 1000), None);
    }

    #[test]
    fn an_entry_without_a_record_is_passed_by_its_size() {
        let mut bytes = RaftHeader::encode_normal(7, 1, 4096, 0).to_vec();
        bytes[3] = 2;
        assert_eq!(lead(&bytes, 4096, 48), Lead::Skip(48));
        bytes[47] = 5;
        bytes[7] = 53;
        assert_eq!(lead(&bytes, 4096, 53), Lead::Skip(53));
        assert!(matches!(lead(&bytes, 4096, 52), Lead::Other(reason) if reason.contains("52 bytes left")));
        assert!(matches!(lead(&bytes, 4095, 53), Lead::Other(reason) if reason.contains("position")));
        assert!(matches!(lead(&bytes[..47], 4096, 53), Lead::Other(_)));
    }

    #[test]
    fn a_blank_is_passed_and_a_damaged_record_is_left_to_the_scan() {
        let blank = [(-1_i32).to_be_bytes(), 600_i32.to_be_bytes()].concat();
        assert_eq!(lead(&blank, 4096, 600), Lead::Skip(600));
        assert!(matches!(lead(&blank, 4096, 599), Lead::Other(_)));
        let mut bytes = entry(4096);
        bytes[52] ^= 1;
        assert_eq!(lead(&bytes, 4096, 1000), Lead::Skip(48));
    }
}
