//! Checks of the complete index: reads its entries in order, and finds entries that lookups cannot reach.
//!
//! All reads are positional. Memory is bounded by one buffer and the slots of one step. Several processes can split the
//! work, by files and by [`EntryLocation`]s.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_format::index::{INDEX_ENTRY_BYTES, INDEX_SLOT_BYTES};
use mqstore_format::{IndexEntry, IndexHeader};
use mqstore_io::VfsFile;
use serde::{Deserialize, Serialize};

use super::file::{IndexBytes, IndexFile};
use super::set::IndexSet;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::retry::unless_gone;

/// Maximum entries of one read: a little less than 1 MiB.
const ENTRIES_AT_ONCE: u32 = 52_000;

/// Maximum slots of one step: 64 MiB.
const SLOTS_AT_ONCE: u32 = 16 << 20;

/// An entry with its place. A walk copies many of them, so the header of the file is kept apart, in [`IndexEntries`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexedEntry {
    /// The content of the entry.
    pub entry: IndexEntry,
    /// Number of the entry in the file; the first is 1.
    pub number: u32,
    /// Index of the file among those that the walk has opened.
    file: u32,
}

impl IndexedEntry {
    /// See [`IndexEntries::wrong_time`]; `header` is the one of the entry's file.
    fn wrong_time(&self, header: &IndexHeader, store_timestamp: i64, beside: bool) -> Option<String> {
        let Self { entry, number, .. } = self;
        if *number == 1 && header.begin_timestamp != store_timestamp {
            return Some(format!(
                "its header begins at time {}, but its first entry is at {store_timestamp}",
                header.begin_timestamp
            ));
        }
        let is_last = *number + 1 == header.next_entry() && !beside;
        if is_last && header.end_timestamp != store_timestamp {
            return Some(format!(
                "its header ends at time {}, but its last entry is at {store_timestamp}",
                header.end_timestamp
            ));
        }
        let seconds = header.time_diff_s(store_timestamp);
        (*number > 1 && entry.time_diff_s != seconds)
            .then(|| format!("entry {number} says {} seconds, not {seconds}", entry.time_diff_s))
    }
}

/// The place of an entry, in a form for other processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryLocation {
    /// Name of the file.
    pub file: String,
    /// Number of the entry in the file; the first is 1.
    pub number: u32,
}

/// A damaged index file, with descriptions of its damage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadIndexFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Description of entries that its slots do not lead to.
    pub chains: Option<String>,
    /// Description of log offsets in the header that differ from those of its entries.
    pub header: Option<String>,
}

/// The entries of an index in the order in which they were added.
#[derive(Debug)]
pub struct IndexEntries {
    files: std::vec::IntoIter<Arc<IndexFile>>,
    file: Option<OpenFile>,
    /// The headers of the files opened so far.
    headers: Vec<IndexHeader>,
    buffer: Vec<u8>,
    /// Bytes of `buffer` that were returned.
    used: usize,
}

/// The file that is being read.
#[derive(Debug)]
struct OpenFile {
    file: Arc<IndexFile>,
    bytes: Arc<dyn VfsFile>,
    /// Number of the next entry to read.
    next: u32,
    /// One past the last entry.
    end: u32,
}

impl IndexSet {
    /// Returns all entries that the headers count, oldest file first.
    pub fn entries(&self) -> IndexEntries {
        IndexEntries::of(self.files())
    }

    /// Returns the entries from `from` on; none for `None`.
    ///
    /// # Errors
    /// [`StoreError::Busy`] if the file does not exist.
    pub fn entries_from(&self, from: Option<&EntryLocation>) -> Result<IndexEntries, StoreError> {
        let mut entries = self.entries();
        let Some(EntryLocation { file, number }) = from else {
            entries.files = Vec::new().into_iter();
            return Ok(entries);
        };
        while entries.files.as_slice().first().is_some_and(|next| name_of(&next.path) != *file) {
            entries.files.next();
        }
        let Some(file) = entries.files.next() else { return Err(self.lost(file)) };
        entries.enter(OpenFile::new(file, *number)?);
        Ok(entries)
    }

    fn lost(&self, file: &str) -> StoreError {
        let path = self.store_files().index().join(file);
        let reason = format!("{} was deleted while the index was read; try again", path.display());
        StoreError::Busy { reason }
    }

    /// Returns the names of the files that [`Self::wrong_files`] can check: all, or all except the newest if the flag
    /// says that a writer runs.
    pub fn finished_files(&self, beside: bool) -> Vec<String> {
        let mut files = self.files();
        if beside {
            files.pop();
        }
        files.iter().map(|file| name_of(&file.path)).collect()
    }

    /// Checks each named file on its own, except files that expired meanwhile, and describes the damaged ones: entries that their slots do not lead to (the
    /// first one and their number), and the log offsets of the header.
    ///
    /// # Errors
    /// [`StoreError::Busy`] if a file does not exist, and errors of the system.
    pub fn wrong_files(&self, names: &[String]) -> Result<Vec<BadIndexFile>, StoreError> {
        let files = self.files();
        let mut found = Vec::new();
        for name in names {
            let file = files.iter().find(|file| name_of(&file.path) == *name);
            let file = file.ok_or_else(|| self.lost(name))?;
            let checked = broken_chains(file).and_then(|chains| Ok((chains, wrong_header(file)?)));
            let Some((chains, header)) = unless_gone(checked)? else { continue };
            if chains.is_some() || header.is_some() {
                found.push(BadIndexFile { path: file.path.clone(), chains, header });
            }
        }
        Ok(found)
    }

    /// Returns the last entries, at most `most`, of the newest file that has any, in their order.
    pub fn newest_entries(&self, most: u32) -> Result<Vec<IndexEntry>, StoreError> {
        for file in self.files().iter().rev() {
            let end = file.header()?.next_entry().min(file.geometry.entries);
            if end > 1 {
                return read_entries(file, end.saturating_sub(most).max(1), end);
            }
        }
        Ok(Vec::new())
    }
}

/// Returns the name of an index file, which has only digits.
fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

impl OpenFile {
    /// Opens a file that is read from entry `next` on; entry 0 is never used. Returns its header too.
    fn new(file: Arc<IndexFile>, next: u32) -> Result<(Self, IndexHeader), StoreError> {
        let (bytes, header) = (file.open()?, file.header()?);
        let end = header.next_entry().min(file.geometry.entries);
        Ok((Self { file, bytes, next: next.max(1), end }, header))
    }
}

impl IndexEntries {
    /// Creates a walk over these files, oldest first.
    fn of(files: Vec<Arc<IndexFile>>) -> Self {
        Self { files: files.into_iter(), file: None, headers: Vec::new(), buffer: Vec::new(), used: 0 }
    }

    /// Compares the times of an entry of this walk with `store_timestamp` of its record, and describes the difference;
    /// `None` if they agree. The seconds of the first entry of a file count from the end of the file before. The flag
    /// says that a writer may have changed the end of the file already.
    #[inline]
    pub fn wrong_time(&self, entry: &IndexedEntry, store_timestamp: i64, beside: bool) -> Option<String> {
        entry.wrong_time(self.headers.get(entry.file as usize)?, store_timestamp, beside)
    }

    fn enter(&mut self, (file, header): (OpenFile, IndexHeader)) {
        self.file = Some(file);
        self.headers.push(header);
    }

    /// Returns the name of the file of the last entry.
    pub fn file_name(&self) -> Option<String> {
        self.file.as_ref().map(|open| name_of(&open.file.path))
    }

    /// Returns the next entry; `None` after the last one.
    #[inline]
    pub fn next_entry(&mut self) -> Result<Option<IndexedEntry>, StoreError> {
        while self.used >= self.buffer.len() {
            if !self.fill()? {
                return Ok(None);
            }
        }
        let behind = (self.buffer.len() - self.used) / INDEX_ENTRY_BYTES;
        let bytes = self.buffer.get(self.used..).and_then(|rest| rest.first_chunk());
        self.used += INDEX_ENTRY_BYTES;
        Ok(bytes.zip(self.file.as_ref()).map(|(bytes, open)| IndexedEntry {
            entry: IndexEntry::decode(bytes),
            number: open.next - behind as u32,
            file: self.headers.len().saturating_sub(1) as u32,
        }))
    }

    #[cold]
    fn fill(&mut self) -> Result<bool, StoreError> {
        (self.used, self.buffer) = (0, std::mem::take(&mut self.buffer));
        self.buffer.clear();
        if !matches!(&self.file, Some(open) if open.next < open.end) {
            let Some(file) = self.files.next() else { return Ok(false) };
            // Without the file, its entries are missing, unless their records expired too.
            let Some(open) = unless_gone(OpenFile::new(file, 1))? else { return Ok(true) };
            self.enter(open);
        }
        if let Some(OpenFile { file, bytes, next, end, .. }) = &mut self.file {
            let count = ENTRIES_AT_ONCE.min(end.saturating_sub(*next));
            self.buffer.resize(count as usize * INDEX_ENTRY_BYTES, 0);
            bytes
                .read_exact_at(&mut self.buffer, file.geometry.entry_position(*next))
                .at(&file.path, "reading an index file")?;
            *next += count;
            // The next read will find and report this error.
            let ahead = u64::from(ENTRIES_AT_ONCE) * INDEX_ENTRY_BYTES as u64;
            let _ = bytes.expect_read(file.geometry.entry_position(*next), ahead);
        }
        Ok(true)
    }
}

/// Returns the entries from number `from` up to `end`.
fn read_entries(file: &IndexFile, from: u32, end: u32) -> Result<Vec<IndexEntry>, StoreError> {
    let mut buffer = vec![0; end.saturating_sub(from) as usize * INDEX_ENTRY_BYTES];
    file.open()?
        .read_exact_at(&mut buffer, file.geometry.entry_position(from))
        .at(&file.path, "reading an index file")?;
    let (entries, _) = buffer.as_chunks();
    Ok(entries.iter().map(IndexEntry::decode).collect())
}

/// Compares the log offsets in the header with those of the first and the last entry.
fn wrong_header(file: &IndexFile) -> Result<Option<String>, StoreError> {
    let header = file.header()?;
    let end = header.next_entry().min(file.geometry.entries);
    if end <= 1 {
        return Ok(None);
    }
    let (first, last) = (read_entries(file, 1, 2)?, read_entries(file, end - 1, end)?);
    let wrong = |what: &str, known: i64, entries: &[IndexEntry]| {
        let entry = entries.first().filter(|entry| entry.physical_offset != known)?;
        Some(format!("its header {what} at log offset {known}, but its entries at {}", entry.physical_offset))
    };
    let begin = wrong("begins", header.begin_physical, &first);
    Ok(begin.or_else(|| wrong("ends", header.end_physical, &last)))
}

/// Walks the entries of a file in the order in which they were added. Each must lead to the entry that its slot named
/// before, and at the end the slot must name the last one.
fn broken_chains(file: &Arc<IndexFile>) -> Result<Option<String>, StoreError> {
    let (mut broken, mut first) = (0_u64, String::new());
    let mut tell = |what: String| {
        if broken == 0 {
            first = what;
        }
        broken += 1;
    };
    let bytes = file.open()?;
    let mut newest: Vec<u32> = Vec::new();
    let mut begin = 0;
    while begin < file.geometry.slots {
        let count = SLOTS_AT_ONCE.min(file.geometry.slots - begin);
        newest.clear();
        newest.resize(count as usize, 0);
        let mut entries = IndexEntries::of(vec![Arc::clone(file)]);
        let mut number = 0_u32;
        while let Some(IndexedEntry { entry, .. }) = entries.next_entry()? {
            number += 1;
            let slot = file.geometry.slot_of(entry.hash);
            let Some(known) = slot.checked_sub(begin).and_then(|slot| newest.get_mut(slot as usize)) else {
                continue;
            };
            if u32::try_from(entry.previous) != Ok(*known)
                && !is_duplicate_after_kill(file, &bytes, *known, &entry)?
            {
                tell(format!("entry {number} is followed by entry {}, not by {known}", entry.previous));
            }
            *known = number;
        }
        compare_slots(file, &*bytes, begin, &newest, &mut tell)?;
        begin += count;
    }
    Ok((broken > 0).then(|| match broken {
        1 => first,
        _ => format!("{first}; {} more", broken - 1),
    }))
}

/// Whether `entry` is a repeated entry after a kill: the writer counted entry `known` but did not link it, and later
/// indexed the same record again. Then both lead to the same older entry, and nothing is missing.
fn is_duplicate_after_kill(
    file: &IndexFile,
    bytes: &Arc<dyn VfsFile>,
    known: u32,
    entry: &IndexEntry,
) -> Result<bool, StoreError> {
    if known == 0 {
        return Ok(false);
    }
    let source = IndexBytes::File(Arc::clone(bytes));
    let left = source.entry(file.geometry, known).at(&file.path, "reading an index file")?;
    Ok((left.previous, left.physical_offset) == (entry.previous, entry.physical_offset))
}

/// Compares the slots from `begin` on with the entries that they should name.
fn compare_slots(
    file: &IndexFile,
    bytes: &dyn VfsFile,
    begin: u32,
    newest: &[u32],
    tell: &mut dyn FnMut(String),
) -> Result<(), StoreError> {
    let mut buffer = Vec::new();
    let mut slot = begin;
    for part in newest.chunks(ENTRIES_AT_ONCE as usize) {
        buffer.resize(part.len() * INDEX_SLOT_BYTES, 0);
        bytes
            .read_exact_at(&mut buffer, file.geometry.slot_position(slot))
            .at(&file.path, "reading index slots")?;
        let (slots, _) = buffer.as_chunks::<INDEX_SLOT_BYTES>();
        for (found, wanted) in slots.iter().zip(part) {
            let found = u32::from_be_bytes(*found);
            if found != *wanted {
                tell(format!("slot {slot} names entry {}, not {wanted}", found.cast_signed()));
            }
            slot += 1;
        }
    }
    Ok(())
}
