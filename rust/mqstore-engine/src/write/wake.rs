//! The steps after an append: it waits for its sync and wakes the services that have work now.

use mqstore_base::error::StoreError;
use mqstore_base::options::Durability;
use mqstore_log::flush::MAX_SEGMENTS_BEHIND;

use crate::engine::Engine;
use crate::read::engine_view::is_transient;
use crate::read::view::View;

impl Engine {
    /// Whether dispatch and flush lag by more than `MAX_SEGMENTS_BEHIND` segments; then appends must wait.
    pub(crate) fn is_far_behind(&self) -> bool {
        let target = self.log.appended().min(self.dispatcher.limit());
        let behind = target.saturating_sub(self.flusher.dispatched());
        behind > MAX_SEGMENTS_BEHIND * self.log.segment_bytes()
    }

    /// Whether an append waits for a sync; `wants_sync` says whether the caller asked for one.
    pub(crate) fn needs_sync(&self, wants_sync: bool) -> bool {
        wants_sync || self.options.durability == Durability::Sync
    }

    /// Waits for the sync of records that were appended with `ReturnPoint::Placed` and end at `end`.
    pub(crate) fn synced(&self, end: u64) -> Result<(), StoreError> {
        self.log.wait_durable(end)?;
        // If only durable records are visible, dispatch must learn that there are more.
        self.wake_services(end)
    }

    /// Dispatches in this thread, or wakes the services that have work.
    pub(crate) fn wake_services(&self, end: u64) -> Result<(), StoreError> {
        if self.options.dispatch_threads == Some(0) {
            match self.dispatch() {
                // The message is in the log and stays there; a read reports the error.
                Err(error) if !is_transient(&error) => return Err(error),
                _ => {}
            }
        } else if self.dispatcher.position() < self.visible() {
            // A publication is a sequentially consistent store; if a sync makes records visible, there is no such
            // store.
            if self.options.durable_only() || self.options.durability == Durability::Pooled {
                self.signals.log_grew();
            } else {
                self.signals.log_grew_after_fence();
            }
        }
        if end >= self.flusher.flush_due_offset() {
            self.signals.flush_due();
        }
        if self.commit_is_due() {
            self.signals.pool_filled();
        }
        Ok(())
    }

    /// Whether the pool holds enough records to write them before the commit interval ends.
    pub(crate) fn commit_is_due(&self) -> bool {
        self.options.durability == Durability::Pooled
            && self.log.appended().saturating_sub(self.log.readable()) > self.options.pool_bytes / 8
    }

    /// Makes everything appended so far durable, including derived files and topics.
    pub(crate) fn flush(&self) -> Result<(), StoreError> {
        self.check()?;
        self.topics.store()?;
        self.flusher.flush_all(false)?;
        // Metadata about messages becomes durable after the messages.
        self.meta.sync(self.meta.place())
    }
}
