//! The retention of single topics in the log that all topics share.
//!
//! Each topic can have limits of age, bytes and messages. They raise the floor of the topic: its older messages are in
//! no answer, and whole queue files before the floor are removed, never the last one. The records stay in the log until
//! their segments go. RocketMQ has no such rule for local stores.
//!
//! Limits count the messages before the log too, if the store has an archive. Across threads, one pass runs at a time.
//!
//! Across a crash: the log is synced up to the floor, then the floor is synced in the metadata log, then it counts in
//! memory, and only then files go. A file that a stop left goes at the next pass.

mod limits;
mod raise;
mod settings;
mod state;
#[cfg(test)]
mod tests;
mod usage;

pub(crate) use settings::due_messages;
pub(crate) use state::TopicRetentions;
pub use usage::TopicUsage;
pub(crate) use usage::usage;
