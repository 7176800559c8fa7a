//! The JSON side files: topics, consumer groups, and consumer, delay and compaction offsets.
//!
//! The module also decodes the records in which a broker stores its pop state.
//!
//! RocketMQ writes these files with a library whose dialect is not JSON, and reads more than it writes. [`parse`]
//! accepts the same texts as RocketMQ. The tables keep unknown members. [`Dialect`] writes the layout of RocketMQ 5.3
//! or 5.5 byte for byte. Both versions read both layouts, and plain JSON.
//!
//! Source: `ConfigManager`, `RemotingSerializable`, and the class that each table names.

mod losses;
mod members;
mod offsets;
mod parse;
mod pop;
mod topic_tables;
mod write;

pub use losses::{ConfigTable, PartialTable};
pub use offsets::{CompactionPositions, ConsumerOffsets, DelayOffsets, QueueOffsets};
pub use parse::{MAX_JSON_DEPTH, parse};
pub use pop::{
    ACK_TAG, BATCH_ACK_TAG, CHECKPOINT_TAG, PopAck, PopCheckpoint, PopHandle, PopRecord, REVIVE_GROUP,
    REVIVE_TOPIC_PREFIX,
};
pub use serde_json::{Map, Value};
pub use topic_tables::{DataVersion, SubscriptionGroup, SubscriptionGroups, TopicConfig, TopicTable};
pub use write::Dialect;

#[cfg(test)]
mod tests;
