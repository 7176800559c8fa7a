//! A work queue for who must not wait: see [`crate::TryResult`].
//!
//! A message is leased by the call that hands it out and by no other: what a thread prepares is read, not leased.
//! Due times need no thread either: [`TryResult::Wait`] says when the next one is.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mqstore_base::error::StoreError;
use mqstore_base::message::Appended;
use mqstore_io::sync::Ordering;

use super::inner::{State, WorkQueueCounts, WorkQueueInner};
use super::leased_message::LeasedMessage;
use super::put::NewWork;
use super::queue::WorkQueue;
use super::queue_leases::LeaseRequest;
use super::source::{ExhaustedOffsets, Source};
use crate::error::BrokerError;
use crate::nonblocking::{ReadScope, Remaining, TryResult, lock};
use crate::queue_failures::merge_queue_errors;
use crate::wake_signal::{Signal, Waker};

/// What a put at once came to.
#[derive(Debug)]
pub enum TryPut {
    /// It is done.
    Done(Vec<Appended>),
    /// There is room, which is kept, and the append may have to wait: it is the caller's to make, with these properties
    /// in place of those of the messages that have some here.
    Reserved(PutReservation, Vec<Option<Vec<u8>>>),
}

/// Whether messages that come ring by now.
enum WakerState {
    /// They do; and until when to wait at most, because something is due then.
    Until(Option<Duration>),
    /// There may be something already, or it takes long to find out.
    NotNow,
}

/// Room that is kept for messages on their way; given back when it is dropped.
pub struct PutReservation {
    core: Arc<WorkQueueInner>,
    count: u64,
}

impl Drop for PutReservation {
    fn drop(&mut self) {
        self.core.give_back(self.count);
    }
}

impl fmt::Debug for PutReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("count", &self.count).finish_non_exhaustive()
    }
}

impl WorkQueue {
    /// Gets up to `count` messages at once. Where there are none, `call` is made when it is time to look again; without
    /// one nothing is found. With `patience` it waits for another thread that is at this queue.
    ///
    /// # Errors
    /// [`BrokerError::ShutDown`].
    pub fn try_get(
        &self,
        count: usize,
        patience: bool,
        call: Option<Waker>,
    ) -> Result<TryResult<Vec<LeasedMessage>>, BrokerError> {
        let core = &self.core;
        let seen = core.ready.ring_count();
        self.check()?;
        let near = core.store().is_caught_up();
        let Some(found) = core.lease_without_io(self, count, near, patience)? else {
            return Ok(TryResult::Prepare);
        };
        let Some(call) = call.filter(|_| found.is_empty() && count > 0) else {
            return Ok(TryResult::Found(found));
        };
        let Some(state) = lock(&core.state, patience) else { return Ok(TryResult::Prepare) };
        match core.register_waker_without_io(state, near)? {
            WakerState::Until(longest) => Ok(listen(&core.ready, seen, call, longest)),
            WakerState::NotNow => Ok(TryResult::Prepare),
        }
    }

    /// For looks at once, in a thread: reads ahead what up to `count` messages may come from, and moves dead letters. Gets
    /// nothing; but a message that is due again and cannot be read is out of sight like one that was got, so that it
    /// does not stand in the way of others.
    pub fn prepare(&self, count: usize) -> Result<(), BrokerError> {
        self.check()?;
        self.core.prepare(count, self.invisible)
    }

    /// Puts messages at once if there is room; with `appends` they are appended too if that waits for nobody. Where there
    /// is no room, `call` is made when it is time to look again; without one it is an error.
    ///
    /// # Errors
    /// [`BrokerError::Full`], [`BrokerError::ShutDown`]; whatever [`mqstore_engine::Store::append`] says.
    pub fn put_at_once(
        &self,
        messages: &[NewWork<'_>],
        appends: bool,
        patience: bool,
        call: Option<Waker>,
    ) -> Result<TryResult<TryPut>, BrokerError> {
        let core = &self.core;
        let seen = core.room.ring_count();
        self.check()?;
        if core.is_shut_down(self.generation) {
            return Err(core.shut_down_error());
        }
        let delayed = core.delayed_properties_of_all(messages)?;
        let count = messages.len() as u64;
        if core.options.maxsize > 0 {
            if !patience && !core.store().is_caught_up() {
                return Ok(TryResult::Prepare);
            }
            let Some(state) = lock(&core.state, patience) else { return Ok(TryResult::Prepare) };
            let fits = core.reserve_capacity_in(&state, count)?;
            drop(state);
            if !fits {
                let call = call.ok_or_else(|| self.full())?;
                return Ok(listen(&core.room, seen, call, None));
            }
        }
        let reservation = PutReservation { core: Arc::clone(core), count };
        if appends && let Some(appended) = core.append_without_io(messages, &delayed)? {
            return Ok(TryResult::Found(TryPut::Done(appended)));
        }
        Ok(TryResult::Found(TryPut::Reserved(reservation, delayed)))
    }

    /// Whether every message that was put is finished, or a dead letter, as [`Self::join`] has it. Where it is not so,
    /// `call` is made when it is time to look again.
    pub fn try_join(&self, patience: bool, call: Option<Waker>) -> Result<TryResult<bool>, BrokerError> {
        let core = &self.core;
        let seen = core.done.ring_count();
        self.check()?;
        if !patience && !core.store().is_caught_up() {
            return Ok(TryResult::Prepare);
        }
        let Some(mut state) = lock(&core.state, patience) else { return Ok(TryResult::Prepare) };
        core.look_for_queues(&mut state)?;
        if core.has_dead_letters_to_move(&state) {
            return Ok(TryResult::Prepare);
        }
        let done = self.is_drained(core.counts(&state)?);
        let Some(call) = call.filter(|_| !done) else { return Ok(TryResult::Found(done)) };
        // A lease that ends may leave a dead letter. What is due by now is for others to get.
        let left = core.next_event(&state).filter(|left| !left.is_zero());
        drop(state);
        Ok(listen(&core.done, seen, call, left))
    }

    /// Has those look again who wait and whom nobody calls: for queues that came, a clock that was set, a store that was
    /// closed. To be called now and then while somebody waits at once.
    pub fn look_around(&self) {
        self.core.look_around();
    }
}

impl WorkQueueInner {
    /// Leases up to `count` messages that are at hand; `None` where it would take long to find some.
    fn lease_without_io(
        self: &Arc<Self>,
        handle: &WorkQueue,
        count: usize,
        near: bool,
        patience: bool,
    ) -> Result<Option<Vec<LeasedMessage>>, BrokerError> {
        if near {
            self.store().catch_up()?;
        }
        let (mut picked, mut spent) = (Vec::with_capacity(count.min(64)), ExhaustedOffsets::new());
        {
            let Some(mut state) = lock(&self.state, patience) else { return Ok(None) };
            if self.is_shut_down_immediately(handle.generation) {
                return Err(self.shut_down_error());
            }
            self.look_for_queues(&mut state)?;
            let wish = self.lease_request(count, handle.invisible, ReadScope::AtHand { near });
            let rest = Self::pick(&mut state, &wish, &mut picked, &mut spent)?;
            if picked.is_empty() && (rest != Remaining::Nothing || self.has_dead_letters_to_move(&state)) {
                return Ok(None);
            }
            self.wake_next(&state, &picked, count, rest == Remaining::GoesOn);
        }
        if !picked.is_empty() {
            self.room.ring();
        }
        let messages = self.load_records(picked)?;
        if messages.is_empty() && self.is_shut_down(handle.generation) {
            if !near && !patience {
                return Ok(None);
            }
            if self.is_empty_for_good()? {
                return Err(self.shut_down_error());
            }
        }
        Ok(Some(messages))
    }

    /// Has `ready` ring when a message comes.
    fn register_waker_without_io(
        self: &Arc<Self>,
        mut state: mqstore_io::sync::MutexGuard<'_, State>,
        near: bool,
    ) -> Result<WakerState, BrokerError> {
        for source in &mut state.sources {
            let may_arm = near || source.is_armed();
            if !may_arm || source.arm(self)? {
                return Ok(WakerState::NotNow);
            }
        }
        let left = self.next_event(&state);
        let is_due = left.is_some_and(|left| left.is_zero());
        Ok(if is_due { WakerState::NotNow } else { WakerState::Until(left) })
    }

    /// How long it is until something is due by itself.
    fn next_event(&self, state: &State) -> Option<Duration> {
        let now_ms = self.store().clock().now_ms();
        let events = state.sources.iter().filter_map(|source| source.place.progress.lock().next_event_ms());
        let left = events.min()?.saturating_sub(now_ms).max(0).unsigned_abs();
        Some(Duration::from_millis(left))
    }

    /// Whether there are dead letters to move, which takes syncs.
    fn has_dead_letters_to_move(&self, state: &State) -> bool {
        let now_ms = self.store().clock().now_ms();
        let most = self.options.max_attempts;
        self.has_retryable_dead_letters(state)
            || state.sources.iter().any(|source| source.has_exhausted(most, now_ms))
    }

    fn prepare(self: &Arc<Self>, count: usize, invisible: Duration) -> Result<(), BrokerError> {
        self.store().catch_up()?;
        let mut spent = ExhaustedOffsets::new();
        let (prepared, again) = {
            let mut state = self.state.lock();
            self.look_for_queues(&mut state)?;
            let wish = self.lease_request(count, invisible, ReadScope::Anywhere);
            let prepared = self.prefetch_each(&mut state.sources, &wish, &mut spent);
            (prepared, self.retryable_dead_letters(&mut state))
        };
        self.move_or_retry_later(spent, again);
        prepared
    }

    /// Prepares all queues, whichever of them fail.
    fn prefetch_each(
        self: &Arc<Self>,
        sources: &mut [Source],
        wish: &LeaseRequest<'_>,
        spent: &mut ExhaustedOffsets,
    ) -> Result<(), BrokerError> {
        let mut failures = Vec::new();
        for (at, source) in sources.iter_mut().enumerate() {
            match source.prepare(self, wish, spent) {
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
            return Ok(self.store().try_append(only)?.map(|appended| vec![appended]));
        }
        self.store().try_append_many(&all)
    }

    fn look_around(&self) {
        let Some(mut state) = self.state.try_lock() else { return };
        let known = state.sources.len();
        let mut failed = self.store().is_closed() || self.look_for_queues(&mut state).is_err();
        let is_due = self.next_event(&state).is_some_and(|left| left.is_zero());
        let to_bury = self.has_dead_letters_to_move(&state);
        let mut is_done = to_bury;
        if self.done.is_waited_for() && self.store().is_caught_up() {
            match self.counts(&state) {
                Ok(counts) => {
                    let is_shut = self.shut_at_once.load(Ordering::Acquire) > 0;
                    is_done |= counts == WorkQueueCounts::default()
                        || (is_shut && counts.leased + counts.dying == 0);
                }
                Err(_) => failed = true,
            }
        }
        // Who deletes or moves rings for nobody.
        let mut has_room = false;
        if self.room.is_waited_for() && self.store().is_caught_up() {
            match self.taken(&state) {
                Ok(taken) => has_room = taken < self.options.maxsize,
                Err(_) => failed = true,
            }
        }
        let may_get = is_due || to_bury || state.sources.len() > known;
        drop(state);
        for (signal, rings) in [(&self.ready, may_get), (&self.done, is_done), (&self.room, has_room)] {
            if rings || failed {
                signal.ring();
            }
        }
    }
}

/// Leaves `call` with a signal; it rang meanwhile where there is to be another look.
fn listen<T>(signal: &Arc<Signal>, seen: u64, call: Waker, longest: Option<Duration>) -> TryResult<T> {
    signal.listen(seen, call).map_or(TryResult::Prepare, |listening| TryResult::Wait { listening, longest })
}
