//! Committing the offsets of a consumer.
//!
//! Owners of queues and committed offsets change under one lock. If one consumer lost a queue and another got it,
//! only the second can commit it.

use std::time::Duration;

use mqstore_meta::{MetaPosition, OffsetChange};

use super::assignment::Queue;
use super::consumer::{Consumer, ConsumerState, out_of_range};
use super::offset_history;
use crate::error::BrokerError;

/// The offsets that a commit stored, and the metadata position.
pub(super) struct StoredCommit {
    offsets: Vec<(Queue, i64)>,
    place: Option<MetaPosition>,
}

impl Consumer {
    /// Commits, for each of its queues, the offset after the last message that it handed out. With `sync` the commit
    /// is durable when this returns.
    pub fn commit(&self, sync: bool) -> Result<(), BrokerError> {
        let mut state = self.state.lock();
        self.check()?;
        let wanted: Vec<_> = (0..state.slots.len())
            .filter_map(|at| state.slots.get(at).map(|slot| (at, slot.returned)))
            .collect();
        let stored = self.store_offsets(&mut state, &wanted)?;
        drop(state);
        self.finish_commit(&stored, sync)
    }

    /// Commits these offsets, which are the next ones to read, for queues that it owns.
    ///
    /// # Errors
    /// [`BrokerError::NotAssigned`]; nothing is stored then.
    pub fn commit_offsets(&self, offsets: &[(Queue, i64)], sync: bool) -> Result<(), BrokerError> {
        let mut state = self.state.lock();
        self.check()?;
        self.refresh(&mut state)?;
        let wanted = self.resolve_offsets(&state, offsets)?;
        let stored = self.store_offsets(&mut state, &wanted)?;
        drop(state);
        self.finish_commit(&stored, sync)
    }

    /// Returns the slot for each of these offsets.
    pub(super) fn resolve_offsets(
        &self,
        state: &ConsumerState,
        offsets: &[(Queue, i64)],
    ) -> Result<Vec<(usize, i64)>, BrokerError> {
        let mut wanted = Vec::with_capacity(offsets.len());
        for (queue, offset) in offsets {
            let at = self.slot(state, queue)?;
            let (_, max_offset) = self.store().bounds(&queue.topic, queue.queue_id)?;
            if !(0..=max_offset).contains(offset) {
                return Err(out_of_range(queue, *offset, (0, max_offset)).into());
            }
            wanted.push((at, *offset));
        }
        Ok(wanted)
    }

    /// Commits in one frame the offsets that moved and whose queues it still owns. Returns what was stored, and where.
    pub(super) fn store_offsets(
        &self,
        state: &mut ConsumerState,
        wanted: &[(usize, i64)],
    ) -> Result<StoredCommit, BrokerError> {
        let meta = self.meta();
        // No other consumer gets a queue meanwhile.
        let group = self.member.as_ref().map(|(coordinator, member)| (coordinator.lock(), *member));
        let (mut changes, mut stored, mut settled) = (Vec::new(), Vec::new(), Vec::new());
        for (at, offset) in wanted {
            let Some(slot) = state.slots.get_mut(*at) else { continue };
            if group.as_ref().is_some_and(|(group, member)| !group.has(*member, &slot.queue, slot.generation))
            {
                continue;
            }
            if slot.covers_delivered(*offset) {
                settled.push(slot.queue.clone());
            }
            let before = slot.committed(meta);
            let goes_back = before.is_some_and(|before| *offset < before);
            if before == Some(*offset) || (goes_back && !slot.sought) {
                continue;
            }
            if let Some(before) = before.filter(|_| goes_back) {
                self.note(format!(
                    "group {}: its offset in queue {}/{} goes back from {before} to {offset}",
                    self.group, slot.queue.topic, slot.queue.queue_id
                ));
            }
            slot.sought = false;
            changes.push(OffsetChange { queue: slot.key, offset: *offset });
            stored.push((slot.queue.clone(), *offset));
        }
        let kept = !changes.is_empty() && self.stored_as.is_some();
        let place = if kept { Some(meta.commit(&changes)?) } else { None };
        drop(group);
        if let Some((coordinator, _)) = self.member.as_ref().filter(|_| self.options.ordered) {
            coordinator.free(&settled);
        }
        Ok(StoredCommit { offsets: stored, place })
    }

    /// Finishes a commit without the consumer's lock.
    pub(super) fn finish_commit(&self, stored: &StoredCommit, sync: bool) -> Result<(), BrokerError> {
        let StoredCommit { offsets, place } = stored;
        if self.options.history && !offsets.is_empty() {
            offset_history::write(self.store(), &self.group, offsets)?;
        }
        let at_once = sync || self.options.commit_interval == Some(Duration::ZERO);
        match (place, self.options.commit_interval) {
            (Some(place), _) if at_once => Ok(self.meta().sync(*place)?),
            (Some(place), Some(interval)) => {
                let ms = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
                self.meta().sync_within(*place, ms);
                Ok(())
            }
            // A commit of another consumer may have to become durable.
            (None, _) if sync => Ok(self.meta().sync(self.meta().place())?),
            _ => Ok(()),
        }
    }
}
