//! Appends new messages of a compaction topic to its compaction files, as a broker does.

pub(crate) mod appender;
pub(crate) mod uncompacted;
