//! Decodes bytes to a borrowed view of a record.
//!
//! Decoding checks the structure: every length against its container, and their sum against TOTALSIZE. Checksums are a
//! second, separate step, because the dispatcher of a live store does not need them and recovery does. RocketMQ checks
//! in the same order (`CommitLog#checkMessageAndReturnSize`).

use std::borrow::Cow;

use super::frame::Frame;
use super::{
    BODY_CRC_POSITION, BORN_TIMESTAMP_POSITION, CrcCheck, EntryFields, FLAG_POSITION,
    PHYSICAL_OFFSET_POSITION, QUEUE_ID_POSITION, QUEUE_OFFSET_POSITION, RecordOutline, Version,
};
use crate::bytes::{Reader, field};
use crate::compression::{decompress, unpack_limit};
use crate::delay_levels::DelayLevels;
use crate::error::FormatError;
use crate::host::Host;
use crate::ids::offset_message_id;
use crate::properties::{KEYS, Properties, TAGS, UNIQ_KEY};
use crate::sys_flag::SysFlag;

/// A record, borrowed from the bytes that it was decoded from.
///
/// ```text
/// position (IPv4 hosts)   bytes  field
///   0                      4     TOTALSIZE, itself included
///   4                      4     MAGICCODE: V1 DA A3 20 A7, V2 DA A3 20 AB
///   8                      4     BODYCRC, crc31 of the stored body, 0 for an empty one
///  12                      4     QUEUEID
///  16                      4     FLAG, the application's
///  20                      8     QUEUEOFFSET, 0 for prepared and rollback records
///  28                      8     PHYSICALOFFSET, the record's own position in the log
///  36                      4     SYSFLAG
///  40                      8     BORNTIMESTAMP
///  48                      8|20  BORNHOST: address, then the port in 4 bytes
///  56                      8     STORETIMESTAMP
///  64                      8|20  STOREHOST
///  72                      4     RECONSUMETIMES
///  76                      8     PREPARED TRANSACTION OFFSET
///  84                      4     BODYLEN, then BODY
///  88 + body               1|2   TOPICLEN (V1 one byte, V2 two), then TOPIC
///     + topic              2     PROPLEN, then PROPERTIES
/// ```
///
/// An IPv6 host moves all later fields by 12 bytes.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct RecordView<'a> {
    /// TOTALSIZE: the length of [`bytes`](Self::bytes).
    pub size: u32,
    /// The version of the magic.
    pub version: Version,
    /// BODYCRC as stored.
    pub body_crc: u32,
    /// QUEUEID.
    pub queue_id: i32,
    /// FLAG, the application's.
    pub flag: i32,
    /// QUEUEOFFSET; 0 for prepared and rollback records.
    pub queue_offset: i64,
    /// PHYSICALOFFSET: the position that the record claims. The caller compares it with the real one.
    pub physical_offset: i64,
    /// SYSFLAG.
    pub sys_flag: SysFlag,
    /// BORNTIMESTAMP, epoch milliseconds of the producer's clock.
    pub born_timestamp: i64,
    /// BORNHOST.
    pub born_host: Host,
    /// STORETIMESTAMP, epoch milliseconds of the store's clock.
    pub store_timestamp: i64,
    /// STOREHOST.
    pub store_host: Host,
    /// RECONSUMETIMES.
    pub reconsume_times: i32,
    /// PREPARED TRANSACTION OFFSET: physical offset of the half message, else 0.
    pub prepared_transaction_offset: i64,
    /// BODY as stored, compressed if the flag says so.
    pub body: &'a [u8],
    /// TOPIC.
    pub topic: &'a str,
    /// PROPERTIES, not yet split.
    pub properties: Properties<'a>,
    /// The whole record.
    pub bytes: &'a [u8],
}

impl<'a> RecordView<'a> {
    /// Decodes the record at the front of `bytes`, which may be longer.
    ///
    /// Checks only the structure: magic, every length, and the sum of the parts against TOTALSIZE. Does not allocate.
    /// `Truncated` means that `bytes` ends before the record.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, FormatError> {
        let frame = Frame::of(bytes)?;
        let (record, head) = (frame.record, frame.head);
        let sys_flag = frame.sys_flag;
        Ok(Self {
            size: record.len() as u32,
            version: frame.version,
            body_crc: u32::from_be_bytes(field(head, BODY_CRC_POSITION)),
            queue_id: i32::from_be_bytes(field(head, QUEUE_ID_POSITION)),
            flag: i32::from_be_bytes(field(head, FLAG_POSITION)),
            queue_offset: i64::from_be_bytes(field(head, QUEUE_OFFSET_POSITION)),
            physical_offset: i64::from_be_bytes(field(head, PHYSICAL_OFFSET_POSITION)),
            sys_flag,
            born_timestamp: i64::from_be_bytes(field(head, BORN_TIMESTAMP_POSITION)),
            born_host: Host::read(&mut Reader::new(frame.born_host, "record"), sys_flag.born_host_v6())?,
            store_timestamp: frame.store_timestamp,
            store_host: Host::read(&mut Reader::new(frame.store_host, "record"), sys_flag.store_host_v6())?,
            reconsume_times: frame.reconsume_times,
            prepared_transaction_offset: frame.prepared_transaction_offset,
            body: frame.body,
            topic: frame.topic,
            properties: frame.properties,
            bytes: record,
        })
    }

    /// Returns the part of the record that determines its entries.
    pub fn outline(&self) -> RecordOutline<'a> {
        RecordOutline {
            size: self.size,
            queue_id: self.queue_id,
            queue_offset: self.queue_offset,
            physical_offset: self.physical_offset,
            sys_flag: self.sys_flag,
            store_timestamp: self.store_timestamp,
            body_crc: self.body_crc,
            body: self.body,
            topic: self.topic,
            properties: self.properties,
            bytes: self.bytes,
        }
    }

    /// See [`RecordOutline::check_crc`].
    pub fn check_crc(&self, check: CrcCheck) -> Result<(), FormatError> {
        self.outline().check_crc(check)
    }

    /// See [`RecordOutline::has_property_crc`].
    pub fn has_property_crc(&self) -> bool {
        self.outline().has_property_crc()
    }

    /// See [`RecordOutline::has_damaged_crc_name`].
    pub fn has_damaged_crc_name(&self) -> bool {
        self.outline().has_damaged_crc_name()
    }

    /// Returns the `KEYS` property: keys separated by single spaces.
    pub fn keys(&self) -> Option<&'a str> {
        self.properties.get(KEYS)
    }

    /// Returns the keys for the index: `KEYS` split on single spaces, without empty parts.
    pub fn key_list(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.keys().unwrap_or_default().split(' ').filter(|key| !key.is_empty())
    }

    /// Returns the `TAGS` property.
    pub fn tags(&self) -> Option<&'a str> {
        self.properties.get(TAGS)
    }

    /// Returns the `UNIQ_KEY` property: the producer's id.
    pub fn unique_key(&self) -> Option<&'a str> {
        self.properties.get(UNIQ_KEY)
    }

    /// Returns the third field of the record's queue unit; see [`EntryFields::tags_code`].
    pub fn tags_code(&self, levels: &DelayLevels) -> i64 {
        EntryFields::of(self.properties).tags_code(self.topic, self.store_timestamp, levels)
    }

    /// See [`RecordOutline::dispatches_to_queue`].
    pub fn dispatches_to_queue(&self) -> bool {
        self.outline().dispatches_to_queue()
    }

    /// See [`RecordOutline::indexed`].
    pub fn indexed(&self) -> bool {
        self.outline().indexed()
    }

    /// See [`RecordOutline::inner_batch`].
    pub fn inner_batch(&self) -> Option<(i64, i32)> {
        self.outline().inner_batch()
    }

    /// Returns the body as the producer gave it: decompressed if the flag says so, at most `limit_bytes` long.
    pub fn decompressed_body(&self, limit_bytes: usize) -> Result<Cow<'a, [u8]>, FormatError> {
        if !self.sys_flag.compressed() {
            return Ok(Cow::Borrowed(self.body));
        }
        match self.sys_flag.compression() {
            Some(kind) => decompress(kind, self.body, limit_bytes).map(Cow::Owned),
            None => Err(FormatError::compression("unknown", "the flag has an unknown compression number")),
        }
    }

    /// Returns the body as the producer gave it, for readers of any store. The limit is [`unpack_limit`].
    pub fn unpacked_body(&self) -> Result<Cow<'a, [u8]>, FormatError> {
        self.decompressed_body(unpack_limit(self.body.len()))
    }

    /// Returns the id of store host and physical offset, in upper-case hex.
    pub fn offset_message_id(&self) -> String {
        offset_message_id(&self.store_host, self.physical_offset)
    }
}
