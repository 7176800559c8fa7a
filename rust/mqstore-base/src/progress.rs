//! The progress of a long operation, as reported to its caller.

use crate::error::StoreError;

/// Progress of a long operation over the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the log that are done.
    pub done_bytes: u64,
    /// Bytes of the log in all.
    pub total_bytes: u64,
}

/// A caller's callback for progress. If it returns an error, the operation ends with that error.
pub type ProgressWatcher<'a> = &'a mut dyn FnMut(Progress) -> Result<(), StoreError>;
