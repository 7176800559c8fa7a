//! Appends of messages from another store or a file. They keep fields that an application cannot set.
//!
//! Log offset, store time and store host are new. The flag is new too, except for the compression of the body: a copy
//! is an ordinary message of its topic. A record with a batch of messages stays one record, in a topic with batch
//! queues.

use std::sync::atomic::Ordering;

use mqstore_format::{RecordSpec, SysFlag, decode_batch, validate_topic};

use super::append::ReturnPoint;
use super::append_marks::{AppendMarks, MessageOrigin};
use super::encode::check_queue_id;
use super::inner_batch::batch_len;
use crate::engine::Engine;
use crate::read::view::View;
use mqstore_base::error::StoreError;
use mqstore_base::message::{Appended, NewMessage};

/// Largest offset at which a queue can begin: the names of its files, which are byte offsets, have space for as many
/// more.
const MOST_FIRST_OFFSET: i64 = 1 << 56;

/// Maximum number of offsets that a queue with messages passes over. Dispatch accepts such a gap wherever it is.
const MOST_PASSED_OFFSETS: i64 = 1000;

/// Checks that some store could accept `message`: its topic, queue id, properties and their lengths, and the messages of
/// a batch.
///
/// # Errors
/// [`StoreError::InvalidMessage`].
pub fn check_copy(message: &NewMessage<'_>, origin: &MessageOrigin) -> Result<(), StoreError> {
    validate_topic(message.topic).map_err(|error| StoreError::invalid_message(&error))?;
    message.queue_id.map_or(Ok(()), check_queue_id)?;
    if origin.sys_flag.inner_batch() {
        check_batch(message, origin)?;
    }
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

/// Checks that the body of a batch consists of the messages that its properties promise. The messages of a compressed
/// body are not known.
fn check_batch(batch: &NewMessage<'_>, origin: &MessageOrigin) -> Result<(), StoreError> {
    let messages = batch_len(batch)?;
    let is_compressed = origin.sys_flag.compression_only() != SysFlag(0);
    let found: Result<Vec<_>, _> = decode_batch(batch.body).collect();
    if is_compressed || found.is_ok_and(|found| found.len() == usize::from(messages)) {
        return Ok(());
    }
    let reason = format!("the body is not a batch of {messages} messages");
    Err(StoreError::InvalidMessage { reason })
}

impl Engine {
    /// See [`crate::SystemAppends::append_marked`]; `marks` has a mark for each message.
    pub(crate) fn append_marked(
        &self,
        messages: &[NewMessage<'_>],
        marks: AppendMarks<'_>,
    ) -> Result<Vec<Appended>, StoreError> {
        messages.iter().try_for_each(|message| self.check_copies_to(message.topic))?;
        self.append_all(messages, marks, ReturnPoint::Synced)
    }

    /// See [`crate::SystemAppends::check_copies_to`].
    pub(crate) fn check_copies_to(&self, topic: &str) -> Result<(), StoreError> {
        if self.has_batch_queues(topic) {
            let reason = format!("topic {topic} has batch queues, which accept no copies of single messages");
            return Err(StoreError::InvalidMessage { reason });
        }
        Ok(())
    }

    /// See [`crate::SystemAppends::advance_queue`].
    pub(crate) fn advance_queue(&self, topic: &str, queue_id: i32, offset: i64) -> Result<i64, StoreError> {
        check_queue_id(queue_id)?;
        let not_found = || StoreError::TopicNotFound { topic: topic.to_owned(), queue_id: None };
        let state = self.topics.get(topic).ok_or_else(not_found)?;
        let next = state.next_offset(queue_id);
        // An append takes its offset under the same lock.
        self.log.block_appends(|| {
            let now = next.load(Ordering::Acquire);
            let most = if now == 0 { MOST_FIRST_OFFSET } else { now.saturating_add(MOST_PASSED_OFFSETS) };
            if (now..=most).contains(&offset) {
                next.store(offset, Ordering::Release);
            }
        });
        Ok(next.load(Ordering::Acquire))
    }
}
