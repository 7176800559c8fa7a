//! The progress of one group in one queue that it consumes message by message.
//!
//! A plain value without files, clocks or locks. Only [`ProgressRecord`]s change it, both while the store runs and
//! when an open replays them. So both arrive at the same state:
//!
//! ```text
//!  0 ........ committed ............................. next ........ maximum of the queue
//!    finished          │ leased, waiting, dead letter │  never leased
//!                      │ or finished                  │
//! ```
//!
//! Every offset from `committed` up to, but not including, `next` is in exactly one state:
//!
//! - leased: a consumer holds it until some time
//! - waiting: it was returned and is due at some time
//! - dead letter: it is being moved to the `%DLQ%` topic
//! - finished
//!
//! Single offsets from `next` on can be finished too, before anyone leased them: a message that was cancelled. Neither
//! `committed` nor `next` itself is ever finished: both move over the finished ranges that they reach. Memory grows with
//! the number of open messages and finished ranges, not with the distance from `committed` to `next`.
//!
//! Each lease and each wait also has the time of the [`ProgressRecord::Clock`] before it. So a clock that was ahead and
//! was corrected does not keep messages for weeks: those that began later than the clock says begin again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The lease of a message that a consumer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The time from which another consumer may get the message, in epoch milliseconds.
    pub invisible_until_ms: i64,
    /// Number of the delivery of the message; 1 is the first.
    pub attempt: u32,
    /// Distinguishes this lease from earlier and later leases of the same offset. Not kept across an open.
    pub token: u64,
    /// The clock at its start, as in [`ProgressRecord::Clock`].
    clock_ms: i64,
}

/// A message that was returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReturnedMessage {
    /// The time at which it is due again, in epoch milliseconds.
    pub visible_ms: i64,
    /// Number of its deliveries so far.
    pub attempt: u32,
    /// The clock when it was returned, as in [`ProgressRecord::Clock`].
    clock_ms: i64,
}

/// One change of a [`Progress`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgressRecord {
    /// A consumer got `offset`: the next one that was never leased, or one that was waiting or leased.
    Leased {
        /// The message.
        offset: i64,
        /// The end of the lease, in epoch milliseconds.
        invisible_until_ms: i64,
        /// Number of the delivery; 1 is the first.
        attempt: u32,
    },
    /// Offsets from `from` up to, but not including, `to` are finished: acknowledged, filtered out, cancelled, or
    /// without a message.
    Finished {
        /// The first offset.
        from: i64,
        /// The last offset plus one.
        to: i64,
    },
    /// A leased message was returned, or its lease ended.
    Returned {
        /// The message.
        offset: i64,
        /// The time at which it is due again, in epoch milliseconds.
        visible_ms: i64,
        /// Number of its deliveries so far.
        attempt: u32,
    },
    /// The message is about to be copied to the dead-letter topic. This is written before the copy is appended.
    /// `Finished` ends it, or `Returned` if there will be no copy.
    DeadLetter {
        /// The message.
        offset: i64,
        /// The smallest offset that the copy may have in the dead-letter queue.
        dlq_offset: i64,
    },
    /// A lease was extended or shortened.
    Extended {
        /// The message.
        offset: i64,
        /// The new end of the lease, in epoch milliseconds.
        invisible_until_ms: i64,
    },
    /// A reset or a seek: everything below `to` is finished; `to` and later offsets count as never leased.
    Moved {
        /// The offset to continue with.
        to: i64,
    },
    /// The queue only has the offsets from `min` up to, but not including, `max`. All others are forgotten. Later
    /// messages at `max` and above are new messages.
    Clamped {
        /// The smallest offset of the queue.
        min: i64,
        /// The largest offset of the queue plus one.
        max: i64,
    },
    /// The state includes the pop records that a broker wrote below this log offset.
    TookOver {
        /// The log offset.
        log_offset: i64,
    },
    /// The clock said this. Leases and returned messages of later records began then or up to ten seconds later.
    /// If earlier ones began after this time, the clock was ahead of it; they begin now and keep their length.
    Clock {
        /// The time, in epoch milliseconds.
        now_ms: i64,
    },
    /// A worker gave a reason for returning the message. It replaces an earlier one and stays until the message is
    /// finished.
    Reason {
        /// The message.
        offset: i64,
        /// The reason, not empty.
        reason: Arc<str>,
    },
}

/// Maximum milliseconds between a lease and the [`ProgressRecord::Clock`] before it. A lease that begins again is longer
/// by at most this time.
const CLOCK_STEP_MS: i64 = 10_000;

impl ProgressRecord {
    /// One offset is finished.
    pub fn finished(offset: i64) -> Self {
        Self::Finished { from: offset, to: offset.saturating_add(1) }
    }

    /// The offset of its message, or the first of several.
    fn offset(&self) -> i64 {
        match *self {
            Self::Leased { offset, .. }
            | Self::Returned { offset, .. }
            | Self::DeadLetter { offset, .. }
            | Self::Extended { offset, .. }
            | Self::Reason { offset, .. } => offset,
            Self::Finished { from: at, .. } | Self::Moved { to: at } | Self::Clamped { min: at, .. } => at,
            Self::TookOver { .. } | Self::Clock { .. } => 0,
        }
    }
}

/// Reason why a record does not fit the state; nothing was changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgressConflict {
    /// The offset is finished, or is being moved to the dead-letter topic.
    #[error("offset {offset} is finished")]
    Finished {
        /// The offset.
        offset: i64,
    },
    /// The offset is greater than the next one that was never leased, which must come first.
    #[error("offset {offset} cannot be leased yet: the next one is {next}")]
    Ahead {
        /// The offset.
        offset: i64,
        /// The next offset that was never leased.
        next: i64,
    },
    /// The offset is not leased.
    #[error("offset {offset} is not leased")]
    NotLeased {
        /// The offset.
        offset: i64,
    },
    /// A negative offset, or a range that ends before it starts.
    #[error("{from} to {to} is not a range of offsets")]
    NoRange {
        /// Its start.
        from: i64,
        /// Its end.
        to: i64,
    },
}

/// Numbers of the messages below [`Progress::next`] that are not finished, by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgressCounts {
    /// Messages with a lease that has not ended.
    pub leased: u64,
    /// Returned messages that are due later.
    pub delayed: u64,
    /// Returned messages that are due, and messages whose lease has ended.
    pub due: u64,
    /// Messages that are being moved to the dead-letter topic.
    pub dying: u64,
}

/// The progress of one group in one queue; see the module's text.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    committed: i64,
    next: i64,
    /// Ranges of finished offsets above `committed`, from start to end; they do not touch.
    finished: BTreeMap<i64, i64>,
    leases: BTreeMap<i64, Lease>,
    waiting: BTreeMap<i64, ReturnedMessage>,
    /// The smallest offset that the copy may have, by offset of the message.
    dead_letters: BTreeMap<i64, i64>,
    /// The reason of each unfinished message that a worker returned with one.
    reasons: BTreeMap<i64, Arc<str>>,
    /// Leases and waiting messages, by the time at which they end or are due.
    ends: BTreeSet<(i64, i64)>,
    dues: BTreeSet<(i64, i64)>,
    /// Number of leases so far; the last lease has it as its token.
    tokens: u64,
    /// Whether any record was applied or a start offset was given.
    known: bool,
    /// The state includes the pop records of a broker below this log offset.
    taken_over: i64,
    /// The time of the last [`ProgressRecord::Clock`]; 0 before the first.
    clock_ms: i64,
}

impl Progress {
    /// Returns a progress without leases whose first message is at `offset`.
    pub fn starting_at(offset: i64) -> Self {
        let offset = offset.max(0);
        Self { committed: offset, next: offset, known: true, ..Self::default() }
    }

    /// Returns the start of a group that has this offset in the queue.
    pub(super) fn of(offset: Option<i64>) -> Self {
        offset.map_or_else(Self::default, Self::starting_at)
    }

    /// Returns the group's offset in the queue as a broker sees it, which is [`Self::committed`]. `None` if the
    /// progress is new and has no offset.
    pub fn offset(&self) -> Option<i64> {
        self.known.then_some(self.committed)
    }

    /// The offset below which all messages are finished.
    pub fn committed(&self) -> i64 {
        self.committed
    }

    /// The first offset that was never leased.
    pub fn next(&self) -> i64 {
        self.next
    }

    /// Returns the log offset of [`ProgressRecord::TookOver`]; 0 if nothing was taken over.
    pub fn pop_taken_over_offset(&self) -> i64 {
        self.taken_over
    }

    /// Whether leases may have begun later than `now_ms`, because the clock was ahead and was corrected.
    pub fn is_ahead_of(&self, now_ms: i64) -> bool {
        now_ms < self.clock_ms
    }

    /// Returns the record that must precede a lease or a return that begins at `now_ms`; `None` if the last such record
    /// is younger than ten seconds. Read the clock under the lock of the progress: an older time would count as a
    /// clock that was set back.
    pub fn clock_record(&self, now_ms: i64) -> Option<ProgressRecord> {
        let is_known = (self.clock_ms..self.clock_ms.saturating_add(CLOCK_STEP_MS)).contains(&now_ms);
        (!is_known).then_some(ProgressRecord::Clock { now_ms })
    }

    /// Returns the changes that lease again the messages below [`Self::committed`] that a broker popped and no
    /// consumer acknowledged. `popped` maps each offset to the end of its lease and its attempt. From `committed` on,
    /// this state counts and not the broker's. The last record is [`ProgressRecord::TookOver`]; log all of them in
    /// one frame.
    pub fn pop_takeover_records(
        &self,
        popped: &BTreeMap<i64, (i64, u32)>,
        log_offset: i64,
    ) -> Vec<ProgressRecord> {
        let mut records = Vec::new();
        let mut lost = popped.range(0..self.committed.max(0)).peekable();
        if let Some((first, _)) = lost.peek() {
            let mut at = **first;
            records.push(ProgressRecord::Moved { to: at });
            let mut lease =
                |offset: i64, invisible_until_ms: i64, attempt: u32, then: Option<ProgressRecord>| {
                    if at < offset {
                        records.push(ProgressRecord::Finished { from: at, to: offset });
                    }
                    records.push(ProgressRecord::Leased { offset, invisible_until_ms, attempt });
                    records.extend(then);
                    at = offset + 1;
                };
            for (offset, (invisible_until_ms, attempt)) in lost {
                lease(*offset, *invisible_until_ms, *attempt, None);
            }
            let mut open: Vec<ProgressRecord> = self.parts().collect();
            open.sort_by_key(ProgressRecord::offset);
            for part in open {
                match part {
                    ProgressRecord::Leased { offset, invisible_until_ms, attempt } => {
                        lease(offset, invisible_until_ms, attempt, None);
                    }
                    ProgressRecord::Returned { offset, visible_ms, attempt } => {
                        lease(offset, visible_ms, attempt, Some(part));
                    }
                    ProgressRecord::DeadLetter { offset, .. } => lease(offset, 0, 0, Some(part)),
                    _ => {}
                }
            }
            if at < self.next {
                records.push(ProgressRecord::Finished { from: at, to: self.next });
            }
            let ahead = self.finished.range(self.next..);
            records.extend(ahead.map(|(from, to)| ProgressRecord::Finished { from: *from, to: *to }));
            records.extend(self.reason_records());
        }
        records.push(ProgressRecord::TookOver { log_offset });
        records
    }

    /// Returns the lease of `offset`, whether it has ended or not.
    pub fn lease(&self, offset: i64) -> Option<Lease> {
        self.leases.get(&offset).copied()
    }

    /// Returns the wait of `offset` for its next delivery, if it was returned.
    pub fn waiting(&self, offset: i64) -> Option<ReturnedMessage> {
        self.waiting.get(&offset).copied()
    }

    /// Leased messages, by offset.
    pub fn leases(&self) -> impl ExactSizeIterator<Item = (i64, Lease)> + '_ {
        self.leases.iter().map(|(offset, lease)| (*offset, *lease))
    }

    /// Returned messages, by offset.
    pub fn all_waiting(&self) -> impl ExactSizeIterator<Item = (i64, ReturnedMessage)> + '_ {
        self.waiting.iter().map(|(offset, waiting)| (*offset, *waiting))
    }

    /// Messages that are being moved to the dead-letter topic: the offset, and the smallest offset that the copy may
    /// have there.
    pub fn dead_letters(&self) -> impl ExactSizeIterator<Item = (i64, i64)> + '_ {
        self.dead_letters.iter().map(|(offset, dlq_offset)| (*offset, *dlq_offset))
    }

    /// The last reason that a worker gave for returning the message, if it is unfinished and has one.
    pub fn reason(&self, offset: i64) -> Option<&Arc<str>> {
        self.reasons.get(&offset)
    }

    fn reason_records(&self) -> impl Iterator<Item = ProgressRecord> + '_ {
        let record = |(offset, reason): (&i64, &Arc<str>)| ProgressRecord::Reason {
            offset: *offset,
            reason: Arc::clone(reason),
        };
        self.reasons.iter().map(record)
    }

    /// Returns the number of messages that were never leased nor finished, if the queue ends at `max`.
    pub fn new_messages(&self, max: i64) -> u64 {
        let length = |from: i64, to: i64| to.min(max).saturating_sub(from).max(0).unsigned_abs();
        let finished: u64 = self.finished.range(self.next..).map(|(from, to)| length(*from, *to)).sum();
        length(self.next, max) - finished
    }

    /// Ranges of finished offsets above [`Self::committed`]: start and end, in order.
    pub fn finished(&self) -> impl ExactSizeIterator<Item = (i64, i64)> + '_ {
        self.finished.iter().map(|(from, to)| (*from, *to))
    }

    /// Whether `offset` is finished.
    pub fn is_finished(&self, offset: i64) -> bool {
        offset < self.committed
            || self.finished.range(..=offset).next_back().is_some_and(|(_, to)| offset < *to)
    }

    /// Returns the numbers of messages by state.
    pub fn counts(&self, now_ms: i64) -> ProgressCounts {
        let until_now = ..=(now_ms, i64::MAX);
        let ended = self.ends.range(until_now).count() as u64;
        let due = self.dues.range(until_now).count() as u64;
        ProgressCounts {
            leased: self.leases.len() as u64 - ended,
            delayed: self.waiting.len() as u64 - due,
            due: due + ended,
            dying: self.dead_letters.len() as u64,
        }
    }

    /// The message whose wait ends first; of several, the one with the smallest offset.
    pub fn first_due(&self) -> Option<(i64, ReturnedMessage)> {
        let (_, offset) = self.dues.first()?;
        Some((*offset, self.waiting(*offset)?))
    }

    /// The lease that ends first.
    pub fn first_ending(&self) -> Option<(i64, Lease)> {
        let (_, offset) = self.ends.first()?;
        Some((*offset, self.lease(*offset)?))
    }

    /// Returns up to `most` messages whose wait or lease has ended, oldest end first.
    pub fn due(&self, now_ms: i64, most: usize) -> Vec<i64> {
        let mut due: Vec<_> = [&self.dues, &self.ends]
            .into_iter()
            .flat_map(|all| all.iter().take_while(|(ms, _)| *ms <= now_ms).take(most))
            .collect();
        due.sort_unstable();
        due.truncate(most);
        due.into_iter().map(|(_, offset)| *offset).collect()
    }

    /// The earliest time at which a wait or a lease ends, in epoch milliseconds.
    pub fn next_event_ms(&self) -> Option<i64> {
        let (due, end) = (self.dues.first(), self.ends.first());
        due.into_iter().chain(end).map(|(ms, _)| *ms).min()
    }

    /// Checks that all of `records` fit when applied in order. For later records, only two effects of earlier ones
    /// count: the change of [`Self::next`], and that a move opens all offsets again.
    pub fn check(&self, records: &[ProgressRecord]) -> Result<(), ProgressConflict> {
        let (mut next, mut moved) = (self.next, None);
        for record in records {
            match *record {
                ProgressRecord::Leased { offset, .. } => {
                    if offset < 0 || offset == i64::MAX {
                        return Err(ProgressConflict::NoRange { from: offset, to: offset });
                    }
                    if offset > next {
                        return Err(ProgressConflict::Ahead { offset, next });
                    }
                    let dies = moved.is_none() && self.dead_letters.contains_key(&offset);
                    if self.was_finished(offset, moved) || dies {
                        return Err(ProgressConflict::Finished { offset });
                    }
                    next = next.max(offset + 1);
                }
                ProgressRecord::Finished { from, to } => {
                    if from < 0 || from >= to {
                        return Err(ProgressConflict::NoRange { from, to });
                    }
                    if from <= next {
                        next = next.max(to);
                    }
                }
                ProgressRecord::Returned { offset, .. }
                | ProgressRecord::DeadLetter { offset, .. }
                | ProgressRecord::Extended { offset, .. }
                | ProgressRecord::Reason { offset, .. } => {
                    if !(0..next).contains(&offset) {
                        return Err(ProgressConflict::NotLeased { offset });
                    }
                    if self.was_finished(offset, moved) {
                        return Err(ProgressConflict::Finished { offset });
                    }
                    let extends = matches!(record, ProgressRecord::Extended { .. });
                    if extends && moved.is_none() && offset < self.next && !self.leases.contains_key(&offset)
                    {
                        return Err(ProgressConflict::NotLeased { offset });
                    }
                }
                ProgressRecord::Moved { to } => {
                    if to < 0 {
                        return Err(ProgressConflict::NoRange { from: to, to });
                    }
                    next = to;
                    moved = Some(to);
                }
                ProgressRecord::TookOver { log_offset } => {
                    if log_offset < 0 {
                        return Err(ProgressConflict::NoRange { from: log_offset, to: log_offset });
                    }
                }
                ProgressRecord::Clock { .. } => {}
                ProgressRecord::Clamped { min, max } => {
                    if min < 0 || max < min {
                        return Err(ProgressConflict::NoRange { from: min, to: max });
                    }
                    next = next.clamp(min, max);
                }
            }
        }
        Ok(())
    }

    /// Whether `offset` is finished. `moved` is the offset to which an earlier record of the same change moved the
    /// queue.
    fn was_finished(&self, offset: i64, moved: Option<i64>) -> bool {
        moved.map_or_else(|| self.is_finished(offset), |to| offset < to)
    }

    /// Applies the change in `record`. A record that does not fit changes nothing.
    pub fn apply(&mut self, record: &ProgressRecord) {
        self.known = true;
        match *record {
            ProgressRecord::Leased { offset, invisible_until_ms, attempt } => {
                self.add_lease(offset, invisible_until_ms, attempt);
            }
            ProgressRecord::Finished { from, to } => self.finish(from, to),
            ProgressRecord::Returned { offset, visible_ms, attempt } => {
                if self.take_pending(offset) {
                    let clock_ms = self.clock_ms;
                    self.waiting.insert(offset, ReturnedMessage { visible_ms, attempt, clock_ms });
                    self.dues.insert((visible_ms, offset));
                }
            }
            ProgressRecord::Extended { offset, invisible_until_ms } => {
                if let Some(lease) = self.leases.get_mut(&offset) {
                    self.ends.remove(&(lease.invisible_until_ms, offset));
                    lease.invisible_until_ms = invisible_until_ms;
                    lease.clock_ms = self.clock_ms;
                    self.ends.insert((invisible_until_ms, offset));
                }
            }
            ProgressRecord::DeadLetter { offset, dlq_offset } => {
                if self.take_pending(offset) {
                    self.dead_letters.insert(offset, dlq_offset);
                }
            }
            ProgressRecord::Moved { to } if to >= 0 => {
                let (tokens, taken_over, clock_ms) = (self.tokens, self.taken_over, self.clock_ms);
                *self = Self { tokens, taken_over, clock_ms, ..Self::starting_at(to) };
            }
            ProgressRecord::TookOver { log_offset } => self.taken_over = self.taken_over.max(log_offset),
            ProgressRecord::Clock { now_ms } => {
                if self.is_ahead_of(now_ms) {
                    self.begin_again(now_ms);
                }
                self.clock_ms = now_ms;
            }
            ProgressRecord::Clamped { min, max } if (0..=max).contains(&min) => self.clamp(min, max),
            ProgressRecord::Reason { offset, ref reason } => {
                if (0..self.next).contains(&offset) && !self.is_finished(offset) {
                    self.reasons.insert(offset, Arc::clone(reason));
                }
            }
            ProgressRecord::Moved { .. } | ProgressRecord::Clamped { .. } => {}
        }
    }

    /// Returns a state with these bounds only; [`Self::restore`] adds the rest. `None` for bounds that no state has.
    pub(super) fn between(committed: i64, next: i64) -> Option<Self> {
        (0..=next).contains(&committed).then(|| Self { committed, next, known: true, ..Self::default() })
    }

    /// Adds one stored part of a state: a finished range, a lease, a wait, a dead letter, a taken-over offset, a reason,
    /// or the clock of the parts after it. Returns whether `part` is one of these and fits.
    pub(super) fn restore(&mut self, part: &ProgressRecord) -> bool {
        let open = self.committed..self.next;
        match *part {
            ProgressRecord::Finished { from, to } => {
                let fits = from > self.committed && from < to && !(from..to).contains(&self.next);
                fits.then(|| self.merge(from, to)).is_some()
            }
            ProgressRecord::Leased { offset, invisible_until_ms, attempt } if open.contains(&offset) => {
                self.insert_lease(offset, invisible_until_ms, attempt)
            }
            ProgressRecord::Returned { offset, visible_ms, attempt } if open.contains(&offset) => {
                let clock_ms = self.clock_ms;
                self.waiting.insert(offset, ReturnedMessage { visible_ms, attempt, clock_ms });
                self.dues.insert((visible_ms, offset))
            }
            ProgressRecord::DeadLetter { offset, dlq_offset } if open.contains(&offset) => {
                self.dead_letters.insert(offset, dlq_offset).is_none()
            }
            ProgressRecord::TookOver { log_offset } => {
                self.taken_over = log_offset;
                true
            }
            ProgressRecord::Clock { now_ms } => {
                self.clock_ms = now_ms;
                true
            }
            ProgressRecord::Reason { offset, ref reason } if open.contains(&offset) => {
                self.reasons.insert(offset, Arc::clone(reason)).is_none()
            }
            _ => false,
        }
    }

    /// Returns the parts from which [`Self::restore`] makes this state, after [`Self::between`].
    pub(super) fn parts(&self) -> impl Iterator<Item = ProgressRecord> + '_ {
        let finished = self.finished().map(|(from, to)| ProgressRecord::Finished { from, to });
        let leases = self.leases().map(|(offset, Lease { invisible_until_ms, attempt, clock_ms, .. })| {
            (clock_ms, ProgressRecord::Leased { offset, invisible_until_ms, attempt })
        });
        let waiting =
            self.all_waiting().map(|(offset, ReturnedMessage { visible_ms, attempt, clock_ms })| {
                (clock_ms, ProgressRecord::Returned { offset, visible_ms, attempt })
            });
        let mut last_ms = 0;
        let mut clock = move |now_ms: i64| {
            let differs = std::mem::replace(&mut last_ms, now_ms) != now_ms;
            differs.then_some(ProgressRecord::Clock { now_ms })
        };
        let timed = leases.chain(waiting).map(|(clock_ms, part)| (clock_ms, Some(part)));
        let timed = timed
            .chain(std::iter::once((self.clock_ms, None)))
            .flat_map(move |(clock_ms, part)| clock(clock_ms).into_iter().chain(part));
        let dead_letters =
            self.dead_letters().map(|(offset, dlq_offset)| ProgressRecord::DeadLetter { offset, dlq_offset });
        let taken_over = self.taken_over;
        let taken_over = (taken_over > 0).then_some(ProgressRecord::TookOver { log_offset: taken_over });
        finished.chain(timed).chain(dead_letters).chain(taken_over).chain(self.reason_records())
    }

    /// Returns the change that sets the group's offset to `offset`, as in a broker's file. Forward, everything below
    /// counts as finished. Backward, everything from there on counts as never leased. `None` if `offset` is the
    /// current one.
    pub(super) fn set_offset_record(&self, offset: i64) -> Option<ProgressRecord> {
        match (self.offset(), offset) {
            (Some(committed), to) if committed == to => None,
            (Some(from), to) if from < to => Some(ProgressRecord::Finished { from, to }),
            _ => Some(ProgressRecord::Moved { to: offset }),
        }
    }

    /// Whether [`ProgressRecord::Clamped`] with these bounds would change anything.
    pub fn exceeds(&self, min: i64, max: i64) -> bool {
        let last = self.finished.last_key_value().map_or(0, |(_, end)| *end);
        self.committed < min || self.next > max || last > max
    }

    fn add_lease(&mut self, offset: i64, invisible_until_ms: i64, attempt: u32) {
        if !(0..i64::MAX).contains(&offset) || offset > self.next {
            return;
        }
        if offset == self.next {
            self.advance_next(offset + 1);
        } else if self.dead_letters.contains_key(&offset) || !self.take_pending(offset) {
            return;
        }
        self.insert_lease(offset, invisible_until_ms, attempt);
    }

    /// Adds a lease. Returns whether its end is new.
    fn insert_lease(&mut self, offset: i64, invisible_until_ms: i64, attempt: u32) -> bool {
        self.tokens += 1;
        let lease = Lease { invisible_until_ms, attempt, token: self.tokens, clock_ms: self.clock_ms };
        self.leases.insert(offset, lease);
        self.ends.insert((invisible_until_ms, offset))
    }

    /// Moves the start of leases and waits that began after `now_ms` to `now_ms`. A message that was never delivered
    /// waits for a fixed time, which stays.
    fn begin_again(&mut self, now_ms: i64) {
        let end_of =
            |end_ms: i64, clock_ms: i64| now_ms.saturating_add(end_ms.saturating_sub(clock_ms).max(0));
        for (offset, lease) in &mut self.leases {
            if lease.clock_ms > now_ms {
                self.ends.remove(&(lease.invisible_until_ms, *offset));
                lease.invisible_until_ms = end_of(lease.invisible_until_ms, lease.clock_ms);
                lease.clock_ms = now_ms;
                self.ends.insert((lease.invisible_until_ms, *offset));
            }
        }
        for (offset, waiting) in &mut self.waiting {
            if waiting.clock_ms > now_ms && waiting.attempt > 0 {
                self.dues.remove(&(waiting.visible_ms, *offset));
                waiting.visible_ms = end_of(waiting.visible_ms, waiting.clock_ms);
                waiting.clock_ms = now_ms;
                self.dues.insert((waiting.visible_ms, *offset));
            }
        }
    }

    /// Removes the lease, the wait or the dead letter of `offset`. Returns whether there was one.
    fn take_pending(&mut self, offset: i64) -> bool {
        if let Some(lease) = self.leases.remove(&offset) {
            self.ends.remove(&(lease.invisible_until_ms, offset));
            return true;
        }
        if let Some(waiting) = self.waiting.remove(&offset) {
            self.dues.remove(&(waiting.visible_ms, offset));
            return true;
        }
        self.dead_letters.remove(&offset).is_some()
    }

    fn finish(&mut self, from: i64, to: i64) {
        if from < 0 || from >= to || to <= self.committed {
            return;
        }
        let from = from.max(self.committed);
        if to - from == 1 {
            self.take_pending(from);
            self.reasons.remove(&from);
        } else {
            self.take_all_open(from, to);
        }
        if from == self.committed {
            self.committed = to;
        } else {
            self.merge(from, to);
        }
        if from <= self.next {
            self.advance_next(self.next.max(to));
        }
        self.advance_committed();
    }

    /// Sets `next` to an offset, or to the end of the finished range that has it.
    fn advance_next(&mut self, to: i64) {
        let range = self.finished.range(..=to).next_back();
        self.next = range.map_or(to, |(_, end)| to.max(*end));
    }

    /// Removes everything open in the range.
    fn take_all_open(&mut self, from: i64, to: i64) {
        for (offset, lease) in cut(&mut self.leases, from, to) {
            self.ends.remove(&(lease.invisible_until_ms, offset));
        }
        for (offset, waiting) in cut(&mut self.waiting, from, to) {
            self.dues.remove(&(waiting.visible_ms, offset));
        }
        cut(&mut self.dead_letters, from, to);
        cut(&mut self.reasons, from, to);
    }

    /// Adds a range above `committed` to the finished ranges.
    fn merge(&mut self, mut from: i64, mut to: i64) {
        if let Some((begin, end)) =
            self.finished.range(..=from).next_back().map(|(begin, end)| (*begin, *end))
            && end >= from
        {
            from = begin;
            to = to.max(end);
        }
        while let Some((begin, end)) =
            self.finished.range(from..=to).next().map(|(begin, end)| (*begin, *end))
        {
            to = to.max(end);
            self.finished.remove(&begin);
        }
        self.finished.insert(from, to);
    }

    /// Moves `committed` over the finished ranges that it has reached.
    fn advance_committed(&mut self) {
        while let Some(first) = self.finished.first_entry()
            && *first.key() <= self.committed
        {
            self.committed = self.committed.max(first.remove());
        }
    }

    fn clamp(&mut self, min: i64, max: i64) {
        self.take_all_open(0, min);
        self.take_all_open(max, i64::MAX);
        drop(self.finished.split_off(&max));
        if let Some(mut last) = self.finished.last_entry()
            && *last.get() > max
        {
            last.insert(max);
        }
        self.advance_next(self.next.clamp(min, max));
        self.committed = self.committed.clamp(min, max);
        self.advance_committed();
    }
}

/// Removes the entries from `from` up to, but not including, `to` from `map`.
fn cut<T>(map: &mut BTreeMap<i64, T>, from: i64, to: i64) -> Vec<(i64, T)> {
    let offsets: Vec<i64> = map.range(from..to).map(|(offset, _)| *offset).collect();
    offsets.into_iter().filter_map(|offset| Some((offset, map.remove(&offset)?))).collect()
}
