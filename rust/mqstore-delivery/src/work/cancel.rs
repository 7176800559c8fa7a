//! Cancelling a message of a work queue that no worker has: it is finished without a delivery.

use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_meta::{Progress, ProgressRecord};

use super::inner::WorkQueueInner;
use super::source::QueuePlace;
use crate::error::{BrokerError, view};

/// Records of one unique id in one read.
const AT_ONCE: usize = 64;

/// What a call found out about a message.
enum Cancelled {
    Yes,
    /// It is finished, or becomes a dead letter.
    Over,
    /// A worker has it until this time, in epoch milliseconds.
    Leased(i64),
}

impl WorkQueueInner {
    /// Cancels the message with a message id or a unique id. Of several messages with the unique id, it is the newest
    /// that is not over.
    pub(super) fn cancel(&self, id: &str) -> Result<bool, BrokerError> {
        self.store().make_visible()?;
        let places = self.places()?;
        let mut found = Vec::from_iter(self.store().get(id)?);
        for topic in self.topics() {
            let mut cursor = match self.store().lookup(&topic, id, None, None, None) {
                Err(StoreError::TopicNotFound { .. }) => continue,
                cursor => cursor?,
            };
            loop {
                let records = cursor.next_batch(AT_ONCE)?;
                if records.is_empty() {
                    break;
                }
                found.extend(records);
            }
        }
        found.sort_by_key(|record| std::cmp::Reverse(record.commit_log_offset));
        for record in &found {
            if has_id(record, id)?
                && let Some(place) = place_of(&places, record)?
                && self.cancel_message(place, record.queue_offset)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Cancels the message at an offset of a queue.
    pub(super) fn cancel_at(
        &self,
        topic: &str,
        queue_id: i32,
        queue_offset: i64,
    ) -> Result<bool, BrokerError> {
        let places = self.places()?;
        let is_place = |place: &&Arc<QueuePlace>| &*place.topic == topic && place.queue_id == queue_id;
        match places.iter().find(is_place) {
            Some(place) => self.cancel_message(place, queue_offset),
            None => Ok(false),
        }
    }

    fn cancel_message(&self, place: &QueuePlace, offset: i64) -> Result<bool, BrokerError> {
        let (min, max) = self.store().bounds(&place.topic, place.queue_id)?;
        if !(min..max).contains(&offset) {
            return Ok(false);
        }
        let now_ms = self.store().clock().now_ms();
        let (cancelled, position) = self.meta().change_progress(&place.progress, |progress, records| {
            let answer = can_cancel(progress, offset, now_ms);
            if matches!(answer, Cancelled::Yes) {
                records.push(ProgressRecord::finished(offset));
            }
            answer
        })?;
        match cancelled {
            Cancelled::Yes => {}
            Cancelled::Over => return Ok(false),
            Cancelled::Leased(until_ms) => {
                let left = until_ms.abs_diff(now_ms).div_ceil(1000);
                let reason = format!(
                    "message {}/{} offset {offset} of {}: a worker has it for up to {left} s; it cannot be \
                     cancelled before it is returned or its lease ends",
                    place.topic,
                    place.queue_id,
                    self.name()
                );
                return Err(StoreError::Refused { reason }.into());
            }
        }
        self.meta().sync(position)?;
        for signal in [&self.space, &self.done] {
            signal.ring();
        }
        Ok(true)
    }
}

fn can_cancel(progress: &Progress, offset: i64, now_ms: i64) -> Cancelled {
    if progress.is_finished(offset) || progress.dead_letters().any(|(dying, _)| dying == offset) {
        return Cancelled::Over;
    }
    match progress.lease(offset) {
        Some(lease) if lease.invisible_until_ms > now_ms => Cancelled::Leased(lease.invisible_until_ms),
        _ => Cancelled::Yes,
    }
}

/// Whether a record has this message id or unique id. A key of another message can have the same text.
fn has_id(record: &StoredRecord, id: &str) -> Result<bool, StoreError> {
    let view = view(record)?;
    Ok(view.unique_key() == Some(id) || view.offset_message_id().eq_ignore_ascii_case(id))
}

fn place_of<'a>(
    places: &'a [Arc<QueuePlace>],
    record: &StoredRecord,
) -> Result<Option<&'a Arc<QueuePlace>>, StoreError> {
    let view = view(record)?;
    Ok(places.iter().find(|place| &*place.topic == view.topic && place.queue_id == view.queue_id))
}
