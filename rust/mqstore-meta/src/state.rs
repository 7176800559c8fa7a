//! The state that results from the records of the metadata log.
//!
//! During an open, one [`MetaState`] holds everything. Afterwards, each part has its own lock.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use foldhash::fast::RandomState;
use mqstore_base::topic_floors::{FloorTable, TopicFloor, TopicRetention};
use mqstore_format::json::{
    ConsumerOffsets, Dialect, QueueOffsets, SubscriptionGroup, TopicConfig, TopicTable,
};
use mqstore_io::sync::{Mutex, MutexGuard};

use super::progress::{Progress, ProgressRecord};
use super::record::{
    JsonFile, JsonStamp, MetaPosition, MetaRecord, NameId, OffsetChange, QueueKey, SavedState,
};

/// Names and their numbers.
#[derive(Debug, Default)]
pub(super) struct NameTable {
    ids: HashMap<Arc<str>, NameId, RandomState>,
    texts: HashMap<NameId, Arc<str>, RandomState>,
    next: u32,
}

impl NameTable {
    pub(super) fn id(&self, name: &str) -> Option<NameId> {
        self.ids.get(name).copied()
    }

    pub(super) fn name(&self, id: NameId) -> Option<Arc<str>> {
        self.texts.get(&id).cloned()
    }

    /// Returns the number for the next new name; `None` if all are used.
    pub(super) fn free(&self) -> Option<NameId> {
        (self.next < u32::MAX).then_some(NameId(self.next))
    }

    pub(super) fn insert(&mut self, id: NameId, name: Arc<str>) {
        self.next = self.next.max(id.0.saturating_add(1));
        self.ids.insert(Arc::clone(&name), id);
        self.texts.insert(id, name);
    }

    /// Returns all names, and the first number that was never used.
    pub(super) fn all(&self) -> (Vec<(NameId, Arc<str>)>, NameId) {
        let mut all: Vec<_> = self.texts.iter().map(|(id, name)| (*id, Arc::clone(name))).collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        (all, NameId(self.next))
    }

    fn keep(&mut self, used: &HashSet<NameId, RandomState>) {
        self.texts.retain(|id, _| used.contains(id));
        self.ids.retain(|_, id| used.contains(id));
    }
}

/// One entry of the table of topics or groups.
#[derive(Debug)]
pub(super) struct ConfigEntry<T> {
    pub(super) id: NameId,
    pub(super) config: Arc<T>,
    pub(super) saved: SavedState,
}

impl<T> Clone for ConfigEntry<T> {
    fn clone(&self) -> Self {
        Self { config: Arc::clone(&self.config), ..*self }
    }
}

/// The known state of one JSON file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct JsonState {
    /// Stamp of the existing file, from the last write or read.
    pub(super) known: Option<JsonStamp>,
    /// Stamp of the file that was going to replace it.
    pub(super) intended: Option<JsonStamp>,
    /// Whether there are changes that are in neither file.
    pub(super) changed: bool,
    /// Whether a write of the file began and its end is not known.
    pub(super) begun: bool,
}

/// Topics and groups by name, and the state of the JSON files.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) topics: BTreeMap<Arc<str>, ConfigEntry<TopicConfig>>,
    pub(super) groups: BTreeMap<Arc<str>, ConfigEntry<SubscriptionGroup>>,
    /// Topics that were removed and not created again.
    pub(super) removed: BTreeMap<Arc<str>, NameId>,
    /// The floor of each topic that was ever removed or has lost messages to its retention, and the number of its name.
    pub(super) floors: BTreeMap<Arc<str>, (NameId, TopicFloor)>,
    /// The limits of each topic with a retention, and the number of its name.
    pub(super) retentions: BTreeMap<Arc<str>, (NameId, TopicRetention)>,
    json: [JsonState; 3],
}

impl Tables {
    pub(super) fn put_topic(&mut self, name: Arc<str>, entry: ConfigEntry<TopicConfig>) {
        self.json(JsonFile::Topics).changed |= entry.saved == SavedState::Changed;
        self.removed.remove(&name);
        self.topics.insert(name, entry);
    }

    pub(super) fn remove_topic(&mut self, name: Arc<str>, id: NameId) {
        self.json(JsonFile::Topics).changed = true;
        self.topics.remove(&name);
        self.retentions.remove(&name);
        self.removed.insert(name, id);
    }

    /// Sets the limits of a topic; without any, it has no retention.
    pub(super) fn set_retention(&mut self, name: Arc<str>, id: NameId, limits: TopicRetention) {
        if limits.is_empty() {
            self.retentions.remove(&name);
        } else {
            self.retentions.insert(name, (id, limits));
        }
    }

    pub(super) fn retention_table(&self) -> BTreeMap<Arc<str>, TopicRetention> {
        self.retentions.iter().map(|(name, (_, limits))| (Arc::clone(name), *limits)).collect()
    }

    pub(super) fn floor_table(&self) -> FloorTable {
        let mut table = FloorTable::default();
        for (name, (_, floor)) in &self.floors {
            table.insert(Arc::clone(name), floor.clone());
        }
        table
    }

    pub(super) fn put_group(&mut self, name: Arc<str>, entry: ConfigEntry<SubscriptionGroup>) {
        self.json(JsonFile::Groups).changed |= entry.saved == SavedState::Changed;
        self.groups.insert(name, entry);
    }

    pub(super) fn remove_group(&mut self, name: &str) {
        self.json(JsonFile::Groups).changed = true;
        self.groups.remove(name);
    }

    #[expect(clippy::indexing_slicing, reason = "the array has one element for each file")]
    pub(super) fn json(&mut self, file: JsonFile) -> &mut JsonState {
        &mut self.json[file as usize]
    }

    /// Marks all changes so far as part of the file that is now being written.
    pub(super) fn begin_json(&mut self, file: JsonFile) {
        *self.json(file) = JsonState { changed: false, begun: true, ..*self.json(file) };
        self.pass(file, SavedState::Changed, SavedState::BeingWritten);
    }

    /// Records that the existing file has this stamp.
    pub(super) fn set_json_stamp(&mut self, file: JsonFile, stamp: JsonStamp) {
        *self.json(file) = JsonState { known: Some(stamp), intended: None, begun: false, ..*self.json(file) };
        self.pass(file, SavedState::BeingWritten, SavedState::Written);
    }

    fn pass(&mut self, file: JsonFile, from: SavedState, to: SavedState) {
        let pass = |saved: &mut SavedState| {
            if *saved == from {
                *saved = to;
            }
        };
        match file {
            JsonFile::Topics => self.topics.values_mut().for_each(|entry| pass(&mut entry.saved)),
            JsonFile::Groups => self.groups.values_mut().for_each(|entry| pass(&mut entry.saved)),
            JsonFile::Offsets => {}
        }
    }
}

/// A map with a value for each queue of each group, searchable by group and by topic.
#[derive(Debug)]
pub(super) struct QueueMap<T> {
    all: BTreeMap<QueueKey, T>,
    /// Pairs of a topic and a group that has values for it.
    of_topics: BTreeSet<(NameId, NameId)>,
}

impl<T> Default for QueueMap<T> {
    fn default() -> Self {
        Self { all: BTreeMap::new(), of_topics: BTreeSet::new() }
    }
}

impl<T> QueueMap<T> {
    pub(super) fn get(&self, queue: QueueKey) -> Option<&T> {
        self.all.get(&queue)
    }

    pub(super) fn insert(&mut self, queue: QueueKey, value: T) {
        if self.all.insert(queue, value).is_none() {
            self.of_topics.insert((queue.topic, queue.group));
        }
    }

    pub(super) fn get_or_insert_with(&mut self, queue: QueueKey, make: impl FnOnce() -> T) -> &mut T {
        self.all.entry(queue).or_insert_with(|| {
            self.of_topics.insert((queue.topic, queue.group));
            make()
        })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&QueueKey, &T)> {
        self.all.iter()
    }

    pub(super) fn contains(&self, queue: QueueKey) -> bool {
        self.all.contains_key(&queue)
    }

    pub(super) fn groups(&self) -> Vec<NameId> {
        let mut groups = Vec::new();
        let mut from = NameId(0);
        while let Some((queue, _)) = self.all.range(first_of(from, NameId(0))..).next() {
            groups.push(queue.group);
            let Some(next) = queue.group.0.checked_add(1) else { break };
            from = NameId(next);
        }
        groups
    }

    pub(super) fn of_group(&self, group: NameId) -> impl Iterator<Item = (&QueueKey, &T)> {
        self.all.range(first_of(group, NameId(0))..=last_of(group, NameId(u32::MAX)))
    }

    /// Returns up to `most` entries after `last`, in order.
    pub(super) fn behind(&self, last: Option<QueueKey>, most: usize) -> Vec<(QueueKey, T)>
    where
        T: Clone,
    {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = last.map_or(Unbounded, Excluded);
        self.all.range((from, Unbounded)).take(most).map(|(queue, value)| (*queue, value.clone())).collect()
    }

    /// Removes and returns the values of all groups for a topic.
    pub(super) fn remove_topic(&mut self, topic: NameId) -> Vec<(QueueKey, T)> {
        let range = (topic, NameId(0))..=(topic, NameId(u32::MAX));
        let groups: Vec<NameId> = self.of_topics.range(range).map(|(_, group)| *group).collect();
        groups.into_iter().flat_map(|group| self.remove(group, topic, topic)).collect()
    }

    /// Removes and returns the values of a group for all topics.
    pub(super) fn remove_group(&mut self, group: NameId) -> Vec<(QueueKey, T)> {
        self.remove(group, NameId(0), NameId(u32::MAX))
    }

    pub(super) fn remove_queue(&mut self, queue: QueueKey) -> Option<T> {
        let taken = self.all.remove(&queue)?;
        let QueueKey { group, topic, .. } = queue;
        if self.all.range(first_of(group, topic)..=last_of(group, topic)).next().is_none() {
            self.of_topics.remove(&(topic, group));
        }
        Some(taken)
    }

    fn remove(&mut self, group: NameId, first: NameId, last: NameId) -> Vec<(QueueKey, T)> {
        let range = first_of(group, first)..=last_of(group, last);
        let queues: Vec<QueueKey> = self.all.range(range).map(|(queue, _)| *queue).collect();
        let taken = queues.into_iter().filter_map(|queue| {
            self.of_topics.remove(&(queue.topic, queue.group));
            self.all.remove_entry(&queue)
        });
        taken.collect()
    }
}

fn first_of(group: NameId, topic: NameId) -> QueueKey {
    QueueKey { group, topic, queue_id: i32::MIN }
}

fn last_of(group: NameId, topic: NameId) -> QueueKey {
    QueueKey { group, topic, queue_id: i32::MAX }
}

/// The [`Progress`] of one group in one queue, shared by threads.
///
/// Only [`MetaLog::append_progress`](super::MetaLog::append_progress),
/// [`MetaLog::change_progress`](super::MetaLog::change_progress) and methods that call them change it.
#[derive(Debug)]
pub struct QueueProgress {
    pub(super) key: QueueKey,
    pub(super) state: Mutex<KeptState>,
}

/// The data under the lock of a [`QueueProgress`].
#[derive(Debug, Default)]
pub(super) struct KeptState {
    pub(super) progress: Progress,
    /// Whether its topic or its group was removed; then nothing more may be appended.
    pub(super) removed: bool,
    /// The records of the current change; the buffer is reused so that a change allocates nothing.
    pub(super) records: Vec<ProgressRecord>,
}

impl QueueProgress {
    pub(super) fn new(key: QueueKey, progress: Progress) -> Arc<Self> {
        Arc::new(Self { key, state: Mutex::new(KeptState { progress, ..KeptState::default() }) })
    }

    /// Returns the group, the topic and the queue.
    pub fn queue(&self) -> QueueKey {
        self.key
    }

    /// Whether its topic or its group was removed. It takes no change then, and a new topic has another progress.
    pub fn is_removed(&self) -> bool {
        self.state.lock().removed
    }

    /// Returns the group's offset in this queue. `None` if it has none, or if its topic or group was removed.
    pub(super) fn offset(&self) -> Option<i64> {
        let kept = self.state.lock();
        kept.progress.offset().filter(|_| !kept.removed)
    }

    /// Locks the state for reading. Changes wait while the caller holds the result. The caller must not call into the
    /// log meanwhile.
    pub fn lock(&self) -> ProgressView<'_> {
        ProgressView(self.state.lock())
    }
}

/// A locked view of a [`Progress`].
#[derive(Debug)]
pub struct ProgressView<'a>(MutexGuard<'a, KeptState>);

impl std::ops::Deref for ProgressView<'_> {
    type Target = Progress;

    fn deref(&self) -> &Progress {
        &self.0.progress
    }
}

/// The complete state during replay.
#[derive(Debug, Default)]
pub struct MetaState {
    pub(super) names: NameTable,
    pub(super) tables: Tables,
    /// Offsets of groups in queues without a progress. If a progress exists, it counts instead.
    pub(super) offsets: QueueMap<i64>,
    pub(super) progress: QueueMap<Progress>,
    /// Everything before this position is synced.
    pub(super) synced: MetaPosition,
    /// The JSON dialect of the directory's files.
    pub(super) dialect: Dialect,
    /// The position at which each stored progress was read; it includes all changes appended before.
    kept_at: HashMap<QueueKey, MetaPosition, RandomState>,
    kept_last: Option<QueueKey>,
}

/// Topics and groups by name.
#[derive(Debug, Default)]
pub struct ListedTables {
    /// The topics, as in their JSON file.
    pub table: TopicTable,
    /// Topics that were removed and not created again.
    pub removed: BTreeSet<String>,
    /// The floors of topics that were ever removed or have lost messages to their retention.
    pub floors: FloorTable,
    /// The limits of the topics that have a retention.
    pub retentions: BTreeMap<Arc<str>, TopicRetention>,
    /// The groups, sorted.
    pub groups: Vec<String>,
    /// The groups that have a configuration.
    pub group_configs: BTreeMap<String, SubscriptionGroup>,
}

/// Reasons why a record does not fit the records before it.
const NO_NAME: &str = "a record uses a number without a name";
const NO_CONFIG: &str = "a topic or group has an invalid configuration";
const NO_FLOOR: &str = "a queue of a topic has a first offset, but its topic has no floor";
const NO_PROGRESS: &str = "a stored progress is inconsistent";

impl MetaState {
    /// Applies a frame that was appended at `place`. Returns whether any record changes the state.
    pub(super) fn apply_frame(
        &mut self,
        mut records: &[u8],
        place: MetaPosition,
    ) -> Result<bool, &'static str> {
        let mut decoded = Vec::new();
        while !records.is_empty() {
            decoded.push(MetaRecord::decode(&mut records).ok_or("a record does not decode")?);
        }
        decoded.iter().try_for_each(|record| self.apply(record, place))?;
        Ok(decoded.iter().any(|record| !matches!(record, MetaRecord::Synced { .. })))
    }

    fn apply(&mut self, record: &MetaRecord<'_>, place: MetaPosition) -> Result<(), &'static str> {
        match *record {
            MetaRecord::Name { id, name } => self.names.insert(id, name.into()),
            MetaRecord::NextId { id } => self.names.next = self.names.next.max(id),
            MetaRecord::Topic { topic, saved, config } => {
                let name = self.name(topic)?;
                let config = TopicConfig::parse(&name, config.as_bytes()).map_err(|_| NO_CONFIG)?;
                self.tables.put_topic(name, ConfigEntry { id: topic, config: Arc::new(config), saved });
            }
            MetaRecord::TopicRemoved { topic } => {
                let name = self.name(topic)?;
                self.tables.remove_topic(name, topic);
                self.offsets.remove_topic(topic);
                let gone = self.progress.remove_topic(topic);
                self.restore_recreated(gone, place);
                self.tables.json(JsonFile::Offsets).changed = true;
            }
            MetaRecord::Floor { topic, log_offset } => {
                let floor = TopicFloor::of_deletion(log_offset, BTreeMap::new());
                self.tables.floors.insert(self.name(topic)?, (topic, floor));
            }
            MetaRecord::RaisedFloor { topic, log_offset } => {
                let none = || (topic, TopicFloor::default());
                let known = self.tables.floors.entry(self.name(topic)?).or_insert_with(none);
                // The floor of a log that lost its end goes back to this end.
                known.1.clamp(log_offset);
                known.1.log_offset = log_offset;
            }
            MetaRecord::Retention { topic, limits } => {
                self.tables.set_retention(self.name(topic)?, topic, limits);
            }
            MetaRecord::QueueFloor { topic, queue_id, offset } => {
                let known = self.tables.floors.get_mut(&self.name(topic)?);
                known.ok_or(NO_FLOOR)?.1.queues.insert(queue_id, offset);
            }
            MetaRecord::Group { group, saved, config } => {
                let name = self.name(group)?;
                let config = SubscriptionGroup::parse(&name, config.as_bytes()).map_err(|_| NO_CONFIG)?;
                self.tables.put_group(name, ConfigEntry { id: group, config: Arc::new(config), saved });
            }
            MetaRecord::GroupRemoved { group } => {
                let name = self.name(group)?;
                self.tables.remove_group(&name);
                self.offsets.remove_group(group);
                let gone = self.progress.remove_group(group);
                self.restore_recreated(gone, place);
                self.tables.json(JsonFile::Offsets).changed = true;
            }
            MetaRecord::Offset(OffsetChange { queue, offset }) => {
                self.check_queue(queue)?;
                if !self.progress.contains(queue) {
                    self.offsets.insert(queue, offset);
                }
                self.tables.json(JsonFile::Offsets).changed = true;
            }
            MetaRecord::JsonBegun { file } => self.tables.begin_json(file),
            MetaRecord::JsonIntended { file, stamp } => self.tables.json(file).intended = Some(stamp),
            MetaRecord::JsonKnown { file, stamp } => self.tables.set_json_stamp(file, stamp),
            MetaRecord::JsonChanged { file, changed } => self.tables.json(file).changed = changed,
            MetaRecord::Synced { place } => self.synced = self.synced.max(place),
            MetaRecord::Progress { queue, ref record } => {
                self.check_queue(queue)?;
                if self.kept_at.get(&queue).is_none_or(|kept| place >= *kept) {
                    self.apply_progress(queue, record);
                }
            }
            MetaRecord::Kept { queue, place, committed, next } => {
                self.check_queue(queue)?;
                let progress = Progress::between(committed, next).ok_or(NO_PROGRESS)?;
                self.progress.insert(queue, progress);
                self.offsets.remove_queue(queue);
                self.kept_at.insert(queue, place);
                self.kept_last = Some(queue);
            }
            MetaRecord::KeptPart(ref part) => {
                let kept = self.kept_last.and_then(|queue| self.progress.all.get_mut(&queue));
                if !kept.ok_or(NO_PROGRESS)?.restore(part) {
                    return Err(NO_PROGRESS);
                }
            }
        }
        Ok(())
    }

    fn apply_progress(&mut self, queue: QueueKey, record: &ProgressRecord) {
        let offset = self.offsets.remove_queue(queue);
        let progress = self.progress.get_or_insert_with(queue, || Progress::of(offset));
        let before = progress.offset();
        progress.apply(record);
        self.tables.json(JsonFile::Offsets).changed |= progress.offset() != before;
    }

    /// Restores progress whose stored value is newer than the removal at `place`: the topic or group was created again.
    fn restore_recreated(&mut self, removed: Vec<(QueueKey, Progress)>, place: MetaPosition) {
        for (queue, progress) in removed {
            if self.kept_at.get(&queue).is_some_and(|kept| place < *kept) {
                self.progress.insert(queue, progress);
            }
        }
    }

    /// Returns the group's offset in a queue.
    pub(super) fn offset(&self, queue: QueueKey) -> Option<i64> {
        let progress = self.progress.get(queue).and_then(Progress::offset);
        progress.or_else(|| self.offsets.get(queue).copied())
    }

    /// Sets the group's offset to `offset`, as in a broker's file.
    pub(super) fn take_offset(&mut self, queue: QueueKey, offset: i64) {
        match self.progress.get(queue).map(|progress| progress.set_offset_record(offset)) {
            None => self.offsets.insert(queue, offset),
            Some(record) => record.into_iter().for_each(|record| self.apply_progress(queue, &record)),
        }
    }

    fn name(&self, id: NameId) -> Result<Arc<str>, &'static str> {
        self.names.name(id).ok_or(NO_NAME)
    }

    fn check_queue(&self, queue: QueueKey) -> Result<(), &'static str> {
        let known = |id| self.names.texts.contains_key(&id);
        if known(queue.group) && known(queue.topic) { Ok(()) } else { Err(NO_NAME) }
    }

    /// Drops data that only replay needs, and names without a use.
    pub(super) fn settle(&mut self) {
        self.kept_at = HashMap::default();
        self.kept_last = None;
        let tables = self.tables.topics.values().map(|entry| entry.id);
        let mut used: HashSet<NameId, RandomState> = tables.collect();
        used.extend(self.tables.groups.values().map(|entry| entry.id));
        used.extend(self.tables.removed.values());
        used.extend(self.tables.floors.values().map(|(id, _)| *id));
        used.extend(self.tables.retentions.values().map(|(id, _)| *id));
        for (queue, _) in self.offsets.iter() {
            used.extend([queue.group, queue.topic]);
        }
        for (queue, _) in self.progress.iter() {
            used.extend([queue.group, queue.topic]);
        }
        self.names.keep(&used);
    }

    /// Returns the sorted names of all groups that have a configuration, an offset or a progress.
    fn groups(&self) -> Vec<String> {
        let ids = self.offsets.groups().into_iter().chain(self.progress.groups());
        let names = ids.filter_map(|id| self.names.name(id)).chain(self.tables.groups.keys().cloned());
        names.collect::<BTreeSet<_>>().iter().map(ToString::to_string).collect()
    }

    /// Returns topics and groups by name.
    pub fn into_listed(self) -> ListedTables {
        let (groups, floors) = (self.groups(), self.tables.floor_table());
        let retentions = self.tables.retention_table();
        let topics = self.tables.topics.into_iter();
        let topics =
            topics.map(|(name, entry)| (name.to_string(), Arc::unwrap_or_clone(entry.config))).collect();
        let configs = self.tables.groups.into_iter();
        let group_configs =
            configs.map(|(name, entry)| (name.to_string(), Arc::unwrap_or_clone(entry.config))).collect();
        ListedTables {
            table: TopicTable { topics, ..TopicTable::default() },
            removed: self.tables.removed.into_keys().map(|name| name.to_string()).collect(),
            floors,
            retentions,
            groups,
            group_configs,
        }
    }

    /// Returns the offsets of groups, by `topic@group`.
    pub fn into_offsets(self) -> BTreeMap<String, QueueOffsets> {
        let mut table = ConsumerOffsets::default();
        let plain = self.offsets.iter().map(|(queue, offset)| (*queue, *offset));
        let of_progress = self.progress.iter().filter_map(|(queue, state)| Some((*queue, state.offset()?)));
        for (queue, offset) in plain.chain(of_progress) {
            if let (Some(topic), Some(group)) = (self.names.name(queue.topic), self.names.name(queue.group)) {
                table.set(&topic, &group, queue.queue_id, offset);
            }
        }
        table.table
    }

    /// Returns the number of `name`, and assigns one if it has none; `None` if all are used.
    pub(super) fn name_id(&mut self, name: &str) -> Option<NameId> {
        if let Some(id) = self.names.id(name) {
            return Some(id);
        }
        let id = self.names.free()?;
        self.names.insert(id, name.into());
        Some(id)
    }
}
