//! Discovery of index files in `index/`, and of other entries there.
//!
//! This module classifies entries by name, kind and length. It opens no file, so a pipe cannot block it and it follows
//! no link in the folder.
//!
//! Source: `IndexService#load`. RocketMQ maps a file of any length; mqstore requires the length of a geometry.

use std::path::{Path, PathBuf};

use mqstore_format::{IndexFileTime, parse_index_file_name};
use mqstore_io::{FileKind, Vfs};

use mqstore_base::error::{IoContext, StoreError, Stray};
use mqstore_base::store_files::OWN_FOLDER;
use mqstore_base::strays::{is_folder, most_frequent_len, wrong_kind};

/// Byte length of the smallest index file: a header, one slot, two entries. A crash during the creation of a file may
/// leave a shorter one.
const LEAST_BYTES: u64 = 40 + 4 + 2 * 20;

/// A regular file with the name of an index file.
#[derive(Clone, Debug)]
pub(super) struct FoundFile {
    pub(super) path: PathBuf,
    pub(super) len: u64,
}

/// The entries of `index/`.
#[derive(Debug, Default)]
pub(super) struct FoundFiles {
    /// Files by name, which is by age.
    pub(super) files: Vec<FoundFile>,
    pub(super) strays: Vec<Stray>,
    /// The largest name of all entries, of any kind.
    pub(super) last_name: Option<IndexFileTime>,
}

/// Lists the index folder; a missing folder counts as empty.
pub(super) fn scan(vfs: &dyn Vfs, folder: &Path) -> Result<FoundFiles, StoreError> {
    let mut found = FoundFiles::default();
    if !is_folder(vfs, folder, "reading the index folder", "a folder of index files", &mut found.strays)? {
        return Ok(found);
    }
    for entry in vfs.list(folder).at(folder, "listing index files")? {
        if entry.name == OWN_FOLDER && entry.stat.kind == FileKind::Directory {
            continue;
        }
        let path = folder.join(&entry.name);
        let time = entry.name.to_str().and_then(parse_index_file_name);
        found.last_name = found.last_name.max(time);
        match (entry.stat.kind, time) {
            (FileKind::File, Some(_)) if entry.stat.len < LEAST_BYTES => {
                let reason = format!("{} bytes long, too short for an index file", entry.stat.len);
                found.strays.push(Stray::new(&path, reason));
            }
            (FileKind::File, Some(_)) => found.files.push(FoundFile { path, len: entry.stat.len }),
            (FileKind::File, None) => {
                found.strays.push(Stray::new(&path, "its name is not the 17 digits of an index file"));
            }
            (kind, _) => found.strays.push(Stray::new(&path, wrong_kind(kind, "an index file"))),
        }
    }
    Ok(found)
}

/// Returns the most frequent length of the files; of equally frequent ones the largest.
pub(super) fn common_len(files: &[FoundFile]) -> Option<u64> {
    most_frequent_len(files.iter().map(|file| file.len), None)
}
