//! The metadata log: topics, consumer groups, consumer offsets, and what groups know of the queues that they consume
//! message by message.
//!
//! The state is in memory; each change of it is a record, and the records are what is on the disk. A change that an
//! append returned for survives the death of the process, and the loss of power once [`MetaLog::sync`] returned for
//! its [`Place`]. The records of one call are one frame: after a crash they are there together or not at all.
//!
//! Across threads: every call may be made from any thread. Changes of one queue's progress are made one after the
//! other, and so are those of offsets, and those of topics and groups.

mod log;
mod progress;
mod record;
mod state;

pub use log::MetaLog;
pub use progress::{Lease, Progress, ProgressRecord, Refused, Waiting};
pub use record::{NameId, OffsetChange, Place, QueueKey};
pub use state::{ProgressView, QueueProgress};
