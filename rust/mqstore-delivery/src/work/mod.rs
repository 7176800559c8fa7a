//! Work queues: messages that are finished one by one.
//!
//! A work queue is a topic as seen by one group whose workers lease messages. Only one worker has a leased message,
//! until it acknowledges the message, returns it or its lease ends. The metadata log ([`mqstore_meta::Progress`])
//! stores these states. Once a call returned, they survive a kill; a power loss may undo changes since the last
//! maintenance step. A message is delivered at least once, and never again once its `ack` is durable.
//!
//! All handles of one queue in a process share a `WorkQueueInner`. Its lock orders the leases; an `ack` takes only
//! the lock of its queue's progress. A waiting call needs no extra thread: it sleeps on the queue's signals until a
//! message is due.

mod ack;
mod browse;
mod cancel;
mod dead_letters;
mod get;
mod inner;
mod jobs;
mod leased_message;
mod nonblocking;
mod options;
mod put;
mod queue;
mod queue_leases;
mod redrive;
mod source;

pub use browse::{DelayInfo, LeaseInfo};
pub use inner::WorkQueueCounts;
pub(crate) use inner::WorkQueueInner;
pub use jobs::{Job, JobRequest, JobState, OffsetRanges, WorkQueueJobs, dead_letters, jobs};
pub use leased_message::{Lease, LeasedMessage};
pub use nonblocking::TryPut;
pub use options::{Backoff, WorkQueueOptions};
pub use put::{NewWork, PutReservation};
pub use queue::WorkQueue;

#[cfg(test)]
mod tests;
