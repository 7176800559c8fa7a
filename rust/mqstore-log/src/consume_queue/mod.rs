//! Consume queues: for each topic and queue, the log offsets of its messages.
//!
//! This folder owns `consumequeue/`; [`ConsumeQueue`] shows its files. They can be derived from the log, so you may
//! delete them. A [`Queue`] has one kind of unit: `batch` has the rules of those for records that hold many messages.
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
mod read;
mod set;
mod table;
#[cfg(test)]
mod tests;
mod uncommitted;
mod units;
mod waiters;
mod write;

pub use batch::{BatchAppendOutcome, BatchQueue};
pub use queue::{ConsumeQueue, Queue};
pub use read::MappedUnit;
pub use set::QueueSet;
pub use waiters::{QueueWaiters, WaitTicket};
pub use write::{CommitOutcome, WriteOutcome};
