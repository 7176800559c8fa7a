//! The parts of a record, split by its lengths.

use super::{BORN_HOST_POSITION, MIN_RECORD_BYTES, SYS_FLAG_POSITION, Version};
use crate::bytes::{Reader, field};
use crate::error::FormatError;
use crate::host::Host;
use crate::properties::Properties;
use crate::sys_flag::SysFlag;

/// The parts of a record, split by its lengths. Only this type decides what a whole record is.
pub(super) struct Frame<'a> {
    pub(super) record: &'a [u8],
    pub(super) version: Version,
    /// The part before the hosts, which has a fixed length.
    pub(super) head: &'a [u8; BORN_HOST_POSITION],
    pub(super) sys_flag: SysFlag,
    pub(super) born_host: &'a [u8],
    pub(super) store_timestamp: i64,
    pub(super) store_host: &'a [u8],
    pub(super) reconsume_times: i32,
    pub(super) prepared_transaction_offset: i64,
    pub(super) body: &'a [u8],
    pub(super) topic: &'a str,
    pub(super) properties: Properties<'a>,
}

impl<'a> Frame<'a> {
    #[inline]
    pub(super) fn of(bytes: &'a [u8]) -> Result<Self, FormatError> {
        let (record, version) = cut(bytes)?;
        let Some((head, rest)) = record.split_first_chunk::<BORN_HOST_POSITION>() else {
            let (needed, available) = (MIN_RECORD_BYTES, record.len());
            return Err(FormatError::Truncated { what: "record", needed, available });
        };
        let sys_flag = SysFlag(i32::from_be_bytes(field(head, SYS_FLAG_POSITION)));
        let mut reader = Reader::new(rest, "record");
        let born_host = Host::skip(&mut reader, sys_flag.born_host_v6())?;
        let store_timestamp = reader.i64()?;
        let store_host = Host::skip(&mut reader, sys_flag.store_host_v6())?;
        let reconsume_times = reader.i32()?;
        let prepared_transaction_offset = reader.i64()?;
        let body_len = reader.i32()?;
        let body = reader.take_length("BODYLEN", i64::from(body_len))?;
        let topic_len = match version {
            Version::V1 => i64::from(reader.i8()?),
            Version::V2 => i64::from(reader.i16()?),
        };
        let topic = reader.take_length("TOPICLEN", topic_len)?;
        let properties_len = reader.i16()?;
        let properties = reader.take_length("PROPLEN", i64::from(properties_len))?;
        if !reader.rest().is_empty() {
            let limit = (record.len() - reader.rest().len()) as i64;
            return Err(FormatError::BadLength { what: "TOTALSIZE", value: record.len() as i64, limit });
        }
        let topic = std::str::from_utf8(topic).map_err(|_| FormatError::BadUtf8 { what: "topic" })?;
        Ok(Self {
            record,
            version,
            head,
            sys_flag,
            born_host,
            store_timestamp,
            store_host,
            reconsume_times,
            prepared_transaction_offset,
            body,
            topic,
            properties: Properties::new(properties),
        })
    }
}

/// Returns the bytes of the record at the front, by its length and magic.
#[inline]
fn cut(bytes: &[u8]) -> Result<(&[u8], Version), FormatError> {
    let mut head = Reader::new(bytes, "record header");
    let size = head.i32()?;
    let magic = head.u32()?;
    let version = Version::from_magic(magic).ok_or(FormatError::BadMagic { found: magic })?;
    let length = usize::try_from(size).ok().filter(|length| *length >= MIN_RECORD_BYTES).ok_or(
        FormatError::BadLength { what: "TOTALSIZE", value: i64::from(size), limit: MIN_RECORD_BYTES as i64 },
    )?;
    let available = bytes.len();
    let record =
        bytes.get(..length).ok_or(FormatError::Truncated { what: "record", needed: length, available })?;
    Ok((record, version))
}
