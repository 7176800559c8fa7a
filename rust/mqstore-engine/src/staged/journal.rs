//! The journal of a step, and the note that a step was done.
//!
//! ```text
//! journal.json       {"job", "name", "batch", "record", "log", "files": [{"file", "rows", "bytes"}, ...]}
//! done/<name>.json   {"batch", "rows", "job"}
//! ```
//!
//! `log` is the end of the log when the step began; the log was durable up to there before the journal was written.
//! Both files are replaced in one durable step. A damaged one is an error, because it says that a step began.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;
use mqstore_io::switch;
use mqstore_io::vfs::parent_dir;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Maximum bytes of a journal: about a million files.
const MOST_BYTES: u64 = 256 << 20;

const JOURNAL_IS_LOST: &str = "an append of staged rows began, and its last rows may be missing in the store; find out \
                               which rows the store has, move the file away, and append the others";

const NOTE_IS_LOST: &str = "it is unknown whether the last step under this name was appended; find out which rows the \
                            store has, and move the file away to append the next step";

/// A file that a task has staged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagedFile {
    /// Path relative to the folder of the job.
    pub file: String,
    /// Number of messages.
    pub rows: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// A step: the staged files of one job, or of one batch of a streaming query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagedStep {
    /// The folder with the files.
    pub job: String,
    /// Name under which the step is done once: that of a streaming query or of a job.
    pub name: String,
    /// Number of the batch of a streaming query.
    pub batch: Option<i64>,
    /// Whether the step is noted under its name. Without it, a repeated job appends its rows again.
    pub record: bool,
    /// The files, in the order of their messages.
    pub files: Vec<StagedFile>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Journal {
    #[serde(flatten)]
    pub(super) step: StagedStep,
    pub(super) log: u64,
}

#[derive(Serialize, Deserialize)]
struct DoneNote {
    // Null, but never missing.
    #[serde(deserialize_with = "Option::deserialize")]
    batch: Option<i64>,
    #[serde(default)]
    rows: u64,
    #[serde(default)]
    job: String,
}

impl Journal {
    pub(super) fn load(files: &StoreFiles) -> Result<Option<Self>, StoreError> {
        load(files, &journal_path(files), JOURNAL_IS_LOST)
    }

    pub(super) fn save(&self, files: &StoreFiles) -> Result<(), StoreError> {
        save(files, &journal_path(files), self)
    }

    /// Notes that the step is done, if it has a name to note.
    pub(super) fn note_done(&self, files: &StoreFiles) -> Result<(), StoreError> {
        let StagedStep { job, name, batch, record, files: staged } = &self.step;
        if !record {
            return Ok(());
        }
        let rows = staged.iter().map(|one| one.rows).sum();
        save(files, &note_path(files, name), &DoneNote { batch: *batch, rows, job: job.clone() })
    }

    /// The error for a step whose messages were in a part of the log that is gone.
    pub(super) fn unknown(&self, files: &StoreFiles) -> StoreError {
        let gone = format!(
            "retention has deleted the log after offset {}, where rows of this step can be",
            self.log
        );
        StoreError::Corrupt {
            path: journal_path(files),
            offset: 0,
            reason: format!("{gone}; {JOURNAL_IS_LOST}"),
        }
    }

    /// Removes the journal, durably.
    pub(super) fn remove(files: &StoreFiles) -> Result<(), StoreError> {
        const ACTION: &str = "removing the journal of a step";
        let path = journal_path(files);
        files.vfs.remove_file(&path).at(&path, ACTION)?;
        switch::step("staged.sync_journal_removal", || files.vfs.sync_dir(&home(files))).at(&path, ACTION)
    }
}

/// `mqstore/spark/`.
pub(super) fn home(files: &StoreFiles) -> PathBuf {
    files.side().join("spark")
}

fn journal_path(files: &StoreFiles) -> PathBuf {
    home(files).join("journal.json")
}

fn note_path(files: &StoreFiles, name: &str) -> PathBuf {
    home(files).join("done").join(format!("{name}.json"))
}

/// Returns the job of the step in progress.
///
/// # Errors
/// [`StoreError::Corrupt`] for a damaged journal; errors of the system.
pub fn job_in_progress(files: &StoreFiles) -> Result<Option<String>, StoreError> {
    Ok(Journal::load(files)?.map(|journal| journal.step.job))
}

/// Whether a step was done: the last one under `name`, or for a streaming query the last batch or one before it.
///
/// # Errors
/// [`StoreError::Corrupt`] for a damaged note; errors of the system.
pub fn was_done(files: &StoreFiles, name: &str, batch: Option<i64>) -> Result<bool, StoreError> {
    let note: Option<DoneNote> = load(files, &note_path(files, name), NOTE_IS_LOST)?;
    Ok(note.is_some_and(|note| batch.is_none_or(|batch| note.batch.is_some_and(|last| batch <= last))))
}

fn load<T: DeserializeOwned>(files: &StoreFiles, path: &Path, lost: &str) -> Result<Option<T>, StoreError> {
    let bytes = match files.vfs.read_file(path, MOST_BYTES) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        bytes => bytes.at(path, "reading the state of a step")?,
    };
    serde_json::from_slice(&bytes).map(Some).map_err(|error| StoreError::Corrupt {
        path: path.to_path_buf(),
        offset: 0,
        reason: format!("the file is damaged ({error}); {lost}"),
    })
}

fn save(files: &StoreFiles, path: &Path, value: &impl Serialize) -> Result<(), StoreError> {
    const ACTION: &str = "writing the state of a step";
    let bytes = serde_json::to_vec(value).map_err(std::io::Error::from).at(path, ACTION)?;
    files.ensure_folder(parent_dir(path))?;
    files.vfs.write_atomic(path, &path.with_extension("json.new"), &bytes).at(path, ACTION)
}
