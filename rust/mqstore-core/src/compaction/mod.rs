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

mod checksums;
mod control;
mod cursor;
mod digests;
mod exchange;
mod feed;
mod fetch;
mod folder;
mod geometry;
mod job;
mod json;
mod key_map;
mod local;
mod manifest;
mod model;
mod options;
mod plan;
mod positions;
mod publish;
mod ranges;
mod reader;
mod restore;
mod resume;
mod source;
mod state;
mod task;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod topics;
mod tree;
mod untaken;
mod writer;

pub(crate) use checksums::changed_files;
pub use control::Control;
pub(crate) use exchange::finish as finish_exchange;
pub(crate) use feed::{Feed, FeedInput};
pub(crate) use folder::{DataFile, FilePair, QueueFolder, open_listed};
pub use geometry::{CompactionGeometry, DEFAULT_LOG_FILE_BYTES, DEFAULT_QUEUE_FILE_BYTES};
pub(crate) use job::Unswept;
pub(crate) use job::check_job_id;
pub use job::{Job, published_report};
pub(crate) use json::{VERSION, malformed, parse};
pub use local::compact;
pub(crate) use local::run_all;
pub(crate) use manifest::ManifestCache;
pub use model::{
    CompactionPlan, CompactionReport, Counts, LogPart, LogTail, OutputFile, OutputPair, QueueTask,
    TaskResult, Worker,
};
pub use options::{CompactionOptions, Keyless};
pub(crate) use plan::{OpenStore, plan_open};
pub use plan::{Planned, plan, plan_locked, preview};
pub(crate) use publish::publish_unswept;
pub use publish::{publish, publish_locked, rehearse};
pub use ranges::{Next, Step, Strategy, expected_bytes, next, run_step, split};
pub use reader::{CompactedQueue, CompactedRecords};
pub use restore::{RestoreReport, RestoredQueue};
pub(crate) use restore::{RestoreSource, Run, restore, restore_open};
pub use task::run_task;
pub(crate) use untaken::{Lost, Untaken, UntakenSearch, beyond_the_log, dirty_topics, taken_up};
pub(crate) use writer::SparseTags;
