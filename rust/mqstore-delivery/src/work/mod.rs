//! Work queues: messages that are finished one by one.
//!
//! A work queue is a topic as seen by one group whose consumers lease messages. One consumer alone has a leased message,
//! until it is finished (`ack`), given back (`nack`) or its lease expires. The metadata log ([`mqstore_meta::Progress`])
//! keeps these states: once a call returned, they survive a kill; after a power loss the state of the last tick is
//! there. A message is delivered at least once, and never again once its `ack` is on the disk.
//!
//! All handles of one queue in a process share a `WorkQueueInner`. Its lock orders the leases; finishing a message takes
//! only the lock of its queue's progress. A waiting call costs no thread: it sleeps on the queue's signals until one is
//! due.

mod ack;
mod dead_letters;
mod get;
mod inner;
mod leased_message;
mod nonblocking;
mod options;
mod put;
mod queue;
mod queue_leases;
mod redrive;
mod source;

pub use inner::WorkQueueCounts;
pub(crate) use inner::WorkQueueInner;
pub use leased_message::{Lease, LeasedMessage};
pub use nonblocking::TryPut;
pub use options::{Backoff, WorkQueueOptions};
pub use put::{NewWork, PutReservation};
pub use queue::WorkQueue;

#[cfg(test)]
mod tests;
