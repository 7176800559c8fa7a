//! Reads of the log through maps, in the process that writes it.
//!
//! Records far before the end of the log are probably not in the page cache, and are not read through a map. Touching a
//! map page by page would wait for each page. It would also keep these pages in memory as if they were in use, at the
//! cost of the pages that appends write. For positional reads the system reads ahead and drops the pages later.
//! While reads from the disk have a pace, older records that this process has not read yet are not read through a map
//! either.
//!
//! Across threads: a reader holds the segment first, so that it is not overwritten (see
//! [`mqstore_io::MappedFile::hold`]). Each returned record keeps the map.

use mqstore_format::{BLANK_HEADER_BYTES, Peek, peek};
use mqstore_io::sync::Arc;
use mqstore_io::{MappedFileGuard, Region, RegionView};

use super::log::CommitLog;
use super::read_maps::{ReadCounts, VerifiedBits};
use super::scan::check_to_read;
use mqstore_base::message::RecordBytes;

/// Bytes at the front of a record to prefetch.
const HEAD_BYTES: usize = 96;
const TAIL_BYTES: usize = 192;

/// A mapped segment, up to its readable end at the time of the call.
#[derive(Debug)]
pub struct MappedPart {
    region: Region,
    base: u64,
    end: u64,
    own_from: u64,
    seen: Arc<VerifiedBits>,
    /// Whether records that may be only on the disk are left to positional reads, which have a pace.
    paced: bool,
    /// Holds the segment while no record keeps the map.
    _held: MappedFileGuard,
}

impl MappedPart {
    /// Whether the record at `offset` is in this part.
    #[inline]
    pub fn holds(&self, offset: u64) -> bool {
        (self.base..self.end).contains(&offset)
    }

    /// Returns the record of `size` bytes at `offset`, if it is in this part and valid.
    #[inline]
    pub fn record(&self, offset: u64, size: u32) -> Option<RecordBytes> {
        self.prefetch(offset, size);
        self.prefetched(offset, size)
    }

    /// Prefetches the parts that every reader looks at first: the fields before the body and those after it. They may
    /// be far apart, and memory delivers them in parallel.
    #[inline]
    pub fn prefetch(&self, offset: u64, size: u32) {
        let at = offset.saturating_sub(self.base) as usize;
        self.region.expect_read(at, HEAD_BYTES);
        self.region.expect_read((at + size as usize).saturating_sub(TAIL_BYTES), TAIL_BYTES);
    }

    /// Like [`Self::record`], after a call of [`Self::prefetch`] for the same record.
    #[inline]
    pub fn prefetched(&self, offset: u64, size: u32) -> Option<RecordBytes> {
        let bytes = self.bytes(offset, size)?;
        // Records that this process appended did not come from a disk and need no check.
        if !self.was_used(offset) {
            if self.paced {
                return None;
            }
            check_to_read(bytes.as_slice(), offset).ok()?;
            self.note_used(offset);
        }
        Some(bytes)
    }

    /// Takes note that the record at `offset` is in memory and valid.
    pub(crate) fn note_used(&self, offset: u64) {
        self.seen.insert(offset.saturating_sub(self.base));
    }

    /// Whether this process appended or read the record at `offset`, so that it was in memory once.
    #[inline]
    pub fn was_used(&self, offset: u64) -> bool {
        offset >= self.own_from || self.seen.contains(offset - self.base)
    }

    #[inline]
    fn bytes(&self, offset: u64, size: u32) -> Option<RecordBytes> {
        if offset.checked_add(u64::from(size))? > self.end {
            return None;
        }
        let at = usize::try_from(offset.checked_sub(self.base)?).ok()?;
        self.region.view(at, size as usize).ok().map(RecordBytes::Mapped)
    }

    /// Returns the complete part and the log offset of its first byte, unless some of it must be read by position.
    /// Nothing of it was verified.
    pub fn published(&self) -> Option<(u64, RegionView)> {
        if self.paced {
            return None;
        }
        let len = usize::try_from(self.end.checked_sub(self.base)?).ok()?;
        Some((self.base, self.region.view(0, len).ok()?))
    }

    /// Returns the size in the header of the record at `offset`.
    pub(crate) fn size_at(&self, offset: u64) -> Option<u32> {
        if self.paced && !self.was_used(offset) {
            return None;
        }
        let head = self.bytes(offset, BLANK_HEADER_BYTES as u32)?;
        match peek(head.as_slice()) {
            Ok(Peek::Record { size, .. }) => Some(size),
            _ => None,
        }
    }
}

impl CommitLog {
    /// Returns the mapped segment of `offset`; `None` if it cannot be read or mapped, or is far before the end of the
    /// log.
    pub fn mapped(&self, offset: u64) -> Option<MappedPart> {
        let readable = self.readable();
        if offset >= readable || self.cold_distance(offset).is_some() {
            return None;
        }
        let list = self.list();
        let segment = list.find(offset)?;
        let held = segment.hold()?;
        let (region, replaced) = segment.counted_region().ok()?;
        // A segment that was rewritten can have other bytes where a queue or an index still points.
        let own_from = if replaced > 0 { u64::MAX } else { self.own_from };
        let seen = self.read_maps.note((segment, replaced), self.durable(), own_from);
        let (base, end) = (segment.base_offset(), segment.end_offset().min(readable));
        // A touch of a map cannot wait for its turn.
        let paced = base < own_from && segment.file().is_ok_and(|file| file.is_paced());
        Some(MappedPart { region, base, end, own_from, seen, paced, _held: held })
    }

    /// Whether a record at `offset` may be only on the disk: it is far before the end, or older than this process and
    /// not read yet.
    pub fn may_be_cold(&self, offset: u64) -> bool {
        offset < self.own_from || self.cold_distance(offset).is_some()
    }

    /// Returns the distance of `offset` from the end of the log, if it is so large that the record is probably not in
    /// memory.
    pub(crate) fn cold_distance(&self, offset: u64) -> Option<u64> {
        Some(self.readable().saturating_sub(offset)).filter(|behind| *behind > self.hot_bytes)
    }

    /// Returns the counts of records read in this process.
    pub fn read_counts(&self) -> &ReadCounts {
        &self.reads
    }
}
