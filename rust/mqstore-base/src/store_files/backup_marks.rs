//! `mqstore/backups/`: how far the backups of a store are. The writer keeps what they do not have yet.
//!
//! Each target has one file, which the process that backs up replaces in one step. It can be another process than the
//! writer. The name is chosen by that process.
//!
//! ```text
//! <log offset> <epoch ms> <target>      the backup has the log up to there; segments are kept until then
//! ```
//!
//! A damaged file counts for nothing, and the next round replaces it. RocketMQ has no such file.

use std::io::ErrorKind;
use std::path::PathBuf;

use super::StoreFiles;
use crate::error::{IoContext, StoreError};

/// Maximum bytes of a file that are read.
const MOST_BYTES: u64 = 64 << 10;

/// How far a backup is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupMark {
    /// The folder, or the URL without secrets.
    pub target: String,
    /// It has the log up to this offset.
    pub log_end: u64,
    /// Until this time, in epoch milliseconds, the retention by age keeps what it does not have.
    pub until_ms: i64,
}

impl BackupMark {
    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut parts = std::str::from_utf8(bytes).ok()?.splitn(3, ' ');
        let (log_end, until_ms) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(Self { log_end, until_ms, target: parts.next()?.to_owned() })
    }
}

impl StoreFiles {
    /// `mqstore/backups/`: one file for each target.
    fn backups(&self) -> PathBuf {
        self.side().join("backups")
    }

    /// Returns how far the backups of the store are.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn backup_marks(&self) -> Result<Vec<BackupMark>, StoreError> {
        let folder = self.backups();
        let entries = match self.vfs.list(&folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.at(&folder, "listing the backups of the store")?,
        };
        let marks = entries.iter().filter_map(|entry| self.backup_mark(entry.name.to_str()?).transpose());
        marks.collect()
    }

    /// Returns the mark `name`; `None` if it is missing or damaged.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn backup_mark(&self, name: &str) -> Result<Option<BackupMark>, StoreError> {
        let path = self.backups().join(name);
        match self.vfs.read_file(&path, MOST_BYTES) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            bytes => Ok(BackupMark::decode(&bytes.at(&path, "reading how far a backup is")?)),
        }
    }

    /// Replaces the mark `name`, durably. A directory without files of ours gets none, as its writer is a broker. Neither
    /// does one that this process may not change. On a full disk the old mark stays, which keeps more.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn keep_backup_mark(&self, name: &str, mark: &BackupMark) -> Result<(), StoreError> {
        let path = self.backups().join(name);
        if self.vfs.stat(&self.side()).is_err() {
            return Ok(());
        }
        let text = format!("{} {} {}", mark.log_end, mark.until_ms, mark.target);
        match self.replace_file(&path, text.as_bytes(), "writing how far a backup is") {
            Err(StoreError::Io { source, .. })
                if matches!(source.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) =>
            {
                Ok(())
            }
            Err(StoreError::DiskFull { .. }) => Ok(()),
            written => written,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::BackupMark;

    #[test]
    fn damaged_marks_are_no_marks() {
        let mark = BackupMark { target: "/cold/a b\nc".to_owned(), log_end: 1 << 40, until_ms: -3 };
        assert_eq!(BackupMark::decode(b"1099511627776 -3 /cold/a b\nc"), Some(mark));
        for bad in [&b""[..], b"1", b"1 2", b"1 x y", b"-1 2 y", b"1 2 \xff", b"99999999999999999999 2 y"] {
            assert_eq!(BackupMark::decode(bad), None, "{bad:?}");
        }
    }
}
