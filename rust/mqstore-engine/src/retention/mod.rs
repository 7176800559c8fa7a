//! Retention: the rules for the removal of log segments, and of the derived files that belong to them.
//!
//! [`Cleaner`] removes the oldest segment first; `plan` has a drawing of the steps. After a crash the log has no gap.
//! Recovery truncates queues and index to the log, so a stop between a segment and its derived files loses nothing.
//!
//! A segment is as old as its last record. RocketMQ uses the modification time of the file, which a copy or a restore
//! changes; here that time counts only if no record can be read.
//!
//! Source: `DefaultMessageStore.CleanCommitLogService`, `CleanConsumeQueueService`,
//! `MappedFileQueue#deleteExpiredFileByTime`, `ReferenceResource#shutdown`.

mod cleaner;
mod disk_space;
mod plan;
mod report;
mod segment_times;
#[cfg(test)]
mod tests;
mod uncompacted;
mod wipe;

pub(crate) use cleaner::{Cleaner, preview_of};
pub use report::ExpireReport;
