//! The active segment and its map, shared by all appends.
//!
//! The durable offset never passes the published offset:
//!
//! ```text
//! commitlog/00000000000000000000   record record ... record filler
//! commitlog/00000000001073741824   record record record record 0000000...      <- the active segment
//!                                         │             └ published: all before it is copied; readers see it
//!                                         └ durable: all before it is synced
//! ```
//!
//! This module does no I/O on records. Across threads: the put lock guards it. Readers and the thread that prepares
//! pages hold a reference; the last reference to an old segment unmaps it.

use std::sync::Arc;

use mqstore_format::BLANK_HEADER_BYTES;
use mqstore_io::Region;

use super::segment_list::Segment;
use mqstore_base::error::{IoContext, StoreError};

/// The active segment with its map, so that appends need not request the map each time.
#[derive(Debug)]
pub(super) struct ActiveSegment {
    pub(super) segment: Arc<Segment>,
    pub(super) region: Region,
}

impl ActiveSegment {
    /// Prepares a segment for writing.
    pub(super) fn of(segment: Arc<Segment>) -> Result<Arc<Self>, StoreError> {
        let prepared = segment.file().and_then(|file| {
            // A segment of another program may be sparse. On a full disk, a store into a hole would kill the process,
            // but an allocation only returns an error.
            if file.stat()?.allocated_bytes < segment.len() {
                file.allocate(segment.len())?;
            }
            segment.region()
        });
        let region = prepared.at_file(|| segment.path(), "mapping the active segment")?;
        Ok(Arc::new(Self { segment, region }))
    }
}

/// Whether `bytes` and a filler after them fit the `rest` of a segment.
pub(super) fn fits(rest: u64, bytes: u64) -> bool {
    bytes + BLANK_HEADER_BYTES as u64 <= rest
}
