//! Reads: by queue, by topic, log offset, message id, key and time.
//!
//! Functions that read take a [`view::StoreView`]. It has a log: the engine of a store open for writing (`engine_view`), or
//! the read-only [`reader::Reader`]. For reads of a user it can also have what is before the log ([`older`]). The engine's
//! view also dispatches and keeps the waits for messages (`wait`).

pub(crate) mod cursor;
pub(crate) mod engine_view;
pub(crate) mod floor_watch;
pub(crate) mod group_offsets;
pub(crate) mod levels;
pub(crate) mod lookup;
pub(crate) mod merged;
pub(crate) mod older;
pub(crate) mod pop_checkpoints;
pub(crate) mod query;
pub(crate) mod random_read;
pub(crate) mod reader;
pub(crate) mod scan_request;
pub(crate) mod segment_times;
pub(crate) mod table;
pub(crate) mod tail;
pub(crate) mod units;
pub(crate) mod view;
pub(crate) mod wait;
