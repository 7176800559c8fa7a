//! The state that is kept between two passes.

use std::collections::BTreeMap;
use std::time::Duration;

use mqstore_io::sync::Arc;

/// The state of the passes over all topics.
#[derive(Debug, Default)]
pub(crate) struct TopicExpiry {
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
