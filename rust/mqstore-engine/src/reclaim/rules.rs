//! Which hidden records a placeholder may replace.
//!
//! - Not those of system topics, which brokers find by their log offsets, and of compaction topics.
//! - Not those to which a unit of a queue points: a broker gives the bytes there to its clients. The files of a deleted
//!   topic are gone. A retention removes whole files before the floor.
//! - Not those to which a unit of a light queue points, also of a deleted topic.
//! - Not deliveries of delayed messages, as long as the log can have the delayed message: an open without the saved
//!   state of the delays searches the log for deliveries, and makes those again that it does not find.
//! - Not the last one of the log, which the durable mark names.
//! - Of each queue the first ones in the log. A broker that derives a queue begins at the offset of the first record
//!   that it finds, and then counts without gaps.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_base::topic_floors::FloorTable;
use mqstore_format::properties::{
    DELAY, DLQ_ORIGIN_MESSAGE_ID, DLQ_ORIGIN_TOPIC, REAL_TOPIC, RETRY_TOPIC, TIMER_ORIGIN_OFFSET,
    TIMER_OUT_MS,
};
use mqstore_format::topic::{DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, is_system_topic};
use mqstore_format::{EntryFields, RecordView, TransactionType, parse_offset_message_id};

use super::report::ReclaimRequest;
use crate::engine::Engine;
use crate::read::view::View;

/// What a reclaim does with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordState {
    /// Reads find it.
    Live,
    /// It is hidden and stays.
    Hidden,
    /// It is hidden, and a placeholder may replace it.
    Replaceable,
}

/// The rules for the records of one store, as of the begin of a reclaim.
pub(super) struct RecordRules<'a> {
    engine: &'a Engine,
    floors: Arc<FloorTable>,
    log_start: u64,
    last_record: u64,
    erase: &'a BTreeSet<String>,
    topics: HashMap<Box<str>, Arc<TopicRules>>,
    queues: HashMap<(Arc<str>, i32), QueueRules>,
    /// How often a record was found that keeps the records of its queue.
    blocks: u64,
}

/// The rules for a topic.
#[derive(Debug)]
pub(super) struct TopicRules {
    /// The topic.
    pub name: Arc<str>,
    /// Log offset before which its records are hidden.
    floor: u64,
    /// Log offset at which it was last deleted.
    deleted: u64,
    /// Whether the call is about its hidden records.
    pub is_wanted: bool,
    /// How its records name the topic that they were copied from; `None` if they are no copies.
    copies: Option<CopyKind>,
    may_replace: bool,
}

/// The kind of messages of other topics that a topic has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyKind {
    /// Delayed messages, or messages of transactions.
    Waiting,
    /// Dead letters, or retries.
    Retried,
}

impl CopyKind {
    fn of(topic: &str) -> Option<Self> {
        let is_retried =
            || [DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX].iter().any(|prefix| topic.starts_with(prefix));
        if is_system_topic(topic) { Some(Self::Waiting) } else { is_retried().then_some(Self::Retried) }
    }
}

/// The rules for a queue.
#[derive(Clone, Copy, Debug)]
struct QueueRules {
    /// Log offset of the first record with a unit; `None` if the queue has no units.
    first_unit: Option<u64>,
    /// Base offset of the first segment in which a hidden record of the queue must stay.
    stays_from: u64,
}

impl<'a> RecordRules<'a> {
    /// Makes the rules for the floors of now, and syncs the log.
    ///
    /// # Errors
    /// Errors of the sync.
    pub(super) fn begin(engine: &'a Engine, request: &'a ReclaimRequest) -> Result<Self, StoreError> {
        let (floors, erase) = (engine.floors(), &request.erase);
        if !request.dry_run {
            // Once for each slot of the durable mark. Both then name a record behind those that the floors hide, or the
            // last one of these.
            engine.flusher.flush_all(false)?;
            engine.flusher.flush_all(false)?;
        }
        let (log_start, last_record) = (engine.log.list().min_offset(), engine.log.sync_point().last_offset);
        let (topics, queues) = (HashMap::new(), HashMap::new());
        Ok(Self { engine, floors, log_start, last_record, erase, topics, queues, blocks: 0 })
    }

    /// Returns the rules for `topic`.
    pub(super) fn topic(&mut self, topic: &str) -> Arc<TopicRules> {
        if let Some(known) = self.topics.get(topic) {
            return Arc::clone(known);
        }
        let is_wanted = self.erase.is_empty() || self.erase.contains(topic);
        let is_system = is_system_topic(topic);
        let rules = Arc::new(TopicRules {
            name: topic.into(),
            floor: self.floors.log_offset(topic),
            deleted: self.floors.deleted(topic),
            is_wanted,
            copies: CopyKind::of(topic),
            may_replace: is_wanted && !is_system && !self.engine.keeps_newest(topic),
        });
        self.topics.insert(topic.into(), Arc::clone(&rules));
        rules
    }

    /// Returns what a reclaim does with the record at log offset `at` in the segment that begins at `base`.
    ///
    /// # Errors
    /// Errors of reading a queue.
    pub(super) fn state_of(
        &mut self,
        topic: &TopicRules,
        record: &RecordView<'_>,
        (base, at): (u64, u64),
    ) -> Result<RecordState, StoreError> {
        if at >= topic.floor {
            return Ok(RecordState::Live);
        }
        if !topic.may_replace || record.queue_id < 0 || at == self.last_record {
            return Ok(RecordState::Hidden);
        }
        let deleted = topic.deleted;
        let stays = self.is_in_light_queue(record, at)? || is_delivery(record, self.log_start);
        let queue = self.queue(&topic.name, record.queue_id)?;
        if stays {
            let is_new = base < queue.stays_from;
            queue.stays_from = queue.stays_from.min(base);
            self.blocks += u64::from(is_new);
            return Ok(RecordState::Hidden);
        }
        let has_no_unit = queue.first_unit.map_or(at < deleted, |first| at < first);
        let is_first = at < deleted || base < queue.stays_from;
        Ok(if has_no_unit && is_first { RecordState::Replaceable } else { RecordState::Hidden })
    }

    /// Whether the record at log offset `at` stays with the content of a hidden message that the call erases: it is a
    /// delayed message, one of a transaction, or a dead letter or retry.
    pub(super) fn is_copy_of_erased(
        &self,
        topic: &TopicRules,
        record: &RecordView<'_>,
        (at, state): (u64, RecordState),
    ) -> bool {
        let is_erased = topic.is_wanted && state != RecordState::Live;
        let Some(kind) = topic.copies.filter(|_| !self.erase.is_empty() && !is_erased) else { return false };
        let [real, dead, retry, id] =
            record.properties.get_many([REAL_TOPIC, DLQ_ORIGIN_TOPIC, RETRY_TOPIC, DLQ_ORIGIN_MESSAGE_ID]);
        let real = match kind {
            CopyKind::Waiting => real,
            CopyKind::Retried => dead.or(retry),
        };
        // A retention can hide a message after its copy was made.
        let origin = id.and_then(|id| u64::try_from(parse_offset_message_id(id).ok()?.1).ok());
        let first = origin.map_or(at, |origin| origin.min(at));
        real.is_some_and(|real| self.erase.contains(real) && first < self.floors.log_offset(real))
    }

    /// Returns a number that grows when a record is found that keeps the records of its queue from the begin of its
    /// segment on.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    fn queue(&mut self, topic: &Arc<str>, queue_id: i32) -> Result<&mut QueueRules, StoreError> {
        let key = (Arc::clone(topic), queue_id);
        let first_unit = match self.queues.get(&key) {
            Some(known) => known.first_unit,
            None => self.first_unit(topic, queue_id)?,
        };
        Ok(self.queues.entry(key).or_insert(QueueRules { first_unit, stays_from: u64::MAX }))
    }

    /// Whether a light queue has a unit for the record at log offset `at`. A light queue that was deleted has none.
    fn is_in_light_queue(&mut self, record: &RecordView<'_>, at: u64) -> Result<bool, StoreError> {
        for (name, _) in EntryFields::of(record.properties).light_queues(record.topic) {
            let first_unit = self.queue(&name.into(), 0)?.first_unit;
            if first_unit.map_or(at >= self.floors.deleted(name), |first| first <= at) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn first_unit(&self, topic: &str, queue_id: i32) -> Result<Option<u64>, StoreError> {
        let queues = &self.engine.queues;
        let plain = queues.get(topic, queue_id).map(|queue| queue.first_log_offset());
        let batch = queues.batch(topic, queue_id).map(|queue| queue.first_log_offset());
        let (plain, batch) = (plain.transpose()?.flatten(), batch.transpose()?.flatten());
        Ok(plain.into_iter().chain(batch).min())
    }

    /// Whether the queues still have no units for the records that may be replaced.
    ///
    /// # Errors
    /// Errors of reading a queue.
    pub(super) fn still_apply(&self) -> Result<bool, StoreError> {
        for ((topic, queue_id), rules) in &self.queues {
            let now = self.first_unit(topic, *queue_id)?;
            let is_same = match (rules.first_unit, now) {
                (Some(before), Some(now)) => now >= before,
                (None, Some(now)) => now >= self.floors.deleted(topic),
                (_, None) => true,
            };
            if !is_same {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Whether a record is the delivery of a delayed message that a log from `log_start` on can have.
fn is_delivery(record: &RecordView<'_>, log_start: u64) -> bool {
    let [topic, origin, due, level] =
        record.properties.get_many([REAL_TOPIC, TIMER_ORIGIN_OFFSET, TIMER_OUT_MS, DELAY]);
    if let Some(origin) = origin.and_then(|origin| origin.parse::<u64>().ok()) {
        return origin >= log_start;
    }
    // A delivery by a broker does not name the delayed message. It has the property of the real topic, which also the
    // final record of a transaction has.
    let is_final = record.sys_flag.transaction() == TransactionType::Commit;
    topic == Some(record.topic) && (due.is_some() || level.is_some() || !is_final)
}
