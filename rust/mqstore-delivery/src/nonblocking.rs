//! One poll of a consumer or a work queue, and the two ways to wait if it finds nothing.
//!
//! Each verb is a poll that never waits for an event ([`Look`]). A blocking call is a loop over it: poll, sleep on
//! the signal, poll again ([`block_on`]). An event loop polls with a waker, which is called when it is time to poll
//! again ([`TryResult`]).
//!
//! A poll of an event loop takes only messages that are in memory or were appended just now ([`ReadScope::AtHand`]).
//! If it would have to read from the disk, build much of the queues, wait for another thread or sync, it does nothing
//! and says so. A thread then *prepares*: it reads ahead but hands out nothing. Then the event loop polls again. So a
//! message is handed out only to the call that asked for it. A call that is cancelled while a thread prepares loses
//! nothing.

use std::sync::Arc;
use std::time::Duration;

use mqstore_base::wake_signal::{Signal, Waker, WakerRegistration};
use mqstore_io::sync::{Mutex, MutexGuard};

use crate::error::BrokerError;

/// Maximum bytes of the log that a poll reads without another thread.
pub(crate) const NEAR_BYTES: u64 = 256 << 10;

/// The result of one poll.
pub(crate) enum Look<T> {
    /// The requested value. A poll that stopped early may find nothing and still return this.
    Found(T),
    /// There may be something that this poll did not reach or may not read. Poll again; in an event loop, prepare
    /// first.
    NotAtHand,
    /// There is nothing yet.
    Wait {
        /// Number of rings of the signal before the poll.
        seen: u64,
        /// Maximum time until the next poll: something is due then that rings no signal.
        longest: Option<Duration>,
    },
}

impl<T> Look<T> {
    pub(crate) fn and_then<U>(
        self,
        next: impl FnOnce(T) -> Result<Look<U>, BrokerError>,
    ) -> Result<Look<U>, BrokerError> {
        match self {
            Self::Found(value) => next(value),
            Self::NotAtHand => Ok(Look::NotAtHand),
            Self::Wait { seen, longest } => Ok(Look::Wait { seen, longest }),
        }
    }

    /// For an event loop: registers `call` with `signal`. Without `call`, returns the value of `nothing`.
    pub(crate) fn or_call(
        self,
        signal: &Arc<Signal>,
        call: Option<Waker>,
        nothing: impl FnOnce() -> Result<T, BrokerError>,
    ) -> Result<TryResult<T>, BrokerError> {
        Ok(match (self, call) {
            (Self::Found(value), _) => TryResult::Found(value),
            (Self::NotAtHand, _) => TryResult::Prepare,
            (Self::Wait { .. }, None) => TryResult::Found(nothing()?),
            (Self::Wait { seen, longest }, Some(call)) => signal
                .listen(seen, call)
                .map_or(TryResult::Prepare, |listening| TryResult::Wait { listening, longest }),
        })
    }
}

/// For a thread: polls, sleeps on `signal` for at most `wait` if there is nothing, and polls once more. Returns
/// `None` if the second poll finds nothing, or if `wait` is zero.
pub(crate) fn block_on<T>(
    signal: &Signal,
    wait: Duration,
    mut look: impl FnMut() -> Result<Look<T>, BrokerError>,
) -> Result<Option<T>, BrokerError> {
    match look()? {
        Look::Found(value) => return Ok(Some(value)),
        Look::Wait { .. } if wait.is_zero() => return Ok(None),
        Look::Wait { seen, longest } => signal.wait(seen, longest.map_or(wait, |longest| longest.min(wait))),
        Look::NotAtHand => {}
    }
    Ok(match look()? {
        Look::Found(value) => Some(value),
        Look::NotAtHand | Look::Wait { .. } => None,
    })
}

/// The result of a poll by an event loop.
#[derive(Debug)]
pub enum TryResult<T> {
    /// The requested value, or an empty result for a call that does not wait.
    Found(T),
    /// The poll may take long: let a thread prepare, then poll again.
    Prepare,
    /// There is nothing yet. The waker is called when it is time to poll again.
    Wait {
        /// The registration of the waker; dropping it removes the waker.
        listening: WakerRegistration,
        /// Maximum time until the next poll: something is due then that calls no waker.
        longest: Option<Duration>,
    },
}

/// How far a poll may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadScope {
    /// No limit.
    Anywhere,
    /// Only what is in memory. Without `near`, the queues are not built up to their end.
    AtHand {
        /// Whether at most [`NEAR_BYTES`] of the log must still be built into the queues.
        near: bool,
    },
}

impl ReadScope {
    /// Whether only messages that were read ahead may be taken.
    pub(crate) fn is_at_hand(self) -> bool {
        self != Self::Anywhere
    }

    /// Whether the end of the log may be read.
    pub(crate) fn reaches_end(self) -> bool {
        matches!(self, Self::Anywhere | Self::AtHand { near: true })
    }
}

/// The rest after a poll that read as far as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remaining {
    /// Nothing yet.
    Nothing,
    /// There may be more to read.
    GoesOn,
    /// There may be something that is not in memory.
    NotAtHand,
}

/// Locks the mutex. Without `patient`, returns `None` if another thread holds it.
pub(crate) fn lock<T>(mutex: &Mutex<T>, patient: bool) -> Option<MutexGuard<'_, T>> {
    if patient { Some(mutex.lock()) } else { mutex.try_lock() }
}
