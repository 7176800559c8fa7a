//! Taking over what a RocketMQ broker popped for a group, before the group is consumed here.
//!
//! A broker moves a group's offset behind what it hands out and keeps in records of its own who has what
//! ([`mqstore_engine::PopState`]). Here each such message is leased, until the time at which the broker would have let it come
//! again, and what lies between them is finished. One frame of the metadata log says that, and up to where in the
//! commit log the broker's records were taken into account: an open after a stop finds all of it or nothing, and
//! nothing is taken over twice. What a broker writes down later, when the directory is its own again, is taken over
//! the next time.

use std::collections::BTreeMap;
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_engine::{PopState, PoppedQueue};
use mqstore_format::topic::RETRY_TOPIC_PREFIX;

use crate::broker_state::BrokerState;
use crate::error::BrokerError;

impl BrokerState {
    /// Takes over what a broker left of the group in `topics`; what a person should know.
    pub(crate) fn prepare_group(&self, group: &str, topics: &[&str]) -> Result<Vec<String>, BrokerError> {
        let mut notes = Vec::new();
        for topic in topics {
            notes.extend(self.take_over(group, topic)?);
        }
        let is_retries = |topic: &&str| topic.strip_prefix(RETRY_TOPIC_PREFIX) == Some(group);
        if !topics.iter().any(is_retries) {
            notes.extend(self.retry_topic_warning(group)?);
        }
        notes.sort();
        notes.dedup();
        Ok(notes)
    }

    /// What a broker left; looked for once, as nobody else writes.
    fn popped(&self) -> Result<Arc<PopState>, BrokerError> {
        let mut known = self.found_popped().lock();
        if let Some(popped) = &*known {
            return Ok(Arc::clone(popped));
        }
        let found = Arc::new(self.store().popped()?);
        *known = Some(Arc::clone(&found));
        Ok(found)
    }

    /// Takes over what a broker popped for `group` of the queues of `topic`; what a person should know of it.
    fn take_over(&self, group: &str, topic: &str) -> Result<Vec<String>, BrokerError> {
        let popped = self.popped()?;
        let mut notes = Vec::new();
        if !popped.notes.is_empty() && self.meta().progress_of(self.meta().group_id(group)?).is_empty() {
            notes.clone_from(&popped.notes);
        }
        for queue in popped.queues.iter().filter(|queue| queue.group == group && queue.topic == topic) {
            let count = self.take_over_queue(queue)?;
            if count > 0 {
                notes.push(format!(
                    "group {group}: {count} messages of queue {topic}/{} that a broker had handed out were not \
                     acknowledged; they come again when their time is over",
                    queue.queue_id
                ));
            }
        }
        Ok(notes)
    }

    fn take_over_queue(&self, queue: &PoppedQueue) -> Result<usize, BrokerError> {
        let PoppedQueue { group, topic, queue_id, messages, log_offset } = queue;
        let key = self.meta().queue_key(group, topic, *queue_id)?;
        let progress = self.meta().progress(key);
        if progress.lock().pop_taken_over_offset() >= *log_offset {
            return Ok(0);
        }
        let mut popped = BTreeMap::new();
        for message in messages {
            let record = match self.store().message_at(topic, *queue_id, message.queue_offset) {
                Err(StoreError::OffsetOutOfRange { .. }) => None,
                found => found?,
            };
            if let Some(record) = record {
                let attempt = previous_attempts(topic, &record).saturating_add(1);
                popped.insert(message.queue_offset, (message.until_ms, attempt));
            }
        }
        let (count, place) = self.meta().change_progress(&progress, |state, records| {
            records.extend(state.pop_takeover_records(&popped, *log_offset));
            popped.range(..state.committed()).count()
        })?;
        self.meta().sync(place)?;
        Ok(count)
    }

    /// What a person should know who consumes for `group` all but its retry topic: RocketMQ's push clients consume that
    /// without being told.
    fn retry_topic_warning(&self, group: &str) -> Result<Option<String>, BrokerError> {
        let topic = format!("{RETRY_TOPIC_PREFIX}{group}");
        let mut left = 0;
        for queue_id in self.store().queue_ids(&topic)? {
            let (min, max) = self.store().bounds(&topic, queue_id)?;
            let offset = self.meta().offset(self.meta().queue_key(group, &topic, queue_id)?).unwrap_or(min);
            left += max.saturating_sub(offset.max(min)).max(0);
        }
        Ok((left > 0).then(|| {
            format!("group {group}: {left} messages wait in its retry topic {topic}, which is consumed where it is named")
        }))
    }
}

/// How often a message was delivered before it came to `topic`: RocketMQ counts that in its retry topics.
pub(crate) fn previous_attempts(topic: &str, record: &StoredRecord) -> u32 {
    if !topic.starts_with(RETRY_TOPIC_PREFIX) {
        return 0;
    }
    record.view().map_or(0, |view| u32::try_from(view.reconsume_times).unwrap_or(0))
}
