//! Tells entries of one history from damaged headers and from an earlier tail.
//!
//! Indexes ascend by one, and terms never fall. After a new leader replaced entries, the rest of an earlier tail follows
//! the new ones, and its terms are lower. A damaged header looks similar, because no checksum covers it:
//!
//! ```text
//! index:term   7:2  8:2  9:3 |  9:2  10:2         an earlier tail: no later entry continues the history
//! index:term   7:2  8:2  3:2    10:2  11:2        a damaged index: the entries after it continue the history
//! index:term   7:2  8:2  9:7    10:2  11:2        a damaged term, if the unit of entry 9 does not say term 7
//! ```
//!
//! So one entry decides nothing: its unit in the Raft index, the entries around it and the checkpoint also count.

use std::sync::Arc;

use mqstore_format::RAFT_HEADER_BYTES;

use super::raft_units::{FoundUnit, RaftUnits};
use crate::commit_log::{LogScanner, RaftEntry, RaftItem, RaftWalk, ScanChecks, SegmentList, check_record};
use mqstore_base::error::StoreError;
use mqstore_base::store_files::{CommittedIndex, RaftLog, StoreFiles};

/// Maximum number of entries after a doubtful one that can show that the history continues.
const MOST_LATER: i64 = 64;

/// Index and term of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RaftPlace {
    pub(super) index: i64,
    pub(super) term: i64,
}

impl RaftPlace {
    pub(super) fn of(entry: &RaftEntry<'_>) -> Self {
        Self { index: entry.header.index, term: entry.header.term }
    }

    /// Whether `next`, which is written after this entry, looks like an entry of an earlier tail.
    fn is_before(self, next: Self) -> bool {
        next.term >= self.term && next.index > self.index
    }

    /// Whether `next` can be this number of entries after this one, in one history.
    fn is_followed_by(self, next: Self, entries: i64) -> bool {
        self.index.checked_add(entries) == Some(next.index) && next.term >= self.term
    }
}

/// How an entry fits the entries before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// It continues the history with this index.
    Continues(i64),
    /// Its header is damaged; by counting, the entry has this index.
    Damaged(i64),
    /// Its index is too high, and nothing shows why. The history continues from there.
    Jumps,
    /// Its header is damaged, and nothing shows its index.
    Unknown,
    /// It is of an earlier tail, so the history ends before it.
    EarlierTail,
}

/// The last entry of the history whose place is known.
#[derive(Clone, Copy, Debug)]
struct LastEntry {
    place: RaftPlace,
    /// Whether a unit of the Raft index says the same.
    is_confirmed: bool,
    /// The place of an entry before it, and the number of entries from there.
    before: Option<(RaftPlace, i64)>,
}

/// One step of [`RaftHistory`].
#[derive(Debug)]
pub(super) enum Step {
    /// An entry.
    Entry {
        /// Log offset of its header.
        offset: u64,
        /// Log offset after it.
        end: u64,
        /// How it fits the entries before it.
        fit: Fit,
        /// The fault of its record.
        fault: Option<String>,
    },
    /// Bytes at this log offset that are no entry. An entry follows.
    Lost(u64),
    /// The end.
    End,
}

/// Walks the entries of a log and tells how each one fits.
pub(super) struct RaftHistory {
    walk: RaftWalk,
    list: Arc<SegmentList>,
    chain: Chain,
    with_records: bool,
}

impl RaftHistory {
    /// Creates a walk from `start` to `end`. With `with_records`, it checks each record, too.
    pub(super) fn new(
        files: &StoreFiles,
        log: &RaftLog,
        list: &Arc<SegmentList>,
        (start, end): (u64, u64),
        with_records: bool,
    ) -> Result<Self, StoreError> {
        let committed = match files.committed_index(log)? {
            CommittedIndex::Saved(index) => Some(index),
            CommittedIndex::Unknown => None,
        };
        let list = Arc::clone(list);
        let units = RaftUnits::load(files, log)?;
        let chain = Chain { list: Arc::clone(&list), end, units, committed, last: None, passed: Some(0) };
        Ok(Self { walk: RaftWalk::new(Arc::clone(&list), start, end), list, chain, with_records })
    }

    pub(super) fn next(&mut self) -> Result<Step, StoreError> {
        loop {
            match self.walk.next_item()? {
                RaftItem::Blank => {}
                RaftItem::End(_) => return Ok(Step::End),
                RaftItem::Entry(entry) => {
                    let fault = if self.with_records { fault_of_record(&entry) } else { None };
                    let (offset, end) = (entry.offset, end_of(&entry));
                    return Ok(Step::Entry { offset, end, fit: self.chain.add(&entry, end)?, fault });
                }
                RaftItem::Damaged(offset) => {
                    let next = next_entry(&self.list, offset)?.filter(|next| *next < self.chain.end);
                    let Some(next) = next else { return Ok(Step::End) };
                    self.walk.seek(next);
                    self.chain.passed = None;
                    return Ok(Step::Lost(offset));
                }
            }
        }
    }

    /// Whether the checkpoint says that the entry `index` is committed.
    pub(super) fn is_committed(&self, index: i64) -> bool {
        self.chain.is_committed(index)
    }
}

fn end_of(entry: &RaftEntry<'_>) -> u64 {
    let record = entry.record.map(|record| (record.len() + RAFT_HEADER_BYTES) as u64);
    let own = u64::try_from(entry.header.size).ok().filter(|_| entry.fault.is_none());
    entry.offset + own.or(record).unwrap_or(RAFT_HEADER_BYTES as u64)
}

/// Describes the damage of the record of an entry that should have one.
fn fault_of_record(entry: &RaftEntry<'_>) -> Option<String> {
    if entry.header.has_no_record() {
        return None;
    }
    let Some(record) = entry.record else { return Some("the entry contains no record".to_owned()) };
    check_record(record, entry.offset + RAFT_HEADER_BYTES as u64, ScanChecks { crc: true }).err()
}

/// Returns the log offset of the next header with an intact record after `offset`.
fn next_entry(list: &Arc<SegmentList>, offset: u64) -> Result<Option<u64>, StoreError> {
    let mut scanner = LogScanner::new(Arc::clone(list), offset, u64::MAX, ScanChecks { crc: true });
    let next = scanner.resync(offset + 1)?;
    Ok(next.and_then(|next| next.checked_sub(RAFT_HEADER_BYTES as u64)).filter(|next| *next > offset))
}

/// The entries so far.
struct Chain {
    list: Arc<SegmentList>,
    end: u64,
    units: RaftUnits,
    committed: Option<i64>,
    last: Option<LastEntry>,
    /// Number of entries since the last one; `None` if bytes between them are no entries.
    passed: Option<i64>,
}

impl Chain {
    /// Adds the next entry, which ends at log offset `next`.
    fn add(&mut self, entry: &RaftEntry<'_>, next: u64) -> Result<Fit, StoreError> {
        let named = entry.fault.is_none().then(|| RaftPlace::of(entry));
        let Some(last) = self.last else {
            let Some(named) = named else { return Ok(Fit::Unknown) };
            let is_confirmed = self.unit_at(named.index, entry.offset) == Some(named);
            if !is_confirmed && !self.continues_later(named, 0, next)? && has_entry(&self.list, next)? {
                return Ok(Fit::Unknown);
            }
            self.accept(named, is_confirmed, None);
            return Ok(Fit::Continues(named.index));
        };
        let Some(passed) = self.passed else {
            return Ok(named.map_or(Fit::Unknown, |named| self.add_after_lost_bytes(last.place, named)));
        };
        let steps = passed.saturating_add(1);
        let expected = last.place.index.saturating_add(steps);
        let unit = self.unit_at(expected, entry.offset);
        let follows = |place: &RaftPlace| last.place.is_followed_by(*place, steps);
        // If header and unit differ, one of them is damaged. The lower term never hides a later entry.
        let places = [named, unit].into_iter().flatten().filter(follows);
        if let Some(place) = places.min_by_key(|place| place.term) {
            self.accept(place, unit == Some(place), Some((last.place, steps)));
            return Ok(Fit::Continues(expected));
        }
        match named {
            Some(named) => self.add_doubtful(last, named, (steps, next)),
            None => Ok(self.pass(expected, steps)),
        }
    }

    /// Adds an entry that does not follow the last one, which is this number of entries before it.
    fn add_doubtful(
        &mut self,
        last: LastEntry,
        named: RaftPlace,
        (steps, next): (i64, u64),
    ) -> Result<Fit, StoreError> {
        let before = last.before.map(|(before, between)| (before, between.saturating_add(steps)));
        // The last entry does not fit between two that follow each other.
        if !last.is_confirmed && before.is_none_or(|(before, between)| before.is_followed_by(named, between))
        {
            self.accept(named, false, before);
            return Ok(Fit::Continues(named.index));
        }
        let expected = last.place.index.saturating_add(steps);
        let is_later = last.place.is_before(named);
        if self.is_damaged(last.place, (named, is_later), (steps, next))? {
            return Ok(self.pass(expected, steps));
        }
        if is_later {
            self.accept(named, false, None);
            return Ok(Fit::Jumps);
        }
        Ok(Fit::EarlierTail)
    }

    /// Whether the index or the term of an entry that does not follow the last one is damaged.
    fn is_damaged(
        &self,
        last: RaftPlace,
        (named, is_later): (RaftPlace, bool),
        (steps, next): (i64, u64),
    ) -> Result<bool, StoreError> {
        if self.is_committed(last.index.saturating_add(steps)) {
            // An entry with the expected index is here, unless indexes are left out.
            return Ok(!is_later || !self.continues_later(named, 0, next)?);
        }
        self.continues_later(last, steps, next)
    }

    fn add_after_lost_bytes(&mut self, last: RaftPlace, named: RaftPlace) -> Fit {
        if last.is_before(named) {
            self.accept(named, false, None);
            Fit::Continues(named.index)
        } else if self.is_committed(last.index.saturating_add(1)) {
            Fit::Unknown
        } else {
            Fit::EarlierTail
        }
    }

    fn accept(&mut self, place: RaftPlace, is_confirmed: bool, before: Option<(RaftPlace, i64)>) {
        self.last = Some(LastEntry { place, is_confirmed, before });
        self.passed = Some(0);
    }

    fn pass(&mut self, expected: i64, steps: i64) -> Fit {
        self.passed = Some(steps);
        Fit::Damaged(expected)
    }

    fn is_committed(&self, index: i64) -> bool {
        self.committed.is_some_and(|committed| index <= committed)
    }

    /// Returns what the Raft index says about the entry `index`, if its unit points to log offset `offset`.
    fn unit_at(&mut self, index: i64, offset: u64) -> Option<RaftPlace> {
        // The Raft index is only a witness here. Verification reports files of it that cannot be read.
        match self.units.unit(index) {
            Ok(FoundUnit::Unit(unit, _, _)) if unit.index == index && unit.position as u64 == offset => {
                Some(RaftPlace { index, term: unit.term })
            }
            _ => None,
        }
    }

    /// Whether one of the next entries continues the history after `last`. The first of them is at log offset `next`,
    /// `steps` entries and one more after `last`.
    fn continues_later(&self, last: RaftPlace, steps: i64, next: u64) -> Result<bool, StoreError> {
        let mut walk = RaftWalk::new(Arc::clone(&self.list), next, self.end);
        let mut later = 0;
        while later < MOST_LATER {
            match walk.next_item()? {
                RaftItem::Blank => {}
                RaftItem::End(_) | RaftItem::Damaged(_) => break,
                RaftItem::Entry(entry) => {
                    later += 1;
                    let place = RaftPlace::of(&entry);
                    if entry.fault.is_none() && last.is_followed_by(place, steps.saturating_add(later)) {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
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
