//! The folder of one attempt of a step, and its file.

use std::path::{Path, PathBuf};

use super::documents::{JobSettings, StepAnswer};
use super::findings::{FindingsWriter, file_in};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;
use mqstore_compaction::check_job_id;

/// Creates the folder of an attempt and its file.
pub(super) fn begin(
    files: &StoreFiles,
    settled: &JobSettings,
    attempt: &Path,
) -> Result<FindingsWriter, StoreError> {
    let name = attempt.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    check_job_id(name)?;
    if attempt.parent() != Some(settled.job.as_path()) {
        return Err(StoreError::InvalidOption {
            option: "attempt",
            reason: format!("{} is not in the job's folder {}", attempt.display(), settled.job.display()),
        });
    }
    match files.vfs.create_dir(attempt).at(attempt, "creating a folder for findings") {
        Err(error) if error.is_gone() => Err(StoreError::NotAStore {
            path: settled.root.clone(),
            reason: format!(
                "the job's folder {} does not exist on {}: every worker must see it under the same path, and the job \
                 must still be running",
                settled.job.display(),
                files.vfs.environment().hostname
            ),
        }),
        made => made.and_then(|()| FindingsWriter::create(files, attempt, name)),
    }
}

/// Returns the path of the file that an answer names.
pub(super) fn file_of(settled: &JobSettings, answer: &StepAnswer) -> Result<PathBuf, StoreError> {
    check_job_id(&answer.folder)?;
    Ok(file_in(&settled.job.join(&answer.folder)))
}
