//! Folders directly below the root that are symbolic links, for example to another disk. A link is resolved once, when
//! the files of a store are named. All paths below it start at its target, so no rename or removal touches the link. A
//! rename cannot cross file systems, so each target has a folder of ours, which RocketMQ ignores:
//!
//! ```text
//! <root>/consumequeue -> /disk2/queues
//! /disk2/queues/.mqstore/tmp/           files without their final name, and a rebuild of this folder
//! /disk2/queues/.mqstore/lost+found/    files that did not belong to this folder
//! <root>/.mqstore/tmp/                  the same for the files of the root, if mqstore is a link
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use mqstore_io::{FileKind, Vfs};

use super::StoreFiles;
use crate::error::StoreError;

/// Name of our own folder in a folder that is on another file system.
pub const OWN_FOLDER: &str = ".mqstore";

/// The folders below a root that can be links.
const FOLDERS: [&str; 9] = [
    "commitlog",
    "consumequeue",
    "consumequeue_ext",
    "batchconsumequeue",
    "index",
    "compaction",
    "config",
    "mqstore",
    "timerlog",
];

/// The targets of the links by the names of the links.
#[derive(Clone, Debug, Default)]
pub(super) struct LinkedFolders(BTreeMap<&'static str, PathBuf>);

impl LinkedFolders {
    /// Resolves the links below `root`.
    pub(super) fn find(vfs: &dyn Vfs, root: &Path) -> Self {
        let target = |name: &'static str| Some((name, vfs.linked_folder(&root.join(name))?));
        Self(FOLDERS.into_iter().filter_map(target).collect())
    }

    /// Returns the target that contains `path`, except that of `mqstore`.
    fn around(&self, path: &Path) -> Option<&Path> {
        let others = self.0.iter().filter(|(name, _)| **name != "mqstore");
        others.map(|(_, target)| target.as_path()).find(|target| path.starts_with(target))
    }
}

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
