//! Writes of many processes as one step: tasks stage messages in files, and the process with the store's lock appends
//! them, each once.
//!
//! Owns the folder `mqstore/spark/` of a store:
//!
//! ```text
//! stage/token                         proves to tasks that they see the folder of the driver
//! stage/<job>/<batch>/<attempt>.run   blocks of messages, drawn in `write/staged_batch.rs`
//! journal.json                        the step in progress
//! done/<name>.json                    the last step under a name: a streaming query, or a named job
//! ```
//!
//! `files` writes and reads what tasks stage, `journal` the two small files, `step` appends. Each file is whole after a
//! crash or missing. RocketMQ has no such folder.

mod files;
mod journal;
mod step;

pub use files::{StagedFileWriter, prepare_stage};
pub use journal::{StagedFile, StagedStep, job_in_progress, was_done};
pub use step::StagedWrite;
