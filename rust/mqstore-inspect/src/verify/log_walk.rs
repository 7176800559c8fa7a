//! Walks the log from one log offset to another: parts in log order, and the damage between them.
//!
//! Owns nothing on disk. Ranges that cannot be walked in pieces are walked here, record by record. After damage, the
//! walk searches for the next intact record. All findings go to a [`Findings`]: the report, or a file for the process
//! that writes the report.

use std::sync::Arc;

use super::index_walk::KeyWalk;
use super::log_part::{PartFindings, View};
use super::parallel_walk::{Assembler, WalkControl, add_records};
use crate::problem::{Finding, ProblemKind};
use mqstore_base::error::StoreError;
use mqstore_log::commit_log::{Damage, LogScanner, ScanChecks, ScanItem};
use mqstore_log::index::BadIndexFile;

/// Maximum bytes of a part that is walked here, so that memory stays bounded.
const BY_HAND_BYTES: u64 = 4 << 20;

/// Receives the findings about a log, in log order.
pub(crate) trait Findings {
    /// Takes records and the findings about them.
    fn part(&mut self, part: &mut PartFindings) -> Result<(), StoreError>;
    /// Takes a range of bytes that contains no record.
    fn problem(&mut self, finding: Finding) -> Result<(), StoreError>;
    /// Takes the log offset before which everything is checked. An error ends the walk.
    fn reached(&mut self, position: u64) -> Result<(), StoreError>;
}

/// The log, joined from its parts.
pub(crate) struct LogWalk<'a> {
    view: &'a View<'a>,
    findings: &'a mut dyn Findings,
    keys: KeyWalk,
    /// Scanner for ranges that cannot be walked in pieces.
    scanner: LogScanner,
    part: PartFindings,
    position: Option<u64>,
    over: bool,
}

impl<'a> LogWalk<'a> {
    /// Starts at `start`, or at the first part that contains a record. `keys` starts there or before.
    pub(crate) fn new(
        view: &'a View<'a>,
        keys: KeyWalk,
        start: Option<u64>,
        findings: &'a mut dyn Findings,
    ) -> Self {
        let from = start.unwrap_or(view.list.min_offset());
        let scanner = LogScanner::new(Arc::clone(&view.list), from, view.limit, ScanChecks { crc: true });
        Self { view, findings, keys, scanner, part: PartFindings::default(), position: start, over: false }
    }

    /// Walks the rest after the last piece: some file systems hold data there that they do not report as data.
    pub(crate) fn finish(&mut self) -> Result<(), StoreError> {
        self.walk_sequentially(u64::MAX).map(drop)
    }

    /// Ends the walk of the keys: see [`KeyWalk::finish_check`].
    pub(super) fn finish_keys(self) -> Result<Vec<BadIndexFile>, StoreError> {
        self.keys.finish_check()
    }

    /// Returns the log offset of the next record if there were one, and whether the log ends there.
    pub(crate) fn end(&self) -> (Option<u64>, bool) {
        (self.position, self.over)
    }

    fn merge(&mut self, part: &mut PartFindings) -> Result<(), StoreError> {
        self.keys.add(self.view.dispatched, &part.output.index, &mut part.keys)?;
        self.findings.part(part)?;
        self.position = Some(part.end);
        self.findings.reached(part.end)
    }

    /// Inspects bytes at `position` that are no record; returns the log offset at which the walk continues.
    fn inspect_damage(&mut self, position: u64) -> Result<Option<u64>, StoreError> {
        match self.scanner.next_item()? {
            ScanItem::Record(_) | ScanItem::Filler { .. } => Ok(Some(position)),
            ScanItem::End { offset } => self.check_after_end(offset),
            ScanItem::Damaged(damage) => self.damage(damage),
        }
    }

    /// Checks zeros, which end the log. A record after them means that a range of the log is lost.
    fn check_after_end(&mut self, offset: u64) -> Result<Option<u64>, StoreError> {
        if self.view.limit != u64::MAX {
            return Ok(None);
        }
        let next = self.resync(offset)?;
        if let (Some(next), Some(segment)) = (next, self.view.list.find(offset)) {
            self.findings.problem(Finding {
                kind: ProblemKind::RecordDamaged,
                path: segment.path(),
                offset: Some(offset - segment.base_offset()),
                detail: format!("{} bytes of zeros with records after them", next - offset),
            })?;
        }
        Ok(next)
    }

    /// Returns the next record at or after `from`.
    fn resync(&mut self, from: u64) -> Result<Option<u64>, StoreError> {
        let findings = &mut *self.findings;
        self.scanner.resync_watched(from, &mut |reached| findings.reached(reached))
    }

    fn damage(&mut self, damage: Damage) -> Result<Option<u64>, StoreError> {
        let next = self.resync(damage.offset + 1)?;
        let kind = if next.is_some() { ProblemKind::RecordDamaged } else { ProblemKind::TornTail };
        let length = next.map_or(String::new(), |next| format!("; {} bytes", next - damage.offset));
        let detail = format!("{}{length}", damage.reason);
        let offset = Some(damage.file_offset);
        self.findings.problem(Finding { kind, path: damage.path, offset, detail })?;
        Ok(next)
    }
}

impl Assembler for LogWalk<'_> {
    fn position(&mut self, first: Option<u64>) -> Option<u64> {
        self.position = self.position.or(first);
        self.position
    }

    fn take_over(&mut self, part: &mut PartFindings) -> Result<(), StoreError> {
        self.merge(part)
    }

    fn walk_sequentially(&mut self, end: u64) -> Result<WalkControl, StoreError> {
        while let Some(position) = self.position.filter(|position| *position < end && !self.over) {
            let mut part = std::mem::take(&mut self.part);
            part.begin(position);
            part.first = Some(position);
            self.scanner.seek(position);
            let until = end.min(position.saturating_add(BY_HAND_BYTES));
            add_records(self.view, &mut self.scanner, until, &mut part)?;
            part.compare(self.view)?;
            self.merge(&mut part)?;
            let reached = part.end;
            self.part = part;
            if reached < until {
                match self.inspect_damage(reached)? {
                    Some(next) => self.position = Some(next),
                    None => self.over = true,
                }
            }
        }
        Ok(if self.over { WalkControl::Home } else { WalkControl::On })
    }
}
