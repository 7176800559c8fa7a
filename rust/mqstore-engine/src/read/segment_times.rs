//! The store times of a segment's first and last record.
//!
//! They are read from the records themselves. The search for the last record starts at the end of the file: it looks
//! for a valid record in a range that grows, and walks the log from that record. So a segment of 1 GiB costs a few
//! hundred KiB, once.

use std::ops::Range;
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_base::store_files::StoreFiles;
use mqstore_log::commit_log::{LogScanner, ScanChecks, ScanItem, Segment, SegmentList};

/// Bytes at the end of a segment that each try searches.
const TAIL_BYTES: [u64; 4] = [256 << 10, 8 << 20, 128 << 20, u64::MAX];

/// The times of one segment, in epoch milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_field_names, reason = "each name ends with its unit")]
pub(crate) struct SegmentTimes {
    /// Store time of the first record, if it can be read.
    pub first_ms: Option<i64>,
    /// Store time of the last record that can be read.
    pub last_ms: Option<i64>,
    /// The time of the file's last change; used for a segment without a readable record.
    pub modified_ms: i64,
}

impl SegmentTimes {
    /// Returns the store time of the newest record in the segment.
    pub(crate) fn newest_ms(&self) -> i64 {
        self.last_ms.unwrap_or(self.modified_ms)
    }
}

/// Reads the times of a segment of a log that ends at `log_end`. Skips damage.
pub(crate) fn times_of(
    files: &StoreFiles,
    list: &Arc<SegmentList>,
    segment: &Segment,
    log_end: u64,
) -> SegmentTimes {
    let range = segment.base_offset()..segment.end_offset().min(log_end);
    SegmentTimes {
        // A record that cannot be read has no time; the time of the file decides then.
        first_ms: first_time(list, &range).ok().flatten(),
        last_ms: last_time(list, &range).ok().flatten(),
        modified_ms: files.vfs.stat(&segment.path()).map_or(i64::MAX, |stat| stat.modified_ms),
    }
}

fn scanner(list: &Arc<SegmentList>, range: Range<u64>) -> LogScanner {
    LogScanner::new(Arc::clone(list), range.start, range.end, ScanChecks { crc: true })
}

fn first_time(list: &Arc<SegmentList>, range: &Range<u64>) -> Result<Option<i64>, StoreError> {
    match scanner(list, range.clone()).next_item()? {
        ScanItem::Record(record) => Ok(Some(record.store_timestamp)),
        ScanItem::Filler { .. } | ScanItem::End { .. } | ScanItem::Damaged(_) => Ok(None),
    }
}

fn last_time(list: &Arc<SegmentList>, range: &Range<u64>) -> Result<Option<i64>, StoreError> {
    let mut before = u64::MAX;
    for bytes in TAIL_BYTES {
        let from = range.end.saturating_sub(bytes).max(range.start);
        if from == before {
            break;
        }
        before = from;
        if let Some(time) = last_time_from(list, from..range.end)? {
            return Ok(Some(time));
        }
    }
    Ok(None)
}

fn last_time_from(list: &Arc<SegmentList>, range: Range<u64>) -> Result<Option<i64>, StoreError> {
    let from = range.start;
    let mut scanner = scanner(list, range);
    let mut last = None;
    let Some(first) = scanner.resync(from)? else { return Ok(None) };
    scanner.seek(first);
    loop {
        match scanner.next_item()? {
            ScanItem::Record(record) => last = last.max(Some(record.store_timestamp)),
            ScanItem::Filler { .. } | ScanItem::End { .. } => return Ok(last),
            ScanItem::Damaged(damage) => {
                if scanner.skip(&damage)?.is_none() {
                    return Ok(last);
                }
            }
        }
    }
}
