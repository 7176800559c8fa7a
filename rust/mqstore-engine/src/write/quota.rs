//! Quotas of topics and of the log: how appends respect them.
//!
//! The log checks a quota under the put lock. This module gives it the first offsets of the queues; it reads them only
//! when an append would be refused. On disk there is only the quota itself, as an attribute of the topic.

use std::sync::atomic::Ordering;

use mqstore_base::error::StoreError;
use mqstore_log::commit_log::EncodedRecord;

use crate::engine::Engine;

impl Engine {
    /// Gives records their offsets once the quotas allow all of them.
    pub(crate) fn append_within_quotas(
        &self,
        pending: &mut [EncodedRecord<'_>],
        now_ms: i64,
        wants_sync: bool,
    ) -> Result<u64, StoreError> {
        loop {
            match self.log.append(pending, now_ms, wants_sync) {
                Err(error @ StoreError::Full { .. }) if !self.has_space_again(pending) => {
                    self.append_gate.refused_appends.fetch_add(1, Ordering::Relaxed);
                    self.signals.want_expiry_round();
                    return Err(error);
                }
                Err(StoreError::Full { .. }) => {}
                outcome => return outcome,
            }
        }
    }

    /// Whether a topic with a quota lost messages to expiry since the last check.
    fn has_space_again(&self, pending: &[EncodedRecord<'_>]) -> bool {
        let mut found = false;
        let mut last = None;
        for quota in pending.iter().map(|pending| pending.quota).filter(|quota| quota.limit().is_some()) {
            if !last.is_some_and(|last| std::ptr::eq(last, quota)) {
                last = Some(quota);
                found |= quota.free(self.queues.first_offsets(quota.topic()));
            }
        }
        found
    }

    /// Updates the quota and the offsets that appends to `topic` are checked against.
    pub(crate) fn refresh_quota(&self, topic: &str) {
        let Some(state) = self.topics.get(topic) else { return };
        let limit = self.topics.max_messages(topic);
        if limit.is_some() || state.quota.limit().is_some() {
            self.log.block_appends(|| state.quota.set(limit, state.total_next_offset()));
        }
    }
}
