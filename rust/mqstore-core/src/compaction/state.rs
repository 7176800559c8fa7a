//! The generation that a queue's compaction files are in.
//!
//! Owns the comparison of "planned" and "now": both read the folder through [`GenerationState`].

use std::path::Path;

use super::cursor::{Listed, PairCursor};
use super::folder::QueueFolder;
use super::geometry::CompactionGeometry;
use crate::error::StoreError;
use crate::files::StoreFiles;

/// How often files may be replaced while they are looked at.
const MOST_TRIES: u32 = 16;

/// What a queue's compaction files hold.
#[derive(Clone, Debug)]
pub(crate) struct GenerationState {
    /// Equal as long as nobody makes, removes, replaces or appends to a file.
    pub(crate) token: String,
    /// One past the last queue offset; 0 without a record.
    pub(crate) end: i64,
    /// The lengths of the files, when there are any.
    pub(crate) geometry: Option<CompactionGeometry>,
    /// Why these files must not be replaced.
    pub(crate) blocked: Vec<String>,
}

impl GenerationState {
    /// Looks at the files of a queue.
    pub(crate) fn load(files: &StoreFiles, topic: &str, queue_id: i32) -> Result<Self, StoreError> {
        Self::load_from(files, &files.compaction(), topic, queue_id)
    }

    /// Looks at the files of a queue below `compaction`, which may be the next folder of that name.
    pub(crate) fn load_from(
        files: &StoreFiles,
        compaction: &Path,
        topic: &str,
        queue_id: i32,
    ) -> Result<Self, StoreError> {
        for _ in 0..MOST_TRIES {
            let folder = QueueFolder::load(files, compaction, topic, queue_id)?;
            if let Listed::Same((end, last_entry)) = end_of(files, &folder, topic, queue_id)? {
                return Ok(Self {
                    token: folder.token(&last_entry),
                    end,
                    geometry: folder.geometry(),
                    blocked: folder.blocked,
                });
            }
        }
        Err(StoreError::Busy {
            reason: format!(
                "the compaction files of {topic}/{queue_id} are replaced faster than they can be read"
            ),
        })
    }
}

/// One past the last queue offset, and the bytes that change with an append.
fn end_of(
    files: &StoreFiles,
    folder: &QueueFolder,
    topic: &str,
    queue_id: i32,
) -> Result<Listed<(i64, Vec<u8>)>, StoreError> {
    for pair in folder.pairs.iter().rev() {
        let Listed::Same(mut cursor) = PairCursor::open(files, pair, topic, queue_id, 0)? else {
            return Ok(Listed::Moved);
        };
        if let Some(unit) = cursor.last_unit() {
            return Ok(Listed::Same((unit.base_offset.saturating_add(1), unit.encode().to_vec())));
        }
        if let Some(last) = cursor.last_by_log()? {
            return Ok(Listed::Same((last.saturating_add(1), last.to_be_bytes().to_vec())));
        }
    }
    Ok(Listed::Same((0, Vec::new())))
}
