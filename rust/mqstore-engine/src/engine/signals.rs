//! Events between the appends and readers of a store and its background services.
//!
//! Owns one event for each service, so that an append wakes only the service that has work. Nothing on disk. Across
//! threads: any number of threads raise events and wait for them. Each service also checks after its own timeout.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mqstore_io::EventCount;

/// The events of one store.
#[derive(Debug, Default)]
pub(crate) struct ServiceSignals {
    /// The log grew, or more of it is visible.
    log_grew: EventCount,
    /// The backlog is too large for one dispatch thread.
    backlog_grew: EventCount,
    /// Whether a record was appended for which a reader waits, since dispatch last checked.
    hurry: AtomicBool,
    /// Raised with `hurry`; dispatch waits on it while it collects records.
    hurried: EventCount,
    flush_due: EventCount,
    pool_filled: EventCount,
    expire_due: EventCount,
    /// Whether something that cannot wait came up since the last round of the expiry service.
    round_wanted: AtomicBool,
}

impl ServiceSignals {
    /// Tells dispatch that the log may have more records.
    pub(crate) fn log_grew(&self) {
        self.log_grew.notify_all();
    }

    /// Like [`Self::log_grew`], after a sequentially consistent store that published the new end.
    pub(crate) fn log_grew_after_fence(&self) {
        self.log_grew.notify_all_after_fence();
    }

    /// Waits until `due` is true, for at most `timeout`; returns whether it is.
    pub(crate) fn wait_for_log(&self, timeout: Duration, due: impl Fn() -> bool) -> bool {
        self.log_grew.wait_until(Some(timeout), due)
    }

    /// Wakes the other dispatch threads, because one is not enough.
    pub(crate) fn backlog_grew(&self) {
        self.backlog_grew.notify_all();
    }

    /// Like [`Self::wait_for_log`], for the other dispatch threads.
    pub(crate) fn wait_for_backlog(&self, timeout: Duration, due: impl Fn() -> bool) -> bool {
        self.backlog_grew.wait_until(Some(timeout), due)
    }

    /// Makes dispatch continue at once, because a reader waits for an appended record.
    pub(crate) fn hurry(&self) {
        self.hurry.store(true, Ordering::SeqCst);
        self.hurried.notify_all();
    }

    /// Collects records for `timeout`; ends early after [`Self::hurry`] or if `stopped` is true.
    pub(crate) fn let_records_gather(&self, timeout: Duration, stopped: impl Fn() -> bool) {
        self.hurried.wait_until(Some(timeout), || self.hurry.swap(false, Ordering::SeqCst) || stopped());
    }

    /// Tells the flush service that a sync is due.
    pub(crate) fn flush_due(&self) {
        self.flush_due.notify_all();
    }

    /// Waits until `due` is true, for at most `timeout`; returns whether it is.
    pub(crate) fn wait_for_flush(&self, timeout: Duration, due: impl Fn() -> bool) -> bool {
        self.flush_due.wait_until(Some(timeout), due)
    }

    /// Lets a service rest for `timeout`, unless `stopped` is true.
    pub(crate) fn pause(&self, timeout: Duration, stopped: impl Fn() -> bool) {
        self.flush_due.wait_until(Some(timeout), stopped);
    }

    /// Tells the service that writes pooled records to the file that there are many.
    pub(crate) fn pool_filled(&self) {
        self.pool_filled.notify_all();
    }

    /// Waits until `due` is true, for at most `timeout`.
    pub(crate) fn wait_for_pool(&self, timeout: Duration, due: impl Fn() -> bool) {
        self.pool_filled.wait_until(Some(timeout), due);
    }

    /// Asks the expiry service for a round before its rest is over: an append reached a quota, or a removed segment
    /// is still in use.
    pub(crate) fn want_expiry_round(&self) {
        self.round_wanted.store(true, Ordering::Release);
        self.expire_due.notify_all();
    }

    /// Whether a round was asked for since [`Self::forget_wanted_round`].
    pub(crate) fn is_round_wanted(&self) -> bool {
        self.round_wanted.load(Ordering::Acquire)
    }

    /// Resets [`Self::is_round_wanted`].
    pub(crate) fn forget_wanted_round(&self) {
        self.round_wanted.store(false, Ordering::Release);
    }

    /// Waits until `due` is true, for at most `timeout`; returns whether it is.
    pub(crate) fn wait_to_expire(&self, timeout: Duration, due: impl Fn() -> bool) -> bool {
        self.expire_due.wait_until(Some(timeout), due)
    }

    /// Wakes every service, so that it checks whether it must end.
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
