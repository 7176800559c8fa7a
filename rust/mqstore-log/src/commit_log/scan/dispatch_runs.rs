//! Splits the log into runs of whole records, by their headers alone.
//!
//! A [`RecordRun`] holds its bytes, so several threads can decode runs in parallel without further input. Its bytes are
//! a view of the mapped segment if the scanner may use maps, else a buffer. A run never crosses the end of a segment.

use std::sync::Arc;

use mqstore_format::{Peek, RecordOutline, RecordView, peek};
use mqstore_io::{RegionView, expect_read};

use super::own_offset::is_at;
use super::raft_entries::{LEAD_BYTES, lead_in};
use super::{
    Damage, LogScanner, ScanItem, Segment, candidates, check_full, check_to_read, damage, read_once_up_to,
    read_up_to,
};
use mqstore_base::error::{IoContext, StoreError};

/// Range of the record header with the record's own log offset.
const OWN_POSITION: std::ops::Range<usize> = 28..36;

/// Number of records for which a record's head is prefetched in advance.
const HEADS_AHEAD: usize = 7;
const HEAD_BYTES: usize = 64;

/// Maximum bytes of a record to prefetch; the processor prefetches the rest by itself.
const MOST_AHEAD_BYTES: usize = 4096;

/// Consecutive records of one segment, and their bytes.
#[derive(Debug)]
pub struct RecordRun {
    segment: Option<Arc<Segment>>,
    start: u64,
    end: u64,
    bytes: RunBytes,
    /// Whether the records are in Raft entries.
    in_entries: bool,
}

/// The result of `LogScanner::cut`.
#[derive(Debug)]
pub enum CutRun {
    /// At least one record, or the filler at the end of a segment.
    Records(RecordRun),
    /// No record before the limit.
    End,
    /// Bytes that are neither; the position stays.
    Damaged(Damage),
}

#[derive(Debug)]
enum RunBytes {
    InPlace(RegionView),
    Read(Vec<u8>),
}

impl RunBytes {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::InPlace(view) => view,
            Self::Read(bytes) => bytes,
        }
    }
}

impl LogScanner {
    /// Takes the next records, up to about `most` bytes. It checks only their headers: size, magic and own log offset,
    /// and that each record ends in the segment and before the limit. If it has to read, it reads into `buffer`.
    pub fn cut(&mut self, most: u64, buffer: Vec<u8>) -> Result<CutRun, StoreError> {
        let start = self.position;
        let segment = self.list.find(start).filter(|_| start < self.limit).cloned();
        if let Some(segment) = segment {
            let end = segment.end_offset().min(self.limit);
            let bytes = self.fetch(&segment, start, end, most, buffer)?;
            let in_entries = self.list.has_entries(start);
            let whole = if in_entries {
                whole_entries(bytes.as_slice(), start, segment.end_offset(), most)
            } else {
                whole_records(bytes.as_slice(), start, most)
            };
            if whole > 0 {
                self.position = start + whole;
                let run = RecordRun::new(&segment, start, whole, bytes);
                return Ok(CutRun::Records(RecordRun { in_entries, ..run }));
            }
            return self.single_record_run(&segment, start, bytes);
        }
        match self.next_item()? {
            ScanItem::Damaged(damage) => Ok(CutRun::Damaged(damage)),
            _ => Ok(CutRun::End),
        }
    }

    /// Takes a filler, or one record that is longer than the fetched bytes.
    fn single_record_run(
        &mut self,
        segment: &Arc<Segment>,
        start: u64,
        bytes: RunBytes,
    ) -> Result<CutRun, StoreError> {
        let size = match self.next_item()? {
            ScanItem::Record(record) => u64::from(record.size),
            ScanItem::Filler { .. } => 0,
            ScanItem::End { .. } => return Ok(CutRun::End),
            ScanItem::Damaged(damage) => return Ok(CutRun::Damaged(damage)),
        };
        let buffer = match bytes {
            RunBytes::Read(buffer) => buffer,
            RunBytes::InPlace(_) => Vec::new(),
        };
        let end = self.position;
        let bytes = match size {
            0 => RunBytes::Read(buffer),
            size => self.fetch(segment, start, end, size, buffer)?,
        };
        let mut run = RecordRun::new(segment, start, size, bytes);
        run.end = end;
        Ok(CutRun::Records(run))
    }

    /// Returns the bytes from `start` to `end`: all of them if they are mapped, else at most `most`.
    fn fetch(
        &self,
        segment: &Segment,
        start: u64,
        end: u64,
        most: u64,
        mut buffer: Vec<u8>,
    ) -> Result<RunBytes, StoreError> {
        if let Some(view) = self.in_place(segment, start, end) {
            return Ok(RunBytes::InPlace(view));
        }
        buffer.resize((end - start).min(most) as usize, 0);
        let file = segment.file().at_file(|| segment.path(), "opening a log segment")?;
        let read = if self.reads_once(segment) { read_once_up_to } else { read_up_to };
        let read = read(file.as_ref(), &mut buffer, start - segment.base_offset())
            .at_file(|| segment.path(), "reading the log")?;
        buffer.truncate(read);
        Ok(RunBytes::Read(buffer))
    }

    /// Returns the bytes from log offset `start` to `end` if the segment is mapped.
    fn in_place(&self, segment: &Segment, start: u64, end: u64) -> Option<RegionView> {
        let region = self.maps.then(|| segment.mapped()).flatten()?;
        // Positions in a mapped file fit an address.
        region.view((start - segment.base_offset()) as usize, (end - start) as usize).ok()
    }
}

/// Returns how many of `bytes`, which are at log offset `start`, belong to consecutive records that begin in the first
/// `most` bytes.
fn whole_records(bytes: &[u8], start: u64, most: u64) -> u64 {
    let (mut rest, mut whole) = (bytes, 0_u64);
    while whole < most {
        let Some(own) = rest.get(OWN_POSITION).and_then(|own| own.try_into().ok()) else { break };
        let Ok(Peek::Record { size, .. }) = peek(rest) else { break };
        if !is_at(i64::from_be_bytes(own), start + whole) {
            break;
        }
        let Some(later) = rest.get(size as usize..) else { break };
        // The loop reads only heads, which are too far apart for the processor's own prefetch. Most records are as long
        // as their neighbours.
        let ahead = HEADS_AHEAD * size as usize;
        expect_read(later.get(ahead..ahead + HEAD_BYTES).unwrap_or_default());
        rest = later;
        whole += u64::from(size);
    }
    whole
}

/// Returns how many of `bytes`, which are at log offset `start` of a data file that ends at `end`, belong to consecutive
/// Raft entries that begin in the first `most` bytes. A header at the end counts only with its record.
fn whole_entries(bytes: &[u8], start: u64, end: u64, most: u64) -> u64 {
    let (mut rest, mut whole) = (bytes, 0_u64);
    while whole < most {
        let at = start + (bytes.len() - rest.len()) as u64;
        let own = rest.get(OWN_POSITION).and_then(|own| own.try_into().ok());
        let is_own = |own| is_at(i64::from_be_bytes(own), at);
        let (size, is_record) = match peek(rest) {
            Ok(Peek::Record { size, .. }) => (own.is_some_and(is_own).then_some(size as usize), true),
            // With fewer bytes, the next run shows whether a record follows the header.
            _ if rest.len() < LEAD_BYTES => break,
            _ => (lead_in(rest, at, end - at), false),
        };
        let Some(later) = size.and_then(|size| rest.get(size..)) else { break };
        rest = later;
        if is_record {
            whole = (bytes.len() - rest.len()) as u64;
        }
    }
    whole
}

impl RecordRun {
    fn new(segment: &Arc<Segment>, start: u64, len: u64, bytes: RunBytes) -> Self {
        let bytes = match bytes {
            RunBytes::InPlace(view) => match view.slice(0..len as usize) {
                Ok(part) => RunBytes::InPlace(part),
                Err(_) => RunBytes::InPlace(view),
            },
            RunBytes::Read(mut bytes) => {
                bytes.truncate(len as usize);
                RunBytes::Read(bytes)
            }
        };
        Self { segment: Some(Arc::clone(segment)), start, end: start + len, bytes, in_entries: false }
    }

    /// Creates a run without bytes at log offset `position`.
    pub fn empty(position: u64) -> Self {
        let bytes = RunBytes::Read(Vec::new());
        Self { segment: None, start: position, end: position, bytes, in_entries: false }
    }

    /// Log offset of the first record.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Log offset of the next run.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Calls `visit` with each record and its log offset. With `crc`, it verifies the checksums. Without `skipped`, it
    /// stops at damage and returns it. With `skipped`, it continues at the next valid record and adds a note about the
    /// skipped bytes.
    pub(crate) fn records(
        &self,
        crc: bool,
        skipped: Option<&mut Vec<String>>,
        visit: impl FnMut(&RecordOutline<'_>, u64),
    ) -> Option<Damage> {
        let decode = |bytes, position| outline(bytes, position, crc);
        let Some(skipped) = skipped else { return self.walk(decode, None, visit) };
        let mut skip = |damage: Damage, bytes| skipped.push(damage.skipped(bytes));
        self.walk(decode, Some(&mut skip), visit)
    }

    /// Calls `visit` with each complete record and its log offset, with verified checksums. It skips damage and adds it
    /// to `skipped`, with the number of bytes.
    pub fn views(&self, skipped: &mut Vec<(Damage, u64)>, visit: impl FnMut(&RecordView<'_>, u64)) {
        let mut skip = |damage: Damage, bytes| skipped.push((damage, bytes));
        let _ = self.walk(check_full, Some(&mut skip), visit);
    }

    fn walk<'a, T: HasSize>(
        &'a self,
        decode: impl Fn(&'a [u8], u64) -> Result<T, String>,
        mut skip: Option<&mut dyn FnMut(Damage, u64)>,
        mut visit: impl FnMut(&T, u64),
    ) -> Option<Damage> {
        let (mut rest, mut position) = (self.bytes.as_slice(), self.start);
        let mut last = 0;
        while !rest.is_empty() {
            if self.in_entries
                && let Some(later) = self.segment.as_ref().and_then(|segment| {
                    lead_in(rest, position, segment.end_offset() - position)
                        .and_then(|skipped| rest.get(skipped..))
                })
            {
                position += (rest.len() - later.len()) as u64;
                rest = later;
                continue;
            }
            // Prefetches the next record, assuming that it is as long as the last one.
            expect_read(rest.get(last..2 * last).unwrap_or_default());
            let step = match decode(rest, position) {
                Ok(record) => {
                    visit(&record, position);
                    record.size()
                }
                Err(reason) => {
                    let damage = damage(self.segment.as_ref()?, position, None, reason);
                    let Some(skip) = &mut skip else { return Some(damage) };
                    let behind = rest.get(1..).unwrap_or_default();
                    let step = 1 + next_record(behind, position + 1).unwrap_or(behind.len());
                    skip(damage, step as u64);
                    step
                }
            };
            last = step.min(MOST_AHEAD_BYTES);
            position += step as u64;
            rest = rest.get(step..).unwrap_or_default();
        }
        None
    }

    /// Releases the bytes, so that a thread that retires or unmaps the segment need not wait. Returns the buffer, if
    /// the run had one, for reuse.
    pub fn let_go(&mut self) -> Vec<u8> {
        self.segment = None;
        match std::mem::replace(&mut self.bytes, RunBytes::Read(Vec::new())) {
            RunBytes::Read(buffer) => buffer,
            RunBytes::InPlace(_) => Vec::new(),
        }
    }
}

/// A type that knows the size of its record.
trait HasSize {
    fn size(&self) -> usize;
}

impl HasSize for RecordOutline<'_> {
    fn size(&self) -> usize {
        self.size as usize
    }
}

impl HasSize for RecordView<'_> {
    fn size(&self) -> usize {
        self.size as usize
    }
}

/// Decodes the record at the front of `bytes`, which are at log offset `position`.
#[inline]
fn outline(bytes: &[u8], position: u64, crc: bool) -> Result<RecordOutline<'_>, String> {
    if crc {
        return check_to_read(bytes, position);
    }
    RecordOutline::decode(bytes).map_err(|error| error.to_string())
}

/// Returns the index in `bytes`, which are at log offset `start`, of the first valid record, checksums included.
fn next_record(bytes: &[u8], start: u64) -> Option<usize> {
    let mut places = candidates(bytes, start).map(|offset| (offset - start) as usize);
    places.find(|place| {
        let rest = bytes.get(*place..).unwrap_or_default();
        outline(rest, start + *place as u64, true).is_ok()
    })
}
