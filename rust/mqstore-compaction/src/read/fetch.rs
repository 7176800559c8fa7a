//! Fetching records of the commit log whose places are known.
//!
//! Owns how a walk along a queue gets at the bytes that the entries point to. Writes nothing. Two ways:
//!
//! ```text
//! queue   [p0 s0] [p1 s1]  -      -     [p4 s4]       the entries whose records are wanted
//! log     |  r0  |  r1  | others' | ..  |  r4  |
//! read    '---- one read ----'          '- one -'     by position; places that lie close share a read
//! map     looked at where they are, with those ahead on their way into the processor's caches
//! ```
//!
//! By position what is not wanted is not read, unless it is so short that a call costs more. Maps are those of
//! the process that writes the log, for what it has in memory; see [`CommitLog::mapped`]. Whatever is odd about
//! a place is answered by `None`: the caller then walks the log itself, which names the damage.

use std::sync::Arc;

use mqstore_format::{BLANK_HEADER_BYTES, Peek, RecordView, peek};
use mqstore_io::{RegionView, expect_read};

use mqstore_base::error::{IoContext, StoreError};
use mqstore_log::commit_log::{CommitLog, MappedPart, ScanChecks, SegmentList, check_full, check_record};

/// Bytes that are read at once: they are still in the nearest caches when their checksums are made.
const PIECE_BYTES: u64 = 256 << 10;

/// Bytes between two records that are read rather than left out by another call.
const GAP_BYTES: u64 = 2 << 10;

/// Bytes of a record that are asked for ahead.
const AHEAD_BYTES: usize = 4 << 10;

/// How many records ahead that is.
const AHEAD: usize = 2;

/// Where a record lies, by its queue entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) queue_offset: i64,
    pub(crate) position: u64,
    pub(crate) size: u32,
    /// Where the record of the entry before it ends.
    pub(crate) good_end: u64,
    /// Records between the wanted one before it and this one, and their bytes.
    pub(crate) passed: (u64, u64),
}

impl Place {
    fn end(&self) -> u64 {
        self.position.saturating_add(u64::from(self.size))
    }
}

/// What is verified of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VerifyLevel {
    /// One checksum that covers its body and, where there is one, all of it.
    Once,
    /// Every checksum it has: a copy of it gets a new one.
    All,
}

/// Fetches records; see the module's text.
pub(crate) struct RecordFetcher<'a> {
    list: &'a SegmentList,
    log: Option<&'a Arc<CommitLog>>,
    limit: u64,
    verify: VerifyLevel,
    mapped: Option<MappedSegment>,
    buffer: Vec<u8>,
    start: u64,
}

/// A mapped segment, as far as it is published.
struct MappedSegment {
    bytes: RegionView,
    base: u64,
    /// Keeps the segment as it is.
    _part: MappedPart,
}

impl MappedSegment {
    fn bytes(&self, place: &Place) -> Option<&[u8]> {
        let at = usize::try_from(place.position.checked_sub(self.base)?).ok()?;
        self.bytes.get(at..at.checked_add(place.size as usize)?)
    }
}

impl<'a> RecordFetcher<'a> {
    /// Records of `list` before the log offset `limit`; through the maps of `log` where there is one.
    pub(crate) fn new(
        list: &'a SegmentList,
        log: Option<&'a Arc<CommitLog>>,
        limit: u64,
        verify: VerifyLevel,
    ) -> Self {
        Self { list, log, limit, verify, mapped: None, buffer: Vec::new(), start: 0 }
    }

    /// The first of `places`, which go on with those that are wanted next; `None` when no whole record of that size
    /// lies there.
    pub(crate) fn record(&mut self, places: &[Place]) -> Result<Option<RecordView<'_>>, StoreError> {
        let Some(place) = places.first().filter(|place| place.end() <= self.limit) else {
            return Ok(None);
        };
        if self.map(place) {
            let Some(mapped) = &self.mapped else { return Ok(None) };
            if let Some(ahead) = places.get(AHEAD).and_then(|place| mapped.bytes(place)) {
                expect_read(ahead.get(..AHEAD_BYTES).unwrap_or(ahead));
            }
            return Ok(mapped.bytes(place).and_then(|bytes| self.verified(bytes, place)));
        }
        if !self.is_read(place) && !self.read(places)? {
            return Ok(None);
        }
        let at = place.position.saturating_sub(self.start) as usize;
        let bytes = self.buffer.get(at..at + place.size as usize);
        Ok(bytes.and_then(|bytes| self.verified(bytes, place)))
    }

    fn verified<'b>(&self, bytes: &'b [u8], place: &Place) -> Option<RecordView<'b>> {
        let view = match self.verify {
            VerifyLevel::Once => check_full(bytes, place.position),
            VerifyLevel::All => check_record(bytes, place.position, ScanChecks { crc: true }),
        };
        view.ok().filter(|view| view.size == place.size && view.queue_offset == place.queue_offset)
    }

    /// Whether `place` lies in the mapped segment, which may be another one from now on.
    fn map(&mut self, place: &Place) -> bool {
        let Some(log) = self.log else { return false };
        if self.mapped.as_ref().is_some_and(|mapped| mapped.bytes(place).is_some()) {
            return true;
        }
        self.mapped = log.mapped(place.position).and_then(|part| {
            let (base, bytes) = part.published()?;
            Some(MappedSegment { bytes, base, _part: part })
        });
        self.mapped.as_ref().is_some_and(|mapped| mapped.bytes(place).is_some())
    }

    fn is_read(&self, place: &Place) -> bool {
        place.position >= self.start && place.end() <= self.start + self.buffer.len() as u64
    }

    /// Reads the first place and those behind it that lie close; whether the first is all there.
    fn read(&mut self, places: &[Place]) -> Result<bool, StoreError> {
        let Some(first) = places.first() else { return Ok(false) };
        self.buffer.clear();
        let Some(segment) = self.list.find(first.position) else { return Ok(false) };
        let border = segment.end_offset().min(self.limit);
        let mut end = first.end();
        if end > border {
            return Ok(false);
        }
        for next in places.get(1..).unwrap_or_default() {
            let close = next.position >= end && next.position - end <= GAP_BYTES;
            if !close || next.end() > border || next.end() - first.position > PIECE_BYTES {
                break;
            }
            end = next.end();
        }
        let file = segment.file().at_file(|| segment.path(), "opening a log segment")?;
        if end - first.position > PIECE_BYTES {
            // An entry alone does not decide about so much memory.
            let mut head = [0; BLANK_HEADER_BYTES];
            let read = file.read_exact_at(&mut head, first.position - segment.base_offset());
            read.at_file(|| segment.path(), "reading the log")?;
            if !matches!(peek(&head), Ok(Peek::Record { size, .. }) if size == first.size) {
                return Ok(false);
            }
        }
        self.buffer.resize((end - first.position) as usize, 0);
        self.start = first.position;
        match file.read_exact_at(&mut self.buffer, first.position - segment.base_offset()) {
            Ok(()) => Ok(true),
            Err(error) => {
                self.buffer.clear();
                if error.kind() == std::io::ErrorKind::UnexpectedEof {
                    return Ok(false);
                }
                Err(StoreError::io(&segment.path(), "reading the log", error))
            }
        }
    }
}
