//! Helpers to find the files of a store by name, kind and length, and to describe the other entries.

use std::collections::BTreeMap;
use std::path::Path;

use mqstore_io::{FileKind, Vfs};

use crate::error::{StoreError, Stray};

impl Stray {
    /// Creates the description of the entry at `path`.
    pub fn new(path: &Path, reason: impl Into<String>) -> Self {
        Self { path: path.to_path_buf(), reason: reason.into() }
    }
}

/// Returns the reason why an entry of this kind is not what was `expected` there.
pub fn wrong_kind(kind: FileKind, expected: &str) -> String {
    let kind = match kind {
        FileKind::File => "a file",
        FileKind::Directory => "a folder",
        FileKind::Symlink => "a symbolic link, which is not followed",
        FileKind::Other => "a pipe, socket or device",
    };
    format!("{kind}, not {expected}")
}

/// Whether `folder` exists and is a folder. An entry of another kind is added to `strays`.
pub fn is_folder(
    vfs: &dyn Vfs,
    folder: &Path,
    action: &'static str,
    expected: &str,
    strays: &mut Vec<Stray>,
) -> Result<bool, StoreError> {
    match vfs.stat(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(StoreError::io(folder, action, error)),
        Ok(stat) if stat.kind == FileKind::Directory => Ok(true),
        Ok(stat) => {
            strays.push(Stray::new(folder, wrong_kind(stat.kind, expected)));
            Ok(false)
        }
    }
}

/// Returns the most frequent length; of equally frequent ones `preferred`, else the largest. `None` without lengths.
pub fn most_frequent_len(lens: impl Iterator<Item = u64>, preferred: Option<u64>) -> Option<u64> {
    let mut counts = BTreeMap::new();
    for len in lens {
        *counts.entry(len).or_insert(0_u64) += 1;
    }
    let rank = |&(len, count): &(u64, u64)| (count, Some(len) == preferred, len);
    counts.into_iter().max_by_key(rank).map(|(len, _)| len)
}
