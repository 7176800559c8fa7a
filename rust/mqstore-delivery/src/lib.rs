//! Stateful delivery: consumer groups, work queues, delayed messages and transactions of one store.
//!
//! Floor 4. A [`Broker`] is created once for a store that is open for writing. It returns [`Consumer`]s (log words:
//! poll, commit, seek), [`WorkQueue`]s (queue words: put, get, ack) and [`Transactions`]. The metadata log of the
//! store (`mqstore_meta`) keeps the state of groups. This crate decides which caller gets which message, and when.
//!
//! It starts no thread. Delayed messages are a background task of the store (`delay`). A caller waits in its own
//! call. The append of a message (`Store::wait_with`) or a due time wakes it. An event loop polls without waiting and
//! registers a waker ([`TryResult`]).
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests put real files next to the store, and wait for real threads"
    )
)]

mod append_queue;
mod broker;
mod broker_state;
mod delay;
mod error;
mod export_rules;
mod groups;
mod nonblocking;
mod pending;
mod pop_takeover;
mod queue_failures;
mod queue_wait;
mod transactions;
mod unfinished;
mod unique_id;
mod work;

pub use append_queue::AppendQueue;
pub use broker::Broker;
pub use delay::{Accepted, DelayCounts, DelayOptions, Due, DueCounts, LATEST_DUE_MS, PendingDelays};
pub use error::BrokerError;
pub use export_rules::{
    ExportDecision, ExportRules, ExportSelection, Omission, OmissionCounts, WaitingMessage,
};
pub use groups::{
    Consumer, ConsumerOptions, LostMessagePolicy, OffsetCommit, OffsetHistory, Queue, StartOffset,
};
pub use mqstore_base::wake_signal::{Waker, WakerRegistration};
pub use nonblocking::TryResult;
pub use pending::PendingDeliveries;
pub use transactions::{
    CheckAnswer, CheckOptions, NewHalfMessage, PendingGroup, PendingTransaction, Transaction,
    TransactionOutcome, Transactions,
};
pub use unfinished::first_unfinished;
pub use unique_id::{appended_with_key, message_of_id};
pub use work::{
    Backoff, DelayInfo, Job, JobRequest, JobState, Lease, LeaseInfo, LeasedMessage, NewWork, OffsetRanges,
    PutReservation, TryPut, WorkQueue, WorkQueueCounts, WorkQueueJobs, WorkQueueOptions, dead_letters, jobs,
};

#[cfg(test)]
mod testing;
