//! Unacknowledged messages of pop consumers: which messages of the store a broker has leased, from the records it left.
//!
//! Owns nothing on disk and changes nothing. When a broker leases messages of a queue, it moves the group's offset past
//! them. It records the lease as a checkpoint in the timer topic; when the lease is due, the record is delivered to the
//! revive topic. A message without acknowledgement is leased until its time ends:
//!
//! ```text
//! rmq_sys_wheel_timer, queue 0   checkpoint, acknowledgement ...   waits: due after the read time in timercheck
//! rmq_sys_REVIVE_LOG_<cluster>   checkpoint, acknowledgement ...   after the offset of CID_RMQ_SYS_REVIVE_GROUP,
//!                                                                  which is that of the last processed record
//! ```
//!
//! A checkpoint that is in both topics counts once: delivered copies have the same body. Only the end of the timer
//! topic is read, as far back as its wheel reaches, and the revive topic from the broker's offset on. The memory grows
//! with the number of leased messages. An offset at or after the group's offset is delivered as a new message, whatever
//! a checkpoint says, as in RocketMQ.
//!
//! Source: `PopReviveService#consumeReviveMessage`, `#mergeAndRevive`, `TimerMessageStore`, `TimerCheckpoint`.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use mqstore_format::RecordView;
use mqstore_format::delays::timer::{TIMER_TOPIC, TimerCheckpoint};
use mqstore_format::json::{
    ACK_TAG, BATCH_ACK_TAG, CHECKPOINT_TAG, PopCheckpoint, PopHandle, PopRecord, REVIVE_GROUP,
    REVIVE_TOPIC_PREFIX,
};
use mqstore_format::names::TIMERCHECK_FILE;
use mqstore_format::properties::{REAL_TOPIC, TIMER_OUT_MS};

use super::query::{Boundary, offset_for_time, read, readable_bounds};
use super::view::StoreView;
use mqstore_base::error::StoreError;
use mqstore_base::message::{MessageFilter, StoredRecord};
use mqstore_base::store_files::StoreFiles;
use mqstore_meta::{GroupPosition, MetaLog, MetaState, read_state};

/// Maximum time that a timer message waits in the wheel. Source: `TimerMessageStore#TIMER_WHEEL_TTL_DAY`.
const WHEEL_MS: i64 = 7 * 86_400_000;

/// Number of records that one step reads.
const AT_ONCE: usize = 512;

/// The folder in which a broker stores its leases if it uses `RocksDB`. Source: `PopConsumerService`.
const KEY_VALUE_FOLDER: &str = "kvStore";

/// The messages that a broker has leased and that are not acknowledged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PopState {
    /// Sorted by group, topic and queue.
    pub queues: Vec<PoppedQueue>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// The leased messages of one queue for a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoppedQueue {
    /// The group.
    pub group: String,
    /// The topic of the messages, which can be a retry topic.
    pub topic: String,
    /// The queue.
    pub queue_id: i32,
    /// The messages without acknowledgement, by offset.
    pub messages: Vec<PoppedMessage>,
    /// The end of the last log record about them: a log offset.
    pub log_offset: i64,
}

/// A message that a broker has leased to a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoppedMessage {
    /// The offset in its queue.
    pub queue_offset: i64,
    /// The end of the lease, in epoch milliseconds.
    pub until_ms: i64,
}

/// Returns the messages that a broker has leased and that are not acknowledged, unless a group of this store has
/// taken them over.
///
/// # Errors
/// Errors of reading the two topics.
pub(crate) fn popped(view: &StoreView, meta: Option<&MetaLog>) -> Result<PopState, StoreError> {
    let files = view.files();
    let mut popped = PopState::default();
    if files.vfs.stat(&files.root.join(KEY_VALUE_FOLDER)).is_ok() {
        let note = "kvStore: a broker stored its leases in RocksDB, which mqstore cannot read: messages without \
                    acknowledgement count as consumed";
        popped.notes.push(note.to_owned());
    }
    view.catch_up()?;
    let topics: Vec<String> =
        view.topics()?.into_iter().filter(|topic| topic.starts_with(REVIVE_TOPIC_PREFIX)).collect();
    if topics.is_empty() {
        return Ok(popped);
    }
    let known = match meta {
        Some(meta) => KnownPositions::Live(meta),
        None => KnownPositions::Read(Box::new(read_state(files, &mut popped.notes)?)),
    };
    let mut out = FoundLeases { read_ms: timer_read_ms(files), ..FoundLeases::default() };
    for topic in &topics {
        for queue_id in view.queue_ids(topic)? {
            let processed = known.position(REVIVE_GROUP, topic, queue_id).offset;
            out.read_revived(view, topic, queue_id, processed.unwrap_or(-1))?;
        }
    }
    out.read_timed(view)?;
    if out.unread > 0 {
        let count = out.unread;
        popped.notes.push(format!("{count} records about leases of a broker do not decode and are ignored"));
    }
    popped.queues = out.into_queues(&known);
    for queue in &mut popped.queues {
        let (min, max) = view.bounds(&queue.topic, queue.queue_id)?.unwrap_or((0, 0));
        queue.messages.retain(|message| (min..max).contains(&message.queue_offset));
    }
    popped.queues.retain(|queue| !queue.messages.is_empty());
    Ok(popped)
}

/// Returns the time up to which the timer has delivered its messages; 0 if it is not known.
fn timer_read_ms(files: &StoreFiles) -> i64 {
    let bytes = files.vfs.read_file(&files.config().join(TIMERCHECK_FILE), 1 << 16).unwrap_or_default();
    TimerCheckpoint::decode(&bytes).last_read_time_ms.max(0)
}

/// The committed offsets of groups.
enum KnownPositions<'a> {
    Live(&'a mqstore_meta::MetaLog),
    Read(Box<MetaState>),
}

impl KnownPositions<'_> {
    fn position(&self, group: &str, topic: &str, queue_id: i32) -> GroupPosition {
        match self {
            Self::Live(meta) => meta.position_of(group, topic, queue_id),
            Self::Read(state) => state.position_of(group, topic, queue_id),
        }
    }
}

/// The fields with which an acknowledgement identifies a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pop {
    topic: String,
    group: String,
    queue_id: i32,
    start_offset: i64,
    time_ms: i64,
}

impl Pop {
    fn of(handle: PopHandle) -> Self {
        let PopHandle { topic, group, queue_id, start_offset, pop_time_ms, .. } = handle;
        Self { topic, group, queue_id, start_offset, time_ms: pop_time_ms }
    }
}

/// A checkpoint. A broker that could not revive a checkpoint writes it again with another time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct WrittenCheckpoint {
    pop: Pop,
    invisible_time_ms: i64,
    re_put: Option<String>,
}

/// Messages of a checkpoint that is not processed.
struct HandedMessages {
    unacked: Vec<i64>,
    until_ms: i64,
    /// Log offset of its first copy.
    log_offset: i64,
}

/// The end of the lease of each message, by offset, and the end of the log records about them.
type InvisibleEnds = (BTreeMap<i64, i64>, i64);

/// The results so far.
#[derive(Default)]
struct FoundLeases {
    read_ms: i64,
    checkpoints: HashMap<WrittenCheckpoint, HandedMessages>,
    /// Processed checkpoints that can be found again.
    processed: HashSet<WrittenCheckpoint>,
    acked: HashMap<Pop, BTreeSet<i64>>,
    unread: u64,
}

impl FoundLeases {
    /// Reads a revive queue; `processed` is the last offset that the broker processed. Also reads a few records before
    /// it, which the timer has delivered but which are not yet in the timer's file.
    fn read_revived(
        &mut self,
        view: &StoreView,
        topic: &str,
        queue_id: i32,
        processed: i64,
    ) -> Result<(), StoreError> {
        let (min, max) = readable_bounds(view, topic, queue_id)?;
        let lately = offset_for_time(view, topic, queue_id, self.read_ms, Boundary::Lower)?;
        let start = processed.saturating_add(1).min(lately).clamp(min, max);
        for_each_record(
            view,
            topic,
            queue_id,
            start,
            |out: &mut Self, record, view| match out.parse(view) {
                Some(PopRecord::Checkpoint(checkpoint)) => {
                    let (key, handed) = written(checkpoint, record.commit_log_offset);
                    if record.queue_offset <= processed {
                        out.processed.insert(key);
                    } else if !out.processed.contains(&key) {
                        out.checkpoints.entry(key).or_insert(handed);
                    }
                }
                Some(PopRecord::Ack(ack)) => {
                    out.acked.entry(Pop::of(ack.handle)).or_default().extend(ack.offsets);
                }
                None => {}
            },
            self,
        )
    }

    /// Reads the waiting records of the timer topic. Runs after the revive queues, so that delivered records are known.
    fn read_timed(&mut self, view: &StoreView) -> Result<(), StoreError> {
        let (min, max) = match readable_bounds(view, TIMER_TOPIC, 0) {
            Err(StoreError::TopicNotFound { .. }) => return Ok(()),
            bounds => bounds?,
        };
        let since_ms = self.read_ms.saturating_sub(WHEEL_MS);
        let start = offset_for_time(view, TIMER_TOPIC, 0, since_ms, Boundary::Lower)?.clamp(min, max);
        // An acknowledgement comes after its checkpoint.
        let mut pops: HashSet<Pop> = self.checkpoints.keys().map(|key| key.pop.clone()).collect();
        for_each_record(
            view,
            TIMER_TOPIC,
            0,
            start,
            |out: &mut Self, record, view| {
                let [real_topic, due] = view.properties.get_many([REAL_TOPIC, TIMER_OUT_MS]);
                if !real_topic.is_some_and(|topic| topic.starts_with(REVIVE_TOPIC_PREFIX)) {
                    return;
                }
                let was_delivered =
                    due.and_then(|due| due.parse::<i64>().ok()).is_some_and(|due| due < out.read_ms);
                match out.parse(view) {
                    Some(PopRecord::Checkpoint(checkpoint)) => {
                        let (key, handed) = written(checkpoint, record.commit_log_offset);
                        if let Some(known) = out.checkpoints.get_mut(&key) {
                            known.log_offset = known.log_offset.min(handed.log_offset);
                        } else if !was_delivered && !out.processed.contains(&key) {
                            pops.insert(key.pop.clone());
                            out.checkpoints.insert(key, handed);
                        }
                    }
                    Some(PopRecord::Ack(ack)) => {
                        let pop = Pop::of(ack.handle);
                        if pops.contains(&pop) {
                            out.acked.entry(pop).or_default().extend(ack.offsets);
                        }
                    }
                    None => {}
                }
            },
            self,
        )
    }

    fn parse(&mut self, view: &RecordView<'_>) -> Option<PopRecord> {
        let parsed = PopRecord::parse(view.tags()?, view.body);
        parsed.unwrap_or_else(|_| {
            self.unread += 1;
            None
        })
    }

    /// Returns the leases that count: below the group's offset, and not taken over.
    fn into_queues(self, known: &KnownPositions<'_>) -> Vec<PoppedQueue> {
        let mut queues: BTreeMap<(String, String, i32), InvisibleEnds> = BTreeMap::new();
        for (WrittenCheckpoint { pop, .. }, handed) in self.checkpoints {
            let acked = self.acked.get(&pop);
            let position = known.position(&pop.group, &pop.topic, pop.queue_id);
            if handed.log_offset < position.taken_over {
                continue;
            }
            let (messages, end) = queues.entry((pop.group, pop.topic, pop.queue_id)).or_default();
            *end = (*end).max(handed.log_offset.saturating_add(1));
            for offset in handed.unacked {
                let is_acked = acked.is_some_and(|acked| acked.contains(&offset));
                if !is_acked && position.offset.is_some_and(|end| offset < end) {
                    // A consumer that changes the lease of one message writes a separate checkpoint for it.
                    let until_ms = messages.entry(offset).or_insert(handed.until_ms);
                    *until_ms = handed.until_ms.max(*until_ms);
                }
            }
        }
        let message = |(queue_offset, until_ms)| PoppedMessage { queue_offset, until_ms };
        let queues =
            queues.into_iter().map(|((group, topic, queue_id), (messages, log_offset))| PoppedQueue {
                group,
                topic,
                queue_id,
                messages: messages.into_iter().map(message).collect(),
                log_offset,
            });
        queues.collect()
    }
}

fn written(checkpoint: PopCheckpoint, log_offset: u64) -> (WrittenCheckpoint, HandedMessages) {
    let handed = HandedMessages {
        unacked: checkpoint.unacked().collect(),
        until_ms: checkpoint.revive_time_ms(),
        log_offset: i64::try_from(log_offset).unwrap_or(i64::MAX),
    };
    let PopCheckpoint { handle, invisible_time_ms, re_put_times, .. } = checkpoint;
    (WrittenCheckpoint { pop: Pop::of(handle), invisible_time_ms, re_put: re_put_times }, handed)
}

/// Calls `look` for every record of a queue from `start` on that has a tag of pop records.
fn for_each_record(
    view: &StoreView,
    topic: &str,
    queue_id: i32,
    start: i64,
    mut look: impl FnMut(&mut FoundLeases, &StoredRecord, &RecordView<'_>),
    out: &mut FoundLeases,
) -> Result<(), StoreError> {
    let tags = format!("{CHECKPOINT_TAG} || {ACK_TAG} || {BATCH_ACK_TAG}");
    let filter = MessageFilter::tags(&tags)?;
    let mut cursor = read(view, topic, queue_id, Some(start), None, filter.as_ref())?;
    loop {
        let records = cursor.next_batch(AT_ONCE)?;
        if records.is_empty() {
            return Ok(());
        }
        for record in &records {
            match record.view() {
                Ok(view) => look(out, record, &view),
                Err(_) => out.unread += 1,
            }
        }
    }
}
