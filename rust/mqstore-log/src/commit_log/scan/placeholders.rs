//! The ranges of a segment that placeholders of hidden records cover.
//!
//! A reclaim of space replaces adjacent records by one placeholder. A walk that read a part of the segment before, or
//! that begins where another file pointed, can then be inside a placeholder. The walk of the segment from its begin
//! finds the end of it.

use std::ops::Range;

/// The placeholders of the segment that was walked last.
#[derive(Debug, Default)]
pub(super) struct KnownPlaceholders {
    /// Base offset of the segment.
    base: Option<u64>,
    /// Log offsets, ascending.
    ranges: Vec<Range<u64>>,
}

impl KnownPlaceholders {
    /// Creates the list of the segment that begins at `base`, from `ranges` in log order.
    pub(super) fn of(base: u64, ranges: Vec<Range<u64>>) -> Self {
        Self { base: Some(base), ranges }
    }

    /// Whether this is the list of the segment that begins at `base`.
    pub(super) fn is_of(&self, base: u64) -> bool {
        self.base == Some(base)
    }

    /// Returns the log offset after the placeholder whose bytes, except the first one, are at `position`.
    pub(super) fn end_at(&self, position: u64) -> Option<u64> {
        let after = self.ranges.partition_point(|range| range.start < position);
        let last = after.checked_sub(1).and_then(|at| self.ranges.get(at));
        last.map(|range| range.end).filter(|end| position < *end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_position_after_the_first_byte_is_inside() {
        let known = KnownPlaceholders::of(100, vec![100..200, 200..300, 400..500]);
        assert!(known.is_of(100) && !known.is_of(0) && !KnownPlaceholders::default().is_of(0));
        for (position, end) in
            [(100, None), (101, Some(200)), (199, Some(200)), (200, None), (201, Some(300))]
        {
            assert_eq!(known.end_at(position), end, "{position}");
        }
        for position in [0, 300, 350, 400, 500, 501] {
            assert_eq!(known.end_at(position), None, "{position}");
        }
    }
}
