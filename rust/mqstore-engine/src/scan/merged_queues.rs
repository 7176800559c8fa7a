//! Whole queues as `Store::read` returns them, merged by the positions of their records.
//!
//! For scans of compacted topics: their messages are partly in compaction files. The messages of a queue keep their
//! order. Never writes.

use super::task::{NextTask, TASK_BYTES, TASK_ENTRIES, Task};
use crate::read::cursor::DamageReport;
use crate::read::merged::{MergeOrder, MergedCursor};
use crate::read::query::{read, readable_bounds};
use crate::read::scan_request::ScanRequest;
use crate::read::view::StoreView;
use mqstore_base::error::StoreError;

/// Number of records that one step of the merge returns, and of those it may read to find them.
const AT_ONCE: usize = 64;
const LOOKS: usize = 1024;

/// See the header of this module.
pub(super) struct MergedQueues {
    cursor: MergedCursor,
}

impl MergedQueues {
    /// Opens the queues of `topics` within the offsets of the request.
    pub(super) fn new(
        view: &StoreView,
        request: &ScanRequest,
        queues: &[(String, i32)],
        report: &DamageReport,
    ) -> Result<Self, StoreError> {
        let mut cursors = Vec::new();
        for (topic, queue_id) in queues {
            let (min, max) = readable_bounds(view, topic, *queue_id)?;
            let start = request.start_offset.map(|start| start.clamp(min, max));
            let cursor = read(view, topic, *queue_id, start, request.end_offset, request.filter.as_ref())?;
            cursors.push(cursor.on_damage(request.on_damage).reporting(report.clone()));
        }
        let end = view.catch_up()?;
        Ok(Self { cursor: MergedCursor::new((view.clone(), end), MergeOrder::LogOffset, cursors, None) })
    }

    pub(super) fn next(&mut self) -> Result<NextTask, StoreError> {
        let (mut records, mut bytes) = (Vec::new(), 0);
        while records.len() < TASK_ENTRIES && bytes < TASK_BYTES {
            let some = self.cursor.next_of(AT_ONCE, LOOKS)?;
            if some.records.is_empty() {
                if some.ended && records.is_empty() {
                    return Ok(NextTask::End);
                }
                // A task without a record lets a waiting caller check for a signal.
                break;
            }
            bytes += some.records.iter().map(|record| record.bytes().len() as u64).sum::<u64>();
            records.extend(some.records);
        }
        Ok(NextTask::Task(Task::Records(records)))
    }
}
