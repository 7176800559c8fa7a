//! The file system as a store sees it: what it may ask, and what is durable when the answer is `Ok`.
//!
//! [`Vfs`] works on names, [`VfsFile`] on an open file, and [`StoreLock`] keeps other writers out. `OsVfs` answers with
//! system calls, `SimVfs` in memory. [`Vfs`] has the rules for every method of both.

use std::ffi::OsString;
use std::fmt::Debug;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::region::{MapAccess, Region};
use crate::switch;

#[cfg(all(test, feature = "sim"))]
mod conformance;
#[cfg(test)]
pub(crate) mod tests;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// For reading; writes and writable maps fail.
    Read,
    /// For reading and writing.
    ReadWrite,
}

/// What a name stands for, links not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A folder.
    Directory,
    /// A symbolic link, wherever it points.
    Symlink,
    /// A pipe, a socket, a device.
    Other,
}

/// What the file system knows about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStat {
    /// What it is.
    pub kind: FileKind,
    /// Length in bytes, holes included.
    pub len: u64,
    /// Last change of the content, milliseconds since 1970-01-01 UTC.
    pub modified_ms: i64,
    /// The number that identifies the file on its file system, whatever its name.
    pub inode: u64,
    /// How many names it has; 0 once it was removed while open.
    pub links: u64,
    /// Bytes that it occupies on the disk; less than `len` for a file with holes.
    pub allocated_bytes: u64,
}

/// One name in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name, without the folder.
    pub name: OsString,
    /// What it stands for, links not followed.
    pub stat: FileStat,
}

/// The room on a file system, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceInfo {
    /// Size of the file system.
    pub total: u64,
    /// Unused bytes.
    pub free: u64,
    /// Unused bytes that an ordinary user may take; at most `free`.
    pub available: u64,
}

/// Who holds a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// The process, when the system tells: a Java broker's record lock names its owner, a lock on an
    /// open file description (ours, on Linux) does not.
    pub pid: Option<i32>,
    /// Whether it may be a lock that [`Vfs::lock`] took. On Linux a broker's is of another kind.
    pub may_be_ours: bool,
}

/// Threads that do one piece of work together, at most.
const MOST_AT_WORK: u32 = 8;

/// Facts about the machine and the process that never change while the process lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// A number that is new after each boot; all zero where the system has none. Equal numbers mean
    /// that whatever was in the page cache then is still there.
    pub boot_id: [u8; 16],
    /// This process.
    pub pid: u32,
    /// The machine's name.
    pub hostname: String,
    /// Hard to guess and different at each call; for tokens that tell two openings apart, not for
    /// secrets. The simulated one is the same in each run.
    pub random_seed: u64,
    /// Whether background work may have threads; `false` in a simulated world that is stepped by hand.
    pub threads: bool,
    /// Processors that this process may use at once; at least 1.
    pub processors: u32,
    /// Bytes of memory that the machine has; `u64::MAX` where nobody knows.
    pub memory_bytes: u64,
    /// Files that the process may have open at once; `u64::MAX` where nothing limits them.
    pub open_files: u64,
}

impl Environment {
    /// Threads that may help with a piece of work which consists of many small ones.
    pub fn helpers(&self) -> u32 {
        if self.threads { self.processors.clamp(1, MOST_AT_WORK) - 1 } else { 0 }
    }
}

/// Why a lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Somebody holds it, in this process or in another.
    #[error("held by {}", .pid.map_or_else(|| "another holder".to_owned(), |pid| format!("process {pid}")))]
    Held {
        /// The holder, as in [`LockHolder::pid`].
        pid: Option<i32>,
    },
    /// The lock file cannot be opened, made or locked.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The right to write to a store; given back when dropped.
pub trait StoreLock: Send + Sync + Debug {
    /// To be called in a child process after `fork`: closes the child's copy of the descriptor, so
    /// that the lock's life depends on the parent alone. The parent's lock is untouched. Does not
    /// allocate and does not wait. Calling it in the parent gives the lock back early.
    fn disown_in_child(&self);
}

/// A file system, by names.
///
/// ```text
///             Vfs ── VfsFile ── Region ── RegionView          Clock        StoreLock
/// real        OsVfs (`os`)      mapped pages                  SystemClock  record lock on byte 0
/// simulated   SimVfs (`sim`)    heap pages, the file's own    ManualClock  one holder per file
/// ```
///
/// Three rules hold for every method of this trait and of [`VfsFile`]:
///
/// * *Durable* data survives a power loss. A write alone makes nothing durable. Bytes become durable by
///   [`VfsFile::sync_data`], [`VfsFile::sync_all`] or [`Region::flush`], names by [`Vfs::sync_dir`] of their folder.
///   Any combination of 4 KiB pages and of names that are not durable may survive.
/// * Everything written survives the death of the process, synced or not.
/// * Errors carry the system's number ([`io::Error::raw_os_error`]) if a system call gave one. After a failed sync the
///   state of the pages on disk is unknown, and a later sync that succeeds proves nothing: the caller has to write the
///   bytes again, then sync.
///
/// No method follows a symbolic link in the last part of the path of a file, and none waits for a pipe or a device.
/// [`Vfs::list`], [`Vfs::list_kinds`], [`Vfs::sync_dir`] and [`Vfs::free_space`] accept a link to a folder, so that the
/// root of a store may be one. Many threads may call methods at once. Calls on the same bytes at the same time give,
/// for each page, one of the possible orders.
///
/// Paths are taken as they are: relative ones against the process's current folder.
pub trait Vfs: Send + Sync + Debug {
    /// Opens an existing regular file. A folder, a link, a pipe or a device is an error and is
    /// neither followed nor waited for. Nothing changes on disk.
    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn VfsFile>>;

    /// Makes a file of length 0 and opens it for reading and writing; `AlreadyExists` if the name is
    /// taken, by whatever. Its name is durable after [`Vfs::sync_dir`] of its folder.
    fn create_new(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>>;

    /// What `path` stands for, without following a link.
    fn stat(&self, path: &Path) -> io::Result<FileStat>;

    /// The number of what `path` stands for, without following a link: [`FileStat::inode`] and nothing
    /// else, for files that are written all the time. Where a file system keeps finer times once somebody
    /// has asked for them, a [`Vfs::stat`] makes the next write change the inode on the disk too.
    fn inode(&self, path: &Path) -> io::Result<u64> {
        Ok(self.stat(path)?.inode)
    }

    /// All names in `dir`, sorted by their bytes, without `.` and `..`. A name that vanishes while
    /// the folder is read is left out.
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>>;

    /// As [`Vfs::list`], with what each name stands for and nothing else: for folders of very many names,
    /// where most file systems need not look at each of them for that.
    fn list_kinds(&self, dir: &Path) -> io::Result<Vec<(OsString, FileKind)>> {
        Ok(self.list(dir)?.into_iter().map(|entry| (entry.name, entry.stat.kind)).collect())
    }

    /// Makes one folder; its parent must exist and the name must be free. Durable after
    /// [`Vfs::sync_dir`] of the parent.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// Makes a folder and its missing parents; an existing folder is fine. Each new one is durable
    /// after [`Vfs::sync_dir`] of its own parent, and reachable only if all above it are.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Gives the file or folder `from` the name `to`, replacing a file of that name, in one step that
    /// a crash leaves wholly done or wholly undone. Durable after [`Vfs::sync_dir`] of the folder of
    /// `to`; when that is another folder than that of `from`, the old name may come back beside the
    /// new one until that folder is synced too. The content is a matter of its own: sync it first.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// As [`Vfs::rename`], but fails with `AlreadyExists` when `to` exists, and never replaces.
    fn rename_noreplace(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Gives the file `from` the further name `to`, which must be free. Durable after
    /// [`Vfs::sync_dir`] of the folder of `to`.
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Makes the file `to`, whose name must be free, with the content of `from` and the same blocks of the device;
    /// what is written to either later is its own. `Unsupported` where the system or the file system cannot, with
    /// no file made. Content and name are durable as those of any other new file.
    fn reflink(&self, _from: &Path, _to: &Path) -> io::Result<Arc<dyn VfsFile>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Exchanges two names, files or folders, in one step; `Unsupported` where the system or the
    /// file system cannot. Durable after [`Vfs::sync_dir`] of both folders.
    fn exchange(&self, a: &Path, b: &Path) -> io::Result<()>;

    /// Removes the name of a file. Who has it open or mapped keeps it. Durable after
    /// [`Vfs::sync_dir`] of its folder; until then a crash may bring it back.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty folder. Durable after [`Vfs::sync_dir`] of its parent.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;

    /// Removes a folder with all in it; links are removed, not followed. A crash may leave any part.
    /// Durable after [`Vfs::sync_dir`] of its parent.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in `dir` durable as they are now: made, renamed, linked and removed ones. Does
    /// not touch the content of files, nor folders below, nor the name of `dir` itself.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Takes the writer's lock: an exclusive record lock on byte 0, length 1, of `path`, without
    /// waiting. A missing file is made, a file of length 0 gets the content `lock`; other content is
    /// left alone, and a refused call changes nothing. Excludes a Java broker, which takes the same
    /// lock, both ways, and any second call, in this process too.
    ///
    /// Source: `DefaultMessageStore#start` (`FileChannel.tryLock(0, 1, false)`).
    fn lock(&self, path: &Path) -> Result<Box<dyn StoreLock>, LockError>;

    /// Who holds the writer's lock on `path`; `None` when nobody does or the file does not exist.
    /// Changes nothing. The answer may be old when it arrives.
    fn lock_holder(&self, path: &Path) -> io::Result<Option<LockHolder>>;

    /// The room on the file system that holds `path`, which must exist.
    fn free_space(&self, path: &Path) -> io::Result<SpaceInfo>;

    /// The machine and the process.
    fn environment(&self) -> Environment;

    /// Reads a whole file of at most `limit_bytes`; a longer one is `FileTooLarge`, and is not read.
    fn read_file(&self, path: &Path, limit_bytes: u64) -> io::Result<Vec<u8>> {
        let file = self.open(path, Access::Read)?;
        let len = file.len()?;
        if len > limit_bytes {
            let text = format!("{len} bytes, the limit is {limit_bytes}");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len)?;
        bytes.resize(len, 0);
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match file.read_at(rest, filled as u64)? {
                0 => break,
                count => filled += count,
            }
        }
        // The file may have become shorter since its length was asked for.
        bytes.truncate(filled);
        Ok(bytes)
    }

    /// Replaces the content of `path`, or makes it, in one step: writes `bytes` to `tmp` on the same
    /// file system, syncs, renames, syncs the folder of `path`. Durable when it returns `Ok`; after a
    /// crash or an error `path` has the old content or the new one, and `tmp` may be left. A file
    /// that is already at `tmp` is removed first.
    fn write_atomic(&self, path: &Path, tmp: &Path, bytes: &[u8]) -> io::Result<()> {
        match self.remove_file(tmp) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = self.create_new(tmp)?;
        let written = file.write_all_at(bytes, 0);
        let written = written.and_then(|()| switch::step("vfs.sync_atomic", || file.sync_all()));
        if let Err(error) = written.and_then(|()| self.rename(tmp, path)) {
            // The first error is the one to report; a leftover is removed by the next call.
            let _ = self.remove_file(tmp);
            return Err(error);
        }
        switch::step("vfs.sync_atomic_name", || self.sync_dir(parent_dir(path)))
    }
}

/// `None` in place of the error that a name, or a folder on the way to it, is not there.
pub(crate) fn found<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        outcome => outcome.map(Some),
    }
}

/// The folder that holds `path`; `.` for a bare name and the root for itself.
pub fn parent_dir(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => path,
    }
}

/// An open regular file. Closed when the last clone of its [`Arc`] is dropped; maps of it live on.
#[expect(clippy::len_without_is_empty, reason = "the length of a file on disk, and a call that can fail")]
pub trait VfsFile: Send + Sync + Debug {
    /// Its length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Makes it `len` bytes long. New bytes read as zero and occupy no room until written, so that a
    /// write to a map of them may find the disk full, which kills the process: see
    /// [`VfsFile::allocate`]. Never cut a file that is mapped. Durable after the next sync.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Makes it at least `len` bytes long and takes the room for bytes 0 to `len`, so that no write
    /// below `len` can find the disk full. New bytes read as zero; old ones keep their content. On
    /// failure the file has its old length again. Where the file system cannot take room without
    /// writing, the new bytes are written as zeros; holes below the old length then remain.
    /// Durable after the next sync.
    fn allocate(&self, len: u64) -> io::Result<()>;

    /// Reads up to `buf.len()` bytes from `offset` on; 0 only at or beyond the end, or for an empty
    /// `buf`. Sees every write that returned before, through the file or through a map.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Asks the system to fetch these bytes into memory, as they are going to be read; it need not. Comes back
    /// before they are there, so that several such ranges are fetched at the same time. A file system that has
    /// no such call does nothing.
    fn expect_read(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    /// Fills `buf` from `offset` on, or fails with `UnexpectedEof`.
    fn read_exact_at(&self, mut buf: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buf.is_empty() {
            let count = self.read_at(buf, offset)?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            offset += count as u64;
            buf = buf.get_mut(count..).unwrap_or_default();
        }
        Ok(())
    }

    /// Writes all of `buf` at `offset`, making the file longer where needed; normally one system
    /// call. Visible to all maps and readers when it returns; after an error any part of `buf` may
    /// have been written. Durable after the next sync.
    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;

    /// Asks the system to begin writing these bytes, which were written just now, to the disk; it need not. Nothing
    /// is durable by that. A file system that has no such call does nothing.
    fn start_writing(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    /// When it returns `Ok`, all bytes written before the call, through this handle, another one or a
    /// map, are durable, and so is the length. Not the name: see [`Vfs::sync_dir`].
    fn sync_data(&self) -> io::Result<()>;

    /// As [`VfsFile::sync_data`], and the times of the file too.
    fn sync_all(&self) -> io::Result<()>;

    /// Its length, number, link count and so on, under whatever name it has now.
    fn stat(&self) -> io::Result<FileStat>;

    /// The first position at or after `from` that may hold something else than zeros never written;
    /// `None` when only a hole follows, or the end. File systems without holes answer `from`.
    fn next_data(&self, from: u64) -> io::Result<Option<u64>>;

    /// Maps bytes `offset` to `offset + len`: `offset` a multiple of the page size, `len` above 0,
    /// the end within the file, else `InvalidInput`. Writable maps vanish from children made by
    /// `fork`. The map stays valid after the file is closed, renamed or removed. Allocate what is to
    /// be written through it; whoever cuts the file below the map's end kills the process.
    fn map(&self, offset: u64, len: usize, access: MapAccess) -> io::Result<Region>;
}
