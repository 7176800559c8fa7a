//! Whether who wrote the index last gave tags entries of their own.
//!
//! RocketMQ 5.5.0 does, the versions before do not, and the files do not say it. So the newest entries are compared with
//! the records that they lead to, and whoever writes next does as the last one did.
//!
//! Source: `IndexService#buildIndex`.

use std::sync::Arc;

use mqstore_format::{EntryFields, IndexHasher, RecordView};

use crate::commit_log::{SegmentList, read_record};
use crate::index::IndexSet;
use mqstore_base::error::StoreError;
use mqstore_base::store_files::StoreFiles;

/// Entries that are looked at where somebody else may have written them.
const MOST_ENTRIES: u32 = 4096;
/// Entries that are looked at where this library was the last writer: an open is to cost next to nothing.
const MOST_OF_OURS: u32 = 128;
/// Records that are read.
const MOST_RECORDS: usize = 64;

/// Answers by the newest record with tags all of whose keys have their entries; false where there is none. `ours` says
/// that a mark of this library fits the log.
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
            // Expired, or damaged.
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
