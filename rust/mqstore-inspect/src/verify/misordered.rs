//! Finds records whose queue offsets contradict those of their neighbours.
//!
//! In log order, the offsets of a queue only grow, because they are assigned under the put lock. RocketMQ's records
//! have no checksum over the queue offset, unless a broker is configured to write one. So a flipped bit there stays
//! unnoticed. If two sets of records contradict each other, the smaller set is wrong:
//!
//! ```text
//! in the log   0   1   6   3   4   5   6   7        the first 6 is out of order; 2 is free at its place
//! in the log   0   1   2   1   4   5                the second 1 is out of order; 3 is free at its place
//! ```
//!
//! Owns this decision. Memory grows with the gaps of a queue up to a limit, not with its records.

use std::collections::BTreeMap;

use mqstore_format::{BatchCqUnit, CqUnit};
use serde::{Deserialize, Serialize};

/// Maximum number of contradictions that are kept for one queue.
const MOST_MISFITS: usize = 1024;

/// Maximum number of runs of consecutive offsets that are kept for one queue.
const MOST_RANGES: usize = 2048;

/// The same maximum if memory is short.
const FEW_RANGES: usize = 16;

/// Consecutive offsets of a queue, and the log offsets of their records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MisorderedRange {
    /// The first offset.
    pub from: i64,
    /// The offset after the last one.
    pub to: i64,
    /// Log offset of the first record.
    pub first: u64,
    /// Log offset of the last record, or of one before it.
    pub last: u64,
    /// Number of records; those of a batch queue take several offsets each.
    pub records: i64,
}

impl MisorderedRange {
    /// The units of a plain queue from offset `from` on; `None` without units.
    pub(crate) fn of_units(from: i64, units: &[CqUnit]) -> Option<Self> {
        let (first, last) = (units.first()?.physical_offset as u64, units.last()?.physical_offset as u64);
        let records = units.len() as i64;
        Some(Self { from, to: from.saturating_add(records), first, last, records })
    }

    /// The unit of a batch queue.
    pub(crate) fn of_batch(unit: &BatchCqUnit) -> Self {
        let place = unit.physical_offset as u64;
        Self { from: unit.base_offset, to: unit.next_offset(), first: place, last: place, records: 1 }
    }

    fn offsets(&self) -> i64 {
        self.to.saturating_sub(self.from)
    }

    fn is_plain(&self) -> bool {
        self.records == self.offsets()
    }

    /// Number of records with an offset of at least `from`, or a few more.
    fn records_from(&self, from: i64) -> i64 {
        if self.is_plain() { self.to - self.from.max(from) } else { self.records }
    }
}

/// Records that contradict the others of their queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MisorderedRecords {
    /// Their queue offsets and log offsets.
    pub range: MisorderedRange,
    /// The queue's record before them: queue offset and log offset.
    pub before: Option<(i64, u64)>,
    /// The queue's record after them.
    pub behind: Option<(i64, u64)>,
}

impl MisorderedRecords {
    /// The free offsets at its place: the first, and the one after the last. `None` if there are too few, and for
    /// several records.
    pub(crate) fn free(&self) -> Option<(i64, i64)> {
        let from = self.before.map_or(0, |(offset, _)| offset.saturating_add(1));
        let to = self.behind.map_or(i64::MAX, |(offset, _)| offset);
        let fits = to.checked_sub(from).is_some_and(|free| free >= self.range.offsets());
        (self.range.records == 1 && fits).then_some((from, to))
    }

    /// Whether it is wrong, and not just the second record for an offset of another one.
    pub(crate) fn is_wrong(&self) -> bool {
        self.hides_others() || self.free().is_some()
    }

    /// Whether its offset is not before those of later records: its unit would point back in the log, or hide others.
    pub(crate) fn hides_others(&self) -> bool {
        self.behind.is_some_and(|(offset, _)| self.range.to > offset)
    }

    /// Returns its original offset, one of the free ones. `is_damaged` says whether the log is damaged between two log
    /// offsets, where the lost records were. If that does not decide, returns the first free offset.
    fn original_offset(&self, is_damaged: impl Fn(u64, u64) -> bool) -> Option<i64> {
        let (from, to) = self.free()?;
        let place = self.range.first;
        let lost_before = self.before.is_none_or(|(_, before)| is_damaged(before, place));
        let lost_behind = self.behind.is_none_or(|(_, behind)| is_damaged(place, behind));
        Some(if lost_before && !lost_behind { to - self.range.offsets() } else { from })
    }
}

/// The offsets of one queue, in the order of the log.
#[derive(Debug, Default)]
pub(crate) struct QueueOrder {
    /// The runs that count as correct: offsets and log offsets only grow. If there are too many, the oldest are joined.
    ranges: Vec<MisorderedRange>,
    /// The runs that contradict the end of `ranges`, in log order.
    other: Vec<MisorderedRange>,
    /// Number of records in `other`.
    others: i64,
    /// Number of records in `ranges` that `other` contradicts.
    contradicted: i64,
    /// Wrong records for which the next correct record is not known yet.
    waiting: Vec<MisorderedRecords>,
    misfits: Vec<MisorderedRecords>,
}

impl QueueOrder {
    /// Adds the next records of the log. `has_memory` says whether much memory may be used for them.
    pub(crate) fn add(&mut self, next: MisorderedRange, has_memory: bool) {
        if next.offsets() <= 0 {
            return;
        }
        let follows = |ranges: &[MisorderedRange]| ranges.last().is_none_or(|last| last.to <= next.from);
        if follows(&self.ranges) {
            self.decide();
        }
        if follows(&self.ranges) {
            self.settle(Some((next.from, next.first)));
            push(&mut self.ranges, next);
            if self.ranges.len() > if has_memory { MOST_RANGES } else { FEW_RANGES } {
                self.shorten();
            }
            return;
        }
        let begins = self.other.last().is_none_or(|last| next.from < last.to);
        if begins || self.other.len() >= MOST_RANGES {
            self.reject_new();
            let behind = self.ranges.iter().rev().take_while(|range| range.to > next.from);
            self.contradicted = behind.map(|range| range.records_from(next.from)).sum();
        }
        push(&mut self.other, next);
        self.others += next.records;
        if self.others > self.contradicted {
            self.turn();
        }
    }

    /// Joins the older half of the ranges to one run.
    fn shorten(&mut self) {
        let half = self.ranges.len() / 2;
        let records = self.ranges.iter().take(half).map(|range| range.records).sum();
        let Some((first, last)) = self.ranges.first().copied().zip(self.ranges.get(half - 1).copied()) else {
            return;
        };
        self.ranges.drain(1..half);
        if let Some(whole) = self.ranges.first_mut() {
            *whole = MisorderedRange { to: last.to, last: last.last, records, ..first };
        }
    }

    /// Whether a record at log offset `place` may have the unused queue offset `offset`.
    pub(crate) fn has_place_for(&self, offset: i64, place: u64) -> bool {
        let behind = self.ranges.partition_point(|range| range.to <= offset);
        let before = behind.checked_sub(1).and_then(|before| self.ranges.get(before));
        before.is_none_or(|before| before.last < place)
            && self.ranges.get(behind).is_none_or(|behind| offset < behind.from && place < behind.first)
    }

    fn end(&self) -> Option<(i64, u64)> {
        self.ranges.last().map(|last| (last.to - 1, last.last))
    }

    fn wait(&mut self, range: MisorderedRange, before: Option<(i64, u64)>) {
        if self.waiting.len() + self.misfits.len() < MOST_MISFITS {
            self.waiting.push(MisorderedRecords { range, before, behind: None });
        }
    }

    /// Decides which records are wrong. If both sets have the same size, the records of the ranges are wrong if an
    /// offset right before them is free.
    fn decide(&mut self) {
        let has_gap = self.other.first().is_some_and(|first| {
            let tail = self.ranges.partition_point(|range| range.to <= first.from);
            let before =
                tail.checked_sub(1).and_then(|before| self.ranges.get(before)).map_or(0, |one| one.to);
            self.ranges.get(tail).is_some_and(|tail| tail.from >= first.from && tail.from > before)
        });
        if has_gap && self.others == self.contradicted {
            self.turn();
        } else {
            self.reject_new();
        }
    }

    /// Rejects the records that contradict the ranges.
    fn reject_new(&mut self) {
        let before = self.end();
        for range in std::mem::take(&mut self.other) {
            self.wait(range, before);
        }
        self.others = 0;
    }

    /// Rejects the records of the ranges that the others contradict.
    fn turn(&mut self) {
        let Some(first) = self.other.first().copied() else { return };
        let mut wrong = Vec::new();
        while let Some(last) = self.ranges.pop_if(|last| last.to > first.from) {
            if last.from >= first.from || last.records == 1 {
                wrong.push(last);
                continue;
            }
            // The log offsets in the middle of a run are unknown.
            let records = last.records_from(first.from);
            let left = (last.records - records).max(1);
            self.ranges.push(MisorderedRange { to: first.from, last: last.first, records: left, ..last });
            wrong.push(MisorderedRange { from: first.from, first: last.last, records, ..last });
        }
        let before = self.end();
        for misfit in &mut self.waiting {
            misfit.before = misfit.before.filter(|(offset, _)| *offset < first.from).or(before);
        }
        for range in wrong.into_iter().rev() {
            self.wait(range, before);
        }
        self.settle(Some((first.from, first.first)));
        self.ranges.append(&mut self.other);
        self.others = 0;
    }

    fn settle(&mut self, behind: Option<(i64, u64)>) {
        self.misfits.extend(self.waiting.drain(..).map(|misfit| MisorderedRecords { behind, ..misfit }));
    }

    /// Decides the open cases after the last record.
    pub(crate) fn finish(&mut self) {
        self.decide();
        self.settle(None);
        self.misfits.sort_unstable_by_key(|misfit| misfit.range.first);
    }

    /// Returns all contradicting records in log order, after [`Self::finish`].
    pub(crate) fn misfits(&self) -> &[MisorderedRecords] {
        &self.misfits
    }
}

/// Appends `next` to `ranges`.
fn push(ranges: &mut Vec<MisorderedRange>, next: MisorderedRange) {
    match ranges.last_mut() {
        Some(last) if last.to == next.from && last.is_plain() && next.is_plain() => {
            (last.to, last.last) = (next.to, next.last);
            last.records += next.records;
        }
        _ => ranges.push(next),
    }
}

/// Returns the original offsets of records by log offset. `is_damaged` says whether the log is damaged between two
/// log offsets.
pub(crate) fn corrections(
    misfits: &[MisorderedRecords],
    is_damaged: impl Fn(u64, u64) -> bool,
) -> BTreeMap<u64, i64> {
    let neighbours = |misfit: &MisorderedRecords| (misfit.before, misfit.behind);
    let mut found = BTreeMap::new();
    for together in misfits.chunk_by(|left, right| neighbours(left) == neighbours(right)) {
        match together {
            [one] => found.extend(one.original_offset(&is_damaged).map(|offset| (one.range.first, offset))),
            // Records with the same neighbours are in log order.
            [first, ..] => {
                let (mut at, end) = first.free().unwrap_or_default();
                for misfit in together.iter().take_while(|misfit| misfit.range.records == 1) {
                    let next = at.saturating_add(misfit.range.offsets());
                    if next <= end {
                        found.insert(misfit.range.first, at);
                        at = next;
                    }
                }
            }
            [] => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records with these offsets, at log offsets 0, 100, 200 and so on.
    fn order(offsets: &[i64]) -> QueueOrder {
        let mut order = QueueOrder::default();
        for (number, offset) in (0_u64..).zip(offsets) {
            let place = number * 100;
            order.add(
                MisorderedRange { from: *offset, to: offset + 1, first: place, last: place, records: 1 },
                true,
            );
        }
        order
    }

    fn corrected(offsets: &[i64], damaged: &[u64]) -> Vec<(u64, i64)> {
        let mut order = order(offsets);
        let is_damaged = |from: u64, to: u64| damaged.iter().any(|place| (from..to).contains(place));
        order.finish();
        corrections(order.misfits(), is_damaged).into_iter().collect()
    }

    #[test]
    fn the_fewer_are_wrong_and_get_what_is_free() {
        for (offsets, wanted) in [
            (&[0, 1, 6, 3, 4, 5, 6, 7][..], &[(200, 2)][..]),
            (&[0, 1, 2, 1, 4, 5], &[(300, 3)]),
            (&[0, 1, 1 << 40, 3, 4], &[(200, 2)]),
            (&[9, 1, 2, 3], &[(0, 0)]),
            // At the end: after the last one, or before it.
            (&[0, 1, 2, 0], &[(300, 3)]),
            (&[0, 1, 2, 2], &[(300, 3)]),
            (&[0, 1, 6, 3], &[(200, 2)]),
            (&[0, 1, 3, 3], &[(200, 2)]),
            // Two of them, adjacent and not adjacent.
            (&[0, 9, 2, 3, 9, 5, 6], &[(100, 1), (400, 4)]),
            (&[0, 1, 9, 8, 4, 5], &[(200, 2), (300, 3)]),
        ] {
            assert_eq!(corrected(offsets, &[]), wanted, "{offsets:?}");
        }
    }

    #[test]
    fn what_is_no_contradiction_is_left_alone() {
        for offsets in [
            &[0, 1, 2, 3][..],
            &[0, 1, 7, 8, 40],
            // Two records for one offset, and none is free.
            &[0, 1, 2, 2, 3, 4],
            &[],
        ] {
            assert_eq!(corrected(offsets, &[]), [], "{offsets:?}");
        }
    }

    #[test]
    fn where_more_is_free_the_damage_tells() {
        // One of 2 and 3 is lost, before or after the record with offset 9.
        let offsets = [0, 1, 9, 4, 5];
        assert_eq!(corrected(&offsets, &[]), [(200, 2)]);
        assert_eq!(corrected(&offsets, &[150]), [(200, 3)]);
        assert_eq!(corrected(&offsets, &[250]), [(200, 2)]);
        assert_eq!(corrected(&offsets, &[150, 250]), [(200, 2)]);
        // In a log whose begin expired: the record before the first correct one.
        assert_eq!(corrected(&[9999, 501, 502, 503], &[]), [(0, 500)]);
    }

    #[test]
    fn what_hides_others_is_told_from_what_comes_twice() {
        let mut order = order(&[0, 1, 9, 2, 3, 3, 4]);
        order.finish();
        let found: Vec<_> = order.misfits().iter().map(|one| (one.range.from, one.hides_others())).collect();
        assert_eq!(found, [(9, true), (3, false)]);
    }

    fn range(from: i64, to: i64, first: u64, last: u64) -> MisorderedRange {
        MisorderedRange { from, to, first, last, records: to - from }
    }

    #[test]
    fn ranges_are_judged_as_their_records() {
        let mut order = QueueOrder::default();
        order.add(range(0, 100, 0, 99), true);
        order.add(range(50, 51, 100, 100), true);
        order.add(range(101, 200, 101, 199), true);
        order.finish();
        assert_eq!(order.misfits().len(), 1);
        assert_eq!(corrections(order.misfits(), |_, _| false), BTreeMap::from([(100, 100)]));
    }

    #[test]
    fn a_batch_counts_as_one_however_much_it_claims() {
        let mut order = QueueOrder::default();
        for (place, (from, to)) in (0..).zip([(0, 3), (3, 20_000), (5, 6), (6, 9), (9, 10)]) {
            order.add(MisorderedRange { from, to, first: place, last: place, records: 1 }, true);
        }
        order.finish();
        let found: Vec<_> =
            order.misfits().iter().map(|one| (one.range.first, one.hides_others(), one.free())).collect();
        assert_eq!(found, [(1, true, None)]);
        // A record of two messages fits where two offsets are free.
        let mut order = QueueOrder::default();
        for (place, (from, to)) in (0..).zip([(0, 3), (40, 42), (5, 6), (6, 9)]) {
            order.add(MisorderedRange { from, to, first: place, last: place, records: 1 }, true);
        }
        order.finish();
        assert_eq!(corrections(order.misfits(), |_, _| false), BTreeMap::from([(1, 3)]));
    }

    #[test]
    fn a_row_with_many_gaps_takes_bounded_memory_and_still_finds_what_is_new() {
        for has_memory in [true, false] {
            let mut order = QueueOrder::default();
            for number in 0..10_000 {
                order.add(range(number * 2, number * 2 + 1, number as u64, number as u64), has_memory);
            }
            assert!(order.ranges.len() <= if has_memory { MOST_RANGES } else { FEW_RANGES });
            for (place, offset) in (10_000..).zip([90_000, 20_001, 20_002]) {
                order.add(range(offset, offset + 1, place, place), has_memory);
            }
            order.finish();
            assert_eq!(corrections(order.misfits(), |_, _| false), BTreeMap::from([(10_000, 19_999)]));
        }
    }

    #[test]
    fn a_queue_has_room_where_the_log_agrees() {
        let order = order(&[0, 1, 3, 4]);
        for (offset, place, fits) in [
            (2, 150, true),
            (2, 250, false),
            (2, 50, false),
            (1, 150, false),
            (5, 350, true),
            (9, 250, false),
        ] {
            assert_eq!(order.has_place_for(offset, place), fits, "{offset} at {place}");
        }
    }
}
