//! Taking over the messages that a RocketMQ broker popped for a group, before the group consumes them here.
//!
//! A broker moves a group's offset past the messages that it hands out. Its own records say which consumer has which
//! message ([`mqstore_engine::PopState`]). Here each such message becomes leased, until the time at which the broker
//! would have redelivered it. The messages between them become finished. One frame of the metadata log contains these
//! changes and the commit-log offset up to which the broker's records are included. So after a crash either all of it
//! is done or nothing, and nothing is taken over twice. If a broker uses the directory again, the next takeover
//! includes its new records.

use std::collections::BTreeMap;
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_engine::{PopState, PoppedQueue};
use mqstore_format::topic::RETRY_TOPIC_PREFIX;

use crate::broker_state::BrokerState;
use crate::error::BrokerError;

impl BrokerState {
    /// Takes over the broker's state of the group in `topics`.
    pub(crate) fn prepare_group(&self, group: &str, topics: &[&str]) -> Result<(), BrokerError> {
        for topic in topics {
            self.take_over(group, topic)?;
        }
        let is_retries = |topic: &&str| topic.strip_prefix(RETRY_TOPIC_PREFIX) == Some(group);
        if !topics.iter().any(is_retries) {
            self.warn_of_retry_topic(group)?;
        }
        Ok(())
    }

    /// Returns the broker's pop state. It is read only once, because no other process writes it.
    fn popped(&self) -> Result<Arc<PopState>, BrokerError> {
        let mut known = self.found_popped().lock();
        if let Some(popped) = &*known {
            return Ok(Arc::clone(popped));
        }
        let found = Arc::new(self.store().popped()?);
        *known = Some(Arc::clone(&found));
        Ok(found)
    }

    /// Takes over the messages that a broker popped for `group` from the queues of `topic`.
    fn take_over(&self, group: &str, topic: &str) -> Result<(), BrokerError> {
        let popped = self.popped()?;
        if !popped.notes.is_empty() && self.meta().progress_of(self.meta().group_id(group)?).is_empty() {
            popped.notes.iter().for_each(|note| self.store().user_notes().log(note.clone()));
        }
        for queue in popped.queues.iter().filter(|queue| queue.group == group && queue.topic == topic) {
            let count = self.take_over_queue(queue)?;
            if count > 0 {
                self.store().user_notes().log(format!(
                    "group {group}: {count} messages of queue {topic}/{} that a broker had handed out were not \
                     acknowledged; they are redelivered when their visibility timeout ends",
                    queue.queue_id
                ));
            }
        }
        Ok(())
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

    /// Logs a line if messages wait in the retry topic of `group`. RocketMQ's push clients consume that topic
    /// without naming it; a consumer here must name it.
    fn warn_of_retry_topic(&self, group: &str) -> Result<(), BrokerError> {
        let topic = format!("{RETRY_TOPIC_PREFIX}{group}");
        let mut left = 0;
        for queue_id in self.store().queue_ids(&topic)? {
            let (min, max) = self.store().bounds(&topic, queue_id)?;
            let offset = self.meta().offset(self.meta().queue_key(group, &topic, queue_id)?).unwrap_or(min);
            left += max.saturating_sub(offset.max(min)).max(0);
        }
        if left > 0 {
            self.store().user_notes().log(format!(
                "group {group}: {left} messages wait in its retry topic {topic}, which is read only if you name it"
            ));
        }
        Ok(())
    }
}

/// Returns the number of deliveries before a message came to `topic`. RocketMQ counts them in its retry topics.
pub(crate) fn previous_attempts(topic: &str, record: &StoredRecord) -> u32 {
    if !topic.starts_with(RETRY_TOPIC_PREFIX) {
        return 0;
    }
    record.view().map_or(0, |view| u32::try_from(view.reconsume_times).unwrap_or(0))
}
