//! Consume queues: for each topic and queue, the log offsets of its messages.
//!
//! This folder owns `consumequeue/`; [`ConsumeQueue`] shows its files. They can be derived from the log, so you may
//! delete them. `batch` has the queues of topics whose records hold many messages.
//!
//! Any number of threads may read and write; each queue has one writer at a time. `write` and `bounds` define the state
//! after a crash: units go to their slots in any order and are published in log order, and recovery truncates the rest.
//!
//! Source: `ConsumeQueue`, `ConsumeQueueStore`, `MappedFileQueue`.

mod batch;
mod bounds;
mod context;
mod discover;
mod expire;
mod layout;
mod queue;
mod set;
#[cfg(test)]
mod tests;
mod uncommitted;
mod units;
mod waiters;
mod write;

pub use batch::{BatchAppendOutcome, BatchQueue};
pub use queue::{ConsumeQueue, MappedUnit};
pub use set::QueueSet;
pub use waiters::{QueueWaiters, WaitTicket};
pub use write::{CommitOutcome, WriteOutcome};
