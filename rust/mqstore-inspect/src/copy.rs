//! Copies a store's directory to a new folder.
//!
//! Owns `OUT.partial`, which gets the name `OUT` once it is complete and durable. The next copy removes the leftover of
//! a stopped one. No process may write the source meanwhile; if one does, the copy fails.
//!
//! ```text
//! every file and folder       copied: shared blocks if the file system can, holes kept, synced
//! mqstore/live, tmp, jobs     left out: they have no meaning in a copy
//! a link from the root        copied as the folder to which it leads
//! another link, pipe, device  refused: the copy would share the target of a link with the source
//! ```
//!
//! A log in separate folders (`mqstore/paths`) is refused, too.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_io::vfs::parent_dir;
use mqstore_io::{Access, DirEntry, FileKind, FileStat, VfsFile, switch};

use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::live_page::writer_pid;
use mqstore_base::progress::Progress;
use mqstore_base::progress::ProgressWatcher;
use mqstore_base::store_files::{OWN_FOLDER, StoreFiles};

/// Bytes of one copy step.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;

/// Bytes of a page; a page of zeros becomes a hole of the copy.
const PAGE_BYTES: usize = 4096;

/// A copy that does not have its final name yet.
#[derive(Debug)]
pub(crate) struct StagedCopy {
    /// The copy.
    pub(crate) files: StoreFiles,
    /// The final name.
    pub(crate) output: PathBuf,
}

/// Copies the store at `files` to `output`.
///
/// # Errors
/// [`StoreError::Io`] with `AlreadyExists` if `output` exists; [`StoreError::Locked`] if a process writes the store;
/// [`StoreError::Unsupported`] for files that cannot be copied; errors that `watcher` returns; I/O errors. After an
/// error, no part of the copy remains.
pub fn copy_store(files: &StoreFiles, output: &Path, watcher: ProgressWatcher<'_>) -> Result<(), StoreError> {
    files.check_is_store()?;
    let copy = StagedCopy::begin(files, output)?;
    copy.fill_with(|copy| copy_all(files, copy, watcher))?.publish()
}

/// Copies all files of the store at `files`, which no process may write, to `copy`.
pub(crate) fn copy_all(
    files: &StoreFiles,
    copy: &StagedCopy,
    watcher: ProgressWatcher<'_>,
) -> Result<(), StoreError> {
    refuse_paths(files)?;
    refuse_writer(files)?;
    let seen = tree(files)?;
    let total_bytes = seen.iter().map(|(_, stat)| stat.len).sum();
    let mut done_bytes = 0;
    for (relative, stat) in &seen {
        let (from, to) = (files.root.join(relative), copy.files.root.join(relative));
        match stat.kind {
            FileKind::Directory => copy.files.vfs.create_dir(&to).at(&to, "making a folder of a copy")?,
            _ => {
                copy_file(files, &from, &to, stat.len, &mut |bytes| {
                    done_bytes += bytes;
                    watcher(Progress { done_bytes, total_bytes })
                })?;
            }
        }
    }
    refuse_writer(files)?;
    let same = |(path, before): &(PathBuf, FileStat)| {
        let now = files.vfs.stat(&files.root.join(path));
        now.is_ok_and(|now| {
            (now.len, now.modified_ms, now.inode) == (before.len, before.modified_ms, before.inode)
        })
    };
    let is_file = |(_, stat): &&(PathBuf, FileStat)| stat.kind == FileKind::File;
    if !seen.iter().filter(is_file).all(same) {
        return Err(StoreError::Locked { path: files.lock(), pid: writer_pid(files) });
    }
    Ok(())
}

fn refuse_paths(files: &StoreFiles) -> Result<(), StoreError> {
    let path = files.side().join("paths");
    if files.vfs.stat(&path).is_ok() {
        let reason =
            "the log is in separate folders, which a copy would share; copy them by hand, or work in place";
        return Err(StoreError::Unsupported { path: files.root.clone(), reason: reason.into() });
    }
    Ok(())
}

fn refuse_writer(files: &StoreFiles) -> Result<(), StoreError> {
    match files.vfs.lock_holder(&files.lock()).at(&files.lock(), "asking who has the lock")? {
        Some(holder) => {
            Err(StoreError::Locked { path: files.lock(), pid: holder.pid.or_else(|| writer_pid(files)) })
        }
        None => Ok(()),
    }
}

/// Returns all files and folders to copy, relative to the root; each folder comes before its contents.
fn tree(files: &StoreFiles) -> Result<Vec<(PathBuf, FileStat)>, StoreError> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let path = files.root.join(&folder);
        for entry in files.vfs.list(&path).at(&path, "listing a folder to copy")? {
            let relative = folder.join(&entry.name);
            if is_left_out(&relative) {
                continue;
            }
            let stat = linked_folder(files, &relative, &entry)?.unwrap_or(entry.stat);
            match stat.kind {
                FileKind::Directory => folders.push(relative.clone()),
                FileKind::File => {}
                FileKind::Symlink | FileKind::Other => {
                    let reason =
                        "not a file or folder, so it cannot be copied; move it away, or work in place";
                    return Err(StoreError::Unsupported {
                        path: files.root.join(&relative),
                        reason: reason.into(),
                    });
                }
            }
            found.push((relative, stat));
        }
    }
    Ok(found)
}

/// Returns the target of an entry that is a link from the root to a folder. The copy gets a folder.
fn linked_folder(
    files: &StoreFiles,
    relative: &Path,
    entry: &DirEntry,
) -> Result<Option<FileStat>, StoreError> {
    let name = relative.to_str().filter(|_| entry.stat.kind == FileKind::Symlink);
    let Some(target) = name.and_then(|name| files.link_target(name)) else { return Ok(None) };
    files.vfs.stat(target).map(Some).at(target, "looking at a folder to copy")
}

/// Whether the path is the live page, staging or jobs, which have no meaning in a copy. Staging is also in our folder
/// in the target of a link.
fn is_left_out(relative: &Path) -> bool {
    ["mqstore/live", "mqstore/tmp", "mqstore/jobs", "mqstore/restore"]
        .iter()
        .any(|name| relative == Path::new(name))
        || relative.file_name().is_some_and(|name| name == OWN_FOLDER)
}

/// Copies the first `len` bytes of a file, with shared blocks if possible, and syncs the copy.
pub(crate) fn copy_file(
    files: &StoreFiles,
    from: &Path,
    to: &Path,
    len: u64,
    step: &mut dyn FnMut(u64) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let source = files.vfs.open(from, Access::Read).at(from, "opening a file to copy")?;
    copy_open_file(files, (from, &*source), to, len, step)
}

/// Same as [`copy_file`] for an open file, whatever its current name is.
pub(crate) fn copy_open_file(
    files: &StoreFiles,
    (from, source): (&Path, &dyn VfsFile),
    to: &Path,
    len: u64,
    step: &mut dyn FnMut(u64) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let whole = source.len().at(from, "looking at a file to copy")? == len;
    let target: Arc<dyn VfsFile> = match files.vfs.reflink(from, to) {
        Ok(target) if whole && target.len().is_ok_and(|copied| copied == len) => {
            step(len)?;
            target
        }
        shared => {
            if shared.is_ok() {
                files.vfs.remove_file(to).at(to, "making a copy")?;
            }
            let target = files.vfs.create_new(to).at(to, "making a copy")?;
            copy_bytes(source, &*target, 0..len, step, (from, to))?;
            target
        }
    };
    switch::step("copy.sync_file", || target.sync_all()).at(to, "syncing a copy")
}

impl StagedCopy {
    /// Makes the empty folder `OUT.partial`.
    pub(crate) fn begin(files: &StoreFiles, output: &Path) -> Result<Self, StoreError> {
        if files.vfs.stat(output).is_ok() {
            let taken = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
            return Err(StoreError::io(output, "making a copy, which needs a new folder", taken));
        }
        let mut name = output.file_name().unwrap_or_default().to_os_string();
        name.push(".partial");
        let partial = output.with_file_name(name);
        match files.vfs.remove_dir_all(&partial) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(StoreError::io(&partial, "removing a leftover of a stopped run", error));
            }
            _ => {}
        }
        files.vfs.create_dir_all(&partial).at(&partial, "making the folder of a copy")?;
        let staged = StoreFiles::new(Arc::clone(&files.vfs), Arc::clone(&files.clock), &partial);
        Ok(Self { files: staged, output: output.to_path_buf() })
    }

    /// Runs `fill`; if it fails, removes the copy.
    pub(crate) fn fill_with<T>(
        self,
        fill: impl FnOnce(&Self) -> Result<T, StoreError>,
    ) -> Result<CompleteCopy<T>, StoreError> {
        match fill(&self) {
            Ok(value) => Ok(CompleteCopy { copy: self, value }),
            Err(error) => {
                // The next copy to this place removes what remains.
                let _ = self.files.vfs.remove_dir_all(&self.files.root);
                Err(error)
            }
        }
    }
}

/// A copy with all of its files.
pub(crate) struct CompleteCopy<T> {
    copy: StagedCopy,
    value: T,
}

impl<T> CompleteCopy<T> {
    /// Syncs its folders, and gives it its final name.
    pub(crate) fn publish(self) -> Result<T, StoreError> {
        let StagedCopy { files, output } = &self.copy;
        let vfs = &files.vfs;
        let mut folders = vec![files.root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in vfs.list(&folder).at(&folder, "listing a copy")? {
                if entry.stat.kind == FileKind::Directory {
                    folders.push(folder.join(&entry.name));
                }
            }
            switch::step("copy.sync_folder", || vfs.sync_dir(&folder))
                .at(&folder, "syncing a folder of a copy")?;
        }
        vfs.rename_noreplace(&files.root, output).at(output, "naming a copy")?;
        let above = parent_dir(output);
        match switch::step("copy.sync_name", || vfs.sync_dir(above)) {
            // Without permission to open the folder above, a power failure can at most lose the new name.
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {}
            outcome => outcome.at(above, "syncing the folder of a copy")?,
        }
        Ok(self.value)
    }
}

/// Copies `range` of `from` to the front of `to`, with pages of zeros as holes. Returns whether any byte was not zero.
/// `to` gets the length of the range.
pub(crate) fn copy_bytes(
    from: &dyn VfsFile,
    to: &dyn VfsFile,
    range: Range<u64>,
    step: &mut dyn FnMut(u64) -> Result<(), StoreError>,
    place: (&Path, &Path),
) -> Result<bool, StoreError> {
    let (source, target) = place;
    to.set_len(range.end.saturating_sub(range.start)).at(target, "making a copy")?;
    let mut buffer = Vec::new();
    let mut some = false;
    let mut at = range.start;
    while let Some(data) = from.next_data(at).at(source, "looking for data")?.filter(|data| *data < range.end)
    {
        step(data - at)?;
        at = at.max(data);
        buffer.resize(((range.end - at) as usize).min(CHUNK_BYTES), 0);
        from.read_exact_once_at(&mut buffer, at).at(source, "reading what is copied")?;
        for (page, start) in buffer.chunks(PAGE_BYTES).zip((at - range.start..).step_by(PAGE_BYTES)) {
            if page.iter().fold(0, |all, byte| all | byte) != 0 {
                some = true;
                to.write_all_at(page, start).at(target, "writing a copy")?;
            }
        }
        step(buffer.len() as u64)?;
        at += buffer.len() as u64;
    }
    step(range.end.saturating_sub(at))?;
    Ok(some)
}
