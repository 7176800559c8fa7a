//! What a reader knows without looking at the log.

use std::sync::Arc;

use mqstore_format::CQ_UNIT_BYTES;

use super::Reader;
use crate::files::DelayTables;
use crate::options::StoreOptions;
use crate::store::info::Geometry;

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
