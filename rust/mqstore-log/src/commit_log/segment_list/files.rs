//! Questions about the files of a log that need no list of them.

use std::path::PathBuf;

use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;
use mqstore_format::BLANK_HEADER_BYTES;
use mqstore_io::MappedFile;

/// Whether nothing was written to `segment`.
///
/// # Errors
/// I/O errors.
pub(crate) fn is_unwritten(segment: &MappedFile) -> Result<bool, StoreError> {
    let mut head = [0; BLANK_HEADER_BYTES];
    let file = segment.file().at_file(|| segment.path(), "opening a log segment")?;
    file.read_exact_at(&mut head, 0).at_file(|| segment.path(), "reading the start of a segment")?;
    Ok(head == [0; BLANK_HEADER_BYTES])
}

pub(super) fn is_without_folders(files: &StoreFiles) -> Result<bool, StoreError> {
    let is_missing = |folder: &PathBuf| {
        files.vfs.stat(folder).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    };
    Ok(files.log_folders()?.all().iter().all(is_missing))
}
