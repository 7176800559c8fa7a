//! Reading the log in memory, in the process that writes it.
//!
//! What lies further behind the end of the log than the page cache reaches is not read
//! through a map: touching it page by page would wait for each, and would keep these pages in memory as
//! if they were in use, at the cost of those that are written. Positional reads have the system read
//! ahead, and forget.
//!
//! Across threads: a segment that is read is held first, so that nobody overwrites it (see
//! [`mqstore_io::MappedFile::hold`]); each record that was handed out keeps the map.

use mqstore_format::{BLANK_HEADER_BYTES, Peek, peek};
use mqstore_io::sync::Arc;
use mqstore_io::{MappedFileGuard, Region, RegionView};

use super::log::CommitLog;
use super::read_maps::{ReadCounts, VerifiedBits};
use super::scan::check_to_read;
use mqstore_base::message::RecordBytes;

/// What is fetched of a record before it is looked at.
const HEAD_BYTES: usize = 96;
const TAIL_BYTES: usize = 192;

/// A mapped segment, up to where it could be read when it was asked for.
#[derive(Debug)]
pub struct MappedPart {
    region: Region,
    base: u64,
    end: u64,
    own_from: u64,
    seen: Arc<VerifiedBits>,
    /// For as long as no record keeps the map.
    _held: MappedFileGuard,
}

impl MappedPart {
    /// Whether the record at `offset` can be read here.
    #[inline]
    pub fn holds(&self, offset: u64) -> bool {
        (self.base..self.end).contains(&offset)
    }

    /// The record of `size` bytes at `offset`, if it is here and holds together.
    #[inline]
    pub fn record(&self, offset: u64, size: u32) -> Option<RecordBytes> {
        self.expect(offset, size);
        self.expected(offset, size)
    }

    /// Fetches what every reader looks at first: the fields before the body, and those behind it. Far from each
    /// other, they come from memory side by side.
    #[inline]
    pub fn expect(&self, offset: u64, size: u32) {
        let at = offset.saturating_sub(self.base) as usize;
        self.region.expect_read(at, HEAD_BYTES);
        self.region.expect_read((at + size as usize).saturating_sub(TAIL_BYTES), TAIL_BYTES);
    }

    /// As [`Self::record`], of what [`Self::expect`] was called for.
    #[inline]
    pub fn expected(&self, offset: u64, size: u32) -> Option<RecordBytes> {
        let bytes = self.bytes(offset, size)?;
        // What this process appended did not come from a disk.
        let at = offset - self.base;
        if offset < self.own_from && !self.seen.contains(at) {
            check_to_read(bytes.as_slice(), offset).ok()?;
            self.seen.insert(at);
        }
        Some(bytes)
    }

    /// Whether the record at `offset` was appended or read by this process, and so was in memory once.
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

    /// All of it, and the log offset of its first byte; nothing of it was verified.
    pub fn published(&self) -> Option<(u64, RegionView)> {
        let len = usize::try_from(self.end.checked_sub(self.base)?).ok()?;
        Some((self.base, self.region.view(0, len).ok()?))
    }

    /// The size of the record at `offset` by its own words.
    pub fn size_at(&self, offset: u64) -> Option<u32> {
        let head = self.bytes(offset, BLANK_HEADER_BYTES as u32)?;
        match peek(head.as_slice()) {
            Ok(Peek::Record { size, .. }) => Some(size),
            _ => None,
        }
    }
}

impl CommitLog {
    /// The segment of `offset` in memory; `None` where it cannot be read, lies far behind the end, or is not
    /// to be mapped.
    pub fn mapped(&self, offset: u64) -> Option<MappedPart> {
        let readable = self.readable();
        if offset >= readable || self.cold_distance(offset).is_some() {
            return None;
        }
        let list = self.list();
        let segment = list.find(offset)?;
        let held = segment.hold()?;
        let region = segment.region().ok()?;
        let seen = self.read_maps.note(segment, self.durable(), self.own_from);
        let (base, end) = (segment.base_offset(), segment.end_offset().min(readable));
        Some(MappedPart { region, base, end, own_from: self.own_from, seen, _held: held })
    }

    /// Whether a record at `offset` may be on the disk alone: it lies far behind the end, or was there before this
    /// process began and nobody has read it yet.
    pub fn may_be_cold(&self, offset: u64) -> bool {
        offset < self.own_from || self.cold_distance(offset).is_some()
    }

    /// How far behind the end of the log `offset` lies, if that is so far that it is probably not in memory.
    pub fn cold_distance(&self, offset: u64) -> Option<u64> {
        Some(self.readable().saturating_sub(offset)).filter(|behind| *behind > self.hot_bytes)
    }

    /// What was read in this process.
    pub fn read_counts(&self) -> &ReadCounts {
        &self.reads
    }
}
