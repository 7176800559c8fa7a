//! The positions of copied messages: how the offsets of a queue in the source become those in the target.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Old offset, new offset and length of a run, in which both count in the same way.
pub(crate) type Run = (i64, i64, i64);

/// Positions by queue, which is named `topic/queue`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct QueuePositions {
    /// The runs of each queue, in the order of its offsets.
    pub(crate) runs: BTreeMap<String, Vec<Run>>,
    /// The old offset after the last message of each queue.
    pub(crate) ends: BTreeMap<String, i64>,
    /// The first old offset that the log has at the start of the call that runs.
    pub(crate) first: BTreeMap<String, i64>,
    /// First and end of the old offsets whose messages the source did not have any more.
    pub(crate) gaps: BTreeMap<String, Vec<(i64, i64)>>,
}

impl QueuePositions {
    /// Adds the positions of the next record of a queue.
    pub(crate) fn add(&mut self, queue: &str, old: i64, new: i64, messages: i64) {
        let runs = match self.runs.get_mut(queue) {
            Some(runs) => runs,
            None => self.runs.entry(queue.to_owned()).or_default(),
        };
        match runs.last_mut() {
            Some((first, first_new, length)) if new - old == *first_new - *first => {
                *length = old + messages - *first;
            }
            _ => runs.push((old, new, messages)),
        }
        self.reach(queue, old, old + messages);
    }

    /// Notes the messages that are missing before the first ones of the log.
    pub(crate) fn reach_first(&mut self) {
        for (queue, offset) in std::mem::take(&mut self.first) {
            self.reach(&queue, offset, offset);
        }
    }

    /// Notes the next message of a queue, and the messages that are missing before it.
    fn reach(&mut self, queue: &str, offset: i64, end: i64) {
        let expected = self.ends.get(queue).copied().unwrap_or(offset);
        if offset > expected {
            self.gaps.entry(queue.to_owned()).or_default().push((expected, offset));
        }
        match self.ends.get_mut(queue) {
            Some(known) => *known = expected.max(end),
            None => drop(self.ends.insert(queue.to_owned(), expected.max(end))),
        }
    }

    /// Returns the new offset of the first copied message at or after an old one, and whether messages at or after it
    /// are missing; `None` for a queue without copied messages.
    pub(crate) fn translate(&self, queue: &str, offset: i64) -> Option<(i64, bool)> {
        let new = translated(self.runs.get(queue)?, offset)?;
        let lacks = self.gaps.get(queue).is_some_and(|gaps| gaps.iter().any(|(_, end)| *end > offset));
        Some((new, lacks))
    }
}

/// Returns the new offset of the first message at or after an old one.
///
/// An offset after a run is in a gap. It counts on, up to the next run: this never passes a message that was copied.
fn translated(runs: &[Run], offset: i64) -> Option<i64> {
    let after = runs.partition_point(|(old, ..)| *old <= offset);
    let Some((old, new, length)) = after.checked_sub(1).and_then(|at| runs.get(at)) else {
        return runs.first().map(|(_, new, _)| *new);
    };
    let found = new + offset - old;
    match runs.get(after) {
        Some((_, next, _)) if offset >= old + length => Some(found.min(*next)),
        _ => Some(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_of_messages_that_were_not_copied() {
        let mut positions = QueuePositions::default();
        for (old, new) in [(5, 0), (6, 1), (9, 2), (10, 3), (14, 7), (20, 13)] {
            positions.add("orders/0", old, new, 1);
        }
        assert_eq!(positions.runs["orders/0"], [(5, 0, 2), (9, 2, 12)]);
        let found = [0, 5, 6, 7, 8, 9, 12, 20, 21].map(|offset| positions.translate("orders/0", offset));
        assert_eq!(found.map(|found| found.map(|(new, _)| new)), [0, 0, 1, 2, 2, 2, 5, 13, 14].map(Some));
        assert_eq!(positions.gaps["orders/0"], [(7, 9), (11, 14), (15, 20)]);
        assert_eq!(
            [19, 20].map(|offset| positions.translate("orders/0", offset).map(|(_, lacks)| lacks)),
            [true, false].map(Some)
        );
        assert_eq!(positions.translate("orders/1", 0), None);
    }

    #[test]
    fn a_batch_has_several_offsets() {
        let mut positions = QueuePositions::default();
        for first in [0, 4, 8] {
            positions.add("orders/0", first, first, 4);
        }
        let found = [0, 3, 5, 12].map(|offset| positions.translate("orders/0", offset));
        assert_eq!(found, [0, 3, 5, 12].map(|new| Some((new, false))));
    }

    #[test]
    fn messages_before_the_log_are_a_gap() {
        let mut positions = QueuePositions::default();
        positions.add("orders/0", 0, 0, 1);
        positions.first = [("orders/0".to_owned(), 3), ("orders/1".to_owned(), 2)].into();
        positions.reach_first();
        assert_eq!(positions.gaps, [("orders/0".to_owned(), vec![(1, 3)])].into());
        assert_eq!(positions.ends, [("orders/0".to_owned(), 3), ("orders/1".to_owned(), 2)].into());
        assert_eq!(positions.first, BTreeMap::new());
    }
}
