//! The end of the log of a broker that ran with DLedger, for a reader.
//!
//! The last entries may never have been committed: a new leader replaces them, and an earlier tail stays in the file
//! after the entries that replaced it. So a reader ends at the last entry that something calls committed, or, if it
//! wants all of them, at the first entry that does not continue the indexes and terms before it.
//!
//! Consume queues name committed entries, with one exception. A leader that starts again dispatches all its entries. If a
//! new leader then replaces some of them, their units stay. So the queues count only up to an earlier tail.
//!
//! Source: `DLedgerMmapFileStore#recover`, `#truncate`, `DLedgerCommitLog#getMaxOffset`.

use std::sync::Arc;

use mqstore_format::RAFT_HEADER_BYTES;

use super::read_only_end::LogEnd;
use crate::commit_log::{
    LogScanner, RaftEntry, RaftItem, RaftWalk, ScanChecks, Segment, SegmentList, check_record, is_unwritten,
};
use crate::consume_queue::QueueSet;
use mqstore_base::error::StoreError;
use mqstore_base::options::DledgerEnd;
use mqstore_base::store_files::{CommittedIndex, RaftLog, StoreFiles};

/// Number of data files before the end at which the search for the last entry starts, as in RocketMQ.
const FILES_BACK: usize = 3;

/// Index and term of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RaftPlace {
    index: i64,
    term: i64,
}

impl RaftPlace {
    fn of(entry: &RaftEntry<'_>) -> Self {
        Self { index: entry.header.index, term: entry.header.term }
    }

    /// Whether the history ends with this entry because `next`, which is written after it, is of an earlier tail.
    fn ends_before(self, next: Self) -> bool {
        next.term < self.term || next.index <= self.index
    }

    /// Whether `next` can be this number of entries after this one, in one history.
    fn is_followed_by(self, next: Self, entries: i64) -> bool {
        self.index.checked_add(entries) == Some(next.index) && next.term >= self.term
    }
}

/// Finds the end of the log: see [`DledgerEnd`]. Plain segments from before the upgrade always belong to the log. All
/// before `known` belongs to it, as an earlier call found.
///
/// # Errors
/// [`StoreError::Unsupported`] if no file says which entries are committed.
pub fn raft_end(
    files: &StoreFiles,
    log: &RaftLog,
    list: &Arc<SegmentList>,
    queues: &QueueSet,
    (wanted, known): (DledgerEnd, u64),
) -> Result<LogEnd, StoreError> {
    let start = list.entries_from().unwrap_or(list.min_offset());
    match wanted {
        DledgerEnd::All => last_entry(list, start),
        DledgerEnd::Queues => match queues_end(queues) {
            Some(end) => {
                let end = before_earlier_tail(list, start.max(known), end.clamp(start, list.end_offset()))?;
                Ok(LogEnd { end, damage: None })
            }
            None if !has_entry(list, start)? => Ok(LogEnd { end: start, damage: None }),
            None => committed_end(files, log, list, start, "it has no consume queues"),
        },
        DledgerEnd::Committed => committed_end(files, log, list, start, "dledger_end is \"committed\""),
    }
}

/// Whether an entry is written at or after log offset `at`, where one would begin.
///
/// # Errors
/// I/O errors.
pub fn has_entry(list: &Arc<SegmentList>, at: u64) -> Result<bool, StoreError> {
    let mut walk = RaftWalk::new(Arc::clone(list), at, u64::MAX);
    loop {
        match walk.next_item()? {
            RaftItem::Blank => {}
            RaftItem::Entry(_) | RaftItem::Damaged(_) => return Ok(true),
            RaftItem::End(_) => return Ok(false),
        }
    }
}

/// Returns the log offset after the last record that a queue names; `None` without queue files.
fn queues_end(queues: &QueueSet) -> Option<u64> {
    let plain = queues.all().into_iter().map(|queue| queue.max_physical_end());
    let batches = queues.batches().into_iter().map(|queue| queue.max_physical_end());
    plain.chain(batches).max().map(|end| u64::try_from(end).unwrap_or(0))
}

/// Returns `end`, or the begin of an earlier tail before it. DLedger removes the data files after an entry that a new
/// leader replaces, so such a tail is in the file of `end`.
fn before_earlier_tail(list: &Arc<SegmentList>, start: u64, end: u64) -> Result<u64, StoreError> {
    let Some(segment) = end.checked_sub(1).and_then(|last| list.find(last)) else { return Ok(end) };
    let from = segment.base_offset().max(start);
    let mut walk = RaftWalk::new(Arc::clone(list), from, end);
    let (mut found, mut last): (u64, Option<RaftPlace>) = (from, None);
    loop {
        match walk.next_item()? {
            RaftItem::Blank => {}
            RaftItem::End(_) => return Ok(end),
            RaftItem::Entry(entry) if entry.fault.is_some() => {}
            RaftItem::Entry(entry) => {
                let place = RaftPlace::of(&entry);
                if last.is_some_and(|last| last.ends_before(place)) {
                    return Ok(found);
                }
                (found, last) = (end_of(&entry), Some(place));
            }
            // Damage, or the rest of an entry of the tail.
            RaftItem::Damaged(offset) => match next_entry(list, offset)?.filter(|next| *next < end) {
                Some(next) => walk.seek(next),
                None => return Ok(end),
            },
        }
    }
}

/// Returns the log offset after the entry that DLedger's checkpoint calls committed.
///
/// # Errors
/// [`StoreError::Unsupported`] if the checkpoint does not name one.
fn committed_end(
    files: &StoreFiles,
    log: &RaftLog,
    list: &Arc<SegmentList>,
    start: u64,
    because: &str,
) -> Result<LogEnd, StoreError> {
    let CommittedIndex::Saved(committed) = files.committed_index(log)? else {
        return Err(StoreError::Unsupported {
            path: log.checkpoint(),
            reason: format!(
                "the log would end at the last committed entry, because {because}, but this file does not name it; \
                 read all written entries, which may contain messages that were never acknowledged, with \
                 dledger_end=\"all\""
            ),
        });
    };
    let Some((from, _)) = file_with(list, start, committed)?.filter(|_| committed >= 0) else {
        return Ok(LogEnd { end: start, damage: None });
    };
    let mut walk = RaftWalk::new(Arc::clone(list), from, u64::MAX);
    let mut end = from;
    let mut last = None;
    loop {
        match walk.next_item()? {
            RaftItem::Entry(entry) if entry.header.index > committed && entry.fault.is_none() => break,
            RaftItem::Entry(entry) => {
                let place = RaftPlace::of(&entry);
                end = end_of(&entry);
                last = Some(place.index);
                if place.index == committed {
                    return Ok(LogEnd { end, damage: None });
                }
            }
            RaftItem::Blank => {}
            RaftItem::End(_) => break,
            RaftItem::Damaged(offset) => match next_entry(list, offset)? {
                Some(next) => walk.seek(next),
                None => break,
            },
        }
    }
    let found = last.map_or_else(|| "no entry".to_owned(), |last| format!("entry {last}"));
    let damage = format!(
        "{}: entry {committed} is committed, but {found} is the last one before it in the data files; the log ends \
         there",
        log.checkpoint().display()
    );
    Ok(LogEnd { end, damage: Some(damage) })
}

/// Returns the log offset before which everything is committed, as far as queues and checkpoint show it. Without both, it
/// is the end of the last written entry.
///
/// # Errors
/// I/O errors.
pub fn known_committed_end(
    files: &StoreFiles,
    log: &RaftLog,
    list: &Arc<SegmentList>,
    queues: &QueueSet,
) -> Result<u64, StoreError> {
    let start = list.entries_from().unwrap_or(list.min_offset());
    let saved = match committed_end(files, log, list, start, "") {
        Err(StoreError::Unsupported { .. }) => None,
        end => Some(end?.end),
    };
    let Some(end) = queues_end(queues).max(saved) else { return Ok(last_entry(list, start)?.end) };
    before_earlier_tail(list, start, end.clamp(start, list.end_offset()))
}

fn end_of(entry: &RaftEntry<'_>) -> u64 {
    let record = entry.record.map(|record| (record.len() + RAFT_HEADER_BYTES) as u64);
    let own = u64::try_from(entry.header.size).ok().filter(|_| entry.fault.is_none());
    entry.offset + own.or(record).unwrap_or(RAFT_HEADER_BYTES as u64)
}

/// Returns the data file that can contain the entry `index`, the last one whose first entry is not after it, and the
/// place of that first entry.
fn file_with(
    list: &Arc<SegmentList>,
    start: u64,
    index: i64,
) -> Result<Option<(u64, RaftPlace)>, StoreError> {
    for segment in list.segments().iter().rev().take_while(|segment| segment.base_offset() >= start) {
        if let Some(first) = first_entry(list, segment)?.filter(|first| first.index <= index) {
            return Ok(Some((segment.base_offset(), first)));
        }
    }
    Ok(None)
}

/// Returns the place of the first entry of a data file, if its header is intact.
fn first_entry(list: &Arc<SegmentList>, segment: &Segment) -> Result<Option<RaftPlace>, StoreError> {
    let mut walk = RaftWalk::new(Arc::clone(list), segment.base_offset(), segment.end_offset());
    loop {
        match walk.next_item()? {
            RaftItem::Entry(entry) => return Ok(entry.fault.is_none().then(|| RaftPlace::of(&entry))),
            RaftItem::Blank => {}
            RaftItem::End(_) | RaftItem::Damaged(_) => return Ok(None),
        }
    }
}

/// Returns the log offset of the next header with an intact record after `offset`.
fn next_entry(list: &Arc<SegmentList>, offset: u64) -> Result<Option<u64>, StoreError> {
    let mut scanner = LogScanner::new(Arc::clone(list), offset, u64::MAX, ScanChecks { crc: true });
    let next = scanner.resync(offset + 1)?;
    Ok(next.and_then(|next| next.checked_sub(RAFT_HEADER_BYTES as u64)).filter(|next| *next > offset))
}

/// Finds the last written entry. An entry that is damaged ends the log only if no later entry continues its history.
fn last_entry(list: &Arc<SegmentList>, start: u64) -> Result<LogEnd, StoreError> {
    let mut files = Vec::new();
    for segment in list.segments().iter().filter(|segment| segment.base_offset() >= start) {
        if !is_unwritten(segment)? {
            files.push(segment.base_offset());
        }
    }
    let Some(first) = files.get(files.len().saturating_sub(FILES_BACK)) else {
        return Ok(LogEnd { end: start, damage: None });
    };
    let mut walk = RaftWalk::new(Arc::clone(list), *first, u64::MAX);
    let (mut end, mut last): (u64, Option<RaftPlace>) = (*first, None);
    // Entries after `last` that are damaged, and where the first of them is.
    let (mut doubtful, mut damage): (i64, Option<(u64, String)>) = (0, None);
    loop {
        let bad = match walk.next_item()? {
            RaftItem::Blank => continue,
            RaftItem::End(_) => break,
            RaftItem::Damaged(offset) => {
                let next = next_entry(list, offset)?;
                let Some(next) = next else { break };
                walk.seek(next);
                Some((offset, "no Raft entry starts here".to_owned()))
            }
            RaftItem::Entry(entry) => {
                let place = RaftPlace::of(&entry);
                let fault = entry.fault.clone().or_else(|| fault_of_record(&entry));
                let continues = last.is_none_or(|last| last.is_followed_by(place, doubtful + 1));
                match fault {
                    None if continues => {
                        (end, last) = (end_of(&entry), Some(place));
                        (doubtful, damage) = (0, None);
                        None
                    }
                    // An earlier tail: its entries never continue this history.
                    None if last.is_some_and(|last| last.ends_before(place)) => break,
                    None => {
                        Some((entry.offset, format!("the index is {} after entry {last:?}", place.index)))
                    }
                    Some(fault) => Some((entry.offset, fault)),
                }
            }
        };
        if let Some(bad) = bad {
            doubtful += 1;
            damage = damage.or(Some(bad));
        }
    }
    let damage = damage.and_then(|(offset, reason)| {
        let segment = list.find(offset)?;
        let at = offset - segment.base_offset();
        Some(format!("{} at offset {at}: {reason}; the log ends there", segment.path().display()))
    });
    Ok(LogEnd { end, damage })
}

/// Describes the damage of the record of an entry that should have one.
fn fault_of_record(entry: &RaftEntry<'_>) -> Option<String> {
    if entry.header.has_no_record() {
        return None;
    }
    let Some(record) = entry.record else { return Some("the entry contains no record".to_owned()) };
    check_record(record, entry.offset + RAFT_HEADER_BYTES as u64, ScanChecks { crc: true }).err()
}
