//! The decisions of half messages in memory, and the part of them that is in the metadata log.
//!
//! ```text
//! half messages    noted | 0 | end | end | 0 | end | 0        0: pending; end: log offset of the end of its decision
//!                        base
//! ```
//!
//! `base` is the `next` of the progress; nothing from there on is in the metadata log. A transaction that ends soon
//! needs no record of its own: a round logs consecutive decided half messages as one range. It logs pending ones only
//! if the previous round saw them too. It stops at a decision that is not durable yet; once durable, that decision
//! joins a range.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use mqstore_meta::ProgressRecord;

/// An op message, or a range of offsets without one.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpPosition {
    /// The offset after it.
    next: i64,
    /// One past the largest offset that it names.
    half_end: i64,
    /// The end of its decision in the log.
    end: u64,
}

/// Maximum number of steps. The steps store which op messages a broker must read again while an older half message is
/// pending.
const MOST_STEPS: usize = 1024;

/// Tracks decisions; see the module's text.
#[derive(Debug, Default)]
pub(super) struct OutcomeTracker {
    pub(super) base: i64,
    slots: VecDeque<u64>,
    /// Decided half messages below `base`: the end of the decision, and the half message.
    pub(super) late: BTreeSet<(u64, i64)>,
    pub(super) ops: BTreeMap<i64, OpPosition>,
    /// The first op message that the next open reads.
    pub(super) next_op: i64,
    /// Pairs of an op message and an offset: once the progress reaches the offset, earlier op messages are not needed.
    steps: VecDeque<(i64, i64)>,
    /// Half messages below this offset were seen by the previous round.
    seen: i64,
}

/// The records of one frame of a round.
#[derive(Debug, Default)]
pub(super) struct PendingRecords {
    pub(super) records: Vec<ProgressRecord>,
    passed: usize,
    moved: Vec<(u64, i64)>,
}

/// Records in one frame of the metadata log.
const MOST_RECORDS: usize = 4096;

impl OutcomeTracker {
    /// Creates a tracker. Nothing is logged from `base` on, and op messages are read from `next_op` on; earlier ones
    /// need half messages up to `base`.
    pub(super) fn starting_at(base: i64, next_op: i64) -> Self {
        Self { base, next_op, steps: VecDeque::from([(next_op, base)]), seen: base, ..Self::default() }
    }

    /// Records a decision: its half messages, its op message, and its end in the log.
    pub(super) fn record_decision(&mut self, halves: impl Iterator<Item = i64>, op: i64, end: u64) {
        let end = end.max(1);
        let mut half_end = 0;
        for half in halves {
            half_end = half_end.max(half.saturating_add(1));
            let Ok(at) = usize::try_from(half - self.base) else {
                self.late.insert((end, half));
                continue;
            };
            self.extend_range(at);
            if let Some(slot) = self.slots.get_mut(at) {
                *slot = end;
            }
        }
        self.ops.insert(op, OpPosition { next: op.saturating_add(1), half_end, end });
    }

    /// Records that no op message has an offset from `from` up to `to`: a gap of the queue, which stays one. Without
    /// this, [`Self::next_op`] would never pass the gap.
    pub(super) fn no_ops(&mut self, from: i64, to: i64) {
        if from < to {
            self.ops.insert(from, OpPosition { next: to, half_end: 0, end: 0 });
        }
    }

    /// Records that a half message is no longer in the log and needs no decision.
    pub(super) fn lost(&mut self, half: i64) {
        match usize::try_from(half - self.base) {
            Err(_) => {
                self.late.insert((1, half));
            }
            Ok(at) => {
                self.extend_range(at);
                if let Some(slot) = self.slots.get_mut(at) {
                    *slot = 1;
                }
            }
        }
    }

    fn extend_range(&mut self, at: usize) {
        if at >= self.slots.len() {
            self.slots.resize(at + 1, 0);
        }
    }

    /// Returns the records to log now. The log is durable up to `durable`, and half messages exist up to `half_max`.
    /// With `all`, pending half messages are included even if the previous round did not see them.
    pub(super) fn notes(
        &mut self,
        durable: u64,
        half_max: i64,
        invisible_until_ms: i64,
        all: bool,
    ) -> PendingRecords {
        let mut notes = PendingRecords::default();
        if let Some(last) = usize::try_from(half_max - self.base).ok().and_then(|count| count.checked_sub(1))
        {
            self.extend_range(last);
        }
        let finished = self.late.iter().take_while(|(end, _)| *end <= durable).take(MOST_RECORDS);
        notes
            .records
            .extend(finished.map(|(_, half)| ProgressRecord::Finished { from: *half, to: half + 1 }));
        for (slot, offset) in self.slots.iter().zip(self.base..) {
            if notes.records.len() >= MOST_RECORDS {
                break;
            }
            if *slot > 0 && *slot <= durable {
                match notes.records.last_mut() {
                    Some(ProgressRecord::Finished { to, .. }) if *to == offset && notes.passed > 0 => {
                        *to += 1;
                    }
                    _ => notes.records.push(ProgressRecord::Finished { from: offset, to: offset + 1 }),
                }
            } else if all || *slot == 0 && offset < self.seen {
                notes.records.push(ProgressRecord::Leased { offset, invisible_until_ms, attempt: 0 });
                if *slot > 0 {
                    notes.moved.push((*slot, offset));
                }
            } else {
                break;
            }
            notes.passed += 1;
        }
        notes
    }

    /// Marks `notes` as logged.
    pub(super) fn noted(&mut self, notes: PendingRecords, durable: u64) {
        for _ in 0..MOST_RECORDS {
            match self.late.first() {
                Some((end, _)) if *end <= durable => self.late.pop_first(),
                _ => break,
            };
        }
        self.late.extend(notes.moved);
        self.slots.drain(..notes.passed.min(self.slots.len()));
        self.base += notes.passed as i64;
        let noted = |place: &OpPosition, base| place.end <= durable && place.half_end <= base;
        while let Some(entry) = self.ops.first_entry() {
            if *entry.key() != self.next_op || !noted(entry.get(), self.base) {
                break;
            }
            let place = entry.remove();
            self.next_op = place.next;
            let half_end = self.steps.back().map_or(0, |(_, half_end)| *half_end).max(place.half_end);
            match self.steps.back_mut() {
                Some(last) if last.1 == half_end => last.0 = self.next_op,
                _ => self.steps.push_back((self.next_op, half_end)),
            }
        }
        while self.steps.len() > MOST_STEPS {
            // Merge two steps into one that needs what both need.
            self.steps =
                self.steps.make_contiguous().chunks(2).filter_map(|pair| pair.last()).copied().collect();
        }
    }

    /// Ends a round: the next one may log the half messages that are pending now.
    pub(super) fn finish_round(&mut self, half_max: i64) {
        self.seen = half_max;
    }

    /// Returns the first op message that a broker must read if its first pending half message is at `committed`, if
    /// that op message changed.
    pub(super) fn broker_op(&mut self, committed: i64) -> Option<i64> {
        let mut reached = None;
        while let Some((op, half_end)) = self.steps.front().copied() {
            if half_end > committed {
                break;
            }
            self.steps.pop_front();
            reached = Some(op);
        }
        reached
    }
}
