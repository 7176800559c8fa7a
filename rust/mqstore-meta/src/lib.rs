//! The metadata log: topics, consumer groups, consumer offsets, and what groups know of the queues that they consume
//! message by message.
//!
//! Owns `mqstore/meta/<generation, 20 digits>.log`, of which the newest counts, and the content of RocketMQ's JSON files
//! of the same things. The state is in memory; each change of it is a record, and the records are what is on the disk:
//!
//! ```text
//! head (48) | snapshot: frame frame ... | tail: frame frame frame frame ... | room, zeros
//!                                       │                     │         └ appended: survives the process
//!                                       └ synced before the   └ synced: survives the loss of power
//!                                         file got its name
//! ```
//!
//! Across a crash: a change that an append returned for survives the death of the process, and the loss of power once
//! [`MetaLog::sync`] returned for its [`Place`], or with the next tick. The records of one call are one frame, and after
//! a crash they are there together or not at all. The first frame that does not decode ends the log; below what is known
//! to be synced it is damage, and the store says so instead of going on without what it had.
//!
//! Across threads: every call may be made from any thread. Changes of one queue's progress are made one after the
//! other, and so are those of offsets, and those of topics and groups; a frame is appended under one lock, which is
//! the last that a thread takes. Who waits for a sync shares it with all others who do.
//!
//! The bytes: `frame` has the head and the frames, `record` the records. No class of RocketMQ has this format.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests put real files next to the store, and wait for real threads"
    )
)]

mod frame;
mod generation;
mod group_position;
mod json_files;
mod load;
mod log;
mod maintenance;
mod progress;
mod record;
mod state;
mod tail;

#[cfg(test)]
mod tests;

pub use group_position::Standing;
pub use load::{copy_log, find_damage, newest_file};
pub use log::MetaLog;
pub use log::{FoundLog, read_log, read_state, read_state_strictly};
pub use maintenance::SYNC_INTERVAL_MS;
pub use progress::{Lease, Progress, ProgressRecord, Refused, Waiting};
pub use record::{NameId, OffsetChange, Place, QueueKey};
pub use state::{Listed, State};
pub use state::{ProgressView, QueueProgress};
