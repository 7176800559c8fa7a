//! Uses of the folders that are symbolic links, by the paths of a store.
//!
//! Owns nothing; [`super::linked_folders`] resolves the links.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use mqstore_io::FileKind;

use super::StoreFiles;
use super::linked_folders::{FOLDERS, OWN_FOLDER};
use crate::error::StoreError;

impl StoreFiles {
    /// Returns the folder `name` directly below the root; if it is a link to a folder, its target.
    pub fn folder(&self, name: &str) -> PathBuf {
        self.link_target(name).map_or_else(|| self.root.join(name), Path::to_path_buf)
    }

    /// Returns the folder to which the link `name` directly below the root leads; `None` if it is no link.
    pub fn link_target(&self, name: &str) -> Option<&Path> {
        self.links.0.get(name).map(PathBuf::as_path)
    }

    /// Returns these files with the folder `name` at `target`, as if it were a link.
    #[must_use]
    pub fn with_folder_at(mut self, name: &'static str, target: PathBuf) -> Self {
        let mut links = (*self.links).clone();
        links.0.insert(name, target);
        self.links = links.into();
        self
    }

    /// Returns our own folder on the file system of `path`.
    fn side_for(&self, path: &Path) -> PathBuf {
        let side = self.side();
        match self.links.around(path) {
            Some(target) => target.join(OWN_FOLDER),
            None if path.starts_with(&side) || self.link_target("mqstore").is_none() => side,
            None => self.root.join(OWN_FOLDER),
        }
    }

    /// Returns the folder for a file that gets the name `path` by a rename.
    pub fn staging_for(&self, path: &Path) -> PathBuf {
        self.side_for(path).join("tmp")
    }

    /// Returns the folder for a file at `path` that does not belong to the store, and moves by a rename.
    pub fn lost_and_found_for(&self, path: &Path) -> PathBuf {
        self.side_for(path).join("lost+found")
    }

    /// Returns all staging folders except those of a log in listed folders.
    pub fn staging_folders(&self) -> BTreeSet<PathBuf> {
        let targets = self.links.0.values().map(|target| self.staging_for(target));
        targets.chain([self.staging_for(&self.root), self.staging()]).collect()
    }

    /// Returns `folder` and the folders above it, up to the root or to the target of a link.
    pub fn folders_up_from<'a>(&self, folder: &'a Path) -> impl Iterator<Item = &'a Path> + use<'a> {
        let side = self.link_target("mqstore").filter(|side| folder.starts_with(side));
        let top = self.links.around(folder).or(side).unwrap_or(&self.root).to_path_buf();
        folder.ancestors().take_while(move |above| above.starts_with(&top))
    }

    /// Refuses a store with a link that leads to no folder. Its disk is probably not mounted, and a new folder would
    /// hide the files there.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] with the link.
    pub fn check_links(&self) -> Result<(), StoreError> {
        for name in FOLDERS {
            let path = self.root.join(name);
            let is_link = |path: &Path| self.vfs.stat(path).is_ok_and(|stat| stat.kind == FileKind::Symlink);
            if self.link_target(name).is_none() && is_link(&path) {
                let reason =
                    "is a symbolic link that leads to no folder; mount its disk, or correct the link";
                return Err(StoreError::Unsupported { path, reason: reason.to_owned() });
            }
        }
        Ok(())
    }
}
