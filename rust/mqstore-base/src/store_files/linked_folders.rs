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

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use mqstore_io::Vfs;

/// Name of our own folder in a folder that is on another file system.
pub const OWN_FOLDER: &str = ".mqstore";

/// The folders below a root that can be links.
pub(super) const FOLDERS: [&str; 9] = [
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
pub(super) struct LinkedFolders(pub(super) BTreeMap<&'static str, PathBuf>);

impl LinkedFolders {
    /// Resolves the links below `root`.
    pub(super) fn find(vfs: &dyn Vfs, root: &Path) -> Self {
        let target = |name: &'static str| Some((name, vfs.linked_folder(&root.join(name))?));
        Self(FOLDERS.into_iter().filter_map(target).collect())
    }

    /// Returns the target that contains `path`, except that of `mqstore`.
    pub(super) fn around(&self, path: &Path) -> Option<&Path> {
        let others = self.0.iter().filter(|(name, _)| **name != "mqstore");
        others.map(|(_, target)| target.as_path()).find(|target| path.starts_with(target))
    }
}
