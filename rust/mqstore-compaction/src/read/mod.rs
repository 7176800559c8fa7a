//! Reads of compacted queues and of records of the log.

pub(crate) mod fetch;
pub(crate) mod reader;
