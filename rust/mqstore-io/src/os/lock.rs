//! The writer's lock: byte 0, length 1, of the file `lock`.
//!
//! RocketMQ takes it with `FileChannel.tryLock(0, 1, false)`, which is a POSIX record lock. On Linux
//! ours belongs to the open file description instead of the process: it conflicts with record locks
//! both ways, excludes a second opening in the same process, and does not vanish because some other
//! descriptor of the file is closed. `flock` would not do: it and a record lock ignore each other.
//!
//! A child made by `fork` shares the description. It must neither release the lock (hence the check
//! of the process number on drop) nor keep it alive (hence [`StoreLock::disown_in_child`]).
//!
//! macOS has no such locks in its documentation. There a plain record lock is taken, and a list of the
//! files locked by this process does the rest: it refuses a second opening before the file is opened,
//! because closing any descriptor of the file would release the lock.
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
use crate::vfs::{LockError, LockHolder, StoreLock};

/// What RocketMQ writes into the file.
const CONTENT: &[u8] = b"lock";

// The system's constants have the field's type on macOS only.
const TAKE: libc::c_short = libc::F_WRLCK as _;
const RELEASE: libc::c_short = libc::F_UNLCK as _;

/// How often the file may be replaced under us before we give up.
const ATTEMPTS: usize = 16;

/// The lock, held.
#[derive(Debug)]
pub(super) struct OsLock {
    file: Mutex<Option<File>>,
    owner: Pid,
    inode: u64,
}

/// The files that this process has locked, by number; not needed where locks tell by themselves.
#[cfg(not(target_os = "linux"))]
struct Here(parking_lot::MutexGuard<'static, std::collections::BTreeSet<u64>>);

#[cfg(not(target_os = "linux"))]
impl Here {
    fn lock() -> Self {
        static FILES: Mutex<std::collections::BTreeSet<u64>> = Mutex::new(std::collections::BTreeSet::new());
        Self(FILES.lock())
    }

    fn holder(&self, path: &Path) -> Option<LockHolder> {
        let inode = stat(path).ok()?.inode;
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
#[expect(clippy::unused_self, reason = "the shape of the other system's list")]
impl Here {
    fn lock() -> Self {
        Self
    }

    fn holder(&self, _: &Path) -> Option<LockHolder> {
        None
    }

    fn add(&mut self, _: u64) {}

    fn remove(&mut self, _: u64) {}
}

impl OsLock {
    pub(super) fn acquire(path: &Path) -> Result<Self, LockError> {
        let mut here = Here::lock();
        if let Some(LockHolder { pid, .. }) = here.holder(path) {
            return Err(LockError::Held { pid });
        }
        for _ in 0..ATTEMPTS {
            let file = open_regular(path, OFlags::RDWR | OFlags::CREATE)?;
            if !set_lock(&file, TAKE)? {
                let pid = query(&file)?.and_then(|holder| holder.pid);
                return Err(LockError::Held { pid });
            }
            let ours = file_stat(&retry(|| rustix::fs::fstat(&file)).map_err(io::Error::from)?);
            // Whoever removed or replaced the file meanwhile made our lock one on nothing.
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
        Err(LockError::Io(io::Error::other("the lock file is being replaced again and again")))
    }
}

impl StoreLock for OsLock {
    fn disown_in_child(&self) {
        // Nobody holds this mutex for long, but a thread of the parent may have held it at the fork.
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
            // Closing releases too, but not while a child that was forked still has a copy.
            let _ = set_lock(&file, RELEASE);
        }
    }
}

/// Who holds the lock of `path`.
pub(super) fn holder(path: &Path) -> io::Result<Option<LockHolder>> {
    if let Some(holder) = Here::lock().holder(path) {
        return Ok(Some(holder));
    }
    match open_regular(path, OFlags::RDONLY) {
        Ok(file) => query(&file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn first_byte(kind: libc::c_short) -> libc::flock {
    libc::flock { l_type: kind, l_whence: libc::SEEK_SET as _, l_start: 0, l_len: 1, l_pid: 0 }
}

/// Takes or releases the lock; `false` when somebody else has it.
fn set_lock(file: impl AsFd, kind: libc::c_short) -> io::Result<bool> {
    let range = first_byte(kind);
    #[cfg(target_os = "linux")]
    let command = FcntlArg::F_OFD_SETLK(&range);
    #[cfg(not(target_os = "linux"))]
    let command = FcntlArg::F_SETLK(&range);
    match fcntl(file, command) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Who would keep us from locking.
fn query(file: impl AsFd) -> io::Result<Option<LockHolder>> {
    let mut range = first_byte(TAKE);
    #[cfg(target_os = "linux")]
    let command = FcntlArg::F_OFD_GETLK(&mut range);
    #[cfg(not(target_os = "linux"))]
    let command = FcntlArg::F_GETLK(&mut range);
    fcntl(file, command)?;
    if range.l_type == RELEASE {
        return Ok(None);
    }
    // -1 stands for the owner of an open file description, 0 for a process of another container.
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

    fn is_held(path: &Path) -> bool {
        matches!(OsVfs.lock(path), Err(LockError::Held { .. }))
    }

    /// Takes a record lock on byte 0 as Java does, says so, and holds it until its input ends.
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
        // Opening and closing the file elsewhere does not release it, as it would a record lock.
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

    /// Set for the test process that tries the lock of its parent.
    const TRY_LOCK: &str = "MQSTORE_IO_TRY_LOCK";

    /// Run by [`excludes_another_process_of_ours`] in a process of its own.
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

    /// Another descriptor of the same open file description, which is what a fork makes.
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
