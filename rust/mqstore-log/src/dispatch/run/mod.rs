//! The units and entries of one dispatch run, before they are written.
//!
//! This module decides which units and entries a record gets. It works in memory only, and reuses its memory for the
//! next run. Facts that depend only on the topic are computed once per topic and run: whether its name is valid as a
//! folder, whether its queues hold batch units, and the prefix of its key hashes.

use std::collections::{BTreeSet, HashMap};

use mqstore_format::{BatchCqUnit, CqUnit, IndexHasher, RecordOutline, validate_stored_topic};
use mqstore_io::FileKind;
use mqstore_io::sync::{Arc, RwLock};

use crate::index::NewEntry;
use mqstore_base::store_files::{DelayTables, OWN_FOLDER, StoreFiles};
use mqstore_base::topic_floors::TopicFloors;

/// Queue ids below this bound have a place in a table; the others are in a list.
const NEAR_QUEUES: usize = 1024;

/// Maximum capacity at which a list is kept for the next run. A run of small records with a few keys each stays below
/// it.
const KEPT_ENTRIES: usize = 32 << 10;

/// Maximum number of unit lists kept for the next run.
const KEPT_LISTS: usize = 256;

/// The rules that decide which units and entries a record gets.
#[derive(Clone, Debug, Default)]
pub struct DispatchRules {
    /// Log offset before which records have their index entries already.
    pub index_from: u64,
    /// Whether tags get their own index entries, as in RocketMQ 5.5.0.
    pub index_tags: bool,
    /// The delay of each delay level; the unit of a delayed message holds its delivery time.
    pub delays: DelayTables,
    /// Topics whose queues hold batch units.
    pub batch_topics: BatchTopics,
    /// The floors of topics. Records from before a deletion get no units of their own queues and no entries. Their units
    /// in light queues stay, so that these queues have no gaps; reads hide such records.
    pub floors: TopicFloors,
    /// Whether records that a retention hides get them.
    pub expired: ExpiredRecords,
    /// Whether dispatch skips damage in the log; otherwise damage stops the dispatcher.
    pub skip_damage: bool,
    /// Whether to skip records whose topic, queue or queue offset may be damaged (`has_damaged_place`). Reads all bytes
    /// of each record.
    pub check_place: bool,
}

/// What happens to records that the retention of their topic hides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpiredRecords {
    /// They get units and entries: brokers read the queue files, and blanks at the front of a queue would mislead them
    /// in a log that begins at 0.
    #[default]
    Dispatch,
    /// They get no units of their own queues, and no entries. Only for checks: the units may have gone with whole
    /// files.
    Skip,
}

/// A set of topics whose queues hold batch units. Clones share one set, and topics can be added at any time.
#[derive(Clone, Debug, Default)]
pub struct BatchTopics(Arc<RwLock<BTreeSet<Box<str>>>>);

impl BatchTopics {
    /// Lists the topics that have a folder of batch queues.
    pub fn with_folders(files: &StoreFiles) -> Self {
        let topics = Self::default();
        for entry in files.vfs.list(&files.batch_consume_queue()).unwrap_or_default() {
            if let (FileKind::Directory, Some(name)) = (entry.stat.kind, entry.name.to_str())
                && name != OWN_FOLDER
            {
                topics.insert(name);
            }
        }
        topics
    }

    /// Whether the set contains `topic`.
    pub fn contains(&self, topic: &str) -> bool {
        self.0.read().contains(topic)
    }

    /// Adds `topic`.
    pub fn insert(&self, topic: &str) {
        self.0.write().insert(topic.into());
    }

    /// Removes `topic`.
    pub fn remove(&self, topic: &str) {
        self.0.write().remove(topic);
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.read().is_empty()
    }
}

/// The units and entries of one run.
#[derive(Debug, Default)]
pub struct RunOutput {
    /// Index entries in log order.
    pub index: Vec<NewEntry>,
    /// Number of records, without placeholders that yield no unit or entry.
    pub records: u64,
    /// Log offset and store time of the last record.
    pub last_record: (u64, i64),
    queues: Vec<QueueRun>,
    batches: Vec<BatchRun>,
    topics: Vec<TopicRun>,
    by_name: HashMap<Box<str>, usize>,
    /// Topic of the last record; most records have the same topic as their predecessor.
    last: usize,
    spare: Vec<Vec<CqUnit>>,
}

/// The units of one queue, in log order.
#[derive(Debug)]
pub struct QueueRun {
    topic: usize,
    queue_id: i32,
    units: Vec<CqUnit>,
    /// Ranges of units with consecutive queue offsets: first offset, and index of its unit.
    ranges: Vec<(i64, usize)>,
    next_offset: i64,
}

/// Units of one batch queue, in log order.
#[derive(Debug)]
struct BatchRun {
    topic: usize,
    queue_id: i32,
    units: Vec<BatchCqUnit>,
}

/// What a run knows about one topic.
#[derive(Debug)]
struct TopicRun {
    name: Box<str>,
    /// Whether records of the topic get units.
    has_queues: bool,
    /// Whether these are batch units.
    batch: bool,
    /// Log offset before which the records of the topic get no units of its own queues.
    floor: u64,
    hasher: IndexHasher,
    /// Index in `RunOutput::queues`, by queue id.
    near: Vec<Option<usize>>,
    far: Vec<(i32, usize)>,
}

impl TopicRun {
    fn new(rules: &DispatchRules, name: &str) -> Self {
        // A name that could point outside the store's folders never becomes a path.
        let has_queues = validate_stored_topic(name).is_ok();
        let batch = rules.batch_topics.contains(name);
        let floor = match rules.expired {
            ExpiredRecords::Dispatch => rules.floors.deleted(name),
            ExpiredRecords::Skip => rules.floors.log_offset(name),
        };
        let (hasher, near, far) = (IndexHasher::new(name), Vec::new(), Vec::new());
        Self { name: name.into(), has_queues, batch, floor, hasher, near, far }
    }

    #[inline]
    fn place(&self, queue_id: i32) -> Option<usize> {
        match self.near.get(queue_id as usize) {
            Some(place) => *place,
            None => self.far.iter().find(|(id, _)| *id == queue_id).map(|(_, place)| *place),
        }
    }

    fn set_queue_index(&mut self, queue_id: i32, place: usize) {
        let id = queue_id as usize;
        if id >= NEAR_QUEUES {
            self.far.push((queue_id, place));
            return;
        }
        if id >= self.near.len() {
            self.near.resize(id + 1, None);
        }
        if let Some(slot) = self.near.get_mut(id) {
            *slot = Some(place);
        }
    }
}

impl QueueRun {
    #[inline]
    fn push(&mut self, offset: i64, unit: CqUnit) {
        if offset != self.next_offset || self.ranges.is_empty() {
            self.ranges.push((offset, self.units.len()));
        }
        self.units.push(unit);
        // Offsets are not negative, so no offset equals the wrapped successor of the largest one.
        self.next_offset = offset.wrapping_add(1);
    }

    /// Id of the queue.
    pub fn queue_id(&self) -> i32 {
        self.queue_id
    }

    /// Returns the ranges of units with consecutive queue offsets in log order, each with its first offset.
    pub fn ranges(&self) -> impl Iterator<Item = (i64, &[CqUnit])> {
        let ends = self.ranges.iter().skip(1).map(|(_, start)| *start).chain([self.units.len()]);
        self.ranges
            .iter()
            .zip(ends)
            .map(|((offset, start), end)| (*offset, self.units.get(*start..end).unwrap_or_default()))
    }
}

impl RunOutput {
    /// Returns the units of plain queues, with the queues in order of their first record.
    pub fn queues(&self) -> impl Iterator<Item = (&str, &QueueRun)> {
        self.queues.iter().filter_map(|run| Some((&*self.topics.get(run.topic)?.name, run)))
    }

    /// Returns the units of batch queues, by topic and queue, each in log order.
    pub fn batches(&self) -> impl Iterator<Item = (&str, i32, &[BatchCqUnit])> {
        self.batches.iter().filter_map(|run| {
            let topic = self.topics.get(run.topic)?;
            Some((&*topic.name, run.queue_id, run.units.as_slice()))
        })
    }

    /// Clears the output for another run.
    pub fn begin(&mut self) {
        for run in self.queues.drain(..) {
            let mut units = run.units;
            if self.spare.len() < KEPT_LISTS && units.capacity() <= KEPT_ENTRIES {
                units.clear();
                self.spare.push(units);
            }
        }
        self.batches.clear();
        self.index.clear();
        self.index.shrink_to(KEPT_ENTRIES);
        self.topics.clear();
        self.by_name.clear();
        (self.records, self.last_record, self.last) = (0, (0, 0), 0);
    }

    /// Adds the units and entries of `record`, which is at log offset `offset`.
    #[inline]
    pub fn add(&mut self, rules: &DispatchRules, record: &RecordOutline<'_>, offset: u64) {
        self.last_record = (offset, record.store_timestamp);
        let (queued, indexed) =
            (record.dispatches_to_queue(), record.indexed() && offset >= rules.index_from);
        if !queued && !indexed {
            self.records += u64::from(!record.is_placeholder());
            return;
        }
        self.records += 1;
        let known = self.topics.get(self.last).is_some_and(|topic| *topic.name == *record.topic);
        if !known {
            self.last = self.topic(rules, record.topic);
        }
        let Some(topic) = self.topics.get(self.last) else { return };
        let fields = record.entry_fields();
        let is_live = offset >= topic.floor;
        if indexed && is_live {
            let hasher = topic.hasher;
            let mut put = |hash: i32, of_tags: bool| {
                let (physical_offset, store_timestamp) = (offset as i64, record.store_timestamp);
                self.index.push(NewEntry { hash, physical_offset, store_timestamp, of_tags });
            };
            fields.key_hashes(hasher, |hash| put(hash, false));
            if rules.index_tags {
                // RocketMQ 5.5.0 puts a `T` between topic and tag to mark a tag entry.
                fields.tags().into_iter().for_each(|tags| put(hasher.tags(tags), true));
            }
        }
        if queued && topic.has_queues && record.queue_id >= 0 && record.queue_offset >= 0 {
            let tags_code = fields.tags_code(record.topic, record.store_timestamp, rules.delays.at(offset));
            if topic.batch {
                if is_live {
                    self.add_batch(record, offset, tags_code);
                }
                return;
            }
            let unit = CqUnit { physical_offset: offset as i64, size: record.size as i32, tags_code };
            if is_live {
                let place = topic.place(record.queue_id).unwrap_or_else(|| self.add_queue(record.queue_id));
                if let Some(run) = self.queues.get_mut(place) {
                    run.push(record.queue_offset, unit);
                }
            }
            for (name, queue_offset) in fields.light_queues(record.topic) {
                self.add_light(rules, name, queue_offset, unit);
            }
        }
    }

    /// Adds the unit of a light queue for a record of the last topic.
    #[cold]
    fn add_light(&mut self, rules: &DispatchRules, name: &str, queue_offset: i64, unit: CqUnit) {
        let of_record = self.last;
        self.last = self.topic(rules, name);
        let topic = self.topics.get(self.last).filter(|topic| topic.has_queues && !topic.batch);
        let is_live = |topic: &&TopicRun| unit.physical_offset as u64 >= topic.floor;
        if let Some(topic) = topic.filter(is_live) {
            let place = topic.place(0).unwrap_or_else(|| self.add_queue(0));
            if let Some(run) = self.queues.get_mut(place) {
                run.push(queue_offset, unit);
            }
        }
        self.last = of_record;
    }

    /// Adds the batch unit of a record of the last topic. A record without batch properties counts as one message. A
    /// record with a negative base offset or message count gets no unit.
    #[cold]
    fn add_batch(&mut self, record: &RecordOutline<'_>, offset: u64, tags_code: i64) {
        let (base, messages) = record.inner_batch().unwrap_or((record.queue_offset, 1));
        if base < 0 || messages < 0 {
            return;
        }
        let (size, stored) = (record.size as i32, record.store_timestamp);
        let unit = BatchCqUnit::new(offset as i64, size, tags_code, stored, base, messages as i16);
        let (topic, queue_id) = (self.last, record.queue_id);
        match self.batches.iter_mut().find(|run| run.topic == topic && run.queue_id == queue_id) {
            Some(run) => run.units.push(unit),
            None => self.batches.push(BatchRun { topic, queue_id, units: vec![unit] }),
        }
    }

    fn topic(&mut self, rules: &DispatchRules, name: &str) -> usize {
        if let Some(place) = self.by_name.get(name) {
            return *place;
        }
        let place = self.topics.len();
        self.topics.push(TopicRun::new(rules, name));
        self.by_name.insert(name.into(), place);
        place
    }

    /// Adds a queue to the last topic.
    #[cold]
    fn add_queue(&mut self, queue_id: i32) -> usize {
        let (place, topic) = (self.queues.len(), self.last);
        let units = self.spare.pop().unwrap_or_default();
        self.queues.push(QueueRun { topic, queue_id, units, ranges: Vec::new(), next_offset: 0 });
        if let Some(topic) = self.topics.get_mut(topic) {
            topic.set_queue_index(queue_id, place);
        }
        place
    }
}

#[cfg(test)]
mod tests;
