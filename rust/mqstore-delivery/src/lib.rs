//! Delivery that remembers: consumer groups, work queues, delayed messages and transactions over a store.
//!
//! Floor 4. A [`Broker`] is made once for a store that is open for writing and hands out [`Consumer`]s (log words: poll,
//! commit, seek), [`WorkQueue`]s (queue words: put, get, ack) and [`Transactions`]. What groups have come to is kept by
//! the store's metadata log (`mqstore_meta`); here is who gets what and when.
//!
//! It starts no thread; delayed messages are a task of the store's background ([`delay`]). Whoever waits does so in its
//! own call, woken by the append that brings a message (`Store::wait_with`) or by the time at which something is due. An
//! event loop looks without waiting and is called ([`TryResult`]).
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests put real files next to the store, and wait for real threads"
    )
)]

mod broker;
mod broker_state;
pub mod delay;
pub mod error;
pub mod groups;
mod nonblocking;
mod pending;
mod pop_takeover;
mod queue_failures;
pub mod transactions;
pub mod work;

pub use broker::Broker;
pub use delay::{Accepted, DelayCounts, DelayOptions, Due, DueCounts, PendingDelays};
pub use error::BrokerError;
pub use groups::{
    Consumer, ConsumerOptions, Filter, HISTORY_TOPIC, LostMessagePolicy, OffsetCommit, OffsetHistory, Queue,
    StartOffset,
};
pub use mqstore_base::wake_signal::{Waker, WakerRegistration};
pub use nonblocking::TryResult;
pub use pending::Waiting;
pub use transactions::{
    CheckAnswer, CheckOptions, DEFAULT_PRODUCER_GROUP, NewHalfMessage, PendingGroup, PendingTransaction,
    Transaction, TransactionOutcome, Transactions,
};
pub use work::{
    Backoff, Lease, LeasedMessage, NewWork, PutReservation, TryPut, WorkQueue, WorkQueueCounts,
    WorkQueueOptions,
};

#[cfg(test)]
mod testing;
