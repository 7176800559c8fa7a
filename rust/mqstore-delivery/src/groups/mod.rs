//! Consumer groups: several consumers that share the queues of topics, and where each queue goes on.

pub mod assignment;
mod commit;
mod consumer;
mod coordinator;
mod history;
mod nonblocking;
mod options;
mod seek;
mod slot;

pub use assignment::Queue;
pub use consumer::Consumer;
pub(crate) use coordinator::Coordinator;
pub use history::{HISTORY_TOPIC, OffsetCommit, OffsetHistory};
pub use options::{ConsumerOptions, Filter, OnLost, Start};

#[cfg(test)]
mod tests;
