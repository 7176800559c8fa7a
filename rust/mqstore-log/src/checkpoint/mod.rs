//! The `checkpoint` file: the store times and positions up to which derived files are durable.
//!
//! [`CheckpointFile`] owns the file. The file is a hint: recovery accepts any content, and without the file it only
//! reads more of the log. RocketMQ maps the file. mqstore writes the 48 used bytes by position and syncs them; it
//! leaves the rest of the file unchanged.
//!
//! After a crash the 48 bytes, which are in one sector, are either old or new. A new file is written in staging, synced
//! and renamed.
//!
//! Source: `StoreCheckpoint`.

use std::io::ErrorKind;

use mqstore_format::Checkpoint;
use mqstore_format::checkpoint::CHECKPOINT_FIELD_BYTES;
use mqstore_io::Access;
use mqstore_io::switch;

use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;

/// Reads and writes the checkpoint of one store.
///
/// ```text
/// 0 physic time | 8 logics time | 16 index time | 24 master flushed | 32 confirm offset | 40 logics offset
/// ```
#[derive(Clone, Debug)]
pub struct CheckpointFile {
    files: StoreFiles,
}

impl CheckpointFile {
    /// Returns the checkpoint of the store at `files`. Does no I/O.
    pub fn new(files: &StoreFiles) -> Self {
        Self { files: files.clone() }
    }

    /// Reads the file. Missing numbers are 0; without a readable file all numbers are 0.
    pub fn load(&self) -> Checkpoint {
        let mut bytes = [0; CHECKPOINT_FIELD_BYTES];
        let mut filled = 0;
        if let Ok(file) = self.files.vfs.open(&self.files.checkpoint(), Access::Read) {
            while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
                match file.read_at(rest, filled as u64) {
                    Ok(count) if count > 0 => filled += count,
                    _ => break,
                }
            }
        }
        Checkpoint::decode(bytes.get(..filled).unwrap_or_default())
    }

    /// Writes and syncs the checkpoint; it is durable when the call returns `Ok`. An existing file keeps its length and
    /// its bytes after byte 48.
    pub fn store(&self, checkpoint: &Checkpoint) -> Result<(), StoreError> {
        let path = self.files.checkpoint();
        match self.files.vfs.open(&path, Access::ReadWrite) {
            Ok(file) => {
                file.write_all_at(&checkpoint.encode_fields(), 0).at(&path, "writing the checkpoint")?;
                switch::step("checkpoint.sync", || file.sync_data()).at(&path, "syncing the checkpoint")
            }
            Err(error) if error.kind() == ErrorKind::NotFound => self.create(checkpoint),
            Err(error) => Err(StoreError::io(&path, "opening the checkpoint", error)),
        }
    }

    fn create(&self, checkpoint: &Checkpoint) -> Result<(), StoreError> {
        let path = self.files.checkpoint();
        let folder = self.files.staging_for(&path);
        let staged = folder.join("checkpoint");
        let bytes = checkpoint.encode();
        let written = match self.files.vfs.write_atomic(&path, &staged, &bytes) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.files.vfs.create_dir_all(&folder).at(&folder, "creating the staging folder")?;
                self.files.vfs.write_atomic(&path, &staged, &bytes)
            }
            written => written,
        };
        written.at(&path, "creating the checkpoint")
    }
}

#[cfg(test)]
mod tests;
