//! One mapped file of fixed length: a commit-log segment or an index file.
//!
//! [`MappedFile`] owns the file's name, descriptor and map, and three positions in it. A crash leaves a complete file
//! under the real name, or none.
//!
//! Source of the life cycle and of the three positions: `DefaultMappedFile`, `ReferenceResource`.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

use parking_lot::{Mutex, RwLock};

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
/// * **Creation**: the file gets a staging name and all its space on the disk and is synced. Only then it gets its real
///   name, and the folder is synced. A leftover in staging is garbage. The real name never replaces another file.
/// * **Removal**: [`MappedFile::retire`] removes the name at once. Guards and views keep the bytes until the last one
///   is dropped; only then is the file unmapped. It is never truncated.
/// * The descriptor and the map are made at first use, so that a store of ten thousand segments opens with neither.
///   [`MappedFile::close_file`] closes the descriptor.
///
/// Positions only grow, by atomics, except in recovery.
pub struct MappedFile {
    vfs: Arc<dyn Vfs>,
    base_offset: u64,
    len: u64,
    inode: u64,
    access: MapAccess,
    path: Mutex<PathBuf>,
    file: Mutex<Option<Arc<dyn VfsFile>>>,
    region: RwLock<Option<Region>>,
    wrote: AtomicU64,
    committed: AtomicU64,
    flushed: AtomicU64,
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

/// The right to use a file although it may be retired meanwhile; counted, so that whoever would retire
/// it can wait for its readers.
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
    /// Makes a file of `len` zero bytes at `staging` and maps it for writing; all positions are 0.
    ///
    /// `base_offset` is the logical offset of its first byte. Its room is taken and synced when this
    /// returns; nothing is left at `staging` after an error. The name comes by [`MappedFile::name`].
    pub fn stage(vfs: &Arc<dyn Vfs>, staging: &Path, base_offset: u64, len: u64) -> io::Result<Arc<Self>> {
        let file = vfs.create_new(staging)?;
        let made = Self::prepare(vfs, staging, file, base_offset, len);
        if made.is_err() {
            // The first error is the one to report; a leftover in staging is garbage by contract.
            let _ = vfs.remove_file(staging);
        }
        made
    }

    fn prepare(
        vfs: &Arc<dyn Vfs>,
        path: &Path,
        file: Arc<dyn VfsFile>,
        base_offset: u64,
        len: u64,
    ) -> io::Result<Arc<Self>> {
        file.allocate(len)?;
        switch::step("mapped_file.sync_new", || file.sync_all())?;
        let stat = file.stat()?;
        let made = Self::new(vfs, path, base_offset, &stat, MapAccess::ReadWrite, 0);
        *made.file.lock() = Some(file);
        made.region()?;
        Ok(Arc::new(made))
    }

    /// Gives a staged file its real name, which must be free. The name is durable once the caller has
    /// synced its folder.
    pub fn name(&self, path: &Path) -> io::Result<()> {
        let mut name = self.path.lock();
        self.vfs.rename_noreplace(&name, path)?;
        *name = path.to_path_buf();
        Ok(())
    }

    /// An existing regular file, whatever its length; all three positions are its length until
    /// recovery sets them. Neither opens nor maps it yet.
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

    /// The first `len` bytes, or fewer where it is shorter, of a regular file whose `stat` was just read, for reading.
    /// A file that is longer is opened now.
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

    /// [`MappedFile::open`] for a regular file whose `stat` was just read.
    pub(crate) fn from_stat(
        vfs: &Arc<dyn Vfs>,
        path: &Path,
        base_offset: u64,
        stat: &FileStat,
        access: MapAccess,
    ) -> Arc<Self> {
        Arc::new(Self::new(vfs, path, base_offset, stat, access, stat.len))
    }

    fn new(
        vfs: &Arc<dyn Vfs>,
        path: &Path,
        base_offset: u64,
        stat: &FileStat,
        access: MapAccess,
        position: u64,
    ) -> Self {
        Self {
            vfs: Arc::clone(vfs),
            base_offset,
            len: stat.len,
            inode: stat.inode,
            access,
            path: Mutex::new(path.to_path_buf()),
            file: Mutex::new(None),
            region: RwLock::new(None),
            wrote: AtomicU64::new(position),
            committed: AtomicU64::new(position),
            flushed: AtomicU64::new(position),
            retired: AtomicBool::new(false),
            holders: AtomicUsize::new(0),
        }
    }

    /// Lets go of the map and the descriptor until they are needed again, unless somebody uses the map;
    /// whether it did. Not for a retired file, which could not be opened again.
    pub fn unmap(&self) -> bool {
        let mut region = self.region.write();
        if self.is_retired() || region.as_ref().is_none_or(Region::is_shared) {
            return false;
        }
        *region = None;
        drop(region);
        self.close_file();
        true
    }

    /// Whether it is mapped.
    pub fn is_mapped(&self) -> bool {
        self.region.read().is_some()
    }

    /// Its bytes in memory if it is mapped now. The map stays as long as there is a handle.
    pub fn mapped(&self) -> Option<Region> {
        self.region.read().clone()
    }

    /// Logical offset of its first byte.
    pub fn base_offset(&self) -> u64 {
        self.base_offset
    }

    /// Logical offset one past its last byte.
    pub fn end_offset(&self) -> u64 {
        self.base_offset.saturating_add(self.len)
    }

    /// Length in bytes, from birth to death.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its name now.
    pub fn path(&self) -> PathBuf {
        self.path.lock().clone()
    }

    /// Its descriptor, opened again if it was closed. Fails if the name leads to another file or to
    /// one of another length by now.
    pub fn file(&self) -> io::Result<Arc<dyn VfsFile>> {
        let mut slot = self.file.lock();
        if let Some(file) = &*slot {
            return Ok(Arc::clone(file));
        }
        let file = self.open_again()?;
        *slot = Some(Arc::clone(&file));
        Ok(file)
    }

    fn open_again(&self) -> io::Result<Arc<dyn VfsFile>> {
        let access = match self.access {
            MapAccess::Read => Access::Read,
            MapAccess::ReadWrite => Access::ReadWrite,
        };
        let file = self.vfs.open(&self.path.lock(), access)?;
        let stat = file.stat()?;
        if stat.inode != self.inode || stat.len != self.len {
            return Err(io::Error::other("the file was replaced or changed its length"));
        }
        Ok(file)
    }

    /// Gives the descriptor back until it is needed again; the map stays. Not on a retired file,
    /// which could not be opened again.
    pub fn close_file(&self) {
        let mut slot = self.file.lock();
        if !self.is_retired() {
            *slot = None;
        }
    }

    /// Its bytes in memory, mapped at the first call. Keep the handle where each nanosecond counts, and
    /// only there: the map stays as long as there is one.
    pub fn region(&self) -> io::Result<Region> {
        if let Some(region) = &*self.region.read() {
            return Ok(region.clone());
        }
        let len = usize::try_from(self.len).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let region = self.file()?.map(0, len, self.access)?;
        // Another thread may have been first; then this map goes.
        Ok(self.region.write().get_or_insert(region).clone())
    }

    /// Its bytes through a map, and an open, that nobody else has. A system reports a failed write-back
    /// once to each open of a file: who flushes through this map leaves the report to those who sync the
    /// file by other means. The caller sees to it that the map goes when it is not needed.
    pub fn map_apart(&self) -> io::Result<Region> {
        let len = usize::try_from(self.len).map_err(|_| io::ErrorKind::FileTooLarge)?;
        self.open_again()?.map(0, len, self.access)
    }

    /// `len` bytes from `position` on (relative to the file) without copying; they must lie below
    /// [`MappedFile::wrote`], else `InvalidInput`.
    pub fn view(&self, position: u64, len: usize) -> io::Result<RegionView> {
        if position.checked_add(len as u64).is_none_or(|end| end > self.wrote()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "beyond what was written"));
        }
        // A position below the length of a mapped file fits an address.
        Ok(self.region()?.view(position as usize, len)?)
    }

    /// Bytes published to readers, relative; all bytes below never change.
    #[inline]
    pub fn wrote(&self) -> u64 {
        self.wrote.load(Ordering::Acquire)
    }

    /// Bytes that are in the file; as [`MappedFile::wrote`] unless a pool buffer is in use.
    #[inline]
    pub fn committed(&self) -> u64 {
        self.committed.load(Ordering::Acquire)
    }

    /// Bytes that are durable.
    #[inline]
    pub fn flushed(&self) -> u64 {
        self.flushed.load(Ordering::Acquire)
    }

    /// Publishes everything below `position`, which the caller and those before it have written.
    /// Never moves back.
    #[inline]
    pub fn advance_wrote(&self, position: u64) {
        debug_assert!(position <= self.len, "position {position} in a file of {} bytes", self.len);
        self.wrote.raise(position, Ordering::AcqRel);
    }

    /// Notes that everything below `position` is in the file. Never moves back.
    #[inline]
    pub fn advance_committed(&self, position: u64) {
        debug_assert!(position <= self.len, "position {position} in a file of {} bytes", self.len);
        self.committed.raise(position, Ordering::AcqRel);
    }

    /// Notes that everything below `position` is durable. Never moves back.
    #[inline]
    pub fn advance_flushed(&self, position: u64) {
        debug_assert!(position <= self.len, "position {position} in a file of {} bytes", self.len);
        self.flushed.raise(position, Ordering::AcqRel);
    }

    /// Sets all three positions, back too; for recovery, while nobody else uses the file.
    pub fn set_positions(&self, position: u64) {
        for place in [&self.wrote, &self.committed, &self.flushed] {
            place.store(position.min(self.len), Ordering::Release);
        }
    }

    /// Whether no byte is left to write.
    pub fn is_full(&self) -> bool {
        self.wrote() >= self.len
    }

    /// Syncs the file when something below [`MappedFile::wrote`] is not durable yet, and returns the
    /// position up to which all is. After an error the position stays, and the caller must not believe
    /// a later success.
    pub fn flush(&self) -> io::Result<u64> {
        self.flush_to(self.wrote(), false)
    }

    /// Makes the bytes below `end` durable, which are written: nothing behind `end` counts as durable
    /// then. With `pages` only the pages that hold them are written, where the file is mapped and the
    /// system can: pages that were touched ahead of the writer stay out of it.
    pub fn flush_to(&self, end: u64, pages: bool) -> io::Result<u64> {
        let flushed = self.flushed();
        if flushed < end {
            let mapped = self.region.read().clone().filter(|_| pages && cfg!(target_os = "linux"));
            switch::step("mapped_file.sync_content", || match mapped {
                // Positions in a mapped file fit an address.
                Some(region) => region.flush(flushed as usize..end as usize),
                None => self.file()?.sync_data(),
            })?;
            self.advance_committed(end);
            self.advance_flushed(end);
        }
        Ok(self.flushed())
    }

    /// Whether its name still leads to it; `false` when somebody removed or replaced it, so that what
    /// is written to it is lost when it is closed.
    pub fn is_linked(&self) -> io::Result<bool> {
        // An open file keeps its number: another one at its name has another number.
        let _open = self.file()?;
        match self.vfs.inode(&self.path.lock()) {
            Ok(inode) => Ok(inode == self.inode),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// A guard that keeps the bytes; `None` once the file is retired.
    pub fn hold(self: &Arc<Self>) -> Option<MappedFileGuard> {
        // Counted first, looked at then; whoever overwrites it does both the other way round, so that one
        // of the two sees the other.
        let guard = MappedFileGuard::new(self);
        fence(Ordering::SeqCst);
        (!self.is_retired()).then_some(guard)
    }

    /// How many guards there are now.
    pub fn holders(&self) -> usize {
        self.holders.load(Ordering::Acquire)
    }

    /// Whether a guard, a view or another handle to its map exists, so that its bytes must not change.
    pub fn is_in_use(&self) -> bool {
        fence(Ordering::SeqCst);
        self.holders() > 0 || self.region.read().as_ref().is_some_and(Region::is_shared)
    }

    /// Whether [`MappedFile::retire`] succeeded.
    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    /// Removes the file's name now and its bytes when the last guard, view and handle is gone. No
    /// guard is given out afterwards. A name that leads to another file by now is left alone. The
    /// removal is durable after a sync of the folder; calling again does nothing.
    pub fn retire(&self) -> io::Result<()> {
        self.retire_by(|path| self.vfs.remove_file(path))
    }

    /// As [`MappedFile::retire`], but the file gets the name `to`, on the same file system and free, so
    /// that its bytes can be overwritten there once nobody uses them. Durable after a sync of both
    /// folders.
    pub fn retire_to(&self, to: &Path) -> io::Result<()> {
        self.retire_by(|path| self.vfs.rename_noreplace(path, to))?;
        *self.path.lock() = to.to_path_buf();
        Ok(())
    }

    fn retire_by(&self, take_name: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
        let path = self.path();
        match self.vfs.stat(&path) {
            Ok(stat) if stat.inode == self.inode => {
                // Whoever holds it may not have touched it yet and can do so only through a descriptor.
                let file = self.file()?;
                take_name(&path)?;
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
