//! The socket of a store: `mqstore/socket` below its root.
//!
//! Only the holder of the writer's lock binds it, under a name of its own, and then renames it: so a socket that an
//! owner left is replaced in one step, and no process removes the socket of another owner. Its permissions are those of
//! the folder: others than the owner's user can connect if they can write to the folder by its group.
//!
//! The address of a socket holds about 100 bytes. So that paths can be longer, Linux reaches the folder through its open
//! descriptor, `/proc/self/fd/N`.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, chmodat, openat, renameat, statat, unlinkat};
use rustix::process::{Pid, getpid};

/// The name of the socket.
const NAME: &str = "socket";
/// The folder of mqstore's own files.
const FOLDER: &str = "mqstore";

/// The open folder of a socket, and a short path of it.
struct Folder {
    descriptor: OwnedFd,
    path: PathBuf,
}

impl Folder {
    fn open(root: &Path) -> io::Result<Self> {
        let path = root.join(FOLDER);
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptor = openat(CWD, &path, flags, Mode::empty())?;
        let path = if cfg!(target_os = "linux") {
            PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))
        } else {
            path
        };
        Ok(Self { descriptor, path })
    }
}

/// The published socket of an owner. Dropping it removes the name.
pub(crate) struct PublishedSocket {
    folder: Folder,
    /// Whether members of the folder's group can connect, too. The system checks that they are.
    pub(crate) admits_group: bool,
    inode: u64,
    /// The process that published it: a forked child removes nothing.
    pid: Pid,
}

impl Drop for PublishedSocket {
    fn drop(&mut self) {
        let ours = |inode: u64| inode == self.inode && getpid() == self.pid;
        let stat = statat(&self.folder.descriptor, NAME, AtFlags::SYMLINK_NOFOLLOW);
        if stat.is_ok_and(|stat| ours(stat.st_ino)) {
            // A socket that stays is replaced by the next owner.
            let _ = unlinkat(&self.folder.descriptor, NAME, AtFlags::empty());
        }
    }
}

/// Publishes the socket of the store at `root`. The caller holds the writer's lock.
///
/// # Errors
/// Those of the system; on a file system without sockets, that of the bind.
pub(crate) fn publish(root: &Path) -> io::Result<(UnixListener, PublishedSocket)> {
    let folder = Folder::open(root)?;
    let pid = getpid();
    let own = format!("{NAME}.{}", pid.as_raw_nonzero());
    // One that a killed process with the same id left.
    let _ = unlinkat(&folder.descriptor, own.as_str(), AtFlags::empty());
    let listener = UnixListener::bind(folder.path.join(&own))?;
    let rights = statat(&folder.descriptor, ".", AtFlags::empty())?.st_mode;
    let shared = Mode::WGRP.bits() & rights as rustix::fs::RawMode != 0;
    let mode = if shared { 0o660 } else { 0o600 };
    chmodat(&folder.descriptor, own.as_str(), Mode::from_bits_truncate(mode), AtFlags::empty())?;
    let inode = statat(&folder.descriptor, own.as_str(), AtFlags::SYMLINK_NOFOLLOW)?.st_ino;
    renameat(&folder.descriptor, own.as_str(), &folder.descriptor, NAME)?;
    Ok((listener, PublishedSocket { folder, admits_group: shared, inode, pid }))
}

/// Connects to the owner of the store at `root`.
///
/// # Errors
/// `NotFound` and `ConnectionRefused` if there is no owner that shares; `PermissionDenied` for a user who cannot write
/// the store.
pub(crate) fn connect(root: &Path) -> io::Result<UnixStream> {
    let folder = Folder::open(root)?;
    UnixStream::connect(folder.path.join(NAME))
}

/// Whether an error of [`connect`] means that no owner shares the store now.
pub(crate) fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn root() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(FOLDER)).unwrap();
        dir
    }

    #[test]
    fn a_socket_is_found_and_goes_with_its_owner() {
        let dir = root();
        assert!(is_absent(&connect(dir.path()).unwrap_err()));
        let (listener, published) = publish(dir.path()).unwrap();
        let _stream = connect(dir.path()).unwrap();
        let mode = std::fs::metadata(dir.path().join("mqstore/socket")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(listener);
        assert!(is_absent(&connect(dir.path()).unwrap_err()), "a stale one");
        let (_later, later_published) = publish(dir.path()).unwrap();
        drop(published);
        connect(dir.path()).expect("the drop of the first leaves the socket of the second");
        drop(later_published);
        assert_eq!(std::fs::read_dir(dir.path().join(FOLDER)).unwrap().count(), 0);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_long_path_is_no_problem() {
        let dir = root();
        let long = dir.path().join("x".repeat(200));
        std::fs::create_dir_all(long.join(FOLDER)).unwrap();
        let (_listener, _published) = publish(&long).unwrap();
        connect(&long).unwrap();
    }
}
