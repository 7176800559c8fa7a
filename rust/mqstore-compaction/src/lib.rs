//! Compaction: keeps the newest record of every key, in RocketMQ's own compaction folders.
//!
//! Owns `compaction/` (RocketMQ's files of compaction topics), `mqstore/jobs/` and `mqstore/restore/`. The three steps
//! of a job are functions on plain values: they can run in one process, in several threads or on several machines (see
//! `job`).
//!
//! After a crash each queue has its old or its new generation of log and queue files; see `job::publish`. A job has one
//! driver, which holds the job's lock, and any number of workers and readers. The store's lock orders publications.
//!
//! Source: `CompactionStore`, `CompactionLog`, `SparseConsumeQueue`; each module explains where it differs, and why.
#![forbid(unsafe_code)]

pub(crate) mod append;
mod compaction_key;
mod deleted_topics;
mod distributed;
pub(crate) mod files;
pub(crate) mod job;
mod json;
mod local_job;
mod ranges;
pub(crate) mod read;
pub(crate) mod restore;
#[cfg(any(test, feature = "testing"))]
#[cfg_attr(not(test), allow(dead_code, reason = "the tests of other crates use a part of it"))]
#[allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    reason = "a failed test is the point of test code"
)]
pub mod testing;
#[cfg(test)]
mod tests;

pub use append::appender::{AppenderInput, CompactionAppender};
pub use append::uncompacted::{
    QueueAheadOfLog, UncompactedMessage, UncompactedSearch, compacted_end, dirty_topics, queues_ahead_of_log,
};
pub use deleted_topics::{remove_deleted, remove_topic};
pub use distributed::{DistributedJob, EncodedStep, WeightedStep};
pub use files::checksums::{ChangedFile, CompactionLosses, changed_files, compaction_losses};
pub use files::file_sizes::{CompactionGeometry, DEFAULT_LOG_FILE_BYTES, DEFAULT_QUEUE_FILE_BYTES};
pub use files::folder::{DataFile, FilePair, QueueFolder, WITHOUT_LOG, open_listed};
pub use files::manifest::ManifestCache;
pub use files::positions::repair_positions;
pub use files::staged::{OutputFile, OutputPair};
pub use files::unfinished_tail::cut_unfinished_tails;
pub use job::control::{JobControl, TaskMeter};
pub use job::documents::{
    CompactionPlan, CompactionReport, LogPart, LogTail, QueueTask, TaskCounts, TaskResult, WorkerInfo,
};
pub use job::job_folder::{Job, ReplacedFiles, published_report};
pub use job::job_record::check_job_id;
pub use job::options::{CompactionOptions, Keyless};
pub use job::plan::{PlannedJob, plan};
pub use job::publish::{Publication, publish, rehearse};
pub use job::store_lock::{OpenStore, StoreLockHeld};
pub use job::survivor_writer::SparseTags;
pub use job::swap::finish_swap;
pub use job::task::run_task;
pub use json::Document;
pub use local_job::{compact, run_all};
pub use ranges::Strategy;
pub use read::reader::{CompactedQueue, CompactedRecords};
pub use restore::{RestoreReport, RestoreRun, RestoreSource, RestoredQueue, restore};
