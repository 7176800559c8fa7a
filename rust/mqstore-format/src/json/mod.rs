//! The JSON side files: topics, consumer groups, consumer, delay and compaction offsets; and the bodies of the records
//! in which a broker remembers what it popped.
//!
//! RocketMQ writes them with a library whose dialect is not JSON: maps with integer keys have them without
//! quotes. It also reads more than it writes. So [`parse`] accepts the dialect with everything that
//! RocketMQ accepts in such files (either kind of quotes, names without quotes, trailing commas, comments,
//! number suffixes, a byte-order mark), with bounded depth; the tables keep the members they do not know;
//! and [`Dialect`] writes the text to the byte as RocketMQ 5.3 or 5.5 lays it out.
//!
//! ```text
//! RocketMQ 5.3                      RocketMQ 5.5
//! "offsetTable":{                   "offsetTable":{
//! TAB "t1@g1":{0:12,1:2             TAB "t1@g1":{
//! TAB }                             TAB TAB 0:12,
//!                                   TAB TAB 1:2
//!                                   TAB }
//! ```
//!
//! Both versions read both layouts, and plain JSON. Members of an object stand in alphabetical order, keys
//! of a table in ours too (RocketMQ's order is that of its hash maps). UTF-8, tabs, no final line break.
//! Source: `ConfigManager`, `RemotingSerializable`, and the class each table names.

mod members;
mod offsets;
mod parse;
mod pop;
mod topic_tables;
mod write;

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
