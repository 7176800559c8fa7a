//! The log of a broker that ran with DLedger, for readers only.
//!
//! ```text
//! <root>/dledger-<id>/data/<20 digits>     the log: Raft entries with one record each
//! <root>/dledger-<id>/index/               one unit for each entry, which repeats its header
//! <root>/dledger-<id>/checkpoint           the last entry that a majority of the group has (older libraries)
//! <root>/dledger-<id>/currterm             the current term, and for whom this member voted
//! <root>/commitlog/<20 digits>             the log before the upgrade to DLedger, or nothing
//! ```
//!
//! Queues, index and configuration are at the places of every store. Writes nothing.
//!
//! Source: `DLedgerConfig`, `DLedgerCommitLog`.

use std::path::{Path, PathBuf};

use mqstore_format::DLEDGER_PREFIX;
use mqstore_io::vfs::DirEntry;
use mqstore_io::{FileKind, Vfs};

use crate::error::StoreError;

/// Why a store with such a log cannot be written.
const ONLY_FOR_READING: &str = "contains the log of a broker that ran with DLedger; mqstore reads such a store and never \
                                writes it: open it with mode \"r\", or make a store that you can write: mqstore export DIR \
                                OUT --to store";

/// The folder of one member of a DLedger group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaftLog {
    /// The folder, `<root>/dledger-<id>`.
    folder: PathBuf,
}

/// The last entry that a majority of the group has, as the member saved it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommittedIndex {
    /// The number of this entry; -1 if there is none.
    Saved(i64),
    /// The member saved no number: a newer library, or a file that is lost or damaged.
    Unknown,
}

impl RaftLog {
    /// Returns the log among the `entries` of the folder `root`.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] if there are the logs of several members.
    pub(super) fn among(
        vfs: &dyn Vfs,
        root: &Path,
        entries: &[DirEntry],
    ) -> Result<Option<Self>, StoreError> {
        let is_member = |entry: &&DirEntry| {
            entry.name.to_str().is_some_and(|name| name.starts_with(DLEDGER_PREFIX))
                && matches!(entry.stat.kind, FileKind::Directory | FileKind::Symlink)
        };
        let folders = entries.iter().filter(is_member).map(|entry| root.join(&entry.name));
        let has_data = |folder: &PathBuf| {
            vfs.stat(&folder.join("data")).is_ok_and(|stat| stat.kind == FileKind::Directory)
        };
        let mut found: Vec<PathBuf> = folders.filter(has_data).collect();
        found.sort_unstable();
        match found.as_slice() {
            [] => Ok(None),
            [_] => Ok(found.pop().map(|folder| Self { folder })),
            [first, second, ..] => Err(StoreError::Unsupported {
                path: root.to_path_buf(),
                reason: format!(
                    "it contains the logs of several members of DLedger groups, {} and {}, and nothing says which one \
                     belongs to its queues; move the others away",
                    first.display(),
                    second.display()
                ),
            }),
        }
    }

    /// Returns the id of the member.
    pub fn id(&self) -> String {
        let name =
            self.folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.strip_prefix(DLEDGER_PREFIX).map(str::to_owned).unwrap_or(name)
    }

    /// Returns the folder of the member.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the folder of the data files.
    pub fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Returns the folder of the Raft index.
    pub fn index(&self) -> PathBuf {
        self.folder.join("index")
    }

    /// Returns the path of DLedger's checkpoint.
    pub fn checkpoint(&self) -> PathBuf {
        self.folder.join("checkpoint")
    }

    /// Returns the path of the file with the member's term.
    pub(super) fn term_file(&self) -> PathBuf {
        self.folder.join("currterm")
    }

    /// The error of an open for writing.
    pub fn refusal(&self) -> StoreError {
        StoreError::Unsupported { path: self.data(), reason: ONLY_FOR_READING.to_owned() }
    }
}

/// Whether `path` is the folder of the data files of a DLedger member, or a file in it.
pub(super) fn is_inside(path: &Path) -> bool {
    let name = |path: Option<&Path>| {
        path.and_then(Path::file_name).and_then(|name| name.to_str()).map(str::to_owned)
    };
    let is_data = |folder: Option<&Path>| {
        let member = name(folder.and_then(Path::parent));
        name(folder).is_some_and(|name| name == "data")
            && member.is_some_and(|member| member.starts_with(DLEDGER_PREFIX))
    };
    is_data(Some(path)) || is_data(path.parent())
}
