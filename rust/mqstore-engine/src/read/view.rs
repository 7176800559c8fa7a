//! The part of a store that reads need, for a store open for writing or for reading only.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use mqstore_format::CqUnit;
use mqstore_format::topic::LIGHT_QUEUE_PREFIX;

use super::older::{Older, OlderSource};
use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_base::options::DamagePolicy;
use mqstore_base::store_files::{DelayTables, StoreFiles};
use mqstore_base::topic_floors::{FloorTable, TopicRetention};
use mqstore_compaction::ManifestCache;
use mqstore_log::commit_log::{CommitLog, SegmentList};

/// The log of a store for its read path; the engine and the reader implement it.
pub(crate) trait View: Send + Sync {
    /// Returns the files of the store.
    fn files(&self) -> &StoreFiles;

    /// Returns an error if the store is closed, or poisoned for readers.
    fn check(&self) -> Result<(), StoreError>;

    /// Dispatches everything visible now, and returns the end of the visible log.
    fn catch_up(&self) -> Result<u64, StoreError>;

    /// Returns the segments.
    fn list(&self) -> Arc<SegmentList>;

    /// Returns the log offset before which the queues do not lead, after the bounds of a queue were read: messages before
    /// it are in the archive, if there is one.
    fn log_start(&self) -> u64 {
        self.list().min_offset()
    }

    /// Returns the number of open files and their maximum, for the queues and for the index.
    fn open_files(&self) -> [(usize, usize); 2];

    /// Returns the names of all topics, sorted.
    fn topics(&self) -> Result<Vec<String>, StoreError>;

    /// Returns the queues of `topic`, sorted; empty if the topic does not exist.
    fn queue_ids(&self, topic: &str) -> Result<Vec<i32>, StoreError>;

    /// Returns the minimum and maximum offset of a queue; `None` if the queue does not exist.
    fn bounds(&self, topic: &str, queue_id: i32) -> Result<Option<(i64, i64)>, StoreError>;

    /// Appends up to `max` units with offsets from `from` up to the maximum to `units`, each with its queue offset.
    /// Blank units are left out.
    fn units(
        &self,
        topic: &str,
        queue_id: i32,
        from: i64,
        max: usize,
        units: &mut Vec<(i64, CqUnit)>,
    ) -> Result<(), StoreError>;

    /// Asks the system to fetch up to `units` units from offset `from` on, which will be read soon.
    fn prefetch_units(&self, _topic: &str, _queue_id: i32, _from: i64, _units: i64) {}

    /// Returns the queue offset of the first message of the record that contains the message at `offset`: if a record
    /// contains several messages, a read begins with a whole record.
    fn start_of(&self, _topic: &str, _queue_id: i32, offset: i64) -> Result<i64, StoreError> {
        Ok(offset)
    }

    /// Stops using a queue's files and derives its units from the log. Returns `false` if this view cannot do that;
    /// then the damage is an error.
    fn distrust(&self, topic: &str, queue_id: i32, reason: &str) -> Result<bool, StoreError>;

    /// What a read of the store's own services does at a damaged record; a user's read says it itself. A store that is
    /// open for reading shows as much as it can.
    fn damage_policy(&self) -> DamagePolicy {
        DamagePolicy::Skip
    }

    /// Adds a note for the user, once.
    fn note(&self, text: String) {
        self.files().notes.warn(text);
    }

    /// Counts records that reads skipped because they are damaged, and adds a note for the user.
    fn count_skipped(&self, text: String);

    /// Returns the number of records that reads skipped.
    fn skipped(&self) -> u64;

    /// Returns the floors of deleted topics, which hide their records.
    fn floors(&self) -> Arc<FloorTable>;

    /// Returns a number that changes after the floors changed. Cheap.
    fn floor_changes(&self) -> u64;

    /// Whether a writer in another process may have changed the floors since the last [`Self::catch_up`]. Cheap.
    fn has_unread_floors(&self) -> bool {
        false
    }

    /// Returns the log if this process writes it.
    fn log(&self) -> Option<Arc<CommitLog>> {
        None
    }

    /// Returns the tables of delay levels with which the log was written, and the one that is valid now.
    fn delays(&self) -> &DelayTables;

    /// Returns what reads know about the compaction files.
    fn manifests(&self) -> &ManifestCache;

    /// Returns those messages at `offsets` of a queue, in the given order, that need no ordinary read: they are in
    /// memory, or a writer vouches for their units. `None` stands for any other message, and for all after the end.
    fn messages_near(
        &self,
        topic: &str,
        queue_id: i32,
        offsets: &[i64],
    ) -> Result<Vec<Option<StoredRecord>>, StoreError>;

    /// Whether this is a compaction topic, which keeps the newest message of each key.
    fn keeps_newest(&self, topic: &str) -> bool;

    /// Whether the topic is removed; its queues and messages are hidden then.
    fn is_removed(&self, topic: &str) -> bool;

    /// Returns the attributes of `topic`, as in RocketMQ's topic table.
    fn attributes(&self, topic: &str) -> Vec<(String, String)>;

    /// Returns the milliseconds after which a value of the table `topic` expires.
    fn expire_after_ms(&self, topic: &str) -> Option<i64>;

    /// Returns the limits of the topics that have a retention.
    fn retentions(&self) -> BTreeMap<Arc<str>, TopicRetention>;

    /// Whether this topic has batch queues.
    fn has_batch_queues(&self, topic: &str) -> bool;

    /// Returns the log offsets that the index has for a key hash, and the log offset from which the log itself must be
    /// searched; `None` if the index cannot be used.
    fn candidates(&self, hash: i32) -> Result<Option<(Vec<u64>, u64)>, StoreError>;

    /// Blocks until one of `places` (queue and offset) may have a message, or `timeout` has passed. `round` counts the
    /// calls of one wait, from 0.
    fn wait_for(
        &self,
        topic: &str,
        places: &[(i32, i64)],
        timeout: Duration,
        round: u32,
    ) -> Result<(), StoreError>;
}

/// The messages of a store: those of its log, and those from before it, if the caller wants them and an archive has them.
/// The functions of [`View`] are those of the log.
#[derive(Clone)]
pub(crate) struct StoreView {
    log: Arc<dyn View>,
    older: Option<Arc<dyn OlderSource>>,
}

impl Deref for StoreView {
    type Target = dyn View;

    fn deref(&self) -> &Self::Target {
        &*self.log
    }
}

impl StoreView {
    /// The messages of a log.
    pub(crate) fn of_log(log: Arc<dyn View>) -> Self {
        Self { log, older: None }
    }

    /// The messages of a log, and those from before it.
    pub(crate) fn new(log: Arc<dyn View>, older: Option<Arc<dyn OlderSource>>) -> Self {
        Self { log, older }
    }

    /// Whether messages from before the log belong to the view.
    pub(crate) fn continues(&self) -> bool {
        self.older.is_some()
    }

    /// Returns the messages from before the log; `None` if there are none.
    pub(crate) fn older(&self) -> Result<Option<Older>, StoreError> {
        let Some(source) = &self.older else { return Ok(None) };
        // The files of a queue can be newer than the list of segments, and show that the log begins later.
        self.catch_up()?;
        let log_start = self.log_start();
        if log_start <= source.begin() {
            return Ok(None);
        }
        Ok(Some(Older { messages: source.before(log_start)?, floors: self.floors(), log_start }))
    }

    /// Returns the messages of a topic from before the log; `None` if there are none. Those of a compaction topic are in
    /// files of their own, and those of a light queue are in other topics.
    pub(crate) fn older_of(&self, topic: &str) -> Result<Option<Older>, StoreError> {
        if !self.continues() || topic.starts_with(LIGHT_QUEUE_PREFIX) || self.keeps_newest(topic) {
            return Ok(None);
        }
        self.older()
    }

    /// Returns the smallest offset with which a read of a queue can begin; the log has those from `min` on.
    pub(crate) fn oldest_offset(&self, topic: &str, queue_id: i32, min: i64) -> Result<i64, StoreError> {
        match self.older_of(topic)? {
            Some(older) => older.first_offset(topic, queue_id, min),
            None => Ok(min),
        }
    }
}

/// Returns the queues of `topic`, or only `queue_id` if it is one of them.
pub(crate) fn wanted_queue_ids(
    view: &dyn View,
    topic: &str,
    queue_id: Option<i32>,
) -> Result<Vec<i32>, StoreError> {
    let mut ids = view.queue_ids(topic)?;
    if let Some(wanted) = queue_id {
        ids.retain(|id| *id == wanted);
    }
    Ok(ids)
}
