//! Reads of compacted queues, and of the input of a compaction.

pub(crate) mod cursor;
pub(crate) mod fetch;
pub(crate) mod reader;
pub(crate) mod source;
