//! The crate on which every other crate of the store depends.
//!
//! Errors, options, paths, messages, events and notes, and two small files: the live page (published positions, for
//! readers in other processes) and the durable mark (synced position, for recovery). Group commit is here because the
//! commit log and the metadata log both wait for syncs.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests put real files next to the store, and wait for real threads"
    )
)]

pub mod append_request;
pub mod body_compression;
pub mod durable_mark;
pub mod error;
pub mod events;
pub mod group_commit;
pub mod live_page;
pub mod message;
pub mod notes;
pub mod options;
pub mod progress;
pub mod replica_acks;
pub mod retry;
pub mod store_files;
pub mod strays;
pub mod text_map;
pub mod topic_floors;
pub mod wake_signal;
