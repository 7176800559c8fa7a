//! Finding everything in the log that does not hold together.
//!
//! Owns the walk from the first record to the last, which goes on behind each damage at the next record that
//! holds together, so that one bad record never hides those after it. Reads only, one window at a time; what it
//! keeps grows with the damage and the queues, not with the log.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use mqstore_format::{EntryFields, RecordView, validate_stored_topic};

use super::edges::{Edge, Edges};
use super::{Claimed, LostOffsets};
use crate::commit_log::{Damage, LogScanner, ScanChecks, ScanItem, SegmentList};
use crate::error::StoreError;

/// Bytes between two looks at who watches.
const TELL_BYTES: u64 = 1 << 20;

/// Pieces that one repair fills. A name that is a number far off must not fill the disk with segments.
const MOST_PIECES: usize = 1 << 16;

/// Gaps in queues that are told one by one.
const MOST_GAPS: usize = 1 << 20;

/// What lies between two things that hold together, within one segment's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The log offset of its first byte.
    pub(super) from: u64,
    /// One past its last byte.
    pub(super) to: u64,
    /// The file, where there is one.
    pub(super) path: Option<PathBuf>,
    /// Where the segment starts that it lies in.
    pub(super) base: u64,
    /// Whether it reaches to the end of the segment.
    pub(super) to_end: bool,
    /// What is wrong.
    pub(super) reason: String,
    /// The store time of the record before it, else of the one behind it.
    pub(super) store_timestamp_ms: i64,
}

/// The log as it was found.
#[derive(Debug, Default)]
pub(super) struct Walked {
    /// What is to be filled, in log order.
    pub(super) pieces: Vec<Piece>,
    /// Where the log ends.
    pub(super) end: u64,
    /// What lies at the end instead of nothing.
    pub(super) torn: Option<Damage>,
    /// The last record: offset and size.
    pub(super) last: Option<(u64, u32)>,
    /// The newest store time.
    pub(super) store_timestamp_ms: i64,
    /// Messages that hold together.
    pub(super) messages: u64,
    /// Queue offsets that have no record.
    pub(super) missing: Vec<LostOffsets>,
    /// The first and the last record of each queue.
    pub(super) edges: Edges,
}

/// Walks the log; `watch` hears of the bytes done.
pub(super) fn walk(
    list: &Arc<SegmentList>,
    segment_bytes: u64,
    watch: &mut dyn FnMut(u64) -> Result<(), StoreError>,
) -> Result<Walked, StoreError> {
    let start = list.min_offset();
    let mut scanner = LogScanner::new(Arc::clone(list), start, u64::MAX, ScanChecks { crc: true });
    let mut walked = Walked { end: start, ..Walked::default() };
    let mut queues = Queues::default();
    let mut time = None;
    let mut told = start;
    loop {
        let offset = scanner.position();
        if offset >= told + TELL_BYTES {
            watch(offset - start)?;
            told = offset;
        }
        let (at, damage) = match scanner.next_item()? {
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
        let piece = Piece {
            from: at,
            to: next,
            path: None,
            base: 0,
            to_end: false,
            reason,
            store_timestamp_ms: time.unwrap_or(0),
        };
        cut_into_pieces(list, segment_bytes, &piece, &mut walked.pieces)?;
        scanner.seek(next);
    }
    walked.edges = queues.edges();
    walked.missing = queues.missing();
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

/// The offsets of all queues that no record claims.
#[derive(Debug, Default)]
struct Queues {
    topics: BTreeMap<String, BTreeMap<i32, (Claimed, Option<Edge>)>>,
    gaps: usize,
}

impl Queues {
    /// By the rules of [`crate::dispatch::DerivedQueues`].
    fn add(&mut self, record: &RecordView<'_>, place: u64) {
        if !record.dispatches_to_queue()
            || record.queue_id < 0
            || record.queue_offset < 0
            || validate_stored_topic(record.topic).is_err()
        {
            return;
        }
        let messages = record.inner_batch().map_or(1, |(_, messages)| i64::from(messages.max(1)));
        self.claim((record.topic, record.queue_id), record.queue_offset, messages, place);
        for (name, offset) in EntryFields::of(record.properties).light_queues(record.topic) {
            if validate_stored_topic(name).is_ok() {
                self.claim((name, 0), offset, 1, place);
            }
        }
    }

    fn claim(&mut self, (topic, queue_id): (&str, i32), offset: i64, messages: i64, place: u64) {
        if !self.topics.contains_key(topic) {
            self.topics.insert(topic.to_owned(), BTreeMap::new());
        }
        let Some(queues) = self.topics.get_mut(topic) else { return };
        let (claimed, edge) = queues.entry(queue_id).or_default();
        Edge::add(edge, offset, place);
        let room = self.gaps < MOST_GAPS;
        self.gaps += usize::from(claimed.claim(offset, offset.saturating_add(messages), room));
    }

    fn edges(&self) -> Edges {
        let of_topic = |queues: &BTreeMap<i32, (Claimed, Option<Edge>)>| {
            queues.iter().filter_map(|(id, (_, edge))| edge.map(|edge| (*id, edge))).collect()
        };
        self.topics.iter().map(|(topic, queues)| (topic.clone(), of_topic(queues))).collect()
    }

    fn missing(self) -> Vec<LostOffsets> {
        let mut found = Vec::new();
        for (topic, queues) in self.topics {
            for (queue_id, (claimed, _)) in queues {
                let lost =
                    |&(from, to): &(i64, i64)| LostOffsets { topic: topic.clone(), queue_id, from, to };
                found.extend(claimed.gaps().iter().map(lost));
            }
        }
        found
    }
}
