//! Whole queues as `Store::read` returns them, merged by the positions of their records.
//!
//! For scans of compacted topics: their messages are partly in compaction files. The messages of a queue keep their
//! order. Never writes.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::super::read::cursor::{DamageReport, QueueCursor};
use super::super::store::Store;
use super::request::ScanRequest;
use super::task::{NextTask, TASK_BYTES, TASK_ENTRIES, Task};
use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;

/// Number of records that one step of a cursor returns, and of those it may read to find them.
const AT_ONCE: usize = 64;
const LOOKS: usize = 1024;

/// See the header of this module.
pub(super) struct MergedQueues {
    queues: Vec<QueueHead>,
    /// The position of the next record of each queue, the smallest first.
    heads: BinaryHeap<Reverse<(u64, usize)>>,
    /// The queues whose next record is not known.
    unread: Vec<usize>,
}

struct QueueHead {
    cursor: QueueCursor,
    ready: VecDeque<StoredRecord>,
}

impl MergedQueues {
    /// Opens the queues of `topics` within the offsets of the request.
    pub(super) fn new(
        store: &Store,
        request: &ScanRequest,
        queues: &[(String, i32)],
        report: &DamageReport,
    ) -> Result<Self, StoreError> {
        let mut heads = Vec::new();
        for (topic, queue_id) in queues {
            let (min, max) = store.bounds(topic, *queue_id)?;
            let start = request.start_offset.map(|start| start.clamp(min, max));
            let cursor = store.read(topic, *queue_id, start, request.end_offset, request.filter.as_ref())?;
            let cursor = cursor.on_damage(request.on_damage).reporting(report.clone());
            heads.push(QueueHead { cursor, ready: VecDeque::new() });
        }
        let unread = (0..heads.len()).collect();
        Ok(Self { queues: heads, heads: BinaryHeap::new(), unread })
    }

    pub(super) fn next(&mut self) -> Result<NextTask, StoreError> {
        let (mut records, mut bytes) = (Vec::new(), 0);
        while records.len() < TASK_ENTRIES && bytes < TASK_BYTES {
            while let Some(at) = self.unread.pop() {
                if !self.read(at)? {
                    // A task without a record lets a waiting caller check for a signal.
                    self.unread.push(at);
                    return Ok(NextTask::Task(Task::Records(records)));
                }
            }
            let Some(Reverse((_, at))) = self.heads.pop() else { break };
            let record = self.queues.get_mut(at).and_then(|queue| queue.ready.pop_front());
            bytes += record.as_ref().map_or(0, |record| record.bytes().len() as u64);
            records.extend(record);
            self.unread.push(at);
        }
        Ok(if records.is_empty() { NextTask::End } else { NextTask::Task(Task::Records(records)) })
    }

    /// Finds the next record of a queue. Returns `false` if a filter skipped all records that were read.
    fn read(&mut self, at: usize) -> Result<bool, StoreError> {
        let Some(queue) = self.queues.get_mut(at) else { return Ok(true) };
        if queue.ready.is_empty() {
            let some = queue.cursor.next_of(AT_ONCE, LOOKS)?;
            if some.records.is_empty() && !some.ended {
                return Ok(false);
            }
            queue.ready = some.records.into();
        }
        if let Some(record) = queue.ready.front() {
            self.heads.push(Reverse((record.commit_log_offset, at)));
        }
        Ok(true)
    }
}
