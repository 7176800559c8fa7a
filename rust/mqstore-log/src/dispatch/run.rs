//! What one run of records contributes to the derived files, before anything is written.
//!
//! Owns the decision which entries a record yields. Memory only, and used again for the next run. What
//! depends on the topic alone (is its name good for a folder, do its queues hold plain units, the front
//! of its keys' hash) is found out once for each topic of a run.

use std::collections::{BTreeSet, HashMap};

use mqstore_format::{BatchCqUnit, CqUnit, IndexHasher, RecordOutline, validate_stored_topic};
use mqstore_io::FileKind;
use mqstore_io::sync::{Arc, RwLock};

use crate::index::NewEntry;
use mqstore_base::store_files::{DelayTables, StoreFiles};

/// Queue ids below this have their place in a table; others are searched.
const NEAR_QUEUES: usize = 1024;

/// Entries up to which the memory of a list is kept for the next run: more than a run of small records
/// with a few keys each has.
const KEPT_ENTRIES: usize = 32 << 10;

/// Lists of units that are kept for the next run.
const KEPT_LISTS: usize = 256;

/// What decides which entries a record yields.
#[derive(Clone, Debug, Default)]
pub struct DispatchRules {
    /// Records below this log position have their index entries already.
    pub index_from: u64,
    /// Whether tags get index entries of their own, as RocketMQ 5.5.0 writes them.
    pub index_tags: bool,
    /// What the levels of delayed messages mean; their entries hold the delivery time.
    pub delays: DelayTables,
    /// Topics whose queues hold batch units instead of plain ones.
    pub batch_topics: BatchTopics,
    /// Whether damage in the log is passed over; else it stops the dispatcher.
    pub skip_damage: bool,
    /// Whether checksums are verified; a record whose checksum is wrong is damage then.
    pub check_crc: bool,
}

/// Topics whose queues hold batch units. Clones are the same set, to which topics may be added any time.
#[derive(Clone, Debug, Default)]
pub struct BatchTopics(Arc<RwLock<BTreeSet<Box<str>>>>);

impl BatchTopics {
    /// The topics that have a folder of batch queues.
    pub fn with_folders(files: &StoreFiles) -> Self {
        let topics = Self::default();
        for entry in files.vfs.list(&files.batch_consume_queue()).unwrap_or_default() {
            if let (FileKind::Directory, Some(name)) = (entry.stat.kind, entry.name.to_str()) {
                topics.insert(name);
            }
        }
        topics
    }

    /// Whether `topic` is one of them.
    pub fn contains(&self, topic: &str) -> bool {
        self.0.read().contains(topic)
    }

    /// Adds `topic`.
    pub fn insert(&self, topic: &str) {
        self.0.write().insert(topic.into());
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.read().is_empty()
    }
}

/// What one run of records contributes to the derived files.
#[derive(Debug, Default)]
pub struct RunOutput {
    /// Index entries in log order.
    pub index: Vec<NewEntry>,
    /// Records seen, without those that only fill a place.
    pub records: u64,
    /// Log offset and store time of the last of them.
    pub last_record: (u64, i64),
    queues: Vec<QueueRun>,
    batches: Vec<BatchRun>,
    topics: Vec<TopicRun>,
    by_name: HashMap<Box<str>, usize>,
    /// The topic of the last record; most records have the topic of the one before.
    last: usize,
    spare: Vec<Vec<CqUnit>>,
}

/// Entries of one queue, in log order.
#[derive(Debug)]
pub struct QueueRun {
    topic: usize,
    queue_id: i32,
    units: Vec<CqUnit>,
    /// Where a row of units starts whose queue offsets follow one another: the offset, and its unit.
    rows: Vec<(i64, usize)>,
    next_offset: i64,
}

/// Units of one batch queue, in log order.
#[derive(Debug)]
struct BatchRun {
    topic: usize,
    queue_id: i32,
    units: Vec<BatchCqUnit>,
}

/// What a run knows of one topic.
#[derive(Debug)]
struct TopicRun {
    name: Box<str>,
    /// Whether its records get queue entries.
    has_queues: bool,
    /// Whether those are batch units.
    batch: bool,
    hasher: IndexHasher,
    /// Places in `RunOutput::queues`, by queue id.
    near: Vec<Option<usize>>,
    far: Vec<(i32, usize)>,
}

impl TopicRun {
    fn new(rules: &DispatchRules, name: &str) -> Self {
        // A name that could leave the store's folders never becomes a path.
        let has_queues = validate_stored_topic(name).is_ok();
        let batch = rules.batch_topics.contains(name);
        let hasher = IndexHasher::new(name);
        Self { name: name.into(), has_queues, batch, hasher, near: Vec::new(), far: Vec::new() }
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
        if offset != self.next_offset || self.rows.is_empty() {
            self.rows.push((offset, self.units.len()));
        }
        self.units.push(unit);
        // Offsets are not negative: nothing follows the largest one.
        self.next_offset = offset.wrapping_add(1);
    }

    /// The queue.
    pub fn queue_id(&self) -> i32 {
        self.queue_id
    }

    /// Units whose queue offsets follow one another, with the first one's offset, in log order.
    pub fn rows(&self) -> impl Iterator<Item = (i64, &[CqUnit])> {
        let ends = self.rows.iter().skip(1).map(|(_, start)| *start).chain([self.units.len()]);
        self.rows
            .iter()
            .zip(ends)
            .map(|((offset, start), end)| (*offset, self.units.get(*start..end).unwrap_or_default()))
    }
}

impl RunOutput {
    /// The entries of queues, by queue in the order of its first record.
    pub fn queues(&self) -> impl Iterator<Item = (&str, &QueueRun)> {
        self.queues.iter().filter_map(|run| Some((&*self.topics.get(run.topic)?.name, run)))
    }

    /// The units of batch queues, by topic and queue, each in log order.
    pub fn batches(&self) -> impl Iterator<Item = (&str, i32, &[BatchCqUnit])> {
        self.batches.iter().filter_map(|run| {
            let topic = self.topics.get(run.topic)?;
            Some((&*topic.name, run.queue_id, run.units.as_slice()))
        })
    }

    /// Forgets everything, for another run.
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

    /// Adds what `record`, which lies at log offset `offset`, contributes.
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
        if indexed {
            let hasher = topic.hasher;
            let mut put = |hash: i32, of_tags: bool| {
                let (physical_offset, store_timestamp) = (offset as i64, record.store_timestamp);
                self.index.push(NewEntry { hash, physical_offset, store_timestamp, of_tags });
            };
            fields.key_hashes(hasher, |hash| put(hash, false));
            if rules.index_tags {
                // RocketMQ 5.5.0 marks a tag entry by a `T` between topic and tag.
                fields.tags().into_iter().for_each(|tags| put(hasher.tags(tags), true));
            }
        }
        if queued && topic.has_queues && record.queue_id >= 0 && record.queue_offset >= 0 {
            let tags_code = fields.tags_code(record.topic, record.store_timestamp, rules.delays.at(offset));
            if topic.batch {
                self.add_batch(record, offset, tags_code);
                return;
            }
            let unit = CqUnit { physical_offset: offset as i64, size: record.size as i32, tags_code };
            let place = topic.place(record.queue_id).unwrap_or_else(|| self.add_queue(record.queue_id));
            if let Some(run) = self.queues.get_mut(place) {
                run.push(record.queue_offset, unit);
            }
            for (name, queue_offset) in fields.light_queues(record.topic) {
                self.add_light(rules, name, queue_offset, unit);
            }
        }
    }

    /// Adds the entry of a light queue for a record of the last topic.
    #[cold]
    fn add_light(&mut self, rules: &DispatchRules, name: &str, queue_offset: i64, unit: CqUnit) {
        let of_record = self.last;
        self.last = self.topic(rules, name);
        let topic = self.topics.get(self.last).filter(|topic| topic.has_queues && !topic.batch);
        if let Some(topic) = topic {
            let place = topic.place(0).unwrap_or_else(|| self.add_queue(0));
            if let Some(run) = self.queues.get_mut(place) {
                run.push(queue_offset, unit);
            }
        }
        self.last = of_record;
    }

    /// Adds the unit of a record of the last topic, whose queues hold batch units. A record that says
    /// nothing of a batch holds one message; one whose numbers are negative gets no unit.
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

    /// Adds a queue of the last topic.
    #[cold]
    fn add_queue(&mut self, queue_id: i32) -> usize {
        let (place, topic) = (self.queues.len(), self.last);
        let units = self.spare.pop().unwrap_or_default();
        self.queues.push(QueueRun { topic, queue_id, units, rows: Vec::new(), next_offset: 0 });
        if let Some(topic) = self.topics.get_mut(topic) {
            topic.set_queue_index(queue_id, place);
        }
        place
    }
}

#[cfg(test)]
mod tests;
