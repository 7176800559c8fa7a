//! The segments that are read through maps, and which of their records have been verified.
//!
//! Segments are mapped at their first read and stay so; of those that were mapped for readers alone, at most
//! [`MOST_MAPS`]. A bit for each 64 bytes of a segment that this process did not write remembers the records
//! whose checksums are known to be right (2 MiB for a segment of 1 GiB), so that the second reader does not verify
//! them again.
//!
//! Nothing on disk. Across threads: the list has a lock, the bits are atomic.

use std::collections::VecDeque;
use std::sync::Weak;

use mqstore_io::sync::{Arc, AtomicU64, Mutex, Ordering};

use super::segment_list::Segment;

/// Segments that are mapped because they were read: 64 GiB of address space with segments as RocketMQ's,
/// and 128 MiB of page tables if each of their pages was touched.
const MOST_MAPS: usize = 64;

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
    pub(super) fn note(&self, segment: &Arc<Segment>, durable: u64, own_from: u64) -> Arc<VerifiedBits> {
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
pub(super) struct VerifiedBits(Box<[AtomicU64]>);

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
