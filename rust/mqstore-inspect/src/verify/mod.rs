//! Verification: checks every file of a store against the others.
//!
//! It only reads, takes no lock and changes no byte. It works on stores that cannot be opened for writing, and while a
//! writer runs; then it checks up to the dispatched offset. Each finding has a kind, a place, its consequence for
//! readers, and the step of a repair.
//!
//! `checks` calls all checks in order. `parallel_walk` walks the log in pieces, `log_part` is one piece, and `merged`
//! joins the pieces to the report. `merged` and `log_walk` also serve [`crate::distributed`], and `misordered`,
//! `used_offsets` and `config_check` the repair.

pub(crate) mod checks;
mod compacted_queues;
pub(crate) mod config_check;
mod extension;
pub(crate) mod group_offsets;
mod index_keys;
pub(crate) mod index_walk;
pub(crate) mod log_part;
pub(crate) mod log_walk;
pub(crate) mod merged;
pub(crate) mod misordered;
mod op_messages;
mod other_files;
pub(crate) mod parallel_walk;
mod queues;
pub(crate) mod raft;
mod timer_files;
pub(crate) mod used_offsets;

pub(crate) use crate::problem::{Problem, VerifyReport};
pub use checks::verify;
pub(crate) use checks::verify_locked;
