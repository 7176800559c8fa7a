//! The end of a wait, by the clock of the machine.

use std::sync::LazyLock;
use std::time::Duration;

use mqstore::io::{Clock, SystemClock};

use crate::wire::request::WaitMs;

/// The clock that measures waits.
pub(crate) fn clock() -> &'static SystemClock {
    static CLOCK: LazyLock<SystemClock> = LazyLock::new(SystemClock::new);
    &CLOCK
}

/// The time at which a wait ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    /// Monotonic; `None` has no limit.
    at: Option<Duration>,
}

impl Deadline {
    /// A wait of at most `timeout` from now; `None` has no limit.
    pub(crate) fn after(timeout: Option<Duration>) -> Self {
        Self { at: timeout.and_then(|timeout| clock().monotonic().checked_add(timeout)) }
    }

    /// Like [`Self::after`], in milliseconds.
    pub(crate) fn after_ms(wait_ms: WaitMs) -> Self {
        Self::after(wait_ms.map(Duration::from_millis))
    }

    /// Returns the time that is left, at most `longest`.
    pub(crate) fn left(self, longest: Duration) -> Duration {
        self.at.map_or(longest, |at| at.saturating_sub(clock().monotonic()).min(longest))
    }

    /// Returns the time that is left, for a request.
    pub(crate) fn left_ms(self) -> WaitMs {
        self.at.map(|_| self.left(Duration::MAX).as_millis().try_into().unwrap_or(u64::MAX))
    }

    /// Whether the wait is over.
    pub(crate) fn is_over(self) -> bool {
        self.left(Duration::MAX).is_zero()
    }
}
