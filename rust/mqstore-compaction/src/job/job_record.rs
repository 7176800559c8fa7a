//! The record of a compaction job, and the names in the job's folder.
//!
//! Owns `record.json`, which makes sure that a job is published only once. It has the state *publishing* and the inode
//! of `tree` before the folders are swapped, and the state *published* after that. If a driver dies between the two,
//! the inode of `compaction` shows which folder is in use. All of this happens under the store's lock.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::documents::CompactionReport;
use crate::json::{Document, malformed};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;

pub(super) const RECORD_FILE: &str = "record.json";
pub(super) const RECORD_STAGING: &str = "record.json.tmp";

/// The next generation of the whole `compaction` folder.
pub(crate) const TREE_DIR: &str = "tree";

/// Maximum bytes of a record, which has one line for each queue.
const RECORD_LIMIT_BYTES: u64 = 256 << 20;

/// The file `record.json`.
#[derive(Debug, Serialize, Deserialize)]
struct JobRecord {
    job_id: String,
    created_ms: i64,
    #[serde(flatten)]
    state: JobState,
}

impl Document for JobRecord {
    const WHAT: &'static str = "job record";
}

/// The state of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub(super) enum JobState {
    /// The folders are about to be swapped, or already are.
    Publishing {
        tree_inode: u64,
        report: CompactionReport,
    },
    Published {
        report: CompactionReport,
    },
    /// Also stands for a state of a later version: such a job is not published.
    #[serde(other)]
    Running,
}

/// Refuses a job id that is not a plain file name.
pub fn check_job_id(id: &str) -> Result<(), StoreError> {
    let plain = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if plain && !id.starts_with('.') && (1..=100).contains(&id.len()) {
        return Ok(());
    }
    Err(StoreError::InvalidOption {
        option: "job_id",
        reason: format!(
            "{id:?} is not 1 to 100 letters, digits, dashes, dots and underscores with no dot at the begin"
        ),
    })
}

/// The folder of a job.
pub(crate) fn job_dir(files: &StoreFiles, id: &str) -> PathBuf {
    files.jobs().join(id)
}

/// The inode of the folder that job `id` is about to publish; `None` if its record has no inode.
pub(crate) fn tree_inode(files: &StoreFiles, id: &str) -> Result<Option<u64>, StoreError> {
    Ok(match read_record(files, id)? {
        Some((JobState::Publishing { tree_inode, .. }, _)) => Some(tree_inode),
        _ => None,
    })
}

/// The inode of `compaction`; `None` if the folder does not exist.
pub(crate) fn compaction_inode(files: &StoreFiles) -> Result<Option<u64>, StoreError> {
    let path = files.compaction_path();
    match files.vfs.stat(&path) {
        Ok(stat) => Ok(Some(stat.inode)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::io(&path, "looking at the compaction folder", error)),
    }
}

pub(super) fn write_record(
    files: &StoreFiles,
    dir: &Path,
    id: &str,
    created_ms: i64,
    state: &JobState,
) -> Result<(), StoreError> {
    let record = JobRecord { job_id: id.to_owned(), created_ms, state: state.clone() }.to_json()?;
    let path = dir.join(RECORD_FILE);
    files
        .vfs
        .write_atomic(&path, &dir.join(RECORD_STAGING), record.as_bytes())
        .at(&path, "writing a job's record")
}

pub(super) fn read_record(files: &StoreFiles, id: &str) -> Result<Option<(JobState, i64)>, StoreError> {
    let path = job_dir(files, id).join(RECORD_FILE);
    let bytes = match files.vfs.read_file(&path, RECORD_LIMIT_BYTES) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StoreError::io(&path, "reading a job's record", error)),
    };
    let record = JobRecord::from_json(bytes)
        .map_err(|error| malformed(JobRecord::WHAT, &format!("{}: {error}", path.display())))?;
    Ok(Some((record.state, record.created_ms)))
}
