//! Checking the records of one window of the log.
//!
//! The walk over the headers is serial: a record's size says where the next one starts. What costs is
//! the checksums of the bodies, and these need nothing but the record:
//!
//! ```text
//! walk (reads windows of 1 MiB) ──► pool: check ──► walk (writes good records again, in log order)
//! ```
//!
//! All reading and writing is the walk's own, so that the order of operations on the disk never depends on threads.

use crate::commit_log::{ScanChecks, check_record};

/// A window of the log and the records that lie in it, one after the other.
#[derive(Debug, Default)]
pub(super) struct Stretch {
    /// The log offset of the first byte.
    pub(super) start: u64,
    /// The bytes; they may go on behind the last record.
    pub(super) bytes: Vec<u8>,
    /// Offset and size of each record.
    pub(super) records: Vec<(u64, u32)>,
    /// The header of a filler behind the last record.
    pub(super) filler: Option<u64>,
}

/// What the check of a stretch found.
#[derive(Debug, Default)]
pub(super) struct CheckResult {
    pub(super) stretch: Stretch,
    /// The last record that is good.
    pub(super) last: Option<(u64, u32)>,
    /// The newest store time of the good ones.
    pub(super) store_timestamp_ms: i64,
    /// The first record that is not good: offset, claimed size, reason.
    pub(super) bad: Option<(u64, u32, String)>,
}

impl Stretch {
    pub(super) fn check(self) -> CheckResult {
        let mut checked = CheckResult { stretch: self, ..CheckResult::default() };
        let CheckResult { stretch, last, store_timestamp_ms, bad } = &mut checked;
        for &(offset, size) in &stretch.records {
            let at = (offset - stretch.start) as usize;
            let bytes = stretch.bytes.get(at..at + size as usize).unwrap_or_default();
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
    /// The good bytes and where they start.
    pub(super) fn good(&self) -> Option<(u64, &[u8])> {
        let records = self.stretch.records.first().map(|(offset, _)| *offset);
        let start = records.or(self.stretch.filler)?;
        let after_records = self.last.map_or(start, |(offset, size)| offset + u64::from(size));
        let end = match self.stretch.filler.filter(|_| self.bad.is_none()) {
            Some(filler) => filler + mqstore_format::BLANK_HEADER_BYTES as u64,
            None => after_records,
        };
        let range = (start - self.stretch.start) as usize..(end - self.stretch.start) as usize;
        Some((start, self.stretch.bytes.get(range)?))
    }
}
