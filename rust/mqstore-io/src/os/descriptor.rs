//! Opens descriptors, reads the kinds of files, and repeats system calls.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::open_files::retry_scarce;
use crate::vfs::{FileKind, FileStat};

/// Errors of system calls, which may say that a signal interrupted the call.
pub(super) trait CallError {
    /// Whether a signal interrupted the call.
    fn is_interrupted(&self) -> bool;
}

impl CallError for Errno {
    fn is_interrupted(&self) -> bool {
        *self == Self::INTR
    }
}

impl CallError for io::Error {
    fn is_interrupted(&self) -> bool {
        self.kind() == io::ErrorKind::Interrupted
    }
}

impl CallError for nix::errno::Errno {
    fn is_interrupted(&self) -> bool {
        *self == Self::EINTR
    }
}

/// Repeats a call that a signal interrupted. An interrupted call has no result yet: a sync, for example, may have
/// failed or not, and only the repetition knows.
pub(super) fn retry<T, E: CallError>(mut call: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    loop {
        match call() {
            Err(error) if error.is_interrupted() => {}
            result => return result,
        }
    }
}

/// Like [`retry`], for a call that opens or maps a file: if there is no free descriptor or no memory, files and maps
/// that are not in use are released, and the call runs again.
pub(super) fn retry_open<T, E: CallError + Into<io::Error>>(
    mut call: impl FnMut() -> Result<T, E>,
) -> io::Result<T> {
    retry_scarce(|| retry(&mut call).map_err(Into::into))
}

/// Opens a file only if it is regular: without following a link, waiting for a pipe or taking a controlling terminal.
pub(super) fn open_regular(path: &Path, flags: OFlags) -> io::Result<fs::File> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = above_stderr(retry_open(|| rustix::fs::open(path, flags, Mode::from_raw_mode(0o666)))?)?;
    match file_stat(&retry(|| rustix::fs::fstat(&file))?).kind {
        FileKind::File => Ok(fs::File::from(file)),
        FileKind::Directory => Err(Errno::ISDIR.into()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    }
}

/// Moves a descriptor out of the range of stdin, stdout and stderr, which may be closed.
pub(super) fn above_stderr(file: OwnedFd) -> io::Result<OwnedFd> {
    if file.as_raw_fd() > 2 {
        return Ok(file);
    }
    retry_open(|| rustix::io::fcntl_dupfd_cloexec(&file, 3))
}

/// Returns the data of the file at `path`, without following a link.
pub(super) fn stat(path: &Path) -> io::Result<FileStat> {
    Ok(file_stat(&retry(|| rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW))?))
}

#[cfg_attr(target_os = "linux", expect(clippy::unnecessary_cast, reason = "field widths differ by system"))]
pub(super) fn file_stat(stat: &rustix::fs::Stat) -> FileStat {
    let kind = file_kind(FileType::from_raw_mode(stat.st_mode));
    let modified_ms =
        (stat.st_mtime as i64).saturating_mul(1_000).saturating_add(stat.st_mtime_nsec as i64 / 1_000_000);
    FileStat {
        kind,
        len: stat.st_size as u64,
        modified_ms,
        inode: stat.st_ino as u64,
        links: stat.st_nlink as u64,
        allocated_bytes: (stat.st_blocks as u64).saturating_mul(512),
    }
}

pub(super) fn file_kind(kind: FileType) -> FileKind {
    match kind {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        _ => FileKind::Other,
    }
}
