//! Walks the log with several threads, in pieces that are joined in log order.
//!
//! ```text
//! pieces of the log -> threads -> parts: records compared with their queue units
//!                                   | in log order
//!                                   v
//!         damage between parts; units of a queue counted; keys compared with index entries
//! ```
//!
//! Owns nothing on disk. A piece is a few MiB of a segment. A thread that takes a piece searches it for the first
//! intact record and continues from there. In an undamaged log, the record before it ends at this log offset; the
//! thread that joins the pieces checks that. If it does not end there, the log is damaged, or a message contains bytes
//! of a log. Then this range is walked again, record by record.
//!
//! Pool threads work on the pieces, and the calling thread takes the parts in order. A limit on the number of pieces in
//! work bounds the memory.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use mqstore_format::RAFT_HEADER_BYTES;
use mqstore_io::Pool;
use mqstore_io::sync::Mutex;

use super::log_part::{PartFindings, View};
use mqstore_base::error::StoreError;
use mqstore_log::commit_log::{LogScanner, ScanChecks, ScanItem, Segment, SegmentList};

/// Bytes of a piece; so few in tests that small logs have many pieces.
const PIECE_BYTES: u64 = if cfg!(test) { 1 << 10 } else { 8 << 20 };

/// Distance before a piece's turn at which its bytes are requested from the disk.
const AHEAD_BYTES: u64 = 24 << 20;

/// The same in requests, if the file system fetches what it reads: queues and index need memory too.
const REQUESTS_AHEAD: u64 = 2;

/// Maximum number of pieces that are in the pool or finished and not taken. If the file system fetches what it reads,
/// there are fewer: the walk reads the bytes after the end of the log again.
const PIECES_OUT: usize = 16;

/// Consecutive bytes of one segment.
#[derive(Debug)]
struct WalkPiece {
    segment: Arc<Segment>,
    start: u64,
    end: u64,
    /// Bytes to request from the disk in advance: position in the segment's file, and length.
    ahead: Option<(u64, u64)>,
}

/// The pieces of a log or of ranges of it, in order.
#[derive(Debug, Default)]
pub(crate) struct LogPieces {
    /// The next segment.
    segment: usize,
    /// The ranges of bytes that contain the pieces, if they were planned before.
    runs: Option<VecDeque<(u64, u64)>>,
    /// The remaining part of the segment or range: from, to.
    planned: VecDeque<(u64, u64)>,
    /// Position in the segment before which all bytes were requested from the disk.
    asked: u64,
    /// Bytes after a piece that are requested with it.
    ahead_bytes: u64,
}

impl LogPieces {
    /// Creates the pieces in these ranges: see [`Self::runs`].
    pub(crate) fn of(runs: &[(u64, u64)]) -> Self {
        Self { runs: Some(runs.iter().copied().collect()), ..Self::default() }
    }

    /// Returns all pieces of a log: from, to.
    pub(crate) fn all(list: &SegmentList, limit: u64) -> Vec<(u64, u64)> {
        let mut pieces = Self::default();
        std::iter::from_fn(|| pieces.take(list, limit).map(|piece| (piece.start, piece.end))).collect()
    }

    /// Joins consecutive pieces to ranges; no range crosses a segment boundary.
    pub(crate) fn runs(list: &SegmentList, pieces: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for &(start, end) in pieces {
            let begins_segment = list.find(start).is_some_and(|segment| segment.base_offset() == start);
            match runs.last_mut().filter(|last| last.1 == start && !begins_segment) {
                Some(last) => last.1 = end,
                None => runs.push((start, end)),
            }
        }
        runs
    }

    fn take(&mut self, list: &SegmentList, limit: u64) -> Option<WalkPiece> {
        while self.planned.is_empty() && self.plan_next(list, limit) {}
        let (start, end) = self.planned.pop_front()?;
        let segment = Arc::clone(list.find(start)?);
        let ahead = self.ahead(segment.base_offset(), start, end);
        Some(WalkPiece { segment, start, end, ahead })
    }

    /// Plans the pieces of the next segment or range; returns whether there was one.
    fn plan_next(&mut self, list: &SegmentList, limit: u64) -> bool {
        let Some(runs) = &mut self.runs else {
            let Some(segment) = list.segments().get(self.segment) else { return false };
            self.plan(segment, limit);
            self.segment += 1;
            return true;
        };
        let Some((mut from, to)) = runs.pop_front() else { return false };
        while from < to {
            let end = from.saturating_add(PIECE_BYTES).min(to);
            self.planned.push_back((from, end));
            from = end;
        }
        true
    }

    /// Plans the pieces of a segment that contain data. All of them are found before any is read, because a read can
    /// turn a hole of the file into data for the file system.
    fn plan(&mut self, segment: &Segment, limit: u64) {
        let (base, end) = (segment.base_offset(), segment.end_offset().min(limit));
        let file = segment.file();
        let mut position = base;
        while position < end {
            // The thread that reads the piece finds and reports errors.
            let data = match &file {
                Ok(file) => file.next_data(position - base).unwrap_or(Some(position - base)),
                Err(_) => Some(position - base),
            };
            let Some(data) = data.map(|data| base + data).filter(|data| *data < end) else { break };
            // The file system reports complete blocks; a record may begin before one.
            let start = if data - position < PIECE_BYTES { position } else { data };
            position = start.saturating_add(PIECE_BYTES).min(end);
            self.planned.push_back((start, position));
        }
    }

    /// Returns the next bytes of the segment with base offset `base` to request from the disk: position in its file,
    /// and length.
    fn ahead(&mut self, base: u64, start: u64, end: u64) -> Option<(u64, u64)> {
        let last = self.planned.back().map_or(end, |(_, end)| *end);
        let (from, to) = (self.asked.max(start), last.min(end.saturating_add(self.ahead_bytes)));
        self.asked = self.asked.max(to);
        to.checked_sub(from).filter(|len| *len > 0).map(|len| (from - base, len))
    }
}

/// Whether the walk continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WalkControl {
    On,
    /// The log ends.
    Home,
}

/// Joins the parts in log order.
pub(crate) trait Assembler {
    /// Returns the log offset of the next record; if it is not known yet, `first`, the begin of the part.
    fn position(&mut self, first: Option<u64>) -> Option<u64>;
    /// Adds a part that begins at the current position.
    fn take_over(&mut self, part: &mut PartFindings) -> Result<(), StoreError>;
    /// Walks from the current position, record by record, to `end` or to the end of the log.
    fn walk_sequentially(&mut self, end: u64) -> Result<WalkControl, StoreError>;
}

/// Walks these pieces of the log with up to `helpers` additional threads. One of them calls `aside` first, once.
pub(crate) fn walk(
    view: &View<'_>,
    mut pieces: LogPieces,
    helpers: u32,
    aside: &(dyn Fn() + Sync),
    assembler: &mut dyn Assembler,
) -> Result<(), StoreError> {
    let best = view.files.vfs.best_read_bytes();
    pieces.ahead_bytes = best.map_or(AHEAD_BYTES, |best| REQUESTS_AHEAD * best);
    let pieces_out = best.map_or(PIECES_OUT, |_| helpers as usize + 2);
    // Scanners and parts keep their buffers from one piece to the next.
    let scanners = Mutex::new(Vec::new());
    let spare_parts = Mutex::new(Vec::new());
    let make = |piece: WalkPiece| {
        let spare = scanners.lock().pop();
        let mut scanner = spare.unwrap_or_else(|| new_scanner(view));
        let spare = spare_parts.lock().pop();
        let mut part = spare.unwrap_or_default();
        let outcome = make_part(view, &mut scanner, &piece, &mut part);
        scanners.lock().push(scanner);
        outcome.map(|()| (piece.end, part))
    };
    let work = |piece| catch_panic(&view.files.root, || make(piece));
    let mut put = |(end, mut part): (u64, PartFindings)| {
        let go = assemble(view, assembler, &mut part, end)?;
        spare_parts.lock().push(part);
        Ok::<_, StoreError>(go)
    };
    let pool = Pool::new(helpers, "mq-verify");
    pool.run_alongside(aside, || {
        pool.in_order(pieces_out - 1, &work, |jobs| {
            while let Some(piece) = pieces.take(&view.list, view.limit) {
                jobs.give(piece);
                while let Some(made) = jobs.take_ready() {
                    if put(made?)? == WalkControl::Home {
                        return Ok(());
                    }
                }
            }
            while let Some(made) = jobs.take() {
                if put(made?)? == WalkControl::Home {
                    return Ok(());
                }
            }
            Ok(())
        })
    })
}

fn new_scanner(view: &View<'_>) -> LogScanner {
    let list = Arc::clone(&view.list);
    LogScanner::new(list, view.list.min_offset(), view.limit, ScanChecks { crc: true })
}

/// Calls `work`; turns a panic into an error that the walk returns at the piece's turn.
fn catch_panic<T>(root: &Path, work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(StoreError::Poisoned {
            path: root.to_owned(),
            stage: "verifying",
            cause: "a thread that checked the log panicked".to_owned(),
        })
    })
}

/// Joins the part of a piece that ends at `end` to the earlier parts.
fn assemble(
    view: &View<'_>,
    assembler: &mut dyn Assembler,
    part: &mut PartFindings,
    end: u64,
) -> Result<WalkControl, StoreError> {
    // Nothing to do if one record covers the complete piece.
    let position = assembler.position(part.first);
    if position.is_none_or(|position| position >= end) {
        return Ok(WalkControl::On);
    }
    let follows = |(first, position): (u64, u64)| {
        // A search for a record passes the header before it.
        let header = if view.list.has_entries(position) { RAFT_HEADER_BYTES as u64 } else { 0 };
        first == position || first == position + header
    };
    if part.first.zip(position).is_some_and(follows) {
        assembler.take_over(part)?;
    }
    assembler.walk_sequentially(end)
}

/// Makes the part of a piece: from the first record in it to the first one after it, or to damage.
fn make_part(
    view: &View<'_>,
    scanner: &mut LogScanner,
    piece: &WalkPiece,
    part: &mut PartFindings,
) -> Result<(), StoreError> {
    part.begin(piece.start);
    if let Some((from, len)) = piece.ahead
        && let Ok(file) = piece.segment.file()
    {
        // The reads find and report errors.
        let _ = file.expect_read(from, len);
    }
    let first = if piece.start == piece.segment.base_offset() {
        Some(piece.start)
    } else {
        scanner.resync_before(piece.start, piece.end)?
    };
    let Some(first) = first else {
        part.end = piece.end;
        return Ok(());
    };
    part.first = Some(first);
    scanner.seek(first);
    add_records(view, scanner, piece.end, part)?;
    part.compare(view)
}

/// Adds records to `part` until one begins at or after `end`, or until bytes that are no record.
pub(super) fn add_records(
    view: &View<'_>,
    scanner: &mut LogScanner,
    end: u64,
    part: &mut PartFindings,
) -> Result<(), StoreError> {
    loop {
        scanner.outlines(end, |record, offset, own_crc| part.add(&view.rules, record, offset, own_crc))?;
        part.end = scanner.position();
        if part.end >= end {
            return Ok(());
        }
        match scanner.next_item()? {
            ScanItem::Record(record) => {
                let record = record.outline();
                part.add(&view.rules, &record, part.end, record.has_own_crc());
            }
            ScanItem::Filler { .. } => {}
            ScanItem::End { .. } | ScanItem::Damaged(_) => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_that_names_the_store() {
        let root = Path::new("/store");
        let error = catch_panic(root, || -> Result<(), _> { panic!("planted") }).unwrap_err();
        assert!(matches!(error, StoreError::Poisoned { path, stage: "verifying", .. } if path == root));
        assert_eq!(catch_panic(root, || Ok(7)).unwrap(), 7);
    }
}
