//! Detection of missing index files.
//!
//! After a crash RocketMQ deletes the index files that are newer than its checkpoint. It continues with new files from
//! the offset where it dispatches its queues again, which is later. Only the first and the last log offset of each
//! index file show the gap:
//!
//! ```text
//! log     |k  k  k  k  k  k  k  k  k  k  k  k      k: a record with keys
//! index    [ file 1 ]           [ file 3 ]
//!                     ^ missed: keys after the end of one file and before the start of the next
//! ```
//!
//! Source: `IndexService#load`, `CommitLog#recoverAbnormally`.

use std::sync::Arc;

use mqstore_format::{EntryFields, IndexHasher, RecordView};

use crate::commit_log::{LogScanner, ScanChecks, ScanItem, SegmentList};
use crate::index::IndexSet;
use mqstore_base::error::StoreError;
use mqstore_base::topic_floors::FloorTable;

/// Returns the log offset of the first record with keys, before `end`, that no index file covers: before the first
/// file, or between two.
///
/// Reads the log from the end of each file to the next record with keys. That is a short way unless most messages have
/// no keys. Records that were deleted with their topic need no entries.
pub fn missed_by_index(
    list: &Arc<SegmentList>,
    index: &IndexSet,
    end: u64,
    floors: &FloorTable,
) -> Result<Option<u64>, StoreError> {
    let mut behind: Option<u64> = None;
    for (begin, last) in index.spans() {
        if let Some(missed) = first_keyed(list, behind, begin.min(end), floors)? {
            return Ok(Some(missed));
        }
        behind = behind.max(Some(last));
    }
    Ok(None)
}

/// Returns the first record with keys that starts after the one at `behind` (if given) and before `to`.
fn first_keyed(
    list: &Arc<SegmentList>,
    behind: Option<u64>,
    to: u64,
    floors: &FloorTable,
) -> Result<Option<u64>, StoreError> {
    let from = behind.unwrap_or(0).max(list.min_offset());
    let mut scanner = LogScanner::new(Arc::clone(list), from, to, ScanChecks { crc: false });
    loop {
        let offset = scanner.position();
        let damage = match scanner.next_item()? {
            ScanItem::Record(record)
                if Some(offset) != behind && is_keyed(&record) && !floors.hides(record.topic, offset) =>
            {
                return Ok(Some(offset));
            }
            ScanItem::Record(_) | ScanItem::Filler { .. } => continue,
            ScanItem::End { .. } => return Ok(None),
            ScanItem::Damaged(damage) => damage,
        };
        if scanner.skip(&damage)?.is_none() {
            return Ok(None);
        }
    }
}

fn is_keyed(record: &RecordView<'_>) -> bool {
    let mut keyed = false;
    if record.indexed() {
        EntryFields::of(record.properties).key_hashes(IndexHasher::new(record.topic), |_| keyed = true);
    }
    keyed
}
