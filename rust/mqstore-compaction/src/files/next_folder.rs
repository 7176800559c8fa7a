//! Builds the next `compaction` folder from hard links, next to the current one.
//!
//! Owns the content of a job's `tree` folder until it is swapped with `compaction`:
//!
//! ```text
//! compaction/compactionLog/a/0/000...   ── same inode ──>   tree/compactionLog/a/0/000...
//! compaction/compactionLog/b/0/000...   (queue b/0 gets a new generation)
//! <attempt>/log/000...                  ── same inode ──>   tree/compactionLog/b/0/000...
//!                                                           tree/position-checkpoint   written again
//! ```
//!
//! All other entries are linked unchanged, also those with unknown names. Symbolic links and special files are refused,
//! so that no path leads out of the root. When [`NextFolder::build`] returns, all names in the folder are durable. No
//! reader uses the folder during the build. So a crash only leaves garbage in the job's folder.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use mqstore_format::offset_file_name;
use mqstore_io::FileKind;
use mqstore_io::switch;

use super::folder::{LOG_DIR, QUEUE_DIR, list_or_none, queue_dir};
use super::positions::{POSITIONS_BACKUP, POSITIONS_FILE, PositionCheckpoint, path_below};
use super::staged::{OutputPair, STAGED_LOGS, STAGED_QUEUES};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::{OWN_FOLDER, StoreFiles};

/// Maximum depth of folders. RocketMQ uses three levels below `compaction`; many more are an attack.
const MOST_LEVELS: usize = 16;

/// A queue's next generation.
#[derive(Debug)]
pub(crate) struct Replacement<'a> {
    pub(crate) topic: &'a str,
    pub(crate) queue_id: i32,
    /// Folder of its new files.
    pub(crate) staging: PathBuf,
    pub(crate) pairs: &'a [OutputPair],
    /// RocketMQ's saved position; `None` keeps the old one.
    pub(crate) position: Option<i64>,
}

/// The folder during its build.
#[derive(Debug)]
pub(crate) struct NextFolder<'a> {
    files: &'a StoreFiles,
    root: PathBuf,
    folders: BTreeSet<PathBuf>,
}

impl<'a> NextFolder<'a> {
    /// Builds the folder at `root` and syncs it.
    pub(crate) fn build(
        files: &'a StoreFiles,
        root: &Path,
        replacements: &[Replacement<'_>],
    ) -> Result<(), StoreError> {
        match files.vfs.remove_dir_all(root) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(StoreError::io(root, "removing an unfinished folder", error));
            }
            _ => {}
        }
        let mut tree = Self { files, root: root.to_path_buf(), folders: BTreeSet::new() };
        tree.take_over(replacements)?;
        for replacement in replacements {
            tree.place(replacement)?;
        }
        tree.write_positions(replacements)?;
        for folder in tree.folders.iter().rev() {
            switch::step("compaction.sync_tree_folder", || files.vfs.sync_dir(folder))
                .at(folder, "syncing a folder")?;
        }
        Ok(())
    }

    fn make_folder(&mut self, path: PathBuf) -> Result<(), StoreError> {
        self.files.vfs.create_dir(&path).at(&path, "creating a folder")?;
        self.folders.insert(path);
        Ok(())
    }

    /// Links all entries that stay.
    fn take_over(&mut self, replacements: &[Replacement<'_>]) -> Result<(), StoreError> {
        let compaction = self.files.compaction();
        let replaced: HashSet<PathBuf> = replacements
            .iter()
            .flat_map(|replacement| {
                let (topic, queue_id) = (replacement.topic, replacement.queue_id);
                [LOG_DIR, QUEUE_DIR].map(|kind| queue_dir(&compaction, kind, topic, queue_id))
            })
            .chain(Self::moves_positions(replacements).then(|| compaction.join(POSITIONS_FILE)))
            .chain(Self::moves_positions(replacements).then(|| compaction.join(POSITIONS_BACKUP)))
            .collect();
        let mut pending = vec![(compaction, self.root.clone(), 0)];
        while let Some((from, to, level)) = pending.pop() {
            self.make_folder(to.clone())?;
            for entry in list_or_none(self.files, &from)? {
                let (old, new) = (from.join(&entry.name), to.join(&entry.name));
                match entry.stat.kind {
                    _ if replaced.contains(&old) || entry.name == OWN_FOLDER => {}
                    FileKind::Directory if level < MOST_LEVELS => pending.push((old, new, level + 1)),
                    FileKind::File => self.link(&old, &new)?,
                    _ => {
                        return Err(StoreError::Unsupported {
                            path: old,
                            reason: "not a file or folder of a broker; move it out of the compaction folder"
                                .to_owned(),
                        });
                    }
                }
            }
        }
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        self.files.vfs.hard_link(from, to).map_err(|error| match error.kind() {
            std::io::ErrorKind::CrossesDevices => StoreError::Unsupported {
                path: from.to_path_buf(),
                reason:
                    "is on another file system than the store's mqstore folder, so that compaction cannot be \
                         published in one step; put the whole store on one file system"
                        .to_owned(),
            },
            _ => StoreError::io(to, "linking a compaction file", error),
        })
    }

    /// Links the new generation of one queue at its final place.
    fn place(&mut self, replacement: &Replacement<'_>) -> Result<(), StoreError> {
        let (topic, queue_id) = (replacement.topic, replacement.queue_id);
        for (kind, staged) in [(LOG_DIR, STAGED_LOGS), (QUEUE_DIR, STAGED_QUEUES)] {
            let dir = queue_dir(&self.root, kind, topic, queue_id);
            for folder in [self.root.join(kind), self.root.join(kind).join(topic), dir.clone()] {
                if !self.folders.contains(&folder) {
                    self.make_folder(folder)?;
                }
            }
            for pair in replacement.pairs {
                let name = offset_file_name(pair.base);
                self.link(&replacement.staging.join(staged).join(&name), &dir.join(&name))?;
            }
        }
        Ok(())
    }

    fn moves_positions(replacements: &[Replacement<'_>]) -> bool {
        replacements.iter().any(|replacement| replacement.position.is_some())
    }

    fn write_positions(&self, replacements: &[Replacement<'_>]) -> Result<(), StoreError> {
        if !Self::moves_positions(replacements) {
            return Ok(());
        }
        let compaction = self.files.compaction();
        let mut positions = PositionCheckpoint::load(self.files, &compaction)?;
        for replacement in replacements {
            if let Some(position) = replacement.position {
                positions.raise(replacement.topic, replacement.queue_id, position);
            }
        }
        // A damaged file goes to lost+found, not over a backup that completes it.
        let old = match positions.damage() {
            Some(damage) => {
                self.files.keep_config(&damage.path, &damage.bytes)?;
                compaction.join(POSITIONS_BACKUP)
            }
            None => path_below(&compaction),
        };
        if self.files.vfs.stat(&old).is_ok_and(|stat| stat.kind == FileKind::File) {
            self.link(&old, &self.root.join(POSITIONS_BACKUP))?;
        }
        let path = path_below(&self.root);
        let file = self.files.vfs.create_new(&path).at(&path, "creating the compaction positions")?;
        file.write_all_at(positions.render().as_bytes(), 0).at(&path, "writing the compaction positions")?;
        switch::step("compaction.sync_positions", || file.sync_all())
            .at(&path, "syncing the compaction positions")
    }
}
