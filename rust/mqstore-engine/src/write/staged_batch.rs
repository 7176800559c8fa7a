//! Staged messages: one process prepares them, and the process that holds the store's lock appends them.
//!
//! Owns their form: blocks of many messages. Numbers are big-endian, as in RocketMQ:
//!
//! ```text
//! block  0  4  magic "MQS2"
//!        4  4  number of messages
//!        8  4  bytes after the head
//!       12  4  checksum of these bytes (31 bits of CRC-32, like the checksum of a body)
//!       16     the messages, one after the other
//!
//! message 0  4  bytes after this number
//!         4  4  queue, or -1 if the store chooses it
//!         8  4  flag
//!        12  8  born time in epoch milliseconds; the smallest number means the time of the append
//!        20  4  bytes of the topic
//!        24  4  bytes of the properties
//!        28  4  how the body is compressed: bits of the record's flag
//!        32     topic, properties in RocketMQ's text form, body
//! ```
//!
//! Every message has a `UNIQ_KEY` in its properties. After a crash, the process that continues uses it to find the
//! messages that are in the log already. A block can be damaged on its way, so its checksum and all lengths are
//! checked.
//!
//! RocketMQ has no such file. This module syncs nothing; `staged` does, which writes blocks to files.

use mqstore_format::{Properties, SysFlag, crc31, validate_topic};

use mqstore_base::error::StoreError;
use mqstore_base::message::NewMessage;

const MAGIC: &[u8; 4] = b"MQS2";
const HEAD_BYTES: usize = 16;
const MESSAGE_HEAD_BYTES: usize = 32;
const NO_QUEUE: i32 = -1;
const NO_TIME: i64 = i64::MIN;

/// Maximum bytes of a block, including its head.
const BLOCK_BYTES: usize = 1 << 30;

/// A block to which messages are added.
#[derive(Debug)]
pub struct StagedBlock {
    bytes: Vec<u8>,
    messages: u32,
    most_body_bytes: usize,
}

impl StagedBlock {
    /// Returns an empty block for messages with bodies of at most `most_body_bytes` bytes.
    pub fn new(most_body_bytes: usize) -> Self {
        Self { bytes: vec![0; HEAD_BYTES], messages: 0, most_body_bytes }
    }

    /// Whether a body of `bytes` bytes fits the block. It always fits an empty block.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.messages == 0 || self.bytes.len().saturating_add(bytes) <= BLOCK_BYTES
    }

    /// Returns the number of messages in the block.
    pub fn messages(&self) -> u32 {
        self.messages
    }

    /// Adds a message. Whether its queue exists is checked later, by the append.
    ///
    /// # Errors
    /// [`StoreError::InvalidMessage`], [`StoreError::TooLarge`].
    pub fn push(&mut self, message: &NewMessage<'_>) -> Result<(), StoreError> {
        let invalid = |reason: String| StoreError::InvalidMessage { reason };
        validate_topic(message.topic).map_err(|error| invalid(error.to_string()))?;
        if message.queue_id.is_some_and(|id| !(0..65_536).contains(&id)) {
            let id = message.queue_id.unwrap_or_default();
            return Err(invalid(format!("queue id {id} is not between 0 and 65535")));
        }
        if message.body.len() > self.most_body_bytes {
            let (size, most) = (message.body.len(), self.most_body_bytes);
            return Err(StoreError::TooLarge { what: "the body", size: size as u64, limit: most as u64 });
        }
        if message.properties.len() > i16::MAX as usize {
            return Err(invalid(format!(
                "properties take {} bytes; the maximum is 32767",
                message.properties.len()
            )));
        }
        let bytes =
            MESSAGE_HEAD_BYTES - 4 + message.topic.len() + message.properties.len() + message.body.len();
        self.bytes.extend_from_slice(&(bytes as u32).to_be_bytes());
        self.bytes.extend_from_slice(&message.queue_id.unwrap_or(NO_QUEUE).to_be_bytes());
        self.bytes.extend_from_slice(&message.flag.to_be_bytes());
        self.bytes.extend_from_slice(&message.born_timestamp_ms.unwrap_or(NO_TIME).to_be_bytes());
        self.bytes.extend_from_slice(&(message.topic.len() as u32).to_be_bytes());
        self.bytes.extend_from_slice(&(message.properties.len() as u32).to_be_bytes());
        self.bytes.extend_from_slice(&message.sys_flag.compression_only().0.to_be_bytes());
        self.bytes.extend_from_slice(message.topic.as_bytes());
        self.bytes.extend_from_slice(message.properties);
        self.bytes.extend_from_slice(message.body);
        self.messages += 1;
        Ok(())
    }

    /// Returns the bytes of the block.
    pub fn finish(mut self) -> Vec<u8> {
        let rows = self.bytes.get(HEAD_BYTES..).unwrap_or_default();
        let (length, sum) = (rows.len() as u32, crc31(rows));
        let head: Vec<u8> =
            [MAGIC.as_slice(), &self.messages.to_be_bytes(), &length.to_be_bytes(), &sum.to_be_bytes()]
                .concat();
        if let Some(place) = self.bytes.get_mut(..HEAD_BYTES) {
            place.copy_from_slice(&head);
        }
        self.bytes
    }
}

/// What the head of a block says.
pub(crate) struct BlockHead {
    pub(crate) messages: u32,
    /// Bytes of the block, with its head.
    pub(crate) bytes: u64,
}

impl BlockHead {
    pub(crate) const BYTES: usize = HEAD_BYTES;

    /// Decodes a head. Whether it is true is checked with the whole block: [`staged_messages`].
    pub(crate) fn decode(head: &[u8; HEAD_BYTES]) -> Self {
        let field = |at| u32::from_be_bytes(number(head, at).unwrap_or_default());
        Self { messages: field(4), bytes: u64::from(field(8)) + HEAD_BYTES as u64 }
    }
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// Returns the messages of the block in `bytes`; `None` if `bytes` is not exactly one valid block.
pub(crate) fn staged_messages(bytes: &[u8]) -> Option<Vec<NewMessage<'_>>> {
    let rows = bytes.get(HEAD_BYTES..)?;
    let count = u32::from_be_bytes(number(bytes, 4)?) as usize;
    let length = u32::from_be_bytes(number(bytes, 8)?) as usize;
    let sum = u32::from_be_bytes(number(bytes, 12)?);
    if bytes.get(..4)? != MAGIC || rows.len() != length || crc31(rows) != sum {
        return None;
    }
    let mut messages = Vec::with_capacity(count.min(rows.len() / MESSAGE_HEAD_BYTES));
    let mut rest = rows;
    while !rest.is_empty() {
        let size = (u32::from_be_bytes(number(rest, 0)?) as usize).checked_add(4)?;
        messages.push(staged_message(rest.get(..size)?)?);
        rest = rest.get(size..)?;
    }
    (messages.len() == count).then_some(messages)
}

fn staged_message(row: &[u8]) -> Option<NewMessage<'_>> {
    let queue_id = i32::from_be_bytes(number(row, 4)?);
    let flag = i32::from_be_bytes(number(row, 8)?);
    let born = i64::from_be_bytes(number(row, 12)?);
    let topic_bytes = u32::from_be_bytes(number(row, 20)?) as usize;
    let properties_bytes = u32::from_be_bytes(number(row, 24)?) as usize;
    let sys_flag = i32::from_be_bytes(number(row, 28)?);
    let (topic, rest) = row.get(MESSAGE_HEAD_BYTES..)?.split_at_checked(topic_bytes)?;
    let (properties, body) = rest.split_at_checked(properties_bytes)?;
    Some(NewMessage {
        topic: std::str::from_utf8(topic).ok()?,
        body,
        properties,
        unique_key: Some(Properties::new(properties).get(mqstore_format::properties::UNIQ_KEY)?),
        queue_id: (queue_id != NO_QUEUE).then_some(queue_id),
        flag,
        born_timestamp_ms: (born != NO_TIME).then_some(born),
        durable: false,
        sys_flag: SysFlag(sys_flag),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqstore_base::message::encode_properties;

    fn block() -> Vec<u8> {
        let mut block = StagedBlock::new(100);
        for number in 0..3_i32 {
            let key = format!("ID{number}");
            let properties = encode_properties(["k"], Some("t"), Some(&key), []).unwrap();
            let message = NewMessage {
                topic: "orders",
                body: &vec![7; number as usize],
                properties: &properties,
                unique_key: Some(&key),
                queue_id: (number > 0).then_some(number),
                flag: -number,
                born_timestamp_ms: (number > 1).then_some(5),
                durable: false,
                sys_flag: SysFlag(if number > 0 { 0x201 } else { 0 }),
            };
            block.push(&message).unwrap();
        }
        assert_eq!(block.messages(), 3);
        block.finish()
    }

    #[test]
    fn a_block_gives_back_what_it_got() {
        let bytes = block();
        let messages = staged_messages(&bytes).unwrap();
        let seen: Vec<_> = messages
            .iter()
            .map(|m| {
                (m.topic, m.body.len(), m.unique_key, m.queue_id, m.flag, m.born_timestamp_ms, m.sys_flag.0)
            })
            .collect();
        assert_eq!(
            seen,
            [
                ("orders", 0, Some("ID0"), None, 0, None, 0),
                ("orders", 1, Some("ID1"), Some(1), -1, None, 0x201),
                ("orders", 2, Some("ID2"), Some(2), -2, Some(5), 0x201),
            ]
        );
        assert_eq!(staged_messages(&StagedBlock::new(1).finish()), Some(Vec::new()));
    }

    #[test]
    fn any_damage_is_seen() {
        let bytes = block();
        for at in 0..bytes.len() {
            assert_eq!(staged_messages(bytes.get(..at).unwrap()), None);
            let mut other = bytes.clone();
            *other.get_mut(at).unwrap() ^= 1;
            assert_eq!(staged_messages(&other), None, "{at}");
        }
    }

    #[test]
    fn what_no_store_takes_is_refused() {
        let mut block = StagedBlock::new(3);
        let message = NewMessage {
            topic: "t",
            body: b"1234",
            properties: b"",
            unique_key: None,
            queue_id: None,
            flag: 0,
            born_timestamp_ms: None,
            durable: false,
            ..NewMessage::default()
        };
        assert!(matches!(block.push(&message), Err(StoreError::TooLarge { .. })));
        let short = NewMessage { body: b"1", ..message };
        let bad = NewMessage { topic: "a/b", ..short };
        assert!(matches!(block.push(&bad), Err(StoreError::InvalidMessage { .. })));
        let bad = NewMessage { queue_id: Some(-2), ..short };
        assert!(matches!(block.push(&bad), Err(StoreError::InvalidMessage { .. })));
        let bad = NewMessage { properties: &vec![b'x'; 40_000], ..short };
        assert!(matches!(block.push(&bad), Err(StoreError::InvalidMessage { .. })));
        assert_eq!(block.messages(), 0);
    }
}
