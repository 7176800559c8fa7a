//! What a reader knows without looking at the log.

use std::sync::Arc;

use mqstore_format::{CQ_UNIT_BYTES, IndexGeometry};

use super::Reader;
use mqstore_base::options::StoreOptions;
use mqstore_base::store_files::DelayTables;

/// Files of one size each, of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a consume-queue file; `None` where there is no queue.
    pub queue_file_bytes: Option<u64>,
    /// Bytes of the entries of consume queues that can be read; the rest of the files is empty, or expired.
    pub queue_entry_bytes: u64,
    /// Slots and entries of an index file; `None` where there is none.
    pub index: Option<IndexGeometry>,
}

impl Reader {
    /// As it was opened.
    pub(crate) fn options(&self) -> &StoreOptions {
        &self.options
    }

    /// The tables of delay levels.
    pub(crate) fn delays(&self) -> &DelayTables {
        &self.delays
    }

    /// How large queue and index files are made here, and what is in them.
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

    /// How many queues `topic` has by the topic table.
    pub(super) fn listed_queues(&self, topic: &str) -> i32 {
        let topic = self.listed.table.topics.get(topic);
        topic.map_or(0, |topic| topic.read_queues.max(topic.write_queues).clamp(0, 65_536))
    }

    /// Attributes of `topic` as the topic table has them.
    pub(crate) fn attributes(&self, topic: &str) -> Vec<(String, String)> {
        let topic = self.listed.table.topics.get(topic);
        topic.map(|topic| topic.attributes.clone()).unwrap_or_default().into_iter().collect()
    }
}
