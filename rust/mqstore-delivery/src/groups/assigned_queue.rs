//! A queue that is assigned to a consumer: its read position, what it handed out, and its wait for more.

use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_base::message::{MessageFilter, StoredRecord};
use mqstore_base::options::DamagePolicy;
use mqstore_engine::{QueueCursor, Store};
use mqstore_meta::{MetaLog, QueueKey};

use super::assignment::Queue;
use crate::nonblocking::{NEAR_BYTES, ReadScope};
use crate::queue_wait::QueueWait;
use mqstore_base::wake_signal::Signal;

/// Maximum offsets that one read of a filtered queue passes. So a filter that matches nothing cannot keep a call from
/// checking the time.
const FILTERED_AT_ONCE: i64 = 1 << 16;

/// Maximum messages that one read of a queue compares with the filter.
const LOOKS: usize = 1 << 16;

/// A queue that is assigned to a consumer; see the module's text.
pub(super) struct AssignedQueue {
    pub(super) queue: Queue,
    pub(super) key: QueueKey,
    /// The generation of this ownership of the queue.
    pub(super) generation: u64,
    /// The offset at which this consumer started.
    pub(super) begun: i64,
    /// All messages below were read. They were handed out or filtered out, or they are in the buffer.
    pub(super) scanned: i64,
    /// All messages below were handed out or filtered out. A commit stores this offset.
    pub(super) returned: i64,
    /// One past the last message that was handed out; only filtered messages follow up to `returned`.
    handed_out: i64,
    /// Number of its messages in the consumer's buffer.
    pub(super) buffered: usize,
    /// Whether a seek or reset moved the position, so that the next commit may go back.
    pub(super) sought: bool,
    on_damage: DamagePolicy,
    /// Whether the last read failed and the error was noted.
    pub(super) failing: bool,
    cursor: Option<QueueCursor>,
    wait: Option<QueueWait>,
}

/// The state at the end of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadEnd {
    /// There is no more now.
    AtEnd,
    /// There may be more.
    GoesOn,
}

impl AssignedQueue {
    pub(super) fn new(queue: Queue, key: QueueKey, generation: u64, position: i64) -> Self {
        Self {
            queue,
            key,
            generation,
            begun: position,
            scanned: position,
            returned: position,
            handed_out: position,
            buffered: 0,
            sought: false,
            on_damage: DamagePolicy::Raise,
            failing: false,
            cursor: None,
            wait: None,
        }
    }

    /// Returns the queue with this behaviour at damaged messages.
    pub(super) fn on_damage(self, policy: DamagePolicy) -> Self {
        Self { on_damage: policy, ..self }
    }

    /// Continues at `offset`, and forgets messages that were read ahead.
    pub(super) fn move_to(&mut self, offset: i64) {
        self.scanned = offset;
        self.returned = offset;
        // Messages after it no longer count as handed out.
        self.handed_out = self.handed_out.min(offset);
        self.buffered = 0;
        self.cursor = None;
        self.wait = None;
    }

    /// Records that all messages below `returned` were handed out or filtered out. `last` is the last one that was
    /// handed out.
    pub(super) fn mark_delivered(&mut self, last: Option<&StoredRecord>, returned: i64) {
        self.returned = returned;
        if let Some(last) = last {
            self.handed_out = last.queue_offset + 1;
        }
    }

    /// Whether a commit of `offset` covers all messages that were handed out.
    pub(super) fn covers_delivered(&self, offset: i64) -> bool {
        offset >= self.handed_out
    }

    /// Reads up to `max` more messages. Stops early at the end, and in a filtered queue after a limited range.
    pub(super) fn read(
        &mut self,
        store: &Store,
        filter: Option<&MessageFilter>,
        max: usize,
        into: &mut Vec<StoredRecord>,
    ) -> Result<ReadEnd, StoreError> {
        if let Some(wait) = &self.wait {
            if !wait.is_over() {
                return Ok(ReadEnd::AtEnd);
            }
            self.wait = None;
        }
        let wanted = into.len() + max;
        loop {
            let fresh = self.cursor.is_none();
            let start = (self.scanned, self.on_damage);
            let cursor = cursor(&mut self.cursor, store, &self.queue, start, filter)?;
            let ended = match cursor.next_of(wanted - into.len(), LOOKS) {
                Ok(batch) => {
                    into.extend(batch.records);
                    batch.ended
                }
                Err(error) => {
                    self.cursor = None;
                    return Err(error);
                }
            };
            let reached = cursor.position();
            let moved = reached > self.scanned;
            self.scanned = reached.max(self.scanned);
            if into.len() >= wanted || !ended {
                // It is unknown when the next poll comes.
                cursor.rest();
                return Ok(ReadEnd::GoesOn);
            }
            // The cursor is at its end: the end of the queue when it was opened, or of the range.
            self.cursor = None;
            if fresh {
                return Ok(if moved && filter.is_some() { ReadEnd::GoesOn } else { ReadEnd::AtEnd });
            }
        }
    }

    /// Whether the next read needs no I/O: there is nothing new, or the queues are built and it was written just now.
    pub(super) fn is_at_hand(
        &mut self,
        store: &Store,
        filter: Option<&MessageFilter>,
        reach: ReadScope,
    ) -> Result<bool, StoreError> {
        if self.is_armed() {
            return Ok(true);
        }
        if !reach.reaches_end() {
            return Ok(false);
        }
        let start = (self.scanned, self.on_damage);
        if self.cursor.is_none() && self.scanned < store.bounds(&self.queue.topic, self.queue.queue_id)?.0 {
            // An archive can have them.
            return Ok(false);
        }
        let cursor = cursor(&mut self.cursor, store, &self.queue, start, filter);
        match cursor.and_then(|cursor| cursor.is_near_end(NEAR_BYTES)) {
            // A thread must handle this.
            Err(StoreError::OffsetOutOfRange { .. }) => Ok(false),
            near => near,
        }
    }

    pub(super) fn is_armed(&self) -> bool {
        self.wait.as_ref().is_some_and(|wait| !wait.is_over())
    }

    /// Registers `signal` for new messages. Returns whether there are some already.
    pub(super) fn arm(&mut self, store: &Store, signal: &Arc<Signal>) -> Result<bool, StoreError> {
        let signal = Arc::clone(signal);
        let queue = (&*self.queue.topic, self.queue.queue_id);
        QueueWait::arm(&mut self.wait, store, queue, self.scanned, move || signal.ring())
    }

    pub(super) fn committed(&self, meta: &MetaLog) -> Option<i64> {
        meta.offset(self.key)
    }
}

/// Returns the cursor, and opens it at `from` if there is none.
fn cursor<'a>(
    cursor: &'a mut Option<QueueCursor>,
    store: &Store,
    queue: &Queue,
    (from, on_damage): (i64, DamagePolicy),
    filter: Option<&MessageFilter>,
) -> Result<&'a mut QueueCursor, StoreError> {
    Ok(match cursor {
        Some(cursor) => cursor,
        none => {
            let end = filter.map(|_| from.saturating_add(FILTERED_AT_ONCE));
            let cursor = store.read(&queue.topic, queue.queue_id, Some(from), end, filter)?;
            none.insert(cursor.on_damage(on_damage))
        }
    })
}
