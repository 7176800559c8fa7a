//! Encodes a message into the buffers of a thread, and checks it.
//!
//! The encoded record is complete except for queue offset, log offset, store time and checksums; these follow under the
//! put lock.

use mqstore_format::delays::pending::is_system_topic;
use mqstore_format::delays::timer::TIMER_TOPIC;
use mqstore_format::properties::{REAL_TOPIC, UNIQ_KEY, push_property};
use mqstore_format::topic::{HALF_TOPIC, OP_TOPIC};
use mqstore_format::{
    FormatError, KeyBlock, MadeKey, Properties, RecordSpec, SCHEDULE_TOPIC, SysFlag, validate_topic,
};

use super::append_marks::MessageOrigin;
use crate::engine::Engine;
use crate::engine::topics::{TopicState, queue_for_key};
use mqstore_base::error::StoreError;
use mqstore_base::message::{NewMessage, UniqueKey};

/// Encoded messages: heads, tails, and the properties of the message that is being encoded.
#[derive(Default)]
pub(crate) struct EncodeBuffers {
    pub(crate) heads: Vec<u8>,
    pub(crate) tails: Vec<u8>,
    properties: Vec<u8>,
    /// The next unique keys, and the token of the writer that they belong to.
    keys: (u64, KeyBlock),
}

/// A message in the buffers.
pub(crate) struct EncodedMessage {
    pub(crate) unique_id: UniqueKey,
    /// The end of its head and of its tail in the buffers; without a tail, the head is the whole record.
    pub(crate) head_end: usize,
    pub(crate) tail_end: usize,
}

/// Maximum body size for which a record is assembled in the scratch buffer. One checksum of one piece costs less than
/// three, and the copy stays in the nearest cache.
const WHOLE_BYTES: usize = 4096;

/// Maximum bytes of the scratch buffer that stay in the nearest cache.
const NEAR_BYTES: usize = 32 << 10;

/// Maximum body size for which a record is also assembled in a larger scratch buffer. The checksum of one piece saves
/// more than the copy costs.
const SMALL_BYTES: usize = 512;

impl Engine {
    /// Encodes `message` at the end of the buffers.
    pub(crate) fn encode(
        &self,
        message: &NewMessage<'_>,
        queue_id: i32,
        sys_flag: SysFlag,
        now_ms: i64,
        origin: Option<&MessageOrigin>,
        buffers: &mut EncodeBuffers,
    ) -> Result<EncodedMessage, StoreError> {
        self.check_body(message)?;
        let (properties, unique_id) = if let Some(key) = message.unique_key {
            (message.properties, UniqueKey::Given(key.into()))
        } else {
            let (token, block) = &mut buffers.keys;
            if *token != self.token {
                (*token, *block) = (self.token, KeyBlock::default());
            }
            let key = self.ids.next_in(block, now_ms);
            buffers.properties.clear();
            buffers.properties.extend_from_slice(message.properties);
            push_property(&mut buffers.properties, UNIQ_KEY, key.as_bytes());
            (buffers.properties.as_slice(), UniqueKey::Made(key))
        };
        let host = self.options.store_host;
        let spec = RecordSpec {
            topic: message.topic,
            queue_id,
            flag: message.flag,
            queue_offset: 0,
            physical_offset: 0,
            sys_flag: SysFlag(
                origin.map_or(message.sys_flag, |origin| origin.sys_flag).compression_only().0 | sys_flag.0,
            ),
            born_timestamp: message.born_timestamp_ms.unwrap_or(now_ms),
            born_host: origin.map_or(host, |origin| origin.born_host),
            store_timestamp: now_ms,
            store_host: host,
            reconsume_times: origin.map_or(0, |origin| origin.reconsume_times),
            prepared_transaction_offset: 0,
            body: message.body,
            properties,
            property_crc: self.options.record_crc,
        };
        let bytes = message.body.len();
        let is_near = buffers.heads.len() + bytes <= NEAR_BYTES;
        let size = if bytes <= SMALL_BYTES || (bytes <= WHOLE_BYTES && is_near) {
            spec.encode_unsealed(&mut buffers.heads)
        } else {
            spec.encode_parts(&mut buffers.heads, &mut buffers.tails)
        };
        self.check_record(size)?;
        Ok(EncodedMessage { unique_id, head_end: buffers.heads.len(), tail_end: buffers.tails.len() })
    }

    #[inline]
    fn check_body(&self, message: &NewMessage<'_>) -> Result<(), StoreError> {
        let (size, limit) = (message.body.len() as u64, u64::from(self.options.max_message_bytes));
        if size > limit {
            return Err(StoreError::TooLarge { what: "the body", size, limit });
        }
        Ok(())
    }

    /// Checks the length of a record, or passes on why it has none.
    #[inline]
    fn check_record(&self, size: Result<usize, FormatError>) -> Result<(), StoreError> {
        let size = size.map_err(|error| StoreError::invalid_message(&error))? as u64;
        let limit = self.log.max_record_bytes();
        if size > limit {
            return Err(StoreError::TooLarge { what: "the record", size, limit });
        }
        Ok(())
    }

    /// Checks the lengths of `message` as [`Self::encode`] does. `key` is a unique key, for a message that has none yet;
    /// the contents of `properties` are replaced. An error comes with the field.
    pub(crate) fn check_lengths(
        &self,
        message: &NewMessage<'_>,
        key: &MadeKey,
        properties: &mut Vec<u8>,
    ) -> Result<(), (&'static str, StoreError)> {
        self.check_body(message).map_err(|error| ("body", error))?;
        properties.clear();
        properties.extend_from_slice(message.properties);
        if message.unique_key.is_none() {
            push_property(properties, UNIQ_KEY, key.as_bytes());
        }
        let host = self.options.store_host;
        let size = RecordSpec {
            properties,
            property_crc: self.options.record_crc,
            ..RecordSpec::new(message.topic, message.body, host, host)
        }
        .encoded_len();
        let field = if size.is_err() { "properties" } else { "body" };
        self.check_record(size).map_err(|error| (field, error))
    }
}

impl EncodeBuffers {
    pub(crate) fn clear(&mut self) {
        self.heads.clear();
        self.tails.clear();
    }
}

/// Returns the queue of `message`: the given one, else the one for its key, else the next in turn. A message that the
/// store `accepted` before keeps its queue if the topic has fewer queues now: readers drain former queues.
pub(crate) fn route(topic: &TopicState, message: &NewMessage<'_>, accepted: bool) -> Result<i32, StoreError> {
    match message.queue_id {
        _ if !topic.is_writable() => {
            let topic = message.topic;
            let reason = format!("topic {topic} takes no messages: its perm lacks bit 2 (write)");
            Err(StoreError::Refused { reason })
        }
        None => Ok(queue_for_key(topic, message).unwrap_or_else(|| topic.turn())),
        Some(queue_id) => {
            check_queue_id(queue_id)?;
            if accepted || (queue_id as u32) < topic.write_queues() {
                return Ok(queue_id);
            }
            let topic = message.topic.to_owned();
            Err(StoreError::TopicNotFound { topic, queue_id: Some(queue_id) })
        }
    }
}

/// Refuses a message for a topic in which only records of a certain form are delivered: no program would get it.
/// RocketMQ's brokers refuse it too (`TopicValidator#isNotAllowedSendTopic`).
pub(crate) fn check_direct(message: &NewMessage<'_>) -> Result<(), StoreError> {
    // The parts of the store that write these records name the topic of the message.
    match refuse_internal(message.topic) {
        Err(_) if message.topic != OP_TOPIC && names_its_topic(message.properties) => Ok(()),
        result => result,
    }
}

/// Checks that rows from elsewhere can become messages of this topic: its name, and that no store or broker writes it
/// for itself.
///
/// # Errors
/// [`StoreError::InvalidMessage`] and [`StoreError::Refused`].
pub fn check_target(topic: &str) -> Result<(), StoreError> {
    validate_topic(topic).map_err(|error| StoreError::invalid_message(&error))?;
    refuse_internal(topic)?;
    if is_system_topic(topic) {
        let reason = format!(
            "topic {topic} belongs to the store itself; leave out its rows, or write them to another topic"
        );
        return Err(StoreError::Refused { reason });
    }
    Ok(())
}

fn names_its_topic(properties: &[u8]) -> bool {
    Properties::new(properties).get(REAL_TOPIC).is_some()
}

fn refuse_internal(topic: &str) -> Result<(), StoreError> {
    let instead = match topic {
        TIMER_TOPIC | SCHEDULE_TOPIC => {
            "append to the topic of the message, with a delay or a time of delivery"
        }
        HALF_TOPIC | OP_TOPIC => "append to the topic of the message, in a transaction",
        _ => return Ok(()),
    };
    let reason = format!("topic {topic} is internal, and no program would get the message; {instead}");
    Err(StoreError::Refused { reason })
}

/// Checks that a queue can have this id.
pub(crate) fn check_queue_id(queue_id: i32) -> Result<(), StoreError> {
    if (0..65_536).contains(&queue_id) {
        return Ok(());
    }
    Err(StoreError::InvalidMessage { reason: format!("queue id {queue_id} is not between 0 and 65535") })
}

/// Returns the part of a body that is copied directly from the caller's memory: all of it, or nothing if the record was
/// assembled in the scratch buffer. Then it has no `tail` of its own.
pub(crate) fn body_between<'a>(message: &NewMessage<'a>, tail: &[u8]) -> &'a [u8] {
    if tail.is_empty() { &[] } else { message.body }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_for_topics_of_the_store_itself_are_refused() {
        for topic in [SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_TOPIC, "rmq_sys_REVIVE_LOG_c", "RMQ_SYS_x"]
        {
            let refused = check_target(topic);
            assert!(matches!(refused, Err(StoreError::Refused { .. })), "{topic}: {refused:?}");
        }
        for topic in ["orders", "%RETRY%group", "%DLQ%group", "rmq_system"] {
            assert!(check_target(topic).is_ok(), "{topic}");
        }
    }
}
