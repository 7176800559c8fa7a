//! The metadata log: topics, consumer groups, consumer offsets, and each group's state of single messages.
//!
//! Owns `mqstore/meta/<generation, 20 digits>.log`, where the newest generation counts, and the content of RocketMQ's
//! JSON files with the same data. The state is in memory; every change is a record on disk. [`MetaLog`] draws the
//! file, `frame` defines its bytes, `record` the bytes of records. No class of RocketMQ has this format.
//!
//! An append that returned survives a kill. It survives a power loss after [`MetaLog::sync`] returned for its
//! [`MetaPosition`], or after the next maintenance step. The records of one call are one frame: after a crash all of
//! them exist, or none.
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
mod json_export;
mod json_files;
mod load;
mod log;
mod maintenance;
mod maintenance_timer;
mod progress;
mod record;
mod state;
mod tail;

#[cfg(test)]
mod tests;

pub use group_position::{GroupPosition, GroupQueue};
pub use load::{copy_log, find_damage, is_lost, newest_file};
pub use log::MetaLog;
pub use log::{FoundLog, read_log, read_state, read_state_strictly};
pub use maintenance::SYNC_INTERVAL_MS;
pub use progress::{Lease, Progress, ProgressConflict, ProgressCounts, ProgressRecord, ReturnedMessage};
pub use record::{MetaPosition, NameId, OffsetChange, QueueKey};
pub use state::{ListedTables, MetaState};
pub use state::{ProgressView, QueueProgress};
