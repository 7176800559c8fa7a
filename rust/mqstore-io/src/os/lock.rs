//! The writer's lock: byte 0, length 1, of the file `lock`.
//!
//! RocketMQ takes it with `FileChannel.tryLock(0, 1, false)`, which is a POSIX record lock. On Linux, the lock of
//! mqstore belongs to the open file description instead of the process. It and record locks exclude each other. It also
//! excludes a second open in the same process, and stays when another descriptor of the file is closed. `flock` is not
//! suitable: it and a record lock ignore each other.
//!
//! A child made by `fork` shares the description. It must not release the lock, so the drop checks the process id. It
//! must not keep the lock alive either: see [`StoreLock::disown_in_child`].
//!
//! macOS does not document such locks. There, mqstore takes a plain record lock and keeps a list of the files that this
//! process has locked. The list refuses a second open before the file is opened, because a close of any descriptor of
//! the file would release the lock.
//!
//! Source: `DefaultMessageStore#start`, `DefaultMessageStore#shutdown`.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use parking_lot::Mutex;
use rustix::fs::OFlags;
use rustix::process::{Pid, getpid};

use super::descriptor::{file_stat, open_regular, retry, stat};
use crate::vfs::{FileStat, LockError, LockHolder, StoreLock};

/// RocketMQ's content of the file.
const CONTENT: &[u8] = b"lock";

// Only on macOS do the system's constants have the type of the field.
const TAKE: libc::c_short = libc::F_WRLCK as _;
const RELEASE: libc::c_short = libc::F_UNLCK as _;

/// How often another process may replace the file before the call gives up.
const ATTEMPTS: usize = 16;

/// The lock while it is held.
#[derive(Debug)]
pub(super) struct OsLock {
    file: Mutex<Option<File>>,
    owner: Pid,
    inode: u64,
}

/// The inodes that this process has locked. Systems whose locks exclude the same process do not need it.
#[cfg(not(target_os = "linux"))]
struct Here(parking_lot::MutexGuard<'static, std::collections::BTreeSet<u64>>);

#[cfg(not(target_os = "linux"))]
impl Here {
    fn lock() -> Self {
        static FILES: Mutex<std::collections::BTreeSet<u64>> = Mutex::new(std::collections::BTreeSet::new());
        Self(FILES.lock())
    }

    fn holder(&self, find: impl FnOnce() -> io::Result<FileStat>) -> Option<LockHolder> {
        let inode = find().ok()?.inode;
        self.0
            .contains(&inode)
            .then(|| LockHolder { pid: Some(getpid().as_raw_nonzero().get()), may_be_ours: true })
    }

    fn add(&mut self, inode: u64) {
        self.0.insert(inode);
    }

    fn remove(&mut self, inode: u64) {
        self.0.remove(&inode);
    }
}

#[cfg(target_os = "linux")]
struct Here;

#[cfg(target_os = "linux")]
#[expect(clippy::unused_self, reason = "the same interface as on the other system")]
impl Here {
    fn lock() -> Self {
        Self
    }

    fn holder(&self, _: impl FnOnce() -> io::Result<FileStat>) -> Option<LockHolder> {
        None
    }

    fn add(&mut self, _: u64) {}

    fn remove(&mut self, _: u64) {}
}

impl OsLock {
    pub(super) fn acquire(path: &Path) -> Result<Self, LockError> {
        let mut here = Here::lock();
        if let Some(LockHolder { pid, .. }) = here.holder(|| stat(path)) {
            return Err(LockError::Held { pid });
        }
        for _ in 0..ATTEMPTS {
            let file = open_regular(path, OFlags::RDWR | OFlags::CREATE)?;
            if !set_lock(&file, TAKE)? {
                let pid = query(&file)?.and_then(|holder| holder.pid);
                return Err(LockError::Held { pid });
            }
            let ours = stat_open(&file)?;
            // If another process removed or replaced the file during the call, this lock protects nothing.
            match stat(path) {
                Ok(named) if named.inode == ours.inode => {}
                Ok(_) => continue,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error.into()),
            }
            if ours.len == 0 {
                file.write_all_at(CONTENT, 0)?;
            }
            here.add(ours.inode);
            return Ok(Self { file: Mutex::new(Some(file)), owner: getpid(), inode: ours.inode });
        }
        Err(LockError::Io(io::Error::other("another process keeps replacing the lock file")))
    }
}

impl StoreLock for OsLock {
    fn disown_in_child(&self) {
        // Threads hold this mutex only briefly, but a thread of the parent may have held it at the fork.
        if let Some(mut file) = self.file.try_lock()
            && file.take().is_some()
            && getpid() == self.owner
        {
            Here::lock().remove(self.inode);
        }
    }
}

impl Drop for OsLock {
    fn drop(&mut self) {
        let Some(file) = self.file.get_mut().take() else { return };
        if getpid() == self.owner {
            Here::lock().remove(self.inode);
            // A close releases the lock too, but not while a forked child still has a copy.
            let _ = set_lock(&file, RELEASE);
        }
    }
}

/// Returns the holder of the lock of `path`.
pub(super) fn holder(path: &Path) -> io::Result<Option<LockHolder>> {
    if let Some(holder) = Here::lock().holder(|| stat(path)) {
        return Ok(Some(holder));
    }
    match open_regular(path, OFlags::RDONLY) {
        Ok(file) => query(&file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the holder of the lock of an open file.
pub(super) fn holder_of_open(file: &File) -> io::Result<Option<LockHolder>> {
    match Here::lock().holder(|| stat_open(file)) {
        Some(holder) => Ok(Some(holder)),
        None => query(file),
    }
}

fn stat_open(file: &File) -> io::Result<FileStat> {
    Ok(file_stat(&retry(|| rustix::fs::fstat(file))?))
}

/// Returns a process with a lock of an open file description of `path`, from Linux's list of the files of processes.
///
/// `F_OFD_GETLK` names no process for such a lock. Other users' processes and other containers stay unknown.
pub(super) fn owner(path: &Path) -> Option<i32> {
    let path = std::fs::canonicalize(path).ok()?;
    std::fs::read_dir("/proc").ok()?.flatten().find_map(|process| {
        let pid = process.file_name().to_str()?.parse().ok()?;
        let home = process.path();
        // The links are read and not followed: a file on a lost network disk must not stop the search.
        let has_lock = |entry: std::fs::DirEntry| {
            std::fs::read_link(entry.path()).is_ok_and(|file| file == path)
                && std::fs::read_to_string(home.join("fdinfo").join(entry.file_name()))
                    .is_ok_and(|facts| facts.contains("OFDLCK"))
        };
        std::fs::read_dir(home.join("fd")).ok()?.flatten().any(has_lock).then_some(pid)
    })
}

fn first_byte(kind: libc::c_short) -> libc::flock {
    libc::flock { l_type: kind, l_whence: libc::SEEK_SET as _, l_start: 0, l_len: 1, l_pid: 0 }
}

/// Takes or releases the lock; returns `false` if another process has it.
fn set_lock(file: impl AsFd, kind: libc::c_short) -> io::Result<bool> {
    let range = first_byte(kind);
    #[cfg(target_os = "linux")]
    let set = || fcntl(&file, FcntlArg::F_OFD_SETLK(&range));
    #[cfg(not(target_os = "linux"))]
    let set = || fcntl(&file, FcntlArg::F_SETLK(&range));
    match retry(set) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns the holder that prevents this process from locking.
fn query(file: impl AsFd) -> io::Result<Option<LockHolder>> {
    let mut range = first_byte(TAKE);
    #[cfg(target_os = "linux")]
    retry(|| fcntl(&file, FcntlArg::F_OFD_GETLK(&mut range)))?;
    #[cfg(not(target_os = "linux"))]
    retry(|| fcntl(&file, FcntlArg::F_GETLK(&mut range)))?;
    if range.l_type == RELEASE {
        return Ok(None);
    }
    // -1 means an open file description, 0 a process of another container.
    let may_be_ours = range.l_pid == -1 || cfg!(not(target_os = "linux"));
    Ok(Some(LockHolder { pid: Some(range.l_pid).filter(|pid| *pid > 0), may_be_ours }))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::path::PathBuf;
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::os::OsVfs;
    use crate::vfs::Vfs;

    fn lock_path() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        (dir, path)
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_owner_of_a_lock_is_the_process_that_has_the_file_open() {
        let (_dir, path) = lock_path();
        assert_eq!(OsVfs.lock_owner(&path), None, "no file");
        let held = OsVfs.lock(&path).unwrap();
        assert_eq!(OsVfs.lock_owner(&path), Some(getpid().as_raw_nonzero().get()));
        drop(held);
        let _open = std::fs::File::open(&path).unwrap();
        assert_eq!(OsVfs.lock_owner(&path), None, "open without a lock");
    }

    fn is_held(path: &Path) -> bool {
        matches!(OsVfs.lock(path), Err(LockError::Held { .. }))
    }

    /// A script that takes a record lock on byte 0 as Java does, reports it, and holds it until its input ends.
    const RECORD_LOCK: &str = "
import fcntl, sys
file = open(sys.argv[1], 'r+b')
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
except OSError:
    print('refused', flush=True)
else:
    print('locked', flush=True)
    sys.stdin.read()
";

    struct Other(Child);

    impl Drop for Other {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn record_lock(path: &Path) -> (Other, String) {
        let mut child = Command::new("python3")
            .args(["-c", RECORD_LOCK])
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 plays the other process");
        let mut answer = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut answer).unwrap();
        (Other(child), answer.trim().to_owned())
    }

    #[test]
    fn excludes_a_second_one_in_this_process() {
        let (_dir, path) = lock_path();
        assert_eq!(OsVfs.lock_holder(&path).unwrap(), None);
        let lock = OsVfs.lock(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"lock");
        // An open and a close of the file elsewhere do not release it, as they would release a record lock.
        drop(File::open(&path).unwrap());
        match OsVfs.lock(&path) {
            Err(LockError::Held { pid }) => assert_eq!(pid, None),
            other => panic!("{other:?}"),
        }
        assert_eq!(OsVfs.lock_holder(&path).unwrap(), Some(LockHolder { pid: None, may_be_ours: true }));
        drop(lock);
        assert_eq!(OsVfs.lock_holder(&path).unwrap(), None);
        assert!(OsVfs.lock(&path).is_ok());
    }

    #[test]
    fn excludes_the_record_lock_of_another_process() {
        let (_dir, path) = lock_path();
        let lock = OsVfs.lock(&path).unwrap();
        assert_eq!(record_lock(&path).1, "refused");
        drop(lock);
        assert_eq!(record_lock(&path).1, "locked");
    }

    #[test]
    fn is_excluded_by_the_record_lock_of_another_process() {
        let (_dir, path) = lock_path();
        File::create(&path).unwrap().write_all(b"their content").unwrap();
        let (other, answer) = record_lock(&path);
        assert_eq!(answer, "locked");
        let pid = i32::try_from(other.0.id()).unwrap();
        assert_eq!(
            OsVfs.lock_holder(&path).unwrap(),
            Some(LockHolder { pid: Some(pid), may_be_ours: cfg!(not(target_os = "linux")) })
        );
        match OsVfs.lock(&path) {
            Err(LockError::Held { pid: found }) => assert_eq!(found, Some(pid)),
            other => panic!("{other:?}"),
        }
        drop(other);
        let _lock = OsVfs.lock(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"their content");
    }

    /// Set for the test process that tries its parent's lock.
    const TRY_LOCK: &str = "MQSTORE_IO_TRY_LOCK";

    /// Run by [`excludes_another_process_of_ours`] in a separate process.
    #[test]
    fn child_tries_the_lock() {
        let Some(path) = std::env::var_os(TRY_LOCK) else { return };
        println!("held: {}", is_held(Path::new(&path)));
    }

    #[test]
    fn excludes_another_process_of_ours() {
        let (_dir, path) = lock_path();
        let ask = || {
            let output = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "os::lock::tests::child_tries_the_lock", "--nocapture"])
                .env(TRY_LOCK, &path)
                .output()
                .unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let lock = OsVfs.lock(&path).unwrap();
        assert!(ask().contains("held: true"));
        drop(lock);
        assert!(ask().contains("held: false"));
    }

    /// Returns another descriptor of the same open file description, as a fork creates it.
    fn forked_copy(lock: &OsLock) -> File {
        lock.file.lock().as_ref().unwrap().try_clone().unwrap()
    }

    #[test]
    fn is_released_although_a_forked_child_has_a_copy() {
        let (_dir, path) = lock_path();
        let lock = OsLock::acquire(&path).unwrap();
        let copy = forked_copy(&lock);
        drop(lock);
        assert!(!is_held(&path));
        drop(copy);
    }

    #[test]
    fn a_forked_child_does_not_release_it() {
        let (_dir, path) = lock_path();
        let lock = OsLock::acquire(&path).unwrap();
        let parent = Pid::from_raw(getpid().as_raw_nonzero().get() + 1).unwrap();
        let in_child =
            || OsLock { file: Mutex::new(Some(forked_copy(&lock))), owner: parent, inode: lock.inode };
        drop(in_child());
        assert!(is_held(&path));
        let copy = in_child();
        copy.disown_in_child();
        copy.disown_in_child();
        assert!(is_held(&path));
        drop(copy);
        drop(lock);
        assert!(!is_held(&path));
    }

    #[test]
    fn a_refused_call_changes_nothing() {
        let (_dir, path) = lock_path();
        std::fs::write(&path, b"").unwrap();
        let (other, answer) = record_lock(&path);
        assert_eq!(answer, "locked");
        let before = std::fs::metadata(&path).unwrap();
        assert!(is_held(&path));
        let after = std::fs::metadata(&path).unwrap();
        assert_eq!((before.len(), before.modified().unwrap()), (0, after.modified().unwrap()));
        drop(other);
    }

    #[test]
    fn a_missing_folder_is_an_error() {
        let (dir, _) = lock_path();
        let path = dir.path().join("no").join("lock");
        assert!(
            matches!(OsVfs.lock(&path), Err(LockError::Io(error)) if error.kind() == io::ErrorKind::NotFound)
        );
        assert_eq!(OsVfs.lock_holder(&path).unwrap(), None);
    }
}
