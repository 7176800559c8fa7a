//! Detection of index entries for tags.
//!
//! RocketMQ 5.5.0 writes index entries for tags, earlier versions do not, and the files do not say which version wrote
//! them. So this module compares the newest entries with the records that they point to. The next writer does as the
//! last one did.
//!
//! Source: `IndexService#buildIndex`.

use std::sync::Arc;

use mqstore_format::{EntryFields, IndexHasher, RecordView};

use crate::commit_log::{SegmentList, read_record};
use crate::index::IndexSet;
use mqstore_base::error::StoreError;
use mqstore_base::store_files::StoreFiles;

/// Maximum number of entries to inspect if another program may have written them.
const MOST_ENTRIES: u32 = 4096;
/// Maximum number of entries to inspect if mqstore was the last writer: an open must stay cheap.
const MOST_OF_OURS: u32 = 128;
/// Maximum number of records to read.
const MOST_RECORDS: usize = 64;

/// Whether the last writer indexed tags. The newest record with tags whose keys all have entries decides; without one
/// the answer is false. `ours` says that a mark of mqstore fits the log.
pub fn tags_are_indexed(
    files: &StoreFiles,
    list: &Arc<SegmentList>,
    index: &IndexSet,
    ours: bool,
) -> Result<bool, StoreError> {
    let entries = index.newest_entries(if ours { MOST_OF_OURS } else { MOST_ENTRIES })?;
    let records = entries.chunk_by(|left, right| left.physical_offset == right.physical_offset);
    for entries in records.rev().take(MOST_RECORDS) {
        let Some(Ok(offset)) = entries.first().map(|entry| u64::try_from(entry.physical_offset)) else {
            continue;
        };
        let bytes = match read_record(files, list, offset, 0) {
            Ok(bytes) => bytes,
            // The record is expired or damaged.
            Err(StoreError::Corrupt { .. }) => continue,
            Err(error) => return Err(error),
        };
        let Ok(record) = RecordView::decode(bytes.as_slice()) else { continue };
        let (fields, hasher) = (EntryFields::of(record.properties), IndexHasher::new(record.topic));
        let Some(tags) = fields.tags() else { continue };
        let has = |hash: i32| entries.iter().any(|entry| entry.hash == hash);
        let mut whole = true;
        fields.key_hashes(hasher, |hash| whole &= has(hash));
        if whole {
            return Ok(has(hasher.tags(tags)));
        }
    }
    Ok(false)
}
