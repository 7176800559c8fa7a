//! One record of the commit log: encoding, decoding and its fields.
//!
//! [`RecordView`] borrows from the decoded bytes and shows the layout; [`RecordSpec`] borrows from its parts. Neither
//! allocates. Records follow each other without gaps. If the next record does not fit in the segment, the rest of the
//! segment starts with a blank: its length and [`MAGIC_BLANK`].
//!
//! Source: `MessageExtEncoder#encode`, `CommitLog#checkMessageAndReturnSize`, `MessageDecoder`.

mod decode;
mod encode;
mod entries;
mod frame;
mod placeholder;
pub mod tiered;

pub use decode::RecordView;
pub use encode::{
    RecordParts, RecordSpec, patch_body_crc, patch_position, patch_prepared_offset, restore_property_crc,
    seal_property_crc,
};
pub use entries::{CrcCheck, EntryFields, RecordOutline};
pub use placeholder::{
    HiddenPlaceholder, MAX_HIDDEN_BYTES, PLACEHOLDER_TOPIC, encode_placeholder, placeholder_bytes,
};

use crate::bytes::{Reader, field};
use crate::error::FormatError;
pub use crate::properties::{MAX_PROPERTIES_BYTES, PROPERTY_CRC_BYTES};

/// Magic of a record whose topic length takes one byte.
pub const MAGIC_V1: u32 = 0xDAA3_20A7;
/// Magic of a record whose topic length takes two bytes.
pub const MAGIC_V2: u32 = 0xDAA3_20AB;
/// Magic of the filler at the end of a segment.
pub const MAGIC_BLANK: u32 = 0xCBD4_3194;

/// The smallest record: V1, IPv4 hosts, empty body, topic and properties.
pub const MIN_RECORD_BYTES: usize = 91;
/// Byte length of a blank: its length and its magic. Every segment keeps this much free after a record.
pub const BLANK_HEADER_BYTES: usize = 8;

/// Position of MAGICCODE.
pub const MAGIC_POSITION: usize = 4;
/// Position of BODYCRC.
pub const BODY_CRC_POSITION: usize = 8;
/// Position of QUEUEID.
pub const QUEUE_ID_POSITION: usize = 12;
/// Position of FLAG.
pub const FLAG_POSITION: usize = 16;
/// Position of QUEUEOFFSET.
pub const QUEUE_OFFSET_POSITION: usize = 20;
/// Position of PHYSICALOFFSET.
pub const PHYSICAL_OFFSET_POSITION: usize = 28;
/// Position of SYSFLAG.
pub const SYS_FLAG_POSITION: usize = 36;
/// Position of BORNTIMESTAMP.
pub const BORN_TIMESTAMP_POSITION: usize = 40;
/// Position of BORNHOST.
pub const BORN_HOST_POSITION: usize = 48;
/// Position of STORETIMESTAMP with an IPv4 born host; an IPv6 host adds 12.
pub const STORE_TIMESTAMP_POSITION: usize = 56;

/// Maximum topic length of a V1 record, in bytes: the length is a signed byte.
pub const MAX_TOPIC_BYTES_V1: usize = 127;

/// The size of the topic length field.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// One byte; topics up to 127 bytes.
    V1,
    /// Two bytes; longer topics.
    V2,
}

impl Version {
    /// Returns the version of a magic.
    pub const fn from_magic(magic: u32) -> Option<Self> {
        match magic {
            MAGIC_V1 => Some(Self::V1),
            MAGIC_V2 => Some(Self::V2),
            _ => None,
        }
    }

    /// Returns the magic of this version.
    pub const fn magic(self) -> u32 {
        match self {
            Self::V1 => MAGIC_V1,
            Self::V2 => MAGIC_V2,
        }
    }

    /// Returns the byte length of the topic length field.
    pub const fn topic_length_bytes(self) -> usize {
        match self {
            Self::V1 => 1,
            Self::V2 => 2,
        }
    }
}

/// The meaning of the first eight bytes at a record boundary.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Peek {
    /// A record of `size` bytes, at least [`MIN_RECORD_BYTES`].
    Record {
        /// TOTALSIZE.
        size: u32,
        /// The version of the magic.
        version: Version,
    },
    /// The filler up to the end of the segment.
    Blank {
        /// Bytes to the end of the segment, including the eight bytes of the header.
        size: u32,
    },
    /// Length and magic are 0: no record was written here.
    Zero,
    /// Neither: damage, or remains of old data.
    Invalid {
        /// The first four bytes.
        size: i32,
        /// The second four bytes.
        magic: u32,
    },
}

/// Returns the meaning of the first eight bytes of `head`.
pub fn peek(head: &[u8]) -> Result<Peek, FormatError> {
    let mut reader = Reader::new(head, "record header");
    let size = reader.i32()?;
    let magic = reader.u32()?;
    let length = u32::try_from(size).unwrap_or(0);
    Ok(match (magic, Version::from_magic(magic)) {
        (0, _) if size == 0 => Peek::Zero,
        (MAGIC_BLANK, _) if length as usize >= BLANK_HEADER_BYTES => Peek::Blank { size: length },
        (_, Some(version)) if length as usize >= MIN_RECORD_BYTES => Peek::Record { size: length, version },
        _ => Peek::Invalid { size, magic },
    })
}

/// Returns the eight bytes of a blank that covers `size` bytes up to the end of the segment.
///
/// A record of length L fits in a segment with `free` bytes left only if `L + 8 <= free`. Otherwise the blank is
/// written with `size = free`, and the record starts the next segment.
pub fn encode_blank(size: u32) -> [u8; BLANK_HEADER_BYTES] {
    let mut blank = [0; BLANK_HEADER_BYTES];
    crate::bytes::put(&mut blank, 0, size.to_be_bytes());
    crate::bytes::put(&mut blank, MAGIC_POSITION, MAGIC_BLANK.to_be_bytes());
    blank
}

/// Checks that TOTALSIZE is the length of the slice.
fn whole_record(record: &[u8]) -> Result<(), FormatError> {
    if record.len() < MIN_RECORD_BYTES {
        let needed = MIN_RECORD_BYTES;
        return Err(FormatError::Truncated { what: "record", needed, available: record.len() });
    }
    let size = i32::from_be_bytes(field(record, 0));
    if usize::try_from(size) != Ok(record.len()) {
        let limit = record.len() as i64;
        return Err(FormatError::BadLength { what: "TOTALSIZE", value: i64::from(size), limit });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
