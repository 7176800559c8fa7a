//! A work queue for callers that must not wait: see [`crate::TryResult`].
//!
//! Only the call that hands out a message leases it; a thread that prepares reads messages and leases none. Due times
//! need no thread either: [`TryResult::Wait`] says when the next one is.

use std::sync::Arc;
use std::time::Duration;

use mqstore_base::error::StoreError;
use mqstore_base::message::Appended;
use mqstore_base::wake_signal::Waker;
use mqstore_io::sync::Ordering;

use super::get::GetRequest;
use super::inner::{WorkQueueCounts, WorkQueueInner, WorkQueueState};
use super::leased_message::LeasedMessage;
use super::put::{NewWork, PutReservation};
use super::queue::WorkQueue;
use super::queue_leases::LeaseRequest;
use super::source::{ExhaustedOffsets, WorkSource};
use crate::error::BrokerError;
use crate::nonblocking::{Look, ReadScope, TryResult};
use crate::queue_failures::merge_queue_errors;

/// The result of a put that must not wait.
#[derive(Debug)]
pub enum TryPut {
    /// All messages are appended.
    Done(Vec<Appended>),
    /// Space is reserved, but the append may have to wait: the caller makes it. For a message with properties in this
    /// list, they replace its own.
    Reserved(PutReservation, Vec<Option<Vec<u8>>>),
}

impl WorkQueue {
    /// Gets up to `count` messages. If there are none, registers `call`, which is called at the time for the next
    /// poll; without `call`, returns no messages. With `patience`, waits for the lock if another thread uses this
    /// queue.
    ///
    /// # Errors
    /// [`BrokerError::ShutDown`].
    pub fn try_get(
        &self,
        count: usize,
        patience: bool,
        call: Option<Waker>,
    ) -> Result<TryResult<Vec<LeasedMessage>>, BrokerError> {
        self.check()?;
        let scope = ReadScope::AtHand { near: self.core.store().nonblocking().is_caught_up() };
        let request = GetRequest { patience, waits: call.is_some(), ..self.get_request(count, scope) };
        self.core.get(&request)?.or_call(&self.core.ready, call, || Ok(Vec::new()))
    }

    /// For polls of an event loop, in a thread: reads ahead up to `count` messages, and moves dead letters. Leases
    /// none, with one exception: a message that is due again and cannot be read is hidden like a leased one, so that
    /// it does not block others.
    pub fn prepare(&self, count: usize) -> Result<(), BrokerError> {
        self.check()?;
        self.core.prepare(count, self.visibility_timeout)
    }

    /// Puts messages if there is space; with `appends`, also appends them if that needs no wait. If there is no
    /// space, registers `call`, which is called at the time for the next try; without `call`, that is an error.
    ///
    /// # Errors
    /// [`BrokerError::Full`], [`BrokerError::ShutDown`]; those of [`mqstore_engine::Store::append`].
    pub fn try_put(
        &self,
        messages: &[NewWork<'_>],
        appends: bool,
        patience: bool,
        call: Option<Waker>,
    ) -> Result<TryResult<TryPut>, BrokerError> {
        self.check()?;
        let put =
            self.core.reserve(messages, self.generation, patience)?.and_then(|(reservation, delayed)| {
                let appended = if appends { self.core.append_without_io(messages, &delayed)? } else { None };
                Ok(Look::Found(appended.map_or_else(|| TryPut::Reserved(reservation, delayed), TryPut::Done)))
            })?;
        put.or_call(&self.core.space, call, || Err(self.full()))
    }

    /// Polls whether every message is finished or a dead letter, as for [`Self::join`]. If not, registers `call`,
    /// which is called at the time for the next poll.
    pub fn try_join(&self, patience: bool, call: Option<Waker>) -> Result<TryResult<bool>, BrokerError> {
        self.check()?;
        let scope = ReadScope::AtHand { near: self.core.store().nonblocking().is_caught_up() };
        self.look_for_end(scope, patience)?.and_then(|()| Ok(Look::Found(true)))?.or_call(
            &self.core.done,
            call,
            || Ok(false),
        )
    }

    /// Wakes waiting callers after changes that ring no signal: new queues, a clock that was set, a store that was
    /// closed. Call it from time to time while an event loop waits.
    pub fn look_around(&self) {
        self.core.look_around();
    }
}

impl WorkQueueInner {
    /// Returns the time until something is due without a ring of a signal.
    pub(super) fn next_event(&self, state: &WorkQueueState) -> Option<Duration> {
        let now_ms = self.store().clock().now_ms();
        let events = state.sources.iter().filter_map(|source| source.place.progress.lock().next_event_ms());
        let left = events.min()?.saturating_sub(now_ms).max(0).unsigned_abs();
        Some(Duration::from_millis(left))
    }

    /// Whether there are dead letters to move, which takes syncs.
    pub(super) fn has_dead_letters_to_move(&self, state: &WorkQueueState) -> bool {
        let now_ms = self.store().clock().now_ms();
        let most = self.options.max_attempts;
        self.has_retryable_dead_letters(state)
            || state.sources.iter().any(|source| source.has_exhausted(most, now_ms))
    }

    fn prepare(self: &Arc<Self>, count: usize, visibility_timeout: Duration) -> Result<(), BrokerError> {
        self.store().catch_up()?;
        let mut exhausted = ExhaustedOffsets::new();
        let (prepared, retryable) = {
            let mut state = self.state.lock();
            self.look_for_queues(&mut state)?;
            let request = self.lease_request(count, visibility_timeout, ReadScope::Anywhere);
            let prepared = self.prefetch_each(&mut state.sources, &request, &mut exhausted);
            (prepared, self.retryable_dead_letters(&mut state))
        };
        self.move_or_retry_later(exhausted, retryable);
        prepared
    }

    /// Prepares all queues, even if some of them fail.
    fn prefetch_each(
        self: &Arc<Self>,
        sources: &mut [WorkSource],
        request: &LeaseRequest<'_>,
        exhausted: &mut ExhaustedOffsets,
    ) -> Result<(), BrokerError> {
        let mut failures = Vec::new();
        for (at, source) in sources.iter_mut().enumerate() {
            match source.prepare(self, request, exhausted) {
                Ok(()) => source.failing = false,
                Err(error) => failures.push((at, error)),
            }
        }
        let others_have = sources.iter().any(|source| source.has_buffered() || source.has_buffered_retries());
        merge_queue_errors(sources, failures, others_have, |source, error| source.note_failure(self, error))
    }

    fn append_without_io(
        &self,
        messages: &[NewWork<'_>],
        delayed: &[Option<Vec<u8>>],
    ) -> Result<Option<Vec<Appended>>, StoreError> {
        let all: Vec<_> = messages
            .iter()
            .zip(delayed)
            .map(|(message, delayed)| self.new_message(message, delayed.as_deref()))
            .collect();
        if let [only] = all.as_slice() {
            return Ok(self.store().nonblocking().try_append(only)?.map(|appended| vec![appended]));
        }
        self.store().nonblocking().try_append_many(&all)
    }

    fn look_around(&self) {
        let Some(mut state) = self.state.try_lock() else { return };
        let known = state.sources.len();
        let mut failed = self.store().is_closed() || self.look_for_queues(&mut state).is_err();
        let is_due = self.next_event(&state).is_some_and(|left| left.is_zero());
        let has_dead_letters = self.has_dead_letters_to_move(&state);
        let mut is_done = has_dead_letters;
        if self.done.is_waited_for() && self.store().nonblocking().is_caught_up() {
            match self.counts(&state) {
                Ok(counts) => {
                    let is_shut = self.shut_at_once.load(Ordering::Acquire) > 0;
                    is_done |= counts == WorkQueueCounts::default()
                        || (is_shut && counts.leased + counts.dying == 0);
                }
                Err(_) => failed = true,
            }
        }
        // Deletions and moves of the group ring no signal.
        let mut has_space = false;
        if self.space.is_waited_for() && self.store().nonblocking().is_caught_up() {
            match self.taken(&state) {
                Ok(taken) => has_space = taken < self.options.maxsize,
                Err(_) => failed = true,
            }
        }
        let may_get = is_due || has_dead_letters || state.sources.len() > known;
        drop(state);
        for (signal, rings) in [(&self.ready, may_get), (&self.done, is_done), (&self.space, has_space)] {
            if rings || failed {
                signal.ring();
            }
        }
    }
}
