//! Batch queues: for topics whose records may hold many messages, one unit of 46 bytes for each record.
//!
//! This folder owns `batchconsumequeue/`; [`BatchQueue`] shows its files. They can be derived from the log, so you may
//! delete them. After a crash, units after the last synced position are truncated and written again.
//!
//! Only the dispatcher writes. Readers see the units up to the end that it has published.
//!
//! Source: `BatchConsumeQueue`, `MappedFileQueue`.

mod bounds;
mod queue;
#[cfg(test)]
mod tests;

pub use queue::{BatchAppendOutcome, BatchQueue};
