//! The work queues of a store with their messages, for readers too: what is ready, waits, is leased or dead.
//!
//! The answers of a store that is open for writing are current. Those of a reader are what the current or the last
//! writer wrote to the disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_base::options::DamagePolicy;
use mqstore_engine::{Store, popped_from};
use mqstore_format::properties::{DLQ_ORIGIN_TOPIC, REASON, RETRY_TOPIC};
use mqstore_format::topic::DLQ_TOPIC_PREFIX;
use mqstore_meta::{GroupQueue, Progress};

use super::inner::{WorkQueueCounts, new_messages};
use super::queue_leases::put_delay_until;
use crate::error::view;
use crate::pop_takeover::previous_attempts;

/// Number of messages that one step reads.
const AT_ONCE: usize = 64;

/// The state of a message of a work queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobState {
    /// A worker could get it now.
    Ready,
    /// It was returned or put with a delay, and is due later.
    Delayed,
    /// A worker has it.
    Leased,
    /// It is being moved to the dead letters.
    Dying,
    /// It is a dead letter that was neither redriven nor deleted.
    Dead,
}

/// A message of a work queue.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its state.
    pub state: JobState,
    /// Number of its deliveries so far.
    pub attempts: u32,
    /// The time from which a worker can get it, or at which its lease ends, in epoch milliseconds. `None` for one that
    /// is ready or dead.
    pub due_ms: Option<i64>,
    /// The last reason that a worker gave for returning it.
    pub reason: Option<Arc<str>>,
    /// The message; for a dead one, the dead letter.
    pub record: StoredRecord,
}

/// A work queue with its messages.
#[derive(Clone, Debug, Default)]
pub struct WorkQueueJobs {
    /// Numbers of messages by state.
    pub counts: WorkQueueCounts,
    /// The first messages of each state, in the order in which they are due, end or were stored.
    pub jobs: Vec<Job>,
}

/// Ranges of offsets in a queue: the first one, and one past the last.
pub type OffsetRanges = Vec<(i64, i64)>;

/// The messages of work queues that a caller wants.
#[derive(Clone, Copy, Debug, Default)]
pub struct JobRequest<'a> {
    /// Only work queues of this topic.
    pub topic: Option<&'a str>,
    /// Maximum number of listed messages of each state in each work queue.
    pub most: usize,
    /// Number of new messages of each queue that are read. Those after them count as ready.
    pub read: u64,
}

/// Returns the work queues of a store by group and topic, also those that no handle has open. New messages are read,
/// because only the message says that it was put with a delay. Damaged messages are not listed. `dead` counts the dead
/// letters of the group.
///
/// # Errors
/// Errors of reading queues and messages.
pub fn jobs(
    store: &Store,
    request: &JobRequest<'_>,
) -> Result<BTreeMap<(String, String), WorkQueueJobs>, StoreError> {
    store.catch_up()?;
    let mut found = BTreeMap::<(String, String), WorkQueueJobs>::new();
    let mut queues = Vec::new();
    store.group_table()?.each_progress(|queue, progress| {
        if request.topic.is_none_or(|wanted| wanted == popped_from(&queue.group, &queue.topic)) {
            queues.push((queue, progress.clone()));
        }
    });
    for (GroupQueue { group, topic, queue_id }, progress) in queues {
        let home = popped_from(&group, &topic);
        let (min, max) = match store.bounds(&topic, queue_id) {
            Err(StoreError::TopicNotFound { .. }) => continue,
            bounds => bounds?,
        };
        let of = found.entry((group.to_string(), home.to_owned())).or_default();
        let (topic, progress, JobRequest { most, read, .. }) = (&topic, &progress, *request);
        let queue = QueueJobs { store, topic, queue_id, progress, most, read };
        queue.add_known(of, min);
        queue.add_new(of, (min, max))?;
    }
    if request.most > 0 {
        list_dead(store, request, &mut found)?;
    }
    for ((group, _), of) in &mut found {
        of.counts.dead = DeadLetters::of(store, group)?.map_or(0, |of| of.count());
        of.jobs.sort_by_key(|job| (job.state, job.due_ms, job.record.commit_log_offset));
        let mut listed = [0; 5];
        of.jobs.retain(|job| {
            let count = listed.get_mut(job.state as usize);
            count.is_some_and(|count| {
                *count += 1;
                *count <= request.most
            })
        });
    }
    Ok(found)
}

/// A queue from which a group takes messages.
struct QueueJobs<'a> {
    store: &'a Store,
    topic: &'a str,
    queue_id: i32,
    progress: &'a Progress,
    most: usize,
    read: u64,
}

impl QueueJobs<'_> {
    /// Adds the messages that were leased at least once.
    fn add_known(&self, of: &mut WorkQueueJobs, min: i64) {
        let now_ms = self.store.clock().now_ms();
        let progress = self.progress;
        let later = |state, due_ms: i64| {
            if due_ms > now_ms { (state, Some(due_ms)) } else { (JobState::Ready, None) }
        };
        let waiting = progress
            .all_waiting()
            .filter(|(offset, _)| *offset >= min)
            .map(|(offset, one)| (offset, one.attempt, later(JobState::Delayed, one.visible_ms)));
        let leases = progress.leases().map(|(offset, lease)| {
            (offset, lease.attempt, later(JobState::Leased, lease.invisible_until_ms))
        });
        let dying = progress.dead_letters().map(|(offset, _)| (offset, 0, (JobState::Dying, None)));
        let mut all: Vec<_> = waiting.chain(leases).chain(dying).collect();
        all.sort_by_key(|(offset, _, (state, due_ms))| (*state, *due_ms, *offset));
        let mut listed = [0; 5];
        for (offset, attempts, (state, due_ms)) in all {
            count(&mut of.counts, state);
            let Some(listed) = listed.get_mut(state as usize).filter(|listed| **listed < self.most) else {
                continue;
            };
            // One that is no longer in the log, or damaged, is only counted.
            if let Ok(Some(record)) = self.store.message_at(self.topic, self.queue_id, offset) {
                *listed += 1;
                let reason = progress.reason(offset).cloned();
                of.jobs.push(Job { state, attempts, due_ms, reason, record });
            }
        }
    }

    /// Adds the messages that were never leased nor cancelled.
    fn add_new(&self, of: &mut WorkQueueJobs, (min, max): (i64, i64)) -> Result<(), StoreError> {
        let now_ms = self.store.clock().now_ms();
        let mut delayed = Vec::new();
        let mut listed = 0;
        let from = self.progress.next().clamp(min, max.max(min));
        let read_to = from.saturating_add_unsigned(self.read).min(max);
        of.counts.ready += new_messages(self.progress, (min.max(read_to), max));
        each_message(self.store, (self.topic, self.queue_id), (from, read_to), |record| {
            if self.progress.is_finished(record.queue_offset) {
                return Ok(true);
            }
            if let Some(due_ms) = put_delay_until(&record).filter(|due_ms| *due_ms > now_ms) {
                of.counts.delayed += 1;
                delayed.push((due_ms, record.queue_offset));
                return Ok(true);
            }
            of.counts.ready += 1;
            if listed < self.most {
                listed += 1;
                let attempts = previous_attempts(self.topic, &record);
                let (state, due_ms, reason) = (JobState::Ready, None, None);
                of.jobs.push(Job { state, attempts, due_ms, reason, record });
            }
            Ok(true)
        })?;
        delayed.sort_unstable();
        for (due_ms, offset) in delayed.into_iter().take(self.most) {
            if let Ok(Some(record)) = self.store.message_at(self.topic, self.queue_id, offset) {
                let (state, due_ms, reason) = (JobState::Delayed, Some(due_ms), None);
                of.jobs.push(Job { state, attempts: 0, due_ms, reason, record });
            }
        }
        Ok(())
    }
}

/// Returns the offsets of the dead letters of each group that were neither redriven nor deleted, as ranges.
///
/// # Errors
/// Errors of reading the queues.
pub fn dead_letters(store: &Store) -> Result<Vec<(String, OffsetRanges)>, StoreError> {
    store.catch_up()?;
    let mut found = Vec::new();
    for topic in store.topics()? {
        if let Some(group) = topic.strip_prefix(DLQ_TOPIC_PREFIX)
            && let Some(of) = DeadLetters::of(store, group)?
        {
            found.push((group.to_owned(), of.ranges()));
        }
    }
    Ok(found)
}

/// Lists the dead letters of all groups that were neither redriven nor deleted.
fn list_dead(
    store: &Store,
    request: &JobRequest<'_>,
    found: &mut BTreeMap<(String, String), WorkQueueJobs>,
) -> Result<(), StoreError> {
    for (group, ranges) in dead_letters(store)? {
        let topic = format!("{DLQ_TOPIC_PREFIX}{group}");
        let mut listed = 0;
        for range in ranges {
            each_message(store, (&topic, 0), range, |record| {
                let view = view(&record)?;
                let [origin, retry, reason] =
                    view.properties.get_many([DLQ_ORIGIN_TOPIC, RETRY_TOPIC, REASON]);
                let home = origin.or(retry).map_or(&*topic, |topic| popped_from(&group, topic)).to_owned();
                if listed < request.most && request.topic.is_none_or(|wanted| wanted == home) {
                    let (attempts, reason) =
                        (u32::try_from(view.reconsume_times).unwrap_or(0), reason.map(Arc::from));
                    listed += 1;
                    let of = found.entry((group.clone(), home)).or_default();
                    of.jobs.push(Job { state: JobState::Dead, attempts, due_ms: None, reason, record });
                }
                Ok(listed < request.most)
            })?;
        }
    }
    Ok(())
}

/// The dead letters of a group.
pub(super) struct DeadLetters {
    /// The redriven and the deleted ones are finished.
    progress: Progress,
    /// The bounds of their queue.
    bounds: (i64, i64),
}

impl DeadLetters {
    /// Returns those of a group; `None` if it never had any.
    pub(super) fn of(store: &Store, group: &str) -> Result<Option<Self>, StoreError> {
        let topic = format!("{DLQ_TOPIC_PREFIX}{group}");
        let bounds = match store.bounds(&topic, 0) {
            Err(StoreError::TopicNotFound { .. }) => return Ok(None),
            bounds => bounds?,
        };
        let progress =
            store.group_table()?.progress(&[(group, &topic, 0)])?.pop().flatten().unwrap_or_default();
        Ok(Some(Self { progress, bounds }))
    }

    /// Returns the offsets of those that were neither redriven nor deleted, as ranges.
    fn ranges(&self) -> OffsetRanges {
        let (min, max) = self.bounds;
        let mut from = self.progress.next().clamp(min, max);
        let mut found = Vec::new();
        for (start, end) in self.progress.finished().chain([(max, max)]) {
            if from < start.min(max) {
                found.push((from, start.min(max)));
            }
            from = from.max(end);
        }
        found
    }

    /// Returns the number of those that were neither redriven nor deleted.
    pub(super) fn count(&self) -> u64 {
        new_messages(&self.progress, self.bounds)
    }
}

fn count(counts: &mut WorkQueueCounts, state: JobState) {
    *match state {
        JobState::Ready => &mut counts.ready,
        JobState::Delayed => &mut counts.delayed,
        JobState::Leased => &mut counts.leased,
        JobState::Dying => &mut counts.dying,
        JobState::Dead => &mut counts.dead,
    } += 1;
}

/// Calls `each` for the messages of a queue in a range of offsets, as long as it returns true. Passes over damaged ones.
fn each_message(
    store: &Store,
    (topic, queue_id): (&str, i32),
    (from, to): (i64, i64),
    mut each: impl FnMut(StoredRecord) -> Result<bool, StoreError>,
) -> Result<(), StoreError> {
    if from >= to {
        return Ok(());
    }
    let mut cursor = store.read(topic, queue_id, Some(from), Some(to), None)?.on_damage(DamagePolicy::Skip);
    loop {
        let records = cursor.next_batch(AT_ONCE)?;
        if records.is_empty() {
            return Ok(());
        }
        for record in records {
            if !each(record)? {
                return Ok(());
            }
        }
    }
}
