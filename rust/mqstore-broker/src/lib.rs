//! Delivery that remembers: consumer groups and work queues over a store.
//!
//! Floor 4. A [`Broker`] is made once for a store that is open for writing and hands out [`Consumer`]s (log words: poll,
//! commit, seek) and [`WorkQueue`]s (queue words: put, get, ack). What groups have come to is kept by the store's
//! metadata log (`mqstore_core::meta`); here is who gets what and when.
//!
//! It starts no thread. Whoever waits does so in its own call, woken by the append that brings a message
//! (`Store::wait_with`) or by the time at which something is due. An event loop looks without waiting and is called
//! ([`AtOnce`]).
#![forbid(unsafe_code)]

mod at_once;
mod broker;
pub mod error;
pub mod groups;
mod signal;
pub mod work;

pub use at_once::AtOnce;
pub use broker::Broker;
pub use error::BrokerError;
pub use groups::{
    Consumer, ConsumerOptions, Filter, HISTORY_TOPIC, OffsetCommit, OffsetHistory, OnLost, Queue, Start,
};
pub use signal::{Call, Listening};
pub use work::{
    Backoff, Lease, LeasedMessage, NewWork, Put, Reservation, WorkQueue, WorkQueueCounts, WorkQueueOptions,
};

#[cfg(test)]
mod testing;
