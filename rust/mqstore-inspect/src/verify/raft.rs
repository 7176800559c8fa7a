//! The check of the Raft entries of a broker that ran with DLedger.
//!
//! The check of the log reads the records, whatever their headers say. This check compares each header with its place,
//! with the header before it, and with its unit in the Raft index. No checksum covers a header. An entry causes at most
//! one finding here, and none if its record is damaged: the check of the log reports that.

use std::path::Path;
use std::sync::Arc;

use mqstore_format::{RAFT_HEADER_BYTES, RaftUnit};

use super::log_part::View;
use super::log_walk::Findings;
use crate::problem::{Finding, ProblemKind};
use mqstore_base::error::StoreError;
use mqstore_base::store_files::{CommittedIndex, RaftLog};
use mqstore_log::commit_log::{LogScanner, RaftEntry, RaftItem, RaftWalk, ScanChecks};
use mqstore_log::recovery::{FoundUnit, RaftUnits};

/// Bytes of the log between two reports of progress.
const STEP_BYTES: u64 = 4 << 20;

/// Checks the entries before the limit of `view`.
pub(crate) fn check(view: &View<'_>, findings: &mut dyn Findings) -> Result<(), StoreError> {
    let Some((log, start)) = view.files.raft_log().zip(view.list.entries_from()) else { return Ok(()) };
    let mut check = EntryCheck {
        view,
        units: RaftUnits::load(view.files, log)?,
        next: None,
        term: 0,
        missing: MissingUnits::default(),
    };
    let mut walk = RaftWalk::new(Arc::clone(&view.list), start, view.limit);
    let mut reported = start;
    loop {
        let found = match walk.next_item()? {
            RaftItem::Entry(entry) => {
                if entry.offset >= reported + STEP_BYTES {
                    reported = entry.offset;
                    findings.reached(reported)?;
                }
                check.entry(&entry)?
            }
            RaftItem::Blank => None,
            RaftItem::End(_) => break,
            // The check of the log reports these bytes.
            RaftItem::Damaged(offset) => {
                let Some(next) = check.next_header(offset)? else { break };
                check.next = None;
                walk.seek(next);
                None
            }
        };
        if let Some(finding) = found {
            findings.problem(finding)?;
        }
    }
    check.finish(log, findings)
}

/// The entries without a unit in the index.
#[derive(Debug, Default)]
struct MissingUnits {
    first: Option<i64>,
    count: u64,
}

struct EntryCheck<'a> {
    view: &'a View<'a>,
    units: RaftUnits,
    /// The indexes that the next entry can have: one more than the last one has by counting, and by its header.
    next: Option<(i64, i64)>,
    /// Term of the last entry.
    term: i64,
    missing: MissingUnits,
}

impl EntryCheck<'_> {
    fn entry(&mut self, entry: &RaftEntry<'_>) -> Result<Option<Finding>, StoreError> {
        let header = &entry.header;
        let mut fault = entry.fault.clone();
        let counted = match self.next {
            Some((counted, named)) if header.index != counted => {
                if header.index == named {
                    // The jump was reported at the entry before this one.
                    named
                } else {
                    fault = fault
                        .or_else(|| Some(format!("index {} follows index {}", header.index, counted - 1)));
                    counted
                }
            }
            Some((counted, _)) => counted,
            None => header.index,
        };
        self.next = Some((counted.saturating_add(1), header.index.saturating_add(1)));
        if header.term < self.term {
            fault = fault.or_else(|| Some(format!("term {} follows term {}", header.term, self.term)));
        }
        self.term = header.term;
        if let Some(fault) = fault {
            return Ok(self.finding(entry.offset, fault));
        }
        if entry.record.is_none() && !header.has_no_record() {
            return Ok(None);
        }
        Ok(match self.units.unit(counted)? {
            FoundUnit::None => {
                self.missing.first.get_or_insert(counted);
                self.missing.count += 1;
                None
            }
            FoundUnit::Unit(unit, _, _) if unit == RaftUnit::of(header) => None,
            FoundUnit::Unit(unit, path, offset) => {
                // The next entry shows which of the two is right.
                self.term = self.term.min(unit.term);
                let detail = format!(
                    "the unit says position {}, size {}, index {}, term {}; the entry says {}, {}, {}, {}",
                    unit.position,
                    unit.size,
                    unit.index,
                    unit.term,
                    header.position,
                    header.size,
                    header.index,
                    header.term
                );
                Some(Finding { kind: ProblemKind::RaftIndexWrong, path, offset: Some(offset), detail })
            }
        })
    }

    fn finding(&self, offset: u64, detail: String) -> Option<Finding> {
        let segment = self.view.list.find(offset)?;
        Some(Finding {
            kind: ProblemKind::RaftHeader,
            path: segment.path(),
            offset: Some(offset - segment.base_offset()),
            detail,
        })
    }

    /// Returns the log offset of the next header with an intact record after `offset`.
    fn next_header(&self, offset: u64) -> Result<Option<u64>, StoreError> {
        let list = Arc::clone(&self.view.list);
        let mut scanner = LogScanner::new(list, offset, self.view.limit, ScanChecks { crc: true });
        let record = scanner.resync(offset + 1)?;
        let header = record.and_then(|record| record.checked_sub(RAFT_HEADER_BYTES as u64));
        Ok(header.filter(|header| *header > offset))
    }

    fn finish(self, log: &RaftLog, findings: &mut dyn Findings) -> Result<(), StoreError> {
        if let Some(first) = self.missing.first {
            let count = self.missing.count;
            let detail = format!("{count} entries from index {first} on have no unit in the index");
            findings.problem(problem(ProblemKind::RaftIndexMissing, &log.index(), detail))?;
        }
        let last = self.next.map_or(-1, |(next, _)| next - 1);
        if let CommittedIndex::Saved(committed) = self.view.files.committed_index(log)?
            && committed > last
        {
            let detail = format!("index {committed} is committed, but the last entry has index {last}");
            findings.problem(problem(ProblemKind::RaftCheckpointAhead, &log.checkpoint(), detail))?;
        }
        Ok(())
    }
}

fn problem(kind: ProblemKind, path: &Path, detail: String) -> Finding {
    Finding { kind, path: path.to_path_buf(), offset: None, detail }
}
