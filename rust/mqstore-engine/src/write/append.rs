//! Appends of one or more messages: topic, queue, encoding, offsets, sync, and wake-ups.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use mqstore_format::{RecordParts, SysFlag};
use mqstore_io::sync::MutexGuard;

use super::append_marks::AppendMarks;
use super::encode::{EncodeBuffers, body_between, check_direct, check_queue_id, route};
use crate::engine::Engine;
use crate::engine::topics::TopicState;
use crate::read::view::View;
use mqstore_base::error::StoreError;
use mqstore_base::message::{Appended, NewMessage, UniqueKey};
use mqstore_log::commit_log::{EncodedRecord, Placed};

/// State that a thread keeps between appends.
#[derive(Default)]
struct AppendScratch {
    buffers: EncodeBuffers,
    last: Option<LastTopic>,
}

/// A message that an append would refuse.
#[derive(Debug)]
pub struct RefusedMessage {
    /// Its place among the messages.
    pub index: usize,
    /// The field of [`NewMessage`].
    pub field: &'static str,
    /// The error of the append.
    pub error: StoreError,
}

/// The topic of a thread's last append; its state lives as long as the store.
struct LastTopic {
    /// The writer's token.
    token: u64,
    name: Box<str>,
    state: Arc<TopicState>,
}

thread_local! {
    static SCRATCH: RefCell<AppendScratch> = RefCell::default();
}

/// When an append that needs a sync returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReturnPoint {
    /// After a sync that covers it.
    Synced,
    /// After its publication: the caller waits for the sync with [`Engine::synced`].
    Placed,
}

impl Engine {
    /// Appends one message. Allocates nothing once the buffers of the thread are large enough.
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
            check_direct(message)?;
            let topic = self.topic(message, last, true)?;
            let queue_id = route(topic, message, false)?;
            let encoded = self.encode(message, queue_id, SysFlag(0), now_ms, None, buffers)?;
            let mut pending = [self.pending(message, topic, queue_id, buffers)];
            let turn = topic.batch.then(|| topic.one_by_one.lock());
            let durable = self.append_pending(&mut pending, now_ms, message.durable, returns, turn)?;
            let [pending] = &pending;
            let appended = appended(queue_id, encoded.unique_id, pending, durable);
            self.notify_waiters(message.topic, topic, queue_id, appended.queue_offset);
            Ok(appended)
        })
    }

    /// Returns the message in the buffers in the form that the log appends.
    pub(crate) fn pending<'a>(
        &self,
        message: &NewMessage<'a>,
        topic: &'a TopicState,
        queue_id: i32,
        buffers: &'a mut EncodeBuffers,
    ) -> EncodedRecord<'a> {
        let parts = RecordParts {
            head: &mut buffers.heads,
            body: body_between(message, &buffers.tails),
            tail: &mut buffers.tails,
            property_crc: self.options.record_crc,
        };
        EncodedRecord {
            parts,
            next_queue_offset: topic.next_offset(queue_id),
            messages: 1,
            quota: &topic.quota,
            placed: Placed::default(),
        }
    }

    /// Appends `messages` at consecutive log offsets, with one lock and one sync. Messages for a topic with batch
    /// queues become one record.
    pub(crate) fn append_many(&self, messages: &[NewMessage<'_>]) -> Result<Vec<Appended>, StoreError> {
        self.append_all(messages, AppendMarks::None, ReturnPoint::Synced)
    }

    /// Like [`Self::append_many`]; `marks` has a mark for each message, or none.
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
            // Each topic with the number of consecutive messages for it.
            let mut topics: Vec<(Arc<TopicState>, usize)> = Vec::new();
            for (index, message) in messages.iter().enumerate() {
                if marks.are_none() {
                    check_direct(message)?;
                }
                let topic = self.topic(message, last, marks.recreate())?;
                if topic.batch {
                    buffers.clear();
                    return self.append_inner_batch(messages, topic, now_ms, returns, buffers);
                }
                match topics.last_mut().filter(|(before, _)| Arc::ptr_eq(before, topic)) {
                    Some((_, count)) => *count += 1,
                    None => topics.push((Arc::clone(topic), 1)),
                }
                let queue_id = route(topic, message, marks.were_accepted())?;
                let start = buffers.heads.len();
                let (origin, flags) = (marks.origin(index), marks.flags(index));
                let coded = self.encode(message, queue_id, flags, now_ms, origin, buffers)?;
                marks.stamp(index, buffers.heads.get_mut(start..).unwrap_or_default())?;
                encoded.push((queue_id, coded));
            }
            let topics = topics.iter().flat_map(|(topic, count)| std::iter::repeat_n(&**topic, *count));
            let mut heads = buffers.heads.as_mut_slice();
            let mut tails = buffers.tails.as_mut_slice();
            let mut ends = (0, 0);
            let mut pending = Vec::with_capacity(messages.len());
            for ((message, (queue_id, encoded)), topic) in messages.iter().zip(&encoded).zip(topics.clone()) {
                let (head, more_heads) = heads.split_at_mut(encoded.head_end - ends.0);
                let (tail, more_tails) = tails.split_at_mut(encoded.tail_end - ends.1);
                ends = (encoded.head_end, encoded.tail_end);
                (heads, tails) = (more_heads, more_tails);
                let (body, property_crc) = (body_between(message, tail), self.options.record_crc);
                pending.push(EncodedRecord {
                    parts: RecordParts { head, body, tail, property_crc },
                    next_queue_offset: topic.next_offset(*queue_id),
                    messages: 1,
                    quota: &topic.quota,
                    placed: Placed::default(),
                });
            }
            if marks.belong_together() {
                self.check_together(&pending)?;
            }
            let wants_sync = messages.iter().any(|message| message.durable);
            let durable = self.append_pending(&mut pending, now_ms, wants_sync, returns, None)?;
            let each = messages.iter().zip(encoded).zip(&pending).zip(topics);
            let results = each.map(|(((message, (queue_id, encoded)), pending), topic)| {
                let appended = appended(queue_id, encoded.unique_id, pending, durable);
                self.notify_waiters(message.topic, topic, queue_id, appended.queue_offset);
                appended
            });
            Ok(results.collect())
        })
    }

    /// Checks that one segment can hold `records` together: one after the other, and published in one step. A reader in
    /// this or another process sees none or all of them. A crash may keep only the first few; from the first one, the
    /// caller can tell which others belong to it.
    fn check_together(&self, records: &[EncodedRecord<'_>]) -> Result<(), StoreError> {
        let size: u64 = records.iter().map(|record| record.parts.len() as u64).sum();
        let limit = self.log.max_record_bytes();
        if size <= limit {
            return Ok(());
        }
        Err(StoreError::TooLarge { what: "the set of messages to append together", size, limit })
    }

    /// Checks that [`Self::append_many`] would accept each of `groups`, one after the other. Appends nothing and
    /// creates no topic. Quotas, the disk and damage are left to the append.
    pub(crate) fn check_appends<'a>(
        &self,
        groups: impl Iterator<Item = &'a [NewMessage<'a>]>,
    ) -> Result<(), RefusedMessage> {
        let key = self.ids.next(self.files.clock.now_ms());
        // The number of queues of each topic that the appends would create.
        let mut created: HashMap<&str, u32> = HashMap::new();
        let mut known: Option<(&str, Option<Arc<TopicState>>)> = None;
        let (mut before, mut properties) = (0, Vec::new());
        for group in groups {
            for (index, message) in group.iter().enumerate() {
                let refused = |(field, error)| RefusedMessage { index: before + index, field, error };
                let topic = match &mut known {
                    Some((name, topic)) if *name == message.topic => topic,
                    known => &mut known.insert((message.topic, self.topics.get(message.topic))).1,
                };
                match topic {
                    Some(topic) if !topic.is_writable() || message.queue_id.is_some() => {
                        let field = if topic.is_writable() { "queue_id" } else { "topic" };
                        route(topic, message, false).map_err(|error| refused((field, error)))?;
                    }
                    // Without a queue id, a queue in turn.
                    Some(_) => {}
                    None => self.check_new_topic(message, &mut created).map_err(refused)?,
                }
                if let Some(topic) = topic
                    && topic.batch
                {
                    self.check_inner_batch(group, &key).map_err(refused)?;
                    break;
                }
                self.check_lengths(message, &key, &mut properties).map_err(refused)?;
            }
            before += group.len();
        }
        Ok(())
    }

    /// Checks a message for a topic that an append would create.
    fn check_new_topic<'a>(
        &self,
        message: &NewMessage<'a>,
        created: &mut HashMap<&'a str, u32>,
    ) -> Result<(), (&'static str, StoreError)> {
        let not_found = |queue_id| StoreError::TopicNotFound { topic: message.topic.to_owned(), queue_id };
        if !self.options.auto_create_topics {
            return Err(("topic", not_found(None)));
        }
        message.queue_id.map_or(Ok(()), check_queue_id).map_err(|error| ("queue_id", error))?;
        let needed = message.queue_id.map_or(0, |id| id.unsigned_abs() + 1);
        let queues = *created.entry(message.topic).or_insert(self.options.default_queues.max(needed));
        if needed > queues { Err(("queue_id", not_found(message.queue_id))) } else { Ok(()) }
    }

    pub(crate) fn before_append(&self) -> Result<(), StoreError> {
        self.check()?;
        self.append_gate.check_append()?;
        if self.is_far_behind() {
            self.flusher.flush_all(false)?;
        }
        Ok(())
    }

    /// Appends, waits for a sync if one is needed, and returns whether a sync covers the records. `turn` ends when the
    /// records have their offsets.
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

    /// Returns the state of the message's topic. Creates the topic if that is allowed; a deleted one only with
    /// `recreate`.
    fn topic<'a>(
        &self,
        message: &NewMessage<'_>,
        last: &'a mut Option<LastTopic>,
        recreate: bool,
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
                    None if !recreate && self.topics.is_removed(message.topic) => {
                        let topic = message.topic.to_owned();
                        return Err(StoreError::TopicNotFound { topic, queue_id: None });
                    }
                    None => self.make_topic(message.topic, message.queue_id)?,
                };
                none.insert(LastTopic { token: self.token, name: message.topic.into(), state })
            }
        };
        Ok(&last.state)
    }

    /// Creates `topic` like an append, if it does not exist.
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
            // The records alone do not show that the topic exists again.
            self.topics.store()?;
            self.live.note_topic_change();
        }
        Ok(state)
    }
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
