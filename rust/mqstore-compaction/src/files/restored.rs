//! The folder of a queue below `mqstore/restore` with the pulled messages.

use std::io;
use std::path::{Path, PathBuf};

use super::folder::QueueFolder;
use super::staged::{STAGED_LOGS, STAGED_QUEUES};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;

/// Path of the folder of a queue below `mqstore/restore`.
pub(crate) fn queue_dir(files: &StoreFiles, topic: &str, queue_id: i32) -> PathBuf {
    files.restore().join(topic).join(queue_id.to_string())
}

/// Lists the pulled files of a queue.
pub(crate) fn restored_folder(
    files: &StoreFiles,
    topic: &str,
    queue_id: i32,
) -> Result<QueueFolder, StoreError> {
    let dir = queue_dir(files, topic, queue_id);
    QueueFolder::load_from(files, &dir.join(STAGED_LOGS), &dir.join(STAGED_QUEUES))
}

pub(crate) fn remove(files: &StoreFiles, dir: &Path) -> Result<(), StoreError> {
    match files.vfs.remove_dir_all(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.at(dir, "removing what was pulled"),
    }
}
