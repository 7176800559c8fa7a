//! A file system over another one, with injected faults.
//!
//! It is for tests of programs that use a store, on real files. ([`crate::sim`] is for tests of the store: it knows the
//! possible states after a power loss.) One set of [`Faults`] serves any number of [`FaultVfs`]:
//!
//! * **Full disk**: after a given number of new bytes, every call that needs space fails with `ENOSPC`: allocations,
//!   writes after the occupied part of a file, and new names once no space is left. Space is used in blocks. As on a
//!   real disk, writes to space in use succeed.
//! * **Failing syncs**, with `EIO`, a given number or all, and **slow syncs**.
//! * **Crash**: after a given number of changes, no change reaches the disk. Calls fail, and so do writes to maps.
//!   Earlier changes are on the disk, as after a kill. To continue, open the files again through another [`FaultVfs`].
//!
//! Reads never fail. Across threads: a change that started before the crash can end after it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use crate::open_files::OpenFiles;
use crate::read_pace::ReadPace;
use crate::region::{MapAccess, MapObserver, Region, RegionError};
use crate::sync::{AtomicU64, Mutex, Ordering, Raise};
use crate::vfs::{
    Access, DirEntry, Environment, FileKind, FileStat, LockError, LockHolder, NoSpace, ProcessFiles,
    SpaceInfo, StoreLock, Vfs, VfsFile,
};

/// Bytes of a block, the smallest unit of disk space.
const BLOCK: u64 = 4096;

/// A set of faults, initially empty. Clones share it. See the module's text.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    state: Arc<Mutex<FaultState>>,
}

#[derive(Debug, Default)]
struct FaultState {
    /// Bytes that can still be used; `None` is no limit.
    space_left: Option<u64>,
    /// Number of later syncs that fail.
    failing_syncs: u64,
    sync_delay: Duration,
    /// Changes that still reach the disk; `None` is all.
    changes_left: Option<u64>,
    changes: u64,
    syncs: u64,
    /// Number of crashes. File systems created before the last crash are dead.
    crashes: u64,
    /// Number of crashes when the newest file system was created.
    crashes_seen: u64,
}

impl Faults {
    /// Creates a set without faults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the disk full after `bytes` more bytes. A deletion frees no space.
    pub fn fill_disk(&self, bytes: u64) {
        self.state.lock().space_left = Some(bytes);
    }

    /// Makes the next `count` syncs fail; `u64::MAX` is all.
    pub fn fail_syncs(&self, count: u64) {
        self.state.lock().failing_syncs = count;
    }

    /// Makes every sync take `delay` longer.
    pub fn slow_syncs(&self, delay: Duration) {
        self.state.lock().sync_delay = delay;
    }

    /// Injects a crash after `changes` more changes; immediately for 0.
    pub fn crash(&self, changes: u64) {
        let mut state = self.state.lock();
        state.changes_left = Some(changes);
        state.crash_if_due();
    }

    /// Ends all faults. A file system that crashed stays crashed.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        (state.space_left, state.changes_left) = (None, None);
        (state.failing_syncs, state.sync_delay) = (0, Duration::ZERO);
    }

    /// Returns whether a crash happened and no file system was created since.
    pub fn crashed(&self) -> bool {
        let state = self.state.lock();
        state.crashes > state.crashes_seen
    }

    /// Returns the number of changes that reached the disk. Each call that changes it and each write to a map counts.
    pub fn changes(&self) -> u64 {
        self.state.lock().changes
    }

    /// Returns the number of syncs that succeeded.
    pub fn syncs(&self) -> u64 {
        self.state.lock().syncs
    }
}

impl FaultState {
    fn crash_if_due(&mut self) {
        if self.changes_left == Some(0) {
            self.changes_left = None;
            self.crashes += 1;
        }
    }
}

/// The faults of one file system.
#[derive(Clone, Debug)]
struct FaultGate {
    faults: Faults,
    /// Number of crashes before it was created.
    born: u64,
}

fn dead() -> io::Error {
    io::Error::other("the disk is unavailable: a test injected a crash")
}

impl FaultGate {
    fn is_dead(&self) -> bool {
        self.faults.state.lock().crashes > self.born
    }

    /// Counts one change that uses `bytes` bytes of space, or fails.
    fn change(&self, bytes: u64) -> io::Result<()> {
        let mut state = self.faults.state.lock();
        if state.crashes > self.born {
            return Err(dead());
        }
        if let Some(left) = &mut state.space_left {
            let free = *left;
            *left = left
                .checked_sub(bytes)
                .ok_or_else(|| NoSpace::explain(Errno::NOSPC.into(), bytes, || Some(free)))?;
        }
        state.changes += 1;
        if let Some(left) = &mut state.changes_left {
            *left = left.saturating_sub(1);
        }
        state.crash_if_due();
        Ok(())
    }

    /// Counts the creation of a name, or fails.
    fn name(&self) -> io::Result<()> {
        if self.faults.state.lock().space_left == Some(0) {
            return Err(Errno::NOSPC.into());
        }
        self.change(0)
    }

    fn sync(&self, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let delay = self.faults.state.lock().sync_delay;
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        {
            let mut state = self.faults.state.lock();
            if state.crashes > self.born {
                return Err(dead());
            }
            if state.failing_syncs > 0 {
                state.failing_syncs -= u64::from(state.failing_syncs < u64::MAX);
                return Err(Errno::IO.into());
            }
        }
        sync()?;
        self.faults.state.lock().syncs += 1;
        Ok(())
    }
}

/// A file system over another one, with faults.
#[derive(Clone, Debug)]
pub struct FaultVfs {
    inner: Arc<dyn Vfs>,
    gate: FaultGate,
}

impl FaultVfs {
    /// Creates a file system over `inner` with `faults`. It works, even after an earlier crash.
    pub fn new(inner: Arc<dyn Vfs>, faults: &Faults) -> Self {
        let mut state = faults.state.lock();
        state.crashes_seen = state.crashes;
        let born = state.crashes;
        drop(state);
        Self { inner, gate: FaultGate { faults: faults.clone(), born } }
    }

    /// Returns whether its crash has happened.
    pub fn is_dead(&self) -> bool {
        self.gate.is_dead()
    }

    fn file(&self, file: Arc<dyn VfsFile>) -> io::Result<Arc<dyn VfsFile>> {
        let taken = AtomicU64::new(file.stat()?.allocated_bytes);
        let blocks = Mutex::default();
        Ok(Arc::new(FaultFile { inner: file, gate: self.gate.clone(), taken, blocks }))
    }
}

impl Vfs for FaultVfs {
    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn VfsFile>> {
        self.file(self.inner.open(path, access)?)
    }

    fn create_new(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>> {
        self.gate.name()?;
        self.file(self.inner.create_new(path)?)
    }

    fn stat(&self, path: &Path) -> io::Result<FileStat> {
        self.inner.stat(path)
    }

    fn inode(&self, path: &Path) -> io::Result<u64> {
        self.inner.inode(path)
    }

    fn linked_folder(&self, path: &Path) -> Option<PathBuf> {
        self.inner.linked_folder(path)
    }

    fn link_folder(&self, target: &Path, link: &Path) -> io::Result<()> {
        self.gate.name()?;
        self.inner.link_folder(target, link)
    }

    fn is_same_folder(&self, a: &Path, b: &Path) -> bool {
        self.inner.is_same_folder(a, b)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.inner.list(dir)
    }

    fn list_kinds(&self, dir: &Path) -> io::Result<Vec<(OsString, FileKind)>> {
        self.inner.list_kinds(dir)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.gate.name()?;
        self.inner.create_dir(path)
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        // An existing folder needs no change, and no space on a full disk.
        if self.inner.stat(path).is_ok() {
            return self.inner.create_dir_all(path);
        }
        self.gate.name()?;
        self.inner.create_dir_all(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.gate.change(0)?;
        self.inner.rename(from, to)
    }

    fn rename_noreplace(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.gate.change(0)?;
        self.inner.rename_noreplace(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.gate.name()?;
        self.inner.hard_link(from, to)
    }

    fn reflink(&self, from: &Path, to: &Path) -> io::Result<Arc<dyn VfsFile>> {
        self.gate.name()?;
        self.file(self.inner.reflink(from, to)?)
    }

    fn exchange(&self, a: &Path, b: &Path) -> io::Result<()> {
        self.gate.change(0)?;
        self.inner.exchange(a, b)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.gate.change(0)?;
        self.inner.remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.gate.change(0)?;
        self.inner.remove_dir(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.gate.change(0)?;
        self.inner.remove_dir_all(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.gate.sync(|| self.inner.sync_dir(dir))
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn StoreLock>, LockError> {
        if self.is_dead() {
            return Err(LockError::Io(dead()));
        }
        self.inner.lock(path)
    }

    fn lock_holder(&self, path: &Path) -> io::Result<Option<LockHolder>> {
        self.inner.lock_holder(path)
    }

    fn lock_owner(&self, path: &Path) -> Option<i32> {
        self.inner.lock_owner(path)
    }

    fn free_space(&self, path: &Path) -> io::Result<SpaceInfo> {
        self.inner.free_space(path)
    }

    fn environment(&self) -> Environment {
        self.inner.environment()
    }

    fn open_files(&self) -> Option<&'static OpenFiles> {
        self.inner.open_files()
    }

    fn files_of_process(&self, pid: u32) -> Option<ProcessFiles> {
        self.inner.files_of_process(pid)
    }
}

#[derive(Debug)]
struct FaultFile {
    inner: Arc<dyn VfsFile>,
    gate: FaultGate,
    /// The end of the file's space: its size on disk when it was opened, and the later writes and allocations.
    taken: AtomicU64,
    /// The blocks after that end, counted from the start of the file, that got space by themselves.
    blocks: Mutex<BTreeSet<u64>>,
}

impl FaultFile {
    /// Makes a change that needs space up to `end`.
    fn grow(&self, end: u64, change: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let end = end.checked_next_multiple_of(BLOCK).unwrap_or(end);
        self.gate.change(end.saturating_sub(self.taken.load(Ordering::Acquire)))?;
        self.taken.raise(end, Ordering::AcqRel);
        change()
    }
}

impl VfsFile for FaultFile {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.gate.change(0)?;
        self.inner.set_len(len)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.grow(len, || self.inner.allocate(len))
    }

    fn allocate_range(&self, offset: u64, len: u64) -> io::Result<()> {
        let end = offset.saturating_add(len);
        if offset <= self.taken.load(Ordering::Acquire) {
            return self.grow(end, || self.inner.allocate_range(offset, len));
        }
        let mut blocks = self.blocks.lock();
        let new: Vec<u64> =
            (offset / BLOCK..end.div_ceil(BLOCK)).filter(|block| !blocks.contains(block)).collect();
        self.gate.change(new.len() as u64 * BLOCK)?;
        blocks.extend(new);
        self.inner.allocate_range(offset, len)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.inner.read_at(buf, offset)
    }

    fn expect_read(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.expect_read(offset, len)
    }

    fn pace_reads(&self, pace: &Arc<ReadPace>) {
        self.inner.pace_reads(pace);
    }

    fn is_paced(&self) -> bool {
        self.inner.is_paced()
    }

    fn read_once_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.inner.read_once_at(buf, offset)
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.grow(offset.saturating_add(buf.len() as u64), || self.inner.write_all_at(buf, offset))
    }

    fn start_writing(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.start_writing(offset, len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.gate.sync(|| self.inner.sync_data())
    }

    fn sync_all(&self) -> io::Result<()> {
        self.gate.sync(|| self.inner.sync_all())
    }

    fn lock_holder(&self) -> io::Result<Option<LockHolder>> {
        self.inner.lock_holder()
    }

    fn set_modified_ms(&self, modified_ms: i64) -> io::Result<()> {
        self.gate.change(0)?;
        self.inner.set_modified_ms(modified_ms)
    }

    fn stat(&self) -> io::Result<FileStat> {
        self.inner.stat()
    }

    fn next_data(&self, from: u64) -> io::Result<Option<u64>> {
        self.inner.next_data(from)
    }

    fn map(&self, offset: u64, len: usize, access: MapAccess) -> io::Result<Region> {
        let memory = self.inner.map(offset, len, access)?;
        if access == MapAccess::Read {
            return Ok(memory);
        }
        let watch = Arc::new(FaultMap { memory: memory.clone(), gate: self.gate.clone() });
        Ok(memory.observed(0, len, access, watch)?)
    }
}

/// A writable map.
#[derive(Debug)]
struct FaultMap {
    memory: Region,
    gate: FaultGate,
}

impl MapObserver for FaultMap {
    fn write(&self, _at: usize, _len: usize, copy: &mut dyn FnMut()) -> Result<(), RegionError> {
        self.gate.change(0).map_err(|_| RegionError::Stopped)?;
        copy();
        Ok(())
    }

    fn flush(&self, at: usize, len: usize) -> io::Result<()> {
        self.gate.sync(|| self.memory.flush(at..at + len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::OsVfs;

    struct World {
        faults: Faults,
        vfs: FaultVfs,
        folder: tempfile::TempDir,
    }

    impl World {
        fn new() -> Self {
            let faults = Faults::new();
            let vfs = FaultVfs::new(Arc::new(OsVfs::new()), &faults);
            Self { faults, vfs, folder: tempfile::tempdir().unwrap() }
        }

        fn file(&self, name: &str) -> Arc<dyn VfsFile> {
            self.vfs.create_new(&self.folder.path().join(name)).unwrap()
        }
    }

    fn errno(outcome: io::Result<()>) -> Option<i32> {
        outcome.unwrap_err().raw_os_error()
    }

    /// Returns the requested and the free bytes of an error of a full disk.
    fn lacking(outcome: io::Result<()>) -> Option<(u64, Option<u64>)> {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        NoSpace::of(&error).map(|cause| (cause.requested_bytes, cause.free_bytes))
    }

    #[test]
    fn a_full_disk_refuses_what_needs_room() {
        let world = World::new();
        let file = world.file("a");
        file.allocate(8192).unwrap();
        world.faults.fill_disk(BLOCK);
        file.write_all_at(&[1; 4096], 4096).unwrap();
        let no_room = Some(Errno::NOSPC.raw_os_error());
        assert_eq!(lacking(file.write_all_at(&[1; 5000], 8192)), Some((8192, Some(4096))));
        file.write_all_at(&[1; 100], 8192).unwrap();
        // The rest of the block is free.
        file.write_all_at(&[1; 100], 8292).unwrap();
        assert_eq!(lacking(file.write_all_at(&[1; 1], 12_288)), Some((4096, Some(0))));
        assert_eq!(lacking(file.allocate(20_000)), Some((8192, Some(0))));
        assert_eq!(file.len().unwrap(), 8392);
        let more = world.folder.path().join("b");
        assert_eq!(errno(world.vfs.create_new(&more).map(drop)), no_room);
        assert_eq!(errno(world.vfs.create_dir_all(&more)), no_room);
        world.vfs.create_dir_all(world.folder.path()).unwrap();
        // Existing bytes can be overwritten, also through a map.
        file.write_all_at(&[2; 8292], 0).unwrap();
        file.map(0, 4096, MapAccess::ReadWrite).unwrap().write(0, b"x").unwrap();
        world.faults.clear();
        world.vfs.create_dir_all(&more).unwrap();
    }

    #[test]
    fn parts_of_a_file_take_room_once() {
        let world = World::new();
        let file = world.file("a");
        file.set_len(1 << 20).unwrap();
        world.faults.fill_disk(4 * BLOCK);
        file.allocate_range(0, 100).unwrap();
        file.allocate_range(10 * BLOCK, BLOCK + 1).unwrap();
        file.allocate_range(11 * BLOCK, BLOCK).unwrap();
        assert_eq!(lacking(file.allocate_range(10 * BLOCK, 4 * BLOCK)), Some((2 * BLOCK, Some(BLOCK))));
        file.allocate_range(12 * BLOCK, 1).unwrap();
        assert_eq!(lacking(file.allocate_range(BLOCK, 1)), Some((BLOCK, Some(0))));
        assert_eq!(file.len().unwrap(), 1 << 20);
    }

    #[test]
    fn syncs_fail_so_often_and_are_slow() {
        let world = World::new();
        let file = world.file("a");
        file.allocate(4096).unwrap();
        let region = file.map(0, 4096, MapAccess::ReadWrite).unwrap();
        let io_error = Some(Errno::IO.raw_os_error());
        world.faults.fail_syncs(4);
        assert_eq!(errno(file.sync_data()), io_error);
        assert_eq!(errno(file.sync_all()), io_error);
        assert_eq!(errno(region.flush(0..10)), io_error);
        assert_eq!(errno(world.vfs.sync_dir(world.folder.path())), io_error);
        file.sync_all().unwrap();
        region.flush(0..10).unwrap();
        assert_eq!(world.faults.syncs(), 2);
        world.faults.fail_syncs(u64::MAX);
        for _ in 0..10 {
            assert_eq!(errno(file.sync_data()), io_error);
        }
        world.faults.clear();
        world.faults.slow_syncs(Duration::from_millis(30));
        let began = std::time::Instant::now();
        file.sync_data().unwrap();
        assert!(began.elapsed() >= Duration::from_millis(30));
    }

    #[test]
    fn nothing_reaches_the_disk_after_a_crash() {
        let world = World::new();
        let file = world.file("a");
        file.allocate(4096).unwrap();
        let region = file.map(0, 4096, MapAccess::ReadWrite).unwrap();
        world.faults.crash(3);
        file.write_all_at(b"one", 0).unwrap();
        region.write(10, b"two").unwrap();
        assert!(!world.faults.crashed());
        region.write(20, b"three").unwrap();
        assert!(world.faults.crashed() && world.vfs.is_dead());
        assert_eq!(region.write(30, b"four"), Err(RegionError::Stopped));
        assert_eq!(region.store_u32_be_release(32, 7), Err(RegionError::Stopped));
        assert_eq!(region.raise_u64_be(40, 7), Err(RegionError::Stopped));
        assert!(file.write_all_at(b"five", 50).is_err());
        assert!(file.sync_all().is_err() && region.flush(0..1).is_err());
        let path = world.folder.path().join("a");
        assert!(world.vfs.remove_file(&path).is_err() && world.vfs.lock(&path).is_err());
        let mut found = [0; 60];
        file.read_exact_at(&mut found, 0).unwrap();
        assert_eq!((&found[..3], &found[10..13], &found[20..25]), (&b"one"[..], &b"two"[..], &b"three"[..]));
        assert!(found[25..].iter().all(|byte| *byte == 0));

        // A new file system works again.
        let anew = FaultVfs::new(Arc::new(OsVfs::new()), &world.faults);
        assert!(!world.faults.crashed() && !anew.is_dead() && world.vfs.is_dead());
        anew.open(&path, Access::ReadWrite).unwrap().write_all_at(b"six", 50).unwrap();
        world.faults.crash(0);
        assert!(anew.is_dead());
    }
}
