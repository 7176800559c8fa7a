//! The pauses between connections: 100 ms at first, then twice as long each time, at most 5 s.

use std::time::Duration;

use mqstore::io::Clock;

use crate::deadline::clock;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

/// When to connect again.
#[derive(Debug)]
pub(super) struct Backoff {
    pause: Duration,
    due: Duration,
}

impl Backoff {
    /// The first connection is due at once.
    pub(super) fn new() -> Self {
        Self { pause: FIRST, due: Duration::ZERO }
    }

    /// Sleeps until the next connection is due, at most `wait`. Returns whether it is due.
    pub(super) fn wait(&self, wait: Duration) -> bool {
        let left = self.due.saturating_sub(clock().monotonic());
        if !left.is_zero() {
            clock().sleep(left.min(wait));
        }
        self.due <= clock().monotonic()
    }

    /// A connection has failed.
    pub(super) fn fail(&mut self) {
        self.due = clock().monotonic() + self.pause;
        self.pause = (self.pause * 2).min(LONGEST);
    }

    /// A connection has brought bytes of the log.
    pub(super) fn succeed(&mut self) {
        self.pause = FIRST;
    }
}
