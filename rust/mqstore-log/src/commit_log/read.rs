//! Reads of single records, and of many records that are close together.
//!
//! Every record that leaves this module is decoded, is at the log offset that it names, and either has correct
//! checksums or was appended by this process. In the writing process, records that are probably in memory are read
//! through maps (`mapped_reads`). All other reads are positional, and neighbouring records share one buffer.

use std::ops::Range;

use mqstore_format::{BLANK_HEADER_BYTES, Peek, peek};
use mqstore_io::MappedFileGuard;
use mqstore_io::sync::{Arc, Ordering, Raise};

use super::log::CommitLog;
use super::mapped_reads::MappedPart;
use super::scan::{ScanChecks, check_record, check_to_read};
use super::segment_list::{Segment, SegmentList};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::message::RecordBytes;
use mqstore_base::store_files::StoreFiles;

/// Bytes to read ahead when reads follow one another.
const AHEAD_BYTES: u64 = 256 << 10;

/// Maximum distance of two records that are fetched together with the bytes between them.
const NEAR_BYTES: u64 = 32 << 10;

/// Maximum bytes to request ahead in one call.
const EXPECTED_BYTES: u64 = 16 << 20;

/// Reads the record at `offset` and verifies it. `size_hint` is its size, if known.
///
/// # Errors
/// - [`StoreError::Corrupt`] if no valid record starts at `offset`.
/// - An error with [`StoreError::is_gone`] if this or another process deleted the segment and perhaps overwrote it.
pub fn read_record(
    files: &StoreFiles,
    list: &SegmentList,
    offset: u64,
    size_hint: usize,
) -> Result<RecordBytes, StoreError> {
    let both = |bytes: &[u8]| check_record(bytes, offset, ScanChecks { crc: true }).map(drop);
    read_checked(files, list, offset, size_hint, both)
}

/// Like [`read_record`], with the checks of a reader: if the record has two checksums, the one that covers the whole
/// record is enough.
fn read_for_reader(
    files: &StoreFiles,
    list: &SegmentList,
    offset: u64,
    size_hint: usize,
) -> Result<RecordBytes, StoreError> {
    read_checked(files, list, offset, size_hint, |bytes| check_to_read(bytes, offset).map(drop))
}

/// Reads the record at `offset`, which must pass `check`.
fn read_checked(
    files: &StoreFiles,
    list: &SegmentList,
    offset: u64,
    size_hint: usize,
    check: impl Fn(&[u8]) -> Result<(), String>,
) -> Result<RecordBytes, StoreError> {
    let segment = list.find(offset).ok_or_else(|| {
        StoreError::corrupt(&files.commit_log(), offset, "no segment holds this log offset")
    })?;
    let _held = segment.hold();
    read_in(segment, offset, size_hint, check).map_err(|error| {
        let path = segment.path();
        match (&error, files.vfs.stat(&path)) {
            (StoreError::Corrupt { .. }, Err(gone)) if gone.kind() == std::io::ErrorKind::NotFound => {
                StoreError::io(&path, "reading a record", gone)
            }
            _ => error,
        }
    })
}

fn read_in(
    segment: &Segment,
    offset: u64,
    size_hint: usize,
    check: impl Fn(&[u8]) -> Result<(), String>,
) -> Result<RecordBytes, StoreError> {
    let at = offset - segment.base_offset();
    let file = segment.file().at_file(|| segment.path(), "opening a log segment")?;
    let available = segment.end_offset() - offset;
    let wanted = (size_hint.max(512) as u64).min(available) as usize;
    let mut buffer = file.read_new(wanted, at).at_file(|| segment.path(), "reading a record")?;
    let size = match buffer.get(..BLANK_HEADER_BYTES).map(peek) {
        Some(Ok(Peek::Record { size, .. })) if u64::from(size) <= available => size as usize,
        _ => return Err(corrupt(segment, at, "no record starts here")),
    };
    if size > buffer.len() {
        let done = buffer.len();
        buffer.resize(size, 0);
        let rest = buffer.get_mut(done..).unwrap_or_default();
        file.read_exact_at(rest, at + done as u64).at_file(|| segment.path(), "reading a record")?;
    }
    buffer.truncate(size);
    check(&buffer).map_err(|reason| corrupt(segment, at, reason))?;
    Ok(RecordBytes::Read(Arc::new(buffer), 0..size))
}

fn corrupt(segment: &Segment, at: u64, reason: impl Into<String>) -> StoreError {
    let (path, offset) = segment.real_place(at);
    StoreError::corrupt(&path, offset, reason)
}

/// Bytes to read for a record of unknown size.
const RECORD_GUESS_BYTES: usize = 4096;

/// Reads records one by one; consecutive records share a buffer.
pub struct RecordReader {
    /// The log, if this process writes it.
    log: Option<Arc<CommitLog>>,
    /// The mapped part that was read last.
    part: Option<MappedPart>,
    /// Whether reads change the log's counts.
    counts: bool,
    /// Records near the end of the log that were read and not yet added to the log's counts.
    hot: u64,
    list: Arc<SegmentList>,
    limit: u64,
    buffer: Arc<Vec<u8>>,
    start: u64,
    last_end: u64,
    /// Keeps the segment that was read last from being overwritten.
    held: Option<MappedFileGuard>,
}

impl RecordReader {
    /// Creates a reader of the segments of `list` before `limit`, and of `log` if this process writes it.
    pub fn new(log: Option<Arc<CommitLog>>, list: Arc<SegmentList>, limit: u64) -> Self {
        Self {
            log,
            part: None,
            counts: true,
            hot: 0,
            list,
            limit,
            buffer: Arc::default(),
            start: 0,
            last_end: 0,
            held: None,
        }
    }

    /// Leaves the log's counts unchanged, for internal reads.
    #[must_use]
    pub fn without_counting(mut self) -> Self {
        self.counts = false;
        self
    }

    /// Log offset at which the reader stops.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the record at `offset`, whatever its size.
    pub fn record_at(&mut self, files: &StoreFiles, offset: u64) -> Result<RecordBytes, StoreError> {
        if let Some(bytes) = self.in_memory(offset, None) {
            return Ok(bytes);
        }
        self.count(offset);
        let bytes = read_for_reader(files, &self.list, offset, RECORD_GUESS_BYTES)?;
        self.note_used(offset);
        Ok(bytes)
    }

    /// Takes note that the record at `offset` was read from the file and is valid, so that its map can be used.
    fn note_used(&self, offset: u64) {
        if let Some(part) = self.part.as_ref().filter(|part| part.holds(offset)) {
            part.note_used(offset);
        }
    }

    /// Returns the record from a map, if it is in memory and valid.
    fn in_memory(&mut self, offset: u64, size: Option<u32>) -> Option<RecordBytes> {
        let part = self.part_of(offset)?;
        let bytes = part.record(offset, size.or_else(|| part.size_at(offset))?)?;
        self.hot += 1;
        Some(bytes)
    }

    fn part_of(&mut self, offset: u64) -> Option<&MappedPart> {
        let log = self.log.as_ref()?;
        if !self.part.as_ref().is_some_and(|part| part.holds(offset)) {
            self.part = log.mapped(offset);
        }
        self.part.as_ref()
    }

    /// Returns the record of `size` bytes at `offset`.
    pub fn record(&mut self, files: &StoreFiles, offset: u64, size: u32) -> Result<RecordBytes, StoreError> {
        if let Some(bytes) = self.in_memory(offset, Some(size)) {
            return Ok(bytes);
        }
        self.count(offset);
        let bytes = self.read_from_file(files, offset, size)?;
        self.note_used(offset);
        Ok(bytes)
    }

    /// Whether [`Self::prefetch`] would do anything for a record at or after `offset`.
    pub fn may_be_cold(&self, offset: u64) -> bool {
        self.log.as_ref().is_none_or(|log| log.may_be_cold(offset))
    }

    fn is_cold(&mut self, offset: u64) -> bool {
        self.may_be_cold(offset) && !self.part_of(offset).is_some_and(|part| part.was_used(offset))
    }

    /// Asks the system to fetch the records at `places` (log offset and size) in parallel, if they are probably on the
    /// disk. A size of 0 means unknown. Requests at most 16 MiB; the rest is ignored.
    pub fn prefetch(&mut self, places: impl Iterator<Item = (u64, u32)>) {
        let places: Vec<_> =
            places.filter(|(offset, _)| *offset < self.limit && self.is_cold(*offset)).collect();
        // A single record is read at once.
        if places.len() < 2 {
            return;
        }
        let mut left = EXPECTED_BYTES;
        for mut piece in pieces(places) {
            while let Some(segment) = self.list.find(piece.start).filter(|_| left > 0 && !piece.is_empty()) {
                let len = (piece.end.min(segment.end_offset()) - piece.start).min(left);
                // The read itself will find and report this error.
                let Ok(file) = segment.file() else { return };
                let _ = file.expect_read(piece.start - segment.base_offset(), len);
                left -= len;
                piece.start += len;
            }
        }
    }

    /// Counts a record that is read from the file.
    fn count(&mut self, offset: u64) {
        let Some(log) = self.log.as_ref().filter(|_| self.counts) else { return };
        match log.cold_distance(offset) {
            Some(behind) => {
                log.read_counts().cold.fetch_add(1, Ordering::Relaxed);
                log.read_counts().behind.raise(behind, Ordering::Relaxed);
            }
            None => self.hot += 1,
        }
    }

    fn read_from_file(
        &mut self,
        files: &StoreFiles,
        offset: u64,
        size: u32,
    ) -> Result<RecordBytes, StoreError> {
        let near = offset.checked_sub(self.last_end).is_some_and(|gap| gap < NEAR_BYTES) && self.last_end > 0;
        self.last_end = offset + u64::from(size);
        self.hold(offset);
        if !near || u64::from(size) > AHEAD_BYTES {
            return read_for_reader(files, &self.list, offset, size as usize);
        }
        if let Some(bytes) = self.buffered(offset, size) {
            return Ok(bytes);
        }
        let Some(segment) = self.list.find(offset) else {
            return read_for_reader(files, &self.list, offset, size as usize);
        };
        let end = segment.end_offset().min(self.limit).min(offset + AHEAD_BYTES);
        let file = segment.file().at_file(|| segment.path(), "opening a log segment")?;
        let buffer = file
            .read_new(end.saturating_sub(offset) as usize, offset - segment.base_offset())
            .at_file(|| segment.path(), "reading records")?;
        self.buffer = Arc::new(buffer);
        self.start = offset;
        match self.buffered(offset, size) {
            Some(bytes) => Ok(bytes),
            None => read_for_reader(files, &self.list, offset, size as usize),
        }
    }

    /// Releases the segment that was read last.
    pub fn release(&mut self) {
        self.held = None;
        self.part = None;
        if let Some(log) = self.log.as_ref().filter(|_| self.counts) {
            log.read_counts().hot.fetch_add(std::mem::take(&mut self.hot), Ordering::Relaxed);
        }
    }

    fn hold(&mut self, offset: u64) {
        let holds = |guard: &MappedFileGuard| (guard.base_offset()..guard.end_offset()).contains(&offset);
        if !self.held.as_ref().is_some_and(holds) {
            self.held = self.list.find(offset).and_then(Segment::hold);
        }
    }

    /// Returns the record from the buffer, if it is completely there and valid.
    fn buffered(&self, offset: u64, size: u32) -> Option<RecordBytes> {
        let at = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        let range = at..at.checked_add(size as usize)?;
        let bytes = self.buffer.get(range.clone())?;
        check_to_read(bytes, offset).ok()?;
        Some(RecordBytes::Read(Arc::clone(&self.buffer), range))
    }
}

/// Returns the ranges of the log that contain the records at `places`; neighbouring records share a range.
fn pieces(mut places: Vec<(u64, u32)>) -> Vec<Range<u64>> {
    places.sort_unstable();
    let mut pieces: Vec<Range<u64>> = Vec::new();
    for (offset, size) in places {
        let size = if size == 0 { RECORD_GUESS_BYTES as u64 } else { u64::from(size) };
        match pieces.last_mut().filter(|piece| offset < piece.end + NEAR_BYTES) {
            Some(piece) => piece.end = piece.end.max(offset + size),
            None => pieces.push(offset..offset + size),
        }
    }
    pieces
}

impl Drop for RecordReader {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_asked_for_together() {
        assert_eq!(pieces(vec![]), []);
        let near = NEAR_BYTES;
        // Unsorted places: one directly after another, one inside another, one just too far away, one of unknown size.
        let places = [(5000, 100), (0, 100), (10, 20), (5100 + near, 7), (9 * near, 0), (100 + near, 1)];
        let guess = RECORD_GUESS_BYTES as u64;
        assert_eq!(pieces(places[..4].to_vec()), [0..5100, 5100 + near..5107 + near]);
        assert_eq!(pieces(places.to_vec()), [0..5107 + near, 9 * near..9 * near + guess]);
    }
}
