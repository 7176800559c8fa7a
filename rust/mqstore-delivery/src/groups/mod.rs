//! Consumer groups: several consumers that share the queues of topics, and the offset at which each queue continues.

mod assigned_queue;
mod assignment;
mod commit;
mod consumer;
mod coordinator;
mod nonblocking;
mod offset_history;
mod options;
mod seek;

pub use assignment::Queue;
pub use consumer::Consumer;
pub(crate) use coordinator::Coordinator;
pub use offset_history::{OffsetCommit, OffsetHistory};
pub use options::{ConsumerOptions, LostMessagePolicy, StartOffset};

#[cfg(test)]
mod tests;
