//! A compaction job: its plan, the work on each queue, and the publication of the result.
//!
//! ```text
//! plan      driver, store locked      selects queues, and the generation of the files to start from
//! task      workers, no lock          writes the new generation of one queue, in the folder of the attempt
//! publish   driver, store locked      checks all results, then swaps folders once for all queues
//! ```
//!
//! `survivor_rule` selects the survivors, and `survivor_writer` writes them. `job_folder` owns the folder of a job and
//! removes leftovers of a stopped one.

pub(crate) mod control;
pub(crate) mod documents;
pub(crate) mod job_folder;
pub(crate) mod job_record;
pub(crate) mod key_map;
pub(crate) mod newest_by_key;
pub(crate) mod options;
pub(crate) mod plan;
pub(crate) mod publish;
pub(crate) mod resume;
pub(crate) mod source;
pub(crate) mod store_lock;
pub(crate) mod survivor_rule;
pub(crate) mod survivor_writer;
pub(crate) mod swap;
pub(crate) mod task;
