//! The durable steps of results outside a store: exports, archives, restores, fetched results, copies of Spark.
//!
//! ```text
//! NAME.partial                 a file or folder in progress; its name at the end is the commit
//! NAME.partial.state           replaced in one step (`Vfs::write_atomic`) after what it counts is durable
//! NAME.<token>.new             a file that gets its name by a hard link, if that does not exist
//! ```
//!
//! After a crash at any time, a name has its complete content or does not exist. When a call returns `Ok`, its effect is
//! durable, and with it the folders on its path: an earlier call can have ended before it synced their names. Calls at
//! the same time need a lock of the caller, except [`create_file`]: of two calls, one creates the file.

use std::io;
use std::path::Path;

use crate::switch;
use crate::vfs::{Access, FileKind, Vfs, VfsFile, parent_dir};

/// Bytes of one step of a copy.
const COPY_BYTES: u64 = 1 << 20;

/// Makes the names in a folder durable, and the names of the folders on its path.
///
/// # Errors
/// Those of the system.
pub fn sync_names(vfs: &dyn Vfs, folder: &Path) -> io::Result<()> {
    switch::step("commit.sync_names", || vfs.sync_dir(folder))?;
    let mut folder = folder;
    while parent_dir(folder) != folder {
        folder = parent_dir(folder);
        match switch::step("commit.sync_path", || vfs.sync_dir(folder)) {
            // Another user made this folder, and those above it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => break,
            synced => synced?,
        }
    }
    Ok(())
}

/// Makes a complete file, and its name in the folder, durable, before a state counts it.
///
/// # Errors
/// Those of the system.
pub fn sync_part(vfs: &dyn Vfs, path: &Path) -> io::Result<()> {
    let file = vfs.open(path, Access::Read)?;
    switch::step("commit.sync_part", || file.sync_all())?;
    switch::step("commit.sync_part_name", || vfs.sync_dir(parent_dir(path)))
}

/// Gives a complete file its final name.
///
/// # Errors
/// Those of the system.
pub fn publish_file(vfs: &dyn Vfs, path: &Path, dest: &Path) -> io::Result<()> {
    let file = vfs.open(path, Access::Read)?;
    switch::step("commit.sync_file", || file.sync_all())?;
    vfs.rename(path, dest)?;
    sync_names(vfs, parent_dir(dest))
}

/// Gives a complete folder its final name, which must be free or an empty folder.
///
/// # Errors
/// Those of the system.
pub fn publish_folder(vfs: &dyn Vfs, folder: &Path, dest: &Path) -> io::Result<()> {
    sync_tree(vfs, folder)?;
    vfs.rename(folder, dest)?;
    sync_names(vfs, parent_dir(dest))
}

/// Syncs all files and names in a folder.
fn sync_tree(vfs: &dyn Vfs, folder: &Path) -> io::Result<()> {
    for (name, kind) in vfs.list_kinds(folder)? {
        let path = folder.join(name);
        match kind {
            FileKind::Directory => sync_tree(vfs, &path)?,
            FileKind::File => {
                let file = vfs.open(&path, Access::Read)?;
                switch::step("commit.sync_file_of_folder", || file.sync_all())?;
            }
            _ => {}
        }
    }
    switch::step("commit.sync_names_of_folder", || vfs.sync_dir(folder))
}

/// Creates a file with this content unless it exists. Returns whether this call has created it; in any case, the file is
/// durable then. `new` is a name of this call in the same folder.
///
/// # Errors
/// Those of the system; a file system without hard links. The file can exist then.
pub fn create_file(vfs: &dyn Vfs, path: &Path, new: &Path, content: &[u8]) -> io::Result<bool> {
    let file = vfs.create_new(new)?;
    let written = file.write_all_at(content, 0);
    let written = written.and_then(|()| switch::step("commit.sync_created", || file.sync_all()));
    let linked = written.and_then(|()| vfs.hard_link(new, path).map_err(without_links));
    // Reports the first error. A leftover has a name that no other call uses.
    let _ = vfs.remove_file(new);
    let is_new = match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        linked => linked.map(|()| true)?,
    };
    sync_names(vfs, parent_dir(path))?;
    Ok(is_new)
}

/// Copies the first `length` bytes of a file to a new file. It is durable with the next file that [`create_file`] creates
/// below the folder in which its folder is.
///
/// # Errors
/// Those of the system; the file is shorter. The new file can exist then, in part.
pub fn copy_file(vfs: &dyn Vfs, source: &Path, dest: &Path, length: u64) -> io::Result<()> {
    let from = vfs.open(source, Access::Read)?;
    let file = vfs.create_new(dest)?;
    let mut buffer = Vec::new();
    for start in (0..length).step_by(COPY_BYTES as usize) {
        buffer.resize((length - start).min(COPY_BYTES) as usize, 0);
        from.read_exact_at(&mut buffer, start)?;
        file.write_all_at(&buffer, start)?;
    }
    sync_new(vfs, &*file, dest)
}

/// Writes a new file. It is durable as that of [`copy_file`].
///
/// # Errors
/// Those of the system. The new file can exist then, in part.
pub fn write_file(vfs: &dyn Vfs, dest: &Path, content: &[u8]) -> io::Result<()> {
    let file = vfs.create_new(dest)?;
    file.write_all_at(content, 0)?;
    sync_new(vfs, &*file, dest)
}

fn sync_new(vfs: &dyn Vfs, file: &dyn VfsFile, dest: &Path) -> io::Result<()> {
    switch::step("commit.sync_copied", || file.sync_all())?;
    let folder = parent_dir(dest);
    switch::step("commit.sync_copied_name", || vfs.sync_dir(folder))?;
    switch::step("commit.sync_copied_folder", || vfs.sync_dir(parent_dir(folder)))
}

/// Replaces a file that may be lost or damaged after a crash, such as one of a cache with checksums. `new` is a name of
/// this call in the same folder.
///
/// # Errors
/// Those of the system.
pub fn replace_cached(vfs: &dyn Vfs, path: &Path, new: &Path, content: &[u8]) -> io::Result<()> {
    vfs.create_new(new)?.write_all_at(content, 0)?;
    vfs.rename(new, path)
}

/// Names the reason of a hard link that fails next to a file that was created.
fn without_links(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported | io::ErrorKind::TooManyLinks => {
            io::Error::new(io::ErrorKind::Unsupported, "the file system has no hard links")
        }
        _ => error,
    }
}
