//! `mqstore/archive`: the settings of the store's archive, and the log offset up to which the archive covers the log.
//!
//! ```text
//! mqstore archive 1            version
//! 12884901888                  all records before this log offset are in the archive
//! {"target": "..."}            the settings, one line of JSON that only the Python package reads
//! 5f3a0c11                     CRC-32 of the lines before, with their line ends
//! ```
//!
//! The file is replaced in one step and is durable when the call returns. Retention trusts the log offset. So a file
//! that cannot be read keeps all segments. Without the file, or with empty settings, there is no archive. RocketMQ has
//! no such file.

use serde::{Deserialize, Serialize};
use std::io::ErrorKind;

use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;
use mqstore_format::crc32;

/// First line of the file.
const VERSION: &str = "mqstore archive 1";

/// Maximum bytes of the file that are read.
const MOST_BYTES: u64 = 1 << 20;

/// The archive of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchiveState {
    /// All records before this log offset are in the archive.
    pub archived_to: u64,
    /// The settings, one line of text without secrets.
    pub settings: String,
}

/// The archive of a store, or why it is not known.
pub(crate) type ArchiveLookup = Result<Option<ArchiveState>, StoreError>;

impl ArchiveState {
    /// Returns the state of a store whose archive was removed. It replaces the file, which needs no step of its own.
    pub(crate) fn removed() -> Self {
        Self { archived_to: u64::MAX, settings: String::new() }
    }

    /// Writes this archive to a copy of the store whose log ends at `log_end`, durably. The reads of the copy continue
    /// in the archive. Its runs do not extend it before a program configures the archive there, because the store does.
    ///
    /// # Errors
    /// As for a change of the archive.
    pub fn save_for_copy(&self, copy: &StoreFiles, log_end: u64) -> Result<(), StoreError> {
        let open = self.settings.strip_suffix('}').unwrap_or(&self.settings);
        // Records that the copy gets after its end are not those of the archive.
        let archived_to = self.archived_to.min(log_end);
        Self { archived_to, settings: format!("{open}, \"copied\": true}}") }.save(copy)
    }

    /// Reads the file; `None` if there is no archive.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] for a damaged file; errors of the system.
    pub(crate) fn load(files: &StoreFiles) -> ArchiveLookup {
        let path = files.archive();
        let bytes = match files.vfs.read_file(&path, MOST_BYTES) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            bytes => bytes.at(&path, "reading the state of the archive")?,
        };
        let state = Self::decode(&bytes).ok_or_else(|| StoreError::Corrupt {
            path,
            offset: 0,
            reason: "the state of the archive is damaged; configure the archive again".to_owned(),
        })?;
        Ok(Some(state).filter(|state| *state != Self::removed()))
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let (lines, checksum) = text.strip_suffix('\n')?.rsplit_once('\n')?;
        let covered = text.get(..=lines.len())?;
        if u32::from_str_radix(checksum, 16).ok()? != crc32(covered.as_bytes()) {
            return None;
        }
        let mut lines = lines.splitn(3, '\n');
        let version = lines.next()?;
        let archived_to = lines.next()?.parse().ok()?;
        let settings = lines.next()?.to_owned();
        (version == VERSION).then_some(Self { archived_to, settings })
    }

    fn encode(&self) -> Vec<u8> {
        let lines = format!("{VERSION}\n{}\n{}\n", self.archived_to, self.settings);
        format!("{lines}{:08x}\n", crc32(lines.as_bytes())).into_bytes()
    }

    /// Replaces the file durably.
    ///
    /// # Errors
    /// [`StoreError::InvalidOption`] for settings of several lines, or too long; errors of the system.
    pub(crate) fn save(&self, files: &StoreFiles) -> Result<(), StoreError> {
        let bytes = self.encode();
        if self.settings.contains('\n') || bytes.len() as u64 > MOST_BYTES {
            let reason = "the settings must be one line of less than 1 MiB".to_owned();
            return Err(StoreError::InvalidOption { option: "archive", reason });
        }
        files.replace_file(&files.archive(), &bytes, "writing the state of the archive")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_as_it_was_written_and_no_damage_is_accepted() {
        let state = ArchiveState { archived_to: 1 << 40, settings: r#"{"target": "/cold/ä"}"#.to_owned() };
        let bytes = state.encode();
        assert_eq!(ArchiveState::decode(&bytes), Some(state));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(ArchiveState::decode(&damaged), None, "byte {at}");
            assert_eq!(ArchiveState::decode(&bytes[..at]), None, "{at} bytes");
        }
    }
}
