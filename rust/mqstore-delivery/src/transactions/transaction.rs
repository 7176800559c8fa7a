//! The handle of an open transaction: appends its half messages and decides it.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_base::message::{Appended, NewMessage, UniqueKey};
use mqstore_format::topic::{HALF_TOPIC, OP_TOPIC};
use mqstore_format::{SysFlag, validate_group};
use mqstore_io::sync::Ordering;

use super::TransactionOutcome;
use super::engine::Transactions;
use super::entry::{AppendedContent, HalfMessage, TransactionEntry, TransactionParts};
use super::half_records::{HalfTarget, half_properties};
use crate::error::{BrokerError, invalid};

/// Maximum bytes of a record without body, properties and topic: two addresses, a checksum.
const FIXED_BYTES: u64 = 160;
/// Maximum bytes of an op message for one half message.
const OP_BYTES: u64 = 21;
/// Maximum bytes of an op message that names no half message.
const OP_FIXED_BYTES: u64 = 320;

/// A message to append to a transaction.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewHalfMessage<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The body in its stored form.
    pub body: &'a [u8],
    /// How the body is compressed; the final record has the same form.
    pub sys_flag: SysFlag,
    /// The properties in RocketMQ's text form, including keys and tags; see
    /// [`mqstore_base::message::encode_properties`].
    pub properties: &'a [u8],
    /// The unique key if the caller gives one; then it is in `properties` too.
    pub unique_key: Option<&'a str>,
    /// The queue; `None` selects one by key hash or round robin.
    pub queue_id: Option<i32>,
    /// A number for use by the application.
    pub flag: i32,
    /// Time of its creation, in epoch milliseconds; `None` means now.
    pub born_timestamp_ms: Option<i64>,
}

impl TransactionParts {
    /// Reserves bytes for the final record of a message. Fails if one append could not store all of the commit.
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

/// The handle of a transaction. If it is dropped without a decision, the transaction is pending and its producer
/// group is asked.
pub struct Transaction {
    engine: Transactions,
    entry: Arc<TransactionEntry>,
}

impl Transactions {
    /// Begins a transaction of `group` with a new id. Nothing is written before its first message.
    ///
    /// # Errors
    /// [`StoreError::InvalidOption`] for an invalid group name; [`StoreError::Closed`].
    pub fn begin(&self, group: &str) -> Result<Transaction, BrokerError> {
        validate_group(group).map_err(|error| invalid("group", error.to_string()))?;
        let id = self.inner.store.system_appends().new_unique_key()?;
        let entry = TransactionEntry::new(id.as_str().into(), group.into(), true);
        Ok(Transaction { engine: self.clone(), entry })
    }

    /// Opens a handle on the transaction of `group` with this id, which an earlier process may have begun: one that is
    /// undecided continues. `None` if `has_messages`, but no such transaction is undecided: then it was decided.
    ///
    /// # Errors
    /// Those of [`Self::begin`].
    pub fn resume(
        &self,
        group: &str,
        id: &str,
        has_messages: bool,
    ) -> Result<Option<Transaction>, BrokerError> {
        validate_group(group).map_err(|error| invalid("group", error.to_string()))?;
        let known = self.inner.state.lock().pending.get(id).cloned();
        let entry = match known {
            Some(entry) => {
                entry.lock().open = true;
                entry
            }
            None if has_messages => return Ok(None),
            None => TransactionEntry::new(id.into(), group.into(), true),
        };
        Ok(Some(Transaction { engine: self.clone(), entry }))
    }
}

impl Transaction {
    /// Returns its id, which is also the unique key of its first message unless that has another key.
    pub fn id(&self) -> &str {
        &self.entry.id
    }

    /// Returns its producer group.
    pub fn group(&self) -> &str {
        &self.entry.group
    }

    /// Returns its outcome, once it is decided.
    pub fn outcome(&self) -> Option<TransactionOutcome> {
        self.entry.lock().outcome
    }

    /// Returns its final records and their topics after a commit by this handle, in append order.
    pub fn went(&self) -> Vec<(Arc<str>, Appended)> {
        let parts = self.entry.lock();
        let topic = |number: usize| parts.topics.get(number).map(Arc::clone);
        parts.went.iter().filter_map(|(number, appended)| Some((topic(*number)?, appended.clone()))).collect()
    }

    /// Stores a half message and returns its unique key. The message survives a crash like any append to this store.
    /// Readers of its topic do not see it before the commit.
    ///
    /// # Errors
    /// [`BrokerError::TransactionEnded`]; those of an append; [`StoreError::TooLarge`] if a segment could not hold
    /// everything that the commit stores.
    pub fn append(&self, message: &NewHalfMessage<'_>) -> Result<UniqueKey, BrokerError> {
        let (inner, entry) = (&*self.engine.inner, &*self.entry);
        let mut parts = entry.lock();
        if let Some(outcome) = parts.outcome {
            return Err(entry.ended(outcome));
        }
        if [HALF_TOPIC, OP_TOPIC].contains(&message.topic) {
            let reason = format!("topic {} is reserved for transactions themselves", message.topic);
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
            sys_flag: message.sys_flag,
        };
        let queue_id = inner.store.system_appends().target_queue(&half)?;
        let key = match message.unique_key {
            Some(key) => UniqueKey::Given(key.into()),
            None if parts.halves.is_empty() => UniqueKey::Given((&*entry.id).into()),
            None => UniqueKey::Made(inner.store.system_appends().new_unique_key()?),
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
        let reserved = inner
            .store
            .system_appends()
            .max_together_bytes()
            .and_then(|limit| parts.reserve_space(message, length, limit));
        half.properties = parts.memory.get(properties.clone()).unwrap_or_default();
        let stored = reserved.and_then(|()| inner.store.system_appends().append_first(&half));
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
            sys_flag: message.sys_flag,
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

    /// Makes its messages visible, all in one step. A second commit changes nothing.
    ///
    /// # Errors
    /// [`BrokerError::TransactionEnded`] if it was rolled back. If the append fails, its error is returned and the
    /// transaction is still pending, unless the store was stopped.
    pub fn commit(&self, durable: bool) -> Result<(), BrokerError> {
        let appended = self.engine.decide(&self.entry, TransactionOutcome::Committed, durable)?;
        Ok(self.engine.inner.store.system_appends().replicated(&appended)?)
    }

    /// Hides its messages for ever. A second rollback changes nothing.
    ///
    /// # Errors
    /// The same as for [`Self::commit`].
    pub fn rollback(&self, durable: bool) -> Result<(), BrokerError> {
        self.engine.decide(&self.entry, TransactionOutcome::RolledBack, durable).map(drop)
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
