//! Reading single records, and many that lie close together.
//!
//! Every record that leaves this module has been decoded, lies where it says that it lies, and its
//! checksums hold, or was appended by this process. In the process that writes the log what is probably in
//! memory is read there (`maps`); else reads are positional, and neighbours are served from one buffer that
//! they share.

use std::ops::Range;

use mqstore_format::{BLANK_HEADER_BYTES, Peek, peek};
use mqstore_io::MappedFileGuard;
use mqstore_io::sync::{Arc, Ordering, Raise};

use super::log::CommitLog;
use super::mapped_reads::MappedPart;
use super::scan::{ScanChecks, check_record, check_to_read, read_up_to};
use super::segment_list::{Segment, SegmentList};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::message::RecordBytes;
use mqstore_base::store_files::StoreFiles;

/// Bytes that are read ahead once reads turn out to follow one another.
const AHEAD_BYTES: u64 = 256 << 10;

/// Records that are closer to each other than this are fetched in one piece, with what lies between them.
const NEAR_BYTES: u64 = 32 << 10;

/// The most that is asked for ahead at once.
const EXPECTED_BYTES: u64 = 16 << 20;

/// Reads the record at `offset`, which must hold together; `size_hint` is its size where known.
///
/// # Errors
/// [`StoreError::Corrupt`]; one that [`StoreError::is_gone`] when the segment was deleted, and perhaps
/// overwritten, by this process or another.
pub fn read_record(
    files: &StoreFiles,
    list: &SegmentList,
    offset: u64,
    size_hint: usize,
) -> Result<RecordBytes, StoreError> {
    let segment = list.find(offset).ok_or_else(|| {
        StoreError::corrupt(&files.commit_log(), offset, "no segment holds this log offset")
    })?;
    let _held = segment.hold();
    read_in(segment, offset, size_hint).map_err(|error| {
        let path = segment.path();
        match (&error, files.vfs.stat(&path)) {
            (StoreError::Corrupt { .. }, Err(gone)) if gone.kind() == std::io::ErrorKind::NotFound => {
                StoreError::io(&path, "reading a record", gone)
            }
            _ => error,
        }
    })
}

fn read_in(segment: &Segment, offset: u64, size_hint: usize) -> Result<RecordBytes, StoreError> {
    let at = offset - segment.base_offset();
    let file = segment.file().at_file(|| segment.path(), "opening a log segment")?;
    let available = segment.end_offset() - offset;
    let mut buffer = vec![0; (size_hint.max(512) as u64).min(available) as usize];
    let read = read_up_to(file.as_ref(), &mut buffer, at).at_file(|| segment.path(), "reading a record")?;
    buffer.truncate(read);
    let size = match buffer.get(..BLANK_HEADER_BYTES).map(peek) {
        Some(Ok(Peek::Record { size, .. })) if u64::from(size) <= available => size as usize,
        _ => return Err(StoreError::corrupt(&segment.path(), at, "no record starts here")),
    };
    if size > buffer.len() {
        let done = buffer.len();
        buffer.resize(size, 0);
        let rest = buffer.get_mut(done..).unwrap_or_default();
        file.read_exact_at(rest, at + done as u64).at_file(|| segment.path(), "reading a record")?;
    }
    buffer.truncate(size);
    check_record(&buffer, offset, ScanChecks { crc: true })
        .map_err(|reason| StoreError::corrupt(&segment.path(), at, reason))?;
    Ok(RecordBytes::Read(Arc::new(buffer), 0..size))
}

/// Bytes read for a record whose size is not known.
const RECORD_GUESS_BYTES: usize = 4096;

/// Reads records one by one; those that follow one another share a buffer.
pub struct RecordReader {
    /// The log, where this process writes it.
    log: Option<Arc<CommitLog>>,
    /// What was read last in memory.
    part: Option<MappedPart>,
    /// Whether what it reads is in the log's counts.
    counts: bool,
    /// Records near the end of the log that were read and are not in the log's counts yet.
    hot: u64,
    list: Arc<SegmentList>,
    limit: u64,
    buffer: Arc<Vec<u8>>,
    start: u64,
    last_end: u64,
    /// Keeps the segment that was read last from being deleted for a while.
    held: Option<MappedFileGuard>,
}

impl RecordReader {
    /// A reader of the segments of `list` below `limit`, of `log` where this process writes it.
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

    /// The same, for looks at records that nobody reads: they are left out of the log's counts.
    #[must_use]
    pub fn without_counting(mut self) -> Self {
        self.counts = false;
        self
    }

    /// Where it stops reading.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The record at `offset`, whatever its size.
    pub fn record_at(&mut self, files: &StoreFiles, offset: u64) -> Result<RecordBytes, StoreError> {
        if let Some(bytes) = self.in_memory(offset, None) {
            return Ok(bytes);
        }
        self.count(offset);
        read_record(files, &self.list, offset, RECORD_GUESS_BYTES)
    }

    /// The record in memory, if it is there and holds together.
    fn in_memory(&mut self, offset: u64, size: Option<u32>) -> Option<RecordBytes> {
        let part = self.part_of(offset)?;
        let bytes = part.record(offset, size.or_else(|| part.size_at(offset))?)?;
        self.hot += 1;
        Some(bytes)
    }

    /// The part of the log in memory that `offset` lies in.
    fn part_of(&mut self, offset: u64) -> Option<&MappedPart> {
        let log = self.log.as_ref()?;
        if !self.part.as_ref().is_some_and(|part| part.holds(offset)) {
            self.part = log.mapped(offset);
        }
        self.part.as_ref()
    }

    /// The record of `size` bytes at `offset`.
    pub fn record(&mut self, files: &StoreFiles, offset: u64, size: u32) -> Result<RecordBytes, StoreError> {
        if let Some(bytes) = self.in_memory(offset, Some(size)) {
            return Ok(bytes);
        }
        self.count(offset);
        self.read_from_file(files, offset, size)
    }

    /// Whether [`Self::expect`] would do anything for a record at `offset` or behind it.
    pub fn may_be_cold(&self, offset: u64) -> bool {
        self.log.as_ref().is_none_or(|log| log.may_be_cold(offset))
    }

    fn is_cold(&mut self, offset: u64) -> bool {
        self.may_be_cold(offset) && !self.part_of(offset).is_some_and(|part| part.was_used(offset))
    }

    /// Asks the system for the records at `places`, log offsets and sizes, that are going to be read and are probably
    /// on the disk: it fetches them side by side. A size of 0 stands for one that is not known. Of very many
    /// bytes only the first are asked for.
    pub fn expect(&mut self, places: impl Iterator<Item = (u64, u32)>) {
        let places = places.filter(|(offset, _)| *offset < self.limit && self.is_cold(*offset)).collect();
        let mut left = EXPECTED_BYTES;
        for mut piece in pieces(places) {
            while let Some(segment) = self.list.find(piece.start).filter(|_| left > 0 && !piece.is_empty()) {
                let len = (piece.end.min(segment.end_offset()) - piece.start).min(left);
                // What is wrong here, the reads will find and say.
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
            return read_record(files, &self.list, offset, size as usize);
        }
        if let Some(bytes) = self.buffered(offset, size) {
            return Ok(bytes);
        }
        let Some(segment) = self.list.find(offset) else {
            return read_record(files, &self.list, offset, size as usize);
        };
        let end = segment.end_offset().min(self.limit).min(offset + AHEAD_BYTES);
        let mut buffer = vec![0; end.saturating_sub(offset) as usize];
        let file = segment.file().at_file(|| segment.path(), "opening a log segment")?;
        let read = read_up_to(file.as_ref(), &mut buffer, offset - segment.base_offset())
            .at_file(|| segment.path(), "reading records")?;
        buffer.truncate(read);
        self.buffer = Arc::new(buffer);
        self.start = offset;
        match self.buffered(offset, size) {
            Some(bytes) => Ok(bytes),
            None => read_record(files, &self.list, offset, size as usize),
        }
    }

    /// Lets go of the segment that was read last.
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

    /// The record from the buffer, if all of it is there and holds together.
    fn buffered(&self, offset: u64, size: u32) -> Option<RecordBytes> {
        let at = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        let range = at..at.checked_add(size as usize)?;
        let bytes = self.buffer.get(range.clone())?;
        check_to_read(bytes, offset).ok()?;
        Some(RecordBytes::Read(Arc::clone(&self.buffer), range))
    }
}

/// The parts of the log that records at `places` lie in, neighbours together.
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
        // In any order, one behind the other, one within the other, one just too far away, one of unknown size.
        let places = [(5000, 100), (0, 100), (10, 20), (5100 + near, 7), (9 * near, 0), (100 + near, 1)];
        let guess = RECORD_GUESS_BYTES as u64;
        assert_eq!(pieces(places[..4].to_vec()), [0..5100, 5100 + near..5107 + near]);
        assert_eq!(pieces(places.to_vec()), [0..5107 + near, 9 * near..9 * near + guess]);
    }
}
