//! Reads: by queue, by topic, log offset, message id, key and time.
//!
//! `view::View` has the operations that reads need; the writer and the read-only `reader::Reader` implement it.

pub(crate) mod cursor;
pub(crate) mod floor_watch;
pub(crate) mod follower;
pub(crate) mod live_reader;
pub(crate) mod merged;
pub(crate) mod pop_checkpoints;
pub(crate) mod query;
pub(crate) mod random_read;
pub(crate) mod reader;
pub(crate) mod table;
pub(crate) mod tail;
pub(crate) mod text_map;
pub(crate) mod view;
