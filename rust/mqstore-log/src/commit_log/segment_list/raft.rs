//! The segments of a broker that ran with DLedger: those from before the upgrade, and the data files after them.
//!
//! ```text
//! commitlog/  00000000000000000000  00000000000000102400           records, the last file closed with a filler
//! dledger-n0/data/                                        00000000000000204800  00000000000000307200   Raft entries
//! ```
//!
//! Source: `DLedgerCommitLog#recover` (`dividedCommitlogOffset`).

use std::collections::BTreeSet;

use mqstore_io::{FileLength, MapAccess, MappedFileQueue};

use super::SegmentList;
use super::files::{is_unwritten, is_without_folders};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::{RaftLog, StoreFiles};

impl SegmentList {
    /// Lists the segments in `commitlog`, if any, and the data files of `log`.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] if both contain the same log offsets.
    pub(super) fn load_raft(files: &StoreFiles, log: &RaftLog) -> Result<Self, StoreError> {
        let data = log.data();
        let (segments, report) = MappedFileQueue::load_dirs(
            &files.vfs,
            std::slice::from_ref(&data),
            FileLength::Discover { default: 1 },
            MapAccess::Read,
            &BTreeSet::new(),
        )
        .at(&data, "listing the data files of DLedger")?;
        let entries = Self::of_report(&segments, report);
        if is_without_folders(files)? {
            return Ok(Self { entries_from: Some(entries.min_offset()), ..entries });
        }
        let (_, plain) = Self::load_contiguous(files, 1, MapAccess::Read)?;
        plain.followed_by(entries, files)
    }

    fn followed_by(self, entries: Self, files: &StoreFiles) -> Result<Self, StoreError> {
        let Some(first) = entries.segments.first() else {
            let end = self.end_offset();
            return Ok(Self { entries_from: Some(end), ..self });
        };
        let divided = first.base_offset();
        let mut segments = self.segments.to_vec();
        // A broker prepares the next file in advance. After the upgrade nothing was written to it.
        while let Some(last) = segments.last().filter(|last| last.base_offset() >= divided) {
            if !is_unwritten(last)? {
                break;
            }
            segments.pop();
        }
        let mut gaps = self.gaps;
        if let Some(last) = segments.last() {
            let end = last.end_offset();
            if end > divided {
                return Err(StoreError::Unsupported {
                    path: files.root.clone(),
                    reason: format!(
                        "the log before the upgrade to DLedger, {}, continues to log offset {end}, but the data files, \
                         {}, begin at {divided}: the broker ran without DLedger again after the upgrade; move one of \
                         the two folders away, and read both directories separately",
                        files.commit_log().display(),
                        first.path().parent().unwrap_or(&files.root).display(),
                    ),
                });
            }
            if end < divided {
                gaps.push((end, divided));
            }
        }
        gaps.extend(entries.gaps);
        segments.extend(entries.segments.iter().cloned());
        let strays = self.strays.into_iter().chain(entries.strays).collect();
        Ok(Self { segments: segments.into(), strays, gaps, entries_from: Some(divided) })
    }
}
