//! The history of calls, and the faults to inject.

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
    /// `Vfs::lock`, `Vfs::lock_holder` and `VfsFile::lock_holder`.
    Lock,
    /// `Vfs::free_space`.
    FreeSpace,
    /// `VfsFile::set_len`, `VfsFile::set_modified_ms`.
    SetLen,
    /// `VfsFile::allocate`, `VfsFile::allocate_range`.
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
    /// Returns whether such a call can change the disk, or its possible content after a crash.
    pub fn changes(self) -> bool {
        !matches!(
            self,
            Self::Open | Self::Stat | Self::List | Self::FreeSpace | Self::Read | Self::Map | Self::Lock
        )
    }
}

/// One call. `offset` and `len` give its bytes, or 0 if it has none. For [`OperationKind::SetLen`] and
/// [`OperationKind::Allocate`], `len` is the new length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its number, counted from 1.
    pub number: u64,
    /// The kind of the call.
    pub kind: OperationKind,
    /// The given path, or the path at which the file was opened; for a rename or link the target.
    pub path: PathBuf,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

/// A fault to inject.
///
/// After a failed write, any part may be written. After a failed sync, any part may be on the disk, all pages count as
/// clean, and the next sync succeeds without writing them. Other failed calls do nothing.
#[derive(Clone, Debug)]
pub struct Fault {
    skip: u64,
    kinds: Vec<OperationKind>,
    path: Option<PathBuf>,
    errno: i32,
    sticky: bool,
}

impl Fault {
    /// Creates a fault that makes the `nth` call from now on fail once, with an I/O error (1 is the next call).
    pub fn nth(nth: u64) -> Self {
        let errno = Errno::IO.raw_os_error();
        Self { skip: nth.saturating_sub(1), kinds: Vec::new(), path: None, errno, sticky: false }
    }

    /// Limits the fault to calls of these kinds. Other calls do not count.
    #[must_use]
    pub fn on(mut self, kinds: &[OperationKind]) -> Self {
        self.kinds = kinds.to_vec();
        self
    }

    /// Limits the fault to calls on this path and below it. Other calls do not count.
    #[must_use]
    pub fn under(mut self, path: &Path) -> Self {
        self.path = Some(path.to_path_buf());
        self
    }

    /// Sets the system's error number to `errno`.
    #[must_use]
    pub fn errno(mut self, errno: i32) -> Self {
        self.errno = errno;
        self
    }

    /// Sets the error "no space left on device".
    #[must_use]
    pub fn no_space(self) -> Self {
        self.errno(Errno::NOSPC.raw_os_error())
    }

    /// Sets the error "read-only file system".
    #[must_use]
    pub fn read_only(self) -> Self {
        self.errno(Errno::ROFS.raw_os_error())
    }

    /// Makes all matching calls after the first failure fail too.
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

/// The armed faults, and how often faults were injected.
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

    /// Returns the error of the first fault that matches this call.
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
