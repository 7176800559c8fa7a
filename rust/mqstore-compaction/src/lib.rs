//! Compaction: of every key the newest record, in RocketMQ's own compaction folders.
//!
//! Owns `compaction/` (what RocketMQ keeps of compaction topics), `mqstore/jobs/` and `mqstore/restore/`. A job has three
//! steps, plain functions on plain values, so that they can run in one process, in many threads, or on
//! as many machines as see the directory:
//!
//! ```text
//! plan      driver, store locked      what to compact, from which generation of the files
//! run_task  workers, no lock          one queue's new generation, in a folder of the attempt
//! publish   driver, store locked      checks, then one exchange of folders for all queues
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | `plan`, `task`, `publish` | the three steps; `local` runs them in this process |
//! | `model`, `options`, `json` | what they hand to each other |
//! | `job`, `tree`, `state`, `manifest` | a job's folder and record, the next folder, "has it moved?", what is known |
//! | `source`, `fetch`, `digests`, `key_map`, `writer`, `control` | a task's input, its memory, its output, its reins |
//! | `ranges` | the compaction of one huge queue by several workers |
//! | `distributed` | a job whose steps run in other processes: its driver, and the bytes that pass between them |
//! | `folder`, `cursor`, `reader`, `positions`, `geometry` | RocketMQ's files |
//! | `restore` | lost files made anew from another store |
//! | `checksums` | files against what is known of them, for `verify` |
//! | `topics`, `untaken` | which topics there are; what of the log no compaction has taken up |
//!
//! Across a crash: each queue is wholly in its old or wholly in its new generation, log and queue
//! together; see `publish`. Across threads and processes: one driver a job (the job's lock), one
//! publication at a time (the store's lock), any number of workers and readers.
//!
//! Source: `CompactionStore`, `CompactionLog`, `SparseConsumeQueue`; what is done better, and why, is
//! in each module's text.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests put real files next to the store, and wait for real threads"
    )
)]

pub(crate) mod append;
mod distributed;
pub(crate) mod files;
pub mod job;
mod ranges;
pub(crate) mod read;
pub mod restore;
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
    Lost, UncompactedMessage, UncompactedSearch, beyond_the_log, dirty_topics, taken_up,
};
pub use distributed::{DistributedJob, EncodedStep, WeightedStep};
pub use files::checksums::changed_files;
pub use files::file_sizes::{CompactionGeometry, DEFAULT_LOG_FILE_BYTES, DEFAULT_QUEUE_FILE_BYTES};
pub use files::folder::{DataFile, FilePair, QueueFolder, open_listed};
pub use files::manifest::ManifestCache;
pub use job::control::JobControl;
pub use job::documents::{
    CompactionPlan, CompactionReport, Counts, LogPart, LogTail, OutputFile, OutputPair, QueueTask,
    TaskResult, Worker,
};
pub use job::job_folder::ReplacedFiles;
pub use job::job_folder::check_job_id;
pub use job::job_folder::{Job, published_report};
pub use job::json::Document;
pub use job::local_job::compact;
pub use job::local_job::run_all;
pub use job::options::{CompactionOptions, Keyless};
pub use job::plan::{OpenStore, plan_open};
pub use job::plan::{Planned, plan, plan_locked, preview};
pub use job::publish::publish_unswept;
pub use job::publish::{publish, publish_locked, rehearse};
pub use job::survivor_writer::SparseTags;
pub use job::swap::finish as finish_exchange;
pub use job::task::run_task;
pub use ranges::Strategy;
pub use read::reader::{CompactedQueue, CompactedRecords};
pub use restore::{RestoreReport, RestoredQueue};
pub use restore::{RestoreSource, Run, restore, restore_open};
