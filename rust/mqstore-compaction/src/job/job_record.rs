//! The record of a compaction job, and the names in the job's folder.
//!
//! Owns `record.json`, which makes a job happen once. It says *publishing*, with the inode of `tree`, before
//! the folders are exchanged, and *published* after; a driver that died between the two is found out
//! by asking which inode `compaction` has. All of this happens under the store's lock.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::documents::CompactionReport;
use super::json::{Document, malformed};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;

pub(super) const RECORD_FILE: &str = "record.json";
pub(super) const RECORD_STAGING: &str = "record.json.tmp";

/// The next generation of the whole `compaction` folder.
pub(crate) const TREE_DIR: &str = "tree";

/// A record holds one line a queue.
const RECORD_LIMIT_BYTES: u64 = 256 << 20;

/// The file `record.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    job_id: String,
    created_ms: i64,
    #[serde(flatten)]
    state: JobState,
}

impl Document for Record {
    const WHAT: &'static str = "job record";
}

/// Where a job stands.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub(super) enum JobState {
    /// The folders are about to be exchanged; or they are.
    Publishing {
        tree_inode: u64,
        report: CompactionReport,
    },
    Published {
        report: CompactionReport,
    },
    /// Also a state of a later version: such a job is not published.
    #[serde(other)]
    Running,
}

/// Refuses a job id that is no plain file name.
pub fn check_job_id(id: &str) -> Result<(), StoreError> {
    let plain = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if plain && !id.starts_with('.') && (1..=100).contains(&id.len()) {
        return Ok(());
    }
    Err(StoreError::InvalidOption {
        option: "job_id",
        reason: format!(
            "{id:?} is not 1 to 100 letters, digits, dashes, dots and underscores, the first one no dot"
        ),
    })
}

/// The folder of a job.
pub(crate) fn job_dir(files: &StoreFiles, id: &str) -> PathBuf {
    files.jobs().join(id)
}

/// The inode of the folder that job `id` is about to publish; `None` when its record says nothing of it.
pub(crate) fn tree_inode(files: &StoreFiles, id: &str) -> Result<Option<u64>, StoreError> {
    Ok(match read_record(files, id)? {
        Some((JobState::Publishing { tree_inode, .. }, _)) => Some(tree_inode),
        _ => None,
    })
}

/// The inode of `compaction`; `None` when there is no such folder.
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
    let record = Record { job_id: id.to_owned(), created_ms, state: state.clone() }.to_json()?;
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
    let record = Record::from_json(bytes)
        .map_err(|error| malformed(Record::WHAT, &format!("{}: {error}", path.display())))?;
    Ok(Some((record.state, record.created_ms)))
}
