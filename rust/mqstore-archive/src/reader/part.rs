//! The rows of a queue in a file, and the numbers of rows.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type, TimestampMicrosecondType};
use arrow_array::{Array, RecordBatch};
use mqstore_format::{SysFlag, TransactionType};

use crate::manifest::ArchivedFile;
use crate::records::QueueRows;

/// Columns of numbers among the short columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    QueueOffset,
    LogOffset,
    /// Epoch milliseconds.
    StoreTime,
    SysFlag,
}

/// Whether a record of a topic is a message of its queue. Half messages and marks of rolled back transactions are in none.
pub(super) fn is_message(sys_flag: SysFlag) -> bool {
    !matches!(sys_flag.transaction(), TransactionType::Prepared | TransactionType::Rollback)
}

/// Returns the flag of a row of the short columns.
pub(super) fn sys_flag(columns: &RecordBatch, row: usize) -> SysFlag {
    SysFlag(number(columns, row, Number::SysFlag) as i32)
}

/// Returns a number of a row of the short columns; 0 for a null.
pub(super) fn number(columns: &RecordBatch, row: usize, wanted: Number) -> i64 {
    let found = (|| {
        let array = |number: usize| columns.columns().get(number).filter(|array| array.is_valid(row));
        Some(match wanted {
            Number::QueueOffset => array(2)?.as_primitive_opt::<Int64Type>()?.value(row),
            Number::LogOffset => array(3)?.as_primitive_opt::<Int64Type>()?.value(row),
            Number::StoreTime => {
                array(5)?.as_primitive_opt::<TimestampMicrosecondType>()?.value(row).div_euclid(1000)
            }
            Number::SysFlag => i64::from(array(8)?.as_primitive_opt::<Int32Type>()?.value(row)),
        })
    })();
    found.unwrap_or(0)
}

/// The rows of one queue in one file. They are neighbours, in the order of their offsets.
#[derive(Clone, Debug)]
pub struct QueuePart {
    /// The file.
    pub file: Arc<ArchivedFile>,
    /// The queue, with its offsets and the number of rows.
    pub rows: QueueRows,
    /// The first row in the file.
    pub first_row: usize,
}

impl QueuePart {
    /// Returns the row after the last one.
    pub fn end_row(&self) -> usize {
        self.first_row + self.rows.rows as usize
    }

    /// Whether each offset has a row.
    pub fn is_dense(&self) -> bool {
        self.rows
            .last
            .checked_sub(self.rows.first)
            .is_some_and(|span| span + 1 == self.rows.rows.cast_signed())
    }

    pub(super) fn dense_row(&self, offset: i64) -> usize {
        let row = self.first_row + usize::try_from(offset - self.rows.first).unwrap_or(0);
        row.min(self.end_row())
    }
}
