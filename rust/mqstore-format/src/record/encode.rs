//! Encodes the parts of a record to bytes.
//!
//! An append encodes before it takes any lock, when queue offset, physical offset and store timestamp are not known
//! yet. [`RecordParts::place`] writes these fields later, and then the checksum that covers them. ([`patch_position`]
//! and [`seal_property_crc`] do the same for a record in one piece.) Neither changes a length. Source:
//! `MessageExtEncoder#encode`, `CommitLog.DefaultAppendMessageCallback#doAppend`.

use super::{
    BODY_CRC_POSITION, BORN_HOST_POSITION, BORN_TIMESTAMP_POSITION, FLAG_POSITION, MAGIC_POSITION,
    MAX_PROPERTIES_BYTES, MAX_TOPIC_BYTES_V1, PHYSICAL_OFFSET_POSITION, PROPERTY_CRC_BYTES,
    QUEUE_ID_POSITION, QUEUE_OFFSET_POSITION, RecordView, STORE_TIMESTAMP_POSITION, SYS_FLAG_POSITION,
    Version, whole_record,
};
use crate::bytes::{field, put};
use crate::error::FormatError;
use crate::hash::{Crc31, crc31};
use crate::host::Host;
use crate::properties::{PROPERTY_CRC_HEAD, SEPARATOR, property_crc_text};
use crate::sys_flag::SysFlag;

/// Maximum byte length of the part before the body, with two IPv6 addresses.
const MAX_HEAD_BYTES: usize = BORN_HOST_POSITION + 20 + 8 + 20 + 16;

/// All parts of a record.
///
/// ```
/// use mqstore_format::{CrcCheck, Host, PropertiesBuilder, RecordSpec, RecordView, properties::TAGS};
///
/// let mut properties = PropertiesBuilder::new();
/// properties.push_reserved(TAGS, "paid")?;
/// let host = Host::new([127, 0, 0, 1], 10911);
/// let spec = RecordSpec {
///     properties: properties.as_bytes(),
///     property_crc: true,
///     ..RecordSpec::new("orders", b"Hello", host, host)
/// };
/// let mut log = Vec::new();
/// spec.encode_into(&mut log)?;
///
/// let record = RecordView::decode(&log)?;
/// record.check_crc(CrcCheck::ALL)?;
/// assert_eq!((record.topic, record.body, record.tags()), ("orders", &b"Hello"[..], Some("paid")));
/// # Ok::<(), mqstore_format::FormatError>(())
/// ```
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct RecordSpec<'a> {
    /// Topic; above 127 bytes the record is V2. [`crate::validate_topic`] checks names; this type does not.
    pub topic: &'a str,
    /// Queue id.
    pub queue_id: i32,
    /// The application's flag.
    pub flag: i32,
    /// Queue offset; 0 for prepared and rollback records.
    pub queue_offset: i64,
    /// The record's position in the log.
    pub physical_offset: i64,
    /// System flag. The encoder sets the address-family bits from the hosts.
    pub sys_flag: SysFlag,
    /// Epoch milliseconds of the producer's clock.
    pub born_timestamp: i64,
    /// The producer's address.
    pub born_host: Host,
    /// Epoch milliseconds of the store's clock.
    pub store_timestamp: i64,
    /// The store's address.
    pub store_host: Host,
    /// Number of times that consumers sent the message back.
    pub reconsume_times: i32,
    /// Physical offset of the half message, else 0.
    pub prepared_transaction_offset: i64,
    /// The body to store (compressed, if the flag says so).
    pub body: &'a [u8],
    /// The properties in their text form, see [`crate::PropertiesBuilder`]. If `property_crc` is set, they should not
    /// contain a `__CRC32#` ([`crate::without_property`]).
    pub properties: &'a [u8],
    /// Whether to append the checksum of the whole record as a property.
    pub property_crc: bool,
}

impl<'a> From<&RecordView<'a>> for RecordSpec<'a> {
    /// Returns the parts of a stored record. The encoder makes its version and its BODYCRC again, which can differ from
    /// the stored ones: see [`patch_body_crc`].
    fn from(record: &RecordView<'a>) -> Self {
        Self {
            topic: record.topic,
            queue_id: record.queue_id,
            flag: record.flag,
            queue_offset: record.queue_offset,
            physical_offset: record.physical_offset,
            sys_flag: record.sys_flag,
            born_timestamp: record.born_timestamp,
            born_host: record.born_host,
            store_timestamp: record.store_timestamp,
            store_host: record.store_host,
            reconsume_times: record.reconsume_times,
            prepared_transaction_offset: record.prepared_transaction_offset,
            body: record.body,
            properties: record.properties.raw(),
            property_crc: false,
        }
    }
}

impl<'a> RecordSpec<'a> {
    /// Creates a spec for `body` in queue 0 of `topic`: all numbers are 0, no properties, no property CRC.
    pub fn new(topic: &'a str, body: &'a [u8], born_host: Host, store_host: Host) -> Self {
        Self {
            topic,
            queue_id: 0,
            flag: 0,
            queue_offset: 0,
            physical_offset: 0,
            sys_flag: SysFlag::default(),
            born_timestamp: 0,
            born_host,
            store_timestamp: 0,
            store_host,
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            body,
            properties: &[],
            property_crc: false,
        }
    }

    /// Returns V2 for topics longer than 127 bytes.
    ///
    /// RocketMQ counts UTF-16 units. For every legal name both counts are equal. For other names RocketMQ's V1 record
    /// could not be read.
    pub fn version(&self) -> Version {
        if self.topic.len() > MAX_TOPIC_BYTES_V1 { Version::V2 } else { Version::V1 }
    }

    /// The property CRC needs a separator after the last property, if there is one.
    fn needs_separator(&self) -> bool {
        self.property_crc && self.properties.last().is_some_and(|last| *last != SEPARATOR)
    }

    fn properties_len(&self) -> usize {
        let crc = if self.property_crc { PROPERTY_CRC_BYTES } else { 0 };
        self.properties.len().saturating_add(crc).saturating_add(usize::from(self.needs_separator()))
    }

    /// Returns the length of the record, or an error if a part is too long: the properties (with CRC) above 32,767
    /// bytes, the topic above 32,767, the whole record above the largest 32-bit integer.
    pub fn encoded_len(&self) -> Result<usize, FormatError> {
        let properties = self.properties_len();
        within("properties", properties, MAX_PROPERTIES_BYTES)?;
        within("topic", self.topic.len(), i16::MAX as usize)?;
        within("body", self.body.len(), i32::MAX as usize)?;
        let hosts = self.born_host.encoded_len() + self.store_host.encoded_len();
        let fixed = 74 + hosts + self.version().topic_length_bytes();
        // At most 4 GiB + 64 KiB: fits in usize on 64-bit systems, saturates elsewhere.
        let total = self.body.len().saturating_add(fixed + self.topic.len() + properties);
        within("record", total, i32::MAX as usize)?;
        Ok(total)
    }

    /// Appends the record to `out` and returns its length. On error `out` is unchanged.
    ///
    /// With `property_crc`, the checksum is valid for the numbers in this spec. Seal it again after [`patch_position`].
    pub fn encode_into(&self, out: &mut Vec<u8>) -> Result<usize, FormatError> {
        let start = out.len();
        let total = self.encode_unsealed(out)?;
        if self.property_crc {
            out.truncate(start + total - PROPERTY_CRC_BYTES);
            let crc = out.get(start..).map_or(0, crc31);
            out.extend_from_slice(&property_crc_text(crc));
        }
        Ok(total)
    }

    /// Like [`RecordSpec::encode_into`], but only reserves the bytes of the property CRC. [`RecordParts::place`] seals
    /// it.
    pub fn encode_unsealed(&self, out: &mut Vec<u8>) -> Result<usize, FormatError> {
        let total = self.encoded_len()?;
        let start = out.len();
        out.reserve(total);
        self.encode_head(total, out);
        out.extend_from_slice(self.body);
        self.encode_tail(out);
        debug_assert_eq!(out.len() - start, total, "a record is as long as announced");
        Ok(total)
    }

    /// Appends the part before the body to `head` and the part after it to `tail`, and returns the length of the whole
    /// record. On error both are unchanged.
    ///
    /// So a record can be assembled at its final place without another copy of its body. The bytes of a property CRC
    /// are only reserved. [`RecordParts::place`] seals it.
    pub fn encode_parts(&self, head: &mut Vec<u8>, tail: &mut Vec<u8>) -> Result<usize, FormatError> {
        let total = self.encoded_len()?;
        self.encode_head(total, head);
        self.encode_tail(tail);
        Ok(total)
    }

    #[inline]
    fn encode_head(&self, total: usize, out: &mut Vec<u8>) {
        let body_crc = if self.body.is_empty() { 0 } else { crc31(self.body) };
        let sys_flag = self
            .sys_flag
            .with_born_host_v6(self.born_host.ip.is_ipv6())
            .with_store_host_v6(self.store_host.ip.is_ipv6());
        let mut head = [0; MAX_HEAD_BYTES];
        put(&mut head, 0, (total as u32).to_be_bytes());
        put(&mut head, MAGIC_POSITION, self.version().magic().to_be_bytes());
        put(&mut head, BODY_CRC_POSITION, body_crc.to_be_bytes());
        put(&mut head, QUEUE_ID_POSITION, self.queue_id.to_be_bytes());
        put(&mut head, FLAG_POSITION, self.flag.to_be_bytes());
        put(&mut head, QUEUE_OFFSET_POSITION, self.queue_offset.to_be_bytes());
        put(&mut head, PHYSICAL_OFFSET_POSITION, self.physical_offset.to_be_bytes());
        put(&mut head, SYS_FLAG_POSITION, sys_flag.0.to_be_bytes());
        put(&mut head, BORN_TIMESTAMP_POSITION, self.born_timestamp.to_be_bytes());
        let mut at = self.born_host.put_at(&mut head, BORN_HOST_POSITION);
        put(&mut head, at, self.store_timestamp.to_be_bytes());
        at = self.store_host.put_at(&mut head, at + 8);
        put(&mut head, at, self.reconsume_times.to_be_bytes());
        put(&mut head, at + 4, self.prepared_transaction_offset.to_be_bytes());
        put(&mut head, at + 12, (self.body.len() as u32).to_be_bytes());
        out.extend_from_slice(head.get(..at + 16).unwrap_or_default());
    }

    fn encode_tail(&self, out: &mut Vec<u8>) {
        let topic_len = (self.topic.len() as u16).to_be_bytes();
        match self.version() {
            Version::V1 => out.extend_from_slice(&topic_len[1..]),
            Version::V2 => out.extend_from_slice(&topic_len),
        }
        out.extend_from_slice(self.topic.as_bytes());
        out.extend_from_slice(&(self.properties_len() as u16).to_be_bytes());
        out.extend_from_slice(self.properties);
        if self.needs_separator() {
            out.push(SEPARATOR);
        }
        if self.property_crc {
            out.extend_from_slice(&property_crc_text(0));
        }
    }
}

/// An encoded record before it is placed: the three parts of [`RecordSpec::encode_parts`], or one piece of
/// [`RecordSpec::encode_unsealed`], with everything in the head.
#[derive(Debug)]
pub struct RecordParts<'a> {
    /// The bytes up to and including the length of the body.
    pub head: &'a mut [u8],
    /// The body.
    pub body: &'a [u8],
    /// The bytes from the length of the topic.
    pub tail: &'a mut [u8],
    /// Whether the record ends with reserved bytes for a property CRC.
    pub property_crc: bool,
}

impl RecordParts<'_> {
    /// Returns the length of the whole record.
    pub fn len(&self) -> usize {
        self.head.len() + self.body.len() + self.tail.len()
    }

    /// Returns whether there are no bytes. Every record has some.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the three parts in the order of the record.
    pub fn slices(&self) -> [&[u8]; 3] {
        [self.head, self.body, self.tail]
    }

    /// Writes the fields that are known last, and seals the property CRC if the record has one.
    pub fn place(
        &mut self,
        queue_offset: i64,
        physical_offset: i64,
        store_timestamp: i64,
    ) -> Result<(), FormatError> {
        let [fixed, timestamp] = [PHYSICAL_OFFSET_POSITION + 8, STORE_TIMESTAMP_POSITION + 8];
        if self.head.len() < fixed.max(timestamp) {
            return Err(FormatError::Truncated {
                what: "record",
                needed: fixed.max(timestamp),
                available: self.head.len(),
            });
        }
        patch_numbers(self.head, queue_offset, physical_offset, store_timestamp);
        if !self.property_crc {
            return Ok(());
        }
        if self.tail.is_empty() {
            return seal_property_crc(self.head);
        }
        let covered = self.tail.len().saturating_sub(PROPERTY_CRC_BYTES);
        let Some((bytes, crc)) = self.tail.split_at_mut_checked(covered) else {
            return Err(FormatError::bad_property("__CRC32#", "the record has no bytes for it"));
        };
        if !crc.starts_with(PROPERTY_CRC_HEAD) {
            return Err(FormatError::bad_property("__CRC32#", "is not the last property of the record"));
        }
        let mut sum = Crc31::new();
        for part in [&*self.head, self.body, bytes] {
            sum.update(part);
        }
        crc.copy_from_slice(&property_crc_text(sum.finish()));
        Ok(())
    }
}

fn within(what: &'static str, value: usize, limit: usize) -> Result<(), FormatError> {
    if value <= limit {
        Ok(())
    } else {
        Err(FormatError::TooLarge { what, value: value as u64, limit: limit as u64 })
    }
}

/// Replaces BODYCRC of an encoded record: for a copy of a stored record whose checksum is wrong.
pub fn patch_body_crc(record: &mut [u8], body_crc: u32) {
    if record.len() >= BODY_CRC_POSITION + 4 {
        put(record, BODY_CRC_POSITION, body_crc.to_be_bytes());
    }
}

/// Writes the three fields of an encoded record that are known last. `record` is exactly one record. A property CRC
/// becomes invalid: seal it again.
pub fn patch_position(
    record: &mut [u8],
    queue_offset: i64,
    physical_offset: i64,
    store_timestamp: i64,
) -> Result<(), FormatError> {
    whole_record(record)?;
    patch_numbers(record, queue_offset, physical_offset, store_timestamp);
    Ok(())
}

/// Writes the position of the half message into an encoded record. `head` contains everything before the body. A
/// property CRC becomes invalid: seal it again.
///
/// # Errors
/// [`FormatError::Truncated`] if `head` is too short.
pub fn patch_prepared_offset(head: &mut [u8], half_physical_offset: i64) -> Result<(), FormatError> {
    let needed = BORN_HOST_POSITION;
    let truncated = |needed, available| FormatError::Truncated { what: "record", needed, available };
    if head.len() < needed {
        return Err(truncated(needed, head.len()));
    }
    let sys_flag = SysFlag(i32::from_be_bytes(field(head, SYS_FLAG_POSITION)));
    // After the hosts, the store timestamp between them, and the number of deliveries.
    let at = BORN_HOST_POSITION + sys_flag.born_host_bytes() + 8 + sys_flag.store_host_bytes() + 4;
    if head.len() < at + 8 {
        return Err(truncated(at + 8, head.len()));
    }
    put(head, at, half_physical_offset.to_be_bytes());
    Ok(())
}

fn patch_numbers(record: &mut [u8], queue_offset: i64, physical_offset: i64, store_timestamp: i64) {
    let sys_flag = SysFlag(i32::from_be_bytes(field(record, SYS_FLAG_POSITION)));
    let v6_bytes = sys_flag.born_host_bytes() - SysFlag::default().born_host_bytes();
    put(record, QUEUE_OFFSET_POSITION, queue_offset.to_be_bytes());
    put(record, PHYSICAL_OFFSET_POSITION, physical_offset.to_be_bytes());
    put(record, STORE_TIMESTAMP_POSITION + v6_bytes, store_timestamp.to_be_bytes());
}

/// Computes the checksum of the whole record and writes it into the `__CRC32#` property, which must be its last 20
/// bytes. `record` is exactly one record.
pub fn seal_property_crc(record: &mut [u8]) -> Result<(), FormatError> {
    whole_record(record)?;
    let named =
        record.last_chunk::<PROPERTY_CRC_BYTES>().is_some_and(|tail| tail.starts_with(PROPERTY_CRC_HEAD));
    if !named {
        return Err(FormatError::bad_property("__CRC32#", "is not the last property of the record"));
    }
    restore_property_crc(record)
}

/// Like [`seal_property_crc`], but also writes the name and the separators of the property over the last 20 bytes,
/// which must be in the properties.
pub fn restore_property_crc(record: &mut [u8]) -> Result<(), FormatError> {
    whole_record(record)?;
    let Some((bytes, tail)) = record.split_last_chunk_mut::<PROPERTY_CRC_BYTES>() else {
        return Err(FormatError::bad_property("__CRC32#", "the record has no bytes for it"));
    };
    *tail = property_crc_text(crc31(bytes));
    Ok(())
}
