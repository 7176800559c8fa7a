//! A sequence of files of equal length that together hold one logical range of bytes.
//!
//! A load lists the folder. It never opens, maps, writes or removes a file. It reports each file that does not belong
//! to the sequence, with the reason, and leaves it alone. RocketMQ refuses to start or deletes such a file. Readers
//! take a snapshot (one reference count) and never wait for the writer's push or for retention.
//!
//! Source: `MappedFileQueue#doLoad`, `#findMappedFileByOffset`, `#truncateDirtyFiles`, `MultiPathMappedFileQueue`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[cfg(not(loom))]
use parking_lot::RwLock;

#[cfg(loom)]
use crate::sync::model::RwLock;

use crate::mapped_file::MappedFile;
use crate::region::MapAccess;
use crate::switch;
use crate::vfs::{DirEntry, FileKind, FileStat, Vfs, parent_dir};

#[cfg(test)]
mod tests;

/// The length of the files of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileLength {
    /// This length in bytes. Files of another length are strays.
    Expected(u64),
    /// The most frequent length of the existing files (the larger on a tie), or the default if there are none.
    Discover {
        /// Length of new files in an empty folder.
        default: u64,
    },
}

/// The reason why a name in the folder is not part of the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StrayKind {
    /// A regular file whose name is not twenty digits, or is too large a number.
    Name,
    /// A folder.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A pipe, a socket or a device.
    Special,
    /// A file without bytes: an interrupted creation.
    Empty,
    /// A file of another length than the sequence's.
    Length {
        /// Its length in bytes.
        found: u64,
        /// The length of the sequence's files.
        expected: u64,
    },
    /// A file with the offset and the length of another one that is in the sequence.
    SameName {
        /// Its first logical offset.
        base_offset: u64,
    },
    /// A file that starts before the end of its predecessor.
    Overlap {
        /// Its first logical offset.
        base_offset: u64,
        /// The end of the predecessor.
        previous_end: u64,
    },
}

impl fmt::Display for StrayKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name => out.write_str("the name is not an offset of twenty digits"),
            Self::Directory => out.write_str("a folder"),
            Self::Symlink => out.write_str("a symbolic link"),
            Self::Special => out.write_str("neither a file nor a folder"),
            Self::Empty => out.write_str("an empty file"),
            Self::Length { found, expected } => write!(out, "{found} bytes long, the others have {expected}"),
            Self::SameName { base_offset } => {
                write!(out, "another file with the same name is used for offset {base_offset}")
            }
            Self::Overlap { base_offset, previous_end } => {
                write!(out, "starts at offset {base_offset}, but the file before it ends at {previous_end}")
            }
        }
    }
}

/// An entry of the folder that is not part of the sequence. A load leaves it alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrayFile {
    /// The path of the entry.
    pub path: PathBuf,
    /// The reason why it does not belong.
    pub kind: StrayKind,
}

/// The findings of a load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// The entries that do not belong, in the order of their names.
    pub strays: Vec<StrayFile>,
    /// Logical ranges between files that no file covers.
    pub gaps: Vec<Range<u64>>,
}

/// The reason why a file cannot be the next one of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The file does not start at the end of the last one.
    #[error("the next file starts at offset {expected}, not at {found}")]
    Offset {
        /// The end of the last file.
        expected: u64,
        /// The start of the new file.
        found: u64,
    },
    /// The file has another length.
    #[error("files of this sequence have {expected} bytes, not {found}")]
    Length {
        /// The length of the sequence's files.
        expected: u64,
        /// The length of the new file.
        found: u64,
    },
}

type Files = Arc<[Arc<MappedFile>]>;

/// A sequence of files, ordered by offset.
///
/// ```text
/// commitlog/00000000000000000000  00000000001073741824  00000000002147483648
///           └─ base offset 0      └─ base offset 2^30   └─ the last: being written
/// ```
///
/// A file belongs to the sequence if it is a regular file, its name is twenty digits, its length is that of the others,
/// and no file before it overlaps it. A load also reports gaps between files, and lookups handle them.
///
/// Removal syncs the folders. It removes the newest file first when it truncates the end, and the oldest first when it
/// deletes from the front. So a crash leaves no gap where the file system keeps the order.
#[derive(Debug)]
pub struct MappedFileQueue {
    vfs: Arc<dyn Vfs>,
    file_bytes: u64,
    files: RwLock<Files>,
}

impl MappedFileQueue {
    /// Creates a sequence without files. New files will have `file_bytes` bytes (at least 1).
    pub fn new(vfs: &Arc<dyn Vfs>, file_bytes: u64) -> Self {
        Self { vfs: Arc::clone(vfs), file_bytes: file_bytes.max(1), files: RwLock::new(Arc::new([])) }
    }

    /// Loads the sequence in `dir`. `access` is for later uses of the files; the load opens, maps and changes nothing.
    /// A missing folder is `NotFound`.
    pub fn load(
        vfs: &Arc<dyn Vfs>,
        dir: &Path,
        length: FileLength,
        access: MapAccess,
    ) -> io::Result<(Self, LoadReport)> {
        Self::load_dirs(vfs, &[dir.to_path_buf()], length, access, &BTreeSet::new())
    }

    /// Like [`MappedFileQueue::load`], for a sequence in several folders. Of files with the same name and length, the
    /// first one that is not in `unused` is used.
    pub fn load_dirs(
        vfs: &Arc<dyn Vfs>,
        dirs: &[PathBuf],
        length: FileLength,
        access: MapAccess,
        unused: &BTreeSet<PathBuf>,
    ) -> io::Result<(Self, LoadReport)> {
        let mut found = ListedFiles::default();
        for dir in dirs {
            for entry in vfs.list(dir)? {
                found.sort_in(dir, &entry);
            }
        }
        let file_bytes = found.length(length).max(1);
        let (files, report) = found.arrange(vfs, file_bytes, access, unused);
        Ok((Self { vfs: Arc::clone(vfs), file_bytes, files: RwLock::new(files.into()) }, report))
    }

    /// Returns the length of each file in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Returns all current files, in the order of their offsets.
    pub fn snapshot(&self) -> Arc<[Arc<MappedFile>]> {
        Arc::clone(&self.files.read())
    }

    /// Returns the number of files.
    pub fn len(&self) -> usize {
        self.files.read().len()
    }

    /// Returns whether there are no files.
    pub fn is_empty(&self) -> bool {
        self.files.read().is_empty()
    }

    /// Returns the file with the smallest offset.
    pub fn first(&self) -> Option<Arc<MappedFile>> {
        self.files.read().first().cloned()
    }

    /// Returns the file with the largest offset.
    pub fn last(&self) -> Option<Arc<MappedFile>> {
        self.files.read().last().cloned()
    }

    /// Returns the logical offset of the first byte.
    pub fn min_offset(&self) -> Option<u64> {
        self.files.read().first().map(|file| file.base_offset())
    }

    /// Returns the logical offset after the last written byte.
    pub fn max_offset(&self) -> Option<u64> {
        self.files.read().last().map(|file| file.base_offset().saturating_add(file.wrote()))
    }

    /// Returns the file that contains logical `offset`, written or not; `None` in a gap and outside.
    pub fn find(&self, offset: u64) -> Option<Arc<MappedFile>> {
        let files = self.files.read();
        let first = files.first()?.base_offset();
        // Without gaps, the position follows from the offset; otherwise search for it.
        let guess = usize::try_from(offset.checked_sub(first)? / self.file_bytes).ok()?;
        let holds = |file: &&Arc<MappedFile>| file.base_offset() <= offset && offset < file.end_offset();
        if let Some(file) = files.get(guess).filter(holds) {
            return Some(Arc::clone(file));
        }
        let after = files.partition_point(|file| file.base_offset() <= offset);
        files.get(after.checked_sub(1)?).filter(holds).cloned()
    }

    /// Adds the next file, which must start at the end of the last one.
    pub fn push(&self, file: Arc<MappedFile>) -> Result<(), PushError> {
        let mut files = self.files.write();
        if file.len() != self.file_bytes {
            return Err(PushError::Length { expected: self.file_bytes, found: file.len() });
        }
        if let Some(expected) = files.last().map(|last| last.end_offset())
            && expected != file.base_offset()
        {
            return Err(PushError::Offset { expected, found: file.base_offset() });
        }
        *files = files.iter().cloned().chain([file]).collect();
        Ok(())
    }

    /// Removes the file that starts at logical `base` from the sequence, if it is the first one and not the last.
    ///
    /// First `take_name` takes its name ([`MappedFile::retire`], [`MappedFile::retire_to`]). The call makes that
    /// durable before it returns, so that a crash never leaves a hole in the sequence. Returns `false` if the file is
    /// not the first, or is the only one.
    ///
    /// For retention, one caller at a time. Readers continue with their snapshots. After an error of `take_name` the
    /// sequence is unchanged. After a failed sync the file is no longer in it.
    pub fn retire_oldest(
        &self,
        base: u64,
        take_name: impl FnOnce(&MappedFile) -> io::Result<()>,
    ) -> io::Result<bool> {
        let Some(file) = self.first().filter(|first| first.base_offset() == base && self.len() > 1) else {
            return Ok(false);
        };
        let path = file.path();
        // To remove a large file takes a while. Neither readers nor the writer's push wait for it.
        take_name(&file)?;
        {
            let mut files = self.files.write();
            *files = files.iter().filter(|other| other.base_offset() != base).cloned().collect();
        }
        switch::step("retention.sync_segment_removal", || self.vfs.sync_dir(parent_dir(&path)))?;
        Ok(true)
    }

    /// Drops the maps and descriptors of all unused files that are full, durable and end at or before logical `offset`.
    pub fn unmap_before(&self, offset: u64) {
        for file in self.snapshot().iter().take_while(|file| file.end_offset() <= offset) {
            if file.is_mapped() && file.flushed() == file.len() {
                file.unmap();
            }
        }
    }
}

/// The contents of the folders, before the length of the sequence's files is known.
#[derive(Default)]
struct ListedFiles {
    candidates: Vec<(u64, PathBuf, FileStat)>,
    strays: Vec<StrayFile>,
}

impl ListedFiles {
    fn sort_in(&mut self, dir: &Path, entry: &DirEntry) {
        let path = dir.join(&entry.name);
        let kind = match (entry.stat.kind, parse_base_offset(&entry.name)) {
            (FileKind::File, Some(_)) if entry.stat.len == 0 => StrayKind::Empty,
            (FileKind::File, Some(base)) => {
                self.candidates.push((base, path, entry.stat));
                return;
            }
            (FileKind::File, None) => StrayKind::Name,
            (FileKind::Directory, _) => StrayKind::Directory,
            (FileKind::Symlink, _) => StrayKind::Symlink,
            (FileKind::Other, _) => StrayKind::Special,
        };
        self.strays.push(StrayFile { path, kind });
    }

    fn length(&self, length: FileLength) -> u64 {
        let default = match length {
            FileLength::Expected(bytes) => return bytes,
            FileLength::Discover { default } => default,
        };
        let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
        for (_, _, stat) in &self.candidates {
            *counts.entry(stat.len).or_default() += 1;
        }
        counts.into_iter().max_by_key(|(bytes, count)| (*count, *bytes)).map_or(default, |(bytes, _)| bytes)
    }

    fn arrange(
        mut self,
        vfs: &Arc<dyn Vfs>,
        file_bytes: u64,
        access: MapAccess,
        unused: &BTreeSet<PathBuf>,
    ) -> (Vec<Arc<MappedFile>>, LoadReport) {
        let order = |(base, path, _): &(u64, PathBuf, FileStat)| (*base, unused.contains(path), path.clone());
        self.candidates.sort_by_cached_key(order);
        let mut report = LoadReport::default();
        let mut files: Vec<Arc<MappedFile>> = Vec::new();
        for (base_offset, path, stat) in self.candidates {
            if stat.len != file_bytes {
                let kind = StrayKind::Length { found: stat.len, expected: file_bytes };
                self.strays.push(StrayFile { path, kind });
                continue;
            }
            if files.last().is_some_and(|last| last.base_offset() == base_offset) {
                self.strays.push(StrayFile { path, kind: StrayKind::SameName { base_offset } });
                continue;
            }
            if let Some(previous_end) = files.last().map(|last| last.end_offset()) {
                if base_offset < previous_end {
                    let kind = StrayKind::Overlap { base_offset, previous_end };
                    self.strays.push(StrayFile { path, kind });
                    continue;
                }
                if base_offset > previous_end {
                    report.gaps.push(previous_end..base_offset);
                }
            }
            files.push(MappedFile::from_stat(vfs, &path, base_offset, &stat, access));
        }
        self.strays.sort_by(|a, b| a.path.cmp(&b.path));
        report.strays = self.strays;
        (files, report)
    }
}

/// Returns the offset in a name of exactly twenty digits. It must fit in RocketMQ's signed number.
fn parse_base_offset(name: &std::ffi::OsStr) -> Option<u64> {
    let text = name.to_str().filter(|text| text.len() == 20 && text.bytes().all(|b| b.is_ascii_digit()))?;
    text.parse().ok().filter(|offset| i64::try_from(*offset).is_ok())
}
