//! Appends of many messages: the queue of appends that do not wait, steps of staged messages, and copies.

pub use mqstore_base::append_request::{AppendRequest, OwnedMessage};
pub use mqstore_delivery::AppendQueue;
pub use mqstore_engine::{
    MessageOrigin, RefusedMessage, StagedBlock, StagedFile, StagedFileWriter, StagedStep, StagedWrite,
    check_copy, check_target, job_in_progress, prepare_stage, was_done,
};
