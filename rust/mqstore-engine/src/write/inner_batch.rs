//! Inner batches: an append of several messages to a topic with batch queues makes one record.
//!
//! ```text
//! body        the messages one after the other, in a client's wire form (`mqstore_format::encode_batch`)
//! SYSFLAG     inner batch, needs unwrap
//! properties  KEYS of all messages, TAGS if they are the same, UNIQ_KEY of the batch, INNER_NUM, INNER_BASE
//! ```
//!
//! The record takes one queue offset for each message. Its own queue offset is that of the first message and is also in
//! its properties. Therefore no other append to the queue may come between the read of the next offset and this append.
//! A crash keeps the whole batch or nothing of it.
//!
//! Source: `SendMessageProcessor#sendBatchMessage`, `BatchConsumeQueue#assignQueueOffset`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use mqstore_format::properties::{INNER_BASE, INNER_NUM, KEYS, TAGS, UNIQ_KEY, push_property};
use mqstore_format::{
    BatchItem, FormatError, MadeKey, Properties, PropertiesBuilder, SysFlag, encode_batch, without_property,
};

use super::append::{ReturnPoint, appended};
use super::append_marks::MessageOrigin;
use super::encode::{EncodeBuffers, route};
use crate::engine::Engine;
use crate::engine::topics::TopicState;
use mqstore_base::error::StoreError;
use mqstore_base::message::{Appended, NewMessage};
use mqstore_log::commit_log::EncodedRecord;

/// Maximum number of messages in one record: the count has 16 bits in a queue's units.
const MOST_MESSAGES: usize = i16::MAX as usize;

impl Engine {
    /// Appends `messages` as one record; the topic of the first message has batch queues.
    pub(crate) fn append_inner_batch(
        &self,
        messages: &[NewMessage<'_>],
        topic: &Arc<TopicState>,
        now_ms: i64,
        returns: ReturnPoint,
        buffers: &mut EncodeBuffers,
    ) -> Result<Vec<Appended>, StoreError> {
        let Some(first) = messages.first() else { return Ok(Vec::new()) };
        check(messages, first)?;
        let queue_id = route(topic, first, false)?;
        let body = self.body_of(messages, now_ms)?;
        let key = match first.unique_key.filter(|_| messages.len() == 1) {
            Some(key) => key.to_owned(),
            None => self.ids.next(now_ms).as_str().to_owned(),
        };
        let next_queue_offset = topic.next_offset(queue_id);
        let turn = topic.one_by_one.lock();
        let base = next_queue_offset.load(Ordering::Acquire);
        let properties =
            properties_of(messages, &key, base).map_err(|error| StoreError::invalid_message(&error))?;
        let batch = NewMessage {
            body: &body,
            properties: properties.as_bytes(),
            unique_key: Some(&key),
            queue_id: Some(queue_id),
            durable: messages.iter().any(|message| message.durable),
            ..*first
        };
        let flags = SysFlag(0).with_inner_batch(true);
        let encoded = self.encode(&batch, queue_id, flags, now_ms, None, buffers)?;
        let mut pending = [EncodedRecord {
            messages: messages.len() as u16,
            ..self.pending(&batch, topic, queue_id, buffers)
        }];
        let durable = self.append_pending(&mut pending, now_ms, batch.durable, returns, Some(turn))?;
        let [pending] = &pending;
        let one = appended(queue_id, encoded.unique_id, pending, durable);
        self.notify_waiters(batch.topic, topic, queue_id, one.queue_offset);
        let results = (0..messages.len() as i64)
            .map(|index| Appended { queue_offset: one.queue_offset + index, ..one.clone() });
        Ok(results.collect())
    }

    /// Checks that [`Self::append_inner_batch`] accepts `messages`; `key` is a unique key. An error comes with the
    /// field.
    pub(crate) fn check_inner_batch(
        &self,
        messages: &[NewMessage<'_>],
        key: &MadeKey,
    ) -> Result<(), (&'static str, StoreError)> {
        let Some(first) = messages.first() else { return Ok(()) };
        check(messages, first).map_err(|error| ("queue_id", error))?;
        let body = self.body_of(messages, 0).map_err(|error| ("body", error))?;
        // The last offset has the longest text.
        let properties = properties_of(messages, key.as_str(), i64::MAX)
            .map_err(|error| ("properties", StoreError::invalid_message(&error)))?;
        let properties = properties.as_bytes();
        let batch = NewMessage { body: &body, properties, unique_key: Some(key.as_str()), ..*first };
        self.check_lengths(&batch, key, &mut Vec::new())
    }

    /// Appends a record of another store, see [`crate::SystemAppends::append_batch_copy`].
    pub(crate) fn append_batch_copy(
        &self,
        message: &NewMessage<'_>,
        origin: &MessageOrigin,
    ) -> Result<Appended, StoreError> {
        self.before_append()?;
        let refuse = |reason: String| Err(StoreError::InvalidMessage { reason });
        let Some(topic) = self.topics.get(message.topic).filter(|topic| topic.batch) else {
            return refuse(format!(
                "topic {} has plain queues, which accept no batches; make it with the attribute queue.type=BatchCQ",
                message.topic
            ));
        };
        let is_batch = origin.sys_flag.inner_batch();
        let messages = if is_batch { batch_len(message)? } else { 1 };
        let now_ms = self.files.clock.now_ms();
        let queue_id = route(&topic, message, false)?;
        let next_queue_offset = topic.next_offset(queue_id);
        let mut buffers = EncodeBuffers::default();
        let turn = topic.one_by_one.lock();
        let mut properties = without_property(message.properties, INNER_BASE).into_owned();
        if is_batch {
            let base = next_queue_offset.load(Ordering::Acquire);
            end_properties(&mut properties);
            properties.extend_from_slice(format!("{INNER_BASE}\x01{base}\x02").as_bytes());
        }
        let copy = NewMessage { properties: &properties, ..*message };
        let flags = SysFlag(0).with_inner_batch(is_batch);
        let encoded = self.encode(&copy, queue_id, flags, now_ms, Some(origin), &mut buffers)?;
        let mut pending = [EncodedRecord { messages, ..self.pending(&copy, &topic, queue_id, &mut buffers) }];
        let durable =
            self.append_pending(&mut pending, now_ms, copy.durable, ReturnPoint::Synced, Some(turn))?;
        let [pending] = &pending;
        let one = appended(queue_id, encoded.unique_id, pending, durable);
        self.notify_waiters(copy.topic, &topic, queue_id, one.queue_offset);
        Ok(one)
    }

    /// Returns the messages in their wire form, each with its own unique key.
    fn body_of(&self, messages: &[NewMessage<'_>], now_ms: i64) -> Result<Vec<u8>, StoreError> {
        let mut body = Vec::new();
        for message in messages {
            let mut properties = message.properties.to_vec();
            if message.unique_key.is_none() {
                let key = self.ids.next(now_ms);
                push_property(&mut properties, UNIQ_KEY, key.as_bytes());
            }
            let item = BatchItem { flag: message.flag, body: message.body, properties: &properties };
            encode_batch([item], &mut body).map_err(|error| StoreError::invalid_message(&error))?;
        }
        Ok(body)
    }
}

/// Returns the number of messages in a batch.
pub(super) fn batch_len(batch: &NewMessage<'_>) -> Result<u16, StoreError> {
    let number = Properties::new(batch.properties).get(INNER_NUM).and_then(|number| number.parse().ok());
    number.filter(|number| (1..=MOST_MESSAGES as u16).contains(number)).ok_or_else(|| {
        let reason = format!("the batch lacks the number of its messages, property {INNER_NUM}");
        StoreError::InvalidMessage { reason }
    })
}

/// Ends the last property, so that another can follow: RocketMQ leaves the last separator out.
fn end_properties(properties: &mut Vec<u8>) {
    if properties.last().is_some_and(|last| *last != b'\x02') {
        properties.push(b'\x02');
    }
}

/// Checks that `messages` can be one record; `first` is the first message.
fn check(messages: &[NewMessage<'_>], first: &NewMessage<'_>) -> Result<(), StoreError> {
    let refuse = |reason: String| Err(StoreError::InvalidMessage { reason });
    if messages.len() > MOST_MESSAGES {
        return refuse(format!(
            "{} messages for topic {}, which has batch queues: one call accepts at most {MOST_MESSAGES} for it",
            messages.len(),
            first.topic
        ));
    }
    if messages.iter().any(|other| other.topic != first.topic || other.queue_id != first.queue_id) {
        return refuse(format!(
            "topic {} has batch queues: all messages of one call must go to one queue of it",
            first.topic
        ));
    }
    // The form of a message in a batch has no flag for the compression of its body.
    if messages.iter().any(|message| message.sys_flag.compressed()) {
        return refuse(format!(
            "topic {} has batch queues, whose batches accept no compressed messages; append them with \
             compression=\"none\"",
            first.topic
        ));
    }
    Ok(())
}

/// Returns the properties of a batch: the keys of its messages, so that a look-up finds it, and the batch properties.
fn properties_of(
    messages: &[NewMessage<'_>],
    key: &str,
    base: i64,
) -> Result<PropertiesBuilder, FormatError> {
    let of = |message: &NewMessage<'_>, name| {
        Properties::new(message.properties).get(name).unwrap_or_default().to_owned()
    };
    let mut properties = PropertiesBuilder::new();
    let mut keys: Vec<String> = Vec::new();
    for message in messages {
        keys.extend(of(message, KEYS).split(' ').filter(|key| !key.is_empty()).map(str::to_owned));
    }
    keys.sort_unstable();
    keys.dedup();
    if !keys.is_empty() {
        properties.push_reserved(KEYS, &keys.join(" "))?;
    }
    let mut tags = messages.iter().map(|message| of(message, TAGS));
    if let Some(first) = tags.next().filter(|first| !first.is_empty())
        && tags.all(|other| other == first)
    {
        properties.push_reserved(TAGS, &first)?;
    }
    properties.push_reserved(UNIQ_KEY, key)?;
    properties.push_reserved(INNER_NUM, &messages.len().to_string())?;
    properties.push_reserved(INNER_BASE, &base.to_string())?;
    Ok(properties)
}
