//! Getting messages from a work queue: now, or as soon as there are some.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use mqstore_base::error::StoreError;
use mqstore_io::sync::MutexGuard;
use mqstore_meta::ProgressRecord;

use super::inner::{WorkQueueInner, WorkQueueState};
use super::leased_message::{Lease, LeasedMessage};
use super::queue_leases::{LeaseRequest, LeasedRecord};
use super::source::{ExhaustedOffsets, QueuePlace, WorkSource};
use crate::error::BrokerError;
use crate::nonblocking::{Look, ReadScope, Remaining, lock};
use crate::queue_failures::merge_queue_errors;

/// A request for messages.
#[derive(Clone, Copy)]
pub(super) struct GetRequest {
    pub(super) count: usize,
    /// The visibility timeout of the leases.
    pub(super) visibility_timeout: Duration,
    /// The generation of the handle.
    pub(super) generation: u64,
    pub(super) scope: ReadScope,
    /// Whether to wait for the lock if another thread uses this queue.
    pub(super) patience: bool,
    /// Whether the caller waits if there is nothing.
    pub(super) waits: bool,
}

impl WorkQueueInner {
    /// Polls once for messages. If there are none and the caller waits, `ready` rings at the time for the next poll. If
    /// it returns no messages, the poll stopped early, and another one may find some.
    pub(super) fn get(
        self: &Arc<Self>,
        request: &GetRequest,
    ) -> Result<Look<Vec<LeasedMessage>>, BrokerError> {
        let seen = self.ready.ring_count();
        let Some((messages, has_more)) = self.lease_messages(request)? else { return Ok(Look::NotAtHand) };
        if messages.is_empty() && has_more && request.scope.is_at_hand() {
            return Ok(Look::NotAtHand);
        }
        if !messages.is_empty() || has_more || request.count == 0 {
            return Ok(Look::Found(messages));
        }
        if !request.waits {
            return Ok(Look::Wait { seen, longest: None });
        }
        let Some(state) = lock(&self.state, request.patience) else { return Ok(Look::NotAtHand) };
        self.arm(state, seen, request.scope)
    }

    /// Leases up to `count` messages. The flag says whether another poll may find messages for which this one had no
    /// time. `None` if something is not in memory.
    fn lease_messages(
        self: &Arc<Self>,
        request: &GetRequest,
    ) -> Result<Option<(Vec<LeasedMessage>, bool)>, BrokerError> {
        let GetRequest { count, visibility_timeout, generation, scope, patience, .. } = *request;
        if scope.reaches_end() {
            self.store().catch_up()?;
        }
        let (mut picked, mut exhausted) = (Vec::with_capacity(count.min(64)), ExhaustedOffsets::new());
        let (remaining, retryable) = {
            let Some(mut state) = lock(&self.state, patience) else { return Ok(None) };
            if self.is_shut_down_immediately(generation) {
                return Err(self.shut_down_error());
            }
            self.look_for_queues(&mut state)?;
            let lease_request = self.lease_request(count, visibility_timeout, scope);
            let remaining = Self::pick(&mut state, &lease_request, &mut picked, &mut exhausted);
            let retryable = if scope.is_at_hand() {
                let is_at_hand =
                    matches!(remaining, Ok(Remaining::Nothing)) && !self.has_dead_letters_to_move(&state);
                if picked.is_empty() && !is_at_hand {
                    return remaining.map(|_| None);
                }
                // Moving them takes syncs.
                ExhaustedOffsets::new()
            } else {
                self.retryable_dead_letters(&mut state)
            };
            self.wake_next(&state, &picked, count, matches!(remaining, Ok(Remaining::GoesOn)));
            (remaining, retryable)
        };
        // The caller owns the leased messages, whatever happens to others. And messages whose end is logged become
        // dead letters, whatever the result of this poll.
        self.move_or_retry_later(exhausted, retryable);
        let goes_on = remaining? == Remaining::GoesOn;
        if !picked.is_empty() {
            self.space.ring();
        }
        let (messages, is_one_lost) = self.load_records(picked)?;
        let has_more = goes_on || is_one_lost;
        if messages.is_empty() && !has_more && self.is_shut_down(generation) {
            if !scope.reaches_end() && !patience {
                return Ok(None);
            }
            if self.is_empty_for_good()? {
                return Err(self.shut_down_error());
            }
        }
        Ok(Some((messages, has_more)))
    }

    /// Wakes another waiting caller if there may be messages for it.
    pub(super) fn wake_next(
        &self,
        state: &WorkQueueState,
        picked: &[LeasedRecord],
        count: usize,
        goes_on: bool,
    ) {
        if picked.is_empty() || !self.ready.is_waited_for() {
            return;
        }
        let more = || state.sources.iter().any(WorkSource::has_buffered);
        // An event loop must know when the new leases end.
        if picked.len() == count || goes_on || self.ready.has_wakers() || more() {
            self.ready.wake_one();
        }
    }

    /// Leases up to `request.count` messages from one queue after the other. Returns what remains, or that nothing was
    /// taken because something is not in memory. A queue that fails does not block the others; see
    /// [`merge_queue_errors`].
    pub(super) fn pick(
        state: &mut WorkQueueState,
        request: &LeaseRequest<'_>,
        picked: &mut Vec<LeasedRecord>,
        exhausted: &mut ExhaustedOffsets,
    ) -> Result<Remaining, BrokerError> {
        let (count, sources) = (request.count, state.sources.len());
        let mut remaining = Remaining::Nothing;
        let (mut failures, mut unprepared) = (Vec::new(), false);
        // First an equal share of each queue, then the rest.
        for share in [count.div_ceil(sources.max(1)), count] {
            for step in 0..sources {
                let left = count - picked.len();
                if left == 0 {
                    break;
                }
                let at = (state.next_source + step) % sources;
                let request = LeaseRequest { count: share.min(left), ..*request };
                if let Some(source) = state.sources.get_mut(at) {
                    match source.take(&request, picked, exhausted) {
                        // A thread has already tried to read it.
                        Ok(Remaining::NotAtHand) if picked.is_empty() && source.failing => unprepared = true,
                        Ok(Remaining::NotAtHand) if picked.is_empty() => return Ok(Remaining::NotAtHand),
                        Ok(Remaining::Nothing) => source.failing = false,
                        // The caller owns the leased messages; the next poll finds the rest.
                        Ok(_) => remaining = Remaining::GoesOn,
                        Err(error) => failures.push((at, error)),
                    }
                }
            }
            if picked.is_empty() {
                break;
            }
        }
        if !failures.is_empty() {
            remaining = Remaining::GoesOn;
        }
        merge_queue_errors(&mut state.sources, failures, !picked.is_empty(), |source, error| {
            source.note_failure(request.core, error);
        })?;
        if unprepared && picked.is_empty() {
            return Ok(Remaining::NotAtHand);
        }
        state.next_source = (state.next_source + 1).checked_rem(sources).unwrap_or(0);
        Ok(remaining)
    }

    pub(super) fn lease_request(
        &self,
        count: usize,
        visibility_timeout: Duration,
        scope: ReadScope,
    ) -> LeaseRequest<'_> {
        let now_ms = self.store().clock().now_ms();
        LeaseRequest {
            count,
            now_ms,
            invisible_until_ms: now_ms.saturating_add(millis(visibility_timeout)),
            max_attempts: self.options.max_attempts,
            core: self,
            scope,
        }
    }

    /// Turns messages that used up their attempts and whose last lease ended into dead letters. A waiting `join`
    /// needs this while no worker gets messages.
    pub(super) fn sweep(&self) -> Result<(), BrokerError> {
        let mut exhausted = ExhaustedOffsets::new();
        let (swept, retryable) = {
            let mut state = self.state.lock();
            let request = self.lease_request(0, Duration::ZERO, ReadScope::Anywhere);
            let mut swept = Ok(());
            for source in &mut state.sources {
                swept = swept.and(source.take_due(&request, 0, &mut Vec::new(), &mut exhausted).map(drop));
            }
            (swept, self.retryable_dead_letters(&mut state))
        };
        self.move_or_retry_later(exhausted, retryable);
        swept
    }

    /// Registers `ready` for new messages. Returns [`Look::NotAtHand`] if there is a message already, or if finding
    /// out takes long.
    fn arm<T>(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, WorkQueueState>,
        seen: u64,
        scope: ReadScope,
    ) -> Result<Look<T>, BrokerError> {
        for source in &mut state.sources {
            let may_arm = scope.reaches_end() || source.is_armed();
            if !may_arm || source.arm(self)? {
                return Ok(Look::NotAtHand);
            }
        }
        let longest = self.next_event(&state);
        let is_due = longest.is_some_and(|longest| longest.is_zero());
        Ok(if is_due { Look::NotAtHand } else { Look::Wait { seen, longest } })
    }

    /// Reads the messages of those leases that have none in memory. Finishes messages that are no longer in the log, and
    /// returns whether there were any.
    fn load_records(
        self: &Arc<Self>,
        picked: Vec<LeasedRecord>,
    ) -> Result<(Vec<LeasedMessage>, bool), BrokerError> {
        let (mut messages, mut lost) = (Vec::with_capacity(picked.len()), Vec::new());
        for LeasedRecord { place, held, record } in picked {
            let record = match record {
                Some(record) => Some(record),
                None => self.message(&place, held.offset)?,
            };
            match record {
                Some(record) => {
                    let lease = Lease::new(self, &place, held);
                    messages.push(LeasedMessage { record, lease });
                }
                None => lost.push((place, held.offset)),
            }
        }
        self.finish_lost(&lost)?;
        Ok((messages, !lost.is_empty()))
    }

    /// Returns the message at an offset; `None` if it is no longer in the log, or is damaged and the queue skips damage.
    pub(super) fn message(
        &self,
        place: &QueuePlace,
        offset: i64,
    ) -> Result<Option<mqstore_base::message::StoredRecord>, BrokerError> {
        let (topic, queue_id) = (&*place.topic, place.queue_id);
        match self.store().message_at(topic, queue_id, offset) {
            Err(StoreError::OffsetOutOfRange { .. }) => Ok(None),
            Err(error) if error.is_damage() => {
                // A cursor decides about damage, as for a first delivery.
                let end = offset.saturating_add(1);
                let cursor = self.store().read(topic, queue_id, Some(offset), Some(end), None)?;
                Ok(cursor.on_damage(self.options.on_damage).next_batch(1)?.pop())
            }
            found => Ok(found?),
        }
    }

    /// Finishes messages that are no longer in the log. The others before the log that no worker has are lost as well:
    /// it finishes them with the first one, so that a deletion of many costs one search and one note for each queue.
    pub(super) fn finish_lost(&self, lost: &[(Arc<QueuePlace>, i64)]) -> Result<(), BrokerError> {
        for lost in lost.chunk_by(|(a, _), (b, _)| Arc::ptr_eq(a, b)) {
            let Some((place, _)) = lost.first() else { continue };
            let QueuePlace { topic, queue_id, progress } = &**place;
            let (min, _) = self.store().bounds(topic, *queue_id)?;
            let now_ms = self.store().clock().now_ms();
            let (offsets, _) = self.meta().change_progress(progress, |progress, records| {
                let known = lost.iter().map(|(_, offset)| *offset);
                let mut offsets: BTreeSet<i64> =
                    known.filter(|offset| !progress.is_finished(*offset)).collect();
                let waiting = progress.all_waiting().map(|(offset, _)| offset);
                let ended = progress.leases().filter(|(_, lease)| lease.invisible_until_ms <= now_ms);
                let without_worker = waiting.chain(ended.map(|(offset, _)| offset));
                offsets.extend(without_worker.filter(|offset| *offset < min));
                for offset in &offsets {
                    match records.last_mut() {
                        Some(ProgressRecord::Finished { to, .. }) if *to == *offset => *to += 1,
                        _ => records.push(ProgressRecord::finished(*offset)),
                    }
                }
                offsets
            })?;
            self.note_lost(place, &offsets);
        }
        if !lost.is_empty() {
            self.done.ring();
        }
        Ok(())
    }

    fn note_lost(&self, place: &QueuePlace, offsets: &BTreeSet<i64>) {
        let (Some(first), Some(last)) = (offsets.first(), offsets.last()) else { return };
        let (name, queue) = (self.name(), format!("{}/{}", place.topic, place.queue_id));
        self.note(match offsets.len() {
            1 => {
                format!(
                    "{name}: message {first} of queue {queue} is not in the log any more and counts as finished"
                )
            }
            count => format!(
                "{name}: {count} messages from {first} to {last} of queue {queue} are not in the log any more and \
                 count as finished"
            ),
        });
    }

    /// Whether nothing is left to get: no new messages, and none that wait.
    pub(super) fn is_empty_for_good(&self) -> Result<bool, BrokerError> {
        let state = self.state.lock();
        Ok(self.size(&state)? == 0)
    }
}

/// Returns milliseconds, rounded up, so that nothing is due too early.
pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}
