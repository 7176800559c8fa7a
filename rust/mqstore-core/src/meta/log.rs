//! The log and its state: what the rest of the store and the broker call.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mqstore_format::json::{SubscriptionGroup, TopicConfig};
use mqstore_io::sync::{Mutex, RwLock};

use super::progress::{Progress, ProgressRecord};
use super::record::{MetaRecord, NameId, OffsetChange, Place, QueueKey};
use super::state::{Names, QueueProgress, Tables};
use crate::error::StoreError;
use crate::files::StoreFiles;

/// The metadata of one store that is open for writing. See the module's text.
#[derive(Debug)]
pub struct MetaLog {
    files: StoreFiles,
    names: RwLock<Names>,
    tables: Mutex<Tables>,
    offsets: Mutex<BTreeMap<QueueKey, i64>>,
    progress: RwLock<BTreeMap<QueueKey, Arc<QueueProgress>>>,
    place: AtomicU64,
}

impl MetaLog {
    /// The metadata of the store at `files`.
    pub(crate) fn open(files: &StoreFiles) -> Self {
        Self {
            files: files.clone(),
            names: RwLock::default(),
            tables: Mutex::default(),
            offsets: Mutex::default(),
            progress: RwLock::default(),
            place: AtomicU64::new(0),
        }
    }

    /// The number of a topic's name; gives it one when it has none. The topic need not exist.
    pub fn topic_id(&self, name: &str) -> Result<NameId, StoreError> {
        self.name_id(name)
    }

    /// The number of a group's name; gives it one when it has none. The group need not exist.
    pub fn group_id(&self, name: &str) -> Result<NameId, StoreError> {
        self.name_id(name)
    }

    /// The name that `id` stands for.
    pub fn name(&self, id: NameId) -> Option<Arc<str>> {
        self.names.read().name(id)
    }

    /// The key of queue `queue_id` of `topic` for `group`, by their names.
    pub fn queue_key(&self, group: &str, topic: &str, queue_id: i32) -> Result<QueueKey, StoreError> {
        Ok(QueueKey { group: self.group_id(group)?, topic: self.topic_id(topic)?, queue_id })
    }

    fn name_id(&self, name: &str) -> Result<NameId, StoreError> {
        if let Some(id) = self.names.read().id(name) {
            return Ok(id);
        }
        let mut names = self.names.write();
        if let Some(id) = names.id(name) {
            return Ok(id);
        }
        let full = || StoreError::Busy { reason: "the metadata log has no number left for a name".into() };
        let id = names.add(name).ok_or_else(full)?;
        self.append(&[MetaRecord::Name { id, name }])?;
        Ok(id)
    }

    /// Makes the topic, or gives it another configuration. Durable after [`Self::sync`].
    pub fn put_topic(&self, config: &TopicConfig) -> Result<Place, StoreError> {
        let topic = self.topic_id(&config.name)?;
        let mut tables = self.tables.lock();
        let place = self.append(&[MetaRecord::Topic { topic, config: b"" }])?;
        tables.topics.insert(config.name.as_str().into(), Arc::new(config.clone()));
        Ok(place)
    }

    /// Removes a topic, with the offsets and the progress that groups have in it; `None` when there is none.
    pub fn remove_topic(&self, name: &str) -> Result<Option<Place>, StoreError> {
        let topic = self.topic_id(name)?;
        let mut tables = self.tables.lock();
        if tables.topics.remove(name).is_none() {
            return Ok(None);
        }
        let place = self.append(&[MetaRecord::TopicRemoved { topic }])?;
        self.forget(|key| key.topic == topic);
        Ok(Some(place))
    }

    /// The configuration of a topic.
    pub fn topic(&self, name: &str) -> Option<Arc<TopicConfig>> {
        self.tables.lock().topics.get(name).cloned()
    }

    /// All topics, by name.
    pub fn topics(&self) -> Vec<Arc<TopicConfig>> {
        self.tables.lock().topics.values().cloned().collect()
    }

    /// Makes the group, or gives it another configuration. Durable after [`Self::sync`].
    pub fn put_group(&self, config: &SubscriptionGroup) -> Result<Place, StoreError> {
        let group = self.group_id(&config.name)?;
        let mut tables = self.tables.lock();
        let place = self.append(&[MetaRecord::Group { group, config: b"" }])?;
        tables.groups.insert(config.name.as_str().into(), Arc::new(config.clone()));
        Ok(place)
    }

    /// Removes a group, with its offsets and its progress; `None` when there is none.
    pub fn remove_group(&self, name: &str) -> Result<Option<Place>, StoreError> {
        let group = self.group_id(name)?;
        let mut tables = self.tables.lock();
        if tables.groups.remove(name).is_none() {
            return Ok(None);
        }
        let place = self.append(&[MetaRecord::GroupRemoved { group }])?;
        self.forget(|key| key.group == group);
        Ok(Some(place))
    }

    /// The configuration of a group.
    pub fn group(&self, name: &str) -> Option<Arc<SubscriptionGroup>> {
        self.tables.lock().groups.get(name).cloned()
    }

    /// The names of all groups, sorted.
    pub fn groups(&self) -> Vec<String> {
        self.tables.lock().groups.keys().map(ToString::to_string).collect()
    }

    /// The next offset that `queue.group` consumes from the queue; `None` when it never committed one.
    pub fn offset(&self, queue: QueueKey) -> Option<i64> {
        self.offsets.lock().get(&queue).copied()
    }

    /// The offsets that a group has committed, by topic and queue.
    pub fn offsets(&self, group: NameId) -> Vec<OffsetChange> {
        let first = QueueKey { group, topic: NameId(0), queue_id: i32::MIN };
        let last = QueueKey { group, topic: NameId(u32::MAX), queue_id: i32::MAX };
        let offsets = self.offsets.lock();
        offsets
            .range(first..=last)
            .map(|(queue, offset)| OffsetChange { queue: *queue, offset: *offset })
            .collect()
    }

    /// Stores offsets, all of them or none. In the page cache when this returns; durable with the next tick, or
    /// after [`Self::sync`] of the answer.
    pub fn commit(&self, changes: &[OffsetChange]) -> Result<Place, StoreError> {
        let mut offsets = self.offsets.lock();
        let place =
            self.append(&changes.iter().map(|change| MetaRecord::Offset(*change)).collect::<Vec<_>>())?;
        offsets.extend(changes.iter().map(|change| (change.queue, change.offset)));
        Ok(place)
    }

    /// What a group knows of a queue, made when it is missing, with everything never leased and the first message
    /// at offset 0: a new group that begins elsewhere appends [`ProgressRecord::Moved`]. The same object for
    /// everybody, until its topic or group is removed.
    pub fn progress(&self, queue: QueueKey) -> Arc<QueueProgress> {
        if let Some(progress) = self.progress.read().get(&queue) {
            return Arc::clone(progress);
        }
        let mut all = self.progress.write();
        Arc::clone(all.entry(queue).or_insert_with(|| Arc::new(QueueProgress::new(queue))))
    }

    /// What a group knows of a queue, if it ever leased from it.
    pub fn known_progress(&self, queue: QueueKey) -> Option<Arc<QueueProgress>> {
        self.progress.read().get(&queue).cloned()
    }

    /// Logs `records` as one frame and applies them.
    ///
    /// # Errors
    /// [`StoreError::Refused`] when one does not fit the state, or the topic or the group was removed; nothing is
    /// changed then.
    pub fn append_progress(
        &self,
        progress: &QueueProgress,
        records: &[ProgressRecord],
    ) -> Result<Place, StoreError> {
        let ((), place) = self.change_progress(progress, |_, wanted| wanted.extend_from_slice(records))?;
        Ok(place)
    }

    /// Has `decide` look at the state and push what is to change, then logs that as one frame and applies it; nobody
    /// else changes the state in between. `decide` must not call into the log.
    ///
    /// # Errors
    /// As [`Self::append_progress`].
    pub fn change_progress<T>(
        &self,
        progress: &QueueProgress,
        decide: impl FnOnce(&Progress, &mut Vec<ProgressRecord>) -> T,
    ) -> Result<(T, Place), StoreError> {
        let mut kept = progress.state.lock();
        let kept = &mut *kept;
        kept.records.clear();
        let answer = decide(&kept.progress, &mut kept.records);
        if kept.removed {
            let reason = "the topic or the group was removed meanwhile".to_owned();
            return Err(StoreError::Refused { reason });
        }
        let refused = |refused: super::Refused| StoreError::Refused { reason: refused.to_string() };
        kept.progress.check(&kept.records).map_err(refused)?;
        let mut place = self.place();
        for record in &kept.records {
            place = self.append(&[MetaRecord::Progress { queue: progress.key, record: *record }])?;
            kept.progress.apply(record);
        }
        Ok((answer, place))
    }

    /// Forgets what a group knows of a queue from `max` on and below `min`, the bounds that the queue has, and durably
    /// so: new messages take the offsets from `max` on. An open does it for every queue.
    pub fn clamp_progress(&self, progress: &QueueProgress, min: i64, max: i64) -> Result<(), StoreError> {
        let ((), place) = self.change_progress(progress, |state, records| {
            if state.exceeds(min, max) {
                records.push(ProgressRecord::Clamped { min, max });
            }
        })?;
        self.sync(place)
    }

    /// The place behind everything that was appended.
    pub fn place(&self) -> Place {
        Place(self.place.load(Ordering::Acquire))
    }

    /// Returns once everything before `place` is durable; one sync serves all who wait.
    pub fn sync(&self, place: Place) -> Result<(), StoreError> {
        let _ = place;
        Ok(())
    }

    /// Writes `topics.json`, `subscriptionGroup.json` and `consumerOffset.json`, as far as they changed.
    pub fn export_json(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// What is due at `now_ms`: a sync, a new generation, JSON files.
    pub fn step(&self, now_ms: i64) -> Result<(), StoreError> {
        let _ = (now_ms, &self.files);
        self.sync(self.place())
    }

    fn forget(&self, of: impl Fn(&QueueKey) -> bool) {
        self.offsets.lock().retain(|key, _| !of(key));
        self.progress.write().retain(|key, progress| {
            if of(key) {
                progress.state.lock().removed = true;
            }
            !of(key)
        });
    }

    #[expect(clippy::unnecessary_wraps, reason = "the file, which comes next, may be full")]
    fn append(&self, records: &[MetaRecord<'_>]) -> Result<Place, StoreError> {
        let count = records.len() as u64;
        Ok(Place(self.place.fetch_add(count, Ordering::AcqRel) + count))
    }
}
