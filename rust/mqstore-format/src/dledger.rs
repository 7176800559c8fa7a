//! The files of a broker that ran with DLedger: Raft entries around the records, and the units that index them.
//!
//! ```text
//! entry:  magic 4 | size 4 | index 8 | term 8 | position 8 | channel 4 | chain CRC 4 | body CRC 4 | body size 4 | body
//! blank:  -1 4 | size 4 | zeros         fills the rest of a data file, or the begin of the first one
//! unit:   magic 4 | position 8 | size 4 | index 8 | term 8
//! ```
//!
//! The body of a normal entry is exactly one record, whose log offset is the position of the entry plus 48. No release
//! sets the two CRCs. Source: `DLedgerEntryCoder`, `DLedgerMmapFileStore`, `DLedgerCommitLog` (dledger 0.2.7 to 0.4.0).

use crate::bytes::Reader;
use crate::error::FormatError;

/// Byte length of the header of an entry.
pub const RAFT_HEADER_BYTES: usize = 48;
/// Byte length of a unit of the Raft index.
pub const RAFT_UNIT_BYTES: usize = 32;
/// Name of a folder with the files of one member, before its id.
pub const DLEDGER_PREFIX: &str = "dledger-";

/// Magic of a blank.
const BLANK: i32 = -1;
/// Magic of an entry with a record.
const NORMAL: i32 = 1;
/// Magics of entries without a record: `NOOP` and `CONFIG_CHANGE`, of newer libraries.
const WITHOUT_RECORD: std::ops::RangeInclusive<i32> = 2..=3;

/// The header of a Raft entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RaftHeader {
    /// Kind of the entry: 1 is normal, 2 and 3 have no record.
    pub magic: i32,
    /// Bytes of header and body.
    pub size: i32,
    /// Number of the entry, from 0, without gaps.
    pub index: i64,
    /// Term of the leader that made the entry; it never falls.
    pub term: i64,
    /// Log offset of the header.
    pub position: i64,
    /// Bytes of the body.
    pub body_size: i32,
}

impl RaftHeader {
    /// Decodes the header at the front of `bytes`.
    ///
    /// # Errors
    /// [`FormatError::Truncated`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(bytes, "header of a Raft entry");
        let (magic, size) = (reader.i32()?, reader.i32()?);
        let (index, term, position) = (reader.i64()?, reader.i64()?, reader.i64()?);
        // Channel, chain CRC and body CRC: 0 in every release, and to be ignored if not.
        reader.take(12)?;
        Ok(Self { magic, size, index, term, position, body_size: reader.i32()? })
    }

    /// Returns the bytes of the header of a normal entry with a body of `body_size` bytes.
    pub fn encode_normal(index: i64, term: i64, position: i64, body_size: i32) -> [u8; RAFT_HEADER_BYTES] {
        let mut bytes = [0; RAFT_HEADER_BYTES];
        let size = body_size.saturating_add(RAFT_HEADER_BYTES as i32);
        let fields: [(usize, &[u8]); 6] = [
            (0, &NORMAL.to_be_bytes()),
            (4, &size.to_be_bytes()),
            (8, &index.to_be_bytes()),
            (16, &term.to_be_bytes()),
            (24, &position.to_be_bytes()),
            (44, &body_size.to_be_bytes()),
        ];
        for (at, field) in fields {
            if let Some(place) = bytes.get_mut(at..at + field.len()) {
                place.copy_from_slice(field);
            }
        }
        bytes
    }

    /// Whether the entry has no record.
    pub fn has_no_record(&self) -> bool {
        WITHOUT_RECORD.contains(&self.magic)
    }

    /// Describes the first field that cannot be right in an entry at log offset `position`; `None` if all of them can.
    pub fn fault(&self, position: u64) -> Option<String> {
        let expected_size = self.body_size.checked_add(RAFT_HEADER_BYTES as i32);
        if self.magic != NORMAL && !self.has_no_record() {
            Some(format!("magic {} is of no kind of entry", self.magic))
        } else if self.body_size < 0 || expected_size != Some(self.size) {
            Some(format!(
                "size {} is not the 48 bytes of the header plus body size {}",
                self.size, self.body_size
            ))
        } else if u64::try_from(self.position) != Ok(position) {
            Some(format!("position {} is not its log offset {position}", self.position))
        } else if self.index < 0 {
            Some(format!("index {} is negative", self.index))
        } else if self.term < 0 {
            Some(format!("term {} is negative", self.term))
        } else {
            None
        }
    }
}

/// A unit of the Raft index: it repeats fields of one entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RaftUnit {
    /// Log offset of the entry.
    pub position: i64,
    /// Bytes of the entry.
    pub size: i32,
    /// Number of the entry.
    pub index: i64,
    /// Term of the entry.
    pub term: i64,
}

impl RaftUnit {
    /// Decodes the unit at the front of `bytes`. Its magic is left out: leaders write 1 for every kind of entry.
    ///
    /// # Errors
    /// [`FormatError::Truncated`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(bytes, "unit of a Raft index");
        reader.i32()?;
        Ok(Self { position: reader.i64()?, size: reader.i32()?, index: reader.i64()?, term: reader.i64()? })
    }

    /// Returns the unit of an entry.
    pub fn of(header: &RaftHeader) -> Self {
        Self { position: header.position, size: header.size, index: header.index, term: header.term }
    }

    /// Returns the bytes of the unit.
    pub fn encode(&self) -> [u8; RAFT_UNIT_BYTES] {
        let mut bytes = [0; RAFT_UNIT_BYTES];
        let fields: [(usize, &[u8]); 5] = [
            (0, &NORMAL.to_be_bytes()),
            (4, &self.position.to_be_bytes()),
            (12, &self.size.to_be_bytes()),
            (16, &self.index.to_be_bytes()),
            (24, &self.term.to_be_bytes()),
        ];
        for (at, field) in fields {
            if let Some(place) = bytes.get_mut(at..at + field.len()) {
                place.copy_from_slice(field);
            }
        }
        bytes
    }
}

/// Returns the length of the blank at the front of `head`; `None` if no blank of a possible length begins there. `rest`
/// is the number of bytes from there to the end of the file.
pub fn raft_blank(head: &[u8], rest: u64) -> Option<u64> {
    let mut reader = Reader::new(head, "blank of a data file");
    let (magic, size) = (reader.i32().ok()?, reader.i32().ok()?);
    let size = u64::try_from(size).ok()?;
    (magic == BLANK && (8..=rest).contains(&size)).then_some(size)
}

/// Returns the value of `key` in a file of Java properties, as DLedger writes its `checkpoint` and `currterm`.
pub fn java_property<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let lines = text.lines().map(str::trim_start).filter(|line| !line.starts_with(['#', '!']));
    let mut pairs = lines.filter_map(|line| line.split_once('='));
    pairs.find(|(name, _)| name.trim_end() == key).map(|(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::hex;

    /// The first entry of a log, with a record of 92 bytes, and its unit.
    #[test]
    fn a_header_and_a_unit_have_these_bytes() {
        let header = RaftHeader::encode_normal(0, 1, 0, 92);
        assert_eq!(
            header.to_vec(),
            hex("000000010000008c000000000000000000000000000000010000000000000000000000000000000000000000\
                 0000005c")
        );
        let decoded = RaftHeader::decode(&header).unwrap();
        assert_eq!(
            decoded,
            RaftHeader { magic: 1, size: 140, index: 0, term: 1, position: 0, body_size: 92 }
        );
        assert_eq!(decoded.fault(0), None);
        let unit = RaftUnit::of(&decoded).encode();
        assert_eq!(unit.to_vec(), hex("0000000100000000000000000000008c00000000000000000000000000000001"));
        assert_eq!(RaftUnit::decode(&unit).unwrap(), RaftUnit::of(&decoded));
        assert!(RaftHeader::decode(&header[..47]).is_err() && RaftUnit::decode(&unit[..31]).is_err());
    }

    #[test]
    fn a_wrong_field_is_described() {
        let good = RaftHeader { magic: 1, size: 140, index: 3, term: 1, position: 4096, body_size: 92 };
        let faults = [
            (RaftHeader { magic: 5, ..good }, "magic 5"),
            (RaftHeader { size: 141, ..good }, "size 141"),
            (RaftHeader { body_size: -92, ..good }, "body size -92"),
            (RaftHeader { body_size: i32::MAX, ..good }, "size 140"),
            (RaftHeader { position: 4097, ..good }, "position 4097"),
            (RaftHeader { index: -1, ..good }, "index -1"),
            (RaftHeader { term: -1, ..good }, "term -1"),
        ];
        for (header, words) in faults {
            assert!(header.fault(4096).is_some_and(|fault| fault.contains(words)), "{header:?}");
        }
        assert_eq!(good.fault(4096), None);
    }

    #[test]
    fn a_blank_has_a_length_that_the_file_can_hold() {
        let blank = |size: i32| [(-1_i32).to_be_bytes(), size.to_be_bytes()].concat();
        assert_eq!(raft_blank(&blank(100), 100), Some(100));
        assert_eq!(raft_blank(&blank(8), 100), Some(8));
        for (size, rest) in [(7, 100), (-1, 100), (101, 100)] {
            assert_eq!(raft_blank(&blank(size), rest), None, "{size} {rest}");
        }
        assert_eq!(raft_blank(&RaftHeader::encode_normal(0, 0, 0, 52), 100), None);
        assert_eq!(raft_blank(&[0xff; 7], 100), None);
    }

    #[test]
    fn properties_are_found_by_their_names() {
        let text = "#Fri Sep 19 17:25:40 CST 2025\ncommittedIndex=1999\r\n endIndex = 2000\nvoteLeader=\n";
        assert_eq!(java_property(text, "committedIndex"), Some("1999"));
        assert_eq!(java_property(text, "endIndex"), Some("2000"));
        assert_eq!(java_property(text, "voteLeader"), Some(""));
        assert_eq!(java_property(text, "Index"), None);
    }
}
