//! The socket of a store: `mqstore/socket` below its root.
//!
//! Only the holder of the writer's lock binds it, under a name of its own, and then renames it: so a socket that an
//! owner left is replaced in one step, and no process removes the socket of another owner. Its permissions are those of
//! the folder: others than the owner's user can connect if they can write to the folder by its group.
//!
//! The address of a socket holds about 100 bytes. So that paths can be longer, Linux reaches the folder through its open
//! descriptor, `/proc/self/fd/N`, and other systems through a symbolic link in the folder for temporary files, for the
//! time of the call.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use mqstore::io::{OsVfs, Vfs};
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, chmodat, mkdir, openat, renameat, rmdir, statat, symlink, unlink, unlinkat,
};
use rustix::process::{Pid, getpid};

/// The name of the socket.
const NAME: &str = "socket";
/// The folder of mqstore's own files.
const FOLDER: &str = "mqstore";

/// The longest path that the address of a socket holds on all systems, without its end.
const LONGEST_ADDRESS: usize = 103;
/// Bytes that a path in the folder of a socket can need: a slash, [`NAME`], a point and a process id.
const LONGEST_NAME: usize = 20;

/// The open folder of a socket.
struct Folder {
    descriptor: OwnedFd,
    path: PathBuf,
}

impl Folder {
    fn open(root: &Path) -> io::Result<Self> {
        let path = root.join(FOLDER);
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptor = openat(CWD, &path, flags, Mode::empty())?;
        Ok(Self { descriptor, path })
    }

    /// Calls `call` with a short path of the folder.
    fn with_path<T>(&self, call: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
        if cfg!(target_os = "linux") {
            return call(Path::new(&format!("/proc/self/fd/{}", self.descriptor.as_raw_fd())));
        }
        if self.path.as_os_str().len() + LONGEST_NAME <= LONGEST_ADDRESS {
            return call(&self.path);
        }
        with_link(&self.path, call)
    }
}

/// Calls `call` with a symbolic link to `folder`, whose path is short. The link is in a new folder of this user.
fn with_link<T>(folder: &Path, call: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let folder = std::path::absolute(folder)?;
    let random = OsVfs::new().environment().random_seed;
    let own = OsVfs::temporary_folder().join(format!("mqs-{random:016x}"));
    mkdir(&own, Mode::RWXU)?;
    let link = own.join("s");
    let called = symlink(&folder, &link).map_err(io::Error::from).and_then(|()| call(&link));
    // What stays there is a link.
    let _ = unlink(&link).and_then(|()| rmdir(&own));
    called
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
    let listener = folder.with_path(|path| UnixListener::bind(path.join(&own)))?;
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
    Folder::open(root)?.with_path(|path| UnixStream::connect(path.join(NAME)))
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

    #[test]
    fn a_long_path_is_no_problem() {
        let dir = root();
        let long = dir.path().join("x".repeat(200));
        std::fs::create_dir_all(long.join(FOLDER)).unwrap();
        let (_listener, _published) = publish(&long).unwrap();
        connect(&long).unwrap();
    }

    #[test]
    fn a_link_makes_a_long_path_short_for_one_call() {
        let dir = root();
        let long = dir.path().join("x".repeat(200));
        std::fs::create_dir_all(&long).unwrap();
        let mut link = PathBuf::new();
        let bind = |path: &Path| {
            path.clone_into(&mut link);
            UnixListener::bind(path.join("socket.4194304"))
        };
        let _listener = with_link(&long, bind).unwrap();
        assert!(link.as_os_str().len() + LONGEST_NAME <= LONGEST_ADDRESS, "{}", link.display());
        assert!(std::fs::symlink_metadata(&link).is_err() && !link.parent().unwrap().exists());
        with_link(&long, |path| UnixStream::connect(path.join("socket.4194304"))).unwrap();
        let refused: io::Result<()> = with_link(&long, |_| Err(io::ErrorKind::NotFound.into()));
        assert!(is_absent(&refused.unwrap_err()));
    }
}
