//! The topic table: which topics exist, with how many queues, and where each queue goes on.
//!
//! Kept in RocketMQ's own `config/topics.json`, so that a broker sees the topics that we made and we
//! see its own, attributes included. Members that we do not know are written back as they were.
//! `create_topic` is durable when it returns; a topic that an append made is written with the next
//! flush, since the log alone brings it back.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};

use mqstore_format::json::{Dialect, TopicConfig, TopicTable};
use mqstore_format::properties::KEYS;
use mqstore_format::{Properties, java_hash, validate_topic};
use mqstore_io::sync::{Mutex, OnceLock, Raise, RwLock};

use crate::consume_queue::QueueSet;
use crate::dispatch::BatchTopics;
use crate::error::{IoContext, StoreError};
use crate::files::{CONFIG_LIMIT_BYTES, StoreFiles};
use crate::message::NewMessage;

/// A queue count of the table, which may hold any number.
fn count(queues: i32) -> u32 {
    queues.clamp(1, 65_536) as u32
}

/// The queues of one topic, for appends.
#[derive(Debug)]
pub(crate) struct TopicState {
    /// The next offset of each queue.
    offsets: Offsets,
    next: AtomicU32,
    /// Queues that appends without a queue id take in turn.
    write_queues: AtomicU32,
    /// Whether its queues hold batch units.
    pub(crate) batch: bool,
    /// Held from the look at the next offset to the append, where a record says its offset in its text.
    pub(crate) one_by_one: Mutex<()>,
    /// Whether it keeps the newest message of each key; such messages go to a queue by their key.
    pub(crate) compaction: bool,
}

impl TopicState {
    fn new(write_queues: u32, batch: bool, compaction: bool) -> Self {
        Self {
            offsets: Offsets::default(),
            next: AtomicU32::new(0),
            write_queues: AtomicU32::new(write_queues),
            batch,
            one_by_one: Mutex::default(),
            compaction,
        }
    }

    /// The queue for a message that names none.
    pub(crate) fn turn(&self) -> i32 {
        (self.next.fetch_add(1, Ordering::Relaxed) % self.write_queues().max(1)) as i32
    }

    /// How many queues appends take in turn.
    pub(crate) fn write_queues(&self) -> u32 {
        self.write_queues.load(Ordering::Acquire)
    }

    /// The next offset of queue `queue_id`, of 0 to 65,535.
    #[inline]
    pub(crate) fn next_offset(&self, queue_id: i32) -> &AtomicI64 {
        &self.offsets.at(queue_id as u16).next
    }

    /// How many wait for messages of queue `queue_id`.
    #[inline]
    pub(crate) fn watchers(&self, queue_id: i32) -> &AtomicU32 {
        &self.offsets.at(queue_id as u16).watchers
    }
}

/// A counter for each queue of a topic, made when it is first asked for; asking takes no lock.
///
/// Block 0 has the first [`FIRST_BLOCK`] counters, and each further one twice as many as the one before.
#[derive(Debug, Default)]
struct Offsets([OnceLock<Box<[Offset]>>; BLOCKS]);

/// One of the counters, in a cache line of its own: two threads that append to two queues would take
/// their neighbour's away from each other.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Offset {
    next: AtomicI64,
    watchers: AtomicU32,
}

const FIRST_BLOCK: usize = 8;
/// Enough for 65,536 counters: `FIRST_BLOCK * (2^BLOCKS - 1)` are no fewer.
const BLOCKS: usize = 14;

impl Offsets {
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "every index of 16 bits has its place in one of the blocks")]
    fn at(&self, index: u16) -> &Offset {
        let place = usize::from(index) + FIRST_BLOCK;
        let number = (place / FIRST_BLOCK).ilog2() as usize;
        let first = FIRST_BLOCK << number;
        let block = self.0[number].get_or_init(|| (0..first).map(|_| Offset::default()).collect());
        &block[place - first]
    }
}

/// The table of a store that is open for writing.
#[derive(Debug)]
pub(crate) struct Topics {
    files: StoreFiles,
    table: Mutex<TopicTable>,
    states: RwLock<HashMap<Box<str>, Arc<TopicState>>>,
    /// What the dispatcher goes by.
    batch: BatchTopics,
    dirty: AtomicBool,
}

/// Reads `config/topics.json`, or its backup; an unreadable table is an empty one and a note.
pub(crate) fn load_table(files: &StoreFiles, notes: &mut Vec<String>) -> TopicTable {
    let path = files.topics_json();
    for path in [path.clone(), path.with_extension("json.bak")] {
        match files.vfs.read_file(&path, CONFIG_LIMIT_BYTES) {
            Ok(bytes) if bytes.is_empty() => {}
            Ok(bytes) => match TopicTable::parse(&bytes) {
                Ok(table) => return table,
                Err(error) => notes.push(format!("{}: not readable ({error})", path.display())),
            },
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => notes.push(format!("{}: not readable ({error})", path.display())),
        }
    }
    TopicTable::default()
}

/// Topics whose queues hold batch units, by attribute or by the folder that RocketMQ keeps for them.
pub(crate) fn batch_topics(files: &StoreFiles, table: &TopicTable) -> BatchTopics {
    let topics = BatchTopics::with_folders(files);
    for topic in table.topics.values().filter(|topic| topic.is_batch_queue()) {
        topics.insert(&topic.name);
    }
    topics
}

impl Topics {
    /// The table, with each queue going on where `queues` end.
    pub(crate) fn new(files: &StoreFiles, table: TopicTable, batch: BatchTopics, queues: &QueueSet) -> Self {
        let mut states: BTreeMap<&str, TopicState> = BTreeMap::new();
        let (all, batches) = (queues.all(), queues.batches());
        for topic in table.topics.values() {
            states.insert(
                &topic.name,
                TopicState::new(
                    count(topic.write_queues),
                    batch.contains(&topic.name),
                    topic.is_compaction(),
                ),
            );
        }
        let plain = all.iter().map(|queue| (queue.topic(), queue.queue_id(), queue.max_offset()));
        let batched = batches.iter().map(|queue| (queue.topic(), queue.queue_id(), queue.max_offset()));
        for (topic, queue_id, max_offset) in plain.chain(batched) {
            let count = queue_id.max(0) as u32 + 1;
            let listed = table.topics.contains_key(topic);
            let made = || TopicState::new(count, batch.contains(topic), false);
            let state = states.entry(topic).or_insert_with(made);
            if !listed {
                state.write_queues.raise(count, Ordering::AcqRel);
            }
            state.next_offset(queue_id).store(max_offset, Ordering::Release);
        }
        let states = states.into_iter().map(|(name, state)| (name.into(), Arc::new(state))).collect();
        Self {
            files: files.clone(),
            table: Mutex::new(table),
            states: RwLock::new(states),
            batch,
            dirty: AtomicBool::new(false),
        }
    }

    /// The state of `topic`.
    pub(crate) fn get(&self, topic: &str) -> Option<Arc<TopicState>> {
        self.states.read().get(topic).cloned()
    }

    /// Every topic's name, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.states.read().keys().map(ToString::to_string).collect();
        names.sort_unstable();
        names
    }

    /// The topics that keep the newest message of each key, sorted, and how many queues each has for appends.
    pub(crate) fn compaction_topics(&self) -> Vec<(String, u32)> {
        let states = self.states.read();
        let kept = states.iter().filter(|(_, state)| state.compaction);
        let mut topics: Vec<_> = kept.map(|(name, state)| (name.to_string(), state.write_queues())).collect();
        topics.sort_unstable();
        topics
    }

    /// How many queues `topic` has for readers.
    pub(crate) fn queue_count(&self, topic: &str) -> u32 {
        let listed =
            self.table.lock().topics.get(topic).map(|topic| count(topic.read_queues.max(topic.write_queues)));
        listed.or_else(|| self.get(topic).map(|state| state.write_queues())).unwrap_or(0)
    }

    /// Makes `topic`, or gives it more queues when it has fewer; returns its state.
    pub(crate) fn create(
        &self,
        topic: &str,
        queues: u32,
        attributes: &[(String, String)],
    ) -> Result<Arc<TopicState>, StoreError> {
        validate_topic(topic).map_err(|error| StoreError::InvalidMessage { reason: error.to_string() })?;
        if !(1..=65_536).contains(&queues) {
            let reason = format!("{queues} is not between 1 and 65536");
            return Err(StoreError::InvalidOption { option: "queues", reason });
        }
        let mut table = self.table.lock();
        let mut states = self.states.write();
        let known = states.get(topic).map(Arc::clone);
        let listed = table.topics.get(topic);
        if let (Some(state), Some(listed)) = (&known, listed)
            && count(listed.write_queues) >= queues
        {
            return Ok(Arc::clone(state));
        }
        let mut config = listed.cloned().unwrap_or_else(|| TopicConfig::new(topic, queues as i32));
        config.write_queues = config.write_queues.max(queues as i32);
        config.read_queues = config.read_queues.max(queues as i32);
        // Attributes are fixed when a topic is made, as in RocketMQ.
        if listed.is_none() {
            config.attributes.extend(attributes.iter().cloned());
        }
        let (batch, compaction) = (config.is_batch_queue(), config.is_compaction());
        if batch {
            self.batch.insert(topic);
        }
        let queues = count(config.write_queues);
        table.topics.insert(topic.to_owned(), config);
        table.data_version = table.data_version.next(self.files.clock.now_ms());
        let state = known.unwrap_or_else(|| Arc::new(TopicState::new(queues, batch, compaction)));
        state.write_queues.raise(queues, Ordering::AcqRel);
        states.insert(topic.into(), Arc::clone(&state));
        self.dirty.store(true, Ordering::Release);
        Ok(state)
    }

    /// Attributes of `topic`.
    pub(crate) fn attributes(&self, topic: &str) -> Vec<(String, String)> {
        let table = self.table.lock();
        let attributes = table.topics.get(topic).map(|topic| topic.attributes.clone()).unwrap_or_default();
        attributes.into_iter().collect()
    }

    /// Writes the table when it changed; durable when this returns.
    pub(crate) fn store(&self) -> Result<(), StoreError> {
        let table = self.table.lock();
        if !self.dirty.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let path = self.files.topics_json();
        let text = table.to_json(Dialect::default());
        let staged = self.files.staging().join("topics.json");
        let outcome = self.files.ensure_folder(&self.files.config()).and_then(|()| {
            let written = self.files.vfs.write_atomic(&path, &staged, text.as_bytes());
            written.at(&path, "writing the topic table")
        });
        if outcome.is_err() {
            self.dirty.store(true, Ordering::Release);
        }
        outcome
    }
}

/// The queue of a message that replaces others by its key: the same key always goes to the same one.
/// The hash is that of Java's strings over the whole `KEYS` property, its absolute value modulo the
/// number of queues, as RocketMQ's own examples do.
pub(super) fn by_key(topic: &TopicState, message: &NewMessage<'_>) -> Option<i32> {
    if !topic.compaction {
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
        let offsets = Offsets::default();
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
    }
}
