//! The metadata log: topics, consumer groups, consumer offsets, and each group's state of single messages.
//!
//! Owns `mqstore/meta/<generation, 20 digits>.log`, of which the newest counts, and the content of RocketMQ's JSON
//! files of the same things. The state is in memory; every change is a record on the disk. [`MetaLog`] draws the file;
//! `frame` has its bytes and `record` those of records. No class of RocketMQ has this format.
//!
//! A returned append survives a kill. It survives a power loss once [`MetaLog::sync`] returned for its [`Place`], or
//! after the next tick. The records of one call are one frame: after a crash all of them are there, or none.
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

pub use group_position::GroupPosition;
pub use load::{copy_log, find_damage, newest_file};
pub use log::MetaLog;
pub use log::{FoundLog, read_log, read_state, read_state_strictly};
pub use maintenance::SYNC_INTERVAL_MS;
pub use progress::{Lease, Progress, ProgressConflict, ProgressRecord, Waiting};
pub use record::{NameId, OffsetChange, Place, QueueKey};
pub use state::{ListedTables, State};
pub use state::{ProgressView, QueueProgress};
