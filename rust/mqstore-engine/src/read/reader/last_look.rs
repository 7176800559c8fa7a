//! What a reader of a log of Raft entries knows from its last look for the end.

/// The state of the files when a reader last looked for the end.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastLook {
    /// Whether a broker had the store open.
    pub(super) beside: bool,
    /// Whether an entry was written after the end.
    pub(super) more: bool,
}
