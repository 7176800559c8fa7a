//! The progress of a long operation, as reported to its caller.

use crate::error::StoreError;

/// Progress of a long operation on the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the log that are done.
    pub done_bytes: u64,
    /// Bytes of the log in total.
    pub total_bytes: u64,
}

impl Progress {
    /// Returns the progress of a pass over the log from offset `start` to `end` that has reached `reached`.
    pub fn of_log(start: u64, reached: u64, end: u64) -> Self {
        Self { done_bytes: reached.saturating_sub(start), total_bytes: end - start }
    }
}

/// A callback for progress. If it returns an error, the operation ends with that error.
pub type ProgressWatcher<'a> = &'a mut dyn FnMut(Progress) -> Result<(), StoreError>;
