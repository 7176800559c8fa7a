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

/// Maximum entries, or slots, of one read: a little less than 1 MiB of entries.
const ENTRIES_AT_ONCE: u32 = 52_000;

/// Their bytes.
const ENTRY_BYTES_AT_ONCE: u64 = ENTRIES_AT_ONCE as u64 * INDEX_ENTRY_BYTES as u64;

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
    /// See [`Vfs::best_read_bytes`].
    best_read_bytes: Option<u64>,
    check: Option<EntriesCheck>,
}

/// The check of the files while their entries are read.
#[derive(Debug, Default)]
struct EntriesCheck {
    /// The check of the open file.
    chains: Option<ChainCheck>,
    bad: Vec<BadIndexFile>,
    /// Files with so many slots that they are read several times.
    left: Vec<Arc<IndexFile>>,
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
        IndexEntries::of(self.files(), self.best_read_bytes())
    }

    /// Like [`Self::entries`], and checks the files like [`Self::wrong_files`], so that each is read once: see
    /// [`IndexEntries::finish_check`].
    pub fn checked_entries(&self) -> IndexEntries {
        IndexEntries { check: Some(EntriesCheck::default()), ..self.entries() }
    }

    fn best_read_bytes(&self) -> Option<u64> {
        self.store_files().vfs.best_read_bytes()
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

    /// Checks each named file on its own, except files that expired meanwhile, and describes the damaged ones: entries
    /// that their slots do not lead to (the first one and their number), and the log offsets of the header.
    ///
    /// # Errors
    /// [`StoreError::Busy`] if a file does not exist, and errors of the system.
    pub fn wrong_files(&self, names: &[String]) -> Result<Vec<BadIndexFile>, StoreError> {
        let files = self.files();
        let mut found = Vec::new();
        for name in names {
            let file = files.iter().find(|file| name_of(&file.path) == *name);
            let file = file.ok_or_else(|| self.lost(name))?;
            found.extend(unless_gone(check_file(file, self.best_read_bytes()))?.flatten());
        }
        Ok(found)
    }

    /// Returns the last entries, at most `most`, of the newest file that has any, in their order.
    pub(crate) fn newest_entries(&self, most: u32) -> Result<Vec<IndexEntry>, StoreError> {
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
    fn of(files: Vec<Arc<IndexFile>>, best_read_bytes: Option<u64>) -> Self {
        let (files, buffer, used) = (files.into_iter(), Vec::new(), 0);
        Self { files, file: None, headers: Vec::new(), buffer, used, best_read_bytes, check: None }
    }

    /// Reads the rest of the entries. Returns the damaged files of [`IndexSet::checked_entries`].
    pub fn finish_check(mut self) -> Result<Vec<BadIndexFile>, StoreError> {
        loop {
            self.used = self.buffer.len() / INDEX_ENTRY_BYTES * INDEX_ENTRY_BYTES;
            if !self.fill()? {
                break;
            }
        }
        let Some(EntriesCheck { mut bad, left, .. }) = self.check else { return Ok(Vec::new()) };
        for file in left {
            bad.extend(unless_gone(check_file(&file, self.best_read_bytes))?.flatten());
        }
        bad.sort_unstable_by(|one, other| one.path.cmp(&other.path));
        Ok(bad)
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
        while self.buffer.len() - self.used < INDEX_ENTRY_BYTES {
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
        // The start of an entry whose rest is read now.
        self.buffer.drain(..self.used.min(self.buffer.len()));
        self.used = 0;
        if !matches!(&self.file, Some(open) if open.next < open.end) {
            self.end_file()?;
            let Some(file) = self.files.next() else { return Ok(false) };
            // Without the file, its entries are missing, unless their records expired too.
            let Some(open) = unless_gone(OpenFile::new(file, 1))? else { return Ok(true) };
            self.enter(open);
            self.begin_file()?;
        }
        if let Some(OpenFile { file, bytes, next, end, .. }) = &mut self.file {
            let (start, end) = (file.geometry.entry_position(*next), file.geometry.entry_position(*end));
            let rest = self.buffer.len();
            let from = start + rest as u64;
            let to = match self.best_read_bytes {
                // Each request begins where the last one ended, and may end in an entry.
                Some(best) => end.min((from / best + 1) * best),
                None => end.min(start + ENTRY_BYTES_AT_ONCE),
            };
            self.buffer.resize(rest + to.saturating_sub(from) as usize, 0);
            let unread = self.buffer.get_mut(rest..).unwrap_or_default();
            bytes.read_exact_at(unread, from).at(&file.path, "reading an index file")?;
            *next += (self.buffer.len() / INDEX_ENTRY_BYTES) as u32;
            if self.best_read_bytes.is_none() {
                // The next read will find and report this error.
                let _ = bytes.expect_read(to, ENTRY_BYTES_AT_ONCE);
            }
        }
        if let Some(chains) = self.check.as_mut().and_then(|check| check.chains.as_mut()) {
            let (entries, _) = self.buffer.as_chunks();
            entries.iter().try_for_each(|entry| chains.add(&IndexEntry::decode(entry)))?;
        }
        Ok(true)
    }

    /// Begins the check of the file that was opened.
    fn begin_file(&mut self) -> Result<(), StoreError> {
        let (Some(check), Some(OpenFile { file, .. })) = (&mut self.check, &self.file) else { return Ok(()) };
        if file.geometry.slots > SLOTS_AT_ONCE {
            check.left.push(Arc::clone(file));
            return Ok(());
        }
        check.chains = unless_gone(ChainCheck::new(file, 0, Vec::new(), BrokenChains::default()))?;
        Ok(())
    }

    /// Ends the check of the file whose entries were read.
    fn end_file(&mut self) -> Result<(), StoreError> {
        if let Some(check) = &mut self.check
            && let Some(chains) = check.chains.take()
        {
            check.bad.extend(unless_gone(chains.finish(self.best_read_bytes))?.flatten());
        }
        Ok(())
    }
}

fn read_entries(file: &IndexFile, from: u32, end: u32) -> Result<Vec<IndexEntry>, StoreError> {
    let mut buffer = vec![0; end.saturating_sub(from) as usize * INDEX_ENTRY_BYTES];
    file.open()?
        .read_exact_at(&mut buffer, file.geometry.entry_position(from))
        .at(&file.path, "reading an index file")?;
    let (entries, _) = buffer.as_chunks();
    Ok(entries.iter().map(IndexEntry::decode).collect())
}

/// Checks that the slots of a file lead to its entries. The entries arrive in the order in which they were added. Each
/// must lead to the entry that its slot named before, and at the end the slot must name the last one.
#[derive(Debug)]
struct ChainCheck {
    file: Arc<IndexFile>,
    bytes: Arc<dyn VfsFile>,
    /// The first slot of the check; entries of other slots are passed over.
    begin: u32,
    /// Number of the newest entry of each slot so far.
    newest: Vec<u32>,
    /// Number of entries so far.
    number: u32,
    ends: Option<(IndexEntry, IndexEntry)>,
    broken: BrokenChains,
}

/// The damage of the chains of a file: the first one, and their number.
#[derive(Debug, Default)]
struct BrokenChains {
    first: String,
    count: u64,
}

impl BrokenChains {
    fn tell(&mut self, what: impl FnOnce() -> String) {
        if self.count == 0 {
            self.first = what();
        }
        self.count += 1;
    }

    fn into_text(self) -> Option<String> {
        match self.count {
            0 => None,
            1 => Some(self.first),
            count => Some(format!("{}; {} more", self.first, count - 1)),
        }
    }
}

impl ChainCheck {
    fn new(
        file: &Arc<IndexFile>,
        begin: u32,
        mut newest: Vec<u32>,
        broken: BrokenChains,
    ) -> Result<Self, StoreError> {
        let count = SLOTS_AT_ONCE.min(file.geometry.slots - begin);
        newest.clear();
        newest.resize(count as usize, 0);
        Ok(Self { file: Arc::clone(file), bytes: file.open()?, begin, newest, number: 0, ends: None, broken })
    }

    fn add(&mut self, entry: &IndexEntry) -> Result<(), StoreError> {
        self.number += 1;
        self.ends = Some((self.ends.map_or(*entry, |(first, _)| first), *entry));
        let slot = self.file.geometry.slot_of(entry.hash);
        let newest = slot.checked_sub(self.begin).and_then(|slot| self.newest.get_mut(slot as usize));
        let Some(newest) = newest else { return Ok(()) };
        let (known, number) = (*newest, self.number);
        *newest = number;
        if u32::try_from(entry.previous) != Ok(known)
            && !is_duplicate_after_kill(&self.file, &self.bytes, known, entry)?
        {
            let tell = || format!("entry {number} is followed by entry {}, not by {known}", entry.previous);
            self.broken.tell(tell);
        }
        Ok(())
    }

    /// Compares the slots with the entries that they should name.
    fn compare_slots(&mut self, best_read_bytes: Option<u64>) -> Result<(), StoreError> {
        let mut buffer = Vec::new();
        let mut slot = self.begin;
        let end = self.file.geometry.slot_position(slot + self.newest.len() as u32);
        let mut expected = self.file.geometry.slot_position(slot);
        for part in self.newest.chunks(ENTRIES_AT_ONCE as usize) {
            buffer.resize(part.len() * INDEX_SLOT_BYTES, 0);
            if let Some(ahead) =
                best_read_bytes.filter(|_| self.file.geometry.slot_position(slot) >= expected)
            {
                // The read finds and reports any error.
                let _ = self.bytes.expect_read(expected, ahead.min(end - expected));
                expected = end.min(expected + ahead);
            }
            self.bytes
                .read_exact_at(&mut buffer, self.file.geometry.slot_position(slot))
                .at(&self.file.path, "reading index slots")?;
            let (slots, _) = buffer.as_chunks::<INDEX_SLOT_BYTES>();
            for (found, wanted) in slots.iter().zip(part) {
                let found = u32::from_be_bytes(*found);
                if found != *wanted {
                    let found = found.cast_signed();
                    self.broken.tell(|| format!("slot {slot} names entry {found}, not {wanted}"));
                }
                slot += 1;
            }
        }
        Ok(())
    }

    /// Compares the log offsets in the header with those of the first and the last entry.
    fn wrong_header(&self) -> Result<Option<String>, StoreError> {
        let Some((first, last)) = self.ends else { return Ok(None) };
        let header = self.file.header()?;
        let wrong = |what: &str, known: i64, entry: IndexEntry| {
            (entry.physical_offset != known).then(|| {
                format!(
                    "its header {what} at log offset {known}, but its entries at {}",
                    entry.physical_offset
                )
            })
        };
        let begin = wrong("begins", header.begin_physical, first);
        Ok(begin.or_else(|| wrong("ends", header.end_physical, last)))
    }

    /// Ends the check of a file whose slots all took part; returns the damage.
    fn finish(mut self, best_read_bytes: Option<u64>) -> Result<Option<BadIndexFile>, StoreError> {
        self.compare_slots(best_read_bytes)?;
        let header = self.wrong_header()?;
        let chains = self.broken.into_text();
        let is_bad = chains.is_some() || header.is_some();
        Ok(is_bad.then(|| BadIndexFile { path: self.file.path.clone(), chains, header }))
    }
}

/// Checks one file; walks its entries once for each step of slots.
fn check_file(
    file: &Arc<IndexFile>,
    best_read_bytes: Option<u64>,
) -> Result<Option<BadIndexFile>, StoreError> {
    let mut check = ChainCheck::new(file, 0, Vec::new(), BrokenChains::default())?;
    loop {
        let mut entries = IndexEntries::of(vec![Arc::clone(file)], best_read_bytes);
        while let Some(IndexedEntry { entry, .. }) = entries.next_entry()? {
            check.add(&entry)?;
        }
        let next = check.begin.saturating_add(SLOTS_AT_ONCE);
        if next >= file.geometry.slots {
            return check.finish(best_read_bytes);
        }
        check.compare_slots(best_read_bytes)?;
        check = ChainCheck::new(file, next, check.newest, check.broken)?;
    }
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
