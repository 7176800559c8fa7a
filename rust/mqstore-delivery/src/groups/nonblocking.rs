//! A consumer for who must not wait: see [`crate::TryResult`].
//!
//! What a thread prepares is read ahead, as iteration does: it is not handed out, and no commit counts it.

use std::time::Duration;

use mqstore_base::message::StoredRecord;

use super::assignment::Queue;
use super::consumer::{Consumer, MOST_AHEAD, State};
use crate::error::BrokerError;
use crate::nonblocking::{ReadScope, Remaining, TryResult, lock};
use crate::wake_signal::{LOOK, Waker};

impl Consumer {
    /// Up to `max` messages at once. Where there are none, `call` is made when it is time to look again; without one
    /// nothing is found. With `patience` it waits for another thread that is at this consumer.
    ///
    /// # Errors
    /// [`BrokerError::ConsumerClosed`]; `OffsetOutOfRange` where it is to fail.
    pub fn try_poll(
        &self,
        max: usize,
        patience: bool,
        call: Option<Waker>,
    ) -> Result<TryResult<Vec<StoredRecord>>, BrokerError> {
        self.poll_buffered(patience, call.filter(|_| max > 0), |state, found, reach| {
            self.collect(state, max, found, reach)
        })
    }

    /// The next message at once, none or one; reads ahead. The rest is as for [`Self::try_poll`].
    pub fn try_next(
        &self,
        patience: bool,
        call: Option<Waker>,
    ) -> Result<TryResult<Vec<StoredRecord>>, BrokerError> {
        self.poll_buffered(patience, call, |state, found, reach| {
            let rest = self.fill(state, reach)?;
            found.extend(self.take_ahead(state));
            Ok(rest)
        })
    }

    /// For looks at once, in a thread: takes up what changed, and reads up to `max` messages ahead.
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

    /// As [`Self::commit`], or [`Self::commit_offsets`] with `offsets`, if that waits for nobody; `None` when it may, and
    /// nothing was stored then. Otherwise whether a sync of the metadata is to follow.
    pub fn try_commit(
        &self,
        offsets: Option<&[(Queue, i64)]>,
        sync: bool,
    ) -> Result<Option<bool>, BrokerError> {
        // Commits that are kept as messages are appended.
        if self.options.history {
            return Ok(None);
        }
        let Some(mut state) = self.state.try_lock() else { return Ok(None) };
        self.check()?;
        let wanted = match offsets {
            None => state.slots.iter().map(|slot| slot.returned).enumerate().collect(),
            Some(offsets) => {
                if !self.store().is_caught_up() || !self.has_stable_assignment(&mut state)? {
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

    /// Has those look again who wait and whom nobody calls: for queues that came, a store that was closed. To be called
    /// now and then while somebody waits at once.
    pub fn look_around(&self) {
        let Some(mut state) = self.state.try_lock() else { return };
        let settled = self.has_stable_assignment(&mut state);
        drop(state);
        if self.store().is_closed() || !settled.unwrap_or(false) {
            self.signal.ring();
        }
    }

    /// Whether to read a slot takes no time.
    pub(super) fn is_at_hand(
        &self,
        state: &mut State,
        at: usize,
        reach: ReadScope,
    ) -> Result<bool, BrokerError> {
        let Some(slot) = state.slots.get_mut(at) else { return Ok(true) };
        Ok(slot.is_at_hand(self.store(), self.options.filter.as_ref(), reach)?)
    }

    fn poll_buffered(
        &self,
        patience: bool,
        call: Option<Waker>,
        look: impl FnOnce(&mut State, &mut Vec<StoredRecord>, ReadScope) -> Result<Remaining, BrokerError>,
    ) -> Result<TryResult<Vec<StoredRecord>>, BrokerError> {
        let seen = self.signal.ring_count();
        let near = self.store().is_caught_up();
        let Some(mut state) = lock(&self.state, patience) else { return Ok(TryResult::Prepare) };
        self.check()?;
        if !self.has_stable_assignment(&mut state)? {
            return Ok(TryResult::Prepare);
        }
        let mut found = Vec::new();
        let rest = look(&mut state, &mut found, ReadScope::AtHand { near })?;
        if !found.is_empty() {
            return Ok(TryResult::Found(found));
        }
        if rest != Remaining::Nothing {
            return Ok(TryResult::Prepare);
        }
        let Some(call) = call else { return Ok(TryResult::Found(found)) };
        for slot in &mut state.slots {
            let may_arm = near || slot.is_armed();
            if !may_arm || slot.arm(self.store(), &self.signal)? {
                return Ok(TryResult::Prepare);
            }
        }
        drop(state);
        let listening = self.signal.listen(seen, call);
        Ok(listening.map_or(TryResult::Prepare, |listening| TryResult::Wait { listening, longest: None }))
    }

    /// Whether it has the queues that are its own: none came, and none went to another consumer.
    fn has_stable_assignment(&self, state: &mut State) -> Result<bool, BrokerError> {
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
