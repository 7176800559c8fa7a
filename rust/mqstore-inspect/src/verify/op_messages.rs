//! Compares op messages with half messages: each op message names existing half messages, and each half message is
//! decided once.
//!
//! Owns nothing on disk. Only op messages of mqstore contain the decision; a broker may name a half message twice.
//! Memory: two bits for each named half message, in blocks of 32.
//!
//! The records: [`mqstore_format::transaction`]. Source: `TransactionalMessageServiceImpl#fillOpRemoveMap`.

use std::collections::HashMap;

use mqstore_format::RecordView;
use mqstore_format::topic::OP_TOPIC;
use mqstore_format::transaction::{Decision, OpRecord};

use super::log_part::View;
use crate::problem::{ProblemKind, VerifyReport};
use mqstore_base::error::StoreError;
use mqstore_log::commit_log::read_record;

/// Number of op messages in one read.
const AT_ONCE: usize = 1024;
/// Maximum number of findings of one kind in the report.
const MOST_FINDINGS: usize = 100;

/// Checks all op messages in the log; the queue of half messages ends at `half_end`.
pub(super) fn check(view: &View<'_>, half_end: i64, report: &mut VerifyReport) -> Result<(), StoreError> {
    let Some(queue) = view.queues.get(OP_TOPIC, 0) else { return Ok(()) };
    let mut look = OpScan { view, half_end, report, decided: HashMap::new(), found: [0; 2] };
    let (mut from, end) = (queue.min_offset(), queue.max_offset());
    while from < end {
        let count = AT_ONCE.min((end - from) as usize);
        let mut units = Vec::with_capacity(count);
        match queue.read_each(from, count, |_, unit| units.push((unit.physical_offset, unit.size))) {
            Ok(()) => {}
            // The checks of the queues report it.
            Err(StoreError::Corrupt { .. }) => return Ok(()),
            Err(error) => return Err(error),
        }
        for (offset, size) in units {
            look.op(offset, size)?;
        }
        from += count as i64;
    }
    Ok(())
}

struct OpScan<'a, 'b> {
    view: &'a View<'b>,
    half_end: i64,
    report: &'a mut VerifyReport,
    /// Decisions by half message, two bits each.
    decided: HashMap<i64, u64>,
    found: [usize; 2],
}

impl OpScan<'_, '_> {
    fn op(&mut self, offset: i64, size: i32) -> Result<(), StoreError> {
        let (Ok(offset), Ok(size)) = (u64::try_from(offset), usize::try_from(size)) else { return Ok(()) };
        let end = self.view.limit.min(self.view.list.end_offset());
        // A gap of the queue, or damage that the checks of the queues report.
        if offset.checked_add(size as u64).is_none_or(|last| last > end) {
            return Ok(());
        }
        let bytes = match read_record(self.view.files, &self.view.list, offset, size) {
            Ok(bytes) => bytes,
            // The checks of the log and the queues report it.
            Err(StoreError::Corrupt { .. }) => return Ok(()),
            Err(error) if error.is_gone() => return Ok(()),
            Err(error) => return Err(error),
        };
        let Ok(record) = RecordView::decode(bytes.as_slice()) else { return Ok(()) };
        if record.topic != OP_TOPIC {
            return Ok(());
        }
        let op = OpRecord::of(&record);
        for half in op.half_offsets {
            if half < 0 || half >= self.half_end {
                let end = self.half_end;
                let detail = format!("decides half message {half}; their queue ends at {end}");
                self.tell(ProblemKind::DecisionDangling, offset, detail);
            } else if let Some(before) = op.decision.and_then(|decision| self.decide(half, decision)) {
                let now = op.decision.map_or("", Decision::name);
                let detail = format!("decides half message {half} as {now}; it was {before} before");
                self.tell(ProblemKind::DecisionTwice, offset, detail);
            }
        }
        Ok(())
    }

    /// Notes a decision; returns the earlier one if it differs.
    fn decide(&mut self, half: i64, decision: Decision) -> Option<&'static str> {
        const ALL: [Decision; 3] = [Decision::Commit, Decision::Rollback, Decision::Discard];
        let code = 1 + ALL.iter().position(|one| *one == decision).unwrap_or(0) as u64;
        let bits = self.decided.entry(half.div_euclid(32)).or_insert(0);
        let shift = 2 * half.rem_euclid(32);
        let before = *bits >> shift & 3;
        if before == 0 {
            *bits |= code << shift;
        }
        let known = before.checked_sub(1).and_then(|at| ALL.get(at as usize));
        known.filter(|known| **known != decision).map(|known| known.name())
    }

    fn tell(&mut self, kind: ProblemKind, offset: u64, detail: String) {
        let [dangling, twice] = &mut self.found;
        let found = if matches!(kind, ProblemKind::DecisionTwice) { twice } else { dangling };
        *found += 1;
        let Some(segment) = self.view.list.find(offset) else { return };
        if *found <= MOST_FINDINGS {
            self.report.add(kind, &segment.path(), Some(offset - segment.base_offset()), detail);
        }
    }
}
