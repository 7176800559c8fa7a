//! The errors of delivery, as values.
//!
//! Errors of the store are passed through. The other variants are specific to consumers, work queues and
//! transactions. The bindings map each variant to one Python class.

use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_format::RecordView;

/// Decodes the fields of a record that the store returned, and so has decoded before.
pub(crate) fn view(record: &StoredRecord) -> Result<RecordView<'_>, StoreError> {
    record.view().map_err(|error| StoreError::invalid_message(&error))
}

pub(crate) fn invalid(option: &'static str, reason: impl Into<String>) -> StoreError {
    StoreError::InvalidOption { option, reason: reason.into() }
}

/// Reason why a call of a consumer, a work queue or a transaction failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// An error of the store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no message now, or there was none within the timeout.
    #[error("nothing to get from {queue}")]
    Empty {
        /// The work queue.
        queue: String,
    },
    /// There is no free space now, or there was none within the timeout.
    #[error("{queue} holds {maxsize} messages, which is its maxsize")]
    Full {
        /// The work queue.
        queue: String,
        /// Its limit.
        maxsize: u64,
    },
    /// The work queue was shut down, or this handle of it closed.
    #[error("{queue} was shut down")]
    ShutDown {
        /// The work queue.
        queue: String,
    },
    /// The consumer was closed, before the call or during it.
    #[error("the consumer of group {group} is closed")]
    ConsumerClosed {
        /// Its group.
        group: String,
    },
    /// The queue is not assigned, or no longer assigned, to this consumer.
    #[error(
        "queue {topic}/{queue_id} is not assigned to this consumer of group {group}: its assignment says which are"
    )]
    NotAssigned {
        /// The group.
        group: String,
        /// The topic.
        topic: String,
        /// The queue.
        queue_id: i32,
    },
    /// The lease of a message ended and another caller has the message, or the message was returned.
    #[error(
        "message {topic}/{queue_id} offset {queue_offset} is no longer leased to this caller (attempt {attempt}): \
         a longer visibility_timeout, or extend in time, keeps it"
    )]
    LeaseLost {
        /// The topic.
        topic: String,
        /// The queue.
        queue_id: i32,
        /// The message.
        queue_offset: i64,
        /// Number of the delivery that the caller had.
        attempt: u32,
    },
    /// The transaction is decided: it has another outcome, or takes no more messages.
    #[error("transaction {id} was {outcome}; begin another one")]
    TransactionEnded {
        /// The transaction.
        id: String,
        /// How it ended.
        outcome: &'static str,
    },
    /// `task_done` was called more often than messages were taken.
    #[error("task_done() called too many times")]
    NothingToDo,
}
