//! Walking the log with several threads, in pieces that are put together in the order of the log.
//!
//! ```text
//! pieces of the log -> threads -> parts: records, each beside its queue entry
//!                                   | in the order of the log
//!                                   v
//!         damage between parts; entries of a queue counted; keys beside index entries
//! ```
//!
//! Owns nothing on disk. A piece is some mebibytes of a segment. Who takes one looks in it for the first record that
//! holds together and goes on from there; in a whole log that is where the record before it ends, which
//! whoever puts the pieces together checks. Where it is not, the log is damaged there (or somebody sent a piece of a
//! log as a message), and that stretch is walked once more, from record to record.
//!
//! A pool works on the pieces, and the calling thread takes the parts in order. The number of pieces that are out has a
//! bound, and so has memory.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use mqstore_io::Pool;
use mqstore_io::sync::Mutex;

use super::log_part::{Part, View};
use mqstore_base::error::StoreError;
use mqstore_log::commit_log::{LogScanner, ScanChecks, ScanItem, Segment, SegmentList};

/// Bytes of a piece; in tests so few that small logs have many.
const PIECE_BYTES: u64 = if cfg!(test) { 1 << 10 } else { 8 << 20 };

/// How far before its turn the disk is asked for the log.
const AHEAD_BYTES: u64 = 24 << 20;

/// Pieces that are given to the pool and not taken from it, at most.
const PIECES_OUT: usize = 16;

/// Neighbouring bytes of one segment.
#[derive(Debug)]
struct Piece {
    segment: Arc<Segment>,
    start: u64,
    end: u64,
    /// What the disk is to be asked for meanwhile: a place in the segment's file, and bytes.
    ahead: Option<(u64, u64)>,
}

/// The pieces of a log, or of a stretch of it, one after the other.
#[derive(Debug, Default)]
pub(crate) struct LogPieces {
    /// The next segment.
    segment: usize,
    /// The runs of bytes that the pieces lie in, where they were planned before.
    runs: Option<VecDeque<(u64, u64)>>,
    /// What is left of the segment, or of the run: from, to.
    planned: VecDeque<(u64, u64)>,
    /// Before this place of it the disk was asked for everything.
    asked: u64,
}

impl LogPieces {
    /// The pieces in these runs: see [`Self::runs`].
    pub(crate) fn of(runs: &[(u64, u64)]) -> Self {
        Self { runs: Some(runs.iter().copied().collect()), ..Self::default() }
    }

    /// All pieces of a log: from, to.
    pub(crate) fn all(list: &SegmentList, limit: u64) -> Vec<(u64, u64)> {
        let mut pieces = Self::default();
        std::iter::from_fn(|| pieces.take(list, limit).map(|piece| (piece.start, piece.end))).collect()
    }

    /// Neighbouring pieces as runs, none of which goes from one segment to the next.
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

    fn take(&mut self, list: &SegmentList, limit: u64) -> Option<Piece> {
        while self.planned.is_empty() && self.plan_next(list, limit) {}
        let (start, end) = self.planned.pop_front()?;
        let segment = Arc::clone(list.find(start)?);
        let ahead = self.ahead(segment.base_offset(), start, end);
        Some(Piece { segment, start, end, ahead })
    }

    /// Plans the pieces of the next segment, or of the next run; whether there was one.
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

    /// Plans the pieces of a segment that hold data. All are looked for before any is read: room that nothing was
    /// written to counts as data as soon as it was read.
    fn plan(&mut self, segment: &Segment, limit: u64) {
        let (base, end) = (segment.base_offset(), segment.end_offset().min(limit));
        let file = segment.file();
        let mut position = base;
        while position < end {
            // What is wrong here, who reads the piece will find and say.
            let data = match &file {
                Ok(file) => file.next_data(position - base).unwrap_or(Some(position - base)),
                Err(_) => Some(position - base),
            };
            let Some(data) = data.map(|data| base + data).filter(|data| *data < end) else { break };
            // The file system knows of whole blocks; a record may begin before one.
            let start = if data - position < PIECE_BYTES { position } else { data };
            position = start.saturating_add(PIECE_BYTES).min(end);
            self.planned.push_back((start, position));
        }
    }

    /// The next bytes of the segment with base offset `base` that the disk is to be asked for: a place in its file,
    /// and how many.
    fn ahead(&mut self, base: u64, start: u64, end: u64) -> Option<(u64, u64)> {
        let last = self.planned.back().map_or(end, |(_, end)| *end);
        let (from, to) = (self.asked.max(start), last.min(end.saturating_add(AHEAD_BYTES)));
        self.asked = self.asked.max(to);
        to.checked_sub(from).filter(|len| *len > 0).map(|len| (from - base, len))
    }
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WalkControl {
    On,
    /// The log ends.
    Home,
}

/// Who puts the parts together.
pub(crate) trait Assembler {
    /// Where the next record begins; whoever does not know that yet takes the `first` of a part.
    fn position(&mut self, first: Option<u64>) -> Option<u64>;
    /// Takes over a part that begins there.
    fn take_over(&mut self, part: &mut Part) -> Result<(), StoreError>;
    /// Goes on from there by itself, until `end` or the end of the log.
    fn walk_sequentially(&mut self, end: u64) -> Result<WalkControl, StoreError>;
}

/// Walks these pieces of the log with up to `helpers` more threads. One of them begins with `aside`, which is called
/// once.
pub(crate) fn walk(
    view: &View<'_>,
    mut pieces: LogPieces,
    helpers: u32,
    aside: &(dyn Fn() + Sync),
    assembler: &mut dyn Assembler,
) -> Result<(), StoreError> {
    // A scanner and a part keep their buffers from one piece to the next.
    let scanners = Mutex::new(Vec::new());
    let spare_parts = Mutex::new(Vec::new());
    let make = |piece: Piece| {
        let spare = scanners.lock().pop();
        let mut scanner = spare.unwrap_or_else(|| new_scanner(view));
        let spare = spare_parts.lock().pop();
        let mut part = spare.unwrap_or_default();
        let outcome = make_part(view, &mut scanner, &piece, &mut part);
        scanners.lock().push(scanner);
        outcome.map(|()| (piece.end, part))
    };
    let work = |piece| catch_panic(&view.files.root, || make(piece));
    let mut put = |(end, mut part): (u64, Part)| {
        let go = assemble(assembler, &mut part, end)?;
        spare_parts.lock().push(part);
        Ok::<_, StoreError>(go)
    };
    let pool = Pool::new(helpers, "mq-verify");
    pool.run_alongside(aside, || {
        pool.in_order(PIECES_OUT - 1, &work, |jobs| {
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

/// Calls `work`; a panic in it becomes an error, which the walk returns at the turn of the piece.
fn catch_panic<T>(root: &Path, work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(StoreError::Poisoned {
            path: root.to_owned(),
            stage: "verifying",
            cause: "a thread that checked the log ended before it was done".to_owned(),
        })
    })
}

/// Puts the part of a piece that ends at `end` to those before it.
fn assemble(assembler: &mut dyn Assembler, part: &mut Part, end: u64) -> Result<WalkControl, StoreError> {
    // A record that goes on through all of a piece leaves nothing to do there.
    let position = assembler.position(part.first);
    if position.is_none_or(|position| position >= end) {
        return Ok(WalkControl::On);
    }
    if part.first == position {
        assembler.take_over(part)?;
    }
    assembler.walk_sequentially(end)
}

/// Makes the part of a piece: from the first record in it to the first one behind it, or to what is no record.
fn make_part(
    view: &View<'_>,
    scanner: &mut LogScanner,
    piece: &Piece,
    part: &mut Part,
) -> Result<(), StoreError> {
    part.begin(piece.start);
    if let Some((from, len)) = piece.ahead
        && let Ok(file) = piece.segment.file()
    {
        // What is wrong here, the reads will find and say.
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

/// Adds records to `part` until one begins at `end` or behind it, or something else than a record is met.
pub(super) fn add_records(
    view: &View<'_>,
    scanner: &mut LogScanner,
    end: u64,
    part: &mut Part,
) -> Result<(), StoreError> {
    loop {
        scanner.rows(end, |record, offset| part.add(&view.rules, record, offset))?;
        part.end = scanner.position();
        if part.end >= end {
            return Ok(());
        }
        match scanner.next_item()? {
            ScanItem::Record(record) => part.add(&view.rules, &record.outline(), part.end),
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
