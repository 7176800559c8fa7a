//! The life and death of files: which segments of the log go, when, and what goes with them.
//!
//! ```text
//! every 10 s, or at once while there is more to do
//!   look at the disks      -> refuse appends, or take them again; new segments go to disks with room
//!   the oldest segment     -> due? by age, size or disk; not the last one; below what is durable
//!   compaction topics      -> a segment with keyed messages that no compaction took up stays
//!   ask the hook           -> keep, later, or go on; a segment that readers hold waits for its time
//!   minimum of all queues  -> moved in memory, so that no read starts below
//!   the segment's name     -> removed, folder synced; then the next one, after a pause
//!   queue and index files  -> those wholly below the log's minimum, oldest first
//! ```
//!
//! **Across a crash** at any of these points the row of segments has no hole: the oldest goes first
//! and each removal is durable before the next. Queues and index are cut to the log by recovery, so
//! that a stop between a segment and its derived files costs nothing; both slots of the durable mark
//! and the checkpoint speak of records behind whatever was deleted ([`Cleaner`] syncs them before).
//!
//! **Across threads** one deletion at a time; readers that are on their way keep the bytes of what they
//! hold, as long as they hold it.
//!
//! A segment's age is that of its last record. RocketMQ takes the file's modification time, which a
//! copy or a restore changes; that is used here only where no record can be read.
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

pub use cleaner::{Cleaner, ExpiryCounters, preview_of};
pub use disk_space::{DiskSpace, used_percent};
pub use plan::{DeleteReason, ExpiryTrigger, PlanInput, Planned, RetentionPolicy, plan};
pub use report::ExpireReport;
pub use segment_times::{Times, times_of};
