//! Messages that come from another store or from a file: what an application cannot set is kept too.
//!
//! Place, store time and store host are new. So is the flag, but for how the body is compressed: a copy is an ordinary
//! message of its topic. A record that is a batch of messages stays one, in a topic with batch queues.

use mqstore_format::{RecordSpec, validate_topic};

use super::append::ReturnPoint;
use super::append_marks::{AppendMarks, MessageOrigin};
use super::encode::check_queue_id;
use crate::Store;
use mqstore_base::error::StoreError;
use mqstore_base::message::{Appended, NewMessage};

/// Whether `message` could be appended to some store: what its topic, its queue, its properties and their lengths say.
///
/// # Errors
/// [`StoreError::InvalidMessage`].
pub fn check_copy(message: &NewMessage<'_>, origin: &MessageOrigin) -> Result<(), StoreError> {
    validate_topic(message.topic).map_err(|error| StoreError::invalid_message(&error))?;
    message.queue_id.map_or(Ok(()), check_queue_id)?;
    let spec = RecordSpec {
        flag: message.flag,
        sys_flag: origin.sys_flag.compression_only(),
        reconsume_times: origin.reconsume_times,
        properties: message.properties,
        property_crc: true,
        ..RecordSpec::new(message.topic, message.body, origin.born_host, origin.born_host)
    };
    spec.encode_parts(&mut Vec::new(), &mut Vec::new())
        .map(drop)
        .map_err(|error| StoreError::invalid_message(&error))
}

impl Store {
    /// As [`Store::append_many`], for messages that come from elsewhere: `origins` are theirs, in the same
    /// order. The unique key is taken as it is given; an empty one stands for none.
    ///
    /// # Errors
    /// Those of [`Store::append_many`]; [`StoreError::InvalidMessage`] for a topic with batch queues.
    pub fn append_copies(
        &self,
        messages: &[NewMessage<'_>],
        origins: &[MessageOrigin],
    ) -> Result<Vec<Appended>, StoreError> {
        messages.iter().try_for_each(|message| self.check_copies_to(message.topic))?;
        self.writer("append")?.append_all(messages, AppendMarks::Origins(origins), ReturnPoint::Synced)
    }

    /// Appends a record of another store to a topic with batch queues: a batch of messages as it is, or a single
    /// message. The body is as it was stored; `INNER_BASE` of `message` is made anew.
    ///
    /// # Errors
    /// Those of [`Store::append_many`]; [`StoreError::InvalidMessage`] for a topic with plain queues, and for a batch that
    /// does not say of how many messages it is.
    pub fn append_batch_copy(
        &self,
        message: &NewMessage<'_>,
        origin: &MessageOrigin,
    ) -> Result<Appended, StoreError> {
        self.writer("append")?.append_batch_copy(message, origin)
    }

    /// Whether the topic, if there is one of this name, has batch queues.
    pub fn has_batch_queues(&self, topic: &str) -> bool {
        self.view().has_batch_queues(topic)
    }

    /// Whether [`Self::append_copies`] takes messages for this topic.
    ///
    /// # Errors
    /// [`StoreError::InvalidMessage`] for a topic with batch queues; [`StoreError::ReadOnly`].
    pub fn check_copies_to(&self, topic: &str) -> Result<(), StoreError> {
        self.writer("append")?;
        if self.has_batch_queues(topic) {
            let reason = format!("topic {topic} keeps batch queues, which take no copies of single messages");
            return Err(StoreError::InvalidMessage { reason });
        }
        Ok(())
    }
}
