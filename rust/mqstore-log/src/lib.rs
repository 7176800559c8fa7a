//! The log of a store: commit log, consume queues, key index and checkpoint, and the steps that join them.
//!
//! `commit_log`, `consume_queue`, `index` and `checkpoint` each own one kind of file and do not know each other.
//! `dispatch` builds queues and index from the log, `flush` syncs all of them in order, and `recovery` makes them agree
//! after a stop.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests put real files, links and pipes next to the log"
    )
)]

pub mod checkpoint;
pub mod commit_log;
pub mod consume_queue;
pub mod dispatch;
pub mod flush;
pub mod index;
pub mod recovery;

#[cfg(test)]
mod tests;
