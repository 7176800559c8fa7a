//! What the protocol needs of the log of a copy, and how a copy can fail.

use mqstore_base::error::StoreError;
use mqstore_log::commit_log::CopiedPart;

use crate::epochs::EpochTable;
use crate::standby::StandbyMetadata;

/// The log of a copy.
pub trait ReplicaLog {
    /// Returns the state of the log.
    ///
    /// # Errors
    /// Those of a read.
    fn state(&self) -> Result<LogState, StoreError>;

    /// Begins an empty log with a segment at `base`.
    ///
    /// # Errors
    /// Those of an open.
    fn begin(&mut self, base: u64) -> Result<(), StoreError>;

    /// Appends a part at `position`, the end of the log.
    ///
    /// # Errors
    /// Those of an append.
    fn append(&mut self, position: u64, part: CopiedPart<'_>) -> Result<u64, StoreError>;

    /// Removes everything from `end` on, and keeps a copy of it.
    ///
    /// # Errors
    /// Those of an open.
    fn truncate(&mut self, end: u64) -> Result<(), StoreError>;

    /// Stores the epochs.
    ///
    /// # Errors
    /// Those of a write.
    fn save_epochs(&mut self, epochs: &EpochTable) -> Result<(), StoreError>;

    /// Gives an empty log the length of the master's segments.
    ///
    /// # Errors
    /// Those of an open.
    fn use_segments(&mut self, segment_bytes: u64) -> Result<(), StoreError>;

    /// Keeps metadata whose log is there, and makes this log durable up to their log offset first.
    ///
    /// # Errors
    /// Those of a sync and of a write.
    fn keep_metadata(&mut self, metadata: &StandbyMetadata) -> Result<(), StoreError>;

    /// Shows readers the log up to `offset`.
    ///
    /// # Errors
    /// The store has stopped.
    fn confirm(&mut self, offset: u64) -> Result<(), StoreError>;
}

/// The state of the log of a copy.
#[derive(Clone, Debug, Default)]
pub struct LogState {
    /// Whether it has no segment, so that it can begin anywhere.
    pub is_empty: bool,
    /// Its first log offset.
    pub start: u64,
    /// Its end.
    pub end: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// A number that no other copy has.
    pub copy_id: u64,
    /// The last record, if there is one: its log offset and its bytes.
    pub last: Option<(u64, Vec<u8>)>,
    /// The epochs, for the protocol that has them.
    pub epochs: EpochTable,
}

/// Why a connection, or the copy, ends.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// The master does not keep the protocol. Another connection can succeed.
    #[error("the master does not speak this protocol: {0}")]
    Protocol(String),
    /// The copy is none of this master's log. No connection can succeed.
    #[error("this is no copy of the master's log from log offset {at} on: {reason}")]
    Diverged {
        /// The log offset.
        at: u64,
        /// The difference, and a remedy.
        reason: String,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}
