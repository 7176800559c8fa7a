//! The segments of a log that is restored from an archive.
//!
//! Owns the new files of one folder. Records and other bytes come to their places in any order, and no byte is written
//! twice. At the end, the bytes that are missing are fillers, or records that the restore leaves out, which placeholders
//! replace.
//!
//! Across a crash: the files are complete after [`RestoredLog::sync`]; the caller gives their folder its final name
//! then.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_base::error::{IoContext, StoreError};
use mqstore_format::{
    BLANK_HEADER_BYTES, MIN_RECORD_BYTES, encode_blank, encode_placeholder, offset_file_name,
    placeholder_bytes,
};
use mqstore_io::{FileKind, Vfs, VfsFile, switch};

/// See the header of this file.
#[derive(Debug)]
pub struct RestoredLog {
    vfs: Arc<dyn Vfs>,
    folder: PathBuf,
    /// Files and lengths by log offset.
    files: BTreeMap<u64, (Arc<dyn VfsFile>, u64)>,
    /// The written ranges, start to end. No two of them touch.
    written: BTreeMap<u64, u64>,
}

/// Makes the folder of a restore, and removes what an interrupted call left in it.
///
/// # Errors
/// Errors of the system, with this action.
pub fn empty_folder(vfs: &dyn Vfs, folder: &Path, action: &'static str) -> Result<(), StoreError> {
    vfs.create_dir_all(folder).at(folder, action)?;
    for (name, kind) in vfs.list_kinds(folder).at(folder, action)? {
        let path = folder.join(name);
        match kind {
            FileKind::Directory => vfs.remove_dir_all(&path).at(&path, action)?,
            _ => vfs.remove_file(&path).at(&path, action)?,
        }
    }
    Ok(())
}

fn corrupt(folder: &Path, reason: String) -> StoreError {
    StoreError::Corrupt { path: folder.to_path_buf(), offset: 0, reason }
}

impl RestoredLog {
    /// Makes a log without segments in an existing folder.
    pub fn new(vfs: Arc<dyn Vfs>, folder: &Path) -> Self {
        Self { vfs, folder: folder.to_path_buf(), files: BTreeMap::new(), written: BTreeMap::new() }
    }

    fn path(&self, base: u64) -> PathBuf {
        self.folder.join(offset_file_name(base))
    }

    /// Creates the segment at log offset `base` with `length` bytes, all of them zero.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if it overlaps another one; errors of the system.
    pub fn add(&mut self, base: u64, length: u64) -> Result<(), StoreError> {
        let end = base.checked_add(length).filter(|end| i64::try_from(*end).is_ok() && length > 0);
        let before = self.files.range(..end.unwrap_or(0)).next_back();
        if end.is_none() || before.is_some_and(|(start, (_, len))| start + len > base) {
            return Err(corrupt(
                &self.folder,
                format!("a segment at log offset {base} with {length} bytes overlaps another one"),
            ));
        }
        let path = self.path(base);
        let file = self.vfs.create_new(&path).at(&path, "creating a log segment")?;
        file.set_len(length).at(&path, "creating a log segment")?;
        self.files.insert(base, (file, length));
        Ok(())
    }

    /// Whether a segment contains log offset `offset`.
    pub fn contains(&self, offset: u64) -> bool {
        self.find(offset).is_some()
    }

    /// Returns the segment that contains a log offset: its base, its file, and its end.
    fn find(&self, offset: u64) -> Option<(u64, &Arc<dyn VfsFile>, u64)> {
        let (base, (file, length)) = self.files.range(..=offset).next_back()?;
        (offset < base + length).then_some((*base, file, base + length))
    }

    /// Writes bytes at log offset `offset`; they may extend over several segments.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if no segment contains them, or if they are written already; errors of the system.
    pub fn write(&mut self, offset: u64, mut content: &[u8]) -> Result<(), StoreError> {
        let mut at = offset;
        while !content.is_empty() {
            let Some((base, file, end)) = self.find(at) else {
                return Err(corrupt(&self.folder, format!("no segment contains log offset {at}")));
            };
            let (part, rest) = content.split_at(content.len().min((end - at) as usize));
            let (path, file) = (self.path(base), Arc::clone(file));
            self.note(at, at + part.len() as u64)?;
            file.write_all_at(part, at - base).at(&path, "writing a log segment")?;
            (at, content) = (at + part.len() as u64, rest);
        }
        Ok(())
    }

    /// Adds a written range.
    fn note(&mut self, mut start: u64, mut end: u64) -> Result<(), StoreError> {
        if let Some((before, before_end)) = self.written.range(..end).next_back().map(|(a, b)| (*a, *b)) {
            if before_end > start {
                return Err(corrupt(
                    &self.folder,
                    format!("two records have bytes at log offset {}", start.max(before)),
                ));
            }
            if before_end == start {
                start = before;
            }
        }
        if let Some(after) = self.written.remove(&end) {
            end = after;
        }
        self.written.insert(start, end);
        Ok(())
    }

    /// Returns the ranges between two log offsets that are not written, split at the ends of segments.
    fn missing(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        for (base, (_, length)) in self.files.range(..end) {
            let (mut at, stop) = ((*base).max(start), (base + length).min(end));
            while at < stop {
                let known = self.written.range(..=at).next_back().filter(|(_, known_end)| **known_end > at);
                if let Some((_, known_end)) = known {
                    at = *known_end;
                    continue;
                }
                let next = self.written.range(at..stop).next().map_or(stop, |(next, _)| *next);
                found.push((at, next));
                at = next;
            }
        }
        found
    }

    /// Completes the log between two log offsets: writes the filler at the end of each segment, and with
    /// `placeholder_ms`, the store time of placeholders, replaces all other missing records. Returns the missing ranges
    /// that are left, each with its log offset and its length.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn complete(
        &mut self,
        start: u64,
        end: u64,
        placeholder_ms: Option<i64>,
    ) -> Result<Vec<(u64, u64)>, StoreError> {
        let mut left = Vec::new();
        for (from, to) in self.missing(start, end) {
            let is_last = self.find(from).is_some_and(|(.., segment_end)| segment_end == to);
            match (u32::try_from(to - from), placeholder_ms) {
                (Ok(bytes), _) if is_last && bytes as usize >= BLANK_HEADER_BYTES => {
                    self.write(from, &encode_blank(bytes))?;
                    if to - from > BLANK_HEADER_BYTES as u64 {
                        self.note(from + BLANK_HEADER_BYTES as u64, to)?;
                    }
                }
                (_, Some(time_ms)) if to - from >= MIN_RECORD_BYTES as u64 => {
                    self.placeholders(from, to, time_ms)?;
                }
                _ => left.push((from, to - from)),
            }
        }
        Ok(left)
    }

    fn placeholders(&mut self, mut at: u64, end: u64, time_ms: i64) -> Result<(), StoreError> {
        let mut buffer = Vec::new();
        while let Some(bytes) = placeholder_bytes(end - at) {
            buffer.clear();
            encode_placeholder(bytes, at.cast_signed(), time_ms, &mut buffer)
                .map_err(|error| corrupt(&self.folder, error.to_string()))?;
            self.write(at, &buffer)?;
            at += bytes;
        }
        Ok(())
    }

    /// Syncs all segments and their folder.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn sync(&self) -> Result<(), StoreError> {
        for (base, (file, _)) in &self.files {
            switch::step("restored_log.sync_segment", || file.sync_all())
                .at(&self.path(*base), "syncing a log segment")?;
        }
        switch::step("restored_log.sync_names", || self.vfs.sync_dir(&self.folder))
            .at(&self.folder, "syncing the folder of the log")
    }
}
