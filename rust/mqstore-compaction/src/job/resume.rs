//! What a job that was stopped had finished, for the run that goes on with it.
//!
//! Owns `result.json` in the staging folder of a queue:
//!
//! ```text
//! jobs/<id>/local-<n>/log, cq        written and synced first
//!                     result.json    then this: the task, and what came out
//! ```
//!
//! It counts for the same task of the same job: the same generation, the same part of the log, the same options. What it
//! says of the files is checked when they are published, as that of any other worker.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::documents::{QueueTask, TaskResult};
use super::json::{Document, encode};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;

const RESULT_FILE: &str = "result.json";
const LIMIT_BYTES: u64 = 64 << 20;

/// The file: two documents, each as a text.
#[derive(Serialize, Deserialize)]
struct Finished {
    task: String,
    result: String,
}

/// Notes that the task is finished.
pub(crate) fn record_result(
    files: &StoreFiles,
    task: &QueueTask,
    staging: &Path,
    result: &TaskResult,
) -> Result<(), StoreError> {
    let path = staging.join(RESULT_FILE);
    let text = encode("finished queue", &Finished { task: task.to_json()?, result: result.to_json()? })?;
    files
        .vfs
        .write_atomic(&path, &path.with_extension("tmp"), text.as_bytes())
        .at(&path, "noting a finished queue")
}

/// The result of the task, if an earlier run of the job had one; otherwise what that run left of it goes.
pub(crate) fn find_result(
    files: &StoreFiles,
    task: &QueueTask,
    staging: &Path,
) -> Result<Option<TaskResult>, StoreError> {
    let path = staging.join(RESULT_FILE);
    match files.vfs.read_file(&path, LIMIT_BYTES) {
        // One that does not parse was never finished, or is of another version.
        Ok(bytes) => {
            if let Some(result) = known(&bytes, task) {
                return Ok(Some(result));
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(StoreError::io(&path, "reading what was finished", error)),
    }
    match files.vfs.remove_dir_all(staging) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(StoreError::io(staging, "removing an unfinished folder", error))
        }
        _ => Ok(None),
    }
}

fn known(text: &[u8], task: &QueueTask) -> Option<TaskResult> {
    let finished: Finished = serde_json::from_slice(text).ok()?;
    let of = QueueTask::from_json(finished.task).ok()?;
    let result = TaskResult::from_json(finished.result).ok()?;
    // Of a run only its token is new, and the count of records is a guess.
    let same = QueueTask { nonce: task.nonce.clone(), records: task.records, ..of } == *task;
    (same && result.failed.is_none()).then_some(result)
}
