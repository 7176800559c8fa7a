//! Batch queues: for topics whose records may hold many messages, one unit of 46 bytes for each record.
//!
//! This folder owns `batchconsumequeue/`; [`BatchQueue`] shows its files. They can be derived from the log, so you may
//! delete them. After a crash, units after the last synced position are truncated and written again.
//!
//! Only the dispatcher writes. Readers see the units up to the end that it has published.
//!
//! Source: `BatchConsumeQueue`, `MappedFileQueue`.

mod bounds;
mod queue;
#[cfg(test)]
mod tests;

pub use queue::{BatchAppendOutcome, BatchQueue};

use std::collections::{BTreeMap, BTreeSet};

use mqstore_io::sync::{Arc, RwLock};
use mqstore_io::{Access, FileCache};

use super::context::QueueContext;
use super::discover;
use super::layout::{BATCH_UNIT_BYTES, QueueLayout};
use mqstore_base::error::{StoreError, Stray};
use mqstore_base::store_files::StoreFiles;
use mqstore_base::topic_floors::TopicFloors;

/// The batch queues of one topic, by id.
type TopicQueues = BTreeMap<i32, Arc<BatchQueue>>;

/// The batch queues of one store.
#[derive(Debug)]
pub(super) struct BatchQueues {
    home: Arc<QueueContext>,
    queues: RwLock<BTreeMap<Box<str>, TopicQueues>>,
    /// Whether the file length is the configured one, because no file shows another.
    guessed: bool,
}

impl BatchQueues {
    /// Lists the batch queues of a store, and the other entries of the folder. The queues are empty until
    /// [`BatchQueue::recover_bounds`]. Without existing files, a new file gets `units` units.
    pub(super) fn load(
        files: &StoreFiles,
        units: u64,
        access: Access,
        cache: Arc<FileCache>,
        floors: &TopicFloors,
    ) -> Result<(Self, Vec<Stray>), StoreError> {
        let found = discover::scan(&*files.vfs, &files.batch_consume_queue())?;
        let configured = QueueLayout::of_units(BATCH_UNIT_BYTES, units).file_bytes();
        let len = discover::common_len(&found.queues, BATCH_UNIT_BYTES, configured);
        let layout = QueueLayout::of_units(BATCH_UNIT_BYTES, len.unwrap_or(configured) / BATCH_UNIT_BYTES);
        let home = Arc::new(QueueContext::new(files, cache, layout, access, floors));
        let set = Self { home, queues: RwLock::default(), guessed: len.is_none() };
        let strays = set.add(found);
        Ok((set, strays))
    }

    /// Byte length of new files, if no existing file shows one.
    pub(super) fn guessed_len(&self) -> Option<u64> {
        self.guessed.then(|| self.home.layout.file_bytes())
    }

    /// Number of units in each file.
    pub(super) fn units_per_file(&self) -> u64 {
        self.home.layout.file_bytes() / BATCH_UNIT_BYTES
    }

    /// Adds queues that appeared since the load. Returns the entries that are no queues.
    pub(super) fn refresh(&self) -> Result<Vec<Stray>, StoreError> {
        let files = &self.home.files;
        Ok(self.add(discover::scan(&*files.vfs, &files.batch_consume_queue())?))
    }

    fn add(&self, found: discover::FoundQueues) -> Vec<Stray> {
        let mut strays = found.strays;
        let mut queues = self.queues.write();
        for found in found.queues {
            let known = queues.entry(Box::from(&*found.topic)).or_default();
            let queue = known
                .entry(found.queue_id)
                .or_insert_with(|| Arc::new(BatchQueue::new(&self.home, &found.topic, found.queue_id)));
            strays.extend(discover::classify(&queue.folder(), &found.entries, self.home.layout).strays);
        }
        strays
    }

    pub(super) fn get(&self, topic: &str, queue_id: i32) -> Option<Arc<BatchQueue>> {
        self.queues.read().get(topic)?.get(&queue_id).cloned()
    }

    pub(super) fn get_or_create(&self, topic: &str, queue_id: i32) -> Result<Arc<BatchQueue>, StoreError> {
        if let Some(queue) = self.get(topic, queue_id) {
            return Ok(queue);
        }
        self.home.may_add(topic, queue_id)?;
        Ok(self.insert(topic, queue_id))
    }

    /// Returns the queue, and adds it if it is missing.
    pub(super) fn insert(&self, topic: &str, queue_id: i32) -> Arc<BatchQueue> {
        let mut queues = self.queues.write();
        let of_topic = queues.entry(topic.into()).or_default();
        let queue = of_topic
            .entry(queue_id)
            .or_insert_with(|| Arc::new(BatchQueue::new(&self.home, topic, queue_id)));
        Arc::clone(queue)
    }

    /// Returns the queue ids of one topic.
    pub(super) fn ids(&self, topic: &str) -> BTreeSet<i32> {
        self.queues.read().get(topic).into_iter().flat_map(BTreeMap::keys).copied().collect()
    }

    /// Returns all queues, by topic and id.
    pub(super) fn all(&self) -> Vec<Arc<BatchQueue>> {
        self.queues.read().values().flat_map(BTreeMap::values).cloned().collect()
    }

    /// Syncs all changes since the last flush: files, then the names in folders.
    pub(super) fn flush(&self) -> Result<(), StoreError> {
        self.all().iter().try_for_each(|queue| queue.flush_files())?;
        self.home.flush()
    }
}
