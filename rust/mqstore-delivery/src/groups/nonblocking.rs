//! A consumer for callers that must not wait: see [`crate::TryResult`].
//!
//! A thread that prepares reads ahead, like iteration. These messages are not handed out, and no commit includes them.

use std::time::Duration;

use mqstore_base::message::StoredRecord;
use mqstore_base::wake_signal::{LOOK, Waker};

use super::assignment::Queue;
use super::consumer::{Consumer, ConsumerState, MOST_AHEAD};
use crate::error::BrokerError;
use crate::nonblocking::{ReadScope, Remaining, TryResult};

impl Consumer {
    /// Returns up to `max` messages. If there are none, registers `call`, which is called at the time for the next
    /// poll; without `call`, returns no messages. With `patience`, waits for the lock if another thread uses this
    /// consumer.
    ///
    /// # Errors
    /// [`BrokerError::ConsumerClosed`]; `OffsetOutOfRange` if messages were deleted and the consumer is set to fail
    /// then.
    pub fn try_poll(
        &self,
        max: usize,
        patience: bool,
        call: Option<Waker>,
    ) -> Result<TryResult<Vec<StoredRecord>>, BrokerError> {
        let scope = self.reach_at_hand();
        let waits = call.is_some() && max > 0;
        self.look(scope, patience, waits, |state, found| self.collect(state, max, found, scope))?.or_call(
            &self.signal,
            call,
            || Ok(Vec::new()),
        )
    }

    /// Returns the next message, or none; reads ahead. Otherwise like [`Self::try_poll`].
    pub fn try_next(
        &self,
        patience: bool,
        call: Option<Waker>,
    ) -> Result<TryResult<Vec<StoredRecord>>, BrokerError> {
        let scope = self.reach_at_hand();
        self.look(scope, patience, call.is_some(), |state, found| self.collect_next(state, found, scope))?
            .or_call(&self.signal, call, || Ok(Vec::new()))
    }

    fn reach_at_hand(&self) -> ReadScope {
        ReadScope::AtHand { near: self.store().nonblocking().is_caught_up() }
    }

    /// For polls of an event loop, in a thread: applies changes of the assignment, and reads up to `max` messages
    /// ahead.
    pub fn prepare(&self, max: usize) -> Result<(), BrokerError> {
        let mut state = self.state.lock();
        self.check()?;
        self.refresh(&mut state)?;
        if self.read_ahead(&mut state, max.clamp(1, MOST_AHEAD), ReadScope::Anywhere)? == Remaining::Nothing
            && state.slots.iter().all(|slot| slot.buffered == 0)
        {
            for slot in &mut state.slots {
                slot.arm(self.store(), &self.signal)?;
            }
        }
        Ok(())
    }

    /// Like [`Self::commit`], or [`Self::commit_offsets`] with `offsets`, if that needs no wait. Returns `None` if it
    /// may need one; nothing is stored then. Otherwise returns whether the caller must sync the metadata.
    pub fn try_commit(
        &self,
        offsets: Option<&[(Queue, i64)]>,
        sync: bool,
    ) -> Result<Option<bool>, BrokerError> {
        // Commits of the history are appended as messages.
        if self.options.history {
            return Ok(None);
        }
        let Some(mut state) = self.state.try_lock() else { return Ok(None) };
        self.check()?;
        let wanted = match offsets {
            None => state.slots.iter().map(|slot| slot.returned).enumerate().collect(),
            Some(offsets) => {
                if !self.store().nonblocking().is_caught_up() || !self.has_stable_assignment(&mut state)? {
                    return Ok(None);
                }
                self.resolve_offsets(&state, offsets)?
            }
        };
        let stored = self.store_offsets(&mut state, &wanted)?;
        drop(state);
        if sync || self.options.commit_interval == Some(Duration::ZERO) {
            return Ok(Some(true));
        }
        self.finish_commit(&stored, false)?;
        Ok(Some(false))
    }

    /// Wakes waiting callers after changes that ring no signal: new queues, a store that was closed. Call it from
    /// time to time while an event loop waits.
    pub fn look_around(&self) {
        let Some(mut state) = self.state.try_lock() else { return };
        let settled = self.has_stable_assignment(&mut state);
        drop(state);
        if self.store().is_closed() || !settled.unwrap_or(false) {
            self.signal.ring();
        }
    }

    /// Whether reading a slot needs no I/O.
    pub(super) fn is_at_hand(
        &self,
        state: &mut ConsumerState,
        at: usize,
        scope: ReadScope,
    ) -> Result<bool, BrokerError> {
        let Some(slot) = state.slots.get_mut(at) else { return Ok(true) };
        Ok(slot.is_at_hand(&self.store().continued(), self.options.filter.as_ref(), scope)?)
    }

    /// Whether its queues are up to date: none was added, and none moved to another consumer.
    pub(super) fn has_stable_assignment(&self, state: &mut ConsumerState) -> Result<bool, BrokerError> {
        let now = self.store().clock().monotonic();
        if state.looked.is_none_or(|looked| now.saturating_sub(looked) >= LOOK) {
            if self.queues()?.len() != state.known {
                return Ok(false);
            }
            state.looked = Some(now);
        }
        let changes = self.member.as_ref().map(|(coordinator, _)| coordinator.changes());
        Ok(changes.is_none() || changes == state.seen)
    }
}
