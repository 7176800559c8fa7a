//! The topic table: the topics, the number of their queues, and the next offset of each queue.
//!
//! The table is in the metadata log, which keeps RocketMQ's `config/topics.json` up to date. So a broker sees our
//! topics and we see those of a broker, with their attributes. `create_topic` is durable when it returns. A topic that
//! an append makes is written with the next flush, because its records alone restore it.
//!
//! A removed topic keeps its state here: a new topic of that name continues at the offsets after its floor.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};

use foldhash::fast::RandomState;
use mqstore_format::json::{TopicConfig, TopicTable};
use mqstore_format::properties::KEYS;
use mqstore_format::topic::{DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, SYSTEM_TOPIC_PREFIX};
use mqstore_format::{Properties, java_hash, validate_topic};
use mqstore_io::sync::{Mutex, MutexGuard, OnceLock, Raise, RwLock};

use mqstore_base::error::StoreError;
use mqstore_base::message::NewMessage;
use mqstore_base::store_files::StoreFiles;
use mqstore_base::topic_floors::{TopicFloor, TopicFloors, TopicRetention};
use mqstore_log::commit_log::{CommitLog, TopicQuotaState};
use mqstore_log::consume_queue::QueueSet;
use mqstore_log::dispatch::BatchTopics;
use mqstore_meta::{ListedTables, MetaLog, MetaState, read_state};

/// Limits a queue count of the table, which can be any number.
fn count(queues: i32) -> u32 {
    queues.clamp(1, 65_536) as u32
}

/// The queues of one topic, for appends.
#[derive(Debug)]
pub(crate) struct TopicState {
    /// The next offset of each queue.
    offsets: QueueCounters,
    /// Its quota.
    pub(crate) quota: TopicQuotaState,
    next: AtomicU32,
    /// Number of queues that appends without a queue id use in turn.
    write_queues: AtomicU32,
    /// Whether its queues consist of batch units.
    pub(crate) batch: bool,
    /// Held from the read of the next offset to the append, if a record contains its offset in its text.
    pub(crate) one_by_one: Mutex<()>,
    /// Whether it is a compaction topic; then the key of a message chooses its queue.
    compaction: AtomicBool,
    /// Whether its `perm` allows appends.
    writable: AtomicBool,
    /// Whether it is removed and not made again.
    removed: AtomicBool,
}

/// Changes of a topic. `None` keeps the value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicChange {
    /// Number of queues for readers, 1 to 65,536. Queues above it keep their messages.
    pub read_queues: Option<u32>,
    /// Number of queues for appends, 1 to 65,536.
    pub write_queues: Option<u32>,
    /// RocketMQ's `perm`: 2 write, 4 read, 1 inherit, 8 priority; 0 to 15. Without 2 the topic accepts no appends; only
    /// brokers use the other bits.
    pub perm: Option<i32>,
    /// Maximum number of messages of the topic, at most 2^53; 0 means no limit.
    pub max_messages: Option<u64>,
    /// Milliseconds after which a value of the table expires, at most 2^53; 0 means never.
    pub expire_after_ms: Option<i64>,
}

/// The bit of `perm` that allows appends. Source: `PermName#PERM_WRITE`.
const PERM_WRITE: i32 = 2;

impl TopicState {
    fn new(topic: &Arc<str>, write_queues: u32, batch: bool, compaction: bool) -> Self {
        Self {
            offsets: QueueCounters::default(),
            quota: TopicQuotaState::new(topic),
            next: AtomicU32::new(0),
            write_queues: AtomicU32::new(write_queues),
            batch,
            one_by_one: Mutex::default(),
            compaction: compaction.into(),
            writable: true.into(),
            removed: false.into(),
        }
    }

    fn of(name: &Arc<str>, config: &TopicConfig, batch: bool) -> Self {
        let state = Self::new(name, count(config.write_queues), batch, config.is_compaction());
        state.writable.store(config.perm & PERM_WRITE != 0, Ordering::Release);
        state
    }

    /// Whether it is a compaction topic, which keeps the newest message of each key.
    pub(crate) fn is_compaction(&self) -> bool {
        self.compaction.load(Ordering::Acquire)
    }

    /// Whether its `perm` allows appends.
    #[inline]
    pub(crate) fn is_writable(&self) -> bool {
        self.writable.load(Ordering::Acquire)
    }

    /// Whether it is removed and not made again.
    #[inline]
    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    /// Returns the queue for a message without a queue id.
    pub(crate) fn turn(&self) -> i32 {
        (self.next.fetch_add(1, Ordering::Relaxed) % self.write_queues().max(1)) as i32
    }

    /// Returns the number of queues that appends use in turn.
    pub(crate) fn write_queues(&self) -> u32 {
        self.write_queues.load(Ordering::Acquire)
    }

    /// Returns the next offset of queue `queue_id` (0 to 65,535).
    #[inline]
    pub(crate) fn next_offset(&self, queue_id: i32) -> &AtomicI64 {
        &self.offsets.at(queue_id as u16).next
    }

    /// Returns the floor of the topic if it is deleted when the log ends at `log_offset`. Each queue continues with a
    /// new file, so that a broker that finds the files starts there, too.
    fn floor(&self, log_offset: u64, units_per_file: i64) -> TopicFloor {
        let next_file = |next: i64| {
            let rest = next % units_per_file.max(1);
            if rest == 0 { next } else { next.saturating_add(units_per_file - rest) }
        };
        let used =
            self.offsets.by_queue().map(|(queue_id, offset)| (queue_id, offset.next.load(Ordering::Acquire)));
        let queues = used.filter(|(_, next)| *next > 0).map(|(queue_id, next)| (queue_id, next_file(next)));
        TopicFloor::of_deletion(log_offset, queues.collect())
    }

    /// Returns the sum of the next offsets of all queues.
    pub(crate) fn total_next_offset(&self) -> i64 {
        self.offsets.by_queue().map(|(_, offset)| offset.next.load(Ordering::Acquire)).sum()
    }

    /// Returns the number of waiters for messages of queue `queue_id`.
    #[inline]
    pub(crate) fn waiter_count(&self, queue_id: i32) -> &AtomicU32 {
        &self.offsets.at(queue_id as u16).watchers
    }
}

/// A counter for each queue of a topic, made at its first use; access takes no lock.
///
/// The first counter is stored directly. Of the others, block 0 has [`FIRST_BLOCK`] counters, and each later block has
/// twice as many as the block before. A store can have very many topics of one queue: they need no blocks.
#[derive(Debug, Default)]
struct QueueCounters {
    first: Offset,
    others: OnceLock<Box<[OffsetBlock; BLOCKS]>>,
}

type OffsetBlock = OnceLock<Box<[Offset]>>;

/// One of the counters, in its own cache line, so that threads that append to two queues do not slow each other
/// down.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Offset {
    next: AtomicI64,
    watchers: AtomicU32,
}

const FIRST_BLOCK: usize = 8;
/// Enough for 65,535 counters: `FIRST_BLOCK * (2^BLOCKS - 1)` is at least that number.
const BLOCKS: usize = 14;

impl QueueCounters {
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "every index of 16 bits has its place in one of the blocks")]
    fn at(&self, index: u16) -> &Offset {
        let Some(index) = usize::from(index).checked_sub(1) else { return &self.first };
        let place = index + FIRST_BLOCK;
        let number = (place / FIRST_BLOCK).ilog2() as usize;
        let first = FIRST_BLOCK << number;
        let blocks = self.others.get_or_init(Box::default);
        let block = blocks[number].get_or_init(|| (0..first).map(|_| Offset::default()).collect());
        &block[place - first]
    }

    /// Returns the counters made so far, with the ids of their queues.
    fn by_queue(&self) -> impl Iterator<Item = (i32, &Offset)> {
        let blocks = self.others.get().into_iter().flat_map(|blocks| blocks.iter().enumerate());
        let others = blocks.filter_map(|(number, block)| Some((number, block.get()?)));
        let others = others.flat_map(|(number, block)| {
            let first = (FIRST_BLOCK << number) - FIRST_BLOCK + 1;
            block.iter().enumerate().map(move |(place, offset)| ((first + place) as i32, offset))
        });
        std::iter::once((0, &self.first)).chain(others)
    }
}

/// The floors of topics that were deleted together.
pub(crate) type NewFloors = Vec<(Arc<str>, TopicFloor)>;

/// The states by topic. Each append and each read of a single message looks up one, so the hash function is a fast one.
type TopicStates = HashMap<Arc<str>, Arc<TopicState>, RandomState>;

/// The table of a store that is open for writing.
#[derive(Debug)]
pub(crate) struct Topics {
    meta: Arc<MetaLog>,
    /// Topics that are not yet in the metadata log. Locked during a change of a topic.
    pending: Mutex<BTreeMap<String, TopicConfig>>,
    states: RwLock<TopicStates>,
    /// The batch topics that the dispatcher uses.
    batch: BatchTopics,
    /// Held from the read of the next offsets of light queues to the append: records contain them as text.
    light: Mutex<()>,
    /// Held for writing by a deletion, and for reading from the check whether topics were deleted to an append that
    /// relies on it.
    deletions: RwLock<()>,
}

/// Returns the floors of deleted topics of the store at `files`; adds unreadable parts to `notes`.
pub fn load_floors(files: &StoreFiles, notes: &mut Vec<String>) -> TopicFloors {
    TopicFloors::new(load_listed(files, notes).floors)
}

/// Returns the topics of the store at `files`, with the removed ones, their floors, and the groups; adds unreadable parts
/// to `notes`.
pub fn load_listed(files: &StoreFiles, notes: &mut Vec<String>) -> ListedTables {
    read_state(files, notes).map_or_else(
        |error| {
            notes.push(format!("topics and groups are not known ({error})"));
            ListedTables::default()
        },
        MetaState::into_listed,
    )
}

/// Returns the topics with batch queues, by their attribute or by RocketMQ's folder for such queues.
pub fn batch_topics(files: &StoreFiles, table: &TopicTable) -> BatchTopics {
    batch_topics_of(files, table.topics.values())
}

/// Like [`batch_topics`], for `configs`.
pub(crate) fn batch_topics_of<'a>(
    files: &StoreFiles,
    configs: impl Iterator<Item = &'a TopicConfig>,
) -> BatchTopics {
    let topics = BatchTopics::with_folders(files);
    for topic in configs.filter(|topic| topic.is_batch_queue()) {
        topics.insert(&topic.name);
    }
    topics
}

impl Topics {
    /// Returns the topics that `meta` and `queues` know. Each queue continues at its end in `queues`.
    pub(crate) fn new(meta: &Arc<MetaLog>, batch: BatchTopics, queues: &QueueSet) -> Self {
        let mut states = TopicStates::default();
        for config in meta.topics() {
            let name: Arc<str> = config.name.as_str().into();
            let state = TopicState::of(&name, &config, batch.contains(&config.name));
            states.insert(name, Arc::new(state));
        }
        let mut ends = Vec::new();
        queues.each(|queue| {
            ends.push((Arc::clone(queue.shared_topic()), queue.queue_id(), queue.max_offset()));
        });
        let batched = queues.batches();
        ends.extend(batched.iter().map(|queue| (queue.topic().into(), queue.queue_id(), queue.max_offset())));
        let listed: HashSet<Arc<str>> = states.keys().cloned().collect();
        for ends in ends.chunk_by(|(a, ..), (b, ..)| a == b) {
            let Some((topic, ..)) = ends.first() else { continue };
            let count = ends.iter().map(|(_, queue_id, _)| (*queue_id).max(0) as u32 + 1).max().unwrap_or(0);
            let state = states.entry(Arc::clone(topic)).or_insert_with_key(|topic| {
                Arc::new(TopicState::new(topic, count, batch.contains(topic), false))
            });
            if !listed.contains(topic) {
                state.write_queues.raise(count, Ordering::AcqRel);
            }
            for (_, queue_id, end) in ends {
                state.next_offset(*queue_id).store(*end, Ordering::Release);
            }
        }
        for config in meta.topics() {
            if let Some(state) = states.get(config.name.as_str()) {
                state.quota.set(config.max_messages(), state.total_next_offset());
            }
        }
        for name in meta.removed_topics() {
            let state = states
                .entry(name)
                .or_insert_with_key(|name| Arc::new(TopicState::new(name, 0, batch.contains(name), false)));
            state.removed.store(true, Ordering::Release);
        }
        Self {
            meta: Arc::clone(meta),
            pending: Mutex::default(),
            states: RwLock::new(states),
            batch,
            light: Mutex::default(),
            deletions: RwLock::default(),
        }
    }

    /// Returns the lock of deletions.
    pub(crate) fn deletions(&self) -> &RwLock<()> {
        &self.deletions
    }

    /// Returns the state of `topic`, unless it is removed.
    pub(crate) fn get(&self, topic: &str) -> Option<Arc<TopicState>> {
        self.states.read().get(topic).filter(|state| !state.is_removed()).cloned()
    }

    /// Whether `topic` is removed; its queues and messages are hidden then.
    pub(crate) fn is_removed(&self, topic: &str) -> bool {
        self.states.read().get(topic).is_some_and(|state| state.is_removed())
    }

    /// Returns the state of a light queue, which has no configuration; `None` if it is removed.
    pub(crate) fn light_queue(&self, name: &str) -> Option<Arc<TopicState>> {
        if let Some(state) = self.get(name) {
            return Some(state);
        }
        let mut states = self.states.write();
        let name: Arc<str> = name.into();
        let state = states
            .entry(Arc::clone(&name))
            .or_insert_with(|| Arc::new(TopicState::new(&name, 1, false, false)));
        (!state.is_removed()).then(|| Arc::clone(state))
    }

    /// Locks the next offsets of all light queues.
    pub(crate) fn light_turn(&self) -> MutexGuard<'_, ()> {
        self.light.lock()
    }

    /// Returns the names of all topics, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let states = self.states.read();
        let shown = states.iter().filter(|(_, state)| !state.is_removed());
        let mut names: Vec<String> = shown.map(|(name, _)| name.to_string()).collect();
        names.sort_unstable();
        names
    }

    /// Returns the compaction topics, sorted, each with its number of queues for appends.
    pub(crate) fn compaction_topics(&self) -> Vec<(String, u32)> {
        let states = self.states.read();
        let kept = states.iter().filter(|(_, state)| state.is_compaction() && !state.is_removed());
        let mut topics: Vec<_> = kept.map(|(name, state)| (name.to_string(), state.write_queues())).collect();
        topics.sort_unstable();
        topics
    }

    /// Returns the next offset of queue `queue_id`.
    pub(crate) fn end_of(&self, topic: &str, queue_id: i32) -> i64 {
        let next = |state: &Arc<TopicState>| state.next_offset(queue_id).load(Ordering::Acquire);
        self.states.read().get(topic).filter(|_| (0..65_536).contains(&queue_id)).map_or(0, next)
    }

    fn config(&self, pending: &BTreeMap<String, TopicConfig>, topic: &str) -> Option<TopicConfig> {
        pending.get(topic).cloned().or_else(|| self.meta.topic(topic).map(|config| (*config).clone()))
    }

    /// Returns the configuration of `topic`; `None` for a topic that has only queues.
    fn listed(&self, topic: &str) -> Option<TopicConfig> {
        self.config(&self.pending.lock(), topic)
    }

    /// Returns the number of queues of `topic` for readers.
    pub(crate) fn queue_count(&self, topic: &str) -> u32 {
        let listed = self.listed(topic).map(|topic| count(topic.read_queues.max(topic.write_queues)));
        listed.or_else(|| self.get(topic).map(|state| state.write_queues())).unwrap_or(0)
    }

    /// Makes `topic`, or adds queues to it if it has fewer; returns its state.
    pub(crate) fn create(
        &self,
        topic: &str,
        queues: u32,
        attributes: &[(String, String)],
    ) -> Result<Arc<TopicState>, StoreError> {
        validate_topic(topic).map_err(|error| StoreError::invalid_message(&error))?;
        check_queues("queues", queues)?;
        for (_, most) in attributes.iter().filter(|(name, _)| name == TopicConfig::MAX_MESSAGES) {
            check_quota(topic, most.parse().ok().filter(|most| *most > 0))?;
        }
        for (_, after_ms) in attributes.iter().filter(|(name, _)| name == TopicConfig::EXPIRE_AFTER) {
            check_expire_after(after_ms.parse().ok().filter(|after_ms| *after_ms > 0))?;
        }
        let mut pending = self.pending.lock();
        let mut states = self.states.write();
        let known = states.get(topic).map(Arc::clone);
        let listed = self.config(&pending, topic);
        if let (Some(state), Some(listed)) = (&known, &listed)
            && count(listed.write_queues) >= queues
        {
            return Ok(Arc::clone(state));
        }
        let is_new = listed.is_none();
        let mut config = listed.unwrap_or_else(|| TopicConfig::new(topic, queues as i32));
        config.write_queues = config.write_queues.max(queues as i32);
        config.read_queues = config.read_queues.max(queues as i32);
        // The attributes of a topic are fixed when it is made, as in RocketMQ.
        if is_new {
            config.attributes.extend(attributes.iter().cloned());
        }
        let (batch, compaction) = (config.is_batch_queue(), config.is_compaction());
        let queues = count(config.write_queues);
        let name: Arc<str> = topic.into();
        let state = match known {
            Some(state) if state.is_removed() && state.batch != batch => {
                // A stop during the deletion may have left the folder that says so.
                self.batch.remove(topic);
                let new = TopicState::new(&name, queues, batch, compaction);
                state.offsets.by_queue().for_each(|(queue_id, offset)| {
                    new.next_offset(queue_id).store(offset.next.load(Ordering::Acquire), Ordering::Release);
                });
                Arc::new(new)
            }
            Some(state) => state,
            None => Arc::new(TopicState::new(&name, queues, batch, compaction)),
        };
        if batch {
            self.batch.insert(topic);
        }
        if state.removed.swap(false, Ordering::AcqRel) {
            state.write_queues.store(queues, Ordering::Release);
            state.compaction.store(compaction, Ordering::Release);
            state.writable.store(true, Ordering::Release);
            state.quota.set(None, 0);
        }
        state.write_queues.raise(queues, Ordering::AcqRel);
        pending.insert(topic.to_owned(), config);
        states.insert(name, Arc::clone(&state));
        Ok(state)
    }

    /// Changes a topic, see [`TopicChange`].
    pub(crate) fn change(&self, topic: &str, change: TopicChange) -> Result<(), StoreError> {
        let TopicChange { read_queues, write_queues, perm, max_messages, expire_after_ms } = change;
        read_queues.map_or(Ok(()), |queues| check_queues("read_queues", queues))?;
        write_queues.map_or(Ok(()), |queues| check_queues("write_queues", queues))?;
        if let Some(perm) = perm.filter(|perm| !(0..16).contains(perm)) {
            let reason = format!("{perm} is not between 0 and 15");
            return Err(StoreError::InvalidOption { option: "perm", reason });
        }
        max_messages.filter(|most| *most > 0).map_or(Ok(()), |most| check_quota(topic, Some(most)))?;
        expire_after_ms.map_or(Ok(()), |after_ms| check_expire_after(Some(after_ms)))?;
        let mut pending = self.pending.lock();
        let not_found = || StoreError::TopicNotFound { topic: topic.to_owned(), queue_id: None };
        let state = self.get(topic).ok_or_else(not_found)?;
        let listed = self.config(&pending, topic);
        let mut config = listed.unwrap_or_else(|| TopicConfig::new(topic, state.write_queues() as i32));
        config.read_queues = read_queues.map_or(config.read_queues, |queues| queues as i32);
        config.write_queues = write_queues.map_or(config.write_queues, |queues| queues as i32);
        config.perm = perm.unwrap_or(config.perm);
        let numbers = [
            (TopicConfig::MAX_MESSAGES, max_messages.map(i128::from)),
            (TopicConfig::EXPIRE_AFTER, expire_after_ms.map(i128::from)),
        ];
        for (name, number) in numbers {
            match number {
                Some(0) => drop(config.attributes.remove(name)),
                Some(number) => drop(config.attributes.insert(name.to_owned(), number.to_string())),
                None => {}
            }
        }
        state.write_queues.store(count(config.write_queues), Ordering::Release);
        state.writable.store(config.perm & PERM_WRITE != 0, Ordering::Release);
        pending.insert(topic.to_owned(), config);
        Ok(())
    }

    /// Replaces the configuration of an existing topic. The type of its queues stays.
    pub(crate) fn replace(&self, config: &TopicConfig) -> Result<(), StoreError> {
        let mut pending = self.pending.lock();
        let topic = config.name.as_str();
        let not_found = || StoreError::TopicNotFound { topic: topic.to_owned(), queue_id: None };
        let state = self.get(topic).ok_or_else(not_found)?;
        state.write_queues.store(count(config.write_queues), Ordering::Release);
        state.writable.store(config.perm & PERM_WRITE != 0, Ordering::Release);
        state.compaction.store(config.is_compaction(), Ordering::Release);
        pending.insert(topic.to_owned(), config.clone());
        Ok(())
    }

    /// Sets the limits of an existing topic that `check` accepts. Durable when it returns.
    pub(crate) fn set_retention(
        &self,
        topic: &str,
        limits: TopicRetention,
        check: impl FnOnce(&TopicState) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        // The topic must exist after a crash, too.
        self.store()?;
        // The topic is not deleted meanwhile.
        let pending = self.pending.lock();
        let not_found = || StoreError::TopicNotFound { topic: topic.to_owned(), queue_id: None };
        let state = self.get(topic).ok_or_else(not_found)?;
        check(&state)?;
        let place = self.meta.set_retention(topic, limits)?;
        drop(pending);
        self.meta.sync(place)
    }

    /// Returns the maximum number of messages of `topic`.
    pub(crate) fn max_messages(&self, topic: &str) -> Option<u64> {
        self.listed(topic)?.max_messages()
    }

    /// Returns the milliseconds after which a value of the table `topic` expires.
    pub(crate) fn expire_after_ms(&self, topic: &str) -> Option<i64> {
        match self.pending.lock().get(topic) {
            Some(config) => config.expire_after_ms(),
            None => self.meta.topic(topic)?.expire_after_ms(),
        }
    }

    /// Deletes those topics and groups that exist, with the progress of groups in the topics. Returns the floors of the
    /// deleted topics, and the number of deleted groups. Durable when it returns. No record of the topics is appended
    /// after their floor, until they are created again. `units_per_file` is the number of units of a queue file.
    pub(crate) fn delete(
        &self,
        topics: &[&str],
        groups: &[&str],
        log: &CommitLog,
        units_per_file: i64,
    ) -> Result<(NewFloors, usize), StoreError> {
        // No topic is created or deleted meanwhile.
        let mut pending = self.pending.lock();
        let states: Vec<Arc<TopicState>> = topics.iter().filter_map(|topic| self.get(topic)).collect();
        let mut floors = Vec::with_capacity(states.len());
        let mut quotas = Vec::with_capacity(states.len());
        for state in &states {
            state.removed.store(true, Ordering::Release);
        }
        let mut log_end = 0;
        log.block_appends(|| {
            log_end = log.appended();
            for state in &states {
                quotas.push(state.quota.close());
                floors.push((state.quota.topic(), state.floor(log_end, units_per_file)));
            }
        });
        // A log that loses its end would give the log offsets before the floor to new records.
        let deleted = log.wait_durable(log_end).and_then(|()| self.meta.remove(&floors, groups));
        let (place, groups) = deleted.inspect_err(|_| {
            for (state, quota) in states.iter().zip(quotas) {
                state.quota.reopen(quota);
                state.removed.store(false, Ordering::Release);
            }
        })?;
        for (state, (topic, floor)) in states.iter().zip(&floors) {
            pending.remove(*topic);
            for (queue_id, offset) in &floor.queues {
                state.next_offset(*queue_id).store(*offset, Ordering::Release);
            }
        }
        drop(pending);
        self.meta.sync(place)?;
        Ok((floors.into_iter().map(|(topic, floor)| (topic.into(), floor)).collect(), groups))
    }

    /// Returns the attributes of `topic`.
    pub(crate) fn attributes(&self, topic: &str) -> Vec<(String, String)> {
        let attributes = self.listed(topic).map(|topic| topic.attributes).unwrap_or_default();
        attributes.into_iter().collect()
    }

    /// Writes topics that are not yet in the metadata log. When it returns, these and all earlier changes are durable.
    pub(crate) fn store(&self) -> Result<(), StoreError> {
        let mut pending = self.pending.lock();
        if !pending.is_empty() {
            let configs: Vec<TopicConfig> = pending.values().cloned().collect();
            self.meta.put_topics(&configs)?;
            pending.clear();
        }
        drop(pending);
        self.meta.sync(self.meta.place())
    }
}

fn check_queues(option: &'static str, queues: u32) -> Result<(), StoreError> {
    if (1..=65_536).contains(&queues) {
        return Ok(());
    }
    Err(StoreError::InvalidOption { option, reason: format!("{queues} is not between 1 and 65536") })
}

/// Checks the time after which values of a table expire; `None` means that it is not a number.
fn check_expire_after(after_ms: Option<i64>) -> Result<(), StoreError> {
    if after_ms.is_some_and(|after_ms| (0..=1 << 53).contains(&after_ms)) {
        return Ok(());
    }
    let given = after_ms.map_or_else(|| "it".to_owned(), |after_ms| after_ms.to_string());
    let reason = format!("{given} is not a number of milliseconds between 1 and 2^53");
    Err(StoreError::InvalidOption { option: "expire_after", reason })
}

/// Checks whether a topic can have this quota; `None` means that the value is not a number.
fn check_quota(topic: &str, most: Option<u64>) -> Result<(), StoreError> {
    let invalid = |reason| Err(StoreError::InvalidOption { option: "max_messages", reason });
    let exempt = [RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX, SYSTEM_TOPIC_PREFIX];
    if exempt.iter().any(|prefix| topic.starts_with(prefix)) {
        return invalid(format!(
            "topic {topic} cannot have a quota: retry, dead-letter and system messages must not get lost"
        ));
    }
    match most {
        Some(most) if most <= 1 << 53 => Ok(()),
        Some(most) => invalid(format!("{most} is not between 0 and 2^53")),
        None => invalid("give a whole number, at least 1".to_owned()),
    }
}

/// Returns the queue for a message of a compaction topic: messages with the same key always go to the same queue. The
/// queue is the absolute value of Java's string hash of the whole `KEYS` property, modulo the number of queues, as in
/// RocketMQ's own examples.
pub(crate) fn queue_for_key(topic: &TopicState, message: &NewMessage<'_>) -> Option<i32> {
    if !topic.is_compaction() {
        return None;
    }
    let hash = java_hash(Properties::new(message.properties).get(KEYS)?).checked_abs().unwrap_or(0);
    Some(hash % topic.write_queues().max(1) as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_queue_has_a_counter_of_its_own() {
        let offsets = QueueCounters::default();
        for index in 0..=u16::MAX {
            assert_eq!(
                offsets.at(index).next.fetch_add(i64::from(index) + 1, Ordering::Relaxed),
                0,
                "{index}"
            );
        }
        assert!(
            (0..=u16::MAX)
                .all(|index| offsets.at(index).next.load(Ordering::Relaxed) == i64::from(index) + 1)
        );
        let by_queue =
            offsets.by_queue().map(|(id, offset)| offset.next.load(Ordering::Relaxed) - i64::from(id));
        assert_eq!(by_queue.filter(|difference| *difference == 1).count(), 65_536);
        let few = QueueCounters::default();
        few.at(700).next.store(5, Ordering::Relaxed);
        let used = few.by_queue().filter(|(_, offset)| offset.next.load(Ordering::Relaxed) > 0);
        assert_eq!(used.map(|(id, _)| id).collect::<Vec<_>>(), [700]);
    }
}
