//! The active segment and its map, shared by all appends.
//!
//! The durable offset never passes the published offset:
//!
//! ```text
//! commitlog/00000000000000000000   record record ... record filler
//! commitlog/00000000001073741824   record record record record 0000000 | hole  <- the active segment
//!                                         │             │              └ allocated: all before it has disk space
//!                                         │             └ published: all before it is copied; readers see it
//!                                         └ durable: all before it is synced
//! ```
//!
//! A record gets its log offset only after it and a filler after it have disk space. So a full disk refuses an append;
//! it never meets a write to the map, which would be a signal.
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
    /// Maps a segment for writing. It reserves no disk space: each append makes sure that it has enough.
    pub(super) fn of(segment: Arc<Segment>) -> Result<Arc<Self>, StoreError> {
        let region = segment.region().at_file(|| segment.path(), "mapping the active segment")?;
        Ok(Arc::new(Self { segment, region }))
    }

    /// Whether disk space is reserved for `bytes` after log offset `tail`, or for the whole segment.
    pub(super) fn is_allocated(&self, tail: u64, bytes: u64) -> bool {
        let allocated = self.segment.allocated();
        let end = (tail - self.segment.base_offset()).saturating_add(bytes);
        end <= allocated || allocated == self.segment.len()
    }
}

/// Whether `bytes` and a filler after them fit the `rest` of a segment.
pub(super) fn fits(rest: u64, bytes: u64) -> bool {
    bytes + BLANK_HEADER_BYTES as u64 <= rest
}
