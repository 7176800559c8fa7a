//! Putting messages into a work queue.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mqstore_base::error::StoreError;
use mqstore_base::message::{Appended, NewMessage};
use mqstore_format::SysFlag;
use mqstore_format::properties::{TIMER_DELIVER_MS, push_property};
use mqstore_io::sync::Ordering;

use super::get::millis;
use super::inner::{WorkQueueInner, WorkQueueState};
use super::options::LONGEST;
use crate::error::{BrokerError, invalid};
use crate::nonblocking::{Look, lock};
use crate::unique_id::appended_with_key;

/// A message to put.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewWork<'a> {
    /// The body in its stored form.
    pub body: &'a [u8],
    /// How the body is compressed.
    pub sys_flag: SysFlag,
    /// The properties in RocketMQ's text form, including keys and tags; see
    /// [`mqstore_base::message::encode_properties`].
    pub properties: &'a [u8],
    /// The unique key if the caller gives one; then it is in `properties` too.
    pub unique_key: Option<&'a str>,
    /// A number for use by the application.
    pub flag: i32,
    /// Time of its creation, in epoch milliseconds; `None` means now.
    pub born_timestamp_ms: Option<i64>,
    /// How long it is held back. It keeps its position in the log, and every group holds it back.
    pub delay: Option<Duration>,
    /// The time until which it is held back instead, in epoch milliseconds.
    pub deliver_at_ms: Option<i64>,
    /// Whether to wait until it is durable.
    pub durable: bool,
}

/// For each message that is held back, its properties with the delivery time.
pub(super) type DelayedProperties = Vec<Option<Vec<u8>>>;

/// Reserved space for messages that are being appended. Dropping it releases the space.
pub struct PutReservation {
    core: Arc<WorkQueueInner>,
    count: u64,
}

impl Drop for PutReservation {
    fn drop(&mut self) {
        self.core.give_back(self.count);
    }
}

impl fmt::Debug for PutReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PutReservation").field("count", &self.count).finish_non_exhaustive()
    }
}

impl WorkQueueInner {
    /// Polls once for space for `messages`. If there is space, it is reserved until the reservation is dropped. Also
    /// returns the properties with the delivery time of each message that is held back.
    ///
    /// A delay is stored as the delivery time, in RocketMQ's property for it. A reader that meets the message earlier
    /// lets it wait at its offset.
    pub(super) fn reserve(
        self: &Arc<Self>,
        messages: &[NewWork<'_>],
        generation: u64,
        patience: bool,
    ) -> Result<Look<(PutReservation, DelayedProperties)>, BrokerError> {
        let seen = self.space.ring_count();
        if self.is_shut_down(generation) {
            return Err(self.shut_down_error());
        }
        let delayed = self.delayed_properties_of_all(messages)?;
        let count = messages.len() as u64;
        if self.options.maxsize > 0 {
            if !patience && !self.store().nonblocking().is_caught_up() {
                return Ok(Look::NotAtHand);
            }
            let Some(state) = lock(&self.state, patience) else { return Ok(Look::NotAtHand) };
            if !self.reserve_capacity(&state, count)? {
                return Ok(Look::Wait { seen, longest: None });
            }
        }
        Ok(Look::Found((PutReservation { core: Arc::clone(self), count }, delayed)))
    }

    pub(super) fn append(
        &self,
        messages: &[NewWork<'_>],
        delayed: &[Option<Vec<u8>>],
    ) -> Result<Vec<Appended>, StoreError> {
        let new =
            |(message, delayed): (&NewWork<'_>, &Option<Vec<u8>>)| -> Result<Vec<Appended>, StoreError> {
                let message = self.new_message(message, delayed.as_deref());
                self.store().append(&message).map(|appended| vec![appended])
            };
        if let ([message], [delayed]) = (messages, delayed) {
            return new((message, delayed));
        }
        let all: Vec<_> = messages
            .iter()
            .zip(delayed)
            .map(|(message, delayed)| self.new_message(message, delayed.as_deref()))
            .collect();
        self.store().append_many(&all)
    }

    pub(super) fn new_message<'a>(
        &'a self,
        message: &NewWork<'a>,
        delayed: Option<&'a [u8]>,
    ) -> NewMessage<'a> {
        NewMessage {
            topic: self.topic(),
            body: message.body,
            properties: delayed.unwrap_or(message.properties),
            unique_key: message.unique_key,
            queue_id: None,
            flag: message.flag,
            born_timestamp_ms: message.born_timestamp_ms,
            durable: message.durable,
            sys_flag: message.sys_flag,
        }
    }

    fn delayed_properties_of_all(&self, messages: &[NewWork<'_>]) -> Result<DelayedProperties, BrokerError> {
        messages.iter().map(|message| self.delayed(message)).collect()
    }

    /// Returns the properties with the delivery time, if the message is held back.
    fn delayed(&self, message: &NewWork<'_>) -> Result<Option<Vec<u8>>, BrokerError> {
        let now_ms = self.store().clock().now_ms();
        let (option, visible_ms) = match (message.delay, message.deliver_at_ms) {
            (None, None) => return Ok(None),
            (Some(delay), None) => ("delay", now_ms.saturating_add(millis(delay))),
            (None, Some(deliver_at_ms)) => ("deliver_at", deliver_at_ms),
            (Some(_), Some(_)) => {
                return Err(invalid("deliver_at", "give only one of delay and deliver_at").into());
            }
        };
        if visible_ms <= now_ms {
            return Ok(None);
        }
        if visible_ms.saturating_sub(now_ms) > millis(LONGEST) {
            return Err(invalid(option, format!("the maximum is {} s from now", LONGEST.as_secs())).into());
        }
        let mut properties = message.properties.to_vec();
        push_property(&mut properties, TIMER_DELIVER_MS, visible_ms.to_string());
        Ok(Some(properties))
    }

    /// Returns the position of the message in the topic that has this unique key, if there is one: the last put with
    /// the same key, or its redriven copy.
    pub(super) fn same_put(&self, unique_key: &str) -> Result<Option<Appended>, BrokerError> {
        Ok(appended_with_key(self.store(), self.topic(), unique_key)?)
    }

    fn reserve_capacity(&self, state: &WorkQueueState, count: u64) -> Result<bool, BrokerError> {
        let maxsize = self.options.maxsize;
        // More messages than `maxsize` are accepted in one call if the queue is empty.
        let taken = self.taken(state)?;
        let fits = taken + count <= maxsize || (taken == 0 && count > maxsize);
        if fits {
            self.reserved.fetch_add(count, Ordering::AcqRel);
        }
        Ok(fits)
    }

    /// Returns the used space: messages in the queue and reserved ones. It reads the reserved ones first, so that a
    /// put that ends meanwhile counts twice rather than not at all.
    pub(super) fn taken(&self, state: &WorkQueueState) -> Result<u64, StoreError> {
        let reserved = self.reserved.load(Ordering::Acquire);
        Ok(reserved + self.size(state)?)
    }

    /// Releases reserved space and wakes waiting puts. Even if the messages were appended, they may already be taken
    /// again, and a put that polled meanwhile saw no space.
    fn give_back(&self, count: u64) {
        if self.options.maxsize > 0 {
            // Without the lock: the drop must not wait for a poll that reads from a disk.
            self.reserved.fetch_sub(count, Ordering::AcqRel);
            self.space.ring();
        }
    }
}
