//! A store that is open for writing.
//!
//! Holds the lock for as long as it lives. Opening: lock, then recovery, then `abort` away only at a
//! clean close. A message is encoded and checked by the caller's thread, placed under the put lock,
//! made durable as the mode says, and dispatched to queues and index behind the append; reads wait
//! until dispatch has passed what was visible when they began.

mod view;

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use mqstore_format::properties::UNIQ_KEY;
use mqstore_format::{KeyBlock, RecordParts, RecordSpec, SysFlag, UniqueKeyGenerator};
use mqstore_io::sync::{JoinHandle, Mutex, MutexGuard, RwLock};
use mqstore_io::{EventCount, StoreLock, switch};

use super::raw_append::MessageOrigin;
use crate::compact::auto_compact::CompactionClock;
use crate::store::background::BackgroundTask;

use super::transaction_append::AppendMarks;
use crate::read::view::View;
use crate::retention::Cleaner;
use crate::store::topics::{TopicState, Topics, queue_for_key};
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::message::{Appended, NewMessage, UniqueKey};
use mqstore_base::options::{Durability, StoreOptions};
use mqstore_base::store_files::StoreFiles;
use mqstore_compaction::{CompactionAppender, JobControl};
use mqstore_log::commit_log::{CommitLog, EncodedRecord, Placed};
use mqstore_log::consume_queue::QueueSet;
use mqstore_log::dispatch::{Dispatcher, RUN_BYTES};
use mqstore_log::flush::{Flusher, MAX_SEGMENTS_BEHIND};
use mqstore_log::index::IndexSet;
use mqstore_meta::MetaLog;

/// See the module's text.
pub(crate) struct Writer {
    pub(crate) files: StoreFiles,
    pub(crate) options: StoreOptions,
    pub(crate) lock: Mutex<Option<Box<dyn StoreLock>>>,
    pub(crate) log: Arc<CommitLog>,
    pub(crate) queues: Arc<QueueSet>,
    pub(crate) index: Arc<IndexSet>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) flusher: Arc<Flusher>,
    pub(crate) cleaner: Cleaner,
    pub(crate) topics: Topics,
    pub(crate) meta: Arc<MetaLog>,
    pub(crate) ids: UniqueKeyGenerator,
    /// Tells this writer from others in this process.
    pub(crate) token: u64,
    /// Raised when the log grows; the dispatch service waits on it.
    pub(crate) appended: EventCount,
    /// Raised when one thread has more to dispatch than it should; the others that dispatch wait on it.
    pub(crate) backlog: EventCount,
    /// Whether something was appended that somebody waits for since dispatch asked last.
    pub(crate) hurry: AtomicBool,
    /// Raised with it; dispatch waits on it while it lets records come together.
    pub(crate) hurried: EventCount,
    /// Raised when the store closes or a sync is due; the flush service waits on it.
    pub(crate) flush_due: EventCount,
    /// Raised when much is pooled; the service that writes it to the file waits on it.
    pub(crate) commit_due: EventCount,
    /// Raised when the store closes or is full; the service that expires waits on it.
    pub(crate) expire_due: EventCount,
    /// Whether an append was refused because of a quota since that service looked.
    pub(crate) full: AtomicBool,
    pub(crate) notes: RwLock<Vec<String>>,
    /// Held while queues and index are made anew.
    pub(crate) rebuilding: Mutex<()>,
    /// Held while topics are compacted, and what ends that.
    pub(crate) compacting: Mutex<()>,
    pub(crate) compaction: Mutex<Option<Arc<JobControl>>>,
    /// What removes the files that the last compaction replaced.
    pub(crate) sweeping: Mutex<Option<JoinHandle<()>>>,
    /// When the background compacts next.
    pub(crate) compaction_clock: CompactionClock,
    /// Copies what is appended to compaction topics to their files.
    pub(crate) feed: CompactionAppender,
    /// The end of what was durable when the feed had nothing left to copy.
    pub(crate) fed: AtomicU64,
    /// Background work of the floors above.
    pub(crate) tasks: Mutex<Vec<Weak<dyn BackgroundTask>>>,
    pub(crate) closed: AtomicBool,
}

/// What a thread keeps between appends.
#[derive(Default)]
struct AppendScratch {
    buffers: EncodeBuffers,
    last: Option<LastTopic>,
}

/// Encoded messages: heads, tails, and the properties of the one that is encoded now.
#[derive(Default)]
pub(crate) struct EncodeBuffers {
    heads: Vec<u8>,
    tails: Vec<u8>,
    properties: Vec<u8>,
    /// Counts for unique keys, and the token of the writer that they are of.
    keys: (u64, KeyBlock),
}

/// The topic that a thread appended to last; its state lives as long as the store.
struct LastTopic {
    /// The writer's token.
    token: u64,
    name: Box<str>,
    state: Arc<TopicState>,
}

/// Up to this many bytes of body a record is put together in the scratch buffer: one checksum over one
/// piece costs less than three, and the copy stays in the nearest cache.
const WHOLE_BYTES: usize = 4096;

/// Tells writers of one process apart.
static TOKENS: AtomicU64 = AtomicU64::new(0);

/// A token that no writer of this process had before.
pub(crate) fn next_token() -> u64 {
    TOKENS.fetch_add(1, Ordering::Relaxed)
}

thread_local! {
    static SCRATCH: RefCell<AppendScratch> = RefCell::default();
}

/// When an append that is to be synced returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReturnPoint {
    /// Once a sync covers it.
    Synced,
    /// Once it is published: the caller waits for the sync, with [`Writer::synced`].
    Placed,
}

/// A message that is encoded in the buffers.
pub(crate) struct EncodedMessage {
    pub(crate) unique_id: UniqueKey,
    /// Where its head and its tail end; without a tail the head is all of it.
    head_end: usize,
    tail_end: usize,
}

impl Writer {
    /// Appends one message; allocates nothing once the thread's buffers have their size.
    pub(crate) fn append(&self, message: &NewMessage<'_>) -> Result<Appended, StoreError> {
        self.append_one(message, ReturnPoint::Synced)
    }

    pub(crate) fn append_one(
        &self,
        message: &NewMessage<'_>,
        returns: ReturnPoint,
    ) -> Result<Appended, StoreError> {
        self.before_append()?;
        let now_ms = self.files.clock.now_ms();
        SCRATCH.with_borrow_mut(|AppendScratch { buffers, last }| {
            buffers.clear();
            let topic = self.topic(message, last)?;
            let queue_id = route(topic, message)?;
            let encoded = self.encode(message, queue_id, SysFlag(0), now_ms, None, buffers)?;
            let mut pending = [self.pending(message, topic, queue_id, buffers)];
            let turn = topic.batch.then(|| topic.one_by_one.lock());
            let durable = self.append_pending(&mut pending, now_ms, message.durable, returns, turn)?;
            let [pending] = &pending;
            let appended = appended(queue_id, encoded.unique_id, pending, durable);
            self.told_of(message.topic, topic, queue_id, appended.queue_offset);
            Ok(appended)
        })
    }

    /// The one message that is encoded in the buffers, for the log.
    pub(crate) fn pending<'a>(
        &self,
        message: &NewMessage<'a>,
        topic: &'a TopicState,
        queue_id: i32,
        buffers: &'a mut EncodeBuffers,
    ) -> EncodedRecord<'a> {
        let parts = RecordParts {
            head: &mut buffers.heads,
            body: apart(message.body),
            tail: &mut buffers.tails,
            property_crc: self.options.record_crc,
        };
        EncodedRecord {
            parts,
            next_queue_offset: topic.next_offset(queue_id),
            messages: 1,
            room: &topic.room,
            placed: Placed::default(),
        }
    }

    /// Appends `messages` at consecutive places; one lock, one sync. Those for a topic with batch queues
    /// become one record.
    pub(crate) fn append_many(&self, messages: &[NewMessage<'_>]) -> Result<Vec<Appended>, StoreError> {
        self.append_all(messages, AppendMarks::None, ReturnPoint::Synced)
    }

    /// As [`Self::append_many`]; with `marks`, one for each, what they say of a message is kept.
    pub(crate) fn append_all(
        &self,
        messages: &[NewMessage<'_>],
        marks: AppendMarks<'_>,
        returns: ReturnPoint,
    ) -> Result<Vec<Appended>, StoreError> {
        self.before_append()?;
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let now_ms = self.files.clock.now_ms();
        SCRATCH.with_borrow_mut(|AppendScratch { buffers, last }| {
            buffers.clear();
            let mut encoded = Vec::with_capacity(messages.len());
            for (index, message) in messages.iter().enumerate() {
                let topic = Arc::clone(self.topic(message, last)?);
                if topic.batch {
                    buffers.clear();
                    return self.append_inner_batch(messages, &topic, now_ms, returns, buffers);
                }
                let queue_id = route(&topic, message)?;
                let start = buffers.heads.len();
                let (origin, flags) = (marks.origin(index), marks.flags(index));
                let coded = self.encode(message, queue_id, flags, now_ms, origin, buffers)?;
                marks.stamp(index, buffers.heads.get_mut(start..).unwrap_or_default())?;
                encoded.push((topic, queue_id, coded));
            }
            if marks.belong_together() {
                self.check_together(messages, buffers.heads.len() + buffers.tails.len())?;
            }
            let mut heads = buffers.heads.as_mut_slice();
            let mut tails = buffers.tails.as_mut_slice();
            let mut ends = (0, 0);
            let mut pending = Vec::with_capacity(messages.len());
            for (message, (topic, queue_id, encoded)) in messages.iter().zip(&encoded) {
                let (head, more_heads) = heads.split_at_mut(encoded.head_end - ends.0);
                let (tail, more_tails) = tails.split_at_mut(encoded.tail_end - ends.1);
                ends = (encoded.head_end, encoded.tail_end);
                (heads, tails) = (more_heads, more_tails);
                let property_crc = self.options.record_crc;
                pending.push(EncodedRecord {
                    parts: RecordParts { head, body: apart(message.body), tail, property_crc },
                    next_queue_offset: topic.next_offset(*queue_id),
                    messages: 1,
                    room: &topic.room,
                    placed: Placed::default(),
                });
            }
            let wants_sync = messages.iter().any(|message| message.durable);
            let durable = self.append_pending(&mut pending, now_ms, wants_sync, returns, None)?;
            let each = messages.iter().zip(&encoded).zip(&pending);
            let results = each.map(|((message, (topic, queue_id, encoded)), pending)| {
                let appended = appended(*queue_id, encoded.unique_id.clone(), pending, durable);
                self.told_of(message.topic, topic, *queue_id, appended.queue_offset);
                appended
            });
            Ok(results.collect())
        })
    }

    pub(crate) fn before_append(&self) -> Result<(), StoreError> {
        self.check()?;
        self.cleaner.admit()?;
        if self.is_far_behind() {
            self.flusher.flush_all(false)?;
        }
        Ok(())
    }

    /// Whether so much waits for dispatch and flush that appends wait for them.
    pub(crate) fn is_far_behind(&self) -> bool {
        let target = self.log.appended().min(self.dispatcher.limit());
        let behind = target.saturating_sub(self.flusher.dispatched());
        behind > MAX_SEGMENTS_BEHIND * self.log.segment_bytes()
    }

    /// Appends, waits for the sync where one is asked for, and returns whether one covers the records.
    /// `turn` ends when the records have their places.
    pub(crate) fn append_pending(
        &self,
        pending: &mut [EncodedRecord<'_>],
        now_ms: i64,
        wants_sync: bool,
        returns: ReturnPoint,
        turn: Option<MutexGuard<'_, ()>>,
    ) -> Result<bool, StoreError> {
        let end = self.append_within_quotas(pending, now_ms, wants_sync)?;
        drop(turn);
        if returns == ReturnPoint::Synced && self.needs_sync(wants_sync) {
            self.log.wait_durable(end)?;
        }
        self.wake_services(end)?;
        Ok(self.log.durable() >= end)
    }

    /// Whether an append of which somebody wants a sync, or not, waits for one.
    pub(crate) fn needs_sync(&self, wants_sync: bool) -> bool {
        wants_sync || self.options.durability == Durability::Sync
    }

    /// Waits for the sync of records that were appended with [`ReturnPoint::Placed`] and end at `end`.
    pub(crate) fn synced(&self, end: u64) -> Result<(), StoreError> {
        self.log.wait_durable(end)?;
        // Where a sync makes visible, dispatch has to hear of it.
        self.wake_services(end)
    }

    /// The state of the message's topic, making the topic where that is allowed.
    fn topic<'a>(
        &self,
        message: &NewMessage<'_>,
        last: &'a mut Option<LastTopic>,
    ) -> Result<&'a Arc<TopicState>, StoreError> {
        let known = |last: &LastTopic| {
            last.token == self.token && *last.name == *message.topic && !last.state.is_removed()
        };
        if !last.as_ref().is_some_and(known) {
            *last = None;
        }
        let last = match last {
            Some(last) => last,
            none => {
                let state = match self.topics.get(message.topic) {
                    Some(state) => state,
                    None => self.make_topic(message.topic, message.queue_id)?,
                };
                none.insert(LastTopic { token: self.token, name: message.topic.into(), state })
            }
        };
        Ok(&last.state)
    }

    /// Makes `topic` where there is none, as an append would.
    pub(crate) fn make_missing(&self, topic: &str) -> Result<(), StoreError> {
        if self.topics.get(topic).is_none() {
            self.make_topic(topic, None)?;
        }
        Ok(())
    }

    pub(crate) fn make_topic(
        &self,
        topic: &str,
        queue_id: Option<i32>,
    ) -> Result<Arc<TopicState>, StoreError> {
        if !self.options.auto_create_topics {
            return Err(StoreError::TopicNotFound { topic: topic.to_owned(), queue_id: None });
        }
        let least = queue_id.map_or(0, |id| id.clamp(0, 65_535) as u32 + 1);
        let was_removed = self.topics.is_removed(topic);
        let state = self.topics.create(topic, self.options.default_queues.max(least), &[])?;
        if was_removed {
            // The log alone does not tell that it is there again.
            self.topics.store()?;
        }
        Ok(state)
    }

    /// Encodes `message` at the end of the buffers.
    pub(crate) fn encode(
        &self,
        message: &NewMessage<'_>,
        queue_id: i32,
        sys_flag: SysFlag,
        now_ms: i64,
        origin: Option<&MessageOrigin>,
        buffers: &mut EncodeBuffers,
    ) -> Result<EncodedMessage, StoreError> {
        let limit = u64::from(self.options.max_message_bytes);
        if message.body.len() as u64 > limit {
            return Err(StoreError::TooLarge { what: "the body", size: message.body.len() as u64, limit });
        }
        let (properties, unique_id) = if let Some(key) = message.unique_key {
            (message.properties, UniqueKey::Given(key.into()))
        } else {
            let (token, block) = &mut buffers.keys;
            if *token != self.token {
                (*token, *block) = (self.token, KeyBlock::default());
            }
            let key = self.ids.next_in(block, now_ms);
            buffers.properties.clear();
            for part in [message.properties, UNIQ_KEY.as_bytes(), b"\x01", key.as_bytes(), b"\x02"] {
                buffers.properties.extend_from_slice(part);
            }
            (buffers.properties.as_slice(), UniqueKey::Made(key))
        };
        let host = self.options.store_host;
        let spec = RecordSpec {
            topic: message.topic,
            queue_id,
            flag: message.flag,
            queue_offset: 0,
            physical_offset: 0,
            sys_flag: origin
                .map_or(sys_flag, |origin| SysFlag(origin.sys_flag.compression_only().0 | sys_flag.0)),
            born_timestamp: message.born_timestamp_ms.unwrap_or(now_ms),
            born_host: origin.map_or(host, |origin| origin.born_host),
            store_timestamp: now_ms,
            store_host: host,
            reconsume_times: origin.map_or(0, |origin| origin.reconsume_times),
            prepared_transaction_offset: 0,
            body: message.body,
            properties,
            property_crc: self.options.record_crc,
        };
        let size = if apart(message.body).is_empty() {
            spec.encode_unsealed(&mut buffers.heads)
        } else {
            spec.encode_parts(&mut buffers.heads, &mut buffers.tails)
        };
        let size = size.map_err(|error| invalid_record(&error))?;
        let limit = self.log.max_record_bytes();
        if size as u64 > limit {
            return Err(StoreError::TooLarge { what: "the record", size: size as u64, limit });
        }
        Ok(EncodedMessage { unique_id, head_end: buffers.heads.len(), tail_end: buffers.tails.len() })
    }

    /// Dispatches in this thread, or tells the services what there is to do.
    fn wake_services(&self, end: u64) -> Result<(), StoreError> {
        if self.options.dispatch_threads == Some(0) {
            match self.dispatch() {
                // The message is in the log and stays there; whoever reads is told.
                Ok(_) | Err(StoreError::DiskFull { .. }) => {}
                Err(error) => return Err(error),
            }
        } else if self.dispatcher.position() < self.visible() {
            // Publishing is sequentially consistent; where a sync makes visible, no such store came before.
            if self.options.durable_only() || self.options.durability == Durability::Pooled {
                self.appended.notify_all();
            } else {
                self.appended.notify_all_after_fence();
            }
        }
        if end >= self.flusher.flush_due_offset() {
            self.flush_due.notify_all();
        }
        if self.commit_is_due() {
            self.commit_due.notify_all();
        }
        Ok(())
    }

    /// Whether enough is pooled to be written without waiting for the time.
    pub(crate) fn commit_is_due(&self) -> bool {
        self.options.durability == Durability::Pooled
            && self.log.appended().saturating_sub(self.log.readable()) > self.options.pool_bytes / 8
    }

    /// How far readers may look: what is durable where that was asked for, else what can be read.
    pub(crate) fn visible(&self) -> u64 {
        let end = if self.options.durable_only() { self.log.durable() } else { self.log.readable() };
        end.min(self.dispatcher.limit())
    }

    /// Dispatches everything visible; a failure other than a full disk stops the store.
    pub(crate) fn dispatch(&self) -> Result<u64, StoreError> {
        let visible = self.visible();
        if self.dispatcher.position() >= visible {
            return Ok(visible);
        }
        if visible.saturating_sub(self.dispatcher.position()) > RUN_BYTES {
            self.backlog.notify_all();
        }
        let reached = self.dispatcher.run_to(&self.log.list(), visible).map_err(|error| match error {
            // The log has everything; the entries follow when there is room again.
            StoreError::DiskFull { .. } => error,
            error => self.log.poison("dispatching", &error.to_string()),
        })?;
        Ok(reached)
    }

    pub(crate) fn has_queue(&self, topic: &str, queue_id: i32) -> bool {
        u32::try_from(queue_id).is_ok_and(|id| id < self.topics.queue_count(topic))
    }

    /// Things that a person should know, each once.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.queues.take_notes().iter().for_each(|note| self.note(note));
        self.notes.read().clone()
    }

    /// Keeps `note` for the person who opened the store, once.
    pub(crate) fn note(&self, note: &str) {
        let mut notes = self.notes.write();
        if !notes.iter().any(|known| known == note) {
            notes.push(note.to_owned());
        }
    }

    /// Makes everything appended so far durable, derived files and topics included.
    pub(crate) fn flush(&self) -> Result<(), StoreError> {
        self.check()?;
        self.topics.store()?;
        self.flusher.flush_all(false)?;
        // What is known of messages comes behind them.
        self.meta.sync(self.meta.place())
    }

    /// What is due for the metadata log.
    pub(crate) fn meta_step(&self) -> Result<(), StoreError> {
        self.meta.step(self.files.clock.now_ms())
    }

    /// The last step of a close: everything durable, the mark clean, `abort` away, the lock free.
    pub(crate) fn finish(&self) -> Result<(), StoreError> {
        self.log.stop_preparing();
        self.log.seal();
        // What was held back is in the log and counts from here on.
        let lifted = self.set_visible_limit(u64::MAX);
        let outcome =
            lifted.and_then(|()| self.log.check()).and_then(|()| self.topics.store()).and_then(|()| {
                self.flusher.flush_all(true)?;
                self.drain_compaction_appends();
                self.meta.close()?;
                let abort = self.files.abort();
                self.files.vfs.remove_file(&abort).at(&abort, "removing abort")?;
                switch::step("close.sync_abort_removal", || self.files.vfs.sync_dir(&self.files.root))
                    .at(&self.files.root, "syncing the store's folder")
            });
        // Readers must not trust the page of a writer that is gone.
        let _ = self.files.vfs.remove_file(&self.files.live());
        // Whoever keeps the closed store, or its object, keeps no file open by it.
        self.log.release();
        self.queues.release();
        self.index.release();
        self.lock.lock().take();
        outcome
    }
}

/// The queue of `message`: the one it names, else by its key or in turn.
pub(crate) fn route(topic: &TopicState, message: &NewMessage<'_>) -> Result<i32, StoreError> {
    match message.queue_id {
        _ if !topic.is_writable() => {
            let topic = message.topic;
            let reason = format!("topic {topic} takes no messages: its perm has no bit 2 (write)");
            Err(StoreError::Refused { reason })
        }
        None => Ok(queue_for_key(topic, message).unwrap_or_else(|| topic.turn())),
        Some(queue_id) => {
            check_queue_id(queue_id)?;
            if (queue_id as u32) < topic.write_queues() {
                return Ok(queue_id);
            }
            let topic = message.topic.to_owned();
            Err(StoreError::TopicNotFound { topic, queue_id: Some(queue_id) })
        }
    }
}

/// Whether a queue can have this id.
pub(crate) fn check_queue_id(queue_id: i32) -> Result<(), StoreError> {
    if (0..65_536).contains(&queue_id) {
        return Ok(());
    }
    Err(StoreError::InvalidMessage { reason: format!("queue id {queue_id} is not between 0 and 65535") })
}

pub(crate) fn invalid_record(error: &mqstore_format::FormatError) -> StoreError {
    StoreError::InvalidMessage { reason: error.to_string() }
}

impl EncodeBuffers {
    fn clear(&mut self) {
        self.heads.clear();
        self.tails.clear();
    }
}

/// The part of a body that is copied straight from the caller's memory: all of it, or none.
pub(crate) fn apart(body: &[u8]) -> &[u8] {
    if body.len() > WHOLE_BYTES { body } else { &[] }
}

pub(crate) fn appended(
    queue_id: i32,
    unique_id: UniqueKey,
    pending: &EncodedRecord<'_>,
    durable: bool,
) -> Appended {
    Appended {
        queue_id,
        queue_offset: pending.placed.queue_offset,
        commit_log_offset: pending.placed.commit_log_offset,
        size: pending.parts.len() as u32,
        store_timestamp_ms: pending.placed.store_timestamp_ms,
        durable,
        unique_id,
    }
}
