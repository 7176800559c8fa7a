//! A log without a store around it, for readers only.
//!
//! Decides whether a path that is no store directory is one of these:
//!
//! ```text
//! backup/commitlog/                       a folder of segments
//! backup/00000000001073741824             one segment; its name is the log offset of its first byte
//! backup/old-disk.seg                     one segment with another name: its first record contains its log offset
//! ```
//!
//! Queue files have names of 20 digits too. So the first bytes of the file decide; if they are damaged, a search for
//! any record decides. Besides the log, only the lock of a possible writer is used. Writes nothing.
//!
//! Source: `MappedFileQueue#doLoad`, `CommitLog#checkMessageAndReturnSize`.

use std::path::{Path, PathBuf};

use mqstore_format::names::COMMITLOG_DIR;
use mqstore_format::{BLANK_HEADER_BYTES, MIN_RECORD_BYTES, Peek, RecordView, parse_offset_file_name, peek};
use mqstore_io::vfs::parent_dir;
use mqstore_io::{Access, FileKind, Vfs, VfsFile};

use crate::error::{IoContext, StoreError};

/// Bytes of a file that one step of the search reads.
const WINDOW_BYTES: usize = 1 << 20;

/// Why a log without a store cannot be opened for writing.
pub(super) const NEEDS_A_STORE: &str = "it is a log without a store around it, which can be read and verified, but not \
                                        written; give the directory that contains the commitlog folder, or make a \
                                        store from it: mqstore snapshot PATH OUT";

/// Why a file is not a log.
pub(super) const NO_SEGMENT: &str = "it is a file without a record; name the folder of the store (a segment whose name is \
                                     not its offset, 20 digits, must begin with a whole record)";

/// A log without a store.
#[derive(Debug)]
pub(super) struct BareLog {
    /// The folder, or the one segment.
    pub(super) path: PathBuf,
    /// The root that a store around this log would have.
    pub(super) home: PathBuf,
    /// The log offset of the segment, if the path is one segment, and whether its name is that offset.
    pub(super) segment: Option<(u64, bool)>,
}

impl BareLog {
    pub(super) fn find(vfs: &dyn Vfs, path: &Path) -> Result<Option<Self>, StoreError> {
        match vfs.stat(path) {
            Ok(stat) if stat.kind == FileKind::File => Self::file(vfs, path),
            Ok(_) => Self::folder(vfs, path),
            Err(_) => Ok(None),
        }
    }

    fn folder(vfs: &dyn Vfs, path: &Path) -> Result<Option<Self>, StoreError> {
        let Ok(entries) = vfs.list(path) else { return Ok(None) };
        let is_named = |name: &std::ffi::OsStr| name.to_str().and_then(parse_offset_file_name).is_some();
        let mut segments =
            entries.iter().filter(|entry| entry.stat.kind == FileKind::File && is_named(&entry.name));
        let is_log = match path.file_name() {
            Some(name) if name == COMMITLOG_DIR => segments.next().is_some(),
            _ => segments.try_fold(false, |found, entry| {
                Ok::<_, StoreError>(found || has_record(vfs, &path.join(&entry.name))?)
            })?,
        };
        // The folder above a link, and not the one above its target, is the store that uses this log.
        let is_link = path.file_name().is_some() && vfs.linked_folder(path).is_some();
        let home = if is_link { parent_dir(path).to_path_buf() } else { path.join("..") };
        Ok(is_log.then(|| Self { path: path.to_path_buf(), home, segment: None }))
    }

    fn file(vfs: &dyn Vfs, path: &Path) -> Result<Option<Self>, StoreError> {
        let named = path.file_name().and_then(|name| name.to_str()).and_then(parse_offset_file_name);
        let segment = match (named, first_base(vfs, path)?) {
            (_, Some(base)) => (base, named == Some(base)),
            (Some(base), None) if has_record(vfs, path)? => (base, true),
            _ => return Ok(None),
        };
        let home = parent_dir(path).join("..");
        Ok(Some(Self { path: path.to_path_buf(), home, segment: Some(segment) }))
    }
}

/// Returns the log offset of the file according to its first record; `None` if it does not begin with a record.
fn first_base(vfs: &dyn Vfs, path: &Path) -> Result<Option<u64>, StoreError> {
    let file = vfs.open(path, Access::Read).at(path, "opening a file")?;
    let len = file.len().at(path, "reading the length of a file")?;
    let mut head = [0; BLANK_HEADER_BYTES];
    if len < MIN_RECORD_BYTES as u64 {
        return Ok(None);
    }
    file.read_exact_at(&mut head, 0).at(path, "reading a file")?;
    let Ok(Peek::Record { size, .. }) = peek(&head) else { return Ok(None) };
    if u64::from(size) > len {
        return Ok(None);
    }
    let mut whole = vec![0; size as usize];
    file.read_exact_at(&mut whole, 0).at(path, "reading a file")?;
    let own = RecordView::decode(&whole).ok().map(|record| record.physical_offset);
    Ok(own.and_then(|own| u64::try_from(own).ok()))
}

/// Whether a file begins like a segment, or contains a record anywhere.
fn has_record(vfs: &dyn Vfs, path: &Path) -> Result<bool, StoreError> {
    let file = vfs.open(path, Access::Read).at(path, "opening a file")?;
    let len = file.len().at(path, "reading the length of a file")?;
    search(&*file, len).at(path, "looking for records")
}

fn search(file: &dyn VfsFile, len: u64) -> std::io::Result<bool> {
    let mut window = Vec::new();
    let mut at = 0;
    while let Some(data) = file.next_data(at)?.filter(|data| data + BLANK_HEADER_BYTES as u64 <= len) {
        at = at.max(data);
        // The first read is short: it is enough for every undamaged file.
        let wanted = if at == 0 && window.is_empty() { BLANK_HEADER_BYTES } else { WINDOW_BYTES };
        window.resize(((len - at) as usize).min(wanted), 0);
        file.read_exact_at(&mut window, at)?;
        let begins = |(start, head): (usize, &[u8])| match peek(head) {
            Ok(Peek::Record { size, .. } | Peek::Blank { size }) => {
                at + start as u64 + u64::from(size) <= len
            }
            _ => false,
        };
        if window.windows(BLANK_HEADER_BYTES).enumerate().any(begins) {
            return Ok(true);
        }
        if wanted == WINDOW_BYTES {
            at += (window.len() - (BLANK_HEADER_BYTES - 1)) as u64;
        }
    }
    Ok(false)
}
