//! Parts of queues as `Store::read` gives them: of a queue that was compacted what the compaction left, then
//! what came behind it.
//!
//! Never writes. Where a compaction is published meanwhile, the cursor goes on in the new files.

use std::collections::VecDeque;

use super::super::read::cursor::QueueCursor;
use super::super::store::Store;
use super::request::ScanRequest;
use super::task::{Next, Passed, SkipCallback, TASK_BYTES, TASK_ENTRIES, Task};
use mqstore_base::error::StoreError;

/// Records that a cursor is asked for at once, and how many it may look at for them.
const AT_ONCE: usize = 16;
const LOOKS: usize = 1024;

/// Cursors on queues, one behind the other.
pub(super) struct MessageSource {
    cursors: VecDeque<QueueCursor>,
}

impl MessageSource {
    /// Cursors on the ranges of `request`; tells of messages that were deleted from one that was not compacted.
    pub(super) fn new(store: &Store, request: &ScanRequest, tell: &SkipCallback) -> Result<Self, StoreError> {
        let mut cursors = VecDeque::new();
        for range in request.ranges.iter().flatten() {
            let (topic, queue_id) = (range.topic.as_str(), range.queue_id);
            let (start, end) = (range.start, Some(range.end));
            let cursor = match store.read(topic, queue_id, Some(start), end, request.filter.as_ref()) {
                Err(StoreError::OffsetOutOfRange { min_offset, .. }) if start < min_offset => {
                    let text = format!(
                        "queue {queue_id} of topic {topic:?} begins at {min_offset} and not at {start}"
                    );
                    tell(Passed::Deleted, text);
                    store.read(topic, queue_id, Some(min_offset), end, request.filter.as_ref())
                }
                cursor => cursor,
            };
            cursors.push_back(cursor?);
        }
        Ok(Self { cursors })
    }

    pub(super) fn next(&mut self) -> Result<Next, StoreError> {
        let (mut records, mut bytes) = (Vec::new(), 0);
        while let Some(cursor) = self.cursors.front_mut() {
            let some = cursor.next_of(AT_ONCE, LOOKS)?;
            if some.ended {
                self.cursors.pop_front();
            }
            // A task without a record lets whoever waits look around.
            let nothing = some.records.is_empty();
            bytes += some.records.iter().map(|record| record.bytes().len() as u64).sum::<u64>();
            records.extend(some.records);
            if bytes >= TASK_BYTES || records.len() >= TASK_ENTRIES || nothing && !some.ended {
                return Ok(Next::Task(Task::Records(records)));
            }
        }
        Ok(if records.is_empty() { Next::End } else { Next::Task(Task::Records(records)) })
    }
}
