//! Overwrites a segment before its space is freed.
//!
//! A rename first moves the segment out of the log, to `mqstore/wipe/` (or to `.mqstore/wipe/` of its own folder), so a
//! half-wiped file is never part of the log. Then both folders are synced, zeros are written over all parts of the file
//! that hold data and synced, and the name is removed. The wipe waits for readers of its bytes. A file with a second
//! name, for example in a snapshot, loses only this name. After a stop, the next open wipes the remaining files,
//! whatever its options are.
//!
//! The effect on the medium depends on the file system and the device: see `docs/erase.md`.

use std::path::Path;

use mqstore_io::switch;
use mqstore_io::vfs::parent_dir;
use mqstore_io::{Access, FileKind, VfsFile};

use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;

const CHUNK_BYTES: u64 = 1 << 20;

/// Overwrites the file `path`, which has no readers, with zeros, syncs it and removes it durably.
pub(super) fn wipe(files: &StoreFiles, path: &Path) -> Result<(), StoreError> {
    let file = files.vfs.open(path, Access::ReadWrite).at(path, "wiping a segment")?;
    // A snapshot can have the file under another name; its bytes stay until the last name is removed.
    if file.stat().at(path, "wiping a segment")?.links <= 1 {
        zero(&*file).at(path, "wiping a segment")?;
    }
    drop(file);
    files.vfs.remove_file(path).at(path, "removing a wiped segment")?;
    let folder = parent_dir(path);
    switch::step("retention.sync_wiped_name", || files.vfs.sync_dir(folder))
        .at(folder, "syncing the folder of wiped segments")
}

fn zero(file: &dyn VfsFile) -> std::io::Result<()> {
    let len = file.len()?;
    let zeros = vec![0; CHUNK_BYTES.min(len) as usize];
    let mut at = 0;
    // A hole has nothing to overwrite, and a full disk has no space for its zeros.
    while let Some(data) = file.next_data(at)?.filter(|data| *data < len) {
        at = data.max(at);
        let part = zeros.get(..(len - at).min(CHUNK_BYTES) as usize).unwrap_or_default();
        switch::step("retention.wipe_zeros", || file.write_all_at(part, at))?;
        at += part.len() as u64;
    }
    switch::step("retention.sync_wiped_bytes", || file.sync_data())
}

/// Wipes the files that a stop left, unless they are still part of the log under another name.
pub(super) fn finish(files: &StoreFiles) -> Result<u64, StoreError> {
    let mut wiped = 0;
    let logs = files.log_folders()?.all();
    for folder in files.wipe_folders()? {
        let entries = match files.vfs.list(&folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            entries => entries.at(&folder, "listing segments to wipe")?,
        };
        for entry in entries.iter().filter(|entry| entry.stat.kind == FileKind::File) {
            let path = folder.join(&entry.name);
            let is_it = |log: &std::path::PathBuf| {
                files.vfs.stat(&log.join(&entry.name)).is_ok_and(|stat| stat.inode == entry.stat.inode)
            };
            if logs.iter().any(is_it) {
                files.vfs.remove_file(&path).at(&path, "removing a second name of a segment")?;
                switch::step("retention.sync_second_name", || files.vfs.sync_dir(&folder))
                    .at(&folder, "syncing the folder of wiped segments")?;
            } else {
                wipe(files, &path)?;
                wiped += 1;
            }
        }
    }
    Ok(wiped)
}
