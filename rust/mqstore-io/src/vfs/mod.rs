//! The file system of a store: its operations, and the durable state after each one.
//!
//! [`Vfs`] works on names, [`VfsFile`] on an open file, and [`StoreLock`] excludes other writers. `OsVfs` makes system
//! calls; `SimVfs` works in memory. [`Vfs`] has the rules for every method of both.

use std::ffi::OsString;
use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::open_files::OpenFiles;
use crate::read_pace::ReadPace;
use crate::region::{MapAccess, Region};
use crate::switch;

#[cfg(test)]
pub(crate) mod tests;

/// The access mode of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// For reading; writes and writable maps fail.
    Read,
    /// For reading and writing.
    ReadWrite,
}

/// The kind of file that a name refers to, without following links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A folder.
    Directory,
    /// A symbolic link, to any target.
    Symlink,
    /// A pipe, a socket or a device.
    Other,
}

/// The file system's data about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStat {
    /// The kind of file.
    pub kind: FileKind,
    /// Length in bytes, holes included.
    pub len: u64,
    /// Last change of the content, milliseconds since 1970-01-01 UTC.
    pub modified_ms: i64,
    /// The number that identifies the file on its file system, whatever its name.
    pub inode: u64,
    /// Number of names; 0 if it was removed while open.
    pub links: u64,
    /// Bytes on the disk; less than `len` for a file with holes.
    pub allocated_bytes: u64,
}

/// One name in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name, without the folder.
    pub name: OsString,
    /// The file that the name refers to, without following links.
    pub stat: FileStat,
}

/// The space of a file system, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceInfo {
    /// Size of the file system.
    pub total: u64,
    /// Unused bytes.
    pub free: u64,
    /// Unused bytes for ordinary users; at most `free`.
    pub available: u64,
}

impl SpaceInfo {
    /// Maximum of [`Self::reserve_bytes`].
    const MOST_RESERVE_BYTES: u64 = 16 << 20;

    /// Returns the bytes that new segments leave free, for queues, index and metadata: a hundredth of the file system,
    /// at most 16 MiB. So consumers can still commit on a disk that takes no more messages.
    pub fn reserve_bytes(&self) -> u64 {
        (self.total / 100).min(Self::MOST_RESERVE_BYTES)
    }

    /// Whether `bytes` more leave the reserve free.
    pub fn can_take(&self, bytes: u64) -> bool {
        self.available >= self.reserve_bytes().saturating_add(bytes)
    }
}

/// The holder of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// The process, if the system reports it. It reports the owner of a Java broker's record lock, but not of a lock on
    /// an open file description, which is what mqstore takes on Linux.
    pub pid: Option<i32>,
    /// Whether it may be a lock of [`Vfs::lock`]. On Linux, a broker's lock is of another kind.
    pub may_be_ours: bool,
}

/// The cause of an error of a call that asked for bytes on a full disk. The kind of the error is `StorageFull`, or
/// `QuotaExceeded` for the disk quota of a user.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub struct NoSpace {
    /// The number of bytes for which the call needed space.
    pub requested_bytes: u64,
    /// The free bytes of the file system after the error, if they are known.
    pub free_bytes: Option<u64>,
    source: io::Error,
}

impl NoSpace {
    /// Returns the cause that `error` carries, if it has one.
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }

    /// Returns the error of an allocation for which a disk has too little space.
    pub fn error(requested_bytes: u64, free_bytes: Option<u64>) -> io::Error {
        Self::explain(io::ErrorKind::StorageFull.into(), requested_bytes, || free_bytes)
    }

    /// Adds the numbers to an error of a full disk; returns other errors unchanged.
    pub(crate) fn explain(
        error: io::Error,
        requested_bytes: u64,
        free_bytes: impl FnOnce() -> Option<u64>,
    ) -> io::Error {
        if !is_disk_full(&error) || Self::of(&error).is_some() {
            return error;
        }
        io::Error::new(error.kind(), Self { requested_bytes, free_bytes: free_bytes(), source: error })
    }
}

/// Returns whether the disk, or the disk quota of the user, is full.
pub fn is_disk_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Maximum number of threads for one piece of work.
const MOST_AT_WORK: u32 = 8;

/// Facts about the machine and the process that do not change while the process runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// A number that changes at each boot; all zero if the system has none. If two numbers are equal, the page cache
    /// was not lost between them.
    pub boot_id: [u8; 16],
    /// The process id.
    pub pid: u32,
    /// The machine's host name.
    pub hostname: String,
    /// A number that is hard to guess and different at each call. It is for tokens that distinguish two opens, not for
    /// secrets. The simulated one is the same in each run.
    pub random_seed: u64,
    /// Whether background work can have threads; `false` in a simulation whose test runs each step itself.
    pub threads: bool,
    /// Processors that this process can use at the same time; at least 1.
    pub processors: u32,
    /// Bytes of memory of the machine; `u64::MAX` if unknown.
    pub memory_bytes: u64,
    /// Maximum number of open files of the process; `u64::MAX` without a limit.
    pub open_files: u64,
}

impl Environment {
    /// Returns the number of threads that can help with work that has many small parts.
    pub fn helpers(&self) -> u32 {
        if self.threads { self.processors.clamp(1, MOST_AT_WORK) - 1 } else { 0 }
    }

    /// Returns the number of queue and index files that all stores of the process together may keep open: half of its
    /// limit.
    pub fn most_kept_files(&self) -> u64 {
        (self.open_files / 2).max(1)
    }

    /// Returns the number of queue and index files that one store keeps open by default: an eighth of the limit, at
    /// least 512 and at most 4,096, but never more than [`Self::most_kept_files`].
    pub fn default_kept_files(&self) -> u64 {
        (self.open_files / 8).clamp(512, 4096).min(self.most_kept_files())
    }
}

/// The files that a process has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessFiles {
    /// Number of its descriptors.
    pub open: u64,
    /// Maximum number of its descriptors; `u64::MAX` without a limit.
    pub limit: u64,
}

/// The reason why a lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another handle holds it, in this process or in another.
    #[error("held by {}", .pid.map_or_else(|| "another holder".to_owned(), |pid| format!("process {pid}")))]
    Held {
        /// The holder, as in [`LockHolder::pid`].
        pid: Option<i32>,
    },
    /// The lock file cannot be opened, created or locked.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The right to write to a store; released on drop.
pub trait StoreLock: Send + Sync + Debug {
    /// Closes the child's copy of the descriptor. Call it in a child process after `fork`, so that only the parent
    /// holds the lock. The parent's lock does not change. The method does not allocate and does not wait. A call in the
    /// parent releases the lock early.
    fn disown_in_child(&self);
}

/// A file system, by names.
///
/// ```text
///             Vfs ── VfsFile ── Region ── RegionView          Clock        StoreLock
/// real        OsVfs (`os`)      mapped pages                  SystemClock  record lock on byte 0
/// simulated   SimVfs (`sim`)    heap pages, the file's own    ManualClock  one holder per file
/// remote      RemoteVfs         copies of fetched bytes       SystemClock  none: for reading only
/// ```
///
/// Three rules hold for every method of this trait and of [`VfsFile`]:
///
/// * *Durable* data survives a power loss. A write alone makes nothing durable. Bytes become durable by
///   [`VfsFile::sync_data`], [`VfsFile::sync_all`] or [`Region::flush`], names by [`Vfs::sync_dir`] of their folder.
///   Any combination of 4 KiB pages and of names that are not durable may survive.
/// * Everything written survives the death of the process, synced or not.
/// * Errors carry the system's number ([`io::Error::raw_os_error`]) if a system call gave one. An error of a full disk
///   can carry [`NoSpace`] instead. After a failed sync the state of the pages on disk is unknown, and a later sync that
///   succeeds proves nothing: the caller has to write the bytes again, then sync.
///
/// No method follows a symbolic link in the last part of a file's path, and none waits for a pipe or a device.
/// [`Vfs::list`], [`Vfs::list_kinds`], [`Vfs::sync_dir`] and [`Vfs::free_space`] accept a link to a folder, so that the
/// root of a store can be one. [`Vfs::linked_folder`] finds the target of a link. Many threads can call methods at the
/// same time. Concurrent calls on the same bytes take effect, for each page, in one of the possible orders.
///
/// Paths are used as given. Relative paths start at the current folder of the process.
pub trait Vfs: Send + Sync + Debug {
    /// Opens an existing regular file. A folder, a link, a pipe or a device is an error; the call neither follows it
    /// nor waits for it. Changes nothing on disk.
    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn VfsFile>>;

    /// Creates a file of length 0 and opens it for reading and writing. Returns `AlreadyExists` if the name is in use.
    /// The name is durable after [`Vfs::sync_dir`] of its folder.
    fn create_new(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>>;

    /// Returns the data of the file at `path`, without following a link.
    fn stat(&self, path: &Path) -> io::Result<FileStat>;

    /// Returns only [`FileStat::inode`] of the file at `path`, without following a link. Use it for files that are
    /// written all the time: some file systems keep finer times after a [`Vfs::stat`], and then the next write also
    /// changes the inode on disk.
    fn inode(&self, path: &Path) -> io::Result<u64> {
        Ok(self.stat(path)?.inode)
    }

    /// Returns the folder to which the symbolic link at `path` leads, over any number of links; `None` if `path` is no
    /// link, or leads to no folder. The result contains no link, so that no later call replaces one.
    fn linked_folder(&self, _path: &Path) -> Option<PathBuf> {
        None
    }

    /// Creates the symbolic link `link`, whose name must be free, to the folder `target`. A relative `target` starts at
    /// the folder of the link. Durable after [`Vfs::sync_dir`] of that folder.
    fn link_folder(&self, _target: &Path, _link: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns whether two paths lead to one folder, over any number of links; `false` if one of them leads to none.
    fn is_same_folder(&self, a: &Path, b: &Path) -> bool {
        a == b
    }

    /// Returns all names in `dir`, sorted by their bytes, without `.` and `..`. Skips a name that vanishes during the
    /// read.
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>>;

    /// Like [`Vfs::list`], but returns only the kind of each file. Use it for folders with very many names: most file
    /// systems give the kind without an access to each file.
    fn list_kinds(&self, dir: &Path) -> io::Result<Vec<(OsString, FileKind)>> {
        Ok(self.list(dir)?.into_iter().map(|entry| (entry.name, entry.stat.kind)).collect())
    }

    /// Creates one folder. Its parent must exist and the name must be free. Durable after [`Vfs::sync_dir`] of the
    /// parent.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// Creates a folder and its missing parents. If the folder exists, the call succeeds. Each new folder is durable
    /// after [`Vfs::sync_dir`] of its own parent. It is reachable after a crash only if all folders above it are
    /// durable.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Renames the file or folder `from` to `to` and replaces a file of that name. A crash leaves the rename completely
    /// done or not done. It is durable after [`Vfs::sync_dir`] of the folder of `to`. If `from` is in another folder,
    /// the old name can come back next to the new one until that folder is synced too. The rename syncs no content:
    /// sync it first.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Like [`Vfs::rename`], but never replaces: returns `AlreadyExists` if `to` exists.
    fn rename_noreplace(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Adds the name `to`, which must be free, to the file `from`. Durable after [`Vfs::sync_dir`] of the folder of
    /// `to`.
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Creates the file `to`, whose name must be free, with the content of `from` and the same blocks of the device.
    /// Later writes to one file do not change the other. Returns `Unsupported`, without a new file, if the system or
    /// the file system cannot do it. Content and name become durable like those of any new file.
    fn reflink(&self, _from: &Path, _to: &Path) -> io::Result<Arc<dyn VfsFile>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Exchanges two names, of files or folders, in one step. Returns `Unsupported` if the system or the file system
    /// cannot do it. Durable after [`Vfs::sync_dir`] of both folders.
    fn exchange(&self, a: &Path, b: &Path) -> io::Result<()>;

    /// Removes the name of a file. Open files and maps of it stay valid. Durable after [`Vfs::sync_dir`] of its folder;
    /// until then a crash can bring the name back.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty folder. Durable after [`Vfs::sync_dir`] of its parent.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;

    /// Removes a folder with everything in it. Removes links and does not follow them. A crash can leave any part.
    /// Durable after [`Vfs::sync_dir`] of its parent.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Makes the current names in `dir` durable: created, renamed, linked and removed ones. Does not sync the content
    /// of files, folders below `dir`, or the name of `dir` itself.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Takes the writer's lock without waiting: an exclusive record lock on byte 0, length 1, of `path`. Creates a
    /// missing file. A file of length 0 gets the content `lock`; other content stays. A refused call changes nothing.
    /// The lock and a Java broker's lock exclude each other. It also excludes every second call, in this process too.
    ///
    /// Source: `DefaultMessageStore#start` (`FileChannel.tryLock(0, 1, false)`).
    fn lock(&self, path: &Path) -> Result<Box<dyn StoreLock>, LockError>;

    /// Returns the holder of the writer's lock on `path`; `None` if it is free or the file does not exist. Changes
    /// nothing. The answer can be outdated when it arrives.
    fn lock_holder(&self, path: &Path) -> io::Result<Option<LockHolder>>;

    /// Returns a process that has the file `path` open with a lock that names no process, if the system tells it. Reads
    /// the list of all processes, so call it only for an error. `None` if it is unknown.
    fn lock_owner(&self, _path: &Path) -> Option<i32> {
        None
    }

    /// Returns the space of the file system that contains `path`, which must exist.
    fn free_space(&self, path: &Path) -> io::Result<SpaceInfo>;

    /// Returns the facts about the machine and the process.
    fn environment(&self) -> Environment;

    /// Returns the files that this process keeps open; `None` for a file system without a limit.
    fn open_files(&self) -> Option<&'static OpenFiles> {
        None
    }

    /// Whether files are fetched from a remote file system, so that a read can take long.
    fn is_remote(&self) -> bool {
        false
    }

    /// Returns the file and the offset in it that hold a byte of `path`, for a message to the user. They are others only
    /// if the file system makes the files of a store of other ones.
    fn real_place(&self, path: &Path, offset: u64) -> (PathBuf, u64) {
        (path.to_path_buf(), offset)
    }

    /// Returns the length of a read that costs least for each byte, if the file system fetches what it reads, so that
    /// each read is a request; `None` if shorter reads cost about the same.
    fn best_read_bytes(&self) -> Option<u64> {
        None
    }

    /// Returns the first failed request of a remote file system; `None` for all others. A caller may have taken the
    /// failure for a missing or damaged file, so an answer that does not fit it is not complete.
    fn failure(&self) -> Option<io::Error> {
        None
    }

    /// Returns the files that the process `pid` has open; `None` if the system does not show them.
    fn files_of_process(&self, pid: u32) -> Option<ProcessFiles> {
        let _ = pid;
        None
    }

    /// Reads a whole file of at most `limit_bytes`. A longer one is `FileTooLarge`, and is not read.
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
        // The file may have become shorter after the call of `len`.
        bytes.truncate(filled);
        Ok(bytes)
    }

    /// Replaces the content of `path`, or creates it, in one step: writes `bytes` to `tmp` on the same file system,
    /// syncs, renames, and syncs the folder of `path`. The content is durable when the call returns `Ok`. After a crash
    /// or an error, `path` has the old or the new content, and `tmp` may exist. An existing file at `tmp` is removed
    /// first.
    fn write_atomic(&self, path: &Path, tmp: &Path, bytes: &[u8]) -> io::Result<()> {
        match self.remove_file(tmp) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = self.create_new(tmp)?;
        let written = file.write_all_at(bytes, 0);
        let written = written.and_then(|()| switch::step("vfs.sync_atomic", || file.sync_all()));
        if let Err(error) = written.and_then(|()| self.rename(tmp, path)) {
            // Reports the first error. The next call removes a leftover.
            let _ = self.remove_file(tmp);
            return Err(error);
        }
        switch::step("vfs.sync_atomic_name", || self.sync_dir(parent_dir(path)))
    }
}

/// Returns `None` instead of an error if a name, or a folder on its path, does not exist.
pub(crate) fn found<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        outcome => outcome.map(Some),
    }
}

/// Returns the folder that contains `path`: `.` for a bare name, and the root for itself.
pub fn parent_dir(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => path,
    }
}

/// Fills `buf` with calls of `read`, which gets the rest of `buf` and its offset, and returns the number of bytes.
fn fill(buf: &mut [u8], offset: u64, read: impl Fn(&mut [u8], u64) -> io::Result<usize>) -> io::Result<()> {
    let len = buf.len();
    if fill_up_to(buf, offset, read)? < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

/// [`VfsFile::read_new`] by [`VfsFile::read_at`].
pub(crate) fn read_cleared(file: &(impl VfsFile + ?Sized), len: usize, offset: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let read = fill_up_to(&mut bytes, offset, |rest, at| file.read_at(rest, at))?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Fills `buf` with calls of `read`, up to the end of the file; returns the number of bytes.
pub fn fill_up_to(
    buf: &mut [u8],
    offset: u64,
    read: impl Fn(&mut [u8], u64) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match read(rest, offset + done as u64)? {
            0 => break,
            count => done += count,
        }
    }
    Ok(done)
}

/// An open regular file. It is closed when the last clone of its [`Arc`] is dropped; its maps stay valid.
#[expect(clippy::len_without_is_empty, reason = "the length of a file on disk, and a call that can fail")]
pub trait VfsFile: Send + Sync + Debug {
    /// Returns the length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Sets the length to `len` bytes. New bytes read as zero and occupy no disk space until they are written. A write
    /// to a map of such bytes can find the disk full, which kills the process; on tmpfs, a read can too: see
    /// [`VfsFile::allocate`] and [`VfsFile::allocate_range`]. Never truncate a mapped file. Durable after the next sync.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Makes the file at least `len` bytes long and reserves disk space for bytes 0 to `len`, so that no write below
    /// `len` can find the disk full. New bytes read as zero; old ones keep their content. After an error, the file has
    /// its old length again. If the file system cannot reserve space, the call writes the new bytes as zeros; then
    /// holes below the old length remain. Durable after the next sync.
    fn allocate(&self, len: u64) -> io::Result<()>;

    /// Reserves disk space for `len` bytes from `offset`, within the length of the file, so that no write to them can
    /// find the disk full. The bytes keep their content, and bytes that have space already cost little. After an error,
    /// a part of the range can have its space. Returns `Unsupported` if the file system cannot reserve space without
    /// writing it. Durable after the next sync.
    fn allocate_range(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Gives a file of length 0 its length `len`, and reserves disk space for its first `first` bytes. If the file
    /// system cannot do that, reserves space for all of them. Returns the end of the reserved space.
    fn allocate_front(&self, len: u64, first: u64) -> io::Result<u64> {
        if first < len {
            self.set_len(len)?;
            match self.allocate_range(0, first) {
                Err(error) if error.kind() == io::ErrorKind::Unsupported => self.set_len(0)?,
                outcome => return outcome.map(|()| first),
            }
        }
        self.allocate(len)?;
        Ok(len)
    }

    /// Reads up to `buf.len()` bytes from `offset`. Returns 0 only at or after the end, or for an empty `buf`. Sees
    /// every write that returned before, through the file or through a map.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Returns `len` bytes from `offset`, or those up to the end of the file. Unlike a read into a buffer, it need not
    /// clear the new memory first.
    fn read_new(&self, len: usize, offset: u64) -> io::Result<Vec<u8>> {
        read_cleared(self, len, offset)
    }

    /// Asks the system to fetch these bytes into memory for a later read. It is a hint. The call returns before the
    /// bytes are there, so that several ranges can be fetched at the same time. A file system without such a call does
    /// nothing.
    fn expect_read(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    /// Gives reads of this file from the disk a pace from now on. While it [holds](ReadPace::holds), reads whose bytes
    /// are not in memory wait for their turn, a read may return fewer bytes, and nothing is fetched in advance. The
    /// first pace stays. A file without a device does nothing.
    fn pace_reads(&self, _pace: &Arc<ReadPace>) {}

    /// Whether reads of this file from the disk have a pace now.
    fn is_paced(&self) -> bool {
        false
    }

    /// Like [`VfsFile::read_at`], for bytes that the caller reads once, such as a pass over a whole log. Pages that are
    /// in memory stay there. Pages that the read brings into memory are dropped again, if the file system offers that;
    /// otherwise they stay as after any read.
    fn read_once_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read_at(buf, offset)
    }

    /// Fills `buf` from `offset`, or returns `UnexpectedEof`.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        fill(buf, offset, |rest, at| self.read_at(rest, at))
    }

    /// Like [`VfsFile::read_exact_at`], by [`VfsFile::read_once_at`].
    fn read_exact_once_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        fill(buf, offset, |rest, at| self.read_once_at(rest, at))
    }

    /// Writes all of `buf` at `offset`, normally in one system call, and extends the file if needed. All maps and
    /// readers see the bytes when it returns. After an error, any part of `buf` may be written. Durable after the next
    /// sync.
    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;

    /// Asks the system to start to write these recently written bytes to the disk. It is a hint and makes nothing
    /// durable. A file system without such a call does nothing.
    fn start_writing(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    /// Makes durable all bytes written before the call, through this handle, another one or a map, and the length. Not
    /// the name: see [`Vfs::sync_dir`].
    fn sync_data(&self) -> io::Result<()>;

    /// Like [`VfsFile::sync_data`], and also syncs the times of the file.
    fn sync_all(&self) -> io::Result<()>;

    /// Returns the holder of the writer's lock on this file, whatever its current name is; see [`Vfs::lock_holder`].
    fn lock_holder(&self) -> io::Result<Option<LockHolder>>;

    /// Sets [`FileStat::modified_ms`]. A later write changes it again. Durable after [`VfsFile::sync_all`].
    fn set_modified_ms(&self, modified_ms: i64) -> io::Result<()>;

    /// Returns its length, inode, link count and so on, whatever its current name is.
    fn stat(&self) -> io::Result<FileStat>;

    /// Returns the first position at or after `from` that is not in a hole; `None` if only a hole or the end follows.
    /// File systems without holes return `from`.
    fn next_data(&self, from: u64) -> io::Result<Option<u64>>;

    /// Maps bytes `offset` to `offset + len`. `offset` must be a multiple of the page size, `len` above 0, and the end
    /// within the file; otherwise the error is `InvalidInput`. Child processes made by `fork` do not get writable maps.
    /// The map stays valid after the file is closed, renamed or removed. Allocate the bytes that you write through it.
    /// If any process truncates the file below the map's end, a later access kills this process.
    fn map(&self, offset: u64, len: usize, access: MapAccess) -> io::Result<Region>;
}
