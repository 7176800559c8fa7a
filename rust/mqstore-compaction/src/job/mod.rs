//! A compaction job: its plan, the work on each queue, and the publication of the result.
//!
//! `plan` decides, `task` compacts one queue with the digests of its keys, `survivor_writer` writes the survivors, and
//! `publish` swaps the generation. `job_folder` owns the folder of a job and removes what a stop left.

pub(crate) mod control;
pub(crate) mod documents;
pub(crate) mod job_folder;
pub(crate) mod json;
pub(crate) mod key_map;
pub(crate) mod local_job;
pub(crate) mod newest_by_key;
pub(crate) mod options;
pub mod plan;
pub mod publish;
pub(crate) mod resume;
pub(crate) mod survivor_writer;
pub(crate) mod swap;
pub(crate) mod task;
