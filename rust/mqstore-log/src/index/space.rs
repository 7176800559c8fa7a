//! The disk space of an index file.
//!
//! A file has its full length from the start, but is sparse: with RocketMQ's geometry it would take 400 MiB for the
//! first key. Before an entry is written, its slot and its bytes get space.
//!
//! ```text
//! header | slots: random places, page by page;  once a sixteenth | entries: windows ahead
//!        | of the pages have space, all of them                   | of the next entry
//! ```
//!
//! The bits are in memory only. After an open, each page counts as one without space, until the writer reserves it or a
//! lookup finds a slot in it that is not zero. To reserve space that exists is cheap and changes nothing, whether this
//! or another program took it.
//!
//! Not even a read may go through the map to a page that may have no space: on tmpfs, a read of a hole takes a page, and
//! a full disk then ends the process with a signal.
//!
//! Across threads: the writer, which holds the lock of the set, reserves; lookups ask, and note pages with space.

use std::io;
use std::ops::Range;

use mqstore_format::IndexGeometry;
use mqstore_format::index::INDEX_ENTRY_BYTES;
use mqstore_io::sync::{AtomicBool, AtomicU64, Ordering, Raise};
use mqstore_io::{VfsFile, is_disk_full};

/// The unit of space for slots; every file system reserves at least this much.
const PAGE_BYTES: u64 = 4096;

/// If this part of the slot pages has space, the next reservation covers all of them. Keys come in random order, so
/// these pages are in random order on the disk, and a sync writes each of them apart.
const SCATTERED_PART: u64 = 16;

/// Bytes of entries that get space at once: as many as the file already has, within these bounds.
const LEAST_ENTRY_BYTES: u64 = 64 << 10;
const MOST_ENTRY_BYTES: u64 = 16 << 20;

/// See the header of this module.
#[derive(Debug)]
pub(super) struct IndexSpace {
    geometry: IndexGeometry,
    /// One bit for each page of the header and the slots that has space.
    pages: Vec<AtomicU64>,
    page_count: u64,
    /// Number of these bits.
    reserved_pages: AtomicU64,
    /// Whether all slots have space.
    slots_complete: AtomicBool,
    /// End of the entries with space, as a position in the file.
    entries_end: AtomicU64,
}

impl IndexSpace {
    /// Creates the state of a file whose next entry is `next_entry`.
    pub(super) fn new(geometry: IndexGeometry, next_entry: u32) -> Self {
        let page_count = geometry.entry_position(0).div_ceil(PAGE_BYTES);
        let words = page_count.div_ceil(u64::from(u64::BITS));
        Self {
            geometry,
            pages: (0..words).map(|_| AtomicU64::new(0)).collect(),
            page_count,
            reserved_pages: AtomicU64::new(0),
            slots_complete: AtomicBool::new(false),
            entries_end: AtomicU64::new(geometry.entry_position(next_entry)),
        }
    }

    /// Whether the slot at this position has space for certain.
    #[inline]
    pub(super) fn has_slot(&self, position: u64) -> bool {
        if self.slots_complete.load(Ordering::Acquire) {
            return true;
        }
        let page = position / PAGE_BYTES;
        let word = self.pages.get((page / u64::from(u64::BITS)) as usize);
        word.is_some_and(|word| word.load(Ordering::Acquire) >> (page % u64::from(u64::BITS)) & 1 == 1)
    }

    /// Reserves space for the header and the slot at this position.
    pub(super) fn reserve_slot(&self, file: &dyn VfsFile, position: u64) -> io::Result<()> {
        if !self.has_slot(0) {
            self.reserve_page(file, 0)?;
        }
        if self.has_slot(position) { Ok(()) } else { self.reserve_page(file, position / PAGE_BYTES) }
    }

    fn reserve_page(&self, file: &dyn VfsFile, page: u64) -> io::Result<()> {
        if self.reserved_pages.load(Ordering::Relaxed) >= self.page_count / SCATTERED_PART {
            match self.reserve(file, 0..self.page_count * PAGE_BYTES) {
                // A page may still fit.
                Err(error) if is_disk_full(&error) => {}
                outcome => {
                    outcome?;
                    self.slots_complete.store(true, Ordering::Release);
                    return Ok(());
                }
            }
        }
        self.reserve(file, page * PAGE_BYTES..(page + 1) * PAGE_BYTES)?;
        self.note_page(page);
        Ok(())
    }

    pub(super) fn note_slot(&self, position: u64) {
        self.note_page(position / PAGE_BYTES);
    }

    fn note_page(&self, page: u64) {
        let bit = 1 << (page % u64::from(u64::BITS));
        if let Some(word) = self.pages.get((page / u64::from(u64::BITS)) as usize)
            && word.fetch_or(bit, Ordering::Release) & bit == 0
        {
            self.reserved_pages.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reserves space for entries, which follow those that have it.
    pub(super) fn reserve_entries(&self, file: &dyn VfsFile, numbers: Range<u32>) -> io::Result<()> {
        let (from, needed) =
            (self.entries_end.load(Ordering::Relaxed), self.geometry.entry_position(numbers.end));
        if needed <= from {
            return Ok(());
        }
        let used = u64::from(numbers.start) * INDEX_ENTRY_BYTES as u64;
        let window = needed.max(from + used.clamp(LEAST_ENTRY_BYTES, MOST_ENTRY_BYTES));
        let end = match self.reserve(file, from..window) {
            Err(error) if is_disk_full(&error) && needed < window => {
                self.reserve(file, from..needed)?;
                needed
            }
            outcome => outcome.map(|()| window)?,
        };
        self.entries_end.raise(end, Ordering::Relaxed);
        Ok(())
    }

    fn reserve(&self, file: &dyn VfsFile, range: Range<u64>) -> io::Result<()> {
        let len = self.geometry.file_len();
        let range = range.start..range.end.min(len);
        match file.allocate_range(range.start, range.end.saturating_sub(range.start)) {
            // The file got all its space when it was created, unless another program made it.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => file.allocate(len),
            outcome => outcome,
        }
    }
}
