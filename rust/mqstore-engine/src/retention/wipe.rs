//! Overwriting a segment before its room is given back.
//!
//! A segment that is to be wiped leaves the log by a rename to `mqstore/wipe/` (or `.mqstore/wipe/` of
//! its own folder), so that no half-wiped file is ever part of the log; both folders are synced, then
//! zeros are written over all of it and synced, then the name goes. Whoever holds a view of its bytes
//! is waited for. A file with a further name, as snapshots make them, only loses this one. What a stop leaves there is wiped after the next open, whatever the options are then.
//!
//! What this means on the medium is the file system's and the device's affair: see `docs/retention.md`.

use std::path::Path;

use mqstore_io::switch;
use mqstore_io::vfs::parent_dir;
use mqstore_io::{Access, FileKind, VfsFile};

use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;

const CHUNK_BYTES: u64 = 1 << 20;

/// Overwrites the file `path`, which nobody reads, with zeros, syncs it and removes it durably.
pub(super) fn wipe(files: &StoreFiles, path: &Path) -> Result<(), StoreError> {
    let file = files.vfs.open(path, Access::ReadWrite).at(path, "wiping a segment")?;
    // A snapshot may hold it under another name; it goes with the last one.
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
    while at < len {
        let part = zeros.get(..(len - at).min(CHUNK_BYTES) as usize).unwrap_or_default();
        switch::step("retention.wipe_zeros", || file.write_all_at(part, at))?;
        at += part.len() as u64;
    }
    switch::step("retention.sync_wiped_bytes", || file.sync_data())
}

/// Wipes what a stop left, unless it is still a part of the log under another name.
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
