//! Reads all files of an archive, and encodes all their records again.

use mqstore_base::error::StoreError;
use mqstore_base::progress::{Progress, ProgressWatcher};

use crate::file::FileError;
use crate::manifest::{ArchivedFile, Manifest};
use crate::place::Place;
use crate::records::ArchiveFile;

/// What a check of an archive has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Number of files.
    pub files: u64,
    /// Number of records.
    pub records: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// Damaged files.
    pub problems: Vec<String>,
}

/// Checks all files of a manifest. `tell` gets the bytes of the files.
///
/// # Errors
/// A request failed; the error of `tell`. Damage is in the report.
pub fn verify(
    place: &Place,
    manifest: &Manifest,
    tell: ProgressWatcher<'_>,
) -> Result<VerifyReport, StoreError> {
    let bytes = manifest.files.iter().map(|file| file.bytes).sum();
    let mut report = VerifyReport { files: manifest.files.len() as u64, bytes, ..VerifyReport::default() };
    let mut done_bytes = 0;
    for file in &manifest.files {
        match check(place, file) {
            Ok(records) => report.records += records,
            Err(error @ StoreError::Corrupt { .. }) => report.problems.push(error.to_string()),
            Err(error) => return Err(error),
        }
        done_bytes += file.bytes;
        tell(Progress { done_bytes, total_bytes: bytes })?;
    }
    Ok(report)
}

/// Checks a file. Returns the number of its records.
fn check(place: &Place, file: &ArchivedFile) -> Result<u64, StoreError> {
    let content = place.checked_content(file)?;
    let found = ArchiveFile::open(Box::new(content), Some(file.record_bytes)).and_then(|file| file.summary());
    let found = in_file(place, &file.path, found)?;
    if (found.rows, found.record_bytes, found.crc_sum) != (file.rows, file.record_bytes, file.crc_sum) {
        return Err(StoreError::corrupt(&place.full_path(&file.path), 0, WRONG_RECORDS));
    }
    Ok(if file.topic.is_some() { file.rows } else { 0 })
}

pub(crate) const WRONG_RECORDS: &str = "its records are not those of the log: restore the file from a copy";

/// Names the file in an error.
pub(crate) fn in_file<T>(place: &Place, path: &str, found: Result<T, FileError>) -> Result<T, StoreError> {
    found.map_err(|error| match error {
        FileError::Store(error) => error,
        FileError::Damaged(reason) => StoreError::corrupt(&place.full_path(path), 0, reason),
    })
}
