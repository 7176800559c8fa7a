//! The record scanner, which walks the log from record to record.
//!
//! Recovery, dispatch, verification, derived queues and plain reads all use [`LogScanner`], so that they agree on what
//! a record is. It reads by position in windows, so that a file that shrinks meanwhile is an error and not a signal.
//!
//! Source: `CommitLog#checkMessageAndReturnSize`; this scanner also checks sizes of fillers and the position in a
//! record.

mod dispatch_runs;
mod outlines;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use mqstore_format::{
    BLANK_HEADER_BYTES, CrcCheck, MAGIC_V1, MAGIC_V2, MIN_RECORD_BYTES, Peek, RecordOutline, RecordView, peek,
};

pub use dispatch_runs::{Cut, RecordRun};

use super::segment_list::{Segment, SegmentList};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_io::switch;

/// Bytes that one positional read fetches while scanning.
const WINDOW_BYTES: usize = 1 << 20;

/// Bytes that are searched between two looks at who watches.
const WATCHED_BYTES: u64 = 16 << 20;

/// Bytes of a scan's first read.
const FIRST_WINDOW_BYTES: usize = 64 << 10;

/// Bytes in which the next record is looked for at first.
const FIRST_LOOK_BYTES: usize = 16 << 10;

/// What lies at one place of the log.
#[derive(Debug)]
pub enum ScanItem<'a> {
    /// A whole record whose checksums hold (as far as they were asked for).
    Record(RecordView<'a>),
    /// The filler at the end of a segment.
    Filler {
        /// Where it starts.
        offset: u64,
    },
    /// Nothing more was written, or the limit was reached.
    End {
        /// One past the last byte that was used.
        offset: u64,
    },
    /// Bytes that are neither.
    Damaged(Damage),
}

/// Bytes in the log that are no record, no filler and not zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The log offset.
    pub offset: u64,
    /// The segment's file.
    pub path: PathBuf,
    /// The offset in that file.
    pub file_offset: u64,
    /// The size that the header claims, when it is plausible; the next record may follow it.
    pub claimed_size: Option<u32>,
    /// What is wrong.
    pub reason: String,
}

impl Damage {
    /// Says that `bytes` from here on were passed over.
    pub fn skipped(&self, bytes: u64) -> String {
        let (path, offset, reason) = (self.path.display(), self.file_offset, &self.reason);
        format!("{path} at offset {offset}: {reason}; skipped {bytes} bytes")
    }
}

/// Which checks a scan makes on each record.
#[derive(Clone, Copy, Debug)]
pub struct ScanChecks {
    /// Whether to verify body and property CRC.
    pub crc: bool,
}

/// Walks the log.
///
/// Each offset of a segment has one of
///
/// ```text
/// size:4 magic:4 ...            a record; its own PHYSICALOFFSET must equal its offset
/// rest:4 0xCBD43194             filler; `rest` must be all that is left of the segment
/// 00000000 00000000             nothing was written from here on
/// anything else                 damage, or a record that a crash tore
/// ```
///
/// If the caller knows the end of the log, zeros before it are damage too: a page that was lost.
///
/// Only the dispatcher of the process that writes the log reads its newest segments through their maps
/// (`look_at_maps`). The writer would get the signal in any case, and the bytes below the limit of the
/// scan are published and never change.
#[derive(Debug)]
pub struct LogScanner {
    list: Arc<SegmentList>,
    checks: ScanChecks,
    position: u64,
    limit: u64,
    window: Window,
    /// Whether [`Self::cut`] takes bytes of mapped segments in place.
    maps: bool,
    /// The buffer of [`Self::rows`].
    row: Vec<u8>,
}

impl LogScanner {
    /// A scan from `start`, which must be the start of a record, a filler or a segment, up to `limit`.
    pub fn new(list: Arc<SegmentList>, start: u64, limit: u64, checks: ScanChecks) -> Self {
        Self { list, checks, position: start, limit, window: Window::default(), maps: false, row: Vec::new() }
    }

    /// Where the next item is looked for.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Lets the scan see a longer log: `list` and `limit` as they are now.
    pub fn extend(&mut self, list: Arc<SegmentList>, limit: u64) {
        self.list = list;
        self.limit = limit;
    }

    /// Lets the scan see `list`, up to where it would have ended anyway.
    pub fn renew(&mut self, list: Arc<SegmentList>) {
        self.list = list;
    }

    /// Ends the scan at `offset`.
    pub fn end_at(&mut self, offset: u64) {
        self.limit = offset;
        self.position = offset;
    }

    /// Goes on at `offset`.
    pub fn seek(&mut self, offset: u64) {
        self.position = offset;
    }

    /// From now on [`Self::cut`] takes bytes of mapped segments in place, without reading them. For the process that
    /// writes the log, and limits that are published positions.
    pub(crate) fn look_at_maps(&mut self) {
        self.maps = true;
    }

    /// From now on keeps the bytes that were read, for [`Self::take_previous_window`].
    pub(crate) fn retain_windows(&mut self) {
        self.window.keep = true;
    }

    /// The bytes that the last item was the first not to lie in, with the log offset of the first of
    /// them: every record that came before it since the last such window lies in there.
    pub(crate) fn take_previous_window(&mut self) -> Option<(u64, Vec<u8>)> {
        self.window.left.take()
    }

    /// The bytes that the last item lies in; the scan reads anew from here on.
    pub(crate) fn take_window(&mut self) -> (u64, Vec<u8>) {
        (self.window.start, std::mem::take(&mut self.window.buffer))
    }

    /// Takes a buffer to read into.
    pub(crate) fn reuse(&mut self, buffer: Vec<u8>) {
        self.window.spare = buffer;
    }

    /// The next item. After [`ScanItem::Damaged`] the position stays; call [`Self::seek`] or
    /// [`Self::skip`] to go on. After [`ScanItem::End`] it stays too.
    pub fn next_item(&mut self) -> Result<ScanItem<'_>, StoreError> {
        let position = self.position;
        if position >= self.limit {
            return Ok(ScanItem::End { offset: self.limit });
        }
        let Some(segment) = self.list.find(position).cloned() else {
            return Ok(self.between_segments(position));
        };
        let rest = segment.end_offset() - position;
        let end = segment.end_offset().min(self.limit);
        if end - position < BLANK_HEADER_BYTES as u64 {
            if end < segment.end_offset() {
                return Ok(ScanItem::End { offset: position });
            }
            return Ok(ScanItem::Damaged(damage(
                &segment,
                position,
                None,
                "less than a filler's 8 bytes are left",
            )));
        }
        let head = self.window.bytes(&segment, position, BLANK_HEADER_BYTES, end)?;
        match peek(head) {
            Ok(Peek::Zero) if self.limit == u64::MAX => Ok(ScanItem::End { offset: position }),
            Ok(Peek::Zero) => {
                let reason = format!("zeros, although the log goes on to offset {}", self.limit);
                Ok(ScanItem::Damaged(damage(&segment, position, None, reason)))
            }
            Ok(Peek::Blank { size }) if u64::from(size) == rest || !switch::on("scan.h6_filler_size") => {
                self.position = segment.end_offset();
                Ok(ScanItem::Filler { offset: position })
            }
            Ok(Peek::Blank { size }) => {
                let reason = format!("a filler says that {size} bytes are left of the segment; {rest} are");
                Ok(ScanItem::Damaged(damage(&segment, position, None, reason)))
            }
            Ok(Peek::Record { size, .. }) => self.record(&segment, position, size, rest),
            Ok(Peek::Invalid { size, magic }) => {
                let reason = format!("no record starts here: size {size}, magic {magic:#010x}");
                Ok(ScanItem::Damaged(damage(&segment, position, None, reason)))
            }
            Err(error) => Ok(ScanItem::Damaged(damage(&segment, position, None, error.to_string()))),
        }
    }

    fn between_segments(&self, position: u64) -> ScanItem<'_> {
        match self.list.next_from(position) {
            Some(next) if next.base_offset() < self.limit => ScanItem::Damaged(Damage {
                offset: position,
                path: next.path(),
                file_offset: 0,
                claimed_size: None,
                reason: format!("the segments from offset {position} to {} are missing", next.base_offset()),
            }),
            _ => ScanItem::End { offset: position },
        }
    }

    fn record(
        &mut self,
        segment: &Arc<Segment>,
        position: u64,
        size: u32,
        rest: u64,
    ) -> Result<ScanItem<'_>, StoreError> {
        if u64::from(size) > rest {
            let reason = format!("a record of {size} bytes starts where {rest} are left of the segment");
            return Ok(ScanItem::Damaged(damage(segment, position, None, reason)));
        }
        if position + u64::from(size) > self.limit {
            return Ok(ScanItem::End { offset: position });
        }
        let end = segment.end_offset().min(self.limit);
        let bytes = self.window.bytes(segment, position, size as usize, end)?;
        match check_record(bytes, position, self.checks) {
            Ok(view) => {
                self.position = position + u64::from(size);
                Ok(ScanItem::Record(view))
            }
            Err(error) => Ok(ScanItem::Damaged(damage(segment, position, Some(size), error))),
        }
    }

    /// Goes on at the next record behind `damage` that holds together, and answers where that is; `None`, with the
    /// position as it was, when there is none before the limit.
    pub fn skip(&mut self, damage: &Damage) -> Result<Option<u64>, StoreError> {
        let next = self.resync(damage.offset.saturating_add(1))?;
        if let Some(next) = next {
            self.seek(next);
        }
        Ok(next)
    }

    /// Finds the next record at or after `from` that holds together: magic, own position, lengths,
    /// checksums. `None` when there is none before the limit.
    pub fn resync(&mut self, from: u64) -> Result<Option<u64>, StoreError> {
        self.resync_before(from, self.limit)
    }

    /// As [`Self::resync`]; `watch` hears now and then how far it looked, and an error as its answer ends the search.
    pub fn resync_watched(
        &mut self,
        from: u64,
        watch: &mut dyn FnMut(u64) -> Result<(), StoreError>,
    ) -> Result<Option<u64>, StoreError> {
        let mut at = from;
        let mut looked = SearchState::default();
        loop {
            if self.list.find(at).is_none() {
                let Some(next) = self.list.next_from(at) else { return Ok(None) };
                at = next.base_offset();
            }
            let end = at.saturating_add(WATCHED_BYTES);
            if let Some(found) = self.look_before(at, end, &mut looked)? {
                return Ok(Some(found));
            }
            watch(end)?;
            if end >= self.limit {
                return Ok(None);
            }
            at = end;
        }
    }

    /// As [`Self::resync`], of records that begin before `end`.
    pub fn resync_before(&mut self, from: u64, end: u64) -> Result<Option<u64>, StoreError> {
        self.look_before(from, end, &mut SearchState::default())
    }

    fn look_before(
        &mut self,
        from: u64,
        end: u64,
        looked: &mut SearchState,
    ) -> Result<Option<u64>, StoreError> {
        let list = Arc::clone(&self.list);
        let end = end.min(self.limit);
        for segment in list
            .segments()
            .iter()
            .filter(|segment| segment.end_offset() > from && segment.base_offset() < end)
        {
            if let Some(found) = self.resync_in(segment, from.max(segment.base_offset()), end, looked)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn resync_in(
        &mut self,
        segment: &Arc<Segment>,
        from: u64,
        before: u64,
        looked: &mut SearchState,
    ) -> Result<Option<u64>, StoreError> {
        let end = segment.end_offset().min(self.limit);
        let file = segment.file().at_file(|| segment.path(), "opening a log segment")?;
        let mut position = from;
        while position < before && position + MIN_RECORD_BYTES as u64 <= end {
            // Holes and unwritten blocks hold no record; skipping them keeps a nearly empty segment cheap.
            if looked.wanted >= WINDOW_BYTES {
                let found = looked.data_of(segment, &*file, position..end);
                let data = found.at_file(|| segment.path(), "looking for data")?;
                let here = position - segment.base_offset();
                let Some(next) = data.get(data.partition_point(|part| part.end <= here)) else {
                    return Ok(None);
                };
                position = position.max(segment.base_offset() + next.start);
            }
            let wanted = looked.wanted;
            let len = (end.saturating_sub(position)).min(wanted as u64) as usize;
            if len < MIN_RECORD_BYTES {
                return Ok(None);
            }
            looked.wanted = WINDOW_BYTES.min(4 * wanted);
            let window = self.window.bytes(segment, position, len, position + len as u64)?;
            // Zeros hold no record, and room ahead of the log is full of them; a size may begin with three.
            let zeros = leading_zeros(window).saturating_sub(3);
            if zeros >= MIN_RECORD_BYTES {
                position += zeros as u64;
                // Where nothing was written yet, there are gigabytes of them.
                looked.wanted = WINDOW_BYTES;
                continue;
            }
            let candidate = candidates(window, position).next();
            let Some(candidate) = candidate.filter(|candidate| *candidate < before) else {
                position += (len - (MIN_RECORD_BYTES - 1)) as u64;
                continue;
            };
            if self.holds(segment, candidate)? {
                return Ok(Some(candidate));
            }
            position = candidate + 1;
        }
        Ok(None)
    }

    fn holds(&mut self, segment: &Arc<Segment>, offset: u64) -> Result<bool, StoreError> {
        let end = segment.end_offset().min(self.limit);
        let head = self.window.bytes(segment, offset, BLANK_HEADER_BYTES, end)?;
        let Ok(Peek::Record { size, .. }) = peek(head) else {
            return Ok(false);
        };
        if u64::from(size) > end - offset {
            return Ok(false);
        }
        let bytes = self.window.bytes(segment, offset, size as usize, end)?;
        Ok(check_record(bytes, offset, ScanChecks { crc: true }).is_ok())
    }
}

/// The part of a segment that the last read fetched.
#[derive(Debug, Default)]
struct Window {
    buffer: Vec<u8>,
    start: u64,
    /// Whether what was read is kept in `left` when the window moves on.
    keep: bool,
    left: Option<(u64, Vec<u8>)>,
    spare: Vec<u8>,
}

impl Window {
    /// `len` bytes of `segment` at log offset `offset`, from the buffer or freshly read.
    ///
    /// Nothing at or beyond log offset `end` is fetched: what lies there may still change.
    fn bytes(&mut self, segment: &Segment, offset: u64, len: usize, end: u64) -> Result<&[u8], StoreError> {
        let skip = match offset.checked_sub(self.start) {
            Some(skip) if skip + len as u64 <= self.buffer.len() as u64 => skip as usize,
            _ => {
                self.fill(segment, offset, len, end)?;
                0
            }
        };
        self.buffer.get(skip..skip + len).ok_or_else(|| {
            StoreError::corrupt(
                &segment.path(),
                offset - segment.base_offset(),
                "the file ends before its length says",
            )
        })
    }

    fn fill(&mut self, segment: &Segment, offset: u64, len: usize, end: u64) -> Result<(), StoreError> {
        // A first read fetches little: a single look wants one record, a walk soon widens.
        let wanted = if self.buffer.is_empty() { FIRST_WINDOW_BYTES } else { WINDOW_BYTES };
        let size = (wanted.max(len) as u64).min(end - offset) as usize;
        let file = segment.file().at_file(|| segment.path(), "opening a log segment")?;
        // Of two moves for one item (its head, then all of it) the first has left the items before it.
        if self.keep && self.left.is_none() && !self.buffer.is_empty() {
            let left = std::mem::replace(&mut self.buffer, std::mem::take(&mut self.spare));
            self.left = Some((self.start, left));
        }
        self.buffer.resize(size, 0);
        let read = read_up_to(file.as_ref(), &mut self.buffer, offset - segment.base_offset());
        // After an error nothing was read, and the next try must not take these zeros for the log.
        self.buffer.truncate(*read.as_ref().unwrap_or(&0));
        read.at_file(|| segment.path(), "reading the log")?;
        self.start = offset;
        Ok(())
    }
}

pub(super) fn read_up_to(
    file: &dyn mqstore_io::VfsFile,
    buffer: &mut [u8],
    offset: u64,
) -> std::io::Result<usize> {
    let mut done = 0;
    while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + done as u64)? {
            0 => break,
            read => done += read,
        }
    }
    Ok(done)
}

fn damage(segment: &Segment, offset: u64, claimed_size: Option<u32>, reason: impl Into<String>) -> Damage {
    Damage {
        offset,
        path: segment.path(),
        file_offset: offset - segment.base_offset(),
        claimed_size,
        reason: reason.into(),
    }
}

/// Decodes `bytes` as the record at `offset` and makes the asked-for checks.
pub fn check_record(bytes: &[u8], offset: u64, checks: ScanChecks) -> Result<RecordView<'_>, String> {
    let view = RecordView::decode(bytes).map_err(|error| error.to_string())?;
    check_position(view.physical_offset, offset)?;
    if checks.crc {
        check_sums(&view.outline(), true)?;
    }
    Ok(view)
}

/// As [`check_record`] with checksums, for who only reads the record: of two checksums the one that covers
/// all of it will do.
#[inline]
pub(super) fn check_to_read(bytes: &[u8], offset: u64) -> Result<RecordOutline<'_>, String> {
    let record = RecordOutline::decode(bytes).map_err(|error| error.to_string())?;
    check_position(record.physical_offset, offset)?;
    check_sums(&record, !record.has_property_crc())?;
    Ok(record)
}

/// As `check_to_read`, for who wants to know all of the record.
#[inline]
pub fn check_full(bytes: &[u8], offset: u64) -> Result<RecordView<'_>, String> {
    let view = RecordView::decode(bytes).map_err(|error| error.to_string())?;
    check_position(view.physical_offset, offset)?;
    check_sums(&view.outline(), !view.has_property_crc())?;
    Ok(view)
}

fn check_sums(record: &RecordOutline<'_>, body: bool) -> Result<(), String> {
    let checks =
        CrcCheck { body: body && switch::on("scan.body_crc"), property: switch::on("scan.property_crc") };
    record.check_crc(checks).map_err(|error| error.to_string())?;
    // The checksum stands last: where it is missing, the end of the properties may be.
    let torn = !record.has_property_crc() && record.properties.raw().last() == Some(&0);
    if switch::on("scan.h7_torn_properties") && torn {
        return Err("its properties end in zeros, as an unfinished write leaves them".to_owned());
    }
    Ok(())
}

/// Whether a record at log offset `offset` says so itself.
#[inline]
fn is_at(physical_offset: i64, offset: u64) -> bool {
    !switch::on("scan.own_position") || u64::try_from(physical_offset) == Ok(offset)
}

fn check_position(physical_offset: i64, offset: u64) -> Result<(), String> {
    if is_at(physical_offset, offset) {
        return Ok(());
    }
    Err(format!("the record says that it lies at {physical_offset}"))
}

/// What a search for the next record knows of a segment.
#[derive(Debug)]
struct SearchState {
    /// How much it reads at once: in a whole log the next record is near, elsewhere there may be none for gigabytes.
    wanted: usize,
    /// The base offset of a segment, and the parts of its file that hold data. They are asked for once: what is read
    /// of unwritten blocks, or read ahead by the system, counts as data from then on, and reading that reads further ahead.
    data: Option<(u64, Vec<Range<u64>>)>,
}

impl Default for SearchState {
    fn default() -> Self {
        Self { wanted: FIRST_LOOK_BYTES, data: None }
    }
}

impl SearchState {
    /// The parts of the segment's file that hold data, of those offsets of the log at least.
    fn data_of(
        &mut self,
        segment: &Segment,
        file: &dyn mqstore_io::VfsFile,
        offsets: Range<u64>,
    ) -> std::io::Result<&[Range<u64>]> {
        let base = segment.base_offset();
        if self.data.as_ref().is_none_or(|(known, _)| *known != base) {
            self.data = Some((base, data_from(file, offsets.start - base, offsets.end - base)?));
        }
        Ok(self.data.as_ref().map(|(_, data)| data.as_slice()).unwrap_or_default())
    }
}

/// The parts of a file from `from` to `end` that hold data, to a window's length.
fn data_from(file: &dyn mqstore_io::VfsFile, from: u64, end: u64) -> std::io::Result<Vec<Range<u64>>> {
    let mut parts: Vec<Range<u64>> = Vec::new();
    let mut position = from;
    while let Some(data) = file.next_data(position)?.filter(|data| *data < end) {
        let start = data.max(position);
        position = start + WINDOW_BYTES as u64;
        match parts.last_mut() {
            Some(last) if last.end == start => last.end = position,
            _ => parts.push(start..position),
        }
    }
    Ok(parts)
}

/// How many bytes at the front of `bytes` are zero, whole blocks first.
fn leading_zeros(bytes: &[u8]) -> usize {
    const BLOCK: usize = 512;
    let blocks =
        bytes.chunks_exact(BLOCK).take_while(|block| block.iter().fold(0, |all, byte| all | byte) == 0);
    let whole = blocks.count() * BLOCK;
    let rest = bytes.get(whole..).unwrap_or_default();
    whole + rest.iter().take_while(|byte| **byte == 0).count()
}

/// Offsets in `window` (which starts at log offset `start`) where a magic code and a record's own
/// position agree.
fn candidates(window: &[u8], start: u64) -> impl Iterator<Item = u64> + '_ {
    let magics = [MAGIC_V1.to_be_bytes(), MAGIC_V2.to_be_bytes()];
    window.windows(MIN_RECORD_BYTES).enumerate().filter_map(move |(index, bytes)| {
        let magic = bytes.get(4..8)?;
        if !magics.iter().any(|known| known == magic) {
            return None;
        }
        let own = bytes.get(28..36)?;
        let offset = start + index as u64;
        (own == offset.to_be_bytes()).then_some(offset)
    })
}
