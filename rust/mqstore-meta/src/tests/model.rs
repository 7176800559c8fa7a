//! Compares a progress with a model that stores the state of each offset.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use crate::{Lease, Progress, ProgressRecord, ReturnedMessage};

/// Number of offsets that the tests use.
const END: i64 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offset {
    Never,
    Leased(i64, u32),
    Waiting(i64, u32),
    DeadLetter(i64),
    Finished,
}

#[derive(Clone, Debug)]
struct Naive {
    next: i64,
    reasons: BTreeMap<i64, Arc<str>>,
    offsets: [Offset; END as usize],
}

impl Naive {
    fn new() -> Self {
        Self { next: 0, reasons: BTreeMap::new(), offsets: [Offset::Never; END as usize] }
    }

    fn at(&mut self, offset: i64) -> &mut Offset {
        &mut self.offsets[offset as usize]
    }

    fn committed(&self) -> i64 {
        self.offsets.iter().take_while(|offset| **offset == Offset::Finished).count() as i64
    }

    /// Applies the change if it fits. Returns whether it did.
    fn apply(&mut self, record: &ProgressRecord) -> bool {
        let fits = self.apply_state(record);
        while self.offsets.get(self.next as usize) == Some(&Offset::Finished) {
            self.next += 1;
        }
        let (offsets, next) = (self.offsets, self.next);
        self.reasons.retain(|offset, _| *offset < next && offsets[*offset as usize] != Offset::Finished);
        fits
    }

    fn apply_state(&mut self, record: &ProgressRecord) -> bool {
        let open = |offset: i64, naive: &mut Self| {
            (0..naive.next).contains(&offset) && *naive.at(offset) != Offset::Finished
        };
        match *record {
            ProgressRecord::Leased { offset, invisible_until_ms, attempt } => {
                let fits = offset <= self.next
                    && !matches!(*self.at(offset), Offset::Finished | Offset::DeadLetter(_));
                if fits {
                    self.next = self.next.max(offset + 1);
                    *self.at(offset) = Offset::Leased(invisible_until_ms, attempt);
                }
                fits
            }
            ProgressRecord::Finished { from, to } => {
                let fits = from < to;
                if fits {
                    (from..to).for_each(|offset| *self.at(offset) = Offset::Finished);
                    if from <= self.next {
                        self.next = self.next.max(to);
                    }
                }
                fits
            }
            ProgressRecord::Returned { offset, visible_ms, attempt } => {
                let fits = open(offset, self);
                if fits {
                    *self.at(offset) = Offset::Waiting(visible_ms, attempt);
                }
                fits
            }
            ProgressRecord::DeadLetter { offset, dlq_offset } => {
                let fits = open(offset, self);
                if fits {
                    *self.at(offset) = Offset::DeadLetter(dlq_offset);
                }
                fits
            }
            ProgressRecord::Extended { offset, invisible_until_ms } => match *self.at(offset) {
                Offset::Leased(_, attempt) => {
                    *self.at(offset) = Offset::Leased(invisible_until_ms, attempt);
                    true
                }
                _ => false,
            },
            ProgressRecord::Moved { to } => {
                self.reasons.clear();
                (0..to).for_each(|offset| *self.at(offset) = Offset::Finished);
                (to..END).for_each(|offset| *self.at(offset) = Offset::Never);
                self.next = to;
                true
            }
            ProgressRecord::Clamped { min, max } => {
                if min > max {
                    return false;
                }
                (0..min).for_each(|offset| *self.at(offset) = Offset::Finished);
                (max..END).for_each(|offset| *self.at(offset) = Offset::Never);
                self.next = self.next.clamp(min, max);
                true
            }
            ProgressRecord::TookOver { .. } | ProgressRecord::Clock { .. } => true,
            ProgressRecord::Reason { offset, ref reason } => {
                let fits = open(offset, self);
                if fits {
                    self.reasons.insert(offset, Arc::clone(reason));
                }
                fits
            }
        }
    }

    fn compare(&self, progress: &Progress) {
        assert_eq!((progress.committed(), progress.next()), (self.committed(), self.next));
        let mut events = Vec::new();
        for (offset, state) in (0..).zip(self.offsets) {
            assert_eq!(progress.is_finished(offset), state == Offset::Finished, "offset {offset}");
            let lease = progress
                .lease(offset)
                .map(|Lease { invisible_until_ms, attempt, .. }| (invisible_until_ms, attempt));
            let waiting = progress
                .waiting(offset)
                .map(|ReturnedMessage { visible_ms, attempt, .. }| (visible_ms, attempt));
            let dead = progress.dead_letters().find(|(dead, _)| *dead == offset).map(|(_, dlq)| dlq);
            let is = match state {
                Offset::Leased(ms, attempt) => (Some((ms, attempt)), None, None),
                Offset::Waiting(ms, attempt) => (None, Some((ms, attempt)), None),
                Offset::DeadLetter(dlq) => (None, None, Some(dlq)),
                Offset::Never | Offset::Finished => (None, None, None),
            };
            assert_eq!((lease, waiting, dead), is, "offset {offset}");
            assert_eq!(progress.reason(offset), self.reasons.get(&offset), "offset {offset}");
            if let Offset::Leased(ms, _) | Offset::Waiting(ms, _) = state {
                events.push((ms, offset, matches!(state, Offset::Leased(..))));
            }
        }
        let first =
            |leased| events.iter().filter(|event| event.2 == leased).map(|event| (event.0, event.1)).min();
        let ending = progress.first_ending().map(|(offset, lease)| (lease.invisible_until_ms, offset));
        let due = progress.first_due().map(|(offset, waiting)| (waiting.visible_ms, offset));
        assert_eq!((ending, due), (first(true), first(false)));
        assert_eq!(progress.next_event_ms(), events.iter().map(|event| event.0).min());
        let mut before = progress.committed();
        for (from, to) in progress.finished() {
            let reaches_next = (from..=to).contains(&progress.next()) && to > progress.next();
            assert!(before < from && from < to && !reaches_next, "ranges are apart and in order");
            before = to;
        }
        for max in 0..=END {
            let new = (self.next..max).filter(|offset| self.offsets[*offset as usize] == Offset::Never);
            assert_eq!(progress.new_messages(max), new.count() as u64);
        }
    }
}

fn any_record() -> impl Strategy<Value = ProgressRecord> {
    let offsets = (0..END, 0..END, 0..4_i64, 1..4_u32, 0..28_u8);
    offsets.prop_map(|(offset, other, ms, attempt, kind)| match kind {
        0..=7 => ProgressRecord::Leased { offset, invisible_until_ms: ms, attempt },
        8..=13 => ProgressRecord::Finished { from: offset, to: offset + 1 },
        14 => ProgressRecord::Finished { from: offset, to: other },
        15..=17 => ProgressRecord::Returned { offset, visible_ms: ms, attempt },
        18 => ProgressRecord::DeadLetter { offset, dlq_offset: other },
        19 | 20 => ProgressRecord::Extended { offset, invisible_until_ms: ms },
        21 => ProgressRecord::Moved { to: offset },
        22 => ProgressRecord::TookOver { log_offset: offset },
        23..=25 => ProgressRecord::Reason { offset, reason: format!("reason {other}").into() },
        _ => ProgressRecord::Clamped { min: offset.min(other) / 2, max: offset.max(other) },
    })
}

/// Returns the state that results from the parts.
fn restored(progress: &Progress) -> Progress {
    let mut made = Progress::between(progress.committed(), progress.next()).unwrap();
    for part in progress.parts() {
        assert!(made.restore(&part), "{part:?}");
    }
    made
}

proptest! {
    #[test]
    fn a_progress_is_as_one_that_keeps_every_offset(records in vec(any_record(), 0..60)) {
        let (mut naive, mut progress) = (Naive::new(), Progress::default());
        for record in records {
            let allowed = progress.check(std::slice::from_ref(&record)).is_ok();
            let tokens = |progress: &Progress| progress.leases().map(|(_, lease)| lease.token).max();
            let before = tokens(&progress);
            progress.apply(&record);
            prop_assert_eq!(naive.apply(&record), allowed, "{:?}", record);
            naive.compare(&progress);
            if let ProgressRecord::Leased { offset, .. } = record && allowed {
                prop_assert!(progress.lease(offset).map(|lease| lease.token) > before, "tokens grow");
            }
        }
        naive.compare(&restored(&progress));
        prop_assert_eq!(restored(&progress).pop_taken_over_offset(), progress.pop_taken_over_offset());
    }

    #[test]
    fn what_a_broker_popped_is_leased_again(
        records in vec(any_record(), 0..40), popped in btree_map(0..END, (0..9_i64, 1..4_u32), 0..6), place in 1..99_i64,
    ) {
        let (mut naive, mut progress) = (Naive::new(), Progress::default());
        for record in records {
            progress.apply(&record);
            naive.apply(&record);
        }
        let changes = progress.pop_takeover_records(&popped, place);
        prop_assert!(progress.check(&changes).is_ok(), "{changes:?}");
        for (offset, (invisible_until_ms, attempt)) in popped.range(0..progress.committed()) {
            *naive.at(*offset) = Offset::Leased(*invisible_until_ms, *attempt);
        }
        for change in &changes {
            progress.apply(change);
        }
        naive.compare(&progress);
        naive.compare(&restored(&progress));
        prop_assert!(progress.pop_taken_over_offset() >= place);
        // A second takeover finds nothing new.
        prop_assert_eq!(progress.pop_takeover_records(&BTreeMap::new(), place).len(), 1);
    }

    #[test]
    fn any_numbers_leave_a_state_that_holds_together(
        records in vec((0..9_u8, any::<i64>(), any::<i64>()), 0..20), committed: i64, next: i64,
    ) {
        let mut progress = Progress::between(committed, next).unwrap_or_default();
        for (kind, first, other) in records {
            let record = match kind {
                0 => ProgressRecord::Leased { offset: first, invisible_until_ms: other, attempt: 1 },
                1 => ProgressRecord::Finished { from: first, to: other },
                2 => ProgressRecord::Returned { offset: first, visible_ms: other, attempt: 1 },
                3 => ProgressRecord::DeadLetter { offset: first, dlq_offset: other },
                4 => ProgressRecord::Extended { offset: first, invisible_until_ms: other },
                5 => ProgressRecord::Moved { to: first },
                6 => ProgressRecord::TookOver { log_offset: first },
                7 => ProgressRecord::Reason { offset: first, reason: "late".into() },
                _ => ProgressRecord::Clamped { min: first, max: other },
            };
            let fits = progress.check(std::slice::from_ref(&record)).is_ok();
            let before = (progress.committed(), progress.next());
            progress.apply(&record);
            prop_assert!(fits || before == (progress.committed(), progress.next()));
            prop_assert!((0..=progress.next()).contains(&progress.committed()));
        }
    }
}

#[test]
fn records_of_one_call_build_on_each_other() {
    let progress = Progress::default();
    let lease = |offset| ProgressRecord::Leased { offset, invisible_until_ms: 5, attempt: 1 };
    assert!(progress.check(&[lease(0), lease(1), lease(2)]).is_ok());
    assert!(progress.check(&[lease(0), lease(2)]).is_err());
    assert!(
        progress.check(&[lease(0), ProgressRecord::Extended { offset: 0, invisible_until_ms: 9 }]).is_ok()
    );
    assert!(progress.check(&[ProgressRecord::Finished { from: 0, to: 7 }, lease(7)]).is_ok());
}

#[test]
fn a_long_row_of_finished_offsets_takes_no_memory() {
    let mut progress = Progress::default();
    for offset in 0..10_000 {
        progress.apply(&ProgressRecord::Leased { offset, invisible_until_ms: 5, attempt: 1 });
        if offset > 0 {
            progress.apply(&ProgressRecord::Finished { from: offset, to: offset + 1 });
        }
    }
    assert_eq!((progress.committed(), progress.next()), (0, 10_000));
    assert_eq!(progress.finished().collect::<Vec<_>>(), [(1, 10_000)]);
    assert_eq!(progress.leases().len(), 1);
    progress.apply(&ProgressRecord::Finished { from: 0, to: 1 });
    assert_eq!((progress.committed(), progress.finished().len()), (10_000, 0));
}

#[test]
fn leases_that_began_while_the_clock_was_ahead_begin_again() {
    const WEEKS_MS: i64 = 21 * 86_400_000;
    let mut progress = Progress::default();
    let leased =
        |offset, invisible_until_ms| ProgressRecord::Leased { offset, invisible_until_ms, attempt: 1 };
    let returned = |offset, visible_ms, attempt| ProgressRecord::Returned { offset, visible_ms, attempt };
    let begun_ms = WEEKS_MS + 1_000;
    for record in [
        ProgressRecord::Clock { now_ms: 1_000 },
        leased(0, 31_000),
        ProgressRecord::Clock { now_ms: begun_ms },
        leased(1, begun_ms + 30_000),
        leased(2, begun_ms + 30_000),
        returned(2, begun_ms + 10_000, 1),
        leased(3, begun_ms + 5_000),
        ProgressRecord::Extended { offset: 3, invisible_until_ms: begun_ms + 60_000 },
        // A message with a delay of its own, which counts by the clock.
        leased(4, WEEKS_MS * 2),
        returned(4, WEEKS_MS * 2, 0),
    ] {
        progress.apply(&record);
    }
    assert!(progress.clock_record(begun_ms + 9_999).is_none());
    assert_eq!(
        progress.clock_record(begun_ms + 10_000),
        Some(ProgressRecord::Clock { now_ms: begun_ms + 10_000 })
    );
    // A new generation of the metadata log stores the state in another form.
    for mut progress in [progress.clone(), restored(&progress)] {
        let token = progress.lease(1).unwrap().token;
        assert!(progress.is_ahead_of(5_000));
        progress.apply(&progress.clock_record(5_000).unwrap());
        assert!(!progress.is_ahead_of(5_000));
        let ends: Vec<_> =
            progress.leases().map(|(offset, lease)| (offset, lease.invisible_until_ms)).collect();
        assert_eq!(ends, [(0, 31_000), (1, 35_000), (3, 65_000)]);
        let dues: Vec<_> =
            progress.all_waiting().map(|(offset, waiting)| (offset, waiting.visible_ms)).collect();
        assert_eq!(dues, [(2, 15_000), (4, WEEKS_MS * 2)]);
        assert_eq!(progress.lease(1).unwrap().token, token, "the worker still has its lease");
        assert_eq!((progress.next_event_ms(), progress.due(35_000, 9)), (Some(15_000), vec![2, 0, 1]));
    }
}

#[test]
fn a_lease_of_an_unknown_start_keeps_its_end() {
    let mut progress = Progress::default();
    progress.apply(&ProgressRecord::Leased { offset: 0, invisible_until_ms: 90_000_000, attempt: 1 });
    progress.apply(&ProgressRecord::Clock { now_ms: 50_000 });
    progress.apply(&ProgressRecord::Clock { now_ms: 5 });
    assert_eq!(restored(&progress).lease(0).unwrap().invisible_until_ms, 90_000_000);
}
