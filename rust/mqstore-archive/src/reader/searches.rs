//! Searches for rows of a queue in a file, by queue offset, log offset and time.

use mqstore_base::error::StoreError;
use mqstore_format::SysFlag;

use super::archive_reader::ArchiveReader;
use super::part::{Number, QueuePart, is_message, number, sys_flag};

impl QueuePart {
    /// Returns the row of the message at a queue offset, or of the next message.
    pub fn row_of(&self, reader: &ArchiveReader, offset: i64) -> Result<usize, StoreError> {
        if offset <= self.rows.first {
            return Ok(self.first_row);
        }
        if self.is_dense() {
            return Ok(self.dense_row(offset));
        }
        self.search(reader, Number::QueueOffset, offset, self.first_row, true)
    }

    /// Returns the row after the last one with a smaller queue offset.
    pub fn end_row_of(&self, reader: &ArchiveReader, offset: i64) -> Result<usize, StoreError> {
        if offset > self.rows.last {
            return Ok(self.end_row());
        }
        if offset <= self.rows.first {
            return Ok(self.first_row);
        }
        if self.is_dense() {
            return Ok(self.dense_row(offset));
        }
        self.search(reader, Number::QueueOffset, offset, self.first_row, false)
    }

    /// Returns the row of the first message at or after a log offset, and stored at or after a time in epoch
    /// milliseconds. Both ascend in a queue.
    pub fn first_row_at(
        &self,
        reader: &ArchiveReader,
        log_offset: u64,
        time_ms: Option<i64>,
    ) -> Result<usize, StoreError> {
        let (zero, first) = self.order(reader)?;
        let of = |wanted: Number, value: i64| {
            if let Some(zero) = zero
                && self.value(reader, zero, wanted)? >= value
            {
                return Ok(zero);
            }
            self.search(reader, wanted, value, first, false)
        };
        let row = of(Number::LogOffset, log_offset.cast_signed())?;
        match time_ms {
            Some(time_ms) => Ok(row.max(of(Number::StoreTime, time_ms)?)),
            None => Ok(row),
        }
    }

    /// Returns the row of the message before a row; `None` if it is the first message.
    pub fn row_before(&self, reader: &ArchiveReader, row: usize) -> Result<Option<usize>, StoreError> {
        let (zero, first) = self.order(reader)?;
        if row > first {
            return Ok(Some(row - 1));
        }
        Ok(zero.filter(|zero| *zero < row))
    }

    /// Returns the queue offset of a row.
    pub fn offset_of(&self, reader: &ArchiveReader, row: usize) -> Result<i64, StoreError> {
        self.value(reader, row, Number::QueueOffset)
    }

    /// Returns the row with offset 0 if it is among rows that are no messages, and the first row after those.
    ///
    /// Half messages of old brokers and marks of rolled back transactions are records of a topic that are in no queue.
    /// Their offset is 0, so they are the first rows.
    fn order(&self, reader: &ArchiveReader) -> Result<(Option<usize>, usize), StoreError> {
        if self.rows.first != 0 {
            return Ok((None, self.first_row));
        }
        let first = self.search(reader, Number::QueueOffset, 1, self.first_row, false)?;
        let (mut messages, mut zero) = (0, None);
        for row in self.first_row..first {
            if is_message(SysFlag(self.value(reader, row, Number::SysFlag)? as i32)) {
                messages += 1;
                zero = zero.or(Some(row));
            }
        }
        if messages == first - self.first_row {
            return Ok((None, self.first_row));
        }
        Ok((zero, first))
    }

    fn value(&self, reader: &ArchiveReader, row: usize, wanted: Number) -> Result<i64, StoreError> {
        let footer = reader.footer(&self.file)?;
        let group = footer.group_of(row);
        let first_row = footer.groups().get(group).map_or(0, |group| group.first_row);
        let columns = reader.short_columns(&self.file, &footer, group)?;
        if row - first_row >= columns.num_rows() {
            return Err(reader.wrong(&self.file, "a row group has too few rows"));
        }
        Ok(number(&columns, row - first_row, wanted))
    }

    /// Returns the first row from `low` on whose value is at least the wanted one. With `takes_batch`, it is the batch
    /// before that row if it can contain the value.
    fn search(
        &self,
        reader: &ArchiveReader,
        wanted: Number,
        value: i64,
        mut low: usize,
        takes_batch: bool,
    ) -> Result<usize, StoreError> {
        let footer = reader.footer(&self.file)?;
        let mut high = self.end_row();
        while low < high {
            let group = footer.group_of(low.midpoint(high));
            let columns = reader.short_columns(&self.file, &footer, group)?;
            let group_row = footer.groups().get(group).map_or(0, |group| group.first_row);
            let (first, end) = (low.max(group_row), high.min(group_row + columns.num_rows()));
            if first >= end {
                return Err(reader.wrong(&self.file, "it has fewer rows than the manifest says"));
            }
            let of = |row: usize| number(&columns, row - group_row, wanted);
            let place = partition(first..end, |row| of(row) < value);
            let is_batch =
                takes_batch && place > first && sys_flag(&columns, place - 1 - group_row).inner_batch();
            if place == first && first > low {
                high = first;
            } else if place == end && !is_batch {
                low = end;
            } else {
                let before = is_batch && (place == end || of(place) > value);
                return Ok(place - usize::from(before));
            }
        }
        Ok(low)
    }
}

/// Returns the first row for which `is_before` is false.
fn partition(rows: std::ops::Range<usize>, is_before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (rows.start, rows.end);
    while low < high {
        let middle = low.midpoint(high);
        if is_before(middle) { low = middle + 1 } else { high = middle }
    }
    low
}
