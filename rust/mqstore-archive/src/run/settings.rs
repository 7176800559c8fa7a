//! What a run archives, and how.

use mqstore_engine::ArchiveState;
use mqstore_io::Clock;

use crate::file::FileSizes;
use crate::owner::ArchiveRecorder;
use crate::place::Place;

/// What a run archives.
#[derive(Clone, Debug)]
pub struct RunSettings {
    /// Minimum age of the last record of a segment in milliseconds.
    pub older_than_ms: i64,
    /// Only records of these topics, sorted; `None` is the whole log.
    pub topics: Option<Vec<String>>,
}

/// The sizes of a run.
#[derive(Clone, Copy, Debug)]
pub struct RunSizes {
    /// Bytes of columns of one range of the log: a file has at most so many.
    pub range_bytes: usize,
    /// Bytes of segments after which a run creates a manifest.
    pub commit_bytes: u64,
    /// Maximum number of ranges that are written at the same time; each needs memory for two copies of its columns.
    pub writers: u32,
    /// The sizes of the parts of a file.
    pub file: FileSizes,
}

impl Default for RunSizes {
    fn default() -> Self {
        let file = FileSizes { group_rows: 8192, page_bytes: 64 << 10, page_step_rows: 32, level: 3 };
        Self { range_bytes: 128 << 20, commit_bytes: 4 << 30, writers: 4, file }
    }
}

/// A run.
pub struct Run<'a> {
    /// The archive.
    pub place: &'a Place,
    /// The clock to which the age of segments is compared.
    pub clock: &'a dyn Clock,
    /// What it archives.
    pub settings: RunSettings,
    /// Its sizes.
    pub sizes: RunSizes,
    /// What the store recorded about this archive.
    pub recorded: Option<&'a ArchiveState>,
    /// Moves the log offset of the store's archive, which is the recorded one; `None` leaves it.
    pub recorder: Option<&'a dyn ArchiveRecorder>,
}
