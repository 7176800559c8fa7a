//! The check of the records in one window of the log.
//!
//! The walk over the headers is serial, because the size of a record tells where the next one starts. The checksums of
//! the bodies cost most of the time, and each needs only its record, so threads compute them:
//!
//! ```text
//! walk (reads windows of 1 MiB) ──► pool: check ──► walk (rewrites good records, in log order)
//! ```
//!
//! Only the walk reads and writes, so the order of disk operations never depends on threads.

use crate::commit_log::{ScanChecks, check_record};

/// A window of the log with the consecutive records in it.
#[derive(Debug, Default)]
pub(super) struct CheckedRange {
    /// Log offset of the first byte.
    pub(super) start: u64,
    /// The bytes of the window; they may continue after the last record.
    pub(super) bytes: Vec<u8>,
    /// Offset and size of each record.
    pub(super) records: Vec<(u64, u32)>,
    /// Log offset of a filler after the last record.
    pub(super) filler: Option<u64>,
}

/// The result of checking a window.
#[derive(Debug, Default)]
pub(super) struct CheckResult {
    pub(super) range: CheckedRange,
    /// Last good record.
    pub(super) last: Option<(u64, u32)>,
    /// Newest store time of the good records.
    pub(super) store_timestamp_ms: i64,
    /// First bad record: offset, claimed size, reason.
    pub(super) bad: Option<(u64, u32, String)>,
}

impl CheckedRange {
    pub(super) fn check(self) -> CheckResult {
        let mut checked = CheckResult { range: self, ..CheckResult::default() };
        let CheckResult { range, last, store_timestamp_ms, bad } = &mut checked;
        for &(offset, size) in &range.records {
            let at = (offset - range.start) as usize;
            let bytes = range.bytes.get(at..at + size as usize).unwrap_or_default();
            match check_record(bytes, offset, ScanChecks { crc: true }) {
                Ok(view) => {
                    *last = Some((offset, size));
                    *store_timestamp_ms = view.store_timestamp.max(*store_timestamp_ms);
                }
                Err(reason) => {
                    *bad = Some((offset, size, reason));
                    break;
                }
            }
        }
        checked
    }
}

impl CheckResult {
    /// Returns the good bytes and the offset of the first one.
    pub(super) fn good(&self) -> Option<(u64, &[u8])> {
        let records = self.range.records.first().map(|(offset, _)| *offset);
        let start = records.or(self.range.filler)?;
        let after_records = self.last.map_or(start, |(offset, size)| offset + u64::from(size));
        let end = match self.range.filler.filter(|_| self.bad.is_none()) {
            Some(filler) => filler + mqstore_format::BLANK_HEADER_BYTES as u64,
            None => after_records,
        };
        let range = (start - self.range.start) as usize..(end - self.range.start) as usize;
        Some((start, self.range.bytes.get(range)?))
    }
}
