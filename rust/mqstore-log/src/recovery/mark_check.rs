//! Whether the durable mark still speaks of the log that is there.
//!
//! The mark names the last record below it, by place, size and checksum. That record tells three cases
//! apart:
//!
//! | what lies at the place | what happened | answer |
//! |---|---|---|
//! | the record | nobody else wrote below it | [`Fit::Fits`] |
//! | the record, and a newer one before it | another program cut the log and went on | [`Fit::Foreign`] |
//! | a whole record with other bytes, or the inside of one | another program cut the log and went on | [`Fit::Foreign`] |
//! | no record, though the records before it lead there | damage below the mark | [`Fit::Damaged`] |
//! | no file | a segment was lost | refused |

use std::sync::Arc;

use mqstore_format::crc31;
use mqstore_io::switch;

use crate::checkpoint::CheckpointFile;
use crate::commit_log::{LogScanner, ScanChecks, ScanItem, SegmentList, read_record};
use mqstore_base::durable_mark::DurableMark;
use mqstore_base::error::StoreError;
use mqstore_base::store_files::StoreFiles;

/// What the log says about a mark.
#[derive(Debug)]
pub(super) enum MarkFit {
    /// It is the mark of this log.
    Fits,
    /// It is not.
    Foreign,
    /// It is, but the record that it names is damaged: the error says how.
    Damaged(StoreError),
}

/// Whether the record that the mark names lies there, byte for byte, and the geometry agrees; if not,
/// somebody else was here, or it is damaged.
pub fn mark_fits(files: &StoreFiles, list: &SegmentList, mark: &DurableMark) -> bool {
    if list.segment_bytes().is_some_and(|len| len != mark.segment_bytes) {
        return false;
    }
    if mark.last_size == 0 {
        return mark.position == list.min_offset();
    }
    let Ok(bytes) = read_record(files, list, mark.last_offset, mark.last_size as usize) else {
        return false;
    };
    is_the_record(mark, bytes.as_slice())
}

fn is_the_record(mark: &DurableMark, bytes: &[u8]) -> bool {
    bytes.len() == mark.last_size as usize && crc31(bytes) == mark.last_crc
}

/// As [`mark_fits`], and tells damage from another program's work.
///
/// # Errors
/// [`StoreError::Corrupt`] when the segment that the mark names is gone, while older ones, or none, are
/// there; errors of the system.
pub(super) fn examine(
    files: &StoreFiles,
    list: &Arc<SegmentList>,
    mark: &DurableMark,
) -> Result<MarkFit, StoreError> {
    if mark.last_size == 0 {
        let fits = mark.position == list.min_offset();
        return Ok(if fits { MarkFit::Fits } else { MarkFit::Foreign });
    }
    if mark.last_offset >= list.end_offset() {
        return Err(StoreError::corrupt(
            &files.commit_log(),
            list.end_offset(),
            format!(
                "the log was written up to offset {}, but its files end at {}: put the missing ones back; nothing \
                 was changed, and what is there can be read with mode \"r\"",
                mark.position,
                list.end_offset()
            ),
        ));
    }
    match read_record(files, list, mark.last_offset, mark.last_size as usize) {
        Ok(bytes) if is_the_record(mark, bytes.as_slice()) => {
            // A cut log may be written again up to a place before this record, which stays where it was. Only
            // after somebody else's writing, which a checkpoint tells, is that worth a walk.
            let later = CheckpointFile::new(files).load().physic_msg_timestamp > mark.store_timestamp_ms;
            let look = later && switch::on("recovery.look_below_mark");
            Ok(if look && overwritten(list, mark)? { MarkFit::Foreign } else { MarkFit::Fits })
        }
        Ok(_) => Ok(MarkFit::Foreign),
        Err(error @ StoreError::Corrupt { .. }) => {
            // Older segments go by retention; what lies between two that are there does not.
            let overwritten = mark.last_offset < list.min_offset() || overwritten(list, mark)?;
            Ok(if overwritten { MarkFit::Foreign } else { MarkFit::Damaged(error) })
        }
        Err(error) => Err(error),
    }
}

/// Whether one of the records that lead to the one that the mark names, from the start of the segment before
/// its own, is newer than the mark, or they lead past it: whoever wrote them cut the log before it. (The
/// names of segments that were cut away may come back with a loss of power.)
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

/// The last record below `limit` that holds together, in the segment that ends there or holds it.
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
