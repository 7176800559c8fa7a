//! Builders for the compaction tests: a store with a log, its queues, and a topic table; and a broker's compaction
//! files, written and recovered as in RocketMQ.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mqstore_format::json::{Dialect, TopicConfig, TopicTable};
use mqstore_format::properties::{KEYS, TAGS};
use mqstore_format::{
    BATCH_CQ_UNIT_BYTES, BatchCqUnit, CqUnit, DelayLevels, END_MARKER, Host, PropertiesBuilder, RecordSpec,
    RecordView, encode_blank, offset_file_name, patch_position,
};
use mqstore_io::{Access, ManualClock, SimVfs};

use super::files::folder::{LOG_DIR, QUEUE_DIR, queue_dir};
use super::{
    CompactedQueue, CompactionOptions, CompactionPlan, CompactionReport, Job, JobControl, PlannedJob,
};
use super::{StoreLockHeld, TaskResult, compact};
use mqstore_base::error::StoreError;
use mqstore_base::store_files::StoreFiles;
use mqstore_base::topic_floors::TopicFloors;
use mqstore_log::consume_queue::QueueSet;

/// Bytes of a log segment in tests.
pub(crate) const SEGMENT_BYTES: u64 = 16 << 10;

/// Bytes of a consume-queue file in tests.
const QUEUE_FILE_BYTES: u64 = 20 * 16;

/// Initial time of the test clock.
pub(crate) const START_MS: i64 = 1_700_000_000_000;

/// An empty root in a simulated file system.
pub fn sim_files() -> StoreFiles {
    files_on(&SimVfs::default())
}

/// The test store's root in `vfs`.
pub(crate) fn files_on(vfs: &SimVfs) -> StoreFiles {
    files_with(vfs, Arc::new(ManualClock::new(START_MS)))
}

/// The same root, with a clock that the test controls.
pub(crate) fn files_with(vfs: &SimVfs, clock: Arc<ManualClock>) -> StoreFiles {
    let files = StoreFiles::new(Arc::new(vfs.clone()), clock, Path::new("/store"));
    mqstore_io::Vfs::create_dir_all(vfs, &files.root).unwrap();
    files
}

/// Options for small files; tombstones are removed at once, as in RocketMQ.
pub(crate) fn small() -> CompactionOptions {
    CompactionOptions {
        log_file_bytes: 2048,
        queue_file_bytes: 46 * 8,
        tombstone_retention_ms: 0,
        ..CompactionOptions::default()
    }
}

/// Plans a job of a store that no process has open.
pub(crate) fn plan(
    files: &StoreFiles,
    topics: Option<&[String]>,
    options: &CompactionOptions,
) -> Result<PlannedJob, StoreError> {
    super::plan(files, &StoreLockHeld::take(files)?, topics, options)
}

/// Publishes a job of a store that no process has open.
pub(crate) fn publish(
    files: &StoreFiles,
    job: Option<Job>,
    plan: &CompactionPlan,
    results: &[TaskResult],
) -> Result<CompactionReport, StoreError> {
    let held = StoreLockHeld::take(files)?;
    super::publish(files, &held, job, plan, results)?.sweep(files, &held)
}

/// Compacts in this process.
pub(crate) fn compact_now(
    files: &StoreFiles,
    topics: Option<&[String]>,
    options: &CompactionOptions,
    threads: usize,
) -> Result<CompactionReport, StoreError> {
    compact(files, topics, options, threads, &Arc::new(JobControl::default()))
}

/// A message of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    pub(crate) key: Option<String>,
    pub(crate) body: Vec<u8>,
}

impl Sent {
    /// A message with a key.
    pub fn new(key: &str, body: &str) -> Self {
        Self { key: Some(key.to_owned()), body: body.as_bytes().to_vec() }
    }

    fn encode(&self, topic: &str, queue_id: i32, queue_offset: i64, physical_offset: i64) -> Vec<u8> {
        let mut properties = PropertiesBuilder::new();
        properties.push_reserved(TAGS, "TagA").unwrap();
        if let Some(key) = &self.key {
            properties.push_reserved(KEYS, key).unwrap();
        }
        let host = Host::new([127, 0, 0, 1], 10911);
        let mut bytes = Vec::new();
        RecordSpec {
            queue_id,
            queue_offset,
            physical_offset,
            born_timestamp: START_MS,
            store_timestamp: START_MS + queue_offset,
            properties: properties.as_bytes(),
            property_crc: true,
            ..RecordSpec::new(topic, &self.body, host, host)
        }
        .encode_into(&mut bytes)
        .unwrap();
        bytes
    }
}

/// A store that was closed cleanly, with its messages.
#[derive(Debug)]
pub(crate) struct TestStore {
    pub(crate) files: StoreFiles,
    pub(crate) clock: Arc<ManualClock>,
    log_end: u64,
    queues: QueueSet,
    next: HashMap<(String, i32), i64>,
    pub(crate) sent: BTreeMap<(String, i32), Vec<(i64, Sent)>>,
}

impl TestStore {
    /// Creates a store with these compaction topics.
    pub(crate) fn new(topics: &[&str]) -> Self {
        Self::on(&SimVfs::default(), topics)
    }

    pub(crate) fn on(vfs: &SimVfs, topics: &[&str]) -> Self {
        let clock = Arc::new(ManualClock::new(START_MS));
        let files = files_with(vfs, Arc::clone(&clock));
        for dir in [files.commit_log(), files.consume_queue(), files.config()] {
            files.vfs.create_dir_all(&dir).unwrap();
        }
        let queues =
            QueueSet::load(&files, QUEUE_FILE_BYTES, Access::ReadWrite, &TopicFloors::default()).unwrap();
        let store = Self { queues, files, clock, log_end: 0, next: HashMap::new(), sent: BTreeMap::new() };
        store.write_topics(topics);
        store
    }

    fn write_topics(&self, topics: &[&str]) {
        self.write_table(topics, None);
    }

    /// Lets the values of these topics, which the store was created with, expire after a time.
    pub(crate) fn expire_after(&self, topics: &[&str], after_ms: Option<u64>) {
        self.files.vfs.remove_file(&self.files.config().join("topics.json")).unwrap();
        self.write_table(topics, after_ms);
    }

    fn write_table(&self, topics: &[&str], expire_after_ms: Option<u64>) {
        let mut table = TopicTable::default();
        for topic in topics {
            let mut config = TopicConfig::new(*topic, 4);
            config.attributes.insert(TopicConfig::CLEANUP_POLICY.to_owned(), "COMPACTION".to_owned());
            if let Some(after_ms) = expire_after_ms {
                config.attributes.insert(TopicConfig::EXPIRE_AFTER.to_owned(), after_ms.to_string());
            }
            table.topics.insert((*topic).to_owned(), config);
        }
        table.topics.insert("plain".to_owned(), TopicConfig::new("plain", 1));
        let file = self.files.vfs.create_new(&self.files.config().join("topics.json")).unwrap();
        file.write_all_at(table.to_json(Dialect::Rocketmq53).as_bytes(), 0).unwrap();
    }

    /// Appends a message to the log, and returns the unit for its queue.
    pub(crate) fn append_to_log(&mut self, topic: &str, queue_id: i32, sent: Sent) -> (i64, CqUnit) {
        let next = self.next.entry((topic.to_owned(), queue_id)).or_insert(0);
        let queue_offset = *next;
        *next += 1;
        let mut bytes = sent.encode(topic, queue_id, queue_offset, self.log_end as i64);
        let free = SEGMENT_BYTES - self.log_end % SEGMENT_BYTES;
        if bytes.len() as u64 + 8 > free {
            self.write_log(&encode_blank(free as u32));
            self.log_end += free - 8;
            bytes = sent.encode(topic, queue_id, queue_offset, self.log_end as i64);
        }
        let unit = CqUnit { physical_offset: self.log_end as i64, size: bytes.len() as i32, tags_code: 0 };
        self.write_log(&bytes);
        self.sent.entry((topic.to_owned(), queue_id)).or_default().push((queue_offset, sent));
        (queue_offset, unit)
    }

    fn write_log(&mut self, bytes: &[u8]) {
        let base = self.log_end / SEGMENT_BYTES * SEGMENT_BYTES;
        let path = self.files.commit_log().join(offset_file_name(base));
        let file = self.files.vfs.open(&path, Access::ReadWrite).unwrap_or_else(|_| {
            let file = self.files.vfs.create_new(&path).unwrap();
            file.set_len(SEGMENT_BYTES).unwrap();
            file
        });
        file.write_all_at(bytes, self.log_end - base).unwrap();
        self.log_end += bytes.len() as u64;
    }

    /// Returns its consume queues.
    pub(crate) fn queues(&self) -> &QueueSet {
        &self.queues
    }

    /// Appends a message and its queue unit.
    pub(crate) fn append(&mut self, topic: &str, queue_id: i32, sent: Sent) -> i64 {
        let (offset, unit) = self.append_to_log(topic, queue_id, sent);
        let queue = self.queues.get_or_create(topic, queue_id).unwrap();
        let _ = queue.write(offset, &[unit]).unwrap();
        let _ = queue.commit(offset + 1).unwrap();
        offset
    }

    /// Appends `count` messages to queue 0 with the keys `k0` to `k<keys - 1>` in turn.
    pub(crate) fn append_in_turn(&mut self, topic: &str, count: usize, keys: usize) {
        for at in 0..count {
            self.append(topic, 0, Sent::new(&format!("k{}", at % keys), &format!("value {at}")));
        }
    }

    /// Returns the table of all messages sent to a queue: key to offset and body.
    pub(crate) fn dictionary(&self, topic: &str, queue_id: i32) -> BTreeMap<String, (i64, Vec<u8>)> {
        let mut dictionary = BTreeMap::new();
        for (offset, sent) in self.sent.get(&(topic.to_owned(), queue_id)).into_iter().flatten() {
            if let Some(key) = sent.key.clone().filter(|key| !key.trim().is_empty()) {
                if sent.body.is_empty() {
                    dictionary.remove(&key);
                } else {
                    dictionary.insert(key, (*offset, sent.body.clone()));
                }
            }
        }
        dictionary
    }
}

/// Returns the content of a compacted queue: key to offset and body. Fails on a duplicate key.
pub(crate) fn compacted(files: &StoreFiles, topic: &str, queue_id: i32) -> BTreeMap<String, (i64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let Some(queue) = CompactedQueue::open(files, topic, queue_id).unwrap() else {
        return found;
    };
    let mut last = -1;
    for record in queue.read(0) {
        let record = record.unwrap();
        let view = record.view().unwrap();
        view.check_crc(mqstore_format::CrcCheck::ALL).unwrap();
        assert!(view.queue_offset > last);
        last = view.queue_offset;
        let key = view.keys().unwrap().to_owned();
        assert!(found.insert(key, (view.queue_offset, view.body.to_vec())).is_none(), "duplicate key");
    }
    found
}

/// Returns the queue offsets that a reader gets from `from` on.
pub(crate) fn offsets(files: &StoreFiles, topic: &str, from: i64) -> Vec<i64> {
    let queue = CompactedQueue::open(files, topic, 0).unwrap().unwrap();
    queue.read(from).map(|record| record.unwrap().queue_offset).collect()
}

/// A broker's `CompactionLog` on one queue of topic `ctopic`: writes and recovers as RocketMQ does.
#[derive(Debug)]
pub struct Broker {
    files: StoreFiles,
    log_bytes: u64,
    queue_bytes: u64,
    /// Base, log position and queue position of the active pair.
    active: Option<(u64, u64, u64)>,
}

impl Broker {
    /// Creates a broker without files.
    pub fn new(files: &StoreFiles, log_bytes: u64, queue_bytes: u64) -> Self {
        Self { files: files.clone(), log_bytes, queue_bytes, active: None }
    }

    /// Creates a broker that loads the existing files (`SparseConsumeQueue#recover`, `TopicPartitionLog#init`).
    pub(crate) fn recover(files: &StoreFiles, log_bytes: u64, queue_bytes: u64) -> Self {
        let mut broker = Self::new(files, log_bytes, queue_bytes);
        let names: Vec<_> = [LOG_DIR, QUEUE_DIR]
            .map(|kind| files.vfs.list(&queue_dir(&files.compaction(), kind, "ctopic", 0)).unwrap())
            .into_iter()
            .map(|entries| {
                entries.into_iter().map(|entry| entry.name.into_string().unwrap()).collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(names[0], names[1], "the names of logs and queues must be the same");
        if let Some(name) = names[0].last() {
            let base: u64 = name.parse().unwrap();
            let bytes = files.vfs.read_file(&broker.path(QUEUE_DIR, base), 1 << 20).unwrap();
            assert_eq!(bytes.len() as u64, queue_bytes);
            let units = bytes.as_chunks::<BATCH_CQ_UNIT_BYTES>().0.iter().map(BatchCqUnit::decode);
            let units: Vec<_> = units.take_while(BatchCqUnit::is_valid).collect();
            let log = units.last().map_or(0, |unit| unit.physical_end() as u64 - base);
            broker.active = Some((base, log, (units.len() * BATCH_CQ_UNIT_BYTES) as u64));
        }
        broker
    }

    /// Path of a data file.
    pub fn path(&self, kind: &str, base: u64) -> PathBuf {
        queue_dir(&self.files.compaction(), kind, "ctopic", 0).join(offset_file_name(base))
    }

    /// `CompactionAppendMessageCallback#doAppend`, rolling included.
    pub fn append(&mut self, queue_offset: i64, sent: &Sent) {
        let mut bytes = sent.encode("ctopic", 0, queue_offset, 0);
        let (base, log, queue) = match self.active {
            Some((base, log, queue))
                if queue + 46 < self.queue_bytes && bytes.len() as u64 + 8 <= self.log_bytes - log =>
            {
                (base, log, queue)
            }
            Some((base, log, queue)) => {
                self.write(LOG_DIR, base, log, &encode_blank((self.log_bytes - log) as u32));
                self.write(QUEUE_DIR, base, queue, &END_MARKER.encode());
                (base + self.log_bytes, 0, 0)
            }
            None => (0, 0, 0),
        };
        let position = (base + log) as i64;
        let stored = START_MS + queue_offset;
        // As in RocketMQ: PHYSICALOFFSET is overwritten, and the property CRC keeps its old value.
        patch_position(&mut bytes, queue_offset, position, stored).unwrap();
        let tags = RecordView::decode(&bytes).unwrap().tags_code(&DelayLevels::default());
        let unit = BatchCqUnit::new(position, bytes.len() as i32, tags, stored, queue_offset, 1);
        self.write(LOG_DIR, base, log, &bytes);
        self.write(QUEUE_DIR, base, queue, &unit.encode());
        self.active = Some((base, log + bytes.len() as u64, queue + 46));
    }

    /// Writes bytes into a data file.
    pub fn write(&self, kind: &str, base: u64, position: u64, bytes: &[u8]) {
        let path = self.path(kind, base);
        let len = if kind == LOG_DIR { self.log_bytes } else { self.queue_bytes };
        self.files.vfs.create_dir_all(path.parent().unwrap()).unwrap();
        let file = self.files.vfs.open(&path, Access::ReadWrite).unwrap_or_else(|_| {
            let file = self.files.vfs.create_new(&path).unwrap();
            file.set_len(len).unwrap();
            file
        });
        file.write_all_at(bytes, position).unwrap();
    }
}
