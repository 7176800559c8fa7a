//! Waits without a thread: a poll, a waker for the next one, and a deadline.

use std::time::Duration;

use mqstore::Error;
use mqstore::delivery::{TryResult, Waker};
use mqstore::error::StoreError;
use mqstore::io::sync::{Arc, AtomicBool, Ordering};
use tokio::sync::Notify;

use crate::deadline::Deadline;

/// The longest time between two polls of a wait: new queues and deletions ring no signal.
pub(crate) const LOOK: Duration = Duration::from_millis(200);

/// Runs a call that may block in a thread of the pool.
pub(crate) async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match tokio::task::spawn_blocking(call).await {
        Ok(result) => result,
        Err(failed) => Err(StoreError::Refused {
            reason: format!("internal error: {failed}; this is a bug of mqstore, please report it"),
        }
        .into()),
    }
}

/// The end of a wait that the client asked for.
#[derive(Default)]
pub(crate) struct WaitEnd {
    is_over: AtomicBool,
    is_gone: AtomicBool,
    bell: Notify,
}

impl WaitEnd {
    /// Ends the wait.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.bell.notify_one();
    }

    /// Ends the wait of a client that is gone: it must take nothing more.
    pub(crate) fn abandon(&self) {
        self.is_gone.store(true, Ordering::Release);
        self.end();
    }
}

/// When a wait ends: at a time, or when the client asks for it.
pub(crate) struct Limits {
    pub(crate) until: Deadline,
    pub(crate) end: Arc<WaitEnd>,
}

impl Limits {
    pub(crate) fn are_reached(&self) -> bool {
        self.end.is_over.load(Ordering::Acquire) || self.until.is_over()
    }
}

/// Polls until there is a value; `None` if the wait is over. Calls `look_around` after a time without a ring.
pub(crate) async fn polled<T, P>(
    limits: &Limits,
    mut poll: impl FnMut(Waker) -> Result<TryResult<T>, Error>,
    prepare: impl Fn() -> P,
    look_around: impl Fn(),
) -> Result<Option<T>, Error>
where
    P: Future<Output = Result<(), Error>>,
{
    loop {
        if limits.end.is_gone.load(Ordering::Acquire) {
            return Err(StoreError::Closed { path: "mqstore/socket".into() }.into());
        }
        let end = Arc::clone(&limits.end);
        match poll(Box::new(move || end.bell.notify_one()))? {
            TryResult::Found(value) => return Ok(Some(value)),
            TryResult::Prepare => prepare().await?,
            TryResult::Wait { listening, longest } => {
                if limits.are_reached() {
                    return Ok(None);
                }
                let longest = limits.until.left(longest.map_or(LOOK, |longest| longest.min(LOOK)));
                if tokio::time::timeout(longest, limits.end.bell.notified()).await.is_err() {
                    look_around();
                }
                drop(listening);
            }
        }
    }
}
