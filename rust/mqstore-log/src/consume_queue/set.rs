//! All queues of a store.
//!
//! This module owns the tables from topic and queue id to queue, and the list of other entries in `consumequeue/` and
//! `batchconsumequeue/`. A load reads only folders.
//! Descriptors come from one bounded cache, so tens of thousands of queues need no more of them than a few.
//!
//! Source: `ConsumeQueueStore`, `AbstractConsumeQueueStore`.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::{Path, PathBuf};

use mqstore_format::{BatchCqUnit, CqUnit, validate_stored_topic};
use mqstore_io::sync::{Arc, Mutex};
use mqstore_io::{Access, FileCache, parallel_map};

use super::batch::BatchQueue;
use super::layout::{BATCH_UNIT_BYTES, QueueLayout};
use super::queue::ConsumeQueue;
use super::table::{QueueTable, TopicQueues, find};
use mqstore_base::error::{StoreError, Stray};
use mqstore_base::store_files::StoreFiles;
use mqstore_base::topic_floors::TopicFloors;

/// Queues whose bounds are fetched at the same time, so that the fetched parts are in memory until they are used.
const QUEUES_AT_ONCE: usize = 100;

/// Creates the cache of queue files. If appends alternate between more queues than it holds, each append opens a file.
fn open_queue_files(files: &StoreFiles) -> Arc<FileCache> {
    let (queue_files, _) = files.kept_files();
    Arc::new(FileCache::new(Arc::clone(&files.vfs), queue_files))
}

/// The consume queues and batch queues of one store.
#[derive(Debug)]
pub struct QueueSet {
    pub(super) plain: QueueTable<CqUnit>,
    pub(super) batch: QueueTable<BatchCqUnit>,
    strays: Mutex<Vec<Stray>>,
}

impl QueueSet {
    /// Lists the queues of a store. Never writes.
    ///
    /// The set keeps at most [`StoreFiles::kept_files`] open.
    /// The length of queue files is the most frequent length of the existing files. Without files it is
    /// `configured_file_bytes` (default 6,000,000, rounded up to a multiple of 20). The queues are empty until
    /// [`ConsumeQueue::recover_bounds`].
    pub fn load(
        files: &StoreFiles,
        configured_file_bytes: u64,
        access: Access,
        floors: &TopicFloors,
    ) -> Result<Self, StoreError> {
        let cache = open_queue_files(files);
        Self::load_with(files, configured_file_bytes, access, &cache, floors)
    }

    /// Like [`Self::load`], with the descriptors of `cache`.
    pub(super) fn load_with(
        files: &StoreFiles,
        configured_file_bytes: u64,
        access: Access,
        cache: &Arc<FileCache>,
        floors: &TopicFloors,
    ) -> Result<Self, StoreError> {
        let configured = QueueLayout::new(configured_file_bytes);
        let (plain, plain_strays) = QueueTable::load(files, configured, access, cache, floors)?;
        // As in RocketMQ, batch queues have the same number of units in a file unless their files show another.
        let configured = QueueLayout::of_units(BATCH_UNIT_BYTES, configured.units_per_file() as u64);
        let (batch, mut strays) = QueueTable::load(files, configured, access, cache, floors)?;
        strays.extend(plain_strays);
        let set = Self { plain, batch, strays: Mutex::new(strays) };
        set.add_deleted();
        Ok(set)
    }

    /// Creates an empty set with files of the same lengths, under the root of `files`.
    #[must_use]
    pub fn aside(&self, files: &StoreFiles) -> Self {
        let cache = open_queue_files(files);
        let (plain, batch) = (self.plain.aside(files, &cache), self.batch.aside(files, &cache));
        let set = Self { plain, batch, strays: Mutex::default() };
        set.add_deleted();
        set
    }

    /// The floors of deleted topics, which every queue respects.
    pub fn floors(&self) -> &TopicFloors {
        &self.plain.home.floors
    }

    /// Adds the queues of deleted topics without a file: their next offset is in the floor of the topic.
    fn add_deleted(&self) {
        for (topic, floor) in self.plain.home.floors.now().iter() {
            if validate_stored_topic(topic).is_err() {
                continue;
            }
            for queue_id in floor.queues.keys().filter(|queue_id| **queue_id >= 0) {
                if self.batch.get(topic, *queue_id).is_none() {
                    self.plain.insert(topic, *queue_id);
                }
            }
        }
    }

    /// Removes the queue files of a deleted topic, as far as they hold no newer message. Its floor must be durable. A
    /// later open removes the files that are left after a stop.
    pub fn remove_deleted(&self, topic: &str) -> Result<(), StoreError> {
        self.plain.home.writable("remove the queues of a deleted topic")?;
        self.add_deleted();
        self.plain.of_topic(topic).iter().try_for_each(|queue| queue.remove_deleted())?;
        self.batch.of_topic(topic).iter().try_for_each(|queue| queue.remove_deleted())
    }

    /// Returns the lengths of new files of queues and of batch queues, each only if no existing file shows one.
    pub fn guessed_lens(&self) -> (Option<u64>, Option<u64>) {
        (self.plain.guessed_len(), self.batch.guessed_len())
    }

    /// Reloads the set after all files were replaced by equivalent files. No write may run meanwhile; readers may
    /// continue.
    pub fn reload(&self, log_min: u64) -> Result<(), StoreError> {
        self.release();
        self.refresh()?;
        self.recover_bounds()?;
        self.correct_min_offsets(log_min)
    }

    /// Adds queues that appeared since the load, for readers that follow another process. Known queues do not change:
    /// [`ConsumeQueue::recover_bounds`] renews one of them.
    pub fn refresh(&self) -> Result<(), StoreError> {
        let plain = self.plain.refresh()?;
        let mut strays = self.batch.refresh()?;
        strays.extend(plain);
        *self.strays.lock() = strays;
        Ok(())
    }

    /// Finds the bounds of all queues; see [`ConsumeQueue::recover_bounds`].
    pub fn recover_bounds(&self) -> Result<(), StoreError> {
        self.for_each(ConsumeQueue::recover_bounds)?;
        self.batches().iter().try_for_each(|queue| queue.recover_bounds())
    }

    /// Finds the bounds of some queues like [`Self::recover_bounds`], in a file system that fetches what it reads. `max`
    /// returns the maximum of a queue at the last close, if it is known.
    pub fn recover_bounds_near(
        &self,
        queues: &[Arc<ConsumeQueue>],
        max: impl Fn(&str, i32) -> Option<i64> + Sync,
    ) -> Result<(), StoreError> {
        let listed = |queue: &ConsumeQueue| max(queue.topic(), queue.queue_id());
        queues.chunks(QUEUES_AT_ONCE).try_for_each(|queues| {
            for queue in queues {
                listed(queue).map_or(Ok(()), |max| queue.prefetch_bounds(max))?;
            }
            let work = |queue: &Arc<ConsumeQueue>| queue.recover_bounds_near(listed(queue));
            parallel_map(self.plain.home.helpers, "mq-queues", queues, work).map(drop)
        })
    }

    /// Calls `work` for each queue except batch queues, several in parallel.
    pub fn for_each(
        &self,
        work: impl Fn(&ConsumeQueue) -> Result<(), StoreError> + Sync,
    ) -> Result<(), StoreError> {
        self.plain.for_each(work)
    }

    /// Releases the descriptors of a set that is not used any more.
    pub fn release(&self) {
        let files = &self.plain.home.files;
        for folder in [files.root.clone(), files.consume_queue(), files.batch_consume_queue()] {
            self.plain.home.cache.forget_dir(&folder);
        }
    }

    /// Returns the number of files that are open, and the number that the set may keep open.
    pub fn open_files(&self) -> (usize, usize) {
        (self.plain.home.cache.len(), self.plain.home.cache.capacity())
    }

    /// Byte length of every queue file, a multiple of 20.
    pub fn file_bytes(&self) -> u64 {
        self.plain.home.layout.file_bytes()
    }

    /// Returns the entries of the queues' folders that are no queue files, as of the load or the last refresh.
    pub fn strays(&self) -> Vec<Stray> {
        self.strays.lock().clone()
    }

    /// Returns the queue, if it is known.
    pub fn get(&self, topic: &str, queue_id: i32) -> Option<Arc<ConsumeQueue>> {
        self.plain.get(topic, queue_id)
    }

    /// Returns the queue, and creates it if necessary. A new queue has no files before its first commit. Fails for a
    /// read-only set, and for a topic name that cannot be a folder name.
    pub fn get_or_create(&self, topic: &str, queue_id: i32) -> Result<Arc<ConsumeQueue>, StoreError> {
        self.plain.get_or_create(topic, queue_id)
    }

    /// Returns the batch queue, if it is known.
    pub fn batch(&self, topic: &str, queue_id: i32) -> Option<Arc<BatchQueue>> {
        self.batch.get(topic, queue_id)
    }

    /// Returns the batch queue, and creates it if necessary. A new one has no files before its first unit. Fails like
    /// [`Self::get_or_create`].
    pub fn batch_or_create(&self, topic: &str, queue_id: i32) -> Result<Arc<BatchQueue>, StoreError> {
        self.batch.get_or_create(topic, queue_id)
    }

    /// Returns all batch queues, by topic and id.
    pub fn batches(&self) -> Vec<Arc<BatchQueue>> {
        self.batch.all()
    }

    /// Returns all queues except batch queues, by topic and id.
    pub fn all(&self) -> Vec<Arc<ConsumeQueue>> {
        self.plain.all()
    }

    /// Calls `look` for all queues except batch queues, by topic and id, until it fails. No queue is added meanwhile.
    pub(crate) fn try_each<E>(&self, mut look: impl FnMut(&ConsumeQueue) -> Result<(), E>) -> Result<(), E> {
        let queues = self.plain.queues.read();
        queues.values().flatten().try_for_each(|(_, queue)| look(queue))
    }

    /// Like `try_each`, for a `look` that cannot fail.
    pub fn each(&self, mut look: impl FnMut(&ConsumeQueue)) {
        let Ok(()) = self.try_each(|queue| {
            look(queue);
            Ok::<_, Infallible>(())
        });
    }

    /// Returns minimum and maximum of the named queues; `None` for an unknown queue. Fastest if the names have the
    /// order of [`Self::all`].
    pub(crate) fn bounds_of(&self, names: &[(&str, i32)]) -> Vec<Option<(i64, i64)>> {
        let queues = self.plain.queues.read();
        let has_batches = self.batch.count() > 0;
        let chunks: Vec<_> = names.chunk_by(|(a, _), (b, _)| a == b).collect();
        let bounds = parallel_map(self.plain.home.helpers, "mq-queues", &chunks, |names| {
            let plain = names.first().and_then(|(topic, _)| queues.get(*topic));
            let bounds = names.iter().map(|(topic, queue_id)| {
                let batch = if has_batches { self.batch(topic, *queue_id) } else { None };
                let batch = batch.map(|queue| (queue.min_offset(), queue.max_offset()));
                batch
                    .or_else(|| find(plain?, *queue_id).map(|queue| (queue.min_offset(), queue.max_offset())))
            });
            Ok::<_, Infallible>(bounds.collect::<Vec<_>>())
        });
        let Ok(bounds) = bounds;
        bounds.concat()
    }

    /// Wakes all waiters of all queues.
    pub fn wake_all(&self) {
        // A woken waiter may add a queue, so the table must not be locked.
        self.all().iter().for_each(|queue| queue.arrivals().wake_all());
        self.batches().iter().for_each(|queue| queue.arrivals().wake_all());
    }

    /// Wakes all waiters of the queues of one topic.
    pub fn wake_topic(&self, topic: &str) {
        self.plain.of_topic(topic).iter().for_each(|queue| queue.arrivals().wake_all());
        self.batch.of_topic(topic).iter().for_each(|queue| queue.arrivals().wake_all());
    }

    /// Number of queues, batch queues included.
    pub fn count(&self) -> usize {
        self.plain.count() + self.batch.count()
    }

    /// Returns the queue ids of one topic, batch queues included.
    pub fn ids(&self, topic: &str) -> BTreeSet<i32> {
        self.batch.ids(topic).into_iter().chain(self.plain.ids(topic)).collect()
    }

    /// Whether the queue is known and has a unit that can be read.
    pub fn has_units(&self, topic: &str, queue_id: i32) -> bool {
        self.get(topic, queue_id).is_some_and(|queue| !queue.is_empty())
            || self.batch(topic, queue_id).is_some_and(|queue| !queue.is_empty())
    }

    /// Returns the sum of the minimum offsets of all queues of one topic.
    pub fn first_offsets(&self, topic: &str) -> u64 {
        let first = |queue_id| match self.batch(topic, queue_id) {
            Some(queue) => queue.min_offset(),
            None => self.get(topic, queue_id).map_or(0, |queue| queue.min_offset()),
        };
        self.ids(topic).into_iter().map(|queue_id| first(queue_id).max(0) as u64).sum()
    }

    /// Returns the queue ids of each topic in ascending order, batch queues included.
    pub fn topics(&self) -> BTreeMap<String, Vec<i32>> {
        let queues = self.plain.queues.read();
        let ids = |queues: &TopicQueues<CqUnit>| queues.iter().map(|(id, _)| *id).collect();
        let plain = queues.iter().map(|(topic, queues)| (topic.to_string(), ids(queues)));
        let mut topics: BTreeMap<String, Vec<i32>> = plain.collect();
        for queue in self.batches() {
            let ids = topics.entry(queue.topic().to_owned()).or_default();
            if let Err(place) = ids.binary_search(&queue.queue_id()) {
                ids.insert(place, queue.queue_id());
            }
        }
        topics
    }

    /// Lets the next flush sync the names in `folder`, which other code created.
    pub(crate) fn mark_folder(&self, folder: &Path) {
        self.plain.home.mark_folder(folder);
    }

    /// Syncs all changes since the last flush: files with new units, then folders with new or removed names. After an
    /// error, the next flush syncs the rest.
    pub fn flush(&self) -> Result<(), StoreError> {
        self.plain.home.flush()?;
        self.batch.home.flush()
    }

    /// Moves the folder of a queue to `lost+found/`, so that dispatch can derive the queue from the log again; it is
    /// empty then. This is one rename: after a crash the old queue exists, or none. Returns the new path of the folder;
    /// `None` if none existed.
    pub fn set_aside(&self, topic: &str, queue_id: i32) -> Result<Option<PathBuf>, StoreError> {
        self.plain.set_aside("consumequeue", topic, queue_id)
    }

    /// Like [`Self::set_aside`], for a batch queue.
    pub(crate) fn quarantine_batch_queue(
        &self,
        topic: &str,
        queue_id: i32,
    ) -> Result<Option<PathBuf>, StoreError> {
        self.batch.set_aside("batchconsumequeue", topic, queue_id)
    }
}
