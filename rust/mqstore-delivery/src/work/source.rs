//! One queue from which a work queue takes messages: the group's progress, and the messages that were read ahead.
//!
//! `queue_leases` fills a source and leases messages from it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_engine::{QueueCursor, Store};
use mqstore_meta::QueueProgress;

use crate::queue_wait::QueueWait;

/// Number of messages that the first read takes.
pub(super) const FIRST_AHEAD: usize = 8;

/// A queue from which a work queue takes messages, with the group's progress.
#[derive(Debug)]
pub(super) struct QueuePlace {
    pub(super) topic: Arc<str>,
    pub(super) queue_id: i32,
    pub(super) progress: Arc<QueueProgress>,
}

/// A queue from which a work queue takes messages, with the messages that were read and not handed out.
///
/// The lock of the work queue guards it.
pub(super) struct WorkSource {
    pub(super) place: Arc<QueuePlace>,
    /// New messages that were read and are not leased.
    pub(super) buffered: VecDeque<BufferedMessage>,
    /// Messages that are due again and that `prepare` has read, by offset.
    pub(super) retries: BTreeMap<i64, StoredRecord>,
    /// The offset at which reading continues.
    pub(super) scanned: i64,
    pub(super) cursor: Option<QueueCursor>,
    pub(super) count: usize,
    pub(super) wait: Option<QueueWait>,
    /// Whether the next single get first tries a message that is due again.
    pub(super) due_first: bool,
    /// Whether an error was noted and no read has succeeded since.
    pub(super) failing: bool,
    pub(super) held_back: HeldBack,
}

/// The new messages that a put holds back. They are counted from here until a get passes them.
#[derive(Debug, Default)]
pub(super) struct HeldBack {
    /// All messages before this offset were looked at.
    pub(super) looked_to: i64,
    /// The time of each in epoch milliseconds, by offset.
    pub(super) due_ms: BTreeMap<i64, i64>,
}

/// A new message that was read and is not leased.
pub(super) struct BufferedMessage {
    pub(super) record: StoredRecord,
    /// The time until which it is held back, in epoch milliseconds.
    pub(super) visible_ms: Option<i64>,
    /// Number of deliveries in another topic, before it came to this queue.
    pub(super) delivered: u32,
}

/// Offsets of messages that used up their attempts.
pub(super) type ExhaustedOffsets = Vec<(Arc<QueuePlace>, i64)>;

impl WorkSource {
    pub(super) fn new(place: QueuePlace) -> Self {
        let scanned = place.progress.lock().next();
        Self {
            place: Arc::new(place),
            buffered: VecDeque::new(),
            retries: BTreeMap::new(),
            scanned,
            cursor: None,
            count: FIRST_AHEAD,
            wait: None,
            due_first: true,
            failing: false,
            held_back: HeldBack::default(),
        }
    }

    /// Drops what was read ahead. Reading continues at `next`.
    pub(super) fn skip_read_ahead(&mut self, next: i64) {
        self.buffered.clear();
        self.retries.clear();
        self.scanned = next;
        self.cursor = None;
    }

    pub(super) fn has_buffered(&self) -> bool {
        !self.buffered.is_empty()
    }

    /// Whether messages that are due again are in memory.
    pub(super) fn has_buffered_retries(&self) -> bool {
        !self.retries.is_empty()
    }

    pub(super) fn is_armed(&self) -> bool {
        self.wait.as_ref().is_some_and(|wait| !wait.is_over())
    }

    /// Returns the first offset of the queue that can be read, and one past the last.
    pub(super) fn bounds(&self, store: &Store) -> Result<(i64, i64), StoreError> {
        store.bounds(&self.place.topic, self.place.queue_id)
    }
}
