//! Queues and index on another disk: the folder of the option `derived_path`.
//!
//! Owns the symbolic links `<root>/consumequeue` and `<root>/index`, which brokers follow too:
//!
//! ```text
//! <root>/consumequeue -> <derived_path>/consumequeue
//! <root>/index        -> <derived_path>/index
//! ```
//!
//! Across a crash: the target exists and is durable before its link, so no link leads nowhere. A store with only one of
//! the links, or none, opens too. No files are moved.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use mqstore_io::{FileKind, switch};

use super::StoreFiles;
use super::linked_folders::{LinkedFolders, OWN_FOLDER};
use crate::error::{IoContext, StoreError};

/// The option that names the folder.
const OPTION: &str = "derived_path";

/// The folders that it moves to another disk.
const DERIVED: [&str; 2] = ["consumequeue", "index"];

/// Maximum number of folders above a folder that are compared with the root; more than a path can have.
const MOST_LEVELS: usize = 2048;

impl StoreFiles {
    /// Returns these files with the queues and the index below `folder`; a relative path starts at the root. Creates the
    /// folders and links that are missing. The caller holds the writer's lock.
    ///
    /// # Errors
    /// [`StoreError::InvalidOption`] before any change, if the store has these folders elsewhere, if a new folder is not
    /// empty, or if `folder` is inside the store; I/O errors.
    pub fn with_derived_at(mut self, folder: &Path) -> Result<Self, StoreError> {
        let place = self.root.join(folder);
        self.refuse_inside(&place)?;
        let mut missing = Vec::new();
        for name in DERIVED {
            if self.lacks_link(name, &place)? {
                missing.push(name);
            }
        }
        for name in missing {
            self.make_folder(&place.join(name))?;
            let path = self.root.join(name);
            match self.vfs.remove_dir(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(StoreError::io(&path, "replacing an empty folder by a link", error));
                }
                _ => {}
            }
            self.vfs.link_folder(&folder.join(name), &path).at(&path, "linking a folder to another disk")?;
            switch::step("files.sync_derived_link", || self.vfs.sync_dir(&self.root))
                .at(&self.root, "syncing the store's folder")?;
        }
        self.links = Arc::new(LinkedFolders::find(&*self.vfs, &self.root));
        Ok(self)
    }

    /// Returns the targets of the links of queues and index.
    pub fn derived_targets(&self) -> impl Iterator<Item = &Path> {
        DERIVED.into_iter().filter_map(|name| self.link_target(name))
    }

    fn refuse_inside(&self, place: &Path) -> Result<(), StoreError> {
        let is_folder = |path: &Path| self.vfs.is_same_folder(path, path);
        let existing = place.ancestors().find(|above| is_folder(above));
        let mut above = existing.unwrap_or(&self.root).to_path_buf();
        for _ in 0..MOST_LEVELS {
            if self.vfs.is_same_folder(&above, &self.root) {
                let place = place.display();
                return Err(refusal(format!("{place} is inside the store; give a folder outside of it")));
            }
            let parent = above.join("..");
            if self.vfs.is_same_folder(&parent, &above) {
                break;
            }
            above = parent;
        }
        Ok(())
    }

    /// Returns whether the link `name` is missing and can be made.
    fn lacks_link(&self, name: &str, place: &Path) -> Result<bool, StoreError> {
        let (path, wanted) = (self.root.join(name), place.join(name));
        let (shown, target) = (path.display(), wanted.display());
        if let Some(current) = self.link_target(name) {
            if self.vfs.is_same_folder(current, &wanted) {
                return Ok(false);
            }
            let current = current.display();
            return Err(refusal(format!(
                "{shown} is a link to {current}; to move it to {target}, close the store, move that folder, replace \
                 the link, and open the store again"
            )));
        }
        match self.vfs.stat(&path) {
            Ok(stat) if stat.kind == FileKind::Directory && !self.names(&path)?.is_empty() => {
                return Err(refusal(format!(
                    "{shown} is a folder with files; to move it, close the store, run `mkdir -p {}`, \
                     `mv {shown} {target}` and `ln -s {target} {shown}`, and open the store again",
                    place.display()
                )));
            }
            Ok(stat) if stat.kind != FileKind::Directory => {
                return Err(refusal(format!("{shown} is no folder; move it away")));
            }
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(StoreError::io(&path, "looking at a folder of the store", error));
            }
            _ => {}
        }
        if self.names(&wanted)?.iter().any(|name| name != OWN_FOLDER) {
            return Err(refusal(format!(
                "{target} is not empty, and {shown} does not lead to it; give a folder that no other store uses"
            )));
        }
        Ok(true)
    }

    /// Returns the names in a folder; a missing one has none.
    fn names(&self, folder: &Path) -> Result<Vec<OsString>, StoreError> {
        match self.vfs.list_kinds(folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            names => Ok(names.at(folder, "listing a folder")?.into_iter().map(|(name, _)| name).collect()),
        }
    }
}

fn refusal(reason: String) -> StoreError {
    StoreError::InvalidOption { option: OPTION, reason }
}
