//! A whole file of an archive: its records, their checksums, and the segments that they restore.

use std::collections::HashMap;
use std::ops::Range;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use mqstore_base::error::StoreError;
use mqstore_format::{SysFlag, crc32};
use mqstore_inspect::RestoredLog;

use super::encode::{ArchiveRows, for_each_record};
use super::log_range::{Numbers, RowsSummary};
use crate::file::{ByteSource, FileError, Footer, NEEDED, columns, other_bytes, schema};

/// Maximum bytes of one write of neighbouring records.
const WRITE_BYTES: usize = 1 << 20;

/// The column `sys_flag`.
const SYS_FLAG: usize = 8;

/// See the header of this file.
pub struct ArchiveFile {
    source: Box<dyn ByteSource>,
    footer: Footer,
}

impl ArchiveFile {
    /// Opens a file. `record_bytes` is as for [`Footer::read`].
    ///
    /// # Errors
    /// The file is damaged, or cannot be read.
    pub fn open(source: Box<dyn ByteSource>, record_bytes: Option<u64>) -> Result<Self, FileError> {
        let footer = Footer::read(source.as_ref(), record_bytes)?;
        Ok(Self { source, footer })
    }

    /// Returns the footer.
    pub fn footer(&self) -> &Footer {
        &self.footer
    }

    /// Decodes all columns and encodes all records. Returns what a manifest says of them. Other bytes of the log have no
    /// checksums.
    ///
    /// # Errors
    /// The file is damaged, or cannot be read.
    pub fn summary(&self) -> Result<RowsSummary, FileError> {
        let mut found = RowsSummary::default();
        if !self.footer.has_records() {
            other_bytes(self.source.as_ref(), &self.footer, |_, bytes| {
                found.rows += 1;
                found.record_bytes += bytes.len() as u64;
                Ok(())
            })?;
            return Ok(found);
        }
        self.each_batch(0..schema().fields().len(), |batch| {
            found.add(batch)?;
            for_each_record(batch, |_, _, bytes| {
                found.record_bytes += bytes.len() as u64;
                found.crc_sum = found.crc_sum.wrapping_add(u64::from(crc32(bytes)));
                Ok(())
            })
        })?;
        Ok(found)
    }

    /// Returns the topic of the records; `None` if the file has other bytes of the log.
    ///
    /// # Errors
    /// The file is damaged, or cannot be read.
    pub fn topic(&self) -> Result<Option<String>, FileError> {
        if !self.footer.has_records() || self.footer.groups().is_empty() {
            return Ok(None);
        }
        let batch = columns(self.source.as_ref(), &self.footer, 0, &[0])?;
        let name = batch.columns().first().and_then(|names| names.as_string_opt::<i32>());
        Ok(name.filter(|names| !arrow_array::Array::is_empty(*names)).map(|names| names.value(0).to_owned()))
    }

    /// Returns the log offset, the store time in epoch milliseconds and the length of each record, in the order of the
    /// log.
    ///
    /// # Errors
    /// The file is damaged, or cannot be read.
    pub fn places(&self) -> Result<Vec<(u64, i64, u32)>, FileError> {
        let mut found = Vec::new();
        self.each_batch(Numbers::COLUMNS, |batch| {
            let numbers = Numbers::of(batch)?;
            found.extend((0..batch.num_rows()).map(|row| numbers.place(row)));
            Ok(())
        })?;
        found.sort_unstable();
        Ok(found)
    }

    /// Returns the record at a log offset.
    ///
    /// # Errors
    /// The file has no such record, is damaged, or cannot be read.
    pub(crate) fn record_at(&self, log_offset: u64) -> Result<Vec<u8>, FileError> {
        let mut found = None;
        self.each_batch(NEEDED, |batch| {
            let rows = ArchiveRows::of(batch)?;
            for row in 0..batch.num_rows() {
                if rows.log_offset(row)? == log_offset {
                    rows.encode(row, found.insert(Vec::new()))?;
                }
            }
            Ok(())
        })?;
        found.ok_or_else(|| FileError::damaged(format!("it has no record at log offset {log_offset}")))
    }

    /// Calls `visit` with these columns of each row group.
    fn each_batch(
        &self,
        wanted: Range<usize>,
        mut visit: impl FnMut(&RecordBatch) -> Result<(), FileError>,
    ) -> Result<(), FileError> {
        let wanted: Vec<usize> = wanted.collect();
        for (group, facts) in self.footer.groups().iter().enumerate() {
            if facts.rows > 0 {
                visit(&columns(self.source.as_ref(), &self.footer, group, &wanted)?)?;
            }
        }
        Ok(())
    }

    /// Writes what the file has of the segments of a log. Returns the number of records.
    ///
    /// # Errors
    /// The file is damaged, or cannot be read; the log cannot be written.
    pub fn restore(&self, log: &mut RestoredLog, gaps: &mut QueueGaps) -> Result<u64, FileError> {
        if !self.footer.has_records() {
            other_bytes(self.source.as_ref(), &self.footer, |offset, bytes| {
                if log.contains(offset) {
                    gaps.others.push(offset);
                    log.write(offset, &bytes)?;
                }
                Ok(())
            })?;
            return Ok(0);
        }
        let mut records = 0;
        let topic = self.topic()?.unwrap_or_default();
        self.each_batch(NEEDED, |batch| {
            let kept = write_rows(log, batch)?;
            gaps.add(&topic, batch, &kept)?;
            records += kept.len() as u64;
            Ok(())
        })?;
        Ok(records)
    }
}

/// Writes the records of rows in segments that the log has. Returns these rows.
fn write_rows(log: &mut RestoredLog, batch: &RecordBatch) -> Result<Vec<usize>, FileError> {
    let rows = ArchiveRows::of(batch)?;
    let (mut places, mut kept) = (Vec::new(), Vec::new());
    for row in 0..batch.num_rows() {
        let offset = rows.log_offset(row)?;
        if log.contains(offset) {
            places.push((offset, row));
            kept.push(row);
        }
    }
    places.sort_unstable();
    let (mut buffer, mut start) = (Vec::new(), None);
    let write = |log: &mut RestoredLog, start: u64, buffer: &mut Vec<u8>| -> Result<(), StoreError> {
        log.write(start, buffer)?;
        buffer.clear();
        Ok(())
    };
    for (offset, row) in places {
        let begin = *start.get_or_insert(offset);
        if begin + buffer.len() as u64 != offset || buffer.len() >= WRITE_BYTES {
            write(log, begin, &mut buffer)?;
            start = Some(offset);
        }
        rows.encode(row, &mut buffer)?;
    }
    if let Some(start) = start {
        write(log, start, &mut buffer)?;
    }
    Ok(kept)
}

/// Offsets of a queue between two records that no record has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueGap {
    /// The topic.
    pub topic: String,
    /// The queue.
    pub queue_id: i32,
    /// The first of these queue offsets.
    pub start: i64,
    /// The queue offset after the last one.
    pub end: i64,
}

/// The last queue offset of a queue, and the log offset of its record.
type LastOfQueue = (i64, u64);

/// The offsets of queues between records that no record has.
///
/// A topic that was deleted and made again continues at a later offset. The log of the archive is complete there, so
/// these offsets are no loss.
#[derive(Debug, Default)]
pub struct QueueGaps {
    /// By topic.
    last: HashMap<String, HashMap<i32, LastOfQueue>>,
    /// Log offsets of bytes that are no records, which can be damaged ones.
    others: Vec<u64>,
    found: Vec<(QueueGap, u64, u64)>,
}

impl QueueGaps {
    /// Adds records of a topic. Files come in the order of the log.
    fn add(&mut self, topic: &str, batch: &RecordBatch, rows: &[usize]) -> Result<(), FileError> {
        let numbers = Numbers::of(batch)?;
        let flags = batch.columns().get(SYS_FLAG).and_then(|flags| flags.as_primitive_opt::<Int32Type>());
        let is_batch = |row: &usize| flags.is_some_and(|flags| SysFlag(flags.value(*row)).inner_batch());
        if rows.iter().any(is_batch) {
            // The offsets of a batch follow from its properties; a rebuild needs more than the log for them too.
            self.last.remove(topic);
            return Ok(());
        }
        let queues = self.last.entry(topic.to_owned()).or_default();
        for row in rows {
            let (queue_id, offset) = numbers.queue(*row);
            let (log_offset, ..) = numbers.place(*row);
            if let Some((last, place)) = queues.insert(queue_id, (offset, log_offset))
                && last + 1 < offset
            {
                let gap = QueueGap { topic: topic.to_owned(), queue_id, start: last + 1, end: offset };
                self.found.push((gap, place, log_offset));
            }
        }
        Ok(())
    }

    /// Returns the gaps, except those in which bytes are that are no records.
    pub fn finish(&self) -> Vec<QueueGap> {
        let has_others = |start: u64, end: u64| self.others.iter().any(|at| start < *at && *at < end);
        let kept = self.found.iter().filter(|(_, start, end)| !has_others(*start, *end));
        kept.map(|(gap, ..)| gap.clone()).collect()
    }
}
