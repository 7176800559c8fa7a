//! Consume queues: for each topic and queue, where in the log its messages lie.
//!
//! Owns `consumequeue/`: files of one length, no header, one unit of 20 bytes for each queue offset.
//! They are a function of the log and may be thrown away. Files are sparse, written by position and
//! never through a map, and appear under their name with their first unit inside:
//!
//! ```text
//! consumequeue/<topic>/<queue id>/00000000000006000000
//!   byte 0: unit 300,000 | unit 300,001 | ...            | record 8 | size 4 | tags code 8 |
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | `set` | the table of queues |
//! | `batch` | queues of topics whose records hold many messages |
//! | `queue` | one queue, and reading it |
//! | `write` | units to their slots in any order, then publishing in log order |
//! | `bounds` | recovery: minimum, maximum, truncation |
//! | `arrivals` | who waits for a message of one queue |
//! | `expire` | removal of files that the log's minimum has passed |
//! | `discover` | what lies in the folder, judged by name, kind and length |
//! | `home`, `layout`, `slots`, `covered` | descriptors, arithmetic, decoding, bookkeeping |
//!
//! Across threads: any number of readers and writers; per queue one writer at a time. Across a crash:
//! see `write` and `bounds`.
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
pub use waiters::{Call, QueueWaiters, WaitTicket};
pub use write::{CommitOutcome, WriteOutcome};
