//! The retentions of topics of an open store, and the state that is kept between two passes.

use std::collections::BTreeMap;
use std::time::Duration;

use mqstore_io::sync::{Arc, Mutex};

use crate::engine::Engine;
use crate::read::older::OlderSlot;
use crate::retention::Cleaner;

/// The service that applies the limits of topics.
pub(crate) struct TopicRetentions {
    pub(super) engine: Arc<Engine>,
    /// Counts removed files.
    pub(super) cleaner: Arc<Cleaner>,
    /// Locked while limits are applied.
    pub(super) state: Mutex<TopicExpiry>,
    pub(super) older: OlderSlot,
}

impl TopicRetentions {
    /// Makes the service of a store; `older` has the messages from before its log.
    pub(crate) fn new(engine: &Arc<Engine>, cleaner: &Arc<Cleaner>, older: OlderSlot) -> Self {
        Self { engine: Arc::clone(engine), cleaner: Arc::clone(cleaner), state: Mutex::default(), older }
    }

    /// Returns the messages from before the log, shared.
    pub(crate) fn older(&self) -> OlderSlot {
        self.older.clone()
    }
}

/// The state of the passes over all topics.
#[derive(Debug, Default)]
pub(super) struct TopicExpiry {
    /// The bytes of topics, as of the last pass.
    pub(super) measured: BTreeMap<Arc<str>, MeasuredTopic>,
    /// The floors before which whole queue files were removed.
    pub(super) cleaned: BTreeMap<Arc<str>, u64>,
    /// The time of the next background pass.
    pub(super) next: Duration,
}

/// The bytes of a topic's messages, by queue.
#[derive(Clone, Debug, Default)]
pub(super) struct MeasuredTopic(pub BTreeMap<i32, MeasuredQueue>);

/// The bytes of the records of one queue from offset `from` to `to` (exclusive).
#[derive(Clone, Copy, Debug)]
pub(super) struct MeasuredQueue {
    pub from: i64,
    pub to: i64,
    pub bytes: u64,
}

impl MeasuredTopic {
    /// Removes the first message of a queue, which continues at offset `first` then.
    pub(super) fn drop_front(&mut self, queue_id: i32, first: i64, bytes: u64) {
        if let Some(queue) = self.0.get_mut(&queue_id) {
            queue.from = first;
            queue.bytes = queue.bytes.saturating_sub(bytes);
        }
    }
}
