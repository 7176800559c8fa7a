//! The queues of one kind, by topic and id.
//!
//! A queue is an entry in a table and a few words of memory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use mqstore_io::sync::{Arc, RwLock};
use mqstore_io::{Access, FileCache, parallel_map};

use super::context::QueueContext;
use super::discover::{self, FoundQueues};
use super::layout::QueueLayout;
use super::queue::{Queue, QueueUnit};
use mqstore_base::error::{IoContext, StoreError, Stray};
use mqstore_base::store_files::StoreFiles;
use mqstore_base::topic_floors::TopicFloors;

/// The queues of one topic by ascending id. In stores with very many topics, most topics have one queue.
pub(super) type TopicQueues<U> = Vec<(i32, Arc<Queue<U>>)>;

pub(super) fn find<U: QueueUnit>(queues: &TopicQueues<U>, queue_id: i32) -> Option<&Arc<Queue<U>>> {
    let place = queues.binary_search_by_key(&queue_id, |(id, _)| *id).ok()?;
    queues.get(place).map(|(_, queue)| queue)
}

fn get_or_insert_with<U: QueueUnit>(
    queues: &mut TopicQueues<U>,
    queue_id: i32,
    make: impl FnOnce() -> Arc<Queue<U>>,
) -> Arc<Queue<U>> {
    if let Some(queue) = find(queues, queue_id) {
        return Arc::clone(queue);
    }
    let queue = make();
    let place = queues.partition_point(|(id, _)| *id < queue_id);
    if queues.is_empty() {
        queues.reserve_exact(1);
    }
    queues.insert(place, (queue_id, Arc::clone(&queue)));
    queue
}

/// The queues with units of type `U` of one store.
#[derive(Debug)]
pub(super) struct QueueTable<U: QueueUnit> {
    pub(super) home: Arc<QueueContext>,
    pub(super) queues: RwLock<BTreeMap<Arc<str>, TopicQueues<U>>>,
    /// Whether the file length is the configured one, because no file shows another.
    guessed: bool,
}

impl<U: QueueUnit> QueueTable<U> {
    /// Lists the queues of a store, and the other entries of the folder. Without existing files, new files get the
    /// layout `configured`.
    pub(super) fn load(
        files: &StoreFiles,
        configured: QueueLayout,
        access: Access,
        cache: &Arc<FileCache>,
        floors: &TopicFloors,
    ) -> Result<(Self, Vec<Stray>), StoreError> {
        let found = discover::scan(&*files.vfs, &U::folder(files))?;
        let len = discover::common_len(&found.queues, U::BYTES, configured.file_bytes());
        let layout = len.map_or(configured, |len| QueueLayout::of_units(U::BYTES, len / U::BYTES));
        let home = Arc::new(QueueContext::new(files, Arc::clone(cache), layout, access, floors));
        let table = Self { home, queues: RwLock::default(), guessed: len.is_none() };
        // While another process writes, this listing may already be out of date.
        let strays = table.add(found, access == Access::ReadWrite);
        Ok((table, strays))
    }

    /// Creates an empty table with files of the same length, under the root of `files`.
    pub(super) fn aside(&self, files: &StoreFiles, cache: &Arc<FileCache>) -> Self {
        let (layout, floors) = (self.home.layout, &self.home.floors);
        let home = QueueContext::new(files, Arc::clone(cache), layout, Access::ReadWrite, floors);
        Self { home: Arc::new(home), queues: RwLock::default(), guessed: false }
    }

    /// Byte length of new files, if no existing file shows one.
    pub(super) fn guessed_len(&self) -> Option<u64> {
        self.guessed.then(|| self.home.layout.file_bytes())
    }

    /// Adds queues that appeared since the load. Returns the entries that are no queues.
    pub(super) fn refresh(&self) -> Result<Vec<Stray>, StoreError> {
        let files = &self.home.files;
        Ok(self.add(discover::scan(&*files.vfs, &U::folder(files))?, false))
    }

    /// Adds the listed queues. `alone` says that no other process changes them before their bounds are found.
    fn add(&self, found: FoundQueues, alone: bool) -> Vec<Stray> {
        let mut strays = found.strays;
        let mut queues = self.queues.write();
        for found in found.queues.chunk_by(|a, b| Arc::ptr_eq(&a.topic, &b.topic)) {
            let Some(topic) = found.first().map(|found| &found.topic) else { continue };
            let known = queues.entry(Arc::clone(topic)).or_default();
            for found in found {
                let new = || Queue::new(&self.home, topic, found.queue_id);
                let queue = get_or_insert_with(known, found.queue_id, new);
                let mut listing = discover::classify(&queue.folder(), &found.entries, self.home.layout);
                queue.change_damage(|damage| damage.files.clone_from(&listing.damaged));
                strays.append(&mut listing.strays);
                if alone {
                    queue.writing.lock().listed = Some(Box::new(listing));
                }
            }
        }
        strays
    }

    pub(super) fn get(&self, topic: &str, queue_id: i32) -> Option<Arc<Queue<U>>> {
        find(self.queues.read().get(topic)?, queue_id).cloned()
    }

    pub(super) fn get_or_create(&self, topic: &str, queue_id: i32) -> Result<Arc<Queue<U>>, StoreError> {
        if let Some(queue) = self.get(topic, queue_id) {
            return Ok(queue);
        }
        self.home.may_add(topic, queue_id)?;
        Ok(self.insert(topic, queue_id))
    }

    /// Returns the queue, and adds it if it is missing.
    pub(super) fn insert(&self, topic: &str, queue_id: i32) -> Arc<Queue<U>> {
        let mut queues = self.queues.write();
        let topic = queues.get_key_value(topic).map_or_else(|| topic.into(), |(topic, _)| Arc::clone(topic));
        let known = queues.entry(Arc::clone(&topic)).or_default();
        get_or_insert_with(known, queue_id, || Queue::new(&self.home, &topic, queue_id))
    }

    /// Returns the queues of one topic by ascending id.
    pub(super) fn of_topic(&self, topic: &str) -> Vec<Arc<Queue<U>>> {
        self.queues.read().get(topic).into_iter().flatten().map(|(_, queue)| Arc::clone(queue)).collect()
    }

    pub(super) fn ids(&self, topic: &str) -> Vec<i32> {
        self.queues.read().get(topic).into_iter().flatten().map(|(id, _)| *id).collect()
    }

    /// Returns all queues, by topic and id.
    pub(super) fn all(&self) -> Vec<Arc<Queue<U>>> {
        let queues = self.queues.read();
        let mut all = Vec::with_capacity(queues.values().map(Vec::len).sum());
        all.extend(queues.values().flatten().map(|(_, queue)| Arc::clone(queue)));
        all
    }

    /// Number of queues.
    pub(super) fn count(&self) -> usize {
        self.queues.read().values().map(Vec::len).sum()
    }

    /// Calls `work` for each queue, several in parallel.
    pub(super) fn for_each(
        &self,
        work: impl Fn(&Queue<U>) -> Result<(), StoreError> + Sync,
    ) -> Result<(), StoreError> {
        parallel_map(self.home.helpers, "mq-queues", &self.all(), |queue| work(queue)).map(drop)
    }

    /// Moves the folder of a queue to a folder of `kind` in `lost+found/`. Returns its new path, if it existed.
    pub(super) fn set_aside(
        &self,
        kind: &str,
        topic: &str,
        queue_id: i32,
    ) -> Result<Option<PathBuf>, StoreError> {
        self.home.writable("set a queue aside")?;
        let queue = self.get_or_create(topic, queue_id)?;
        let moved = self.move_to_lost_and_found(kind, topic, queue_id, &queue.folder())?;
        queue.forget_files();
        Ok(moved)
    }

    fn move_to_lost_and_found(
        &self,
        kind: &str,
        topic: &str,
        queue_id: i32,
        from: &Path,
    ) -> Result<Option<PathBuf>, StoreError> {
        let vfs = &self.home.files.vfs;
        let number = self.home.files.clock.now_ms();
        let target = self.home.files.lost_and_found_for(from).join(format!("{kind}.{number}")).join(topic);
        vfs.create_dir_all(&target).at(&target, "creating a folder for a damaged queue")?;
        let mut to = target.join(queue_id.to_string());
        let mut copy = 0;
        let moved = loop {
            match vfs.rename_noreplace(from, &to) {
                Ok(()) => break Some(to),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => break None,
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && copy < 1000 => {
                    copy += 1;
                    to = target.join(format!("{queue_id}.{copy}"));
                }
                Err(error) => {
                    return Err(StoreError::io(from, "moving a damaged queue to lost+found", error));
                }
            }
        };
        if moved.is_some() {
            for folder in from.parent().into_iter().chain(self.home.files.folders_up_from(&target)) {
                self.home.mark_folder(folder);
            }
        }
        Ok(moved)
    }
}
