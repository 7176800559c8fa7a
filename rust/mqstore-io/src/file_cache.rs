//! A bounded cache of open files, by path, which closes the least recently used one.
//!
//! It serves large sets of small files that are written by position and rarely touched, such as consume queues: a
//! broker has tens of thousands, and a process may have a thousand open. [`FileCache`] says what closing a file may
//! hide, so keep data that cannot be derived again out of this cache. A file that is read often may be mapped too
//! ([`FileCache::map`]).

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::region::{MapAccess, Region};
use crate::vfs::{Access, Vfs, VfsFile};

#[cfg(test)]
mod tests;

/// Open files by path.
///
/// Closing a file with unsynced bytes loses nothing: the page cache has them, and a later sync through another handle
/// covers them. An error of the write-back in between may go unseen.
///
/// Handles are shared: a file closes when its last clone is dropped, and its map goes with the handle. No lock is held
/// while a file is opened. Call [`FileCache::forget`] before you remove or rename a file, or a later write goes to the
/// old one.
#[derive(Debug)]
pub struct FileCache {
    vfs: Arc<dyn Vfs>,
    capacity: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<PathBuf, CacheEntry>,
    /// Paths by the moment of their last use.
    order: BTreeMap<u64, PathBuf>,
    /// Counts uses.
    now: u64,
    /// Counts calls that forget; a file opened before one is not kept.
    forgets: u64,
}

#[derive(Debug)]
struct CacheEntry {
    file: Arc<dyn VfsFile>,
    map: Option<Arc<Region>>,
    access: Access,
    used: u64,
}

impl FileCache {
    /// Keeps at most `capacity` files open (at least 1).
    pub fn new(vfs: Arc<dyn Vfs>, capacity: usize) -> Self {
        Self { vfs, capacity: capacity.max(1), state: Mutex::default() }
    }

    /// The file at `path`, opened if it is not open. A file open for writing also serves readers; one
    /// open for reading is opened again for a writer.
    pub fn get(&self, path: &Path, access: Access) -> io::Result<Arc<dyn VfsFile>> {
        let forgets = {
            let mut state = self.state.lock();
            if let Some(file) = state.hit(path, access) {
                return Ok(file);
            }
            state.forgets
        };
        let file = self.vfs.open(path, access)?;
        let mut state = self.state.lock();
        if state.forgets != forgets {
            return Ok(file);
        }
        // Another thread may have opened it meanwhile; one handle is enough.
        if let Some(other) = state.hit(path, access) {
            return Ok(other);
        }
        let evicted = state.insert(path, access, Arc::clone(&file), self.capacity);
        drop(state);
        drop(evicted);
        Ok(file)
    }

    /// The first `len` bytes of the file at `path` in memory, for reading. They stay at their place for as
    /// long as there is a clone of the answer, which nobody is to keep: the file would stay open.
    pub fn map(&self, path: &Path, access: Access, len: u64) -> io::Result<Arc<Region>> {
        if let Some(map) = self.state.lock().entries.get(path).and_then(|entry| entry.map.clone()) {
            return Ok(map);
        }
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let map = Arc::new(self.get(path, access)?.map(0, len, MapAccess::Read)?);
        // Gone from the table meanwhile, the file has no map that stays.
        if let Some(entry) = self.state.lock().entries.get_mut(path) {
            return Ok(Arc::clone(entry.map.get_or_insert(map)));
        }
        Ok(map)
    }

    /// Drops the handle of `path`.
    pub fn forget(&self, path: &Path) {
        let mut state = self.state.lock();
        state.forgets += 1;
        let entry = state.remove(path);
        drop(state);
        drop(entry);
    }

    /// Drops the handles of all files in and below `dir`.
    pub fn forget_dir(&self, dir: &Path) {
        let mut state = self.state.lock();
        state.forgets += 1;
        let paths: Vec<PathBuf> =
            state.entries.keys().filter(|path| path.starts_with(dir)).cloned().collect();
        let entries: Vec<_> = paths.iter().map(|path| state.remove(path)).collect();
        drop(state);
        drop(entries);
    }

    /// How many files are open.
    pub fn len(&self) -> usize {
        self.state.lock().entries.len()
    }

    /// Whether none is open.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A few maps of one row of files, found without a path and without the cache's lock; the cache keeps them,
/// or does not.
#[derive(Debug, Default)]
pub struct RecentMaps(Mutex<Vec<(u64, Weak<Region>)>>);

/// Maps that are remembered of a row.
const RECENT_MAPS: usize = 8;

impl RecentMaps {
    /// The map `key`; `map` asks the cache for it, if it is not remembered.
    pub fn get(&self, key: u64, map: impl FnOnce() -> io::Result<Arc<Region>>) -> io::Result<Arc<Region>> {
        let mut recent = self.0.lock();
        let known = recent.iter().find(|(known, _)| *known == key).and_then(|(_, map)| map.upgrade());
        if let Some(known) = known {
            return Ok(known);
        }
        let map = map()?;
        recent.retain(|(known, map)| *known != key && map.strong_count() > 0);
        recent.truncate(RECENT_MAPS - 1);
        recent.insert(0, (key, Arc::downgrade(&map)));
        Ok(map)
    }
}

impl State {
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

    /// Keeps `file`; returns what has to be closed for it, outside of the lock.
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
