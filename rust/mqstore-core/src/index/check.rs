//! Looking at all of the index at once: its entries in order, and whether every entry can be reached.
//!
//! Reads only, positionally. Memory is that of one buffer, and of the slots of a file, of which so many are looked at
//! in one turn.

use std::path::PathBuf;
use std::sync::Arc;

use mqstore_format::IndexEntry;
use mqstore_format::index::{INDEX_ENTRY_BYTES, INDEX_SLOT_BYTES};
use mqstore_io::VfsFile;

use super::file::{IndexFile, Source};
use super::set::IndexSet;
use crate::error::{IoContext, StoreError};

/// Entries that are read at once: a little less than a mebibyte.
const ENTRIES_AT_ONCE: u32 = 52_000;

/// Slots that are looked at in one turn: 64 MiB.
const SLOTS_AT_ONCE: u32 = 16 << 20;

/// The entries of an index in the order in which they were put.
#[derive(Debug)]
pub struct IndexEntries {
    files: std::vec::IntoIter<Arc<IndexFile>>,
    file: Option<OpenFile>,
    buffer: Vec<u8>,
    /// Bytes of `buffer` that were given out.
    used: usize,
}

/// The file that is read.
#[derive(Debug)]
struct OpenFile {
    file: Arc<IndexFile>,
    bytes: Arc<dyn VfsFile>,
    /// The next entry to read.
    next: u32,
    /// One past the last one.
    end: u32,
}

impl IndexSet {
    /// All entries that the headers count, oldest file first.
    pub fn entries(&self) -> IndexEntries {
        IndexEntries { files: self.files().into_iter(), file: None, buffer: Vec::new(), used: 0 }
    }

    /// What is wrong with the chains: of each file in which an entry cannot be reached by its slot, how many there are
    /// and which is the first. Looks at all files, or with `beside` a writer at all but the newest one.
    pub fn broken_chains(&self, beside: bool) -> Result<Vec<(PathBuf, String)>, StoreError> {
        let mut files = self.files();
        if beside {
            files.pop();
        }
        let mut found = Vec::new();
        for file in &files {
            found.extend(broken_chains(file)?.map(|broken| (file.path.clone(), broken)));
        }
        Ok(found)
    }
}

impl IndexEntries {
    /// The next entry; `None` behind the last one.
    pub fn next_entry(&mut self) -> Result<Option<IndexEntry>, StoreError> {
        while self.used >= self.buffer.len() {
            if !self.fill()? {
                return Ok(None);
            }
        }
        let bytes = self.buffer.get(self.used..).and_then(|rest| rest.first_chunk());
        self.used += INDEX_ENTRY_BYTES;
        Ok(bytes.map(IndexEntry::decode))
    }

    fn fill(&mut self) -> Result<bool, StoreError> {
        (self.used, self.buffer) = (0, std::mem::take(&mut self.buffer));
        self.buffer.clear();
        if !matches!(&self.file, Some(open) if open.next < open.end) {
            let Some(file) = self.files.next() else { return Ok(false) };
            let bytes = file.open()?;
            let end = file.header()?.next_entry().min(file.geometry.entries);
            // Number 0 is never used.
            self.file = Some(OpenFile { file, bytes, next: 1, end });
        }
        if let Some(OpenFile { file, bytes, next, end }) = &mut self.file {
            let count = ENTRIES_AT_ONCE.min(end.saturating_sub(*next));
            self.buffer.resize(count as usize * INDEX_ENTRY_BYTES, 0);
            bytes
                .read_exact_at(&mut self.buffer, file.geometry.entry_position(*next))
                .at(&file.path, "reading an index file")?;
            *next += count;
            // What is wrong here, the next read will find and say.
            let ahead = u64::from(ENTRIES_AT_ONCE) * INDEX_ENTRY_BYTES as u64;
            let _ = bytes.expect_read(file.geometry.entry_position(*next), ahead);
        }
        Ok(true)
    }
}

/// Walks the entries of a file as they were put: each has to lead to the one that its slot named before, and in the
/// end the slot to the last one.
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
        let mut entries = IndexEntries {
            files: vec![Arc::clone(file)].into_iter(),
            file: None,
            buffer: Vec::new(),
            used: 0,
        };
        let mut number = 0_u32;
        while let Some(entry) = entries.next_entry()? {
            number += 1;
            let slot = file.geometry.slot_of(entry.hash);
            let Some(known) = slot.checked_sub(begin).and_then(|slot| newest.get_mut(slot as usize)) else {
                continue;
            };
            if u32::try_from(entry.previous) != Ok(*known) && !was_put_again(file, &bytes, *known, &entry)? {
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

/// Whether entry `known` was counted and not linked when its writer was killed, and `entry`, of the same record, was put
/// when that record was indexed again: both follow the same older one then, and nothing is missing.
fn was_put_again(
    file: &IndexFile,
    bytes: &Arc<dyn VfsFile>,
    known: u32,
    entry: &IndexEntry,
) -> Result<bool, StoreError> {
    if known == 0 {
        return Ok(false);
    }
    let source = Source::File(Arc::clone(bytes));
    let left = source.entry(file.geometry, known).at(&file.path, "reading an index file")?;
    Ok((left.previous, left.physical_offset) == (entry.previous, entry.physical_offset))
}

/// Compares the slots from `begin` on with what they should name.
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
