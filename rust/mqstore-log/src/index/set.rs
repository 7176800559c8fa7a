//! All index files of a store.
//!
//! This module owns the list of files by age, the list of other entries in `index/`, and the writer's lock. A load
//! reads names and headers, and more only if the geometry is in doubt. Files are only added at the end. Recovery
//! removes whole files from the newest on, so a crash leaves an older index without a gap.
//!
//! Source: `IndexService`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use mqstore_format::index::INDEX_HEADER_BYTES;
use mqstore_format::{IndexFileTime, IndexGeometry, IndexHeader};
use mqstore_io::switch;
use mqstore_io::sync::{Arc, Mutex, MutexGuard, RwLock};
use mqstore_io::{Access, FileCache, VfsFile};

use super::discover::{self, FoundFile};
use super::file::{IndexFile, header_damage, is_possible, read_header};
use super::geometry;
use mqstore_base::durable_mark::IndexExtent;
use mqstore_base::error::{IoContext, StoreError, Stray};
use mqstore_base::store_files::{OldFile, StoreFiles};

/// Maximum number of names to try for a staged file.
const STAGING_TRIES: u32 = 10_000;

/// The key index of one store.
#[derive(Debug)]
pub struct IndexSet {
    files: StoreFiles,
    access: Access,
    cache: Arc<FileCache>,
    geometry: IndexGeometry,
    strays: Vec<Stray>,
    damaged: Option<String>,
    /// Whether files exist whose geometry is unknown.
    guessed: bool,
    list: RwLock<Vec<Arc<IndexFile>>>,
    writer: Mutex<Writer>,
}

/// The state that only the writer uses.
#[derive(Debug, Default)]
pub(super) struct Writer {
    pub(super) last_name: Option<IndexFileTime>,
    staged: u64,
    dirty_folders: BTreeSet<PathBuf>,
}

impl Writer {
    pub(super) fn mark_folder(&mut self, folder: &Path) {
        self.dirty_folders.insert(folder.to_path_buf());
    }
}

impl IndexSet {
    /// Lists the index files of a store. Never writes.
    ///
    /// The geometry is the first of these that fits:
    ///
    /// 1. `known`, from the store's own durable mark, if the files have its length.
    /// 2. `configured`, or RocketMQ's default (5,000,000 slots, 20,000,000 entries), if the files have its length and
    ///    their chains do not contradict it.
    /// 3. The only geometry that matches the chains of the files.
    /// 4. `configured` or the default, if the files have its length although their chains contradict it.
    /// 5. The only geometry that matches the first entries of a file, whatever its header says.
    ///
    /// If none fits, files without an entry are ignored, all others are strays, and the set is empty; new files then
    /// get the geometry `configured`. Without any index file, new files get `known`, or `configured` if it is `None`.
    /// A file of another length, or with an impossible header, is a stray.
    pub fn load(
        files: &StoreFiles,
        known: Option<IndexGeometry>,
        configured: IndexGeometry,
        access: Access,
    ) -> Result<Self, StoreError> {
        if !is_possible(configured) {
            let reason = "give 1 to 2,147,483,647 slots and 2 to 2,147,483,647 entries".to_owned();
            return Err(StoreError::InvalidOption { option: "index_slots, index_entries", reason });
        }
        let found = discover::scan(&*files.vfs, &files.index())?;
        let chosen = geometry::choose_geometry(&*files.vfs, &found.files, known, configured)?;
        let fallback = known.filter(|known| is_possible(*known) && found.files.is_empty());
        let mut set = Self {
            files: files.clone(),
            access,
            cache: Arc::new(FileCache::new(Arc::clone(&files.vfs), files.kept_files().1)),
            geometry: chosen.or(fallback).unwrap_or(configured),
            strays: found.strays,
            damaged: None,
            guessed: false,
            list: RwLock::default(),
            writer: Mutex::new(Writer { last_name: found.last_name, ..Writer::default() }),
        };
        for found in found.files {
            set.adopt(found, chosen.is_some())?;
        }
        Ok(set)
    }

    /// Whether files exist whose number of slots and entries is unknown: neither their contents nor the options show
    /// it.
    pub fn has_guessed_geometry(&self) -> bool {
        self.guessed
    }

    fn adopt(&mut self, found: FoundFile, known_geometry: bool) -> Result<(), StoreError> {
        let path = found.path.clone();
        let judged = if known_geometry {
            self.judge(found)?
        } else if self.is_empty(&found)? {
            // RocketMQ 5.3.3 creates a file for messages without keys. Nothing in it shows its geometry, and ignoring
            // it loses nothing.
            return Ok(());
        } else {
            self.guessed = true;
            Err("its number of slots and entries is unknown: neither the options nor its chains show it"
                .to_owned())
        };
        match judged {
            Ok(file) => self.list.write().push(Arc::new(file)),
            Err(reason) => {
                self.damaged.get_or_insert_with(|| format!("{}: {reason}", path.display()));
                self.strays.push(Stray::new(&path, reason));
            }
        }
        Ok(())
    }

    /// Whether the header counts no entry.
    fn is_empty(&self, found: &FoundFile) -> Result<bool, StoreError> {
        if found.len < INDEX_HEADER_BYTES as u64 {
            return Ok(false);
        }
        let header = self.header_of(found)?;
        Ok((0..=1).contains(&header.index_count) && header.slot_count == 0)
    }

    fn header_of(&self, found: &FoundFile) -> Result<IndexHeader, StoreError> {
        let file = self.cache.get(&found.path, Access::Read).at(&found.path, "opening an index file")?;
        read_header(&*file).at(&found.path, "reading an index header")
    }

    /// Returns the file, or the reason why it is no file of this index.
    fn judge(&self, found: FoundFile) -> Result<Result<IndexFile, String>, StoreError> {
        let len = self.geometry.file_len();
        if found.len != len {
            return Ok(Err(format!("{} bytes long; index files here have {len}", found.len)));
        }
        let header = self.header_of(&found)?;
        Ok(match header_damage(&header, self.geometry) {
            Some(damage) => Err(damage),
            None => Ok(IndexFile::new(found.path, self.geometry, &self.cache, self.access, header)),
        })
    }

    /// Reloads the set after all files were replaced by files of the same geometry. No write may run meanwhile; lookups
    /// may continue.
    pub fn reload(&self) -> Result<(), StoreError> {
        let mut writer = self.writer();
        self.release();
        let found = discover::scan(&*self.files.vfs, &self.files.index())?;
        let mut list = Vec::with_capacity(found.files.len());
        for found in found.files {
            let path = found.path.clone();
            let file = self.judge(found)?.map_err(|reason| StoreError::corrupt(&path, 0, reason))?;
            list.push(Arc::new(file));
        }
        writer.last_name = found.last_name;
        *self.list.write() = list;
        Ok(())
    }

    /// Releases maps and descriptors of a set that is not used any more.
    pub fn release(&self) {
        for file in self.list.read().iter() {
            file.unmap();
        }
        self.cache.forget_dir(&self.files.root);
        self.cache.forget_dir(&self.files.index());
    }

    /// Returns the number of files that are open, and the number that the set may keep open.
    pub fn open_files(&self) -> (usize, usize) {
        (self.cache.len(), self.cache.capacity())
    }

    /// Slots and entries of every file.
    pub fn geometry(&self) -> IndexGeometry {
        self.geometry
    }

    /// Returns the entries of the index folder that are no files of this index.
    pub fn strays(&self) -> &[Stray] {
        &self.strays
    }

    /// Describes why entries may be missing: a file that looks like an index file could not be used.
    pub fn damaged(&self) -> Option<&str> {
        self.damaged.as_deref()
    }

    /// Number of files.
    pub fn file_count(&self) -> usize {
        self.list.read().len()
    }

    /// Returns the path of the newest file, which has the largest name.
    pub(crate) fn newest_path(&self) -> Option<PathBuf> {
        self.last().map(|file| file.path.clone())
    }

    /// Log offset at which the record of the newest entry *starts*; 0 without an entry. Entries of its other keys may
    /// be missing, so indexing continues with this record. For a set opened for reading, the value is that of the load.
    pub fn end_physical(&self) -> i64 {
        self.extent().end
    }

    /// Returns the number of files, and the range of the log that the newest file covers.
    pub fn extent(&self) -> IndexExtent {
        let list = self.list.read();
        let newest = list.last().map(|file| file.known_header()).unwrap_or_default();
        IndexExtent {
            files: list.len() as u32,
            newest_begin: newest.begin_physical,
            end: newest.end_physical,
        }
    }

    /// Returns the log offsets of the first and the last entry of each file that has entries, oldest file first. For a
    /// set opened for reading, the values are those of the load.
    pub fn spans(&self) -> Vec<(u64, u64)> {
        let headers = self.files().into_iter().map(|file| file.known_header());
        let filled = headers.filter(|header| header.index_count > 1);
        filled.map(|header| (header.begin_physical as u64, header.end_physical as u64)).collect()
    }

    /// End time in epoch milliseconds of the newest file that receives no more entries and is durable together with all
    /// files before it; 0 without one. RocketMQ's checkpoint stores it as `indexMsgTimestamp`.
    pub fn last_sealed_end_timestamp(&self) -> i64 {
        let files = self.files();
        let durable = sealed(&files).take_while(|file| !file.is_dirty());
        durable.last().map_or(0, |file| file.known_header().end_timestamp)
    }

    /// Whether [`Self::flush`] has anything to sync.
    pub fn is_dirty(&self) -> bool {
        self.files().iter().any(|file| file.is_dirty()) || !self.writer.lock().dirty_folders.is_empty()
    }

    /// Syncs the files that changed since the last flush, then the folder if names changed. The first flush after an
    /// open syncs all files. After an error, the next flush syncs the rest.
    pub fn flush(&self) -> Result<(), StoreError> {
        for file in self.files() {
            file.flush()?;
        }
        let mut folders = std::mem::take(&mut self.writer.lock().dirty_folders);
        while let Some(folder) = folders.pop_last() {
            match switch::step("index.sync_folder", || self.files.vfs.sync_dir(&folder)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    let failed = StoreError::io(&folder, "syncing the index folder", error);
                    folders.insert(folder);
                    self.writer.lock().dirty_folders.append(&mut folders);
                    return Err(failed);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Completes the newest entry if a kill left it without its slot. Only the newest file that has entries can be
    /// in this state: a file follows another one after the last entry of that one is complete.
    pub(crate) fn link_newest_entry(&self) -> Result<(), StoreError> {
        self.writable("link an index entry")?;
        let _writer = self.writer();
        let newest = self.files().into_iter().rev().find(|file| file.known_header().next_entry() > 1);
        newest.map_or(Ok(()), |file| file.link_newest())
    }

    /// Removes every file that can receive entries or has one for a record at or after log offset `physical`, and all
    /// newer files. Returns the log offset from which the index needs entries: the files that stay may have some keys
    /// of the record there.
    pub(crate) fn drop_from(&self, physical: u64) -> Result<i64, StoreError> {
        let stays = |file: &Arc<IndexFile>| {
            let end = file.known_header().end_physical;
            u64::try_from(end).is_ok_and(|end| end < physical)
        };
        let kept = sealed(&self.files()).take_while(|file| stays(file)).count();
        self.remove_from(kept)?;
        Ok(self.end_physical())
    }

    /// Returns the oldest files whose newest entry is for a record before log offset `log_min`, but never the last
    /// file. Source: `IndexService#deleteExpiredFile`.
    pub fn files_below(&self, log_min: u64) -> Vec<OldFile> {
        let files = self.files();
        let Some((_, older)) = files.split_last() else { return Vec::new() };
        self.passed(older, log_min)
    }

    /// Like [`Self::files_below`], with the last file, which [`Self::leave_old_file`] makes removable.
    pub fn files_left_below(&self, log_min: u64) -> Vec<OldFile> {
        let files = self.files();
        let filled = files.iter().take_while(|file| file.known_header().next_entry() > 1).count();
        self.passed(files.get(..filled).unwrap_or_default(), log_min)
    }

    fn passed(&self, files: &[Arc<IndexFile>], log_min: u64) -> Vec<OldFile> {
        let passed = |header: &IndexHeader| u64::try_from(header.end_physical).is_ok_and(|end| end < log_min);
        let old =
            files.iter().map(|file| (file, file.known_header())).take_while(|(_, header)| passed(header));
        old.map(|(file, header)| OldFile {
            path: file.path.clone(),
            bytes: self.geometry.file_len(),
            first_offset: header.begin_physical,
            last_offset: header.end_physical,
        })
        .collect()
    }

    /// Removes the files of [`Self::files_below`] for `log_min`, oldest first. Each removal is durable before the next
    /// one, so a crash leaves no gap. Calls `removed` for each file.
    pub fn remove_below(&self, log_min: u64, removed: &mut dyn FnMut(&OldFile)) -> Result<(), StoreError> {
        self.writable("delete index files")?;
        let folder = self.files.index();
        for file in self.files_below(log_min) {
            // Lookups that hold the file's handle can still read it.
            self.list.write().retain(|other| other.path != file.path);
            self.cache.forget(&file.path);
            match self.files.vfs.remove_file(&file.path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(StoreError::io(&file.path, "deleting an index file", error));
                }
                _ => {}
            }
            switch::step("retention.sync_index_removal", || self.files.vfs.sync_dir(&folder))
                .at(&folder, "syncing the index folder")?;
            removed(&file);
        }
        Ok(())
    }

    /// Like [`Self::remove_below`], for a set opened for reading while the writer removes the files.
    pub fn forget_below(&self, log_min: u64) {
        for file in self.files_below(log_min) {
            self.list.write().retain(|other| other.path != file.path);
            self.cache.forget(&file.path);
        }
    }

    pub(super) fn still_has(&self, file: &Arc<IndexFile>) -> bool {
        self.list.read().iter().any(|other| Arc::ptr_eq(other, file))
    }

    /// Removes all files of the index; strays stay.
    pub fn remove_all(&self) -> Result<(), StoreError> {
        self.remove_from(0)
    }

    fn remove_from(&self, kept: usize) -> Result<(), StoreError> {
        self.writable("remove index files")?;
        let mut writer = self.writer();
        loop {
            let Some(file) = self.last().filter(|_| self.file_count() > kept) else { return Ok(()) };
            self.cache.forget(&file.path);
            match self.files.vfs.remove_file(&file.path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(StoreError::io(&file.path, "removing an index file", error));
                }
                _ => {}
            }
            writer.mark_folder(&self.files.index());
            self.list.write().pop();
        }
    }

    pub(super) fn writable(&self, action: &'static str) -> Result<(), StoreError> {
        match self.access {
            Access::ReadWrite => Ok(()),
            Access::Read => Err(StoreError::ReadOnly { path: self.files.root.clone(), action }),
        }
    }

    pub(super) fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock()
    }

    pub(super) fn store_files(&self) -> &StoreFiles {
        &self.files
    }

    /// Returns the files, oldest first.
    pub(super) fn files(&self) -> Vec<Arc<IndexFile>> {
        self.list.read().clone()
    }

    pub(super) fn last(&self) -> Option<Arc<IndexFile>> {
        self.list.read().last().cloned()
    }

    /// Adds a new file.
    pub(super) fn push(&self, path: PathBuf, header: IndexHeader) -> Arc<IndexFile> {
        let file = Arc::new(IndexFile::new(path, self.geometry, &self.cache, self.access, header));
        self.list.write().push(Arc::clone(&file));
        file
    }

    /// Creates an empty file in the staging folder.
    pub(super) fn stage(&self, writer: &mut Writer) -> Result<(PathBuf, Arc<dyn VfsFile>), StoreError> {
        let folder = self.files.staging_for(&self.files.index());
        let mut path = folder.clone();
        for _ in 0..STAGING_TRIES {
            path = folder.join(format!("index-{}", writer.staged));
            match self.files.vfs.create_new(&path) {
                Ok(file) => return Ok((path, file)),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => writer.staged += 1,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    self.files.vfs.create_dir_all(&folder).at(&folder, "creating the staging folder")?;
                }
                Err(error) => return Err(StoreError::io(&path, "creating an index file", error)),
            }
        }
        Err(StoreError::Busy { reason: format!("{}: no name is free for an index file", path.display()) })
    }
}

/// Returns the oldest files that receive no more entries: each one before the last file, and the last one if it is full.
fn sealed(files: &[Arc<IndexFile>]) -> impl Iterator<Item = &Arc<IndexFile>> {
    files
        .iter()
        .enumerate()
        .take_while(|(at, file)| at + 1 < files.len() || file.is_full())
        .map(|(_, file)| file)
}
