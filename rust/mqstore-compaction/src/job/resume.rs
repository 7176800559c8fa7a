//! Finished tasks of a stopped job, for the run that resumes it.
//!
//! Owns `result.json` in the staging folder of a queue:
//!
//! ```text
//! jobs/<id>/local-<n>/log, cq        written and synced first
//!                     result.json    then this: the task and its result
//! ```
//!
//! It is used only for the same task of the same job: the same generation, part of the log, and options. Publication
//! checks the files against it, as for any other worker.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::documents::{QueueTask, TaskResult};
use crate::json::{Document, encode};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;

const RESULT_FILE: &str = "result.json";
const LIMIT_BYTES: u64 = 64 << 20;

/// The content of the file: two documents, each as text.
#[derive(Serialize, Deserialize)]
struct Finished {
    task: String,
    result: String,
}

/// Records that the task is finished.
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

/// Returns the task's result from an earlier run of the job, if there is one; otherwise removes the files of that run.
pub(crate) fn find_result(
    files: &StoreFiles,
    task: &QueueTask,
    staging: &Path,
) -> Result<Option<TaskResult>, StoreError> {
    let path = staging.join(RESULT_FILE);
    match files.vfs.read_file(&path, LIMIT_BYTES) {
        // A file that does not parse is incomplete or has another version.
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
    // Values may expire between the runs; the next compaction drops those.
    let expired_to_ms = if of.expired_to_ms.is_some() && of.expired_to_ms <= task.expired_to_ms {
        task.expired_to_ms
    } else {
        of.expired_to_ms
    };
    // Another run has another token, and the number of records is an estimate.
    let same = QueueTask { nonce: task.nonce.clone(), records: task.records, expired_to_ms, ..of } == *task;
    (same && result.failed.is_none()).then_some(result)
}
