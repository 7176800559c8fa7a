//! What is known of half messages and op messages, and what of it is noted in the metadata log.
//!
//! ```text
//! half messages    noted | 0 | end | end | 0 | end | 0        0: undecided; else where its decision ends in the log
//!                        base
//! ```
//!
//! From `base`, the `next` of the progress, on nothing is noted. A transaction that ends soon costs no record of its own
//! there: a round notes a row of decided ones as one range, and of undecided ones only those that the round before
//! had seen too. It stops at what is decided and not durable yet, for that costs a range when it is.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use mqstore_meta::ProgressRecord;

/// An op message.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpPosition {
    /// One past the largest offset that it names.
    half_end: i64,
    /// Where its decision ends in the log.
    end: u64,
}

/// Op messages that a broker has to read again as long as an older half message is undecided are kept in so many
/// steps.
const MOST_STEPS: usize = 1024;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct OutcomeTracker {
    pub(super) base: i64,
    slots: VecDeque<u64>,
    /// Decided, of those below `base`: where the decision ends, and the half message.
    pub(super) late: BTreeSet<(u64, i64)>,
    pub(super) ops: BTreeMap<i64, OpPosition>,
    /// The first op message that the next open reads.
    pub(super) next_op: i64,
    /// Op messages below, by the end of half messages that they need: passed once the progress has come there.
    steps: VecDeque<(i64, i64)>,
    /// Half messages below were seen by the round before.
    seen: i64,
}

/// What a round has to note, at most so much of it in one frame.
#[derive(Debug, Default)]
pub(super) struct PendingRecords {
    pub(super) records: Vec<ProgressRecord>,
    passed: usize,
    moved: Vec<(u64, i64)>,
}

/// Records in one frame of the metadata log.
const MOST_RECORDS: usize = 4096;

impl OutcomeTracker {
    /// Nothing is noted from `base` on, and op messages are read from `next_op` on; those below need half messages up to
    /// `half_end`.
    pub(super) fn starting_at(base: i64, next_op: i64) -> Self {
        Self { base, next_op, steps: VecDeque::from([(next_op, base)]), seen: base, ..Self::default() }
    }

    /// Takes note of a decision: its half messages, its op message, where it ends.
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
        self.ops.insert(op, OpPosition { half_end, end });
    }

    /// A half message is gone from the log: nobody decides it any more.
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

    /// What can be noted now that the log is durable up to `durable` and half messages up to `half_max` are there.
    /// With `all`, undecided ones are noted even if the round before had not seen them.
    pub(super) fn notes(&mut self, durable: u64, half_max: i64, until_ms: i64, all: bool) -> PendingRecords {
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
                notes.records.push(ProgressRecord::Leased { offset, until_ms, attempt: 0 });
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

    /// They were noted.
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
            self.next_op += 1;
            let half_end = self.steps.back().map_or(0, |(_, half_end)| *half_end).max(place.half_end);
            match self.steps.back_mut() {
                Some(last) if last.1 == half_end => last.0 = self.next_op,
                _ => self.steps.push_back((self.next_op, half_end)),
            }
        }
        while self.steps.len() > MOST_STEPS {
            // Two steps become one, that needs what both need.
            self.steps =
                self.steps.make_contiguous().chunks(2).filter_map(|pair| pair.last()).copied().collect();
        }
    }

    /// A round is over: what is undecided now may be noted by the next one.
    pub(super) fn finish_round(&mut self, half_max: i64) {
        self.seen = half_max;
    }

    /// The first op message that a broker has to read whose first undecided half message is at `committed`, if that is
    /// further than it was.
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
