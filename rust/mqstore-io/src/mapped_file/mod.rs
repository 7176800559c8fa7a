//! One mapped file of fixed length: a commit-log segment or an index file.
//!
//! [`MappedFile`] owns the file's name, descriptor and map, three positions in it, and the end of its reserved disk
//! space. After a crash, a file of complete length exists under the real name, or none.
//!
//! Source of the life cycle and of the three positions: `DefaultMappedFile`, `ReferenceResource`.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock, Weak};

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

use parking_lot::{Mutex, RwLock};

use crate::open_files::KeepsFiles;
use crate::read_pace::ReadPace;
use crate::region::{MapAccess, Region, RegionView};
use crate::switch;
use crate::sync::Raise;
use crate::vfs::{Access, FileKind, FileStat, Vfs, VfsFile};

#[cfg(test)]
mod tests;

/// One file of fixed length at a known position in a sequence of files.
///
/// ```text
/// 0 ......... flushed ......... committed ......... wrote ......... len
///   durable     │  in the file      │ readable (or in a pool buffer)
/// ```
///
/// * **Creation**: the file gets a staging name, its full length, and space on the disk for its first bytes, and is
///   synced. Only then it gets its real name, and the folder is synced. A leftover in staging is garbage. The real name
///   never replaces another file.
/// * **Space**: the rest of the file is a hole. [`MappedFile::allocate_ahead`] reserves its space, part by part. Call it
///   before you write there: on a full disk, a write to a map of a hole kills the process.
/// * **Removal**: [`MappedFile::retire`] removes the name at once. Guards and views keep the bytes until the last one
///   is dropped; only then [`MappedFile::free_retired`] drops map and descriptor. The file is never truncated.
/// * **Replacement**: [`MappedFile::replace_by`] gives the name to another file. Guards and views keep the old bytes.
/// * The descriptor and the map are created at first use, so that a store of ten thousand segments opens with neither.
///   [`MappedFile::close_file`] closes the descriptor.
///
/// Positions are atomics that only grow, except in recovery.
pub struct MappedFile {
    me: Weak<Self>,
    vfs: Arc<dyn Vfs>,
    base_offset: u64,
    len: u64,
    /// Changes with [`Self::replace_by`] only.
    inode: AtomicU64,
    access: MapAccess,
    path: Mutex<PathBuf>,
    file: Mutex<Option<Arc<dyn VfsFile>>>,
    /// The map, and the number of replacements before it.
    region: RwLock<(Option<Region>, u64)>,
    pace: OnceLock<Arc<ReadPace>>,
    wrote: AtomicU64,
    committed: AtomicU64,
    flushed: AtomicU64,
    allocated: AtomicU64,
    retired: AtomicBool,
    holders: AtomicUsize,
}

impl fmt::Debug for MappedFile {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("MappedFile")
            .field("path", &*self.path.lock())
            .field("base_offset", &self.base_offset)
            .field("len", &self.len)
            .field("wrote", &self.wrote())
            .field("flushed", &self.flushed())
            .field("retired", &self.is_retired())
            .finish_non_exhaustive()
    }
}

/// The right to use a file that another thread may retire. Guards are counted, so that the thread that retires the file
/// can wait for its readers.
#[derive(Debug)]
pub struct MappedFileGuard(Arc<MappedFile>);

impl MappedFileGuard {
    fn new(file: &Arc<MappedFile>) -> Self {
        file.holders.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(file))
    }
}

impl Clone for MappedFileGuard {
    fn clone(&self) -> Self {
        Self::new(&self.0)
    }
}

impl Drop for MappedFileGuard {
    fn drop(&mut self) {
        self.0.holders.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Deref for MappedFileGuard {
    type Target = Arc<MappedFile>;

    fn deref(&self) -> &Arc<MappedFile> {
        &self.0
    }
}

impl MappedFile {
    /// Creates a file of `len` zero bytes at `staging` and maps it for writing. All positions are 0.
    ///
    /// `base_offset` is the logical offset of its first byte. The disk space of the first `first_bytes` is reserved and
    /// synced when this returns. After an error, no file is left at `staging`. [`MappedFile::name`] gives the file its
    /// name.
    pub fn stage(
        vfs: &Arc<dyn Vfs>,
        staging: &Path,
        base_offset: u64,
        len: u64,
        first_bytes: u64,
    ) -> io::Result<Arc<Self>> {
        let file = vfs.create_new(staging)?;
        let made = Self::prepare(vfs, staging, file, base_offset, (len, first_bytes));
        if made.is_err() {
            // Reports the first error. A leftover in the staging folder is garbage by contract.
            let _ = vfs.remove_file(staging);
        }
        made
    }

    fn prepare(
        vfs: &Arc<dyn Vfs>,
        path: &Path,
        file: Arc<dyn VfsFile>,
        base_offset: u64,
        (len, first_bytes): (u64, u64),
    ) -> io::Result<Arc<Self>> {
        let allocated = file.allocate_front(len, first_bytes)?;
        switch::step("mapped_file.sync_new", || file.sync_all())?;
        let stat = file.stat()?;
        let made = Self::new(vfs, path, base_offset, &stat, MapAccess::ReadWrite, 0);
        made.allocated.store(allocated, Ordering::Release);
        *made.file.lock() = Some(file);
        made.region()?;
        Ok(made)
    }

    /// Gives a staged file its real name, which must be free. The name is durable after the caller has synced its
    /// folder.
    pub fn name(&self, path: &Path) -> io::Result<()> {
        let mut name = self.path.lock();
        self.vfs.rename_noreplace(&name, path)?;
        *name = path.to_path_buf();
        Ok(())
    }

    /// Creates the value for an existing regular file of any length, without an open or a map. All three positions are
    /// its length until recovery sets them.
    pub fn open(
        vfs: &Arc<dyn Vfs>,
        path: &Path,
        base_offset: u64,
        access: MapAccess,
    ) -> io::Result<Arc<Self>> {
        let stat = vfs.stat(path)?;
        if stat.kind != FileKind::File {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(Self::from_stat(vfs, path, base_offset, &stat, access))
    }

    /// Creates the value for the first `len` bytes, or fewer if it is shorter, of a regular file with a fresh `stat`,
    /// for reading. A longer file is opened now.
    pub fn front(
        vfs: &Arc<dyn Vfs>,
        path: &Path,
        base_offset: u64,
        stat: &FileStat,
        len: u64,
    ) -> io::Result<Arc<Self>> {
        let front = FileStat { len: stat.len.min(len), ..*stat };
        let file = Self::from_stat(vfs, path, base_offset, &front, MapAccess::Read);
        if stat.len > len {
            *file.file.lock() = Some(vfs.open(path, Access::Read)?);
        }
        Ok(file)
    }

    /// Like [`MappedFile::open`], for a regular file with a fresh `stat`.
    pub(crate) fn from_stat(
        vfs: &Arc<dyn Vfs>,
        path: &Path,
        base_offset: u64,
        stat: &FileStat,
        access: MapAccess,
    ) -> Arc<Self> {
        Self::new(vfs, path, base_offset, stat, access, stat.len)
    }

    fn new(
        vfs: &Arc<dyn Vfs>,
        path: &Path,
        base_offset: u64,
        stat: &FileStat,
        access: MapAccess,
        position: u64,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            vfs: Arc::clone(vfs),
            base_offset,
            len: stat.len,
            inode: AtomicU64::new(stat.inode),
            access,
            path: Mutex::new(path.to_path_buf()),
            file: Mutex::new(None),
            region: RwLock::new((None, 0)),
            pace: OnceLock::new(),
            wrote: AtomicU64::new(position),
            committed: AtomicU64::new(position),
            flushed: AtomicU64::new(position),
            allocated: AtomicU64::new(0),
            retired: AtomicBool::new(false),
            holders: AtomicUsize::new(0),
        })
    }

    /// Drops the map and the descriptor until they are needed again, unless the map is in use; returns whether it did.
    /// Does nothing for a retired file, which could not be opened again.
    pub fn unmap(&self) -> bool {
        let mut region = self.region.write();
        if self.is_retired() || region.0.as_ref().is_none_or(Region::is_shared) {
            return false;
        }
        region.0 = None;
        drop(region);
        self.close_file();
        true
    }

    /// Drops the map and the descriptor of a retired file that no guard and no view uses; returns whether it did. Only
    /// then does the system free the bytes, although snapshots can still contain this value. Later reads find that the
    /// file is gone.
    pub fn free_retired(&self) -> bool {
        if !self.is_retired() || self.is_in_use() {
            return false;
        }
        self.region.write().0 = None;
        *self.file.lock() = None;
        true
    }

    /// Returns whether the file is mapped.
    pub fn is_mapped(&self) -> bool {
        self.region.read().0.is_some()
    }

    /// Returns the mapped bytes, if the file is mapped now. The map stays as long as the returned handle.
    pub fn mapped(&self) -> Option<Region> {
        self.region.read().0.clone()
    }

    /// Returns the logical offset of the first byte.
    pub fn base_offset(&self) -> u64 {
        self.base_offset
    }

    /// Returns the logical offset after the last byte.
    pub fn end_offset(&self) -> u64 {
        self.base_offset.saturating_add(self.len)
    }

    /// Returns the length in bytes, which never changes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the file has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the current path.
    pub fn path(&self) -> PathBuf {
        self.path.lock().clone()
    }

    /// Returns the file and the offset in it that hold the byte at position `at`: see [`Vfs::real_place`].
    pub fn real_place(&self, at: u64) -> (PathBuf, u64) {
        self.vfs.real_place(&self.path(), at)
    }

    /// Returns the descriptor, and opens the file again if it was closed. Fails if the name now refers to a file of
    /// another length, or, for a file to write, to another file. A file to read may have been replaced by one with the
    /// same records: see [`Self::replace_by`].
    pub fn file(&self) -> io::Result<Arc<dyn VfsFile>> {
        let mut slot = self.file.lock();
        if let Some(file) = &*slot {
            return Ok(Arc::clone(file));
        }
        let file = self.open_again()?;
        *slot = Some(Arc::clone(&file));
        drop(slot);
        if let Some(files) = self.vfs.open_files() {
            let me: Weak<Self> = Weak::clone(&self.me);
            files.note_segment(me, self.vfs.environment().most_kept_files() as usize);
        }
        Ok(file)
    }

    /// Gives reads of the file from the disk a pace from now on; see [`VfsFile::pace_reads`].
    pub fn pace_reads(&self, pace: &Arc<ReadPace>) {
        let pace = self.pace.get_or_init(|| Arc::clone(pace));
        if let Some(file) = &*self.file.lock() {
            file.pace_reads(pace);
        }
    }

    fn open_again(&self) -> io::Result<Arc<dyn VfsFile>> {
        if self.is_retired() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let access = match self.access {
            MapAccess::Read => Access::Read,
            MapAccess::ReadWrite => Access::ReadWrite,
        };
        let file = self.vfs.open(&self.path.lock(), access)?;
        let stat = file.stat()?;
        let is_same = stat.inode == self.inode() || self.access == MapAccess::Read;
        if !is_same || stat.len != self.len {
            return Err(io::Error::other("the file was replaced or changed its length"));
        }
        if let Some(pace) = self.pace.get() {
            file.pace_reads(pace);
        }
        Ok(file)
    }

    /// Closes the descriptor until it is needed again; the map stays. Does nothing for a retired file, which could not
    /// be opened again.
    pub fn close_file(&self) {
        let mut slot = self.file.lock();
        if !self.is_retired() {
            *slot = None;
        }
    }

    /// Returns the bytes in memory, and maps the file at the first call. Keep the handle only where each nanosecond
    /// matters, because the map stays as long as the handle.
    pub fn region(&self) -> io::Result<Region> {
        self.counted_region().map(|(region, _)| region)
    }

    /// Like [`Self::region`]; also returns how often the file was replaced before the map was made.
    pub fn counted_region(&self) -> io::Result<(Region, u64)> {
        let len = usize::try_from(self.len).map_err(|_| io::ErrorKind::FileTooLarge)?;
        loop {
            let replaced = {
                let region = self.region.read();
                if let Some(map) = &region.0 {
                    return Ok((map.clone(), region.1));
                }
                region.1
            };
            let map = self.file()?.map(0, len, self.access)?;
            let mut region = self.region.write();
            // Otherwise the map may be of the replaced file.
            if region.1 == replaced {
                // If another thread was first, this map is dropped.
                return Ok((region.0.get_or_insert(map).clone(), replaced));
            }
        }
    }

    /// Renames the file `staged`, which has the same length, to the name of this one. From then on this value refers to
    /// that file. Guards, views and maps that exist keep the old bytes. Its content must be synced. The new name is
    /// durable after a sync of the folder.
    ///
    /// # Errors
    /// `NotFound` if this file is retired, or if its name refers to another file; `InvalidInput` for another length.
    pub fn replace_by(&self, staged: &Path) -> io::Result<()> {
        let stat = self.vfs.stat(staged)?;
        if stat.kind != FileKind::File || stat.len != self.len {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file of the same length"));
        }
        // No thread opens or maps the file meanwhile.
        let mut file = self.file.lock();
        let path = self.path.lock();
        let mut region = self.region.write();
        if self.is_retired() || self.vfs.inode(&path)? != self.inode() {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.vfs.rename(staged, &path)?;
        self.inode.store(stat.inode, Ordering::Release);
        *file = None;
        *region = (None, region.1 + 1);
        Ok(())
    }

    fn inode(&self) -> u64 {
        self.inode.load(Ordering::Acquire)
    }

    /// Opens and maps the file separately, for the caller alone. A system reports a failed write-back once to each open
    /// of a file. A flush through this map therefore leaves the report to those who sync the file otherwise. The caller
    /// must drop the map when it is no longer needed.
    pub fn map_apart(&self) -> io::Result<Region> {
        let len = usize::try_from(self.len).map_err(|_| io::ErrorKind::FileTooLarge)?;
        self.open_again()?.map(0, len, self.access)
    }

    /// Returns a view of `len` bytes from `position` (relative to the file) without a copy. They must be below
    /// [`MappedFile::wrote`]; otherwise the error is `InvalidInput`.
    pub fn view(&self, position: u64, len: usize) -> io::Result<RegionView> {
        if position.checked_add(len as u64).is_none_or(|end| end > self.wrote()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the range is not written"));
        }
        // A position below the length of a mapped file fits in an address.
        Ok(self.region()?.view(position as usize, len)?)
    }

    /// Returns the relative position up to which bytes are published to readers. These bytes never change.
    #[inline]
    pub fn wrote(&self) -> u64 {
        self.wrote.load(Ordering::Acquire)
    }

    /// Returns the position up to which bytes are in the file. It equals [`MappedFile::wrote`] unless a pool buffer is
    /// in use.
    #[inline]
    pub fn committed(&self) -> u64 {
        self.committed.load(Ordering::Acquire)
    }

    /// Returns the position up to which bytes are durable.
    #[inline]
    pub fn flushed(&self) -> u64 {
        self.flushed.load(Ordering::Acquire)
    }

    /// Publishes all bytes below `position`, which must be written. Never moves back.
    #[inline]
    pub fn advance_wrote(&self, position: u64) {
        debug_assert!(position <= self.len, "position {position} in a file of {} bytes", self.len);
        self.wrote.raise(position, Ordering::AcqRel);
    }

    /// Records that all bytes below `position` are in the file. Never moves back.
    #[inline]
    pub fn advance_committed(&self, position: u64) {
        debug_assert!(position <= self.len, "position {position} in a file of {} bytes", self.len);
        self.committed.raise(position, Ordering::AcqRel);
    }

    /// Records that all bytes below `position` are durable. Never moves back.
    #[inline]
    pub fn advance_flushed(&self, position: u64) {
        debug_assert!(position <= self.len, "position {position} in a file of {} bytes", self.len);
        self.flushed.raise(position, Ordering::AcqRel);
    }

    /// Sets all three positions, also backwards. For recovery, while no other thread uses the file.
    pub fn set_positions(&self, position: u64) {
        for place in [&self.wrote, &self.committed, &self.flushed] {
            place.store(position.min(self.len), Ordering::Release);
        }
    }

    /// Returns the end of the bytes for which this value has reserved disk space; 0 for a file that was opened. See
    /// [`MappedFile::allocate_ahead`].
    #[inline]
    pub fn allocated(&self) -> u64 {
        self.allocated.load(Ordering::Acquire)
    }

    /// Reserves disk space for the bytes before `end`, from the first one without it, or from `from` if this is the
    /// first call for a file that was opened. No later write to these bytes can find the disk full. `from` must not be
    /// after the next byte to write. Threads can call it at the same time.
    pub fn allocate_ahead(&self, from: u64, end: u64) -> io::Result<()> {
        let end = end.min(self.len);
        let from = self.allocated().max(from);
        if from >= end {
            return Ok(());
        }
        let file = self.file()?;
        match file.allocate_range(from, end - from) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                // The file got all its space when it was created, unless another program made it.
                file.allocate(self.len)?;
                self.allocated.raise(self.len, Ordering::AcqRel);
            }
            outcome => {
                outcome?;
                self.allocated.raise(end, Ordering::AcqRel);
            }
        }
        Ok(())
    }

    /// Returns whether the file is full.
    pub fn is_full(&self) -> bool {
        self.wrote() >= self.len
    }

    /// Syncs the file if bytes below [`MappedFile::wrote`] are not durable yet, and returns the position up to which
    /// all bytes are durable. After an error the position stays, and the caller must not trust a later success.
    pub fn flush(&self) -> io::Result<u64> {
        self.flush_to(self.wrote(), false)
    }

    /// Makes the written bytes below `end` durable; bytes after `end` do not count as durable then. With `pages`,
    /// writes only the pages of these bytes, if the file is mapped and the system can do it. Pages that were touched
    /// ahead of the writer are then not written.
    pub fn flush_to(&self, end: u64, pages: bool) -> io::Result<u64> {
        let flushed = self.flushed();
        if flushed < end {
            let mapped = self.mapped().filter(|_| pages && cfg!(target_os = "linux"));
            switch::step("mapped_file.sync_content", || match mapped {
                // Positions in a mapped file fit in an address.
                Some(region) => region.flush(flushed as usize..end as usize),
                None => self.file()?.sync_data(),
            })?;
            self.advance_committed(end);
            self.advance_flushed(end);
        }
        Ok(self.flushed())
    }

    /// Returns whether the name still refers to this file. After `false`, another process has removed or replaced it,
    /// and written bytes are lost when the file is closed.
    pub fn is_linked(&self) -> io::Result<bool> {
        // An open file keeps its inode, so another file at its name has another inode.
        let _open = self.file()?;
        match self.vfs.inode(&self.path.lock()) {
            Ok(inode) => Ok(inode == self.inode()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns a guard that keeps the bytes; `None` if the file is retired.
    pub fn hold(self: &Arc<Self>) -> Option<MappedFileGuard> {
        // This thread counts itself first and then checks the retirement. A thread that overwrites the file retires it
        // first and then reads the count. So at least one of them sees the other.
        let guard = MappedFileGuard::new(self);
        fence(Ordering::SeqCst);
        (!self.is_retired()).then_some(guard)
    }

    /// Returns the current number of guards.
    pub fn holders(&self) -> usize {
        self.holders.load(Ordering::Acquire)
    }

    /// Returns whether a guard, a view or another handle to the map exists. If so, the bytes must not change.
    pub fn is_in_use(&self) -> bool {
        fence(Ordering::SeqCst);
        self.holders() > 0 || self.region.read().0.as_ref().is_some_and(Region::is_shared)
    }

    /// Returns whether [`MappedFile::retire`] succeeded.
    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    /// Removes the file's name now. Its bytes go with [`MappedFile::free_retired`], or with this value. From now on the
    /// file gives no guards. If the name now refers to another file, it stays. The removal is durable after a sync of
    /// the folder. A second call does nothing.
    pub fn retire(&self) -> io::Result<()> {
        self.retire_by(|path| self.vfs.remove_file(path))
    }

    /// Like [`MappedFile::retire`], but renames the file to `to`, on the same file system and free, so that its bytes
    /// can be overwritten once no reader uses them. Durable after a sync of both folders.
    pub fn retire_to(&self, to: &Path) -> io::Result<()> {
        self.retire_by(|path| self.vfs.rename_noreplace(path, to))?;
        *self.path.lock() = to.to_path_buf();
        Ok(())
    }

    fn retire_by(&self, take_name: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
        let path = self.path();
        match self.vfs.stat(&path) {
            Ok(stat) if stat.inode == self.inode() => {
                // A thread with a guard may not have accessed the file yet, and then needs the descriptor.
                let file = self.file()?;
                take_name(&path)?;
                self.retired.store(true, Ordering::Release);
                // Until here, the handle kept another thread from closing the descriptor.
                drop(file);
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        self.retired.store(true, Ordering::Release);
        Ok(())
    }
}

impl KeepsFiles for MappedFile {
    /// A file with unsynced bytes keeps its descriptor, which must receive the report of a failed write-back.
    fn release(&self) -> usize {
        let Some(mut slot) = self.file.try_lock() else { return 0 };
        let is_synced = self.access == MapAccess::Read || self.flushed() == self.len;
        if self.is_retired() || !is_synced || slot.as_ref().is_some_and(|file| Arc::strong_count(file) > 1) {
            return 0;
        }
        let unused = self.region.try_write().filter(|map| map.0.as_ref().is_some_and(|map| !map.is_shared()));
        let map = unused.and_then(|mut map| map.0.take());
        usize::from(slot.take().is_some()) + usize::from(map.is_some())
    }

    fn keeps_files(&self) -> bool {
        self.file.try_lock().is_none_or(|slot| slot.is_some())
            || self.region.try_read().is_none_or(|region| region.0.is_some())
    }
}
