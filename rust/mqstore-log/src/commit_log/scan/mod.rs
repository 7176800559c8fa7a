//! The record scanner, which walks the log from record to record.
//!
//! Recovery, dispatch, verification, derived queues and plain reads all use [`LogScanner`], so they share one
//! definition of a record. It reads by position in windows, so a file that shrinks meanwhile causes an error and not a
//! signal.
//!
//! Source: `CommitLog#checkMessageAndReturnSize`; this scanner also checks the size of fillers and the log offset in a
//! record.

mod dispatch_runs;
mod outlines;
mod own_offset;
mod placeholders;
mod raft_entries;
mod raft_walk;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use mqstore_format::{
    BLANK_HEADER_BYTES, CrcCheck, MAGIC_V1, MAGIC_V2, MIN_RECORD_BYTES, Peek, RecordOutline, RecordView, peek,
};

pub use dispatch_runs::{CutRun, RecordRun};
pub use raft_walk::{RaftEntry, RaftItem, RaftWalk};

use own_offset::is_at;
use placeholders::KnownPlaceholders;
use raft_entries::{LEAD_BYTES, Lead, lead};

use super::segment_list::{Segment, SegmentList};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_io::{fill_up_to, switch};

/// Bytes of one positional read during a scan.
const WINDOW_BYTES: usize = 1 << 20;

/// Bytes to search between two calls of the watcher.
const WATCHED_BYTES: u64 = 16 << 20;

/// Bytes of the first read of a scan.
const FIRST_WINDOW_BYTES: usize = 64 << 10;

/// Bytes of the first read of a search for the next record.
const FIRST_LOOK_BYTES: usize = 16 << 10;

/// The item at one log offset.
#[derive(Debug)]
pub enum ScanItem<'a> {
    /// A whole record whose requested checksums are correct.
    Record(RecordView<'a>),
    /// The filler at the end of a segment; in data files of DLedger also a header, a blank or an entry without a record;
    /// or the rest of a placeholder, if the walk began inside one.
    Filler {
        /// Log offset of the filler.
        offset: u64,
    },
    /// The end of the written log, or the limit.
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
    /// Log offset of the damage.
    pub offset: u64,
    /// File of the segment.
    pub path: PathBuf,
    /// Offset in that file.
    pub file_offset: u64,
    /// The size in the header, if it is plausible; the next record may follow it.
    pub claimed_size: Option<u32>,
    /// Description of the damage.
    pub reason: String,
}

impl Damage {
    /// Returns the note that `bytes` from here on were skipped.
    pub fn skipped(&self, bytes: u64) -> String {
        let (path, offset, reason) = (self.path.display(), self.file_offset, &self.reason);
        format!("{path} at offset {offset}: {reason}; skipped {bytes} bytes")
    }
}

/// The checks that a scan makes on each record.
#[derive(Clone, Copy, Debug)]
pub struct ScanChecks {
    /// Whether to verify body and property CRC.
    pub crc: bool,
}

/// Walks the log from record to record.
///
/// Each offset of a segment has one of
///
/// ```text
/// size:4 magic:4 ...            a record; its own PHYSICALOFFSET must equal its offset
/// rest:4 0xCBD43194             filler; `rest` must equal the bytes left in the segment
/// 00000000 00000000             nothing was written from here on
/// anything else                 damage, or a record that a crash tore
/// ```
///
/// If the caller knows the end of the log, zeros before it are damage too: a lost page.
///
/// In a data file of DLedger, a header of 48 bytes precedes each record: see `raft_entries`. The scan passes it as a
/// filler, so the position before a record is the log offset of the record in every segment.
///
/// Only the dispatcher of the process that writes the log reads its newest segments through their maps
/// (`look_at_maps`). If such a file shrinks, its writer gets a signal in any case. The bytes before the limit of the
/// scan are published and never change.
#[derive(Debug)]
pub struct LogScanner {
    list: Arc<SegmentList>,
    checks: ScanChecks,
    position: u64,
    limit: u64,
    window: Window,
    /// Whether [`Self::cut`] uses mapped segments in place.
    maps: bool,
    /// Whether the walk passes over old segments once.
    once: bool,
    /// The buffer of [`Self::outlines`].
    outline_buffer: Vec<u8>,
    placeholders: KnownPlaceholders,
}

impl LogScanner {
    /// Creates a scan from `start`, which must be the start of a record, a filler or a segment, up to `limit`.
    pub fn new(list: Arc<SegmentList>, start: u64, limit: u64, checks: ScanChecks) -> Self {
        Self {
            list,
            checks,
            position: start,
            limit,
            window: Window::default(),
            maps: false,
            once: false,
            outline_buffer: Vec::new(),
            placeholders: KnownPlaceholders::default(),
        }
    }

    /// Leaves no new pages of old segments in memory from now on. For a walk that passes over a log once. It reads the
    /// newest segment as usual, because consumers and the writer use its pages.
    pub fn read_once(&mut self) {
        self.once = true;
    }

    /// Whether reads of `segment` leave no new pages in memory.
    fn reads_once(&self, segment: &Segment) -> bool {
        self.once && segment.end_offset() < self.list.end_offset()
    }

    /// Log offset of the next item.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Extends the scan to a longer log: `list` and `limit` are the current ones.
    pub fn extend(&mut self, list: Arc<SegmentList>, limit: u64) {
        self.list = list;
        self.limit = limit;
    }

    /// Replaces the list and keeps the limit.
    pub fn renew(&mut self, list: Arc<SegmentList>) {
        self.list = list;
    }

    /// Ends the scan at `offset`.
    pub fn end_at(&mut self, offset: u64) {
        self.limit = offset;
        self.position = offset;
    }

    /// Continues the scan at `offset`.
    pub fn seek(&mut self, offset: u64) {
        self.position = offset;
    }

    /// Lets [`Self::cut`] use mapped segments in place, without reading them. Only for the process that writes the log,
    /// and for limits that are published offsets.
    pub(crate) fn look_at_maps(&mut self) {
        self.maps = true;
    }

    /// Keeps the bytes of finished windows from now on, for [`Self::take_previous_window`].
    pub(crate) fn retain_windows(&mut self) {
        self.window.keep = true;
    }

    /// Returns the window that the scan has just left, with the log offset of its first byte. It contains every record
    /// between the window returned before and the last item.
    pub(crate) fn take_previous_window(&mut self) -> Option<(u64, Vec<u8>)> {
        self.window.left.take()
    }

    /// Returns the window that contains the last item; the scan reads a new window from here on.
    pub(crate) fn take_window(&mut self) -> (u64, Vec<u8>) {
        (self.window.start, std::mem::take(&mut self.window.buffer))
    }

    /// Gives the scan a buffer to read into.
    pub(crate) fn reuse(&mut self, buffer: Vec<u8>) {
        self.window.spare = buffer;
    }

    /// Returns the next item. After [`ScanItem::Damaged`] the position stays; call [`Self::seek`] or [`Self::skip`] to
    /// continue. After [`ScanItem::End`] it stays too.
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
                "fewer than the 8 bytes of a filler are left in the segment",
            )));
        }
        self.window.once = self.reads_once(&segment);
        let head = self.window.bytes(&segment, position, BLANK_HEADER_BYTES, end)?;
        let peeked = peek(head);
        if self.list.has_entries(position) && !matches!(peeked, Ok(Peek::Record { .. } | Peek::Zero)) {
            let len = (LEAD_BYTES as u64).min(end - position) as usize;
            return Ok(match lead(self.window.bytes(&segment, position, len, end)?, position, rest) {
                Lead::Skip(bytes) => {
                    self.position = position + bytes;
                    ScanItem::Filler { offset: position }
                }
                Lead::Other(reason) => ScanItem::Damaged(damage(&segment, position, None, reason)),
            });
        }
        match peeked {
            Ok(Peek::Zero) => {
                let reason = format!("zeros, although the log continues to offset {}", self.limit);
                match self.damaged(&segment, None, reason)? {
                    ScanItem::Damaged(_) if self.limit == u64::MAX => Ok(ScanItem::End { offset: position }),
                    item => Ok(item),
                }
            }
            Ok(Peek::Blank { size }) if u64::from(size) == rest || !switch::on("scan.h6_filler_size") => {
                self.position = segment.end_offset();
                Ok(ScanItem::Filler { offset: position })
            }
            Ok(Peek::Blank { size }) => {
                let reason =
                    format!("the filler says {size} bytes, but {rest} bytes are left in the segment");
                self.damaged(&segment, None, reason)
            }
            Ok(Peek::Record { size, .. }) => self.record(&segment, position, size, rest),
            Ok(Peek::Invalid { size, magic }) => {
                let reason = format!("no record starts here: size {size}, magic {magic:#010x}");
                self.damaged(&segment, None, reason)
            }
            Err(error) => self.damaged(&segment, None, error.to_string()),
        }
    }

    /// Returns the item at the position, whose bytes are no record.
    fn damaged(
        &mut self,
        segment: &Arc<Segment>,
        claimed_size: Option<u32>,
        reason: String,
    ) -> Result<ScanItem<'static>, StoreError> {
        let place = (&*self.list, &mut self.position);
        damaged_item(&mut self.placeholders, place, segment, (claimed_size, reason))
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
            let reason = format!("record size {size} exceeds the {rest} bytes left in the segment");
            return self.damaged(segment, None, reason);
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
            Err(error) => {
                let place = (&*self.list, &mut self.position);
                damaged_item(&mut self.placeholders, place, segment, (Some(size), error))
            }
        }
    }

    /// Moves to the next valid record after `damage` and returns its log offset. Returns `None`, with the position
    /// unchanged, if none follows before the limit.
    pub fn skip(&mut self, damage: &Damage) -> Result<Option<u64>, StoreError> {
        let next = self.resync(damage.offset.saturating_add(1))?;
        if let Some(next) = next {
            self.seek(next);
        }
        Ok(next)
    }

    /// Finds the next valid record at or after `from`: magic, own log offset, lengths and checksums are correct.
    /// Returns `None` if none follows before the limit.
    pub fn resync(&mut self, from: u64) -> Result<Option<u64>, StoreError> {
        self.resync_before(from, self.limit)
    }

    /// Like [`Self::resync`]; calls `watch` now and then with the offset searched so far. If `watch` returns an error,
    /// the search ends with it.
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

    /// Like [`Self::resync`], for records that begin before `end`.
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
        self.window.once = self.reads_once(segment);
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
            // Zeros hold no record, and the space after the tail is full of them. A size may begin with three zero
            // bytes.
            let zeros = leading_zeros(window).saturating_sub(3);
            if zeros >= MIN_RECORD_BYTES {
                position += zeros as u64;
                // An unwritten part can have gigabytes of zeros.
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
    /// Whether the bytes are kept in `left` when the window moves.
    keep: bool,
    left: Option<(u64, Vec<u8>)>,
    spare: Vec<u8>,
    /// Whether the next read leaves no new pages in memory.
    once: bool,
}

impl Window {
    /// Returns `len` bytes of `segment` at log offset `offset`, from the buffer or by a read.
    ///
    /// It reads nothing at or after log offset `end`, because these bytes may still change.
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
                "the file is shorter than its recorded length",
            )
        })
    }

    fn fill(&mut self, segment: &Segment, offset: u64, len: usize, end: u64) -> Result<(), StoreError> {
        // The first read is small, because a single lookup wants one record; a walk soon uses the full window.
        let wanted = if self.buffer.is_empty() { FIRST_WINDOW_BYTES } else { WINDOW_BYTES };
        let size = (wanted.max(len) as u64).min(end - offset) as usize;
        let file = segment.file().at_file(|| segment.path(), "opening a log segment")?;
        // One item can move the window twice (its head, then the whole record). Only the first move leaves the window
        // with the items before it.
        if self.keep && self.left.is_none() && !self.buffer.is_empty() {
            let left = std::mem::replace(&mut self.buffer, std::mem::take(&mut self.spare));
            self.left = Some((self.start, left));
        }
        self.buffer.resize(size, 0);
        let at = offset - segment.base_offset();
        let read = if self.once { read_once_up_to } else { read_up_to };
        let read = read(file.as_ref(), &mut self.buffer, at);
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
    fill_up_to(buffer, offset, |rest, at| file.read_at(rest, at))
}

/// Like [`read_up_to`], but leaves no new pages in memory if the file system offers that.
fn read_once_up_to(file: &dyn mqstore_io::VfsFile, buffer: &mut [u8], offset: u64) -> std::io::Result<usize> {
    fill_up_to(buffer, offset, |rest, at| file.read_once_at(rest, at))
}

/// Returns the item for bytes at `position` that are no record. Inside a placeholder, `position` moves to its end.
fn damaged_item(
    placeholders: &mut KnownPlaceholders,
    (list, position): (&SegmentList, &mut u64),
    segment: &Arc<Segment>,
    (claimed_size, reason): (Option<u32>, String),
) -> Result<ScanItem<'static>, StoreError> {
    let offset = *position;
    let base = segment.base_offset();
    // The last segment is never rewritten.
    if offset > base && segment.end_offset() < list.end_offset() && !list.has_entries(base) {
        if !placeholders.is_of(base) {
            *placeholders = KnownPlaceholders::of(base, placeholders_in(segment)?);
        }
        if let Some(end) = placeholders.end_at(offset) {
            *position = end;
            return Ok(ScanItem::Filler { offset });
        }
    }
    Ok(ScanItem::Damaged(damage(segment, offset, claimed_size, reason)))
}

/// Returns the ranges of the placeholders in `segment`, up to the first bytes that are no record.
fn placeholders_in(segment: &Segment) -> Result<Vec<Range<u64>>, StoreError> {
    let (mut ranges, mut window) = (Vec::new(), Window::default());
    let (mut position, end) = (segment.base_offset(), segment.end_offset());
    while end - position >= BLANK_HEADER_BYTES as u64 {
        let head = window.bytes(segment, position, BLANK_HEADER_BYTES, end)?;
        let Ok(Peek::Record { size, .. }) = peek(head) else { break };
        let next = position + u64::from(size);
        if next > end {
            break;
        }
        let bytes = window.bytes(segment, position, size as usize, end)?;
        match check_record(bytes, position, ScanChecks { crc: false }) {
            Ok(record) if record.is_placeholder() => ranges.push(position..next),
            Ok(_) => {}
            Err(_) => break,
        }
        position = next;
    }
    Ok(ranges)
}

fn damage(segment: &Segment, offset: u64, claimed_size: Option<u32>, reason: impl Into<String>) -> Damage {
    let (path, file_offset) = segment.real_place(offset - segment.base_offset());
    Damage { offset, path, file_offset, claimed_size, reason: reason.into() }
}

/// Decodes `bytes` as the record at `offset` and makes the requested checks.
pub fn check_record(bytes: &[u8], offset: u64, checks: ScanChecks) -> Result<RecordView<'_>, String> {
    let view = RecordView::decode(bytes).map_err(|error| error.to_string())?;
    check_position(view.physical_offset, offset)?;
    if checks.crc {
        check_sums(&view.outline(), true)?;
    }
    Ok(view)
}

/// Like [`check_record`] with checksums, for readers of one record. If the record has two checksums, the one that
/// covers the whole record is enough.
#[inline]
pub(super) fn check_to_read(bytes: &[u8], offset: u64) -> Result<RecordOutline<'_>, String> {
    let record = RecordOutline::decode(bytes).map_err(|error| error.to_string())?;
    check_position(record.physical_offset, offset)?;
    check_sums(&record, !record.has_property_crc())?;
    Ok(record)
}

/// Like `check_to_read`, but returns the complete view of the record.
#[inline]
pub fn check_full(bytes: &[u8], offset: u64) -> Result<RecordView<'_>, String> {
    let view = RecordView::decode(bytes).map_err(|error| error.to_string())?;
    check_position(view.physical_offset, offset)?;
    check_sums(&view.outline(), !view.has_property_crc())?;
    Ok(view)
}

/// Verifies the checksums; returns the result of [`RecordOutline::compare_crc`].
fn check_sums(record: &RecordOutline<'_>, body: bool) -> Result<bool, String> {
    let checks =
        CrcCheck { body: body && switch::on("scan.body_crc"), property: switch::on("scan.property_crc") };
    let is_own = record.compare_crc(checks).map_err(|error| error.to_string())?;
    // The checksum is the last property. If it is missing, the end of the properties may be missing too.
    let torn = !record.has_property_crc() && record.properties.raw().last() == Some(&0);
    if switch::on("scan.h7_torn_properties") && torn {
        return Err("its properties end in zeros, as an unfinished write leaves them".to_owned());
    }
    Ok(is_own)
}

/// Whether topic, queue or queue offset of a record may be damaged: the checksum of the whole record is wrong, although
/// the body is intact. A record with a damaged body keeps its place, where a read finds the damage.
pub fn has_damaged_place(record: &RecordOutline<'_>) -> bool {
    record.check_crc(CrcCheck { body: false, property: true }).is_err()
        // Then the digits prove that everything else is intact.
        && !record.has_damaged_crc_name()
        && record.check_crc(CrcCheck { body: true, property: false }).is_ok()
}

/// Returns the note about a record with a damaged place.
pub fn damaged_place_note(offset: u64, bytes: u64) -> String {
    format!(
        "the record at log offset {offset}: its checksum is wrong, so its topic and queue offset are unknown; skipped \
         {bytes} bytes"
    )
}

fn check_position(physical_offset: i64, offset: u64) -> Result<(), String> {
    if is_at(physical_offset, offset) {
        return Ok(());
    }
    Err(format!("the record says that its log offset is {physical_offset}"))
}

/// The state of a search for the next record in a segment.
#[derive(Debug)]
struct SearchState {
    /// Bytes of the next read. In an intact log the next record is near; elsewhere gigabytes may hold none.
    wanted: usize,
    /// Base offset of a segment, and the parts of its file that hold data. The file system is asked only once:
    /// unwritten blocks that were read, or read ahead by the system, count as data from then on, and reading these
    /// would extend the range further.
    data: Option<(u64, Vec<Range<u64>>)>,
}

impl Default for SearchState {
    fn default() -> Self {
        Self { wanted: FIRST_LOOK_BYTES, data: None }
    }
}

impl SearchState {
    /// Returns the parts of the segment's file that hold data, at least for the given log offsets.
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

/// Returns the parts of a file from `from` to `end` that hold data, in units of one window.
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

/// Number of leading zero bytes, counted in whole blocks first.
fn leading_zeros(bytes: &[u8]) -> usize {
    const BLOCK: usize = 512;
    let blocks =
        bytes.chunks_exact(BLOCK).take_while(|block| block.iter().fold(0, |all, byte| all | byte) == 0);
    let whole = blocks.count() * BLOCK;
    let rest = bytes.get(whole..).unwrap_or_default();
    whole + rest.iter().take_while(|byte| **byte == 0).count()
}

/// Returns the offsets in `window` (which starts at log offset `start`) where both a magic code and the record's own
/// log offset match.
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
