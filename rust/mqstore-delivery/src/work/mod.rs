//! Work queues: messages that are finished one by one.
//!
//! A work queue is a topic as one group sees it whose consumers lease messages: whoever got one has it alone until it is
//! finished (`ack`), given back (`nack`), or its time is over. What is known of each message is kept by the metadata log
//! ([`mqstore_meta::Progress`]): a lease survives the death of the process once `get` returned, and so does what
//! was finished; after a loss of power what the last tick synced is there. A message is delivered at least once, and
//! not again once its `ack` is on the disk.
//!
//! All handles of one queue in a process share a `core::Core`. Its lock orders what is taken out; to finish a message
//! takes the lock of its queue's progress alone. Waiting costs no thread: a call that waits sleeps on the queue's
//! signals, which the append rings, until something is due.

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

pub(crate) use inner::Core;
pub use leased_message::{Lease, LeasedMessage};
pub use nonblocking::{Put, Reservation};
pub use options::{Backoff, WorkQueueOptions};
pub use put::NewWork;
pub use queue::{WorkQueue, WorkQueueCounts};

#[cfg(test)]
mod tests;
