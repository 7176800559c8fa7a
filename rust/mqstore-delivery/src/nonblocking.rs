//! What a thread that must not wait may do itself, such as one that runs an event loop.
//!
//! A look at once takes what is in memory or was written just now. Where it would have to read from the disk, to build
//! much of the queues, to wait for another thread or to sync, it does nothing and says so: a thread then *prepares*,
//! which reads ahead and hands out nothing, and who asked asks again. So nothing is handed out but to the caller itself,
//! and who gives up while a thread prepares has lost nothing.
//!
//! Who finds nothing leaves a call, which is made when it is time to look again.

use std::time::Duration;

use mqstore_io::sync::{Mutex, MutexGuard};

use crate::wake_signal::WakerRegistration;

/// Bytes of the log that are read without asking another thread.
pub(crate) const NEAR_BYTES: u64 = 256 << 10;

/// What a look at once came to.
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
