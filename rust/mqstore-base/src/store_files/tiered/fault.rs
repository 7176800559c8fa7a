//! The faults of the files of a tiered store.

use std::path::PathBuf;

/// A fault of the files of a tiered store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TieredFault {
    /// Its kind.
    pub kind: TieredFaultKind,
    /// The file or folder.
    pub path: PathBuf,
    /// The reason, as text for a person.
    pub detail: String,
}

/// The kind of a [`TieredFault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TieredFaultKind {
    /// A file without the name or form of the other ones.
    Stray,
    /// A file between two others is missing.
    Gap,
    /// Units without a record in the log.
    Dangling,
}
