//! The queue of a message that is appended later: delayed, or in a transaction.

use mqstore_format::MIN_RECORD_BYTES;
use mqstore_format::record::MAX_PROPERTIES_BYTES;

use super::encode::{check_direct, route};
use crate::engine::Engine;
use mqstore_base::error::StoreError;
use mqstore_base::message::NewMessage;

/// Maximum bytes of the properties that a waiting message has in addition to those of the original message: two topics
/// and some numbers.
const MORE_BYTES: u64 = 768;

impl Engine {
    /// Returns the queue for `message` if it were appended now: the given one, else the one for its key, else the next
    /// in turn. Creates the topic like an append, and refuses a message that could not be delivered later.
    ///
    /// # Errors
    /// Those of [`crate::Store::append`]; [`StoreError::InvalidMessage`] for a topic with batch queues.
    pub(crate) fn target_queue(&self, message: &NewMessage<'_>) -> Result<i32, StoreError> {
        let properties = message.properties.len() as u64 + MORE_BYTES;
        let limit = MAX_PROPERTIES_BYTES as u64;
        if properties > limit {
            let reason = format!(
                "properties take {} bytes, which leaves too little space for those that a waiting message needs",
                message.properties.len()
            );
            return Err(StoreError::InvalidMessage { reason });
        }
        let size = MIN_RECORD_BYTES as u64 + properties + message.body.len() as u64;
        let limit = self.log.max_record_bytes();
        if size > limit {
            return Err(StoreError::TooLarge { what: "the record", size, limit });
        }
        self.before_append()?;
        check_direct(message)?;
        let topic = match self.topics.get(message.topic) {
            Some(topic) => topic,
            None => self.make_topic(message.topic, message.queue_id)?,
        };
        if topic.batch {
            let reason =
                format!("topic {} has batch queues, which accept no waiting messages", message.topic);
            return Err(StoreError::InvalidMessage { reason });
        }
        route(&topic, message, false)
    }
}
