//! The bytes of the log that were written in each hour.
//!
//! Owns nothing on disk. Store times grow with the log. So a binary search finds the begin of each hour with about 40
//! reads of single records, whatever the size of the log. Damage is skipped. If the clock was set back, only the
//! hours around that time are wrong.

use std::collections::BTreeMap;
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_log::commit_log::{LogScanner, ScanChecks, ScanItem, SegmentList};

const HOUR_MS: i64 = 3_600_000;

/// Maximum number of hours; the newest ones.
const MOST_HOURS: i64 = 48;

/// The bytes written in one hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HourRate {
    /// Begin of the hour, in epoch milliseconds.
    pub start_ms: i64,
    /// Bytes of the log that were stored in this hour.
    pub bytes: u64,
}

/// Returns the hours from store time `first_ms` to `last_ms` in the log up to log offset `end`; only the newest ones,
/// oldest first.
pub(crate) fn hours(
    list: &Arc<SegmentList>,
    end: u64,
    (first_ms, last_ms): (i64, i64),
) -> Result<Vec<HourRate>, StoreError> {
    let scanner = LogScanner::new(Arc::clone(list), list.min_offset(), end, ScanChecks { crc: true });
    let mut times = SegmentTimeIndex { scanner, end, known: BTreeMap::new() };
    let newest = last_ms.div_euclid(HOUR_MS);
    let oldest = first_ms.div_euclid(HOUR_MS).max(newest.saturating_sub(MOST_HOURS - 1));
    let mut hours = Vec::new();
    let mut begin = times.first_since(list.min_offset(), oldest.saturating_mul(HOUR_MS))?;
    for hour in oldest..=newest {
        let start_ms = hour.saturating_mul(HOUR_MS);
        let next =
            if hour == newest { end } else { times.first_since(begin, start_ms.saturating_add(HOUR_MS))? };
        hours.push(HourRate { start_ms, bytes: next.saturating_sub(begin) });
        begin = next;
    }
    Ok(hours)
}

pub(crate) struct SegmentTimeIndex {
    scanner: LogScanner,
    end: u64,
    /// By log offset, the first record at or after it: its log offset and store time. It is also the first one for all
    /// log offsets between, so that each hole of the log is walked once.
    known: BTreeMap<u64, Option<(u64, i64)>>,
}

impl SegmentTimeIndex {
    fn at_or_behind(&mut self, place: u64) -> Result<Option<(u64, i64)>, StoreError> {
        if let Some((_, known)) = self.known.range(..=place).next_back()
            && known.is_none_or(|(offset, _)| place <= offset)
        {
            return Ok(*known);
        }
        // If no record begins before the next known offset, the record known there is the first one here too.
        let behind = self.known.range(place..).next().map(|(at, known)| (*at, *known));
        let (before, mut found) = behind.unwrap_or((u64::MAX, None));
        if let Some(offset) = self.scanner.resync_before(place, before)? {
            found = None;
            self.scanner.seek(offset);
            if let ScanItem::Record(record) = self.scanner.next_item()? {
                found = Some((offset, record.store_timestamp));
            }
        }
        self.known.insert(place, found);
        Ok(found)
    }

    /// Returns the log offset of the first record at or after `from` stored at `time_ms` or later; the end if there is
    /// none.
    fn first_since(&mut self, from: u64, time_ms: i64) -> Result<u64, StoreError> {
        let (mut low, mut high, mut found) = (from, self.end, self.end);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.at_or_behind(middle)? {
                Some((offset, time)) if offset < high && time < time_ms => low = offset + 1,
                Some((offset, time)) if time >= time_ms => {
                    found = found.min(offset);
                    high = middle;
                }
                _ => high = middle,
            }
        }
        Ok(found)
    }
}
