//! The files of the log as a reader sees them: one row of segments at one moment, from one folder or several.
//!
//! A [`SegmentList`] is a snapshot: it does not change when the log rolls or loses its oldest files,
//! and whoever holds it can go on reading what it names. A segment's name is its first byte's offset,
//! 20 digits; all have one length, that of the files that are there, whatever the options say.
//!
//! Source: `MappedFileQueue#doLoad`, `#findMappedFileByOffset`, `MultiPathMappedFileQueue#load`.

use std::path::PathBuf;
use std::sync::Arc;

use mqstore_io::{FileLength, MapAccess, MappedFile, MappedFileQueue, StrayKind};

use crate::error::{IoContext, StoreError, Stray};
use crate::files::StoreFiles;

/// One file of the log.
pub type Segment = MappedFile;

/// The segments of a log, in order, and what else lay in the folder.
#[derive(Clone, Debug, Default)]
pub struct SegmentList {
    segments: Arc<[Arc<Segment>]>,
    /// Entries that are no segments of this log, with the reason; folders are no strays.
    pub strays: Vec<Stray>,
    /// Gaps between neighbours: where the log stops and where it goes on.
    pub gaps: Vec<(u64, u64)>,
}

impl SegmentList {
    /// Lists the log's folders for reading; a missing folder is an error, an empty one an empty log.
    pub fn load(files: &StoreFiles) -> Result<Self, StoreError> {
        let (row, list) = Self::load_row(files, 1, MapAccess::Read)?;
        Ok(Self { segments: row.snapshot(), ..list })
    }

    /// As [`Self::load`]; a log whose folders are all missing is an empty one, as in a copy that kept
    /// compacted topics alone.
    pub fn load_if_any(files: &StoreFiles) -> Result<Self, StoreError> {
        let missing = |folder: &PathBuf| {
            files.vfs.stat(folder).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
        };
        if files.log_folders()?.all().iter().all(missing) { Ok(Self::default()) } else { Self::load(files) }
    }

    /// Lists the log's folders; new segments of the row have `segment_bytes` unless there are some already.
    pub fn load_row(
        files: &StoreFiles,
        segment_bytes: u64,
        access: MapAccess,
    ) -> Result<(MappedFileQueue, Self), StoreError> {
        Self::load_sized(files, FileLength::Discover { default: segment_bytes }, access)
    }

    /// As [`Self::load_row`]; files of another length than `length` says are strays.
    pub fn load_sized(
        files: &StoreFiles,
        length: FileLength,
        access: MapAccess,
    ) -> Result<(MappedFileQueue, Self), StoreError> {
        let folders = files.log_folders()?.all();
        for folder in &folders {
            // One that cannot be listed is to be named; segments that are not seen would be lost.
            files.vfs.stat(folder).at(folder, "listing the commit log")?;
        }
        let (row, report) = MappedFileQueue::load_dirs(&files.vfs, &folders, length, access)
            .at_file(|| files.commit_log(), "listing the commit log")?;
        let strays = report.strays.into_iter().filter(|stray| stray.kind != StrayKind::Directory);
        let list = Self {
            segments: row.snapshot(),
            strays: strays.map(|stray| Stray { path: stray.path, reason: stray.kind.to_string() }).collect(),
            gaps: report.gaps.into_iter().map(|gap| (gap.start, gap.end)).collect(),
        };
        Ok((row, list))
    }

    /// The row as it is now.
    pub fn of(row: &MappedFileQueue) -> Self {
        Self { segments: row.snapshot(), ..Self::default() }
    }

    /// The segments by ascending offset.
    pub fn segments(&self) -> &[Arc<Segment>] {
        &self.segments
    }

    /// The length that the segments share, if there is a segment.
    pub fn segment_bytes(&self) -> Option<u64> {
        self.segments.first().map(|segment| segment.len())
    }

    /// The first byte's offset; 0 for an empty log.
    pub fn min_offset(&self) -> u64 {
        self.segments.first().map_or(0, |segment| segment.base_offset())
    }

    /// One past the last segment's last byte, written or not.
    pub fn end_offset(&self) -> u64 {
        self.segments.last().map_or(0, |segment| segment.end_offset())
    }

    /// The segment that holds `offset`.
    pub fn find(&self, offset: u64) -> Option<&Arc<Segment>> {
        let after = self.segments.partition_point(|segment| segment.base_offset() <= offset);
        let segment = self.segments.get(after.checked_sub(1)?)?;
        (offset < segment.end_offset()).then_some(segment)
    }

    /// The first segment that starts at or after `offset`.
    pub fn next_from(&self, offset: u64) -> Option<&Arc<Segment>> {
        self.segments.get(self.segments.partition_point(|segment| segment.base_offset() < offset))
    }
}
