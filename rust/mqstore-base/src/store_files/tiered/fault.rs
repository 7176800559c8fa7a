//! The faults of the files of a tiered store.

use std::path::PathBuf;

/// A fault of the files of a tiered store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TieredFault {
    /// Its kind.
    pub kind: TieredFaultKind,
    /// The file or folder.
    pub path: PathBuf,
    /// The offset in it, if known.
    pub offset: Option<u64>,
    /// The reason, as text for a person.
    pub detail: String,
}

/// The kind of a [`TieredFault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TieredFaultKind {
    /// A file without the name or form of the other ones.
    Stray,
    /// A file between two others is missing, or all files of units.
    Gap,
    /// Units without a record in the log.
    Dangling,
    /// Units that do not lead to their records.
    Wrong,
}
