//! Appends of messages that are also in light queues: one record, with a unit in its own queue and in each light queue.
//!
//! ```text
//! properties  INNER_MULTI_DISPATCH = %LMQ%a,%LMQ%b   INNER_MULTI_QUEUE_OFFSET = 7,0
//! ```
//!
//! A light queue has one queue with id 0 and no configuration. The record contains its offsets in the light queues as
//! text, so no other append to a light queue may come between the read of the next offsets and this append.
//!
//! Source: `MultiDispatch#wrapMultiDispatch`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mqstore_format::properties::{INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET, push_property};
use mqstore_format::topic::{LIGHT_QUEUE_PREFIX, RETRY_TOPIC_PREFIX, SYSTEM_TOPIC_PREFIX};
use mqstore_format::{SCHEDULE_TOPIC, SysFlag, validate_topic, without_property};

use super::append::{ReturnPoint, appended};
use super::encode::{EncodeBuffers, route};
use crate::engine::Engine;
use crate::engine::topics::TopicState;
use mqstore_base::error::StoreError;
use mqstore_base::message::{Appended, NewMessage};

impl Engine {
    /// See [`crate::Store::append_to_light_queues`].
    pub(crate) fn append_to_light_queues(
        &self,
        message: &NewMessage<'_>,
        light_queues: &[&str],
    ) -> Result<Appended, StoreError> {
        let names = names(message.topic, light_queues)?;
        if names.is_empty() {
            return self.append(message);
        }
        self.before_append()?;
        let now_ms = self.files.clock.now_ms();
        self.make_missing(message.topic)?;
        let Some(topic) = self.topics.get(message.topic) else {
            return Err(StoreError::TopicNotFound { topic: message.topic.to_owned(), queue_id: None });
        };
        if topic.batch {
            return refuse(format!("topic {} has batch queues, which have no light queues", message.topic));
        }
        let queue_id = route(&topic, message, false)?;
        let light = names.iter().map(|name| self.light_queue(name)).collect::<Result<Vec<_>, _>>()?;
        let turn = self.topics.light_turn();
        let offsets: Vec<i64> =
            light.iter().map(|state| state.next_offset(0).load(Ordering::Acquire)).collect();
        let properties = properties_of(message.properties, &names, &offsets);
        let message = NewMessage { properties: &properties, ..*message };
        let mut buffers = EncodeBuffers::default();
        let encoded = self.encode(&message, queue_id, SysFlag(0), now_ms, None, &mut buffers)?;
        let mut pending = [self.pending(&message, &topic, queue_id, &mut buffers)];
        self.append_pending(&mut pending, now_ms, message.durable, ReturnPoint::Placed, None)?;
        for (state, offset) in light.iter().zip(&offsets) {
            // Not a store: the light queue continues at a larger offset if it was deleted meanwhile.
            state.next_offset(0).fetch_max(offset.saturating_add(1), Ordering::AcqRel);
        }
        drop(turn);
        let [pending] = &pending;
        let end = pending.placed.commit_log_offset + pending.parts.len() as u64;
        if self.needs_sync(message.durable) {
            self.synced(end)?;
        }
        let durable = self.log.durable() >= end;
        let one = appended(queue_id, encoded.unique_id, pending, durable);
        self.notify_waiters(message.topic, &topic, queue_id, one.queue_offset);
        for ((name, state), offset) in names.iter().zip(&light).zip(&offsets) {
            self.notify_waiters(name, state, 0, *offset);
        }
        Ok(one)
    }

    /// Returns the state of a light queue. One that was deleted gets a configuration: its units alone do not show that
    /// it exists again.
    fn light_queue(&self, name: &str) -> Result<Arc<TopicState>, StoreError> {
        if let Some(state) = self.topics.light_queue(name) {
            return Ok(state);
        }
        let state = self.topics.create(name, 1, &[])?;
        self.topics.store()?;
        self.live.note_topic_change();
        Ok(state)
    }
}

fn refuse<T>(reason: String) -> Result<T, StoreError> {
    Err(StoreError::InvalidMessage { reason })
}

/// Returns the names of the light queues with their prefix, each once.
fn names(topic: &str, light_queues: &[&str]) -> Result<Vec<String>, StoreError> {
    let is_system = topic.starts_with(RETRY_TOPIC_PREFIX)
        || topic.starts_with(SYSTEM_TOPIC_PREFIX)
        || topic == SCHEDULE_TOPIC;
    if is_system && !light_queues.is_empty() {
        return refuse(format!("topic {topic} cannot have light queues: retry and system topics have none"));
    }
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    for name in light_queues {
        let bare = name.strip_prefix(LIGHT_QUEUE_PREFIX).unwrap_or(name);
        let full = format!("{LIGHT_QUEUE_PREFIX}{bare}");
        if bare.is_empty() {
            return refuse(format!("light queue {name:?}: the name is empty"));
        }
        validate_topic(&full).map_err(|error| StoreError::invalid_message(&error))?;
        if seen.insert(full.clone()) {
            found.push(full);
        }
    }
    Ok(found)
}

/// Returns the properties with the light queues and the offsets in them.
fn properties_of(properties: &[u8], names: &[String], offsets: &[i64]) -> Vec<u8> {
    let without = without_property(properties, INNER_MULTI_DISPATCH);
    let mut found = without_property(&without, INNER_MULTI_QUEUE_OFFSET).into_owned();
    let offsets: Vec<String> = offsets.iter().map(i64::to_string).collect();
    push_property(&mut found, INNER_MULTI_DISPATCH, names.join(",").as_bytes());
    push_property(&mut found, INNER_MULTI_QUEUE_OFFSET, offsets.join(",").as_bytes());
    found
}
