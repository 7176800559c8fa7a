//! The messages of an archive as reads, look-ups and scans return them, up to a log offset or a queue offset.
//!
//! `bounds` finds offsets, `queue_reads`, `lookups` and `scans` return messages, and `limits` finds what the limits of a
//! topic demand. Nothing is left out silently: a damaged file, and segments that the archive lacks, are errors, or
//! warnings if the caller skips damage. The floors of a store hide its deleted topics in the archive too.

mod bounds;
mod limits;
mod lookups;
mod queue_reads;
mod scans;
mod source;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::RecordBatch;
use mqstore_base::error::StoreError;
use mqstore_base::message::{RecordBytes, StoredRecord};
use mqstore_base::options::DamagePolicy;
use mqstore_base::topic_floors::FloorTable;
use mqstore_engine::{
    OlderBatch, OlderFloor, OlderLimits, OlderLookup, OlderMessages, OlderRead, OlderReads, OlderRows,
    RecordTest, ScanRequest, ScanRow,
};
use mqstore_format::properties::INNER_NUM;
use mqstore_format::{CrcCheck, RecordView};

use crate::file::FileError;
use crate::manifest::ArchivedFile;
use crate::reader::ArchiveReader;
use crate::records::{ArchiveRows, for_each_record};

pub use queue_reads::QueueRange;
pub use scans::{ArchiveRecords, LogRecord};
pub use source::{ArchiveSource, UnknownArchive};

/// The records before the log of a store, or all records of an archive.
#[derive(Clone, Debug)]
pub struct History {
    reader: Arc<ArchiveReader>,
}

impl History {
    /// Makes a history of the records that `reader` reads.
    pub fn new(reader: Arc<ArchiveReader>) -> Self {
        Self { reader }
    }

    /// Returns the reader.
    pub fn reader(&self) -> &Arc<ArchiveReader> {
        &self.reader
    }
}

impl OlderMessages for History {
    fn first_offset(
        &self,
        floors: &FloorTable,
        topic: &str,
        queue_id: i32,
    ) -> Result<Option<i64>, StoreError> {
        self.first_from(floors, topic, queue_id, 0)
    }

    fn offset_for_time(
        &self,
        floors: &FloorTable,
        topic: &str,
        queue_id: i32,
        time_ms: i64,
    ) -> Result<Option<i64>, StoreError> {
        self.first_at_time(floors, topic, queue_id, time_ms)
    }

    fn last_offset(
        &self,
        floors: &FloorTable,
        topic: &str,
        queue_id: i32,
        time_ms: i64,
        end: i64,
    ) -> Result<Option<i64>, StoreError> {
        self.last_before(floors, topic, queue_id, time_ms, end)
    }

    fn count(&self, floors: &FloorTable, topic: &str, queue_id: i32, end: i64) -> Result<u64, StoreError> {
        self.records_before(floors, topic, queue_id, end)
    }

    fn read(
        &self,
        floors: &Arc<FloorTable>,
        wanted: &OlderRead<'_>,
    ) -> Result<Box<dyn OlderReads>, StoreError> {
        Ok(Box::new(self.queue(floors, wanted)?))
    }

    fn lookup(
        &self,
        floors: &Arc<FloorTable>,
        wanted: &OlderLookup<'_>,
    ) -> Result<Box<dyn OlderReads>, StoreError> {
        Ok(Box::new(self.look_up(floors, wanted)?))
    }

    fn by_id(
        &self,
        floors: &Arc<FloorTable>,
        id: &str,
        end: u64,
    ) -> Result<Option<StoredRecord>, StoreError> {
        self.with_id(floors, id, end)
    }

    fn at(&self, floors: &Arc<FloorTable>, log_offset: u64) -> Result<Option<StoredRecord>, StoreError> {
        self.record_at(floors, log_offset)
    }

    fn scan(
        &self,
        floors: &Arc<FloorTable>,
        request: &ScanRequest,
        log_range: Range<u64>,
    ) -> Result<Box<dyn OlderRows>, StoreError> {
        Ok(Box::new(self.rows(floors, request, log_range)?))
    }

    fn due_floor(
        &self,
        floors: &FloorTable,
        topic: &str,
        log_start: u64,
        lows: &BTreeMap<i32, i64>,
        limits: OlderLimits,
    ) -> Result<Option<OlderFloor>, StoreError> {
        self.floor_of_limits(floors, topic, log_start, lows, limits)
    }
}

/// What a read does at damage, and the warnings so far.
#[derive(Clone, Debug, Default)]
pub struct Damage {
    policy: DamagePolicy,
    warnings: Vec<String>,
}

impl Damage {
    /// Without warnings.
    pub fn new(policy: DamagePolicy) -> Self {
        Self { policy, warnings: Vec::new() }
    }

    /// Returns the warnings since the last call.
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// Passes over messages that are missing, or returns the error.
    fn pass(&mut self, reader: &ArchiveReader, reason: &str) -> Result<(), StoreError> {
        let path = reader.shown();
        if self.policy == DamagePolicy::Skip {
            self.warnings.push(format!("{}: {reason}", path.display()));
            return Ok(());
        }
        let reason = format!("{reason}, or skip them with on_damage=\"skip\"");
        Err(StoreError::Corrupt { path, offset: 0, reason })
    }

    /// Returns a part of a file; `None` if the rest of the file is passed over.
    fn unless_damaged<T>(&mut self, found: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
        match found {
            Err(error @ StoreError::Corrupt { .. }) if self.policy == DamagePolicy::Skip => {
                self.warnings.push(format!("the rest of a file is skipped: {error}"));
                Ok(None)
            }
            other => other.map(Some),
        }
    }
}

/// Calls `visit` with the record of a row, decoded and with right checksums.
fn checked_record<T>(
    rows: &ArchiveRows<'_>,
    row: usize,
    bytes: &[u8],
    visit: impl FnOnce(&RecordView<'_>, u64) -> T,
) -> Result<T, FileError> {
    let record = RecordView::decode(bytes).map_err(FileError::damaged)?;
    let offset = rows.log_offset(row)?;
    let check = record.check_crc(CrcCheck::ALL);
    check.map_err(|error| FileError::damaged(format!("the record of log offset {offset}: {error}")))?;
    Ok(visit(&record, offset))
}

fn stored(row: &ScanRow<'_>) -> StoredRecord {
    let bytes = row.record.bytes.to_vec();
    let all = 0..bytes.len();
    StoredRecord::decoded(RecordBytes::Read(Arc::new(bytes), all), row.offset, row.queue_offset)
}

/// Returns the messages of rows that pass a test.
fn messages(
    reader: &ArchiveReader,
    file: &ArchivedFile,
    batch: &RecordBatch,
    test: &RecordTest,
) -> Result<OlderBatch, StoreError> {
    let mut found = OlderBatch::default();
    let decoded = for_each_record(batch, |rows, row, bytes| {
        checked_record(rows, row, bytes, |record, offset| {
            test.visit(record, offset, |row| found.records.push(stored(row)));
            found.next = end_of(record);
        })
    });
    reader.decoded(file, decoded)?;
    Ok(found)
}

/// Returns the queue offset after a record; a batch of messages takes several.
fn end_of(record: &RecordView<'_>) -> i64 {
    let count = || record.properties.get(INNER_NUM)?.parse::<u32>().ok();
    let messages = if record.sys_flag.inner_batch() { count().unwrap_or(1).max(1) } else { 1 };
    record.queue_offset.saturating_add(i64::from(messages))
}

/// Whether a file can have messages with a store time in a range in epoch milliseconds.
fn has_times(file: &ArchivedFile, (start, end): (Option<i64>, Option<i64>)) -> bool {
    start.is_none_or(|start| file.last_ms.is_none_or(|last| last >= start))
        && end.is_none_or(|end| file.first_ms.is_none_or(|first| first < end))
}

/// Whether a file has records between two log offsets.
fn overlaps(file: &ArchivedFile, log_range: &Range<u64>) -> bool {
    file.start < log_range.end && file.end > log_range.start
}
