//! Finding everything in the log that does not hold together.
//!
//! Owns the walk from the first record to the last, which goes on behind each damage at the next record that
//! holds together, so that one bad record never hides those after it. Reads only, one window at a time; what it
//! keeps grows with the damage and the queues, not with the log.

use std::path::PathBuf;
use std::sync::Arc;

use super::queue_records::{LogQueues, LogSummary};
use mqstore_base::error::StoreError;
use mqstore_log::commit_log::{Damage, LogScanner, ScanChecks, ScanItem, SegmentList};

/// Bytes between two looks at who watches.
const TELL_BYTES: u64 = 1 << 20;

/// Pieces that one repair fills. A name that is a number far off must not fill the disk with segments.
const MOST_PIECES: usize = 1 << 16;

/// Why a record is given up that holds together.
const NO_PLACE: &str = "its queue offset contradicts those around it, and hides them";

/// What lies between two things that hold together, within one segment's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The log offset of its first byte.
    pub(crate) from: u64,
    /// One past its last byte.
    pub(crate) to: u64,
    /// The file, where there is one.
    pub(crate) path: Option<PathBuf>,
    /// Where the segment starts that it lies in.
    pub(crate) base: u64,
    /// Whether it reaches to the end of the segment.
    pub(crate) to_end: bool,
    /// What is wrong.
    pub(crate) reason: String,
    /// The store time of the record before it, else of the one behind it.
    pub(crate) store_timestamp_ms: i64,
}

impl Piece {
    /// An empty one.
    fn at(from: u64, store_timestamp_ms: i64) -> Self {
        let reason = String::new();
        Self { from, to: from, path: None, base: 0, to_end: false, reason, store_timestamp_ms }
    }
}

/// The log as it was found.
#[derive(Debug, Default)]
pub(crate) struct WalkedLog {
    /// What is to be filled, in log order.
    pub(crate) pieces: Vec<Piece>,
    /// Where the log ends.
    pub(crate) end: u64,
    /// What lies at the end instead of nothing.
    pub(crate) torn: Option<Damage>,
    /// The last record: offset and size.
    pub(crate) last: Option<(u64, u32)>,
    /// The newest store time.
    pub(crate) store_timestamp_ms: i64,
    /// Messages that hold together.
    pub(crate) messages: u64,
    /// What the records say of their queues.
    pub(crate) said: LogSummary,
}

impl WalkedLog {
    /// Whether anything was lost between two places of the log.
    pub(crate) fn is_damaged(&self, from: u64, to: u64) -> bool {
        let behind = self.pieces.partition_point(|piece| piece.from < to);
        behind.checked_sub(1).and_then(|at| self.pieces.get(at)).is_some_and(|piece| piece.to > from)
    }
}

/// Walks the log, with what `queues` knows of single records; `watch` hears of the bytes done.
pub(crate) fn walk(
    list: &Arc<SegmentList>,
    segment_bytes: u64,
    mut queues: LogQueues<'_>,
    watch: &mut dyn FnMut(u64) -> Result<(), StoreError>,
) -> Result<WalkedLog, StoreError> {
    let start = list.min_offset();
    let mut scanner = LogScanner::new(Arc::clone(list), start, u64::MAX, ScanChecks { crc: true });
    let mut walked = WalkedLog { end: start, ..WalkedLog::default() };
    let mut time = None;
    let mut told = start;
    loop {
        let offset = scanner.position();
        if offset >= told + TELL_BYTES {
            watch(offset - start)?;
            told = offset;
        }
        let (at, damage) = match scanner.next_item()? {
            ScanItem::Record(record) if queues.gives_up(offset) => {
                let piece = Piece {
                    to: offset + u64::from(record.size),
                    reason: NO_PLACE.to_owned(),
                    ..Piece::at(offset, time.unwrap_or(record.store_timestamp))
                };
                cut_into_pieces(list, segment_bytes, &piece, &mut walked.pieces)?;
                continue;
            }
            ScanItem::Record(record) => {
                let stored = record.store_timestamp;
                if time.is_none() {
                    walked.pieces.iter_mut().for_each(|piece| piece.store_timestamp_ms = stored);
                }
                time = Some(stored);
                walked.last = Some((offset, record.size));
                walked.store_timestamp_ms = walked.store_timestamp_ms.max(stored);
                if !record.is_placeholder() {
                    walked.messages += 1;
                    queues.add(&record, offset);
                }
                continue;
            }
            ScanItem::Filler { .. } => continue,
            ScanItem::End { offset } => (offset, None),
            ScanItem::Damaged(damage) => (damage.offset, Some(damage)),
        };
        let from = at + u64::from(damage.is_some());
        let Some(next) = scanner.resync_watched(from, &mut |reached| watch(reached - start))? else {
            (walked.end, walked.torn) = (at, damage);
            break;
        };
        let reason =
            damage.map_or_else(|| "zeros with records behind them".to_owned(), |damage| damage.reason);
        let piece = Piece { to: next, reason, ..Piece::at(at, time.unwrap_or(0)) };
        cut_into_pieces(list, segment_bytes, &piece, &mut walked.pieces)?;
        scanner.seek(next);
    }
    walked.said = queues.finish();
    Ok(walked)
}

/// Cuts `whole` where segments meet.
fn cut_into_pieces(
    list: &SegmentList,
    segment_bytes: u64,
    whole: &Piece,
    pieces: &mut Vec<Piece>,
) -> Result<(), StoreError> {
    let phase = list.min_offset() % segment_bytes;
    let mut at = whole.from;
    while at < whole.to {
        let base = at - (at - phase) % segment_bytes;
        let end = base + segment_bytes;
        let file = list.next_from(base).filter(|segment| segment.base_offset() == base);
        if pieces.len() >= MOST_PIECES {
            return Err(StoreError::Unsupported {
                path: file.map_or_else(PathBuf::new, |segment| segment.path()),
                reason: format!(
                    "more than {MOST_PIECES} places of the log are damaged or missing up to offset {}; move away \
                     what is no part of it",
                    whole.to
                ),
            });
        }
        pieces.push(Piece {
            from: at,
            to: end.min(whole.to),
            path: file.map(|segment| segment.path()),
            base,
            to_end: end <= whole.to,
            ..whole.clone()
        });
        at = end;
    }
    Ok(())
}
