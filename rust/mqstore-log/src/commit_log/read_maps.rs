//! The segments that are read through maps, and the set of their verified records.
//!
//! A segment is mapped at its first read and stays mapped; at most [`MOST_MAPS`] segments are mapped for readers alone.
//! For segments that this process did not write, one bit for each 64 bytes marks records whose checksums are known to
//! be right (2 MiB for a segment of 1 GiB). So a second reader does not verify them again.
//!
//! Nothing is on disk. Across threads: the list has a lock, the bits are atomic.

use std::collections::VecDeque;
use std::sync::Weak;

use mqstore_io::sync::{Arc, AtomicU64, Mutex, Ordering};

use super::segment_list::Segment;

/// Maximum number of segments mapped for reads: 64 GiB of address space with RocketMQ's segments, and 128 MiB of page
/// tables if every page was touched.
const MOST_MAPS: usize = 64;

/// Percentage of the memory that counts as page cache for messages. Source: `accessMessageInMemoryMaxRatio`.
const IN_MEMORY_PERCENT: u64 = 40;

/// Bytes before the end of the log that count as being in memory, on a machine with `memory_bytes` of memory.
pub(super) fn hot_bytes(memory_bytes: u64) -> u64 {
    memory_bytes / 100 * IN_MEMORY_PERCENT
}

/// Counts of the records read since the open.
#[derive(Debug, Default)]
pub struct ReadCounts {
    /// Records near the end of the log, which count as being in memory.
    pub hot: AtomicU64,
    /// Records further from the end.
    pub cold: AtomicU64,
    /// Largest distance of a read record from the end since the last query.
    pub behind: AtomicU64,
}

/// The segments that are read through maps, the oldest first.
#[derive(Debug, Default)]
pub(super) struct ReadMaps(Mutex<VecDeque<ReadMap>>);

#[derive(Debug)]
struct ReadMap {
    segment: Weak<Segment>,
    /// How often the file of the segment was replaced before.
    replaced: u64,
    seen: Arc<VerifiedBits>,
}

impl ReadMaps {
    /// Registers a segment for reads, and unmaps other segments that are not in use. A segment stays mapped until it is
    /// `durable`, because its descriptor must receive the report of a failed write-back. `replaced` is the number of
    /// replacements before the map: records of another file need another verification.
    pub(super) fn note(
        &self,
        (segment, replaced): (&Arc<Segment>, u64),
        durable: u64,
        own_from: u64,
    ) -> Arc<VerifiedBits> {
        // Records that this process wrote need no verification bits.
        let from_disk = own_from.saturating_sub(segment.base_offset()).min(segment.len());
        let new_bits = || Arc::new(VerifiedBits::of(from_disk));
        let mut maps = self.0.lock();
        let place = Arc::downgrade(segment);
        if let Some(map) = maps.iter_mut().find(|map| map.segment.ptr_eq(&place)) {
            if map.replaced < replaced {
                (map.replaced, map.seen) = (replaced, new_bits());
            }
            // A map of the replaced file is in use for a moment only.
            return if map.replaced == replaced { Arc::clone(&map.seen) } else { new_bits() };
        }
        maps.retain(|map| map.segment.strong_count() > 0);
        let seen = new_bits();
        maps.push_back(ReadMap { segment: place, replaced, seen: Arc::clone(&seen) });
        for _ in MOST_MAPS..maps.len() {
            let Some(oldest) = maps.pop_front() else { break };
            // A segment in use goes to the end of the list and is tried again later.
            let keeps = |segment: &Segment| segment.end_offset() > durable || !segment.unmap();
            if oldest.segment.upgrade().is_some_and(|segment| keeps(&segment)) {
                maps.push_back(oldest);
            }
        }
        seen
    }
}

/// The set of verified records of a segment: one bit for each [`SEEN_BYTES`] in which a record begins.
#[derive(Debug)]
pub(super) struct VerifiedBits(Box<[AtomicU64]>);

/// Bytes for each bit, less than the shortest record.
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
    pub(super) fn contains(&self, at: u64) -> bool {
        self.word(at).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    #[inline]
    pub(super) fn insert(&self, at: u64) {
        if let Some((word, bit)) = self.word(at) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }
}
