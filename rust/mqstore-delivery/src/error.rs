//! What can go wrong in delivery, as values.
//!
//! What the store says is handed on as it is; the rest is what only a consumer or a work queue can say. The bindings
//! map each variant to one Python class.

use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_format::RecordView;

/// The fields of a record that the store handed out, and so decoded before.
pub(crate) fn view(record: &StoredRecord) -> Result<RecordView<'_>, StoreError> {
    record.view().map_err(|error| StoreError::invalid_message(&error))
}

/// The error for an option with a value that it cannot have.
pub(crate) fn invalid(option: &'static str, reason: impl Into<String>) -> StoreError {
    StoreError::InvalidOption { option, reason: reason.into() }
}

/// Why a call of a consumer or of a work queue did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// The store's answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Nothing to get by now, or not within the time.
    #[error("nothing to get from {queue}")]
    Empty {
        /// The work queue.
        queue: String,
    },
    /// No room by now, or not within the time.
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
    /// The queue is not, or no longer, this consumer's.
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
    /// The lease of a message ended and somebody else has it, or it was given back.
    #[error(
        "message {topic}/{queue_id} offset {queue_offset} is no longer leased to this caller (attempt {attempt}): \
         a longer invisible_duration, or extend in time, keeps it"
    )]
    LeaseLost {
        /// The topic.
        topic: String,
        /// The queue.
        queue_id: i32,
        /// The message.
        queue_offset: i64,
        /// Which delivery the caller had.
        attempt: u32,
    },
    /// The transaction was decided before, the other way or for good.
    #[error("transaction {id} was {outcome}; begin another one")]
    TransactionEnded {
        /// The transaction.
        id: String,
        /// How it ended.
        outcome: &'static str,
    },
    /// `task_done` was called more often than messages were got.
    #[error("task_done() called too many times")]
    NothingToDo,
}
