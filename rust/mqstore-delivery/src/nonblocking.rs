//! One look at a consumer or a work queue, and the two ways to wait when it finds nothing.
//!
//! Each verb is one look that never waits for an event ([`Look`]). A blocking call is a loop over it: look, sleep on the
//! signal, look again ([`block_on`]). An event loop calls it with a waker, which is called when it is time to look
//! again ([`TryResult`]).
//!
//! A look of an event loop takes only messages that are in memory or were appended just now ([`ReadScope::AtHand`]). If
//! it would have to read from the disk, build much of the queues, wait for another thread or sync, it does nothing and
//! says so. A thread then *prepares*: it reads ahead and hands out nothing, and the event loop looks again. So a message
//! is handed out only to the call that asked for it, and a call that gives up while a thread prepares loses nothing.

use std::sync::Arc;
use std::time::Duration;

use mqstore_base::wake_signal::{Signal, Waker, WakerRegistration};
use mqstore_io::sync::{Mutex, MutexGuard};

use crate::error::BrokerError;

/// Bytes of the log that are read without asking another thread.
pub(crate) const NEAR_BYTES: u64 = 256 << 10;

/// What one look came to.
pub(crate) enum Look<T> {
    /// What was asked for. A look that has more to go through may find nothing.
    Found(T),
    /// There may be something, and this look may not or did not reach it: look again, after preparing where it is
    /// not at hand.
    NotAtHand,
    /// There is nothing yet.
    Wait {
        /// How often the signal had rung before the look.
        seen: u64,
        /// When to look again at the latest, because something is due then that rings for nobody.
        longest: Option<Duration>,
    },
}

impl<T> Look<T> {
    /// The same look with another value.
    pub(crate) fn map<U>(self, found: impl FnOnce(T) -> U) -> Look<U> {
        match self {
            Self::Found(value) => Look::Found(found(value)),
            Self::NotAtHand => Look::NotAtHand,
            Self::Wait { seen, longest } => Look::Wait { seen, longest },
        }
    }

    /// For an event loop: has `call` made by `signal`, or takes `nothing` for an answer without one.
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

/// For a thread: looks, sleeps on `signal` for at most `wait` if there is nothing, and looks once more. `None` when the
/// second look found nothing either, or there was no time to wait.
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

/// What a look of an event loop came to.
#[derive(Debug)]
pub enum TryResult<T> {
    /// What was asked for, or nothing where nobody wants to wait.
    Found(T),
    /// It may take long: have a thread prepare, and ask again.
    Prepare,
    /// There is nothing by now. The call is made when it is time to look again.
    Wait {
        /// Dropped, it takes the call back.
        listening: WakerRegistration,
        /// When to look again at the latest, because something is due then that nobody calls for.
        longest: Option<Duration>,
    },
}

/// How far a look may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadScope {
    /// Wherever what is wanted may be.
    Anywhere,
    /// To what is at hand; without `near` the queues are not built up to there.
    AtHand {
        /// Whether the queues are built, but for little.
        near: bool,
    },
}

impl ReadScope {
    /// Whether what was read ahead is all that may be taken.
    pub(crate) fn is_at_hand(self) -> bool {
        self != Self::Anywhere
    }

    /// Whether the end of the log may be read.
    pub(crate) fn reaches_end(self) -> bool {
        matches!(self, Self::Anywhere | Self::AtHand { near: true })
    }
}

/// What is left behind a look that went as far as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remaining {
    /// Nothing by now.
    Nothing,
    /// There may be more to go through.
    GoesOn,
    /// There may be something that is not at hand.
    NotAtHand,
}

/// The lock, unless somebody else has it and the caller has no patience.
pub(crate) fn lock<T>(mutex: &Mutex<T>, patient: bool) -> Option<MutexGuard<'_, T>> {
    if patient { Some(mutex.lock()) } else { mutex.try_lock() }
}
