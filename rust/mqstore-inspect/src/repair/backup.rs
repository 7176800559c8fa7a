//! The copies in `mqstore/lost+found` that a repair makes before it changes anything.
//!
//! ```text
//! mqstore/lost+found/00000000001073741824.damaged-at-4711   the bytes of a damaged range, zeros as holes
//! mqstore/lost+found/00000000001073741824.beyond-1073741824 the bytes of a file after its regular length
//! mqstore/lost+found/commitlog_notes.txt.1700000000000      a file that is not part of the log
//! ```
//!
//! Across a crash: when the call returns, the copy has its name and is durable. Only then may the caller change the
//! original.

use std::ops::Range;
use std::path::{Path, PathBuf};

use mqstore_io::{Access, VfsFile, switch};

use crate::copy::{CHUNK_BYTES, copy_bytes};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;

/// Called with the number of bytes done. An error that it returns ends the repair; run the repair again to complete it.
pub(crate) type ByteProgress<'a> = &'a mut dyn FnMut(u64) -> Result<(), StoreError>;

/// Copies `range` of the file at `path` to the name `name`; returns `None` if all bytes are zero. An equal copy that a
/// stopped repair left is used again.
pub(crate) fn copy(
    files: &StoreFiles,
    path: &Path,
    file: &dyn VfsFile,
    name: &str,
    range: Range<u64>,
    watch: ByteProgress<'_>,
) -> Result<Option<PathBuf>, StoreError> {
    files.ensure_folder(&files.staging())?;
    let staged = files.staging().join("kept");
    remove_leftover(files, &staged)?;
    let copy = files.vfs.create_new(&staged).at(&staged, "keeping a copy of damaged bytes")?;
    if !copy_bytes(file, &*copy, range, watch, (path, &staged))? {
        drop(copy);
        remove_leftover(files, &staged)?;
        return Ok(None);
    }
    switch::step("repair.sync_kept", || copy.sync_all()).at(&staged, "syncing a copy of damaged bytes")?;
    let before = files.lost_and_found().join(name);
    let kept = if is_same(files, &*copy, &before, watch)? {
        remove_leftover(files, &staged)?;
        before
    } else {
        let kept = files.unused_lost_and_found_name(name)?;
        files.vfs.rename_noreplace(&staged, &kept).at(&kept, "keeping a copy of damaged bytes")?;
        kept
    };
    files.sync_lost_and_found()?;
    Ok(Some(kept))
}

/// Whether the file at `path` exists and has the same content as `copy`.
fn is_same(
    files: &StoreFiles,
    copy: &dyn VfsFile,
    path: &Path,
    watch: ByteProgress<'_>,
) -> Result<bool, StoreError> {
    let Ok(other) = files.vfs.open(path, Access::Read) else { return Ok(false) };
    let len = copy.len().at(path, "comparing copies")?;
    if other.len().at(path, "comparing copies")? != len {
        return Ok(false);
    }
    let mut buffers = [vec![0; CHUNK_BYTES.min(len as usize)], vec![0; CHUNK_BYTES.min(len as usize)]];
    let mut at = 0;
    while at < len {
        watch(0)?;
        let bytes = ((len - at) as usize).min(CHUNK_BYTES);
        for (file, buffer) in [copy, &*other].into_iter().zip(&mut buffers) {
            buffer.truncate(bytes);
            file.read_exact_at(buffer, at).at(path, "comparing copies")?;
        }
        let [one, two] = &buffers;
        if one != two {
            return Ok(false);
        }
        at += bytes as u64;
    }
    Ok(true)
}

fn remove_leftover(files: &StoreFiles, staged: &Path) -> Result<(), StoreError> {
    match files.vfs.remove_file(staged) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(StoreError::io(staged, "removing a leftover of a stopped run", error))
        }
        _ => Ok(()),
    }
}

/// Moves a file that is not part of the store to `lost+found`.
pub(crate) fn quarantine_file(
    files: &StoreFiles,
    path: &Path,
    watch: ByteProgress<'_>,
) -> Result<(), StoreError> {
    let relative = path.strip_prefix(&files.root).unwrap_or(path);
    let name = relative.to_string_lossy().trim_start_matches('/').replace('/', "_");
    let kept = files.unused_lost_and_found_name(&format!("{name}.{}", files.clock.now_ms()))?;
    match files.vfs.rename_noreplace(path, &kept) {
        // A folder of the log may be on another file system.
        Err(error) if error.kind() == std::io::ErrorKind::CrossesDevices => {
            let file = files.vfs.open(path, Access::Read).at(path, "opening a stray file")?;
            let len = file.len().at(path, "looking at a stray file")?;
            let name = kept.file_name().unwrap_or_default().to_string_lossy().into_owned();
            copy(files, path, &*file, &name, 0..len, watch)?;
            files.vfs.remove_file(path).at(path, "removing a stray file")
        }
        moved => {
            moved.at(path, "moving a stray file to lost+found")?;
            files.sync_lost_and_found()
        }
    }
}

/// Makes sure that the file at `path` has no other hard link: a file with other links is replaced by a copy. Programs
/// that use another link keep the old content.
pub(crate) fn break_hard_link(
    files: &StoreFiles,
    path: &Path,
    watch: ByteProgress<'_>,
) -> Result<(), StoreError> {
    let stat = files.vfs.stat(path).at(path, "looking at a segment")?;
    if stat.links <= 1 {
        return Ok(());
    }
    let file = files.vfs.open(path, Access::Read).at(path, "opening a segment")?;
    let folder = files.staging_beside(path)?;
    files.make_folder(&folder)?;
    let staged = folder.join("own");
    remove_leftover(files, &staged)?;
    let own = files.vfs.create_new(&staged).at(&staged, "making a copy of a linked segment")?;
    copy_bytes(&*file, &*own, 0..stat.len, watch, (path, &staged))?;
    switch::step("repair.sync_own_file", || own.sync_all()).at(&staged, "syncing a copy")?;
    // The sync of the log's folders before the mark makes the name durable.
    files.vfs.rename(&staged, path).at(path, "replacing a linked segment")
}
