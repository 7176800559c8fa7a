//! Parts of queues as `Store::read` returns them: for a compacted queue the compacted messages, then the messages after
//! them.
//!
//! Never writes. If a compaction is published meanwhile, the cursor continues in the new files.

use std::collections::VecDeque;

use super::task::{NextTask, Passed, SkipCallback, TASK_BYTES, TASK_ENTRIES, Task};
use crate::read::cursor::{DamageReport, QueueCursor};
use crate::read::query::read;
use crate::read::scan_request::ScanRequest;
use crate::read::view::StoreView;
use mqstore_base::error::StoreError;

/// Number of records that one step of a cursor returns, and of those it may read to find them.
const AT_ONCE: usize = 16;
const LOOKS: usize = 1024;

/// Cursors on queues, used one after the other.
pub(super) struct MessageSource {
    cursors: VecDeque<QueueCursor>,
}

impl MessageSource {
    /// Makes cursors on the ranges of `request`. Reports deleted messages of a queue that was not compacted.
    pub(super) fn new(
        view: &StoreView,
        request: &ScanRequest,
        tell: &SkipCallback,
        report: &DamageReport,
    ) -> Result<Self, StoreError> {
        let mut cursors = VecDeque::new();
        for range in request.ranges.iter().flatten() {
            let (topic, queue_id) = (range.topic.as_str(), range.queue_id);
            let (start, end) = (range.start, Some(range.end));
            let cursor = match read(view, topic, queue_id, Some(start), end, request.filter.as_ref()) {
                Err(StoreError::OffsetOutOfRange { min_offset, .. }) if start < min_offset => {
                    let text = format!(
                        "queue {queue_id} of topic {topic:?} begins at offset {min_offset}, not at {start}"
                    );
                    tell(Passed::Deleted, text);
                    read(view, topic, queue_id, Some(min_offset), end, request.filter.as_ref())
                }
                cursor => cursor,
            };
            cursors.push_back(cursor?.on_damage(request.on_damage).reporting(report.clone()));
        }
        Ok(Self { cursors })
    }

    pub(super) fn next(&mut self) -> Result<NextTask, StoreError> {
        let (mut records, mut bytes) = (Vec::new(), 0);
        while let Some(cursor) = self.cursors.front_mut() {
            let some = cursor.next_of(AT_ONCE, LOOKS)?;
            if some.ended {
                self.cursors.pop_front();
            }
            // A task without a record lets a waiting caller check for a signal.
            let nothing = some.records.is_empty();
            bytes += some.records.iter().map(|record| record.bytes().len() as u64).sum::<u64>();
            records.extend(some.records);
            if bytes >= TASK_BYTES || records.len() >= TASK_ENTRIES || nothing && !some.ended {
                return Ok(NextTask::Task(Task::Records(records)));
            }
        }
        Ok(if records.is_empty() { NextTask::End } else { NextTask::Task(Task::Records(records)) })
    }
}
