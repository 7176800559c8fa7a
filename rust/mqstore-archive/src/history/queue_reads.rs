//! Reads of one queue.

use std::collections::VecDeque;
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_base::topic_floors::FloorTable;
use mqstore_engine::{OlderBatch, OlderRead, OlderReads, RecordTest, ScanRequest};

use super::{Damage, History, messages};
use crate::reader::{ArchiveReader, QueuePart};

/// The part of a queue that a read takes from an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueRange {
    /// The queue.
    pub queue_id: i32,
    /// First queue offset.
    pub start: i64,
    /// Queue offset to stop at, exclusive.
    pub end: i64,
}

/// A read of one queue.
#[derive(Debug)]
pub(super) struct QueueReads {
    reader: Arc<ArchiveReader>,
    test: RecordTest,
    wanted: QueueRange,
    parts: VecDeque<QueuePart>,
    /// The rows of the first part that are left; `None` at its begin.
    rows: Option<RowsLeft>,
    damage: Damage,
}

impl OlderReads for QueueReads {
    fn next_messages(&mut self) -> Result<Option<OlderBatch>, StoreError> {
        while let Some(part) = self.parts.front() {
            let step = step(&self.reader, part, self.wanted, self.rows, &self.test);
            let step = self.damage.unless_damaged(step)?.flatten();
            self.rows = step.as_ref().and_then(|step| step.rows);
            if self.rows.is_none() {
                self.parts.pop_front();
            }
            if let Some(step) = step {
                return Ok(Some(step.found));
            }
        }
        Ok(None)
    }

    fn take_warnings(&mut self) -> Vec<String> {
        self.damage.take_warnings()
    }
}

/// The next row of a part of a queue, the row at which the part ends, and whether it is the first row of the read.
type RowsLeft = (usize, usize, bool);

/// Rows of a part that were read.
struct Step {
    found: OlderBatch,
    /// The rows after them, if there are any.
    rows: Option<RowsLeft>,
}

/// Reads the next rows of a part; `rows` are those that are left, or `None` at its begin. `None` if no row is wanted.
fn step(
    reader: &ArchiveReader,
    part: &QueuePart,
    wanted: QueueRange,
    rows: Option<RowsLeft>,
    test: &RecordTest,
) -> Result<Option<Step>, StoreError> {
    let (first, end_row, is_first) = if let Some(rows) = rows {
        rows
    } else {
        let end_row = part.end_row_of(reader, wanted.end)?;
        // The last record can be a batch with the offset.
        let first = part.row_of(reader, wanted.start)?.min(part.end_row().saturating_sub(1));
        (first, end_row, end_row.saturating_sub(first) > 1)
    };
    if first >= end_row {
        return Ok(None);
    }
    let (batch, next) = reader.rows(part, first, end_row, is_first)?;
    let found = messages(reader, &part.file, &batch, test)?;
    Ok(Some(Step { found, rows: (next < end_row).then_some((next, end_row, false)) }))
}

fn test_of(wanted: &OlderRead<'_>, floors: &Arc<FloorTable>) -> RecordTest {
    let request = ScanRequest {
        topics: Some(vec![wanted.topic.to_owned()]),
        queue_id: Some(wanted.queue_id),
        start_offset: Some(wanted.range.0),
        end_offset: Some(wanted.range.1),
        filter: wanted.filter.cloned(),
        ..ScanRequest::default()
    };
    RecordTest::new(&request, Arc::clone(floors))
}

impl History {
    /// Starts to read a part of a queue that ends where the log begins.
    ///
    /// # Errors
    /// Those of [`Self::parts_of`].
    pub(super) fn queue(
        &self,
        floors: &Arc<FloorTable>,
        wanted: &OlderRead<'_>,
    ) -> Result<QueueReads, StoreError> {
        let mut damage = Damage::new(wanted.on_damage);
        let range = QueueRange { queue_id: wanted.queue_id, start: wanted.range.0, end: wanted.range.1 };
        let parts = self.parts_of(floors, wanted.topic, range, wanted.log_start, &mut damage)?.into();
        let (reader, test) = (Arc::clone(&self.reader), test_of(wanted, floors));
        Ok(QueueReads { reader, test, wanted: range, parts, rows: None, damage })
    }
}
