//! Looking at a store from outside: is everything in it as it should be?
//!
//! Reads only, takes no lock, changes no byte; works on stores that cannot be opened for writing and
//! beside a running writer (then up to what that one has dispatched). Every finding says what it is,
//! where, what it means for somebody who reads messages, and what a repair would do.
//!
//! ```text
//! pieces of the log -> threads -> parts: records, each beside its queue entry
//!                                   | in the order of the log
//!                                   v
//!         damage between parts; entries of a queue counted; keys beside index entries
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | `verify` | all checks, one after the other |
//! | `walk` | pieces of the log, side by side, put together in order |
//! | `log` | what cannot be walked in pieces, and what is no record |
//! | `part` | what some records say, and what the queues answer |
//! | `key_walk` | the entries of the index beside the keys of the log |
//! | `book` | what all parts say together |
//! | `queues` | what is in the queues beside it |
//! | `keys` | what the index answers |
//! | `rest` | checkpoint, compacted queues, configuration |
//! | `spread` | all of it by several processes |
//! | `extension` | what entries lead to in `consumequeue_ext/` |
//! | `positions` | how far consumers and delay levels have come |
//! | `sparse` | the queues of compacted topics |
//! | `timer` | timer wheel and timer log |
//! | `decisions` | what decides transactions |
//! | `problems` | findings as values |

pub(crate) mod checks;
mod compacted_queues;
pub(crate) mod group_offsets;
mod index_keys;
pub(crate) mod index_walk;
pub(crate) mod log_part;
pub(crate) mod log_walk;
pub(crate) mod merged;
mod op_messages;
mod other_files;
pub(crate) mod parallel_walk;
mod queue_extension;
mod queues;
mod timer_files;

pub(crate) use crate::problem::{Problem, VerifyReport};
pub use checks::verify;
pub(crate) use checks::verify_locked;
