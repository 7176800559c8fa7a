//! Finds all damaged ranges of the log.
//!
//! Owns the walk from the first record to the last. After each damage it continues at the next intact record, so
//! that a damaged record never hides those after it. It only reads, one window at a time. Its memory grows with the
//! damage and the queues, not with the log.

use std::path::PathBuf;
use std::sync::Arc;

use mqstore_format::{RecordView, offset_file_name, restore_property_crc};

use super::queue_records::{LogQueues, LogSummary};
use crate::loss_report::LostRange;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::store_files::StoreFiles;
use mqstore_log::commit_log::{Damage, LogScanner, ScanChecks, ScanItem, Segment, SegmentList, check_record};

/// Bytes between two reports of progress.
const REPORT_BYTES: u64 = 1 << 20;

/// Maximum number of pieces that one repair fills. A file name with a far too large number must not fill the disk.
const MOST_PIECES: usize = 1 << 16;

/// Reason for giving up an intact record.
const NO_PLACE: &str = "its queue offset contradicts the records around it, and hides them";

/// A range between two intact records, within the place of one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DamagedPiece {
    /// The log offset of its first byte.
    pub(crate) from: u64,
    /// The log offset after its last byte.
    pub(crate) to: u64,
    /// The file, if it exists.
    pub(crate) path: Option<PathBuf>,
    /// Base offset of its segment.
    pub(crate) base: u64,
    /// Whether the piece reaches the end of the segment.
    pub(crate) to_end: bool,
    /// Reason why the range is damaged.
    pub(crate) reason: String,
    /// Store time of the record before it; if there is none, of the record after it.
    pub(crate) store_timestamp_ms: i64,
}

impl DamagedPiece {
    /// Creates an empty one.
    fn at(from: u64, store_timestamp_ms: i64) -> Self {
        let reason = String::new();
        Self { from, to: from, path: None, base: 0, to_end: false, reason, store_timestamp_ms }
    }

    /// Returns its entry of a report; `kept_as` is the name of the copy.
    pub(crate) fn lost_range(&self, files: &StoreFiles, kept_as: Option<&str>) -> LostRange {
        let file = self.path.clone();
        LostRange {
            path: file.unwrap_or_else(|| files.commit_log().join(offset_file_name(self.base))),
            offset: self.from - self.base,
            log_offset: self.from,
            bytes: self.to - self.from,
            reason: self.reason.clone(),
            kept_as: kept_as.map(|name| files.lost_and_found().join(name)),
        }
    }
}

/// The state of the log.
#[derive(Debug, Default)]
pub(crate) struct WalkedLog {
    /// Ranges to fill, in log order.
    pub(crate) pieces: Vec<DamagedPiece>,
    /// End of the log.
    pub(crate) end: u64,
    /// The torn tail after the end, if any.
    pub(crate) torn: Option<Damage>,
    /// Log offset and size of the last record.
    pub(crate) last: Option<(u64, u32)>,
    /// Log offset and size of the records that are intact except for the name of their checksum, in log order.
    pub(crate) unnamed: Vec<(u64, u32)>,
    /// Newest store time.
    pub(crate) store_timestamp_ms: i64,
    /// Store time of the last record.
    last_time: Option<i64>,
    /// Number of intact messages.
    pub(crate) messages: u64,
    /// Contents of the records that concern their queues.
    pub(crate) said: LogSummary,
}

impl WalkedLog {
    /// Whether a damaged range is between two log offsets.
    pub(crate) fn is_damaged(&self, from: u64, to: u64) -> bool {
        let behind = self.pieces.partition_point(|piece| piece.from < to);
        behind.checked_sub(1).and_then(|at| self.pieces.get(at)).is_some_and(|piece| piece.to > from)
    }

    /// Adds the intact record at log offset `offset`.
    fn add(&mut self, record: &RecordView<'_>, offset: u64, queues: &mut LogQueues<'_>) {
        let stored = record.store_timestamp;
        if self.last_time.is_none() {
            self.pieces.iter_mut().for_each(|piece| piece.store_timestamp_ms = stored);
        }
        self.last_time = Some(stored);
        self.last = Some((offset, record.size));
        self.store_timestamp_ms = self.store_timestamp_ms.max(stored);
        if !record.is_placeholder() {
            self.messages += 1;
            queues.add(record, offset);
        }
    }
}

/// Walks the log with the corrections in `queues`; `watch` gets the number of bytes done.
pub(crate) fn walk(
    list: &Arc<SegmentList>,
    segment_bytes: u64,
    mut queues: LogQueues<'_>,
    watch: &mut dyn FnMut(u64) -> Result<(), StoreError>,
) -> Result<WalkedLog, StoreError> {
    let start = list.min_offset();
    let mut scanner = LogScanner::new(Arc::clone(list), start, u64::MAX, ScanChecks { crc: true });
    let mut walked = WalkedLog { end: start, ..WalkedLog::default() };
    let mut reported = start;
    loop {
        let offset = scanner.position();
        if offset >= reported + REPORT_BYTES {
            watch(offset - start)?;
            reported = offset;
        }
        let (at, damage) = match scanner.next_item()? {
            ScanItem::Record(record) if queues.gives_up(offset) => {
                let piece = DamagedPiece {
                    to: offset + u64::from(record.size),
                    reason: NO_PLACE.to_owned(),
                    ..DamagedPiece::at(offset, walked.last_time.unwrap_or(record.store_timestamp))
                };
                cut_into_pieces(list, segment_bytes, &piece, &mut walked.pieces)?;
                continue;
            }
            ScanItem::Record(record) => {
                walked.add(&record, offset, &mut queues);
                continue;
            }
            ScanItem::Filler { .. } => continue,
            ScanItem::End { offset } => (offset, None),
            ScanItem::Damaged(damage) => {
                if let Some(bytes) = restored(list, &damage)? {
                    let record = RecordView::decode(&bytes);
                    let record = record
                        .map_err(|error| StoreError::format(&damage.path, damage.file_offset, &error))?;
                    walked.unnamed.push((offset, record.size));
                    walked.add(&record, offset, &mut queues);
                    scanner.seek(offset + u64::from(record.size));
                    continue;
                }
                (damage.offset, Some(damage))
            }
        };
        let from = at + u64::from(damage.is_some());
        let Some(next) = scanner.resync_watched(from, &mut |reached| watch(reached - start))? else {
            (walked.end, walked.torn) = (at, damage);
            break;
        };
        let reason =
            damage.map_or_else(|| "zeros with records after them".to_owned(), |damage| damage.reason);
        let piece = DamagedPiece { to: next, reason, ..DamagedPiece::at(at, walked.last_time.unwrap_or(0)) };
        cut_into_pieces(list, segment_bytes, &piece, &mut walked.pieces)?;
        scanner.seek(next);
    }
    walked.said = queues.finish();
    Ok(walked)
}

/// Splits `whole` at the segment boundaries.
fn cut_into_pieces(
    list: &SegmentList,
    segment_bytes: u64,
    whole: &DamagedPiece,
    pieces: &mut Vec<DamagedPiece>,
) -> Result<(), StoreError> {
    let phase = list.min_offset() % segment_bytes;
    let mut at = whole.from;
    while at < whole.to {
        let base = at - (at - phase) % segment_bytes;
        let end = base + segment_bytes;
        let file = list.next_from(base).filter(|segment| segment.base_offset() == base);
        if pieces.len() >= MOST_PIECES {
            return Err(StoreError::Unsupported {
                path: file.map_or_else(PathBuf::new, |segment| segment.path()),
                reason: format!(
                    "more than {MOST_PIECES} places of the log are damaged or missing up to offset {}; move away \
                     what is no part of it",
                    whole.to
                ),
            });
        }
        pieces.push(DamagedPiece {
            from: at,
            to: end.min(whole.to),
            path: file.map(|segment| segment.path()),
            base,
            to_end: end <= whole.to,
            ..whole.clone()
        });
        at = end;
    }
    Ok(())
}

/// Returns the record at `damage` with the right name of its checksum, if nothing else is damaged.
pub(crate) fn restored(list: &SegmentList, damage: &Damage) -> Result<Option<Vec<u8>>, StoreError> {
    let Some((segment, size)) = list.find(damage.offset).zip(damage.claimed_size) else { return Ok(None) };
    let mut bytes = read(segment, damage.file_offset, size)?;
    if !RecordView::decode(&bytes).is_ok_and(|record| record.has_damaged_crc_name()) {
        return Ok(None);
    }
    let restored = restore_property_crc(&mut bytes).is_ok();
    let intact = check_record(&bytes, damage.offset, ScanChecks { crc: true }).is_ok();
    Ok((restored && intact).then_some(bytes))
}

pub(crate) fn read(segment: &Segment, at: u64, size: u32) -> Result<Vec<u8>, StoreError> {
    let path = segment.path();
    let file = segment.file().at(&path, "opening a log segment")?;
    let mut bytes = vec![0; size as usize];
    file.read_exact_at(&mut bytes, at).at(&path, "reading a record")?;
    Ok(bytes)
}
