//! The metadata log and its state, with all calls that the store and the delivery code make.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mqstore_format::json::{Dialect, SubscriptionGroup, TopicConfig};
use mqstore_io::sync::{AtomicBool, AtomicU64, Mutex, Ordering, RwLock};

use super::frame::Frame;
use super::json_files::{UnreadConfig, import};
use super::load::{FoundLogFile, LOST_LOG, MarkedLog, find, read_snapshot, recover};
use super::maintenance_timer::MaintenanceTimer;
use super::progress::{Progress, ProgressRecord};
use super::record::{JsonFile, MetaPosition, MetaRecord, NameId, OffsetChange, QueueKey, SavedState};
use super::state::{ConfigEntry, MetaState, NameTable, QueueMap, QueueProgress, Tables};
use super::tail::{Tail, TailState, WriteMethod};
use mqstore_base::error::StoreError;
use mqstore_base::group_commit::GroupCommit;
use mqstore_base::options::RecoveryMode;
use mqstore_base::store_files::StoreFiles;
use mqstore_base::topic_floors::{FloorTable, TopicFloor, TopicRetention};

/// The metadata of one store that is open for writing.
///
/// ```text
/// head (48) | snapshot: frame frame ... | tail: frame frame frame frame ... | zeros, allocated ahead
///                                       │                     │         └ appended: survives a kill
///                                       └ synced before the   └ synced: survives a power loss
///                                         file got its name
/// ```
///
/// Across a crash: the first frame that does not decode ends the log. Before the last synced position such a frame is
/// damage. The store then reports it and does not continue without the lost changes.
///
/// Across threads: any thread may make any call. Changes of one queue's progress happen one after the other. The same
/// holds for changes of offsets, and for changes of topics and groups. Frames are appended under one lock, which is
/// the last lock that a thread takes. Waiting threads share one sync (group commit).
#[derive(Debug)]
pub struct MetaLog {
    pub(super) files: StoreFiles,
    pub(super) names: RwLock<NameTable>,
    pub(super) tables: Mutex<Tables>,
    pub(super) offsets: Mutex<QueueMap<i64>>,
    pub(super) progress: RwLock<QueueMap<Arc<QueueProgress>>>,
    pub(super) tail: Tail,
    /// Held while a generation or a JSON file is written.
    pub(super) chores: Mutex<()>,
    /// Whether offsets changed since the last write of their JSON file began.
    pub(super) offsets_changed: AtomicBool,
    /// Number of calls that removed topics or groups.
    removals: AtomicU64,
    pub(super) dialect: Dialect,
    /// Set once a file of the log is durable.
    pub(super) has_file: Arc<AtomicBool>,
    /// The generation that receives appends, and the earliest time of the next one, in milliseconds of the interval
    /// clock.
    generation: AtomicU64,
    rest_until_ms: AtomicU64,
    pub(super) tick: MaintenanceTimer,
}

pub(super) fn floor_records(topic: NameId, floor: &TopicFloor) -> impl Iterator<Item = MetaRecord<'static>> {
    let TopicFloor { log_offset, deleted, .. } = *floor;
    let deletion =
        (deleted > 0 || log_offset == 0).then_some(MetaRecord::Floor { topic, log_offset: deleted });
    let raised = (log_offset > deleted).then_some(MetaRecord::RaisedFloor { topic, log_offset });
    let queues = floor.queues.iter();
    let queues = queues.map(move |(queue_id, offset)| MetaRecord::QueueFloor {
        topic,
        queue_id: *queue_id,
        offset: *offset,
    });
    deletion.into_iter().chain(raised).chain(queues.collect::<Vec<_>>())
}

fn push_floor(frame: &mut Frame, topic: NameId, floor: &TopicFloor) {
    floor_records(topic, floor).for_each(|record| frame.push(&record));
}

/// The metadata log that an open found, before it changes anything.
pub struct FoundLog {
    file: Option<FoundLogFile>,
    marked: MarkedLog,
    /// Whether the store had a log whose files are gone.
    is_lost: bool,
}

thread_local! {
    static FRAME: RefCell<Frame> = RefCell::default();
}

/// Reads the state from the log alone. Parts that cannot be read are reported in `notes`.
pub fn read_log(files: &StoreFiles, notes: &mut Vec<String>) -> Result<MetaState, StoreError> {
    Ok(read_snapshot(files, notes)?.unwrap_or_default().0)
}

/// Reads the metadata of a store that this process does not change. Parts that cannot be read are reported in `notes`
/// and count as missing.
pub fn read_state(files: &StoreFiles, notes: &mut Vec<String>) -> Result<MetaState, StoreError> {
    let (mut state, lost) = read_snapshot(files, notes)?.unwrap_or_default();
    import(files, &mut state, lost, &mut |unread| {
        notes.push(match unread {
            UnreadConfig::Io(error) => error.to_string(),
            UnreadConfig::Damaged(damage, used) => damage.note(used, None),
        });
        Ok(())
    })?;
    Ok(state)
}

/// Reads the state like [`read_state`], for callers that must not treat an unreadable file as missing: a file that
/// the system cannot read is an error.
pub fn read_state_strictly(files: &StoreFiles) -> Result<MetaState, StoreError> {
    let (mut state, lost) = read_snapshot(files, &mut Vec::new())?.unwrap_or_default();
    import(files, &mut state, lost, &mut |unread| match unread {
        UnreadConfig::Io(error) => Err(error),
        UnreadConfig::Damaged(..) => Ok(()),
    })?;
    Ok(state)
}

impl MetaLog {
    /// Finds the metadata of the store at `files`, which no other process may be writing. Changes nothing.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if the log is damaged or missing, unless `mode` allows recovery to continue without the
    /// lost part.
    pub fn find(files: &StoreFiles, mode: RecoveryMode) -> Result<FoundLog, StoreError> {
        let marked = MarkedLog::read(files);
        let file = find(files, mode, marked)?;
        let is_lost = marked.exists && file.is_none();
        if is_lost && mode != RecoveryMode::Salvage {
            let advice = "copy the files back, read the store with mode \"r\", or open it with recovery=\"salvage\", \
                          which continues with what the JSON files in config/ have; nothing was changed";
            return Err(StoreError::corrupt(&files.meta(), 0, format!("{LOST_LOG}; {advice}")));
        }
        Ok(FoundLog { file, marked, is_lost })
    }

    /// Opens the metadata of the store at `files`: recovers the log that was found and imports the changes that
    /// brokers made. Adds messages for the user to `notes`.
    pub fn open(files: &StoreFiles, found: FoundLog, notes: &mut Vec<String>) -> Result<Self, StoreError> {
        let FoundLog { file, marked, is_lost } = found;
        if is_lost {
            notes.push(format!("{}: {LOST_LOG}; the JSON files in config/ are used", files.meta().display()));
        }
        let found = file.map(|found| recover(files, found, marked, notes)).transpose()?;
        let lost = is_lost || found.as_ref().is_some_and(|found| found.damage.is_some());
        let (mut state, generation, tail) = match found {
            // Positions never go back: the mark states up to where the log was synced.
            None => (MetaState::default(), 0, Tail::new(files, marked.end)),
            Some(found) if found.end < found.head.tail_start => {
                (found.state, found.head.generation, Tail::new(files, found.place.max(marked.end)))
            }
            Some(found) => {
                // If no frame states that these bytes are synced, the next frame states it: recovery has synced them.
                let said = if found.synced < found.changed { found.synced } else { found.place };
                let tail = TailState {
                    path: found.path,
                    file: found.file,
                    tail_start: found.head.tail_start,
                    at: found.end,
                    place: found.place.max(marked.end).0,
                    marked: said.0,
                    settled: said.0,
                    map: None,
                };
                (found.state, found.head.generation, Tail::going_on(files, tail))
            }
        };
        let imported = import(files, &mut state, lost, &mut |unread| {
            notes.push(match unread {
                UnreadConfig::Io(error) => error.to_string(),
                UnreadConfig::Damaged(damage, used) => {
                    let copy = files.keep_config(&damage.path, &damage.bytes)?;
                    damage.note(used, copy.as_deref())
                }
            });
            Ok(())
        })?;
        let log = Self::of(files, state, generation, tail);
        if lost || (imported && log.tail.is_ready()) {
            // The generation replaces its predecessor in one step.
            log.next_generation()?;
        }
        Ok(log)
    }

    fn of(files: &StoreFiles, mut state: MetaState, generation: u64, tail: Tail) -> Self {
        let offsets_changed = state.tables.json(JsonFile::Offsets).changed;
        let mut progress = QueueMap::default();
        for (queue, state) in state.progress.iter() {
            progress.insert(*queue, QueueProgress::new(*queue, state.clone()));
        }
        Self {
            has_file: Arc::new(tail.is_ready().into()),
            files: files.clone(),
            names: state.names.into(),
            tables: state.tables.into(),
            offsets: state.offsets.into(),
            progress: progress.into(),
            tail,
            chores: Mutex::default(),
            offsets_changed: offsets_changed.into(),
            removals: 0.into(),
            dialect: state.dialect,
            generation: generation.into(),
            rest_until_ms: 0.into(),
            tick: MaintenanceTimer::new(files),
        }
    }

    /// Returns a flag that is set once a file of the log is durable.
    pub fn file_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.has_file)
    }

    /// Returns the group commit of the log. Its durable position is the metadata position up to which the log is synced;
    /// after [`Self::close`] it is the end of the log.
    pub fn synced(&self) -> Arc<GroupCommit> {
        self.tail.commit()
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(super) fn backoff_until_ms(&self) -> u64 {
        self.rest_until_ms.load(Ordering::Relaxed)
    }

    pub(super) fn set_backoff(&self, ms: u64, generation: u64) {
        self.generation.store(generation, Ordering::Release);
        self.rest_until_ms.store(ms, Ordering::Relaxed);
    }

    /// Returns the number of a topic's name, and assigns one if it has none. The topic need not exist.
    pub(crate) fn topic_id(&self, name: &str) -> Result<NameId, StoreError> {
        self.name_id(name)
    }

    /// Returns the number of a group's name, and assigns one if it has none. The group need not exist.
    pub fn group_id(&self, name: &str) -> Result<NameId, StoreError> {
        self.name_id(name)
    }

    /// Returns the name that has the number `id`.
    pub fn name(&self, id: NameId) -> Option<Arc<str>> {
        self.names.read().name(id)
    }

    /// Returns the key of queue `queue_id` of `topic` for `group`.
    pub fn queue_key(&self, group: &str, topic: &str, queue_id: i32) -> Result<QueueKey, StoreError> {
        Ok(QueueKey { group: self.group_id(group)?, topic: self.topic_id(topic)?, queue_id })
    }

    fn known_id(&self, name: &str) -> Option<NameId> {
        self.names.read().id(name)
    }

    fn name_id(&self, name: &str) -> Result<NameId, StoreError> {
        if let Some(id) = self.known_id(name) {
            return Ok(id);
        }
        self.ready()?;
        let mut names = self.names.write();
        if let Some(id) = names.id(name) {
            return Ok(id);
        }
        let full = || StoreError::Busy { reason: "the metadata log has no free number for a name".into() };
        let id = names.free().ok_or_else(full)?;
        self.write(WriteMethod::Map, |frame| frame.push(&MetaRecord::Name { id, name }))?;
        names.insert(id, name.into());
        Ok(id)
    }

    /// Appends a frame with the records that `fill` pushes; nothing if it pushes none. Returns the position after it.
    pub(super) fn write(
        &self,
        via: WriteMethod,
        fill: impl FnOnce(&mut Frame),
    ) -> Result<MetaPosition, StoreError> {
        FRAME.with_borrow_mut(|frame| {
            frame.clear();
            fill(frame);
            frame.sealed()?.map_or_else(|| Ok(self.place()), |frame| self.tail.append(frame, via))
        })
    }

    /// Creates topics or replaces their configurations, all of them or none. Durable after [`Self::sync`].
    pub fn put_topics(&self, configs: &[TopicConfig]) -> Result<MetaPosition, StoreError> {
        self.ready()?;
        let ids = configs.iter().map(|config| self.topic_id(&config.name)).collect::<Result<Vec<_>, _>>()?;
        let texts: Vec<String> = configs.iter().map(|config| config.to_text(&config.name)).collect();
        let saved = SavedState::Changed;
        let mut tables = self.tables.lock();
        let place = self.write(WriteMethod::File, |frame| {
            for (topic, config) in ids.iter().zip(&texts) {
                frame.push(&MetaRecord::Topic { topic: *topic, saved, config });
            }
        })?;
        for (id, config) in ids.into_iter().zip(configs) {
            let entry = ConfigEntry { id, config: Arc::new(config.clone()), saved };
            tables.put_topic(config.name.as_str().into(), entry);
        }
        Ok(place)
    }

    /// Returns the configuration of a topic.
    pub fn topic(&self, name: &str) -> Option<Arc<TopicConfig>> {
        self.tables.lock().topics.get(name).map(|entry| Arc::clone(&entry.config))
    }

    /// Returns all topics, sorted by name.
    pub fn topics(&self) -> Vec<Arc<TopicConfig>> {
        self.tables.lock().topics.values().map(|entry| Arc::clone(&entry.config)).collect()
    }

    /// Creates a group, unless it has a configuration already. Durable after [`Self::sync`].
    pub fn create_group(&self, config: &SubscriptionGroup) -> Result<MetaPosition, StoreError> {
        self.ready()?;
        let group = self.group_id(&config.name)?;
        let (text, saved) = (config.to_text(&config.name), SavedState::Changed);
        let mut tables = self.tables.lock();
        if tables.groups.contains_key(config.name.as_str()) {
            return Ok(self.place());
        }
        let place = self.write(WriteMethod::File, |frame| {
            frame.push(&MetaRecord::Group { group, saved, config: &text });
        })?;
        let entry = ConfigEntry { id: group, config: Arc::new(config.clone()), saved };
        tables.put_group(config.name.as_str().into(), entry);
        Ok(place)
    }

    /// Returns the configuration of a group.
    pub fn group(&self, name: &str) -> Option<Arc<SubscriptionGroup>> {
        self.tables.lock().groups.get(name).map(|entry| Arc::clone(&entry.config))
    }

    /// Returns the sorted names of all groups that have a configuration, an offset or a progress.
    pub fn groups(&self) -> Vec<String> {
        let mut names: BTreeSet<Arc<str>> = self.tables.lock().groups.keys().cloned().collect();
        let (mut ids, progress) = {
            let (offsets, progress) = (self.offsets.lock(), self.progress.read());
            (offsets.groups(), progress.iter().map(|(_, progress)| Arc::clone(progress)).collect::<Vec<_>>())
        };
        ids.extend(progress.iter().filter(|known| known.offset().is_some()).map(|known| known.key.group));
        names.extend(ids.into_iter().filter_map(|id| self.name(id)));
        names.iter().map(ToString::to_string).collect()
    }

    /// Removes topics and groups, all of them or none. Also removes the offsets and the progress of these groups, and
    /// those of all groups in these topics. `topics` has the floor of each topic, up to which the log must be synced.
    /// Passes over groups without a configuration, an offset and a progress. Returns the position after the change and
    /// the number of removed groups. Durable after [`Self::sync`].
    pub fn remove(
        &self,
        topics: &[(&str, TopicFloor)],
        groups: &[&str],
    ) -> Result<(MetaPosition, usize), StoreError> {
        self.ready()?;
        let topic_ids: Vec<NameId> =
            topics.iter().map(|(name, _)| self.name_id(name)).collect::<Result<_, _>>()?;
        let mut tables = self.tables.lock();
        let mut offsets = self.offsets.lock();
        let mut progress = self.progress.write();
        let groups: Vec<(&str, NameId)> = groups
            .iter()
            .filter_map(|name| Some((*name, self.known_id(name)?)))
            .filter(|(name, id)| {
                tables.groups.contains_key(*name)
                    || offsets.of_group(*id).next().is_some()
                    || progress.of_group(*id).next().is_some()
            })
            .collect();
        if topics.is_empty() && groups.is_empty() {
            return Ok((self.place(), 0));
        }
        let of_topics = topic_ids.iter().flat_map(|topic| progress.remove_topic(*topic)).collect::<Vec<_>>();
        let of_groups =
            groups.iter().flat_map(|(_, group)| progress.remove_group(*group)).collect::<Vec<_>>();
        let held: Vec<_> = of_topics.into_iter().chain(of_groups).map(|(_, progress)| progress).collect();
        // From here on no thread changes a progress that is being removed.
        let mut kept: Vec<_> = held.iter().map(|progress| progress.state.lock()).collect();
        let written = self.write(WriteMethod::File, |frame| {
            for (topic, (_, floor)) in topic_ids.iter().zip(topics) {
                frame.push(&MetaRecord::TopicRemoved { topic: *topic });
                push_floor(frame, *topic, floor);
            }
            for (_, group) in &groups {
                frame.push(&MetaRecord::GroupRemoved { group: *group });
            }
        });
        let place = written.inspect_err(|_| {
            for held in &held {
                progress.insert(held.key, Arc::clone(held));
            }
        })?;
        for kept in &mut kept {
            kept.removed = true;
        }
        for ((name, floor), id) in topics.iter().zip(topic_ids) {
            let name: Arc<str> = (*name).into();
            tables.floors.insert(Arc::clone(&name), (id, floor.clone()));
            tables.remove_topic(name, id);
            offsets.remove_topic(id);
        }
        for (name, id) in &groups {
            tables.remove_group(name);
            offsets.remove_group(*id);
        }
        self.offsets_changed.store(true, Ordering::Release);
        self.removals.fetch_add(1, Ordering::AcqRel);
        Ok((place, groups.len()))
    }

    /// Returns a number that changes when topics or groups are removed. Then each caller must get its progress again.
    pub fn removals(&self) -> u64 {
        self.removals.load(Ordering::Acquire)
    }

    /// Returns the topics that were removed and not created again.
    pub fn removed_topics(&self) -> Vec<Arc<str>> {
        self.tables.lock().removed.keys().cloned().collect()
    }

    /// Sets the limits of a topic; without any, it has no retention. Durable after [`Self::sync`].
    pub fn set_retention(&self, name: &str, limits: TopicRetention) -> Result<MetaPosition, StoreError> {
        self.ready()?;
        let topic = self.topic_id(name)?;
        let mut tables = self.tables.lock();
        let place =
            self.write(WriteMethod::File, |frame| frame.push(&MetaRecord::Retention { topic, limits }))?;
        tables.set_retention(name.into(), topic, limits);
        Ok(place)
    }

    /// Returns the limits of the topics that have a retention.
    pub fn retentions(&self) -> BTreeMap<Arc<str>, TopicRetention> {
        self.tables.lock().retention_table()
    }

    /// Raises the floors of topics, all of them or none. Each item has the topic, the log offset, up to which the log
    /// must be synced, and the first offsets of queues; other queues keep theirs. Returns the new floors, without those
    /// that are as high already and those of removed topics. Durable when it returns.
    pub fn raise_floors(
        &self,
        raised: &[(&str, u64, &BTreeMap<i32, i64>)],
    ) -> Result<Vec<(Arc<str>, TopicFloor)>, StoreError> {
        self.ready()?;
        let ids = raised.iter().map(|(name, ..)| self.topic_id(name)).collect::<Result<Vec<_>, _>>()?;
        let mut tables = self.tables.lock();
        let mut floors = Vec::with_capacity(raised.len());
        for ((name, log_offset, queues), id) in raised.iter().zip(ids) {
            let known = tables.floors.get(*name).map(|(_, floor)| floor.clone()).unwrap_or_default();
            if known.log_offset < *log_offset && !tables.removed.contains_key(*name) {
                let mut floor = TopicFloor { log_offset: *log_offset, ..known };
                floor.queues.extend(*queues);
                floors.push((Arc::<str>::from(*name), id, floor, *queues));
            }
        }
        if floors.is_empty() {
            return Ok(Vec::new());
        }
        let place = self.write(WriteMethod::File, |frame| {
            for (_, topic, floor, queues) in &floors {
                frame.push(&MetaRecord::RaisedFloor { topic: *topic, log_offset: floor.log_offset });
                for (queue_id, offset) in *queues {
                    frame.push(&MetaRecord::QueueFloor {
                        topic: *topic,
                        queue_id: *queue_id,
                        offset: *offset,
                    });
                }
            }
        })?;
        for (name, id, floor, _) in &floors {
            tables.floors.insert(Arc::clone(name), (*id, floor.clone()));
        }
        drop(tables);
        self.sync(place)?;
        Ok(floors.into_iter().map(|(name, _, floor, _)| (name, floor)).collect())
    }

    /// Returns the floors of all topics that were ever removed or have lost messages to their retention.
    pub fn floors(&self) -> FloorTable {
        self.tables.lock().floor_table()
    }

    /// Lowers floors after `log_end` to it: a log that lost its end gives these log offsets to new records. Durable
    /// when this returns.
    pub fn clamp_floors(&self, log_end: u64) -> Result<(), StoreError> {
        if self.tables.lock().floors.values().all(|(_, floor)| floor.log_offset <= log_end) {
            return Ok(());
        }
        self.ready()?;
        let mut tables = self.tables.lock();
        let beyond = |(_, (_, floor)): &(&Arc<str>, &(NameId, TopicFloor))| floor.log_offset > log_end;
        let mut lowered: Vec<_> = tables
            .floors
            .iter()
            .filter(beyond)
            .map(|(name, floor)| (Arc::clone(name), floor.clone()))
            .collect();
        for (_, (_, floor)) in &mut lowered {
            floor.clamp(log_end);
        }
        let place = self.write(WriteMethod::File, |frame| {
            for (_, (id, floor)) in &lowered {
                push_floor(frame, *id, floor);
            }
        })?;
        tables.floors.extend(lowered);
        drop(tables);
        self.sync(place)
    }

    /// Returns the next offset that `queue.group` consumes from the queue, or `None` if the group never committed
    /// one. If the group consumes the queue message by message, this is [`Progress::committed`].
    pub fn offset(&self, queue: QueueKey) -> Option<i64> {
        let progress = {
            let (offsets, progress) = (self.offsets.lock(), self.progress.read());
            match progress.get(queue) {
                None => return offsets.get(queue).copied(),
                Some(progress) => Arc::clone(progress),
            }
        };
        progress.offset()
    }

    /// Returns the offsets of a group as in [`Self::offset`], by topic and queue.
    pub fn offsets(&self, group: NameId) -> Vec<OffsetChange> {
        let change = |queue: QueueKey, offset| OffsetChange { queue, offset };
        let (mut found, progress): (Vec<_>, Vec<_>) = {
            let (offsets, progress) = (self.offsets.lock(), self.progress.read());
            (
                offsets.of_group(group).map(|(queue, offset)| change(*queue, *offset)).collect(),
                progress.of_group(group).map(|(_, progress)| Arc::clone(progress)).collect(),
            )
        };
        found.extend(progress.iter().filter_map(|progress| Some(change(progress.key, progress.offset()?))));
        found.sort_unstable_by_key(|change| change.queue);
        found
    }

    /// Whether `group` has an offset in any queue of `topic`, as in [`Self::offset`].
    pub fn has_offset(&self, group: &str, topic: &str) -> bool {
        let (Some(group), Some(topic)) = (self.known_id(group), self.known_id(topic)) else { return false };
        self.offsets(group).iter().any(|change| change.queue.topic == topic)
    }

    /// Stores offsets, all of them or none. They are in the page cache when this returns. They become durable with
    /// the next maintenance step, or after [`Self::sync`] of the returned position. For a queue that the group
    /// consumes message by message, the change is a [`ProgressRecord::Moved`].
    ///
    /// # Errors
    /// [`StoreError::Refused`] for a negative offset; nothing is changed then.
    pub fn commit(&self, changes: &[OffsetChange]) -> Result<MetaPosition, StoreError> {
        if let Some(change) = changes.iter().find(|change| change.offset < 0) {
            return Err(StoreError::Refused { reason: format!("offset {} is negative", change.offset) });
        }
        if changes.is_empty() {
            return Ok(self.place());
        }
        self.ready()?;
        let mut offsets = self.offsets.lock();
        // If a queue has a progress, the progress stores the offset. Only a thread that holds `offsets` locks several.
        let held: BTreeMap<QueueKey, Arc<QueueProgress>> = {
            let all = self.progress.read();
            let known = |change: &OffsetChange| Some((change.queue, Arc::clone(all.get(change.queue)?)));
            changes.iter().filter_map(known).collect()
        };
        let mut kept: BTreeMap<QueueKey, _> =
            held.iter().map(|(queue, progress)| (*queue, progress.state.lock())).collect();
        let place = self.write(WriteMethod::Map, |frame| {
            for OffsetChange { queue, offset } in changes.iter().copied() {
                if kept.contains_key(&queue) {
                    frame.push(&MetaRecord::Progress { queue, record: ProgressRecord::Moved { to: offset } });
                } else {
                    frame.push(&MetaRecord::Offset(OffsetChange { queue, offset }));
                }
            }
        })?;
        for OffsetChange { queue, offset } in changes.iter().copied() {
            match kept.get_mut(&queue) {
                Some(kept) => kept.progress.apply(&ProgressRecord::Moved { to: offset }),
                None => offsets.insert(queue, offset),
            }
        }
        self.offsets_changed.store(true, Ordering::Release);
        Ok(place)
    }

    /// Returns the progress of a group in a queue, and creates it if it is missing. A new progress has no leases and
    /// starts at the group's offset, or at 0. A new group that starts elsewhere appends [`ProgressRecord::Moved`].
    /// All callers get the same object until its topic or group is removed.
    pub fn progress(&self, queue: QueueKey) -> Arc<QueueProgress> {
        if let Some(progress) = self.known_progress(queue) {
            return progress;
        }
        let mut offsets = self.offsets.lock();
        let mut all = self.progress.write();
        let make = || QueueProgress::new(queue, Progress::of(offsets.remove_queue(queue)));
        Arc::clone(all.get_or_insert_with(queue, make))
    }

    /// Returns the progress of a group in a queue, if it has one.
    pub fn known_progress(&self, queue: QueueKey) -> Option<Arc<QueueProgress>> {
        self.progress.read().get(queue).cloned()
    }

    /// Returns the progress of a group in all queues, by topic and queue.
    pub fn progress_of(&self, group: NameId) -> Vec<Arc<QueueProgress>> {
        self.progress.read().of_group(group).map(|(_, progress)| Arc::clone(progress)).collect()
    }

    /// Logs `records` as one frame and applies them. They are in the page cache when this returns. They become
    /// durable with the next maintenance step, or after [`Self::sync`] of the returned position.
    ///
    /// # Errors
    /// [`StoreError::Refused`] if a record does not fit the state, or if the topic or the group was removed. Nothing
    /// is changed then.
    pub fn append_progress(
        &self,
        progress: &QueueProgress,
        records: &[ProgressRecord],
    ) -> Result<MetaPosition, StoreError> {
        let ((), place) = self.change_progress(progress, |_, wanted| wanted.extend_from_slice(records))?;
        Ok(place)
    }

    /// Lets `decide` read the state and push records, then logs them as one frame and applies them. No other thread
    /// changes the state in between. `decide` must not call into the log. If it pushes nothing, nothing is logged.
    ///
    /// # Errors
    /// The same as for [`Self::append_progress`].
    pub fn change_progress<T>(
        &self,
        progress: &QueueProgress,
        decide: impl FnOnce(&Progress, &mut Vec<ProgressRecord>) -> T,
    ) -> Result<(T, MetaPosition), StoreError> {
        self.ready()?;
        let mut kept = progress.state.lock();
        let kept = &mut *kept;
        if kept.removed {
            let reason = "the topic or the group was removed; create it again".to_owned();
            return Err(StoreError::Refused { reason });
        }
        kept.records.clear();
        let answer = decide(&kept.progress, &mut kept.records);
        if kept.records.is_empty() {
            return Ok((answer, self.place()));
        }
        let refused = |refused: super::ProgressConflict| StoreError::Refused { reason: refused.to_string() };
        kept.progress.check(&kept.records).map_err(refused)?;
        let queue = progress.key;
        let place = self.write(WriteMethod::Map, |frame| {
            kept.records
                .iter()
                .for_each(|record| frame.push(&MetaRecord::Progress { queue, record: record.clone() }));
        })?;
        let before = kept.progress.offset();
        kept.records.iter().for_each(|record| kept.progress.apply(record));
        if kept.progress.offset() != before && !self.offsets_changed.load(Ordering::Acquire) {
            self.offsets_changed.store(true, Ordering::Release);
        }
        Ok((answer, place))
    }

    /// Limits a progress to the bounds of its queue: forgets offsets below `min` and from `max` on, because new
    /// messages take the offsets from `max` on. Durable when this returns. An open has done this for the maximum of
    /// every queue.
    pub fn clamp_progress(&self, progress: &QueueProgress, min: i64, max: i64) -> Result<(), StoreError> {
        let (changed, place) = self.change_progress(progress, |state, records| {
            let exceeds = state.exceeds(min, max);
            if exceeds {
                records.push(ProgressRecord::Clamped { min, max });
            }
            exceeds
        })?;
        if changed { self.sync(place) } else { Ok(()) }
    }

    /// Reduces offsets and progress that exceed the maximum of their queue, which `end` returns. The log lost its
    /// end, and new messages will take these offsets. Durable when this returns. Returns the number of changes.
    pub fn clamp_to_queues(&self, end: impl Fn(&str, i32) -> i64) -> Result<u64, StoreError> {
        let end_of = |queue: &QueueKey| self.name(queue.topic).map_or(0, |topic| end(&topic, queue.queue_id));
        let beyond = |(queue, offset): (&QueueKey, &i64)| {
            let end = end_of(queue);
            (*offset > end).then_some(OffsetChange { queue: *queue, offset: end })
        };
        let changes: Vec<OffsetChange> = self.offsets.lock().iter().filter_map(beyond).collect();
        let mut count = changes.len() as u64;
        let all: Vec<Arc<QueueProgress>> =
            self.progress.read().iter().map(|(_, progress)| Arc::clone(progress)).collect();
        if !self.tail.is_ready() {
            // Nothing on disk can be wrong.
            let mut offsets = self.offsets.lock();
            for change in &changes {
                offsets.insert(change.queue, change.offset);
            }
            return Ok(count);
        }
        for changes in changes.chunks(1 << 16) {
            self.commit(changes)?;
        }
        for progress in all {
            let max = end_of(&progress.key);
            let ((), _) = self.change_progress(&progress, |state, records| {
                if state.exceeds(0, max) {
                    count += 1;
                    records.push(ProgressRecord::Clamped { min: 0, max });
                }
            })?;
        }
        if count > 0 {
            self.sync(self.place())?;
        }
        Ok(count)
    }

    /// Returns the metadata position after the last append.
    pub fn place(&self) -> MetaPosition {
        self.tail.place()
    }

    /// Returns once everything before `place` is durable. Waiting threads share one sync.
    pub fn sync(&self, place: MetaPosition) -> Result<(), StoreError> {
        self.tail.sync(place)
    }

    /// Registers `tell`, which is called with the stage and the cause when the log stops permanently; the store stops
    /// with it. `tell` must not call into the log.
    pub fn on_stop(&self, tell: impl Fn(&'static str, &str) + Send + Sync + 'static) {
        self.tail.on_stop(Box::new(tell));
    }

    /// Whether there are appends that no sync covers yet.
    pub fn is_dirty(&self) -> bool {
        self.tail.durable() < self.place()
    }

    /// Closes the log: writes the JSON files and makes everything durable. Nothing can be appended afterwards.
    pub fn close(&self) -> Result<(), StoreError> {
        let exported = self.export_json();
        let closed = self.tail.close();
        exported.and(closed)
    }
}
