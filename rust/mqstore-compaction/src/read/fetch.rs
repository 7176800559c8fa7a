//! Reads records of the commit log at known log offsets.
//!
//! Owns the access to the records that the units of a queue point to. Writes nothing. It has two ways:
//!
//! ```text
//! queue   [p0 s0] [p1 s1]  -      -     [p4 s4]       the units of the needed records
//! log     |  r0  |  r1  | others' | ..  |  r4  |
//! read    '---- one read ----'          '- one -'     by position; records close together share one read
//! map     read in place, and the next records are prefetched into the CPU caches
//! ```
//!
//! A read by position skips records that are not needed, unless they are so short that another call costs more. Maps
//! are those of the process that writes the log, for segments that it has in memory; see [`CommitLog::mapped`]. For any
//! problem with a place the answer is `None`. Then the caller walks the log itself, which reports the damage.

use std::sync::Arc;

use mqstore_format::{BLANK_HEADER_BYTES, Peek, RecordView, peek};
use mqstore_io::{RegionView, expect_read};

use mqstore_base::error::{IoContext, StoreError};
use mqstore_log::commit_log::{CommitLog, MappedPart, ScanChecks, SegmentList, check_full, check_record};

/// Bytes of one read: they are still in the CPU caches when their checksums are computed.
const PIECE_BYTES: u64 = 256 << 10;

/// Maximum bytes between two records that one read covers, instead of another call.
const GAP_BYTES: u64 = 2 << 10;

/// Bytes of a record to prefetch.
const AHEAD_BYTES: usize = 4 << 10;

/// Distance of the prefetch, in records.
const AHEAD: usize = 2;

/// The place of a record, from its queue unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordPlace {
    pub(crate) queue_offset: i64,
    pub(crate) position: u64,
    pub(crate) size: u32,
    /// End of the record of the unit before it.
    pub(crate) good_end: u64,
    /// Number and bytes of the skipped records between the previous needed record and this one.
    pub(crate) passed: (u64, u64),
}

impl RecordPlace {
    fn end(&self) -> u64 {
        self.position.saturating_add(u64::from(self.size))
    }
}

/// The checksums to verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VerifyLevel {
    /// One checksum: of the complete record if it has one, otherwise of its body.
    Once,
    /// All checksums, because a copy of the record gets a new one.
    All,
}

/// Reads records; see the module's text.
pub(crate) struct RecordFetcher<'a> {
    list: &'a SegmentList,
    log: Option<&'a Arc<CommitLog>>,
    limit: u64,
    verify: VerifyLevel,
    mapped: Option<MappedSegment>,
    buffer: Vec<u8>,
    start: u64,
}

/// A mapped segment, up to the published offset.
struct MappedSegment {
    bytes: RegionView,
    base: u64,
    /// Keeps the segment from being unmapped.
    _part: MappedPart,
}

impl MappedSegment {
    fn bytes(&self, place: &RecordPlace) -> Option<&[u8]> {
        let at = usize::try_from(place.position.checked_sub(self.base)?).ok()?;
        self.bytes.get(at..at.checked_add(place.size as usize)?)
    }
}

impl<'a> RecordFetcher<'a> {
    /// Creates a fetcher for records of `list` before the log offset `limit`; it uses the maps of `log`, if given.
    pub(crate) fn new(
        list: &'a SegmentList,
        log: Option<&'a Arc<CommitLog>>,
        limit: u64,
        verify: VerifyLevel,
    ) -> Self {
        Self { list, log, limit, verify, mapped: None, buffer: Vec::new(), start: 0 }
    }

    /// Returns the first of `places`; the others are needed next. `None` if no complete record of that size is at this
    /// log offset.
    pub(crate) fn record(&mut self, places: &[RecordPlace]) -> Result<Option<RecordView<'_>>, StoreError> {
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

    fn verified<'b>(&self, bytes: &'b [u8], place: &RecordPlace) -> Option<RecordView<'b>> {
        let view = match self.verify {
            VerifyLevel::Once => check_full(bytes, place.position),
            VerifyLevel::All => check_record(bytes, place.position, ScanChecks { crc: true }),
        };
        view.ok().filter(|view| view.size == place.size && view.queue_offset == place.queue_offset)
    }

    /// Whether `place` is in the mapped segment; maps another segment if needed.
    fn map(&mut self, place: &RecordPlace) -> bool {
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

    fn is_read(&self, place: &RecordPlace) -> bool {
        place.position >= self.start && place.end() <= self.start + self.buffer.len() as u64
    }

    /// Reads the first place and close places after it; returns whether the first one is complete.
    fn read(&mut self, places: &[RecordPlace]) -> Result<bool, StoreError> {
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
            // A unit alone must not lead to a large allocation.
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
