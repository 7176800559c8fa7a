//! Appends new messages of a compaction topic to its compaction files, as a broker does.

pub(crate) mod appender;
mod file_pair;
pub(crate) mod uncompacted;
