//! The real file system, by system calls.
//!
//! Linux comes first. What differs on macOS is under `cfg` in the function concerned. Every descriptor is close-on-exec
//! and above 2, so that a stray print never reaches a store file. An open follows no link and does not wait for a pipe.
//! A file that is not regular is refused after the open. Calls that a signal interrupts are repeated. So are opens and
//! maps that find no free descriptor or no memory, after files that are not in use are closed.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

#[cfg(target_os = "linux")]
use rustix::fs::StatxFlags;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::open_files::OpenFiles;
use crate::vfs::{
    Access, DirEntry, Environment, FileKind, FileStat, LockError, LockHolder, ProcessFiles, SpaceInfo,
    StoreLock, Vfs, VfsFile, found,
};

mod descriptor;
mod file;
mod lock;
mod mmap;
#[cfg(target_os = "linux")]
mod paced_reads;
mod priority;
#[cfg(target_os = "linux")]
mod read_once;
#[cfg(test)]
mod tests;
mod wake_descriptor;

pub use priority::lower_thread_priority;
pub use wake_descriptor::WakeDescriptor;

use descriptor::{above_stderr, file_kind, file_stat, open_regular, retry, retry_open};
use file::OsFile;

/// The machine's file system. It has no state: all values are equal.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsVfs;

impl OsVfs {
    /// Creates the machine's file system.
    pub fn new() -> Self {
        Self
    }

    /// Returns the folder of the system for temporary files, whose path is short. No file of a store belongs there.
    pub fn temporary_folder() -> PathBuf {
        std::env::temp_dir()
    }
}

impl Vfs for OsVfs {
    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn VfsFile>> {
        let flags = match access {
            Access::Read => OFlags::RDONLY,
            Access::ReadWrite => OFlags::RDWR,
        };
        Ok(Arc::new(OsFile::new(open_regular(path, flags)?)))
    }

    fn create_new(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>> {
        Ok(Arc::new(OsFile::new(open_regular(path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)?)))
    }

    fn stat(&self, path: &Path) -> io::Result<FileStat> {
        descriptor::stat(path)
    }

    #[cfg(target_os = "linux")]
    fn inode(&self, path: &Path) -> io::Result<u64> {
        let asked = StatxFlags::INO;
        match retry(|| rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, asked)) {
            // Some sandboxes do not support the call.
            Err(Errno::NOSYS | Errno::PERM) => Ok(self.stat(path)?.inode),
            result => Ok(result?.stx_ino),
        }
    }

    fn linked_folder(&self, path: &Path) -> Option<PathBuf> {
        let is_kind = |path: &Path, kind| descriptor::stat(path).is_ok_and(|stat| stat.kind == kind);
        let target = is_kind(path, FileKind::Symlink).then(|| fs::canonicalize(path).ok()).flatten();
        target.filter(|target| is_kind(target, FileKind::Directory))
    }

    fn link_folder(&self, target: &Path, link: &Path) -> io::Result<()> {
        retry(|| std::os::unix::fs::symlink(target, link))
    }

    fn is_same_folder(&self, a: &Path, b: &Path) -> bool {
        let identity = |path: &Path| {
            let folder = retry(|| fs::metadata(path)).ok().filter(fs::Metadata::is_dir)?;
            Some((folder.dev(), folder.ino()))
        };
        identity(a).is_some_and(|folder| identity(b) == Some(folder))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let mut entries = each_name(dir, |folder, name, _| {
            // Relative to its folder: with a path, the system would resolve the path again for each file.
            let stat = stat_in(folder, name)?;
            Ok(stat.map(|stat| DirEntry { name: name.to_owned(), stat }))
        })?;
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn list_kinds(&self, dir: &Path) -> io::Result<Vec<(OsString, FileKind)>> {
        let mut entries = each_name(dir, |folder, name, kind| {
            let kind = match kind {
                // Some file systems do not store the kind with the name.
                FileType::Unknown => stat_in(folder, name)?.map(|stat| stat.kind),
                kind => Some(file_kind(kind)),
            };
            Ok(kind.map(|kind| (name.to_owned(), kind)))
        })?;
        entries.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Ok(entries)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        retry(|| fs::create_dir(path))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        retry(|| fs::create_dir_all(path))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        retry(|| fs::rename(from, to))
    }

    fn rename_noreplace(&self, from: &Path, to: &Path) -> io::Result<()> {
        match retry(|| rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)) {
            // A folder moved below itself is a mistake of the caller, not of the file system.
            Err(Errno::INVAL) if to.starts_with(from) => Err(Errno::INVAL.into()),
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => rename_by_link(from, to),
            result => Ok(result?),
        }
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        Ok(retry(|| rustix::fs::linkat(CWD, from, CWD, to, AtFlags::empty()))?)
    }

    #[cfg(target_os = "linux")]
    fn reflink(&self, from: &Path, to: &Path) -> io::Result<Arc<dyn VfsFile>> {
        let source = open_regular(from, OFlags::RDONLY)?;
        let target = open_regular(to, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)?;
        match retry(|| rustix::fs::ioctl_ficlone(&target, &source)) {
            Ok(()) => Ok(Arc::new(OsFile::new(target))),
            Err(error) => {
                // The name was free, and the new file is empty.
                let _ = retry(|| fs::remove_file(to));
                let cannot = matches!(
                    error,
                    Errno::OPNOTSUPP | Errno::INVAL | Errno::XDEV | Errno::NOTTY | Errno::NOSYS | Errno::PERM
                );
                Err(if cannot { io::ErrorKind::Unsupported.into() } else { error.into() })
            }
        }
    }

    fn exchange(&self, a: &Path, b: &Path) -> io::Result<()> {
        match retry(|| rustix::fs::renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE)) {
            Err(Errno::INVAL) if a.starts_with(b) || b.starts_with(a) => Err(Errno::INVAL.into()),
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => Err(io::ErrorKind::Unsupported.into()),
            result => Ok(result?),
        }
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        retry(|| fs::remove_file(path))
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        retry(|| fs::remove_dir(path))
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        retry_open(|| fs::remove_dir_all(path))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        fs::File::from(retry_open(|| open_folder(dir))?).sync_all()
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn StoreLock>, LockError> {
        Ok(Box::new(lock::OsLock::acquire(path)?))
    }

    fn lock_holder(&self, path: &Path) -> io::Result<Option<LockHolder>> {
        lock::holder(path)
    }

    fn lock_owner(&self, path: &Path) -> Option<i32> {
        lock::owner(path)
    }

    fn free_space(&self, path: &Path) -> io::Result<SpaceInfo> {
        let stat = retry(|| rustix::fs::statvfs(path))?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Ok(SpaceInfo {
            total: bytes(stat.f_blocks),
            free: bytes(stat.f_bfree),
            available: bytes(stat.f_bavail.min(stat.f_bfree)),
        })
    }

    fn environment(&self) -> Environment {
        // The hasher's keys are random, which is enough for a token.
        let random_seed = RandomState::new().hash_one(std::time::Instant::now());
        Environment { pid: std::process::id(), random_seed, open_files: open_file_limit(), ..facts().clone() }
    }

    fn open_files(&self) -> Option<&'static OpenFiles> {
        Some(OpenFiles::of_this_process())
    }

    #[cfg(target_os = "linux")]
    fn files_of_process(&self, pid: u32) -> Option<ProcessFiles> {
        let limits = retry_open(|| fs::read_to_string(format!("/proc/{pid}/limits"))).ok()?;
        // The name of the limit, then the current and the largest possible value.
        let current =
            limits.lines().find_map(|line| line.strip_prefix("Max open files"))?.split_whitespace().next()?;
        let limit = if current == "unlimited" { u64::MAX } else { current.parse().ok()? };
        let open = retry_open(|| fs::read_dir(format!("/proc/{pid}/fd"))).ok()?.count() as u64;
        Some(ProcessFiles { open, limit })
    }
}

/// Facts that do not change while the process runs. A reader that follows a writer asks for them with every message,
/// and the number of processors alone needs reads of several files.
fn facts() -> &'static Environment {
    static FACTS: OnceLock<Environment> = OnceLock::new();
    FACTS.get_or_init(|| Environment {
        boot_id: boot_id(),
        pid: 0,
        hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        random_seed: 0,
        threads: true,
        processors: std::thread::available_parallelism().map_or(1, |count| count.get() as u32),
        memory_bytes: memory_bytes(),
        open_files: 0,
    })
}

/// Returns the current limit of open files, which a program can change.
fn open_file_limit() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Returns the bytes of memory of this machine.
#[cfg(target_os = "linux")]
fn memory_bytes() -> u64 {
    let memory = rustix::system::sysinfo();
    #[expect(clippy::useless_conversion, reason = "the field is shorter on machines of 32 bits")]
    u64::from(memory.totalram).saturating_mul(u64::from(memory.mem_unit))
}

#[cfg(not(target_os = "linux"))]
fn memory_bytes() -> u64 {
    u64::MAX
}

/// Opens a folder. The callers repeat the call if there is no free descriptor.
fn open_folder(dir: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    above_stderr(retry(|| rustix::fs::open(dir, flags, Mode::empty()))?)
}

/// Calls `visit` for each name in `dir` except `.` and `..`, with the folder and the folder's information on the kind.
/// Returns the results. If a signal interrupts it, it starts again: the reader of a folder ends with its first error.
fn each_name<T>(
    dir: &Path,
    mut visit: impl FnMut(BorrowedFd<'_>, &OsStr, FileType) -> io::Result<Option<T>>,
) -> io::Result<Vec<T>> {
    retry_open(|| names_of(dir, &mut visit))
}

fn names_of<T>(
    dir: &Path,
    visit: &mut impl FnMut(BorrowedFd<'_>, &OsStr, FileType) -> io::Result<Option<T>>,
) -> io::Result<Vec<T>> {
    let mut found = Vec::new();
    let mut names = rustix::fs::Dir::new(open_folder(dir)?)?;
    while let Some(entry) = names.read() {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            found.extend(visit(names.fd()?, name, entry.file_type())?);
        }
    }
    Ok(found)
}

/// Returns the data of `name` in an open folder, without following a link; `None` if it no longer exists.
fn stat_in(folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<Option<FileStat>> {
    let stat = retry(|| rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW));
    found(stat.map(|stat| file_stat(&stat)).map_err(io::Error::from))
}

/// Renames on file systems without `RENAME_NOREPLACE`: adds the second name, which never replaces a file, then removes
/// the first. A crash in between leaves both.
fn rename_by_link(from: &Path, to: &Path) -> io::Result<()> {
    retry(|| rustix::fs::linkat(CWD, from, CWD, to, AtFlags::empty()))?;
    retry(|| fs::remove_file(from))
}

/// Returns the kernel's boot id; zeros if it has none.
fn boot_id() -> [u8; 16] {
    let text = retry_open(|| fs::read_to_string("/proc/sys/kernel/random/boot_id")).unwrap_or_default();
    parse_uuid(&text).unwrap_or_default()
}

/// Parses 32 hex digits with any number of dashes and spaces between them.
fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|c| *c != '-' && !c.is_whitespace())
        .map(|c| c.to_digit(16).map(|d| d as u8))
        .collect::<Option<_>>()?;
    let bytes: Vec<u8> =
        digits.chunks_exact(2).map(|pair| pair.iter().fold(0, |sum, digit| sum << 4 | digit)).collect();
    <[u8; 16]>::try_from(bytes).ok().filter(|_| digits.len() == 32)
}
