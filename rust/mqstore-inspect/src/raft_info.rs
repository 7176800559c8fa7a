//! Describes the Raft entries of a broker that ran with DLedger, without a read of all of them.
//!
//! The terms come from the Raft index, by binary search, because terms never fall.

use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_base::store_files::{CommittedIndex, RaftLog, StoreFiles};
use mqstore_log::commit_log::{RaftItem, RaftWalk, SegmentList};
use mqstore_log::recovery::{FoundUnit, RaftUnits};

/// Maximum number of terms that are listed.
const MOST_TERMS: usize = 1000;

/// A term, with the numbers of its first and its last entry.
pub type RaftTerm = (i64, i64, i64);

/// The log of a member of a DLedger group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaftInfo {
    /// Id of the member.
    pub member: String,
    /// Number of data files.
    pub data_files: usize,
    /// Log offset of the first data file; records before it are from before the upgrade to DLedger.
    pub data_min_offset: u64,
    /// Number of the first entry in the data files.
    pub first_index: Option<i64>,
    /// Number of the last entry that a reader reads.
    pub last_index: Option<i64>,
    /// Number of the last committed entry according to DLedger's checkpoint.
    pub committed_index: Option<i64>,
    /// Term of the member.
    pub current_term: Option<i64>,
    /// Terms in order, each with its first and last entry; empty if the Raft index does not have them.
    pub terms: Vec<RaftTerm>,
}

/// Describes the entries before log offset `end`.
pub(crate) fn raft_info(
    files: &StoreFiles,
    log: &RaftLog,
    list: &Arc<SegmentList>,
    end: u64,
) -> Result<RaftInfo, StoreError> {
    let start = list.entries_from().unwrap_or(end);
    let data: Vec<u64> =
        list.segments().iter().map(|segment| segment.base_offset()).filter(|base| *base >= start).collect();
    let first = entries(list, start, end, true)?;
    let last_file = data.iter().rev().copied().filter(|base| *base < end);
    let mut last = None;
    for base in last_file {
        last = entries(list, base, end, false)?;
        if last.is_some() {
            break;
        }
    }
    let committed = files.committed_index(log)?;
    Ok(RaftInfo {
        member: log.id(),
        data_files: data.len(),
        data_min_offset: start,
        first_index: first.map(|(index, _)| index),
        last_index: last.map(|(index, _)| index),
        committed_index: match committed {
            CommittedIndex::Saved(index) => Some(index),
            CommittedIndex::Unknown => None,
        },
        current_term: files.current_term(log)?,
        terms: match first.zip(last) {
            Some((first, last)) => terms(&mut RaftUnits::load(files, log)?, first, last)?.unwrap_or_default(),
            None => Vec::new(),
        },
    })
}

/// Returns index and term of the first or the last entry with an intact header from `from` to `end`.
fn entries(
    list: &Arc<SegmentList>,
    from: u64,
    end: u64,
    is_first: bool,
) -> Result<Option<(i64, i64)>, StoreError> {
    let mut walk = RaftWalk::new(Arc::clone(list), from, end);
    let mut found = None;
    loop {
        match walk.next_item()? {
            RaftItem::Entry(entry) if entry.fault.is_none() => {
                found = Some((entry.header.index, entry.header.term));
                if is_first {
                    return Ok(found);
                }
            }
            RaftItem::Entry(_) | RaftItem::Blank => {}
            RaftItem::End(_) | RaftItem::Damaged(_) => return Ok(found),
        }
    }
}

/// Returns the terms from the `first` entry to the `last` one (index and term); `None` if units are missing.
fn terms(
    units: &mut RaftUnits,
    first: (i64, i64),
    last: (i64, i64),
) -> Result<Option<Vec<RaftTerm>>, StoreError> {
    let mut found = Vec::new();
    let (mut index, mut term) = first;
    while term < last.1 && found.len() < MOST_TERMS {
        let begin = index;
        // The first entry of a later term is after `index` and not after `high`.
        let (mut high, mut next_term) = last;
        while high - index > 1 {
            let middle = index + (high - index) / 2;
            match units.unit(middle)? {
                FoundUnit::Unit(unit, _, _) if unit.index == middle && unit.term > term => {
                    (high, next_term) = (middle, unit.term);
                }
                FoundUnit::Unit(unit, _, _) if unit.index == middle => index = middle,
                FoundUnit::Unit(..) | FoundUnit::None => return Ok(None),
            }
        }
        found.push((term, begin, high - 1));
        (index, term) = (high, next_term);
    }
    found.push((term, index, last.0));
    Ok(Some(found))
}
