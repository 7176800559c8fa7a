//! Reading the log in memory, in the process that writes it.
//!
//! Segments are mapped at their first read and stay so; of those that were mapped for readers alone, at
//! most [`MOST_MAPS`]. What lies further behind the end of the log than the page cache reaches is not read
//! through a map: touching it page by page would wait for each, and would keep these pages in memory as
//! if they were in use, at the cost of those that are written. Positional reads have the system read
//! ahead, and forget.
//!
//! A record that this process did not write has its checksums verified the first time that it is read; a bit
//! for each 64 bytes of a mapped segment remembers that (records are longer than that; 2 MiB for a segment of
//! 1 GiB), so that the second reader pays for what it reads and not for what is known.
//!
//! Across threads: a segment that is read is held first, so that nobody overwrites it (see
//! [`mqstore_io::MappedFile::hold`]); each record that was handed out keeps the map.

use std::collections::VecDeque;
use std::sync::Weak;

use mqstore_format::{BLANK_HEADER_BYTES, Peek, peek};
use mqstore_io::sync::{Arc, AtomicU64, Mutex, Ordering};
use mqstore_io::{MappedFileGuard, Region, RegionView};

use super::append::CommitLog;
use super::scan::check_to_read;
use super::segment_list::Segment;
use mqstore_base::message::RecordBytes;

/// Segments that are mapped because they were read: 64 GiB of address space with segments as RocketMQ's,
/// and 128 MiB of page tables if each of their pages was touched.
const MOST_MAPS: usize = 64;

/// What is fetched of a record before it is looked at.
const HEAD_BYTES: usize = 96;
const TAIL_BYTES: usize = 192;

/// How much of the memory counts as page cache for messages, in hundredths. Source:
/// `accessMessageInMemoryMaxRatio`.
const IN_MEMORY_PERCENT: u64 = 40;

/// How many bytes before the log's end are taken to be in memory, on a machine with `memory_bytes` of it.
pub(super) fn hot_bytes(memory_bytes: u64) -> u64 {
    memory_bytes / 100 * IN_MEMORY_PERCENT
}

/// Records that were read since the open.
#[derive(Debug, Default)]
pub struct ReadCounts {
    /// From the end of the log, which is taken to be in memory.
    pub hot: AtomicU64,
    /// From further behind.
    pub cold: AtomicU64,
    /// How far behind the end the farthest of them was, since somebody asked last.
    pub behind: AtomicU64,
}

/// The segments that are read through maps, those that were added first in front.
#[derive(Debug, Default)]
pub(super) struct ReadMaps(Mutex<VecDeque<ReadMap>>);

#[derive(Debug)]
struct ReadMap {
    segment: Weak<Segment>,
    seen: Arc<VerifiedBits>,
}

impl ReadMaps {
    /// Takes note of a segment that is read, and gives others back that nobody uses; none that is not `durable`
    /// yet, whose descriptor a failed write-back is to be reported to.
    fn note(&self, segment: &Arc<Segment>, durable: u64, own_from: u64) -> Arc<VerifiedBits> {
        let mut maps = self.0.lock();
        let place = Arc::downgrade(segment);
        if let Some(map) = maps.iter().find(|map| map.segment.ptr_eq(&place)) {
            return Arc::clone(&map.seen);
        }
        maps.retain(|map| map.segment.strong_count() > 0);
        // Of a segment of this process nothing is verified.
        let from_disk = own_from.saturating_sub(segment.base_offset()).min(segment.len());
        let seen = Arc::new(VerifiedBits::of(from_disk));
        maps.push_back(ReadMap { segment: place, seen: Arc::clone(&seen) });
        for _ in MOST_MAPS..maps.len() {
            let Some(oldest) = maps.pop_front() else { break };
            // One in use is tried again when its turn comes.
            let keeps = |segment: &Segment| segment.end_offset() > durable || !segment.unmap();
            if oldest.segment.upgrade().is_some_and(|segment| keeps(&segment)) {
                maps.push_back(oldest);
            }
        }
        seen
    }
}

/// Which records of a segment have been verified: a bit for each [`SEEN_BYTES`] in which one begins.
#[derive(Debug)]
struct VerifiedBits(Box<[AtomicU64]>);

/// Fewer than the shortest record has.
const SEEN_BYTES: u64 = 64;

impl VerifiedBits {
    fn of(bytes: u64) -> Self {
        let words = (bytes / SEEN_BYTES / u64::from(u64::BITS) + 1) as usize;
        Self((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    #[inline]
    fn word(&self, at: u64) -> Option<(&AtomicU64, u64)> {
        let bit = at / SEEN_BYTES;
        let word = self.0.get((bit / u64::from(u64::BITS)) as usize)?;
        Some((word, 1 << (bit % u64::from(u64::BITS))))
    }

    #[inline]
    fn contains(&self, at: u64) -> bool {
        self.word(at).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    #[inline]
    fn insert(&self, at: u64) {
        if let Some((word, bit)) = self.word(at) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }
}

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
