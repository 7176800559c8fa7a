//! The end of the log for a reader, which must not change any file.
//!
//! The log ends after its last whole record. If another process may be writing without publishing its offsets, the
//! newest record counts only if a second read returns the same bytes.

use std::sync::Arc;

use mqstore_format::crc31;

use crate::commit_log::{LogScanner, ScanChecks, ScanItem, SegmentList, is_unwritten, read_record};
use mqstore_base::durable_mark::DurableMark;
use mqstore_base::error::StoreError;
use mqstore_base::store_files::StoreFiles;

/// The end of a log, and the damage that ended it; zeros are no damage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogEnd {
    /// One past the last byte that belongs to the log.
    pub end: u64,
    /// Description of the damage at the end.
    pub damage: Option<String>,
}

/// Finds the end of the log.
///
/// The log is known to reach `known`. From `mark` on, or from the newest segment with a record, a stop of the last
/// writer may have torn it. The flag says whether another process may be writing now.
pub fn log_end(
    files: &StoreFiles,
    list: &Arc<SegmentList>,
    mark: Option<&DurableMark>,
    known: u64,
    beside: bool,
) -> Result<LogEnd, StoreError> {
    let start = scan_start(list, mark, known)?;
    let mut scanner = LogScanner::new(Arc::clone(list), start, u64::MAX, ScanChecks { crc: true });
    let mut last = None;
    loop {
        let offset = scanner.position();
        match scanner.next_item()? {
            ScanItem::Record(record) if beside => last = Some((offset, crc31(record.bytes))),
            ScanItem::Record(_) | ScanItem::Filler { .. } => {}
            ScanItem::End { offset } => {
                return Ok(LogEnd { end: confirmed(files, list, last, offset), damage: None });
            }
            ScanItem::Damaged(damage) => {
                // A stop may have torn the log after the mark; recovery will end the log there.
                let torn = mark.is_some_and(|mark| damage.offset >= mark.position);
                if !torn && scanner.skip(&damage)?.is_some() {
                    continue;
                }
                let (path, at, reason) = (damage.path.display(), damage.file_offset, &damage.reason);
                let cause = if torn {
                    format!(
                        "a crash interrupted the last write ({reason}); this is harmless, and the next open for \
                         writing removes the rest of it"
                    )
                } else {
                    reason.clone()
                };
                return Ok(LogEnd {
                    end: confirmed(files, list, last, damage.offset),
                    damage: Some(format!("{path} at offset {at}: {cause}; the log ends there")),
                });
            }
        }
    }
}

/// A writer without a live page may have been in the middle of the newest record. The record counts if a second read
/// returns the same bytes.
fn confirmed(files: &StoreFiles, list: &SegmentList, last: Option<(u64, u32)>, end: u64) -> u64 {
    let Some((offset, crc)) = last else { return end };
    let again = read_record(files, list, offset, 4096);
    if again.is_ok_and(|bytes| crc31(bytes.as_slice()) == crc) { end } else { offset }
}

/// Returns a log offset shortly before the end of the log, where a walk can start.
fn scan_start(list: &SegmentList, mark: Option<&DurableMark>, known: u64) -> Result<u64, StoreError> {
    let mut start = list.min_offset().max(known);
    if let Some(mark) = mark.filter(|mark| mark.position >= start) {
        start = mark.position;
    }
    for segment in list.segments().iter().rev() {
        if segment.base_offset() <= start {
            break;
        }
        if !is_unwritten(segment)? {
            return Ok(segment.base_offset());
        }
    }
    Ok(start)
}
