//! Reading compacted queues, and the records that a compaction reads.

pub(crate) mod cursor;
pub(crate) mod fetch;
pub(crate) mod reader;
pub(crate) mod source;
