//! Redriving dead letters to their original topics.

use mqstore_base::error::StoreError;
use mqstore_base::message::{NewMessage, StoredRecord};
use mqstore_engine::MessageOrigin;
use mqstore_format::properties::{
    DLQ_ORIGIN_MESSAGE_ID, DLQ_ORIGIN_TOPIC, ORIGIN_MESSAGE_ID, PROPERTY_CRC, RETRY_TOPIC, TIMER_DELIVER_MS,
};
use mqstore_format::push_property;
use mqstore_meta::OffsetChange;

use super::inner::WorkQueueInner;
use crate::error::{BrokerError, view};

/// Number of dead letters that are appended and synced together.
const TOGETHER: usize = 64;

/// Properties that a dead letter has in addition to those of the original message.
const ADDED: [&str; 6] =
    [PROPERTY_CRC, RETRY_TOPIC, ORIGIN_MESSAGE_ID, DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID, TIMER_DELIVER_MS];

impl WorkQueueInner {
    /// Returns the number of dead letters that were not redriven.
    pub(super) fn dead_letter_count(&self) -> Result<u64, BrokerError> {
        let (min, max) = match self.store().bounds(self.dead_letter_topic(), 0) {
            Err(StoreError::TopicNotFound { .. }) => return Ok(0),
            bounds => bounds?,
        };
        let queue = self.meta().queue_key(self.group(), self.dead_letter_topic(), 0)?;
        Ok(max.saturating_sub(self.meta().offset(queue).unwrap_or(min).clamp(min, max)).unsigned_abs())
    }

    /// Appends up to `limit` dead letters of the group again to their original topics, oldest first, as new messages.
    /// Returns their number. A dead letter that does not name its topic goes to this queue's topic. Those of a topic
    /// that was deleted since are passed over: a new topic of the name has none of the old messages. The group's
    /// offset in its dead-letter topic stores the position. A stop between the copy and the commit of that offset
    /// redrives up to 64 messages twice.
    pub(super) fn redrive(&self, limit: Option<u64>) -> Result<u64, BrokerError> {
        let (store, meta, topic) = (self.store(), self.meta(), self.dead_letter_topic());
        // Two calls would read the same position and append its messages twice.
        let _alone = self.redrive_lock().lock();
        let (min, max) = match store.bounds(topic, 0) {
            Err(StoreError::TopicNotFound { .. }) => return Ok(0),
            bounds => bounds?,
        };
        let queue = meta.queue_key(self.group(), topic, 0)?;
        let mut next = meta.offset(queue).unwrap_or(min).clamp(min, max);
        let mut cursor = store.read(topic, 0, Some(next), None, None)?;
        let mut moved = 0;
        while limit.is_none_or(|limit| moved < limit) {
            let left = limit.map_or(TOGETHER, |limit| TOGETHER.min((limit - moved) as usize));
            let records = cursor.next_batch(left)?;
            if records.is_empty() {
                break;
            }
            moved += store.system_appends().without_deletions(|| self.append_originals(&records))??;
            next = cursor.position();
            meta.commit(&[OffsetChange { queue, offset: next }])?;
        }
        meta.sync(meta.place())?;
        Ok(moved)
    }

    /// Appends the messages of dead letters again, except those whose topic was deleted since. Returns their number.
    fn append_originals(&self, letters: &[StoredRecord]) -> Result<u64, BrokerError> {
        let mut parts = Vec::with_capacity(letters.len());
        for letter in letters {
            let view = view(letter)?;
            let [origin, retry] = view.properties.get_many([DLQ_ORIGIN_TOPIC, RETRY_TOPIC]);
            let topic = origin.or(retry).unwrap_or(self.topic());
            if self.store().system_appends().is_deleted_since(topic, letter.commit_log_offset)? {
                self.note(format!(
                    "{}: dead letters of topic {topic} are not redriven, because the topic was deleted",
                    self.name()
                ));
                continue;
            }
            let mut properties = Vec::with_capacity(view.properties.raw().len());
            for (name, value) in view.properties.iter_raw() {
                if !ADDED.iter().any(|added| added.as_bytes() == name) {
                    push_property(&mut properties, name, value);
                }
            }
            parts.push((view, topic, properties));
        }
        let messages: Vec<_> = parts
            .iter()
            .map(|(view, topic, properties)| NewMessage {
                topic,
                body: view.body,
                properties,
                unique_key: Some(view.unique_key().unwrap_or_default()),
                queue_id: None,
                flag: view.flag,
                born_timestamp_ms: Some(view.born_timestamp),
                durable: true,
                ..NewMessage::default()
            })
            .collect();
        let origins: Vec<_> = parts
            .iter()
            .map(|(view, ..)| MessageOrigin {
                sys_flag: view.sys_flag,
                born_host: view.born_host,
                reconsume_times: 0,
            })
            .collect();
        self.store().system_appends().append_copies(&messages, &origins)?;
        Ok(messages.len() as u64)
    }
}
