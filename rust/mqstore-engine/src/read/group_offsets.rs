//! Committed offsets of consumer groups.
//!
//! A writer has them in memory. A reader reads them from the metadata log, or from the JSON files of a broker.

use std::collections::BTreeMap;

use mqstore_format::json::{ConsumerOffsets, QueueOffsets};
use mqstore_format::topic::{DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, is_system_topic};

use super::view::{StoreView, View};
use crate::engine::Engine;
use crate::engine::damage_notes::LMQ_OFFSET_FILE;
use crate::engine::topics::load_listed;
use mqstore_base::error::StoreError;
use mqstore_base::store_files::{LoadedConfig, StoreFiles};
use mqstore_meta::{GroupQueue, Progress, read_state};

/// The committed offsets of a group in a topic, from the metadata log, `config/consumerOffset.json` or
/// `config/lmqConsumerOffset.json`. Source: `ConsumerOffsetManager`, `LmqConsumerOffsetManager`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupOffsets {
    /// The group.
    pub group: String,
    /// The topic.
    pub topic: String,
    /// The queues of the topic, ascending.
    pub queues: Vec<GroupOffset>,
}

/// The committed offset of a group in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupOffset {
    /// The queue.
    pub queue_id: i32,
    /// The offset of the next message to consume.
    pub offset: i64,
    /// Number of messages from this offset to the end of the queue. Negative if the queue lost its end and the offset
    /// is after it; `None` if the store has no such queue.
    pub lag: Option<i64>,
}

/// Numbers of messages of a work queue by state. A message whose lease has ended is ready.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkCounts {
    /// The group.
    pub group: String,
    /// The topic.
    pub topic: String,
    /// Messages without a lease that are due.
    pub ready: u64,
    /// Messages that are due later.
    pub delayed: u64,
    /// Messages with a lease.
    pub leased: u64,
    /// Messages that become dead letters.
    pub dying: u64,
}

/// The consumer groups of an open store. In the writing process its answers are current; in a reader they are those that
/// the current or the last writer wrote to the disk.
pub struct GroupTable<'a> {
    view: StoreView,
    engine: Option<&'a Engine>,
}

impl<'a> GroupTable<'a> {
    /// Returns the groups of the store that `view` reads; `engine` is the same store if it is open for writing.
    pub(crate) fn new(view: StoreView, engine: Option<&'a Engine>) -> Self {
        Self { view, engine }
    }

    /// Returns the names of all consumer groups that have a configuration or an offset in a queue, sorted.
    pub fn names(&self) -> Vec<String> {
        match self.engine {
            Some(engine) => engine.meta.groups(),
            None => load_listed(self.view.files(), &mut Vec::new()).groups,
        }
    }

    /// Returns the committed offsets of consumer groups, by topic and group. Parts that cannot be read count as missing;
    /// `mqstore_inspect::info` reports them.
    pub fn offsets(&self) -> Result<Vec<GroupOffsets>, StoreError> {
        let saved = match self.engine {
            Some(engine) => current_offsets(engine),
            None => saved_offsets(self.view.files(), &mut Vec::new()),
        };
        offsets_with_lag(&*self.view, saved)
    }

    /// Returns the saved offsets of all groups with their lag, read from files. Adds unreadable files to `notes`.
    pub fn saved_offsets(&self, notes: &mut Vec<String>) -> Result<Vec<GroupOffsets>, StoreError> {
        offsets_with_lag(&*self.view, saved_offsets(self.view.files(), notes))
    }

    /// Returns the numbers of messages of all work queues, by group and topic, also of those that no handle has open.
    /// Messages in the retry topics of RocketMQ count for the topic that they were popped from.
    pub fn work_counts(&self) -> Result<Vec<WorkCounts>, StoreError> {
        let now_ms = self.view.files().clock.now_ms();
        let mut parts = Vec::new();
        // The ends of the queues follow, because a visit holds the lock of a progress.
        self.each_progress(|queue, progress| {
            parts.push((queue, progress.new_messages(i64::MAX), progress.counts(now_ms)));
        });
        self.view.catch_up()?;
        let mut found = BTreeMap::<(String, String), WorkCounts>::new();
        for (GroupQueue { group, topic, queue_id }, endless, counts) in parts {
            let Some((_, end)) = self.view.bounds(&topic, queue_id)? else { continue };
            let (group, topic) = (group.to_string(), popped_from(&group, &topic).to_owned());
            let key = (group.clone(), topic.clone());
            let sum =
                found.entry(key).or_insert_with(|| WorkCounts { group, topic, ..WorkCounts::default() });
            sum.ready += endless.saturating_sub(i64::MAX.abs_diff(end)) + counts.due;
            sum.delayed += counts.delayed;
            sum.leased += counts.leased;
            sum.dying += counts.dying;
        }
        Ok(found.into_values().collect())
    }

    /// Visits every progress of a group that takes its messages one by one. Parts that cannot be read count as missing. The
    /// visit must not read the store.
    pub fn each_progress(&self, mut visit: impl FnMut(GroupQueue, &Progress)) {
        // Transactions have a progress too, and so has a group in its own dead letters: it says which were redriven.
        let is_own = |queue: &GroupQueue| queue.topic.strip_prefix(DLQ_TOPIC_PREFIX) == Some(&*queue.group);
        let visit = |queue: GroupQueue, progress: &Progress| {
            if !is_system_topic(&queue.topic) && !is_own(&queue) {
                visit(queue, progress);
            }
        };
        match self.engine {
            Some(engine) => engine.meta.each_progress(visit),
            None => read_state(self.view.files(), &mut Vec::new()).unwrap_or_default().each_progress(visit),
        }
    }

    /// Returns the progress of groups in queues, each given by group, topic and queue; `None` for a group without
    /// progress in the queue.
    ///
    /// # Errors
    /// Errors of reading the metadata log.
    pub fn progress(&self, wanted: &[(&str, &str, i32)]) -> Result<Vec<Option<Progress>>, StoreError> {
        let wanted = wanted.iter();
        if let Some(engine) = self.engine {
            return Ok(wanted.map(|(group, topic, id)| engine.meta.known_of(group, topic, *id)).collect());
        }
        let state = read_state(self.view.files(), &mut Vec::new())?;
        Ok(wanted.map(|(group, topic, id)| state.known_of(group, topic, *id)).collect())
    }
}

/// Returns the topic from which the messages of RocketMQ's retry topic `topic` were popped, or `topic` itself. Source:
/// `KeyBuilder#buildPopRetryTopicV1`, `#buildPopRetryTopicV2`.
pub fn popped_from<'a>(group: &str, topic: &'a str) -> &'a str {
    let rest = topic.strip_prefix(RETRY_TOPIC_PREFIX).and_then(|rest| rest.strip_prefix(group));
    rest.and_then(|rest| rest.strip_prefix(['_', '+'])).unwrap_or(topic)
}

/// Adds the lag in the queues of the store to the offsets in `saved`, which are by `topic@group`.
pub(crate) fn offsets_with_lag(
    view: &dyn View,
    saved: BTreeMap<String, QueueOffsets>,
) -> Result<Vec<GroupOffsets>, StoreError> {
    view.catch_up()?;
    let mut found = Vec::new();
    for (key, offsets) in saved {
        let Some((topic, group)) = ConsumerOffsets::split_key(&key) else { continue };
        let queue = |(queue_id, offset): (i32, i64)| {
            let lag = view.bounds(topic, queue_id)?.map(|(_, end)| end.saturating_sub(offset));
            Ok(GroupOffset { queue_id, offset, lag })
        };
        let queues = offsets.into_iter().map(queue).collect::<Result<_, StoreError>>()?;
        found.push(GroupOffsets { group: group.to_owned(), topic: topic.to_owned(), queues });
    }
    Ok(found)
}

/// Returns the current offsets of the groups of a store that is open for writing, by `topic@group`.
pub(crate) fn current_offsets(engine: &Engine) -> BTreeMap<String, QueueOffsets> {
    let mut table = engine.meta.offset_table();
    add_light(&engine.files, &mut table);
    table
}

/// Returns the offsets of the metadata log, and of the file in which a broker with light queues keeps all of its own.
/// Entries of a damaged file that do not parse come from its backup; the notes of the open report the damage.
pub(crate) fn saved_offsets(files: &StoreFiles, notes: &mut Vec<String>) -> BTreeMap<String, QueueOffsets> {
    let mut table = match read_state(files, &mut Vec::new()) {
        Ok(state) => state.into_offsets(),
        Err(error) => {
            notes.push(format!("consumer groups are missing ({error})"));
            BTreeMap::new()
        }
    };
    add_light(files, &mut table);
    table
}

/// Adds the offsets of the file in which a broker with light queues keeps them all, as far as it can be read.
fn add_light(files: &StoreFiles, table: &mut BTreeMap<String, QueueOffsets>) {
    let loaded = files.load_config::<ConsumerOffsets>(LMQ_OFFSET_FILE);
    let Some(saved) = loaded.ok().and_then(LoadedConfig::into_table) else { return };
    table.extend(saved.table);
    let light = saved.unknown.get("lmqOffsetTable").and_then(|table| table.as_object());
    for (key, offset) in light.into_iter().flatten() {
        if let Some(offset) = offset.as_i64() {
            table.insert(key.clone(), QueueOffsets::from([(0, offset)]));
        }
    }
}
