//! A file system for reading over an object store, or another file system that only lists files and reads ranges.
//!
//! [`RemoteVfs`] lists all files of a store once, when it is created. From then on it shows these files in these
//! versions: a file that was replaced or removed since then causes an error, never other bytes. Nothing is copied; the
//! pages that were read last are in memory (`pages`).
//!
//! Callers often continue without a file that they cannot read. After a failed request that could make an answer
//! incomplete. So the first failure stays: each later call returns it again, and [`Vfs::failure`] shows it.

mod file;
mod files;
mod pages;
mod source;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::os::OsVfs;
use crate::vfs::{
    Access, DirEntry, Environment, FileStat, LockError, LockHolder, SpaceInfo, StoreLock, Vfs, VfsFile,
};

use file::RemoteFile;
use files::{BEST_READ_BYTES, RemoteFiles, read_only, read_only_error};
pub use source::{
    PendingRange, RangeBytes, RemoteCause, RemoteEntry, RemoteError, RemoteRange, RemoteSource,
};

/// See the header of this module.
#[derive(Debug)]
pub struct RemoteVfs {
    root: PathBuf,
    /// The names in each folder, by the path of the folder below the root. A folder has no number.
    folders: HashMap<PathBuf, BTreeMap<OsString, Option<usize>>>,
    /// Whether the root is a file, the only one.
    is_file: bool,
    files: Arc<RemoteFiles>,
}

impl RemoteVfs {
    /// Lists the files of `source`, which appear below the path `root`.
    ///
    /// # Errors
    /// The request failed: see [`RemoteError::of`].
    pub fn open(root: &Path, source: Arc<dyn RemoteSource>) -> io::Result<Self> {
        let mut entries = source.list()?;
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        let mut folders: HashMap<PathBuf, BTreeMap<OsString, Option<usize>>> = HashMap::new();
        for (number, entry) in entries.iter().enumerate() {
            let mut path = Path::new(&entry.path);
            let mut child = Some(number);
            while let (Some(folder), Some(name)) = (path.parent(), path.file_name()) {
                let names = folders.entry(folder.to_path_buf()).or_default();
                let is_known = names.contains_key(name);
                // Object stores can have a file `a` next to a file `a/b`; only the folder is shown then.
                if !is_known || child.is_none() {
                    names.insert(name.to_os_string(), child);
                }
                if is_known {
                    break;
                }
                (path, child) = (folder, None);
            }
        }
        let is_file = entries.len() == 1 && entries.first().is_some_and(|entry| entry.path.is_empty());
        let files = RemoteFiles::new(root, source, entries);
        Ok(Self { root: root.to_path_buf(), folders, is_file, files: Arc::new(files) })
    }

    /// Returns the number of the file at `path`; `None` for a folder.
    fn find(&self, path: &Path) -> io::Result<Option<usize>> {
        self.files.check()?;
        let below = path.strip_prefix(&self.root).map_err(|_| io::ErrorKind::NotFound)?;
        if below.as_os_str().is_empty() {
            return match (self.is_file, self.folders.is_empty()) {
                (true, _) => Ok(Some(0)),
                (false, false) => Ok(None),
                (false, true) => Err(io::ErrorKind::NotFound.into()),
            };
        }
        let folder = below.parent().unwrap_or(Path::new(""));
        let name = below.file_name().unwrap_or(OsStr::new(""));
        let found = self.folders.get(folder).and_then(|names| names.get(name));
        found.copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Vfs for RemoteVfs {
    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn VfsFile>> {
        if access != Access::Read {
            return read_only();
        }
        let number = self.find(path)?.ok_or(io::ErrorKind::IsADirectory)?;
        Ok(Arc::new(RemoteFile::new(&self.files, number)))
    }

    fn create_new(&self, _path: &Path) -> io::Result<Arc<dyn VfsFile>> {
        read_only()
    }

    fn stat(&self, path: &Path) -> io::Result<FileStat> {
        Ok(self.files.stat(self.find(path)?))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        if self.find(dir)?.is_some() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let below = dir.strip_prefix(&self.root).map_err(|_| io::ErrorKind::NotFound)?;
        let names = self.folders.get(below).into_iter().flatten();
        let entry = |(name, number): (&OsString, &Option<usize>)| DirEntry {
            name: name.clone(),
            stat: self.files.stat(*number),
        };
        Ok(names.map(entry).collect())
    }

    fn create_dir(&self, _path: &Path) -> io::Result<()> {
        read_only()
    }

    fn create_dir_all(&self, _path: &Path) -> io::Result<()> {
        read_only()
    }

    fn rename(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        read_only()
    }

    fn rename_noreplace(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        read_only()
    }

    fn hard_link(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        read_only()
    }

    fn exchange(&self, _a: &Path, _b: &Path) -> io::Result<()> {
        read_only()
    }

    fn remove_file(&self, _path: &Path) -> io::Result<()> {
        read_only()
    }

    fn remove_dir(&self, _path: &Path) -> io::Result<()> {
        read_only()
    }

    fn remove_dir_all(&self, _path: &Path) -> io::Result<()> {
        read_only()
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        read_only()
    }

    fn lock(&self, _path: &Path) -> Result<Box<dyn StoreLock>, LockError> {
        Err(LockError::Io(read_only_error()))
    }

    /// No process can hold a lock on an object.
    fn lock_holder(&self, _path: &Path) -> io::Result<Option<LockHolder>> {
        Ok(None)
    }

    fn free_space(&self, _path: &Path) -> io::Result<SpaceInfo> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn environment(&self) -> Environment {
        OsVfs::new().environment()
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn real_place(&self, path: &Path, offset: u64) -> (PathBuf, u64) {
        let below = path.strip_prefix(&self.root).ok();
        let place = below.and_then(|below| self.files.real_place(below, offset));
        place.unwrap_or_else(|| (path.to_path_buf(), offset))
    }

    fn best_read_bytes(&self) -> Option<u64> {
        Some(BEST_READ_BYTES)
    }

    fn failure(&self) -> Option<io::Error> {
        self.files.check().err()
    }
}
