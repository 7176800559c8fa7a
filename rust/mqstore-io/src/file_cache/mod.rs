//! A bounded cache of open files by path. It closes the least recently used file.
//!
//! It is for large sets of small files that are written at offsets and rarely used, such as consume queues: a broker
//! has tens of thousands of them, and a process can have a thousand files open. [`FileCache`] says what an early close
//! can hide, so keep data that cannot be rebuilt out of this cache. A file with frequent reads can also be mapped
//! ([`FileCache::map`]).

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::open_files::{KeepsFiles, OpenFileShare};
use crate::region::{MapAccess, Region};
use crate::vfs::{Access, Vfs, VfsFile};

#[cfg(test)]
mod tests;

/// Open files by path.
///
/// A close of a file with unsynced bytes loses nothing: the page cache has them, and a later sync through another
/// handle covers them. An error of the write-back in between may stay unseen.
///
/// Handles are shared: a file closes when its last clone is dropped, and its map is dropped with the handle. No lock is
/// held during an open. All caches of a process share its limit of open files ([`crate::open_files`]). Call
/// [`FileCache::forget`] before you remove or rename a file. Otherwise a later write goes to the old file.
#[derive(Debug)]
pub struct FileCache {
    vfs: Arc<dyn Vfs>,
    share: OpenFileShare,
    state: Arc<SharedState>,
}

#[derive(Debug, Default)]
struct SharedState {
    table: Mutex<CacheState>,
    /// Number of calls that forget. A file opened before such a call is not kept. Changes under the lock.
    forgets: AtomicU64,
}

#[derive(Debug, Default)]
struct CacheState {
    entries: HashMap<PathBuf, CacheEntry>,
    /// Paths by the time of their last use.
    order: BTreeMap<u64, PathBuf>,
    /// Number of uses.
    now: u64,
}

#[derive(Debug)]
struct CacheEntry {
    file: Arc<dyn VfsFile>,
    map: Option<Arc<Region>>,
    access: Access,
    used: u64,
}

impl FileCache {
    /// Creates a cache that keeps at most `capacity` files open (at least 1).
    pub fn new(vfs: Arc<dyn Vfs>, capacity: usize) -> Self {
        let state = Arc::<SharedState>::default();
        let share = match vfs.open_files() {
            Some(files) => {
                let weak: Weak<SharedState> = Arc::downgrade(&state);
                files.add_cache(weak, capacity, vfs.environment().most_kept_files() as usize)
            }
            None => OpenFileShare::unlimited(capacity),
        };
        Self { vfs, share, state }
    }

    /// Returns the number of files that the cache may keep open now.
    pub fn capacity(&self) -> usize {
        self.share.capacity()
    }

    /// Returns the file at `path`, and opens it if it is not open. A file open for writing also serves readers. A file
    /// open for reading is opened again for a writer.
    pub fn get(&self, path: &Path, access: Access) -> io::Result<Arc<dyn VfsFile>> {
        let forgets = {
            let mut state = self.state.table.lock();
            if let Some(file) = state.hit(path, access) {
                return Ok(file);
            }
            self.forgets()
        };
        let file = self.vfs.open(path, access)?;
        let mut state = self.state.table.lock();
        if self.forgets() != forgets {
            return Ok(file);
        }
        // Another thread may have opened the file too; one handle is enough.
        if let Some(other) = state.hit(path, access) {
            return Ok(other);
        }
        let evicted = state.insert(path, access, Arc::clone(&file), self.capacity());
        drop(state);
        drop(evicted);
        Ok(file)
    }

    /// Maps the first `len` bytes of the file at `path` for reading. They stay in place as long as a clone of the
    /// result exists. Do not keep one: it keeps the file open.
    pub fn map(&self, path: &Path, access: Access, len: u64) -> io::Result<Arc<Region>> {
        if let Some(map) = self.state.table.lock().entries.get(path).and_then(|entry| entry.map.clone()) {
            return Ok(map);
        }
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let file = self.get(path, access)?;
        let map = Arc::new(file.map(0, len, MapAccess::Read)?);
        // If the file has left the table, its map is not kept. Another file can have its name now.
        let mut state = self.state.table.lock();
        match state.entries.get_mut(path).filter(|entry| Arc::ptr_eq(&entry.file, &file)) {
            Some(entry) => Ok(Arc::clone(entry.map.get_or_insert(map))),
            None => Ok(map),
        }
    }

    /// Number of calls that forget.
    fn forgets(&self) -> u64 {
        self.state.forgets.load(Ordering::Acquire)
    }

    /// Drops the handle of `path`.
    pub fn forget(&self, path: &Path) {
        let mut state = self.state.table.lock();
        self.state.forgets.fetch_add(1, Ordering::AcqRel);
        let entry = state.remove(path);
        drop(state);
        drop(entry);
    }

    /// Drops the handles of all files in `dir` and below it.
    pub fn forget_dir(&self, dir: &Path) {
        let mut state = self.state.table.lock();
        self.state.forgets.fetch_add(1, Ordering::AcqRel);
        let paths: Vec<PathBuf> =
            state.entries.keys().filter(|path| path.starts_with(dir)).cloned().collect();
        let entries: Vec<_> = paths.iter().map(|path| state.remove(path)).collect();
        drop(state);
        drop(entries);
    }

    /// Returns the number of open files.
    pub fn len(&self) -> usize {
        self.state.table.lock().entries.len()
    }

    /// Returns whether no file is open.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The most recent files of one sequence in a [`FileCache`], or their maps, found without a path and without the cache's
/// lock. It holds weak references: only the cache keeps them alive. What the cache forgot since is not found, even if a
/// caller still has it.
#[derive(Debug)]
pub struct Recent<T: ?Sized>(Mutex<Vec<RecentEntry<T>>>);

#[derive(Debug)]
struct RecentEntry<T: ?Sized> {
    key: u64,
    /// The number of calls that forget, before the file was opened.
    forgets: u64,
    opened: Weak<T>,
}

/// The maps of [`Recent`] files.
pub type RecentMaps = Recent<Region>;

/// The handles of [`Recent`] files. Their use does not count in the cache's order.
pub type RecentFiles = Recent<dyn VfsFile>;

/// Number of files that are remembered for a sequence.
const RECENT_FILES: usize = 8;

impl<T: ?Sized> Default for Recent<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: ?Sized> Recent<T> {
    /// Returns the file or map `key` of `cache`. If it is not remembered, calls `open`, which asks the cache.
    ///
    /// # Errors
    /// The error of `open`.
    pub fn get<E>(
        &self,
        cache: &FileCache,
        key: u64,
        open: impl FnOnce() -> Result<Arc<T>, E>,
    ) -> Result<Arc<T>, E> {
        let mut recent = self.0.lock();
        let forgets = cache.forgets();
        let known = recent.iter().find(|known| known.key == key && known.forgets == forgets);
        if let Some(known) = known.and_then(|known| known.opened.upgrade()) {
            return Ok(known);
        }
        let opened = open()?;
        recent.retain(|known| known.key != key && known.opened.strong_count() > 0);
        recent.truncate(RECENT_FILES - 1);
        recent.insert(0, RecentEntry { key, forgets, opened: Arc::downgrade(&opened) });
        Ok(opened)
    }
}

impl KeepsFiles for SharedState {
    fn release(&self) -> usize {
        let Some(mut state) = self.table.try_lock() else { return 0 };
        let released = state.take_unused();
        drop(state);
        released.len()
    }

    fn keeps_files(&self) -> bool {
        self.table.try_lock().is_none_or(|state| !state.entries.is_empty())
    }
}

impl CacheState {
    /// Removes the entries whose file no caller has.
    fn take_unused(&mut self) -> Vec<CacheEntry> {
        let is_unused = |entry: &CacheEntry| Arc::strong_count(&entry.file) == 1;
        let unused: Vec<CacheEntry> =
            self.entries.extract_if(|_, entry| is_unused(entry)).map(|(_, entry)| entry).collect();
        for entry in &unused {
            self.order.remove(&entry.used);
        }
        unused
    }

    fn hit(&mut self, path: &Path, access: Access) -> Option<Arc<dyn VfsFile>> {
        let entry = self.entries.get_mut(path)?;
        if access == Access::ReadWrite && entry.access == Access::Read {
            return None;
        }
        self.now += 1;
        if let Some(path) = self.order.remove(&entry.used) {
            self.order.insert(self.now, path);
        }
        entry.used = self.now;
        Some(Arc::clone(&entry.file))
    }

    /// Keeps `file`, and returns the evicted entry, which the caller drops without the lock.
    fn insert(
        &mut self,
        path: &Path,
        access: Access,
        file: Arc<dyn VfsFile>,
        capacity: usize,
    ) -> Vec<CacheEntry> {
        let mut evicted: Vec<CacheEntry> = self.remove(path).into_iter().collect();
        while self.entries.len() >= capacity {
            let Some((_, oldest)) = self.order.pop_first() else { break };
            evicted.extend(self.entries.remove(&oldest));
        }
        self.now += 1;
        self.order.insert(self.now, path.to_path_buf());
        self.entries.insert(path.to_path_buf(), CacheEntry { file, map: None, access, used: self.now });
        evicted
    }

    fn remove(&mut self, path: &Path) -> Option<CacheEntry> {
        let entry = self.entries.remove(path)?;
        self.order.remove(&entry.used);
        Some(entry)
    }
}
