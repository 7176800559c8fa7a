//! The end of the log of a broker that ran with DLedger, for a reader.
//!
//! The last entries may never have been committed: a new leader replaces them, and an earlier tail stays in the file
//! after the entries that replaced it. So a reader ends at the last entry that something calls committed, or, if it
//! wants all of them, at the first entry that does not continue the indexes and terms before it.
//!
//! Consume queues name committed entries, with one exception. A leader that starts again dispatches all its entries. If
//! a new leader then replaces some of them, their units stay. So the queues count only up to an earlier tail.
//!
//! Source: `DLedgerMmapFileStore#recover`, `#truncate`, `DLedgerCommitLog#getMaxOffset`.

use std::ops::Range;
use std::sync::Arc;

use super::raft_history::{Fit, RaftHistory, Step, has_entry};
use super::read_only_end::LogEnd;
use crate::commit_log::{RaftItem, RaftWalk, Segment, SegmentList, is_unwritten};
use crate::consume_queue::QueueSet;
use mqstore_base::error::StoreError;
use mqstore_base::options::DledgerEnd;
use mqstore_base::store_files::{CommittedIndex, RaftLog, StoreFiles};

/// Number of data files before the end at which the search for the last entry starts, as in RocketMQ.
const FILES_BACK: usize = 3;

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
        DledgerEnd::All => last_entry(files, log, list, start),
        DledgerEnd::Queues => match queues_end(queues) {
            Some(end) => {
                let range = start.max(known)..end.clamp(start, list.end_offset());
                let end = before_earlier_tail(files, log, list, range)?;
                Ok(LogEnd { end, damage: None })
            }
            None if !has_entry(list, start)? => Ok(LogEnd { end: start, damage: None }),
            None => committed_end(files, log, list, start, "it has no consume queues"),
        },
        DledgerEnd::Committed => committed_end(files, log, list, start, "dledger_end is \"committed\""),
    }
}

/// Returns the log offset after the last record that a queue names; `None` without queue files.
fn queues_end(queues: &QueueSet) -> Option<u64> {
    let plain = queues.all().into_iter().map(|queue| queue.max_physical_end());
    let batches = queues.batches().into_iter().map(|queue| queue.max_physical_end());
    plain.chain(batches).max().map(|end| u64::try_from(end).unwrap_or(0))
}

/// Returns the end of `range`, or the begin of an earlier tail before it. DLedger removes the data files after an entry
/// that a new leader replaces, so such a tail is in the file of the end.
fn before_earlier_tail(
    files: &StoreFiles,
    log: &RaftLog,
    list: &Arc<SegmentList>,
    range: Range<u64>,
) -> Result<u64, StoreError> {
    let limit = range.end;
    let Some(segment) = limit.checked_sub(1).and_then(|last| list.find(last)) else { return Ok(limit) };
    let from = segment.base_offset().max(range.start);
    let mut history = RaftHistory::new(files, log, list, (from, limit), false)?;
    let mut found = from;
    loop {
        match history.next()? {
            Step::End => return Ok(limit),
            Step::Entry { fit: Fit::EarlierTail, .. } => return Ok(found),
            Step::Entry { fit: Fit::Damaged(index), .. } if !history.is_committed(index) => {}
            Step::Entry { end, .. } => found = end,
            // Damage, or the rest of an entry of the tail.
            Step::Lost(_) => {}
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
    let from = file_with(list, start, committed)?.unwrap_or(start);
    let mut history = RaftHistory::new(files, log, list, (from, u64::MAX), false)?;
    let (mut end, mut last) = (from, None);
    loop {
        match history.next()? {
            Step::Entry { fit: Fit::Continues(index), .. } if index > committed => break,
            Step::Entry { fit: Fit::Continues(index) | Fit::Damaged(index), end: after, .. } => {
                (end, last) = (after, Some(index));
                if index == committed {
                    return Ok(LogEnd { end, damage: None });
                }
            }
            Step::Entry { fit: Fit::Jumps | Fit::Unknown, .. } | Step::Lost(_) => {}
            Step::Entry { fit: Fit::EarlierTail, .. } | Step::End => break,
        }
    }
    let Some(last) = last else { return Ok(LogEnd { end, damage: None }) };
    let damage = format!(
        "{}: entry {committed} is committed, but entry {last} is the last one before it in the data files; the log ends \
         there",
        log.checkpoint().display()
    );
    Ok(LogEnd { end, damage: Some(damage) })
}

/// Returns the log offset before which everything is committed, as far as queues and checkpoint show it. Without both,
/// it is the end of the last written entry.
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
    let Some(end) = queues_end(queues).max(saved) else {
        return Ok(last_entry(files, log, list, start)?.end);
    };
    before_earlier_tail(files, log, list, start..end.clamp(start, list.end_offset()))
}

/// Returns the log offset of the data file that can contain the entry `index`: the last one whose first entry is not
/// after it.
fn file_with(list: &Arc<SegmentList>, start: u64, index: i64) -> Result<Option<u64>, StoreError> {
    for segment in list.segments().iter().rev().take_while(|segment| segment.base_offset() >= start) {
        if first_index(list, segment)?.is_some_and(|first| first <= index) {
            return Ok(Some(segment.base_offset()));
        }
    }
    Ok(None)
}

/// Returns the index of the first entry of a data file, if its header is intact and the next entry follows it.
fn first_index(list: &Arc<SegmentList>, segment: &Segment) -> Result<Option<i64>, StoreError> {
    let mut walk = RaftWalk::new(Arc::clone(list), segment.base_offset(), segment.end_offset());
    let mut first = None;
    loop {
        match walk.next_item()? {
            RaftItem::Entry(entry) if entry.fault.is_some() => return Ok(None),
            RaftItem::Entry(entry) => match first {
                None => first = Some(entry.header.index),
                Some(first) => {
                    return Ok(Some(first).filter(|first| first.checked_add(1) == Some(entry.header.index)));
                }
            },
            RaftItem::Blank => {}
            RaftItem::End(_) | RaftItem::Damaged(_) => return Ok(first),
        }
    }
}

/// Finds the last written entry. An entry that is damaged ends the log only if no later entry continues its history.
fn last_entry(
    files: &StoreFiles,
    log: &RaftLog,
    list: &Arc<SegmentList>,
    start: u64,
) -> Result<LogEnd, StoreError> {
    let mut written = Vec::new();
    for segment in list.segments().iter().filter(|segment| segment.base_offset() >= start) {
        if !is_unwritten(segment)? {
            written.push(segment.base_offset());
        }
    }
    let Some(first) = written.get(written.len().saturating_sub(FILES_BACK)) else {
        return Ok(LogEnd { end: start, damage: None });
    };
    let mut history = RaftHistory::new(files, log, list, (*first, u64::MAX), true)?;
    // The first damage after the end, and where it is.
    let (mut end, mut damage): (u64, Option<(u64, String)>) = (*first, None);
    let mut ended = false;
    while !ended {
        let (offset, reason) = match history.next()? {
            Step::End | Step::Entry { fit: Fit::EarlierTail, .. } => break,
            Step::Lost(offset) => (offset, "no Raft entry starts here".to_owned()),
            Step::Entry { fit: Fit::Continues(_), fault: None, end: after, .. } => {
                (end, damage) = (after, None);
                continue;
            }
            Step::Entry { offset, fault: Some(fault), .. } => (offset, fault),
            Step::Entry { offset, fit, .. } => {
                ended = fit == Fit::Jumps;
                (offset, "its index does not follow the entry before it".to_owned())
            }
        };
        damage = damage.or(Some((offset, reason)));
    }
    let damage = damage.and_then(|(offset, reason)| {
        let segment = list.find(offset)?;
        let at = offset - segment.base_offset();
        Some(format!("{} at offset {at}: {reason}; the log ends there", segment.path().display()))
    });
    Ok(LogEnd { end, damage })
}
