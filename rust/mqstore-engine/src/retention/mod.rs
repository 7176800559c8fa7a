//! Retention: the rules for the removal of log segments, and of the derived files that belong to them.
//!
//! [`Cleaner`] removes the oldest segment first; `plan` has a drawing of the steps. After a crash the log has no gap.
//! Recovery truncates queues and index to the log, so a stop between a segment and its derived files loses nothing.
//!
//! A segment is as old as its last record, not as its file, whose time a copy changes. It is due by age only when its
//! messages are finished; a layer above names those that delays and transactions need ([`SegmentHolder`]).
//!
//! Source: `DefaultMessageStore.CleanCommitLogService`, `CleanConsumeQueueService`,
//! `MappedFileQueue#deleteExpiredFileByTime`, `ReferenceResource#shutdown`.

mod cleaner;
mod holders;
mod plan;
mod preview;
mod report;
mod stalled_groups;
#[cfg(test)]
mod tests;
pub(crate) mod unarchived;
mod uncompacted;
pub(crate) mod unfinished;
mod wipe;

pub(crate) use cleaner::Cleaner;
pub use holders::{HolderKind, SegmentHolder};
pub(crate) use preview::preview_of;
pub(crate) use report::hidden;
pub use report::{ExpireReport, ExpiredTopic};
