//! Comparison of the durable mark with the log on disk.
//!
//! The mark names the last record before it by offset, size and checksum. The bytes at that offset tell these cases
//! apart:
//!
//! | bytes at the offset | what happened | answer |
//! |---|---|---|
//! | the named record | no other program wrote before the mark | [`MarkFit::Fits`] |
//! | the named record, but a newer one before it | another program cut and extended the log | [`MarkFit::Foreign`] |
//! | a different record, or the inside of a record | another program cut and extended the log | [`MarkFit::Foreign`] |
//! | no record, although the records before it lead there | damage before the mark | [`MarkFit::Damaged`] |
//! | no file | a segment was lost | refused with an error |

use std::sync::Arc;

use mqstore_format::crc31;
use mqstore_io::switch;

use crate::checkpoint::CheckpointFile;
use crate::commit_log::{LogScanner, ScanChecks, ScanItem, SegmentList, read_record};
use mqstore_base::durable_mark::DurableMark;
use mqstore_base::error::StoreError;
use mqstore_base::store_files::StoreFiles;

/// The relation of a mark to the log.
#[derive(Debug)]
pub(super) enum MarkFit {
    /// The mark belongs to this log.
    Fits,
    /// Another program rewrote the log after the mark was made.
    Foreign,
    /// The mark belongs to this log, but the record that it names is damaged as the error says.
    Damaged(StoreError),
}

/// Whether the log holds the record that the mark names, byte for byte, and the geometry agrees. If not, another
/// program wrote to the log, or the record is damaged.
pub fn mark_fits(files: &StoreFiles, list: &SegmentList, mark: &DurableMark) -> bool {
    if list.segment_bytes().is_some_and(|len| len != mark.segment_bytes) {
        return false;
    }
    if names_no_record(list, mark) {
        return mark.position == list.min_offset();
    }
    let Ok(bytes) = read_record(files, list, mark.last_offset, mark.last_size as usize) else {
        return false;
    };
    is_the_record(mark, bytes.as_slice())
}

/// Whether the log had no record before the mark, or retention has removed the last one with its segment.
fn names_no_record(list: &SegmentList, mark: &DurableMark) -> bool {
    mark.last_size == 0 || mark.last_offset < list.min_offset()
}

/// The remedy for a log whose last files are missing.
pub const PUT_BACK: &str =
    "put the missing files back, or name the other folders of the log in commit_log_paths";

/// Describes the loss if the segment with the record that the mark names, or with its position, is missing, and no newer
/// one exists. `list` must not be older than `mark`.
pub fn lost_end(list: &SegmentList, mark: &DurableMark) -> Option<String> {
    let (position, end) = (mark.position, list.end_offset());
    // The segment at the position of a mark without a record exists: its name is synced before the mark.
    let is_lost = if mark.last_size > 0 { mark.last_offset >= end } else { position > end };
    is_lost.then(|| format!("the log was written up to offset {position}, but its files end at {end}"))
}

fn is_the_record(mark: &DurableMark, bytes: &[u8]) -> bool {
    bytes.len() == mark.last_size as usize && crc31(bytes) == mark.last_crc
}

/// Compares the mark with the log, and tells damage from the work of another program.
///
/// # Errors
/// - [`StoreError::Corrupt`] if the segment that the mark names is missing and no newer segment exists.
/// - Errors of the system.
pub(super) fn examine(
    files: &StoreFiles,
    list: &Arc<SegmentList>,
    mark: &DurableMark,
) -> Result<MarkFit, StoreError> {
    if let Some(lost) = lost_end(list, mark) {
        let detail = format!("{lost}; nothing was changed; {PUT_BACK}, or read the rest with mode \"r\"");
        return Err(StoreError::corrupt(&files.commit_log(), list.end_offset(), detail));
    }
    if names_no_record(list, mark) {
        let fits = mark.position == list.min_offset();
        return Ok(if fits { MarkFit::Fits } else { MarkFit::Foreign });
    }
    match read_record(files, list, mark.last_offset, mark.last_size as usize) {
        Ok(bytes) if is_the_record(mark, bytes.as_slice()) => {
            // Another program may have cut the log and appended again up to a place before this record, which stayed in
            // place. A walk finds that. It is worth its time only if the checkpoint shows that another program wrote
            // later.
            let later = CheckpointFile::new(files).load().physic_msg_timestamp > mark.store_timestamp_ms;
            let look = later && switch::on("recovery.look_below_mark");
            Ok(if look && overwritten(list, mark)? { MarkFit::Foreign } else { MarkFit::Fits })
        }
        Ok(_) => Ok(MarkFit::Foreign),
        Err(error @ StoreError::Corrupt { .. }) => {
            Ok(if overwritten(list, mark)? { MarkFit::Foreign } else { MarkFit::Damaged(error) })
        }
        Err(error) => Err(error),
    }
}

/// Whether another program cut the log before the record that the mark names. It did if a record on the way there, from
/// the start of the preceding segment on, is newer than the mark, or if the records lead past the named one. (After a
/// power loss, the names of removed segments may come back.)
fn overwritten(list: &Arc<SegmentList>, mark: &DurableMark) -> Result<bool, StoreError> {
    let offset = mark.last_offset;
    let Some(own) = list.find(offset) else { return Ok(false) };
    let before = own.base_offset().checked_sub(1).and_then(|last| list.find(last));
    let start = before.unwrap_or(own).base_offset();
    let checks = ScanChecks { crc: false };
    let mut scanner = LogScanner::new(Arc::clone(list), start, u64::MAX, checks);
    while scanner.position() < offset {
        match scanner.next_item()? {
            ScanItem::Record(record) if record.store_timestamp > mark.store_timestamp_ms => return Ok(true),
            ScanItem::Record(_) | ScanItem::Filler { .. } => {}
            ScanItem::End { .. } | ScanItem::Damaged(_) => return Ok(false),
        }
    }
    Ok(scanner.position() > offset)
}

/// Returns the last whole record before `limit`, in the segment that ends at `limit` or contains it.
pub fn last_whole_record(list: &Arc<SegmentList>, limit: u64) -> Result<Option<(u64, u32)>, StoreError> {
    let Some(segment) = limit.checked_sub(1).and_then(|last| list.find(last)) else { return Ok(None) };
    let checks = ScanChecks { crc: true };
    let mut scanner = LogScanner::new(Arc::clone(list), segment.base_offset(), limit, checks);
    let mut last = None;
    loop {
        let offset = scanner.position();
        let damage = match scanner.next_item()? {
            ScanItem::Record(record) => {
                last = Some((offset, record.size));
                continue;
            }
            ScanItem::Filler { .. } => continue,
            ScanItem::End { .. } => return Ok(last),
            ScanItem::Damaged(damage) => damage,
        };
        if scanner.skip(&damage)?.is_none() {
            return Ok(last);
        }
    }
}
