//! What appends and readers tell the background services of a store, and what these wait for.
//!
//! Owns one event for each service, so that an append wakes only the service that has work. Nothing on disk. Across
//! threads: any number raise and wait; a service that misses nothing else looks again after its own timeout.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mqstore_io::EventCount;

/// The events of one store.
#[derive(Debug, Default)]
pub(crate) struct ServiceSignals {
    /// The log grew, or more of it is visible.
    log_grew: EventCount,
    /// One thread has more to dispatch than it should.
    backlog_grew: EventCount,
    /// Whether something was appended that somebody waits for since dispatch asked last.
    hurry: AtomicBool,
    /// Raised with it; dispatch waits on it while it lets records come together.
    hurried: EventCount,
    flush_due: EventCount,
    pool_filled: EventCount,
    expire_due: EventCount,
    /// Whether an append was refused because of a quota since the service that expires looked.
    quota_met: AtomicBool,
}

impl ServiceSignals {
    /// Tells dispatch that there may be more to do.
    pub(crate) fn log_grew(&self) {
        self.log_grew.notify_all();
    }

    /// As [`Self::log_grew`], after a sequentially consistent store that published what there is.
    pub(crate) fn log_grew_after_fence(&self) {
        self.log_grew.notify_all_after_fence();
    }

    /// Returns whether there is something to dispatch: `due` holds, at the latest after `timeout`.
    pub(crate) fn wait_for_log(&self, timeout: Duration, due: impl Fn() -> bool) -> bool {
        self.log_grew.wait_until(Some(timeout), due)
    }

    /// Tells the other threads that dispatch that one is not enough.
    pub(crate) fn backlog_grew(&self) {
        self.backlog_grew.notify_all();
    }

    /// As [`Self::wait_for_log`], for the other threads that dispatch.
    pub(crate) fn wait_for_backlog(&self, timeout: Duration, due: impl Fn() -> bool) -> bool {
        self.backlog_grew.wait_until(Some(timeout), due)
    }

    /// Has dispatch go on at once, because somebody waits for what was appended.
    pub(crate) fn hurry(&self) {
        self.hurry.store(true, Ordering::SeqCst);
        self.hurried.notify_all();
    }

    /// Lets records come together, for `timeout` unless somebody hurries or `stopped` holds.
    pub(crate) fn let_records_gather(&self, timeout: Duration, stopped: impl Fn() -> bool) {
        self.hurried.wait_until(Some(timeout), || self.hurry.swap(false, Ordering::SeqCst) || stopped());
    }

    /// Tells the service that syncs that a sync is due.
    pub(crate) fn flush_due(&self) {
        self.flush_due.notify_all();
    }

    /// Waits until `due` holds, at most `timeout`; whether it does.
    pub(crate) fn wait_for_flush(&self, timeout: Duration, due: impl Fn() -> bool) -> bool {
        self.flush_due.wait_until(Some(timeout), due)
    }

    /// Has a service rest for `timeout`, unless `stopped` holds.
    pub(crate) fn pause(&self, timeout: Duration, stopped: impl Fn() -> bool) {
        self.flush_due.wait_until(Some(timeout), stopped);
    }

    /// Tells the service that writes pooled records to the file that there are many.
    pub(crate) fn pool_filled(&self) {
        self.pool_filled.notify_all();
    }

    /// Waits until `due` holds, at most `timeout`.
    pub(crate) fn wait_for_pool(&self, timeout: Duration, due: impl Fn() -> bool) {
        self.pool_filled.wait_until(Some(timeout), due);
    }

    /// Tells the service that expires that an append met a quota.
    pub(crate) fn quota_met(&self) {
        self.quota_met.store(true, Ordering::Release);
        self.expire_due.notify_all();
    }

    /// Whether an append met a quota since [`Self::forget_quota`].
    pub(crate) fn was_quota_met(&self) -> bool {
        self.quota_met.load(Ordering::Acquire)
    }

    /// Forgets the appends that met a quota.
    pub(crate) fn forget_quota(&self) {
        self.quota_met.store(false, Ordering::Release);
    }

    /// Waits until `due` holds, at most `timeout`; whether it does.
    pub(crate) fn wait_to_expire(&self, timeout: Duration, due: impl Fn() -> bool) -> bool {
        self.expire_due.wait_until(Some(timeout), due)
    }

    /// Wakes every service, which looks whether it should end.
    pub(crate) fn wake_all(&self) {
        let events = [
            &self.log_grew,
            &self.backlog_grew,
            &self.hurried,
            &self.flush_due,
            &self.pool_filled,
            &self.expire_due,
        ];
        events.into_iter().for_each(EventCount::notify_all);
    }
}
