//! The records of a range of the log, topic by topic in the order of their files.

use std::collections::HashMap;
use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type, TimestampMicrosecondType};
use arrow_array::{Array, RecordBatch};
use serde::{Deserialize, Serialize};

use crate::file::{FileError, FileFact, FileSizes, write_rows};

const QUEUE_ID: usize = 1;
const QUEUE_OFFSET: usize = 2;
const LOG_OFFSET: usize = 3;
const SIZE: usize = 4;
const STORE_TIME: usize = 5;

/// The place of a record in the order of its file, and in the batches.
type Place = (i32, i64, i64, (usize, usize));

/// The rows of one queue in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct QueueRows {
    /// The queue.
    pub queue_id: i32,
    /// Smallest queue offset.
    pub first: i64,
    /// Largest queue offset.
    pub last: i64,
    /// Number of rows.
    pub rows: u64,
}

/// What the manifest says of the rows of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowsSummary {
    /// Number of rows.
    pub rows: u64,
    /// Sum of the lengths of the records.
    pub record_bytes: u64,
    /// Sum of the CRC-32 of each record.
    pub crc_sum: u64,
    /// Smallest store time in epoch milliseconds.
    pub first_ms: Option<i64>,
    /// Largest store time in epoch milliseconds.
    pub last_ms: Option<i64>,
    /// The queues, in their order.
    pub queues: Vec<QueueRows>,
}

impl RowsSummary {
    /// Adds the rows of a batch, except their checksums and lengths.
    ///
    /// # Errors
    /// The columns are not those of an archive.
    pub fn add(&mut self, batch: &RecordBatch) -> Result<(), FileError> {
        let numbers = Numbers::of(batch)?;
        for row in 0..batch.num_rows() {
            self.add_row(&numbers, row);
        }
        Ok(())
    }

    fn add_row(&mut self, numbers: &Numbers<'_>, row: usize) {
        self.rows += 1;
        if let Some(micros) = numbers.store_time(row) {
            let time_ms = micros.div_euclid(1000);
            self.first_ms = Some(self.first_ms.map_or(time_ms, |known| known.min(time_ms)));
            self.last_ms = Some(self.last_ms.map_or(time_ms, |known| known.max(time_ms)));
        }
        let (queue_id, offset) = (numbers.queue_ids.value(row), numbers.queue_offsets.value(row));
        let place = self.queues.binary_search_by_key(&queue_id, |queue| queue.queue_id);
        match place.map(|at| self.queues.get_mut(at)) {
            Ok(Some(queue)) => {
                (queue.first, queue.last) = (queue.first.min(offset), queue.last.max(offset));
                queue.rows += 1;
            }
            Ok(None) => {}
            Err(at) => self.queues.insert(at, QueueRows { queue_id, first: offset, last: offset, rows: 1 }),
        }
    }
}

/// The columns of numbers of a batch.
pub(super) struct Numbers<'a> {
    queue_ids: &'a arrow_array::Int32Array,
    queue_offsets: &'a arrow_array::Int64Array,
    log_offsets: &'a arrow_array::Int64Array,
    sizes: &'a arrow_array::Int32Array,
    store_times: &'a arrow_array::TimestampMicrosecondArray,
}

impl<'a> Numbers<'a> {
    /// The columns that it needs, and those before them.
    pub(super) const COLUMNS: Range<usize> = 0..STORE_TIME + 1;

    pub(super) fn of(batch: &'a RecordBatch) -> Result<Self, FileError> {
        let column = |number: usize| batch.columns().get(number);
        let found = (|| {
            Some(Self {
                queue_ids: column(QUEUE_ID)?.as_primitive_opt::<Int32Type>()?,
                queue_offsets: column(QUEUE_OFFSET)?.as_primitive_opt::<Int64Type>()?,
                log_offsets: column(LOG_OFFSET)?.as_primitive_opt::<Int64Type>()?,
                sizes: column(SIZE)?.as_primitive_opt::<Int32Type>()?,
                store_times: column(STORE_TIME)?.as_primitive_opt::<TimestampMicrosecondType>()?,
            })
        })();
        found.ok_or_else(|| FileError::damaged("its columns are not those of an archive"))
    }

    /// Returns the queue of a row and its queue offset.
    pub(super) fn queue(&self, row: usize) -> (i32, i64) {
        (self.queue_ids.value(row), self.queue_offsets.value(row))
    }

    /// Returns the log offset of a row, its store time in epoch milliseconds, and the length of its record.
    pub(super) fn place(&self, row: usize) -> (u64, i64, u32) {
        let time_ms = self.store_time(row).map_or(0, |micros| micros.div_euclid(1000));
        (self.log_offsets.value(row).cast_unsigned(), time_ms, self.sizes.value(row).cast_unsigned())
    }

    fn store_time(&self, row: usize) -> Option<i64> {
        self.store_times.is_valid(row).then(|| self.store_times.value(row))
    }
}

/// See the header of this file.
#[derive(Debug, Default)]
pub struct LogRange {
    batches: Vec<RecordBatch>,
    topics: Vec<(String, Vec<Place>)>,
    /// Their numbers by name.
    numbers: HashMap<String, usize>,
    gaps: Vec<(u64, u64)>,
    start: u64,
    end: u64,
}

impl LogRange {
    /// Begins at a log offset.
    pub fn new(start: u64) -> Self {
        Self { start, end: start, ..Self::default() }
    }

    /// Returns the range of log offsets; after [`Self::finish`].
    pub fn log_range(&self) -> Range<u64> {
        self.start..self.end
    }

    /// Adds the next records of the log, if `is_wanted` for their topic.
    ///
    /// # Errors
    /// Two records overlap; the reason names the log offset.
    pub fn add(&mut self, batch: RecordBatch, is_wanted: impl Fn(&str) -> bool) -> Result<(), FileError> {
        let numbers = Numbers::of(&batch)?;
        let names = batch.columns().first().and_then(|array| array.as_string_opt::<i32>());
        let names = names.ok_or_else(|| FileError::damaged("a batch has no topics"))?;
        let number = self.batches.len();
        // Neighbours mostly have one topic.
        let mut known: Option<(&str, usize)> = None;
        for row in 0..batch.num_rows() {
            let (start, size) = (numbers.log_offsets.value(row), numbers.sizes.value(row));
            let (start, size) = (start.cast_unsigned(), u64::from(size.cast_unsigned()));
            if start < self.end {
                return Err(FileError::damaged(format!(
                    "two records of the log overlap at log offset {start}"
                )));
            }
            let name = names.value(row);
            if !is_wanted(name) {
                continue;
            }
            if start > self.end {
                self.gaps.push((self.end, start));
            }
            self.end = start + size;
            let topic = match known {
                Some((topic, at)) if topic == name => at,
                _ => topic_number(&mut self.topics, &mut self.numbers, name),
            };
            known = Some((name, topic));
            if let Some((_, places)) = self.topics.get_mut(topic) {
                let order = (numbers.queue_ids.value(row), numbers.queue_offsets.value(row));
                places.push((order.0, order.1, start.cast_signed(), (number, row)));
            }
        }
        self.batches.push(batch);
        Ok(())
    }

    /// Whether a batch has a record whose topic is wanted.
    pub fn has_wanted(batch: &RecordBatch, is_wanted: impl Fn(&str) -> bool) -> bool {
        let names = batch.columns().first().and_then(|array| array.as_string_opt::<i32>());
        names.is_some_and(|names| (0..names.len()).any(|row| is_wanted(names.value(row))))
    }

    /// Ends the range and sorts its records.
    pub fn finish(&mut self, end: u64) {
        if end > self.end {
            self.gaps.push((self.end, end));
            self.end = end;
        }
        for (_, places) in &mut self.topics {
            places.sort_unstable();
        }
    }

    /// Returns the topics.
    pub fn topics(&self) -> impl Iterator<Item = &str> {
        self.topics.iter().map(|(name, _)| name.as_str())
    }

    /// Returns the parts of the range without wanted records: first log offset and end.
    pub fn gaps(&self) -> &[(u64, u64)] {
        &self.gaps
    }

    /// Returns the log offset and the length of the last wanted record.
    pub fn last(&self) -> Option<(u64, u64)> {
        let of = |places: &Vec<Place>| places.iter().map(|(_, _, offset, place)| (*offset, *place)).max();
        let (offset, (batch, row)) = self.topics.iter().filter_map(|(_, places)| of(places)).max()?;
        let numbers = Numbers::of(self.batches.get(batch)?).ok()?;
        Some((offset.cast_unsigned(), u64::from(numbers.sizes.value(row).cast_unsigned())))
    }

    /// Returns what the manifest says of the file of a topic.
    ///
    /// # Errors
    /// The columns are not those of an archive, which is a bug.
    pub fn summary(&self, topic: &str) -> Result<RowsSummary, FileError> {
        let numbers: Vec<Numbers<'_>> = self.batches.iter().map(Numbers::of).collect::<Result<_, _>>()?;
        let crcs: Option<Vec<_>> = self
            .batches
            .iter()
            .map(|batch| batch.columns().last().and_then(|crcs| crcs.as_primitive_opt::<Int64Type>()))
            .collect();
        let crcs = crcs.ok_or_else(|| FileError::damaged("a batch has no checksums"))?;
        let mut found = RowsSummary::default();
        for (_, _, _, (batch, row)) in self.places(topic) {
            if let (Some(numbers), Some(crcs)) = (numbers.get(*batch), crcs.get(*batch)) {
                found.add_row(numbers, *row);
                found.record_bytes += u64::from(numbers.sizes.value(*row).cast_unsigned());
                found.crc_sum = found.crc_sum.wrapping_add(crcs.value(*row).cast_unsigned());
            }
        }
        Ok(found)
    }

    /// Returns the bytes of the file of a topic.
    ///
    /// # Errors
    /// As for [`write_rows`].
    pub fn file(
        &self,
        topic: &str,
        record_bytes: u64,
        sizes: FileSizes,
        facts: &[FileFact],
    ) -> Result<Vec<u8>, FileError> {
        let order: Vec<(usize, usize)> = self.places(topic).map(|(_, _, _, place)| *place).collect();
        write_rows(&self.batches, &order, record_bytes, sizes, facts)
    }

    /// Returns the places of the records of a topic, in the order of its file.
    fn places(&self, topic: &str) -> impl Iterator<Item = &Place> {
        let found = self.numbers.get(topic).and_then(|number| self.topics.get(*number));
        found.into_iter().flat_map(|(_, places)| places)
    }
}

fn topic_number(
    topics: &mut Vec<(String, Vec<Place>)>,
    numbers: &mut HashMap<String, usize>,
    name: &str,
) -> usize {
    if let Some(number) = numbers.get(name) {
        return *number;
    }
    topics.push((name.to_owned(), Vec::new()));
    numbers.insert(name.to_owned(), topics.len() - 1);
    topics.len() - 1
}
