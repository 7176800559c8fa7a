//! The segment that is written, as those who append to it hold it.
//!
//! An append takes its queue offset, position and time under one lock and copies outside it. Each of these three
//! positions stays below the one above it:
//!
//! ```text
//! commitlog/00000000000000000000   record record ... record filler
//! commitlog/00000000001073741824   record record record record 0000000...      <- the active segment
//!                                         │      │      └ reserved: being copied
//!                                         │      └ published: all before it is copied; readers see it
//!                                         └ durable: all before it is synced
//! ```
//!
//! Nothing here reaches a disk. Across threads: whoever has drawn a place in the segment holds it, with its
//! map, until the record is copied; the last who lets go of a segment that was left unmaps it.

use std::sync::Arc;

use mqstore_io::Region;
use mqstore_io::sync::{AtomicUsize, Ordering};

use super::segment_list::Segment;

/// The segment that is written, and its map, which every append would have to ask for otherwise.
///
/// Aligned so that its reference count, which changes with each append, lies in another cache line.
#[derive(Clone, Debug)]
#[repr(align(128))]
pub(super) struct ActiveSegment {
    pub(super) segment: Arc<Segment>,
    pub(super) region: Region,
}

/// The active segment several times, each with a reference count of its own: threads that append keep it
/// from being unmapped, and would otherwise take one count from each other twice an append.
#[derive(Debug, Default)]
pub(super) struct ShardedActive([Option<Arc<ActiveSegment>>; SHARES]);

/// More than that many threads that append at the same moment share counts.
const SHARES: usize = 8;

/// The number of the next thread that appends.
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static SHARE: usize = THREADS.fetch_add(1, Ordering::Relaxed) % SHARES;
}

impl ShardedActive {
    pub(super) fn of(active: Option<&Arc<ActiveSegment>>) -> Self {
        Self(std::array::from_fn(|_| active.map(|active| Arc::new(ActiveSegment::clone(active)))))
    }

    /// The one that this thread shares with the fewest others.
    #[inline]
    pub(super) fn local(&self) -> Option<Arc<ActiveSegment>> {
        self.0.get(SHARE.with(|share| *share))?.clone()
    }
}
