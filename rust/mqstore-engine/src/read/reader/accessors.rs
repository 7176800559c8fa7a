//! Properties of a reader that need no read of the log.

use std::collections::BTreeSet;
use std::sync::Arc;

use mqstore_format::{CQ_UNIT_BYTES, IndexGeometry};

use super::Reader;
use mqstore_base::options::StoreOptions;

/// The geometry of a store's files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a consume-queue file; `None` if there is no queue.
    pub queue_file_bytes: Option<u64>,
    /// Bytes of the readable units of all consume queues; the rest of the files is empty or expired.
    pub queue_entry_bytes: u64,
    /// Slots and entries of an index file; `None` if there is no index file.
    pub index: Option<IndexGeometry>,
}

impl Reader {
    /// Returns the options of the open.
    pub(crate) fn options(&self) -> &StoreOptions {
        &self.options
    }

    /// Returns the geometry of queue and index files, and the bytes of readable units in the queues that were read.
    pub(crate) fn geometry(&self) -> Geometry {
        let queues = Arc::clone(&self.state.lock().queues);
        let all = queues.all();
        let entries: i64 = all.iter().map(|queue| queue.max_offset() - queue.min_offset()).sum();
        Geometry {
            queue_file_bytes: (!all.is_empty()).then(|| queues.file_bytes()),
            queue_entry_bytes: entries as u64 * CQ_UNIT_BYTES as u64,
            index: (self.index.file_count() > 0).then(|| self.index.geometry()),
        }
    }

    /// Returns the number of queues of `topic` in the topic table.
    pub(super) fn listed_queues(&self, topic: &str) -> i32 {
        let listed = self.listed();
        let topic = listed.table.topics.get(topic);
        topic.map_or(0, |topic| topic.read_queues.max(topic.write_queues).clamp(0, 65_536))
    }

    /// Returns the removed topics; their messages may still be in the log.
    pub(crate) fn removed_topics(&self) -> BTreeSet<String> {
        self.listed().removed.clone()
    }
}
