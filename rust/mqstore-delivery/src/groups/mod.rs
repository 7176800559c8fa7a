//! Consumer groups: several consumers that share the queues of topics, and the offset at which each queue continues.

mod assigned_queue;
pub mod assignment;
mod commit;
mod consumer;
mod coordinator;
mod nonblocking;
mod offset_history;
mod older;
mod options;
mod seek;

pub use assignment::Queue;
pub use consumer::Consumer;
pub(crate) use coordinator::Coordinator;
pub use offset_history::{HISTORY_TOPIC, OffsetCommit, OffsetHistory};
pub use older::OlderMessages;
pub use options::{ConsumerOptions, Filter, LostMessagePolicy, StartOffset};

#[cfg(test)]
mod tests;
