//! What a call that waits sleeps on.
//!
//! Whoever has news rings; whoever waits has read the number of rings before its last look, so that a ring in between
//! is not missed. Rings come from the threads of the store too ([`mqstore_core::Store::wait_with`]) and cost a few
//! atomic operations.

use std::time::Duration;

use mqstore_io::EventCount;
use mqstore_io::sync::{AtomicU64, Ordering};

/// The longest sleep without a look: nobody rings when a store is closed or stopped by an error while no queue is
/// waited for.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    rings: AtomicU64,
    event: EventCount,
}

impl Signal {
    /// How often it rang; to be read before the last look at what is waited for.
    pub(crate) fn rings(&self) -> u64 {
        self.rings.load(Ordering::SeqCst)
    }

    /// Wakes all who wait.
    pub(crate) fn ring(&self) {
        self.rings.fetch_add(1, Ordering::SeqCst);
        self.event.notify_all_after_fence();
    }

    /// Wakes one of those who wait, at least.
    pub(crate) fn ring_one(&self) {
        self.rings.fetch_add(1, Ordering::SeqCst);
        self.event.notify_one();
    }

    /// Whether somebody waits.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.event.has_waiters()
    }

    /// Sleeps until it has rung more often than `seen`, at most for `longest`.
    pub(crate) fn sleep(&self, seen: u64, longest: Duration) {
        self.event.wait_until(Some(longest), || self.rings() != seen);
    }

    /// Sleeps until it has rung more often than `seen`, at most for `longest`, and never longer than [`LOOK`].
    pub(crate) fn wait(&self, seen: u64, longest: Duration) {
        self.event.wait_until(Some(longest.min(LOOK)), || self.rings() != seen);
    }
}
