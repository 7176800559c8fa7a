//! The segment that is written, as those who append to it hold it.
//!
//! The durable position never passes the published one:
//!
//! ```text
//! commitlog/00000000000000000000   record record ... record filler
//! commitlog/00000000001073741824   record record record record 0000000...      <- the active segment
//!                                         │             └ published: all before it is copied; readers see it
//!                                         └ durable: all before it is synced
//! ```
//!
//! Nothing here reaches a disk. Across threads: the put lock guards it; readers and the thread that prepares pages
//! hold a reference, and the last who lets go of a segment that was left unmaps it.

use std::sync::Arc;

use mqstore_format::BLANK_HEADER_BYTES;
use mqstore_io::Region;

use super::segment_list::Segment;
use mqstore_base::error::{IoContext, StoreError};

/// The segment that is written, and its map, which every append would have to ask for otherwise.
#[derive(Debug)]
pub(super) struct ActiveSegment {
    pub(super) segment: Arc<Segment>,
    pub(super) region: Region,
}

impl ActiveSegment {
    /// Gets a segment ready to be written to.
    pub(super) fn of(segment: Arc<Segment>) -> Result<Arc<Self>, StoreError> {
        let prepared = segment.file().and_then(|file| {
            // A segment that somebody else made may be sparse: a store into a hole of a full disk would
            // kill the process, an allocation is an error.
            if file.stat()?.allocated_bytes < segment.len() {
                file.allocate(segment.len())?;
            }
            segment.region()
        });
        let region = prepared.at_file(|| segment.path(), "mapping the active segment")?;
        Ok(Arc::new(Self { segment, region }))
    }
}

/// Whether `bytes` and a filler behind them fit in the `rest` of a segment.
pub(super) fn fits(rest: u64, bytes: u64) -> bool {
    bytes + BLANK_HEADER_BYTES as u64 <= rest
}
