//! What happened, and what shall go wrong.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// A call that reached the simulated file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum OperationKind {
    /// `Vfs::open`.
    Open,
    /// `Vfs::create_new`.
    Create,
    /// `Vfs::stat`, `VfsFile::stat`, `VfsFile::len`, `VfsFile::next_data`.
    Stat,
    /// `Vfs::list`.
    List,
    /// `Vfs::create_dir` and each folder of `Vfs::create_dir_all`.
    CreateDir,
    /// `Vfs::rename` and `Vfs::rename_noreplace`.
    Rename,
    /// `Vfs::hard_link`.
    HardLink,
    /// `Vfs::exchange`.
    Exchange,
    /// `Vfs::remove_file`.
    RemoveFile,
    /// `Vfs::remove_dir` and `Vfs::remove_dir_all`.
    RemoveDir,
    /// `Vfs::sync_dir`.
    SyncDir,
    /// `Vfs::lock` and `Vfs::lock_holder`.
    Lock,
    /// `Vfs::free_space`.
    FreeSpace,
    /// `VfsFile::set_len`.
    SetLen,
    /// `VfsFile::allocate`.
    Allocate,
    /// `VfsFile::read_at`.
    Read,
    /// `VfsFile::write_all_at`.
    Write,
    /// `VfsFile::sync_data`, `VfsFile::sync_all`.
    Sync,
    /// `VfsFile::map`.
    Map,
    /// A write through a writable region. Cannot fail.
    MapWrite,
    /// `Region::flush`.
    MapFlush,
}

impl OperationKind {
    /// Whether the disk, or what a crash may leave of it, can be another after such a call.
    pub fn changes(self) -> bool {
        !matches!(
            self,
            Self::Open | Self::Stat | Self::List | Self::FreeSpace | Self::Read | Self::Map | Self::Lock
        )
    }
}

/// One call: `offset` and `len` are those of the bytes, 0 where there are none; the new length for
/// [`OperationKind::SetLen`] and [`OperationKind::Allocate`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its number; the first is 1.
    pub number: u64,
    /// What it was.
    pub kind: OperationKind,
    /// The path that was given, or under which the file was opened; the target of a rename or link.
    pub path: PathBuf,
    /// First byte.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
}

/// An error to come.
///
/// A failed write may have written any part; after a failed sync any part is on the disk, all pages
/// count as clean, and the next sync succeeds without writing them; other failed calls do nothing.
#[derive(Clone, Debug)]
pub struct Fault {
    skip: u64,
    kinds: Vec<OperationKind>,
    path: Option<PathBuf>,
    errno: i32,
    sticky: bool,
}

impl Fault {
    /// The `nth` call from now on fails (1 is the very next), once, with an I/O error.
    pub fn nth(nth: u64) -> Self {
        let errno = Errno::IO.raw_os_error();
        Self { skip: nth.saturating_sub(1), kinds: Vec::new(), path: None, errno, sticky: false }
    }

    /// Counts and hits calls of these kinds only.
    #[must_use]
    pub fn on(mut self, kinds: &[OperationKind]) -> Self {
        self.kinds = kinds.to_vec();
        self
    }

    /// Counts and hits calls on this path, and on those below it, only.
    #[must_use]
    pub fn under(mut self, path: &Path) -> Self {
        self.path = Some(path.to_path_buf());
        self
    }

    /// Fails with the system's error number `errno`.
    #[must_use]
    pub fn errno(mut self, errno: i32) -> Self {
        self.errno = errno;
        self
    }

    /// Fails with "no space left on device".
    #[must_use]
    pub fn no_space(self) -> Self {
        self.errno(Errno::NOSPC.raw_os_error())
    }

    /// Fails with "read-only file system".
    #[must_use]
    pub fn read_only(self) -> Self {
        self.errno(Errno::ROFS.raw_os_error())
    }

    /// All matching calls after the first failure fail too.
    #[must_use]
    pub fn sticky(mut self) -> Self {
        self.sticky = true;
        self
    }

    fn matches(&self, kind: OperationKind, path: &Path) -> bool {
        kind != OperationKind::MapWrite
            && (self.kinds.is_empty() || self.kinds.contains(&kind))
            && self.path.as_ref().is_none_or(|prefix| path.starts_with(prefix))
    }
}

/// Faults that wait for their call, and how many have struck.
#[derive(Debug, Default)]
pub(super) struct FaultPlan {
    armed: Vec<Fault>,
    pub(super) fired: u64,
}

impl FaultPlan {
    pub(super) fn arm(&mut self, fault: Fault) {
        self.armed.push(fault);
    }

    pub(super) fn clear(&mut self) {
        self.armed.clear();
    }

    /// The error of the first fault that strikes this call.
    pub(super) fn strike(&mut self, kind: OperationKind, path: &Path) -> io::Result<()> {
        let mut hit = None;
        self.armed.retain_mut(|fault| {
            if !fault.matches(kind, path) {
                return true;
            }
            if fault.skip > 0 {
                fault.skip -= 1;
                return true;
            }
            hit.get_or_insert(fault.errno);
            fault.sticky
        });
        match hit {
            Some(errno) => {
                self.fired += 1;
                Err(io::Error::from_raw_os_error(errno))
            }
            None => Ok(()),
        }
    }
}
