//! The handle of whoever began a transaction: appends its half messages and decides it.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_base::message::{Appended, NewMessage, UniqueKey};
use mqstore_format::topic::{HALF_TOPIC, OP_TOPIC};
use mqstore_format::validate_group;
use mqstore_io::sync::Ordering;

use super::TransactionOutcome;
use super::engine::Transactions;
use super::entry::{AppendedContent, HalfMessage, Parts, TransactionEntry};
use super::half_records::{HalfTarget, half_properties};
use crate::error::{BrokerError, invalid};

/// Bytes of a record that are neither body nor properties nor topic, at most: two addresses, a checksum.
const FIXED_BYTES: u64 = 160;
/// Bytes that an op message needs for one half message, at most.
const OP_BYTES: u64 = 21;
/// Bytes of an op message that names nothing, at most.
const OP_FIXED_BYTES: u64 = 320;

/// A message to append to a transaction.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewHalfMessage<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The body.
    pub body: &'a [u8],
    /// The properties in RocketMQ's text form, keys and tags included; see [`mqstore_base::message::encode_properties`].
    pub properties: &'a [u8],
    /// The unique key when the caller gives one; it is in `properties` then.
    pub unique_key: Option<&'a str>,
    /// The queue; `None` takes one by the key or in turn.
    pub queue_id: Option<i32>,
    /// A number of the application's own.
    pub flag: i32,
    /// When it was made, in epoch milliseconds; `None` is now.
    pub born_timestamp_ms: Option<i64>,
}

impl Parts {
    /// Takes room for a record of a message; an error where a commit could not store all at once.
    fn reserve_space(
        &mut self,
        message: &NewHalfMessage<'_>,
        properties: usize,
        limit: u64,
    ) -> Result<(), StoreError> {
        let record = (message.body.len() + properties + message.topic.len()) as u64 + FIXED_BYTES + OP_BYTES;
        let size = self.bytes.max(OP_FIXED_BYTES) + record;
        if size > limit {
            return Err(StoreError::TooLarge { what: "the transaction", size, limit });
        }
        self.bytes = size;
        Ok(())
    }

    fn remember(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.memory.len();
        self.memory.extend_from_slice(bytes);
        start..self.memory.len()
    }
}

/// A transaction that somebody has open. One that is dropped undecided is pending, and its producer group is asked.
pub struct Transaction {
    engine: Transactions,
    entry: Arc<TransactionEntry>,
}

impl Transactions {
    /// Begins a transaction of `group`; nothing is written before its first message. Its id is new.
    ///
    /// # Errors
    /// [`StoreError::InvalidOption`] for a group that cannot be one; [`StoreError::Closed`].
    pub fn begin(&self, group: &str) -> Result<Transaction, BrokerError> {
        validate_group(group).map_err(|error| invalid("group", error.to_string()))?;
        let id = self.inner.store.new_unique_key()?;
        let entry = TransactionEntry::new(id.as_str().into(), group.into(), true);
        Ok(Transaction { engine: self.clone(), entry })
    }
}

impl Transaction {
    /// Its id, and the unique key of its first message unless that was given another one.
    pub fn id(&self) -> &str {
        &self.entry.id
    }

    /// Its producer group.
    pub fn group(&self) -> &str {
        &self.entry.group
    }

    /// How it ended, if it has.
    pub fn outcome(&self) -> Option<TransactionOutcome> {
        self.entry.lock().outcome
    }

    /// Where its messages went, with their topics, once it was committed here; in the order in which they were appended.
    pub fn went(&self) -> Vec<(Arc<str>, Appended)> {
        let parts = self.entry.lock();
        let topic = |number: usize| parts.topics.get(number).map(Arc::clone);
        parts.went.iter().filter_map(|(number, appended)| Some((topic(*number)?, appended.clone()))).collect()
    }

    /// Stores a half message: it survives the process as an append to this store does, and nobody who reads its topic
    /// sees it before the commit. The answer is its unique key.
    ///
    /// # Errors
    /// [`BrokerError::TransactionEnded`]; those of an append; [`StoreError::TooLarge`] when a segment could not hold all
    /// that the commit stores.
    pub fn append(&self, message: &NewHalfMessage<'_>) -> Result<UniqueKey, BrokerError> {
        let (inner, entry) = (&*self.engine.inner, &*self.entry);
        let mut parts = entry.lock();
        if let Some(outcome) = parts.outcome {
            return Err(entry.ended(outcome));
        }
        if [HALF_TOPIC, OP_TOPIC].contains(&message.topic) {
            let reason = format!("topic {} is kept by transactions themselves", message.topic);
            return Err(StoreError::InvalidMessage { reason }.into());
        }
        let mut half = NewMessage {
            topic: message.topic,
            body: message.body,
            properties: message.properties,
            unique_key: message.unique_key,
            queue_id: message.queue_id,
            flag: message.flag,
            born_timestamp_ms: message.born_timestamp_ms,
            durable: false,
        };
        let queue_id = inner.store.target_queue(&half)?;
        let key = match message.unique_key {
            Some(key) => UniqueKey::Given(key.into()),
            None if parts.halves.is_empty() => UniqueKey::Given((&*entry.id).into()),
            None => UniqueKey::Made(inner.store.new_unique_key()?),
        };
        let meant =
            HalfTarget { topic: message.topic, queue_id, group: &entry.group, transaction: &entry.id };
        let start = parts.memory.len();
        let given = message.unique_key.is_some();
        half_properties(&mut parts.memory, message.properties, key.as_str(), given, &meant);
        let properties = start..parts.memory.len();
        half.topic = HALF_TOPIC;
        half.unique_key = Some(key.as_str());
        half.queue_id = Some(0);
        let (length, before) = (properties.len(), parts.bytes);
        let room =
            inner.store.max_together_bytes().and_then(|limit| parts.reserve_space(message, length, limit));
        half.properties = parts.memory.get(properties.clone()).unwrap_or_default();
        let stored = room.and_then(|()| inner.store.append(&half));
        let appended = match stored {
            Ok(appended) => appended,
            Err(error) => {
                parts.memory.truncate(start);
                parts.bytes = before;
                return Err(error.into());
            }
        };
        inner.half_max.fetch_max(appended.queue_offset.saturating_add(1), Ordering::AcqRel);
        let born_timestamp_ms = message.born_timestamp_ms.unwrap_or(appended.store_timestamp_ms);
        let is_first = parts.halves.is_empty();
        if is_first {
            parts.born_timestamp_ms = born_timestamp_ms;
            parts.stored_timestamp_ms = appended.store_timestamp_ms;
        }
        let body = parts.remember(message.body);
        let content = AppendedContent {
            topic: parts.topic(message.topic),
            queue_id,
            flag: message.flag,
            born_timestamp_ms,
            key: key.clone(),
            properties,
            body,
        };
        let half = HalfMessage {
            offset: appended.queue_offset,
            position: appended.commit_log_offset,
            content: Some(content),
        };
        parts.halves.push(half);
        if is_first {
            inner.state.lock().pending.insert(Arc::clone(&entry.id), Arc::clone(&self.entry));
        }
        Ok(key)
    }

    /// Makes its messages visible, all in one step. To commit again changes nothing.
    ///
    /// # Errors
    /// [`BrokerError::TransactionEnded`] when it was rolled back; those of an append, upon which it is undecided as
    /// before, unless the store was stopped.
    pub fn commit(&self, durable: bool) -> Result<(), BrokerError> {
        self.engine.decide(&self.entry, TransactionOutcome::Committed, durable)
    }

    /// Hides its messages for ever. To roll back again changes nothing.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn rollback(&self, durable: bool) -> Result<(), BrokerError> {
        self.engine.decide(&self.entry, TransactionOutcome::RolledBack, durable)
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        self.engine.give_up(&self.entry);
    }
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").field("id", &self.entry.id).finish_non_exhaustive()
    }
}
