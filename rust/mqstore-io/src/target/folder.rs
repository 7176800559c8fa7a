//! Files below a folder.
//!
//! ```text
//! <folder>/<path>                       an object
//! <folder>/<path>.<32 hex digits>.new   an object that gets its name by a hard link, if that does not exist
//! ```
//!
//! After a crash at any time, an object of `put_if_absent` is complete or does not exist.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::{Target, TargetError, TargetObject, random_id};
use crate::commit;
use crate::remote::RemoteCause;
use crate::switch;
use crate::vfs::{Access, FileKind, Vfs, found, parent_dir};

/// Attempts to create a file in a folder that others remove when it is empty.
const ATTEMPTS: usize = 100;

/// See the header of this file.
#[derive(Debug)]
pub struct FolderTarget {
    vfs: Arc<dyn Vfs>,
    root: PathBuf,
    shown: String,
}

impl FolderTarget {
    /// Makes the target in the folder `root`, which need not exist. `shown` names it in errors.
    pub fn new(vfs: Arc<dyn Vfs>, root: &Path, shown: String) -> Self {
        Self { vfs, root: root.to_path_buf(), shown }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// Creates a file in a folder, and the folder if that is missing.
    fn in_folder<T>(&self, folder: &Path, write: impl Fn() -> io::Result<T>) -> io::Result<T> {
        for _ in 0..ATTEMPTS {
            match write() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                written => return written,
            }
            match self.vfs.create_dir_all(folder) {
                // Another writer has removed the folder while it was empty.
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound) => {}
                made => made?,
            }
        }
        write()
    }

    /// Makes the names of the folders above those durable that [`commit::copy_file`] syncs: the file that is created next
    /// can be durable before them.
    fn sync_folders(&self, file: &Path) -> io::Result<()> {
        for folder in file.ancestors().skip(3).take_while(|folder| folder.starts_with(&self.root)) {
            switch::step("results.sync_folders", || self.vfs.sync_dir(folder))?;
        }
        Ok(())
    }

    /// Returns a name that no other call uses.
    fn new_name(&self, path: &Path) -> PathBuf {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}.new", random_id(&*self.vfs)));
        name.into()
    }

    fn add_files(&self, folder: &str, files: &mut Vec<TargetObject>) -> io::Result<()> {
        for entry in found(self.vfs.list(&self.path(folder)))?.unwrap_or_default() {
            // The names of all objects are text.
            let Some(name) = entry.name.to_str() else { continue };
            let path = format!("{folder}{name}");
            match entry.stat.kind {
                FileKind::Directory => self.add_files(&format!("{path}/"), files)?,
                FileKind::File => {
                    let (bytes, changed_ms) = (entry.stat.len, entry.stat.modified_ms);
                    files.push(TargetObject { path, bytes, changed_ms });
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Names the object in an error.
fn at<T>(path: &str, outcome: io::Result<T>) -> Result<T, TargetError> {
    outcome.map_err(|error| TargetError::of_file(path.trim_end_matches('/'), &error))
}

impl Target for FolderTarget {
    fn shown(&self, path: Option<&str>) -> String {
        path.map_or_else(|| self.shown.clone(), |path| self.path(path).to_string_lossy().into_owned())
    }

    fn folder(&self) -> Option<&Path> {
        Some(&self.root)
    }

    fn get(&self, path: &str) -> Result<Option<Bytes>, TargetError> {
        let content = found(self.vfs.read_file(&self.path(path), u64::MAX));
        Ok(at(path, content)?.map(Bytes::from))
    }

    fn ranges(&self, wanted: &[(&str, Range<u64>)]) -> Result<Vec<Bytes>, TargetError> {
        let part = |(path, range): &(&str, Range<u64>)| {
            let length = range.end.saturating_sub(range.start) as usize;
            let file = self.vfs.open(&self.path(path), Access::Read);
            let part = file.and_then(|file| file.read_new(length, range.start));
            at(path, part).map(Bytes::from)
        };
        wanted.iter().map(part).collect()
    }

    fn list(&self, folder: &str) -> Result<Vec<TargetObject>, TargetError> {
        let mut files = Vec::new();
        at(folder, self.add_files(folder, &mut files))?;
        Ok(files)
    }

    fn names(&self, folder: &str) -> Result<Vec<String>, TargetError> {
        let listed = at(folder, found(self.vfs.list_kinds(&self.path(folder))))?.unwrap_or_default();
        Ok(listed.into_iter().map(|(name, _)| name.to_string_lossy().into_owned()).collect())
    }

    fn put(&self, path: &str, content: &[u8]) -> Result<(), TargetError> {
        let file = self.path(path);
        let written = self.in_folder(parent_dir(&file), || commit::write_file(&*self.vfs, &file, content));
        at(path, written)
    }

    fn put_file(&self, path: &str, vfs: &dyn Vfs, file: &Path, length: u64) -> Result<(), TargetError> {
        let dest = self.path(path);
        let copied = self.in_folder(parent_dir(&dest), || commit::copy_file(vfs, file, &dest, length));
        at(path, copied.and_then(|()| self.sync_folders(&dest)))
    }

    fn put_if_absent(&self, path: &str, content: &[u8]) -> Result<bool, TargetError> {
        let file = self.path(path);
        let create = || commit::create_file(&*self.vfs, &file, &self.new_name(&file), content);
        let created = self.in_folder(parent_dir(&file), create);
        created.map_err(|error| match error.kind() {
            io::ErrorKind::Unsupported => {
                let reason =
                    "the file system has no hard links, so a file cannot be created only if it is absent; \
                              choose another file system";
                TargetError::new(RemoteCause::Other, path, reason)
            }
            _ => TargetError::of_file(path, &error),
        })
    }

    fn delete(&self, paths: &[String]) -> Result<(), TargetError> {
        for path in paths {
            at(path, found(self.vfs.remove_file(&self.path(path))))?;
        }
        for path in paths {
            // Only an empty folder can be removed.
            let _ = self.vfs.remove_dir(parent_dir(&self.path(path)));
        }
        Ok(())
    }

    fn settle(&self, folder: &str) -> Result<(), TargetError> {
        at(folder, commit::sync_names(&*self.vfs, &self.path(folder)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::os::OsVfs;
    use crate::target::{create, keeps_existing};

    fn folder() -> (tempfile::TempDir, FolderTarget) {
        let home = tempfile::tempdir().unwrap();
        let root = home.path().join("cold");
        let target = FolderTarget::new(Arc::new(OsVfs::new()), &root, "cold".to_owned());
        (home, target)
    }

    #[test]
    fn objects_are_written_once_listed_read_and_removed() {
        let (_home, target) = folder();
        assert_eq!(target.list("").unwrap(), []);
        target.put("v1/topic=a/1", b"content").unwrap();
        let again = target.put("v1/topic=a/1", b"other").unwrap_err();
        assert_eq!(again.cause, RemoteCause::Other);
        assert!(target.put_if_absent("v1/_manifest/1", b"one").unwrap());
        assert!(!target.put_if_absent("v1/_manifest/1", b"two").unwrap());
        assert_eq!(target.get("v1/_manifest/1").unwrap().as_deref(), Some(&b"one"[..]));
        assert_eq!(target.get("v1/_manifest/2").unwrap(), None);
        let found = target.ranges(&[("v1/topic=a/1", 3..5), ("v1/topic=a/1", 5..9)]).unwrap();
        assert_eq!(found, ["te".as_bytes(), b"nt"]);
        let missing = target.ranges(&[("v1/topic=a/2", 0..1)]).unwrap_err();
        assert_eq!(missing.cause, RemoteCause::Changed);
        let listed = target.list("v1/").unwrap();
        let paths: Vec<_> = listed.iter().map(|one| (one.path.as_str(), one.bytes)).collect();
        assert_eq!(paths, [("v1/_manifest/1", 3), ("v1/topic=a/1", 7)]);
        target.settle("v1/_manifest/").unwrap();
        target.delete(&["v1/topic=a/1".to_owned(), "v1/topic=a/2".to_owned()]).unwrap();
        assert!(!target.path("v1/topic=a").exists());
        assert!(target.path("v1/_manifest").exists());
        assert_eq!((target.shown(None), target.folder()), ("cold".to_owned(), Some(&*target.root)));
    }

    #[test]
    fn a_creation_returns_the_object_that_exists() {
        let (_home, target) = folder();
        let clock = ManualClock::new(0);
        assert!(create(&target, &clock, "a/b", b"mine").unwrap().is_none());
        assert_eq!(create(&target, &clock, "a/b", b"other").unwrap().as_deref(), Some(&b"mine"[..]));
        assert!(keeps_existing(&target, "a/probe").unwrap());
    }

    #[test]
    fn writers_that_remove_empty_folders_do_not_disturb_each_other() {
        let (_home, target) = folder();
        std::thread::scope(|scope| {
            for name in ["a", "b", "c"] {
                let target = &target;
                scope.spawn(move || {
                    for number in 0..200 {
                        let path = format!("v1/shared/{name}-{number}");
                        assert!(target.put_if_absent(&path, b"probe").unwrap());
                        target.delete(&[path]).unwrap();
                    }
                });
            }
        });
        assert_eq!(target.list("").unwrap(), []);
    }
}
