//! The set of written slots that are not committed yet.
//!
//! This module owns a short ordered list of ranges of queue offsets. It lets the commit tell a slot that no record
//! claimed from a slot that was written out of order. It is in memory only: empty for an idle queue, one range for a
//! queue that is written in order.

use std::ops::Range;

/// Neighbouring slots that all hold a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UncommittedRange {
    /// First offset.
    pub(super) start: i64,
    /// One past the last offset.
    pub(super) end: i64,
    /// Log offset of the first unit's record.
    pub(super) first_physical: i64,
    /// Log offset at which the last unit's record ends.
    pub(super) physical_end: i64,
}

/// Ranges in ascending order of offset; no range is empty, and no two touch.
#[derive(Debug, Default)]
pub(super) struct UncommittedRanges {
    ranges: Vec<UncommittedRange>,
}

impl UncommittedRanges {
    /// Creates an empty set.
    pub(super) const fn new() -> Self {
        Self { ranges: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(super) fn first(&self) -> Option<&UncommittedRange> {
        self.ranges.first()
    }

    pub(super) fn last(&self) -> Option<&UncommittedRange> {
        self.ranges.last()
    }

    /// Adds a range. If it overlaps another one, the slots were written twice.
    pub(super) fn insert(&mut self, mut new: UncommittedRange) {
        if new.start >= new.end {
            return;
        }
        let from = self.ranges.partition_point(|old| old.end < new.start);
        let to = self.ranges.partition_point(|old| old.start <= new.end);
        for old in self.ranges.drain(from..to) {
            if old.start < new.start {
                new.start = old.start;
                new.first_physical = old.first_physical;
            }
            if old.end > new.end {
                new.end = old.end;
                new.physical_end = old.physical_end;
            }
        }
        self.ranges.insert(from, new);
    }

    /// Returns the slots of `range` that are not in the set.
    pub(super) fn holes(&self, range: Range<i64>) -> Vec<Range<i64>> {
        let mut holes = Vec::new();
        let mut next = range.start;
        for known in &self.ranges {
            let end = known.start.min(range.end);
            if next < end {
                holes.push(next..end);
            }
            next = next.max(known.end);
        }
        if next < range.end {
            holes.push(next..range.end);
        }
        holes
    }

    /// Returns the log offset at which the record of unit `end - 1` ends, if it is known without a read.
    pub(super) fn physical_end(&self, end: i64) -> Option<i64> {
        self.ranges.iter().find(|range| range.end == end).map(|range| range.physical_end)
    }

    /// Removes all slots before `offset`.
    pub(super) fn drop_below(&mut self, offset: i64) {
        self.ranges.retain_mut(|range| {
            range.start = range.start.max(offset);
            range.start < range.end
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: i64, end: i64) -> UncommittedRange {
        UncommittedRange { start, end, first_physical: start * 100, physical_end: end * 100 }
    }

    fn covered(parts: &[(i64, i64)]) -> UncommittedRanges {
        let mut covered = UncommittedRanges::default();
        for &(start, end) in parts {
            covered.insert(range(start, end));
        }
        covered
    }

    #[test]
    fn neighbours_and_overlaps_merge() {
        for parts in [
            &[(0, 5), (5, 9)][..],
            &[(5, 9), (0, 5)],
            &[(0, 6), (3, 9)],
            &[(2, 3), (6, 7), (0, 9)],
            &[(0, 9), (2, 3), (4, 4)],
            &[(0, 2), (7, 9), (2, 7)],
        ] {
            assert_eq!(covered(parts).ranges, [range(0, 9)], "{parts:?}");
        }
        assert_eq!(covered(&[(6, 8), (0, 5)]).ranges, [range(0, 5), range(6, 8)]);
    }

    #[test]
    fn holes_are_what_is_missing() {
        let covered = covered(&[(2, 4), (6, 8)]);
        assert_eq!(covered.holes(0..10), [0..2, 4..6, 8..10]);
        assert_eq!(covered.holes(3..7), [Range { start: 4, end: 6 }]);
        assert_eq!(covered.holes(2..4), []);
        assert_eq!(covered.holes(9..9), []);
    }

    #[test]
    fn dropping_keeps_the_rest() {
        let mut covered = covered(&[(2, 4), (6, 8)]);
        covered.drop_below(7);
        assert_eq!(covered.first().map(|left| (left.start, left.end)), Some((7, 8)));
        assert_eq!(covered.physical_end(8), Some(800));
        assert_eq!(covered.physical_end(7), None);
        covered.drop_below(8);
        assert!(covered.last().is_none());
    }
}
