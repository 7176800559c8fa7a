//! Cancelling a waiting message.
//!
//! A cancellation is a record in the timer queue, as in RocketMQ's own recall. It names the message by key for
//! brokers and by log offset for mqstore. Cancellation and delivery of a message happen under one lock, so only one
//! of them is in the log.

use mqstore_base::error::StoreError;
use mqstore_base::message::{NewMessage, StoredRecord};
use mqstore_format::delays::timer::TIMER_TOPIC;
use mqstore_format::parse_offset_message_id;
use mqstore_format::properties::{TIMER_DEL_UNIQKEY, TIMER_ROLL_TIMES};

use super::DelayEngine;
use crate::delay::timer_record::{Timed, cancel_records, deleted_topic, timed};
use crate::error::view;

/// Records of one unique id in one read.
const AT_ONCE: usize = 64;

impl DelayEngine {
    /// Returns the record of the waiting message with this id. If several have the unique id, returns the newest.
    pub(crate) fn find_pending(&mut self, id: &str) -> Result<Option<StoredRecord>, StoreError> {
        self.read_timer_queue()?;
        let mut unique_id = id.to_owned();
        let mut rolled_only = false;
        if let Ok((_, _)) = parse_offset_message_id(id) {
            let Some(record) = self.store.get(id)? else { return Ok(None) };
            if self.is_pending(&record)? {
                return Ok(Some(record));
            }
            let view = view(&record)?;
            let Some(key) = view.unique_key().filter(|_| view.topic == TIMER_TOPIC) else { return Ok(None) };
            // It may have been put back since, at another offset.
            key.clone_into(&mut unique_id);
            rolled_only = true;
        }
        let mut cursor = match self.store.lookup(TIMER_TOPIC, &unique_id, None, None, None) {
            // No message was ever delayed.
            Err(StoreError::TopicNotFound { .. }) => return Ok(None),
            cursor => cursor?.newest_first(),
        };
        loop {
            let records = cursor.next_batch(AT_ONCE)?;
            if records.is_empty() {
                return Ok(None);
            }
            for record in records {
                let wanted = {
                    let view = view(&record)?;
                    view.unique_key() == Some(&unique_id)
                        && view.properties.get(TIMER_DEL_UNIQKEY).is_none()
                        && (!rolled_only || view.properties.get(TIMER_ROLL_TIMES).is_some())
                };
                if wanted && self.is_pending(&record)? {
                    return Ok(Some(record));
                }
            }
        }
    }

    pub(crate) fn cancel(&mut self, record: &StoredRecord) -> Result<(), StoreError> {
        self.append_cancel(&cancel_records(record)?)?;
        self.read_timer_queue()
    }

    /// Appends the records of one cancellation, which have these properties.
    pub(super) fn append_cancel(&mut self, properties: &[Vec<u8>; 2]) -> Result<(), StoreError> {
        let messages = properties.each_ref().map(|properties| NewMessage {
            topic: TIMER_TOPIC,
            body: b"0",
            properties,
            unique_key: None,
            queue_id: Some(0),
            flag: 0,
            born_timestamp_ms: None,
            durable: false,
            ..NewMessage::default()
        });
        self.store.system_appends().append_many_first(&messages)?;
        Ok(())
    }

    fn is_pending(&mut self, record: &StoredRecord) -> Result<bool, StoreError> {
        let Some(Timed { offset, slot, queue_offset, cancels: None, .. }) = timed(record) else {
            return Ok(false);
        };
        if deleted_topic(&self.store, &view(record)?, offset)?.is_some() {
            return Ok(false);
        }
        if self.due.contains(offset) {
            return Ok(true);
        }
        if self.queue.is_known_done(queue_offset)
            || slot < self.due.loaded_to()
            || queue_offset >= self.queue.next()
            || self.found.contains(offset)
        {
            return Ok(false);
        }
        self.cancellations.learn(slot, &mut self.journal, &self.store)?;
        Ok(!self.cancellations.contains(slot, record)?)
    }
}
