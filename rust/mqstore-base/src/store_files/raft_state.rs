//! The small files of a member of a DLedger group: what is committed, and its term.
//!
//! Writes nothing. Source: `DLedgerMmapFileStore#persistCheckPoint`, `MemberState#persistTerm`.

use std::path::Path;

use mqstore_format::java_property;

use super::StoreFiles;
use super::raft_log::{CommittedIndex, RaftLog};
use crate::error::StoreError;

/// Maximum bytes of the small files of a member.
const STATE_BYTES: u64 = 64 << 10;

impl StoreFiles {
    /// Returns the last committed entry according to the checkpoint of DLedger.
    ///
    /// # Errors
    /// The system has no descriptor or memory for the call.
    pub fn committed_index(&self, log: &RaftLog) -> Result<CommittedIndex, StoreError> {
        let found = self.property(&log.checkpoint(), "committedIndex")?;
        let index = found.and_then(|text| text.parse().ok()).filter(|index| *index >= -1);
        Ok(index.map_or(CommittedIndex::Unknown, CommittedIndex::Saved))
    }

    /// Returns the current term of the member, if it saved one.
    ///
    /// # Errors
    /// The system has no descriptor or memory for the call.
    pub fn current_term(&self, log: &RaftLog) -> Result<Option<i64>, StoreError> {
        let found = self.property(&log.term_file(), "currTerm")?;
        Ok(found.and_then(|text| text.parse().ok()))
    }

    /// Returns the value of `key` in a file of properties, if the file exists and has it.
    fn property(&self, path: &Path, key: &str) -> Result<Option<String>, StoreError> {
        let bytes = self.read_state(path, STATE_BYTES)?;
        let text = String::from_utf8_lossy(&bytes);
        Ok(java_property(&text, key).map(str::to_owned))
    }
}
