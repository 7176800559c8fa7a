//! The offsets of a queue that records use, and the gaps before the last one.

/// The offsets of one queue, added in log order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UsedOffsets {
    /// The offset after the largest one; `None` before the first record.
    end: Option<i64>,
    /// Unused offsets before `end`: from, to (exclusive), ascending.
    gaps: Vec<(i64, i64)>,
}

impl UsedOffsets {
    /// Adds the used offsets `from` to `to` (exclusive). If that creates a gap, it is kept only if `keeps_gap`; returns
    /// whether one was kept.
    pub(crate) fn add_range(&mut self, from: i64, to: i64, keeps_gap: bool) -> bool {
        let end = self.end.unwrap_or(from);
        let made = from > end && keeps_gap;
        if made {
            self.gaps.push((end, from));
        } else if from < end {
            self.fill(from, to);
        }
        self.end = Some(end.max(to));
        made
    }

    /// Removes `from` to `to` from the gaps: a record can come late in the log.
    fn fill(&mut self, from: i64, to: i64) {
        let gaps = std::mem::take(&mut self.gaps);
        self.gaps = gaps
            .into_iter()
            .flat_map(|(begin, end)| [(begin, end.min(from)), (begin.max(to), end)])
            .filter(|(begin, end)| begin < end)
            .collect();
    }

    /// Returns the offset after the largest one; `None` before the first record.
    pub(crate) fn end(&self) -> Option<i64> {
        self.end
    }

    /// Returns the unused offsets.
    pub(crate) fn gaps(&self) -> &[(i64, i64)] {
        &self.gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_what_nobody_claims() {
        let mut claimed = UsedOffsets::default();
        for (from, to) in [(5, 8), (8, 9), (12, 14), (20, 21)] {
            claimed.add_range(from, to, true);
        }
        assert_eq!(claimed.gaps(), [(9, 12), (14, 20)]);
        // Late records: in the middle of a gap, at its end, over both, before all.
        claimed.add_range(16, 17, true);
        assert_eq!(claimed.gaps(), [(9, 12), (14, 16), (17, 20)]);
        claimed.add_range(11, 15, true);
        assert_eq!(claimed.gaps(), [(9, 11), (15, 16), (17, 20)]);
        claimed.add_range(1, 3, true);
        assert_eq!(claimed.gaps().len(), 3);
        assert!(!claimed.add_range(30, 31, false));
        assert!(claimed.add_range(40, 41, true));
        assert_eq!(claimed.gaps().last(), Some(&(31, 40)));
    }
}
