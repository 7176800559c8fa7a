//! The list of the queues that a reader has not read yet.

use std::collections::BTreeMap;
use std::sync::Arc;

use mqstore_base::live_page::LiveState;
use mqstore_log::consume_queue::ConsumeQueue;
use mqstore_log::recovery::QueueManifest;

/// The queues that were not read yet.
pub(super) enum Unread {
    /// All of them; with the state that was read before the queues were listed.
    All(Option<LiveState>, Option<QueueManifest>),
    /// These.
    Some(UnreadQueues),
    Nothing,
}

/// Some queues, by topic and id.
pub(super) type Queues = BTreeMap<(String, i32), Arc<ConsumeQueue>>;

/// Queues that were not read yet.
pub(super) struct UnreadQueues {
    pub(super) manifest: QueueManifest,
    pub(super) queues: Queues,
    /// Number of queues that were read since the open.
    pub(super) read: usize,
}

impl UnreadQueues {
    /// Returns the queues to read if a queue is used: this one, and as many others as were read before, those after it
    /// first. A caller that uses all queues, one after another, then needs few rounds of requests.
    pub(super) fn next_to(&self, topic: &str, queue_id: i32) -> Queues {
        let key = (topic.to_owned(), queue_id);
        if !self.queues.contains_key(&key) {
            return Queues::new();
        }
        let chosen = self.queues.range(key.clone()..).chain(self.queues.range(..key));
        chosen.take(self.read.max(1)).map(|(key, queue)| (key.clone(), Arc::clone(queue))).collect()
    }
}
