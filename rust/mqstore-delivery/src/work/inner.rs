//! The shared state of all handles of one work queue, and its opening.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mqstore_base::error::StoreError;
use mqstore_engine::{FloorWatch, Store};
use mqstore_format::topic::{DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX};
use mqstore_io::sync::{AtomicU64, Mutex, Ordering};
use mqstore_meta::{MetaLog, Progress, ProgressRecord};

use super::options::WorkQueueOptions;
use super::source::{ExhaustedOffsets, QueuePlace, WorkSource};
use crate::broker_state::BrokerState;
use crate::error::BrokerError;
use mqstore_base::wake_signal::{LOOK, Signal};

/// The shared state of one work queue; see the module's text.
pub(crate) struct WorkQueueInner {
    broker: Arc<BrokerState>,
    topic: Arc<str>,
    group: Arc<str>,
    name: String,
    dead_letter_topic: String,
    pub(super) options: WorkQueueOptions,
    pub(super) state: Mutex<WorkQueueState>,
    /// Rings when there may be a message to get.
    pub(super) ready: Arc<Signal>,
    /// Rings when a message was taken, which frees space.
    pub(super) space: Arc<Signal>,
    /// Rings when a message was finished.
    pub(super) done: Arc<Signal>,
    /// Each handle has the generation of its creation. Handles up to this generation are shut down.
    pub(super) shut: AtomicU64,
    /// Handles up to this generation get no messages either.
    pub(super) shut_at_once: AtomicU64,
    /// Number of reserved messages of running puts. It grows only under the lock of the state.
    pub(super) reserved: AtomicU64,
}

/// The state that changes when messages are taken.
#[derive(Default)]
pub(super) struct WorkQueueState {
    pub(super) sources: Vec<WorkSource>,
    /// The source at which the next poll starts.
    pub(super) next_source: usize,
    /// Time of the last search for new queues; monotonic.
    pub(super) looked: Option<Duration>,
    /// Removals of topics and groups that are taken into account.
    removals: u64,
    /// The floors that the messages in memory respect.
    floors: Option<FloorWatch>,
    /// Dead letters whose copy failed.
    pub(super) unmoved: ExhaustedOffsets,
    /// Time of the last failure; monotonic.
    pub(super) last_failure: Duration,
    /// The generation of new handles; the first is 1.
    generation: u64,
}

/// Numbers of messages of a work queue by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkQueueCounts {
    /// Messages that a worker could get now.
    pub ready: u64,
    /// Messages that were returned or put with a delay and are due later.
    pub delayed: u64,
    /// Messages that a worker has.
    pub leased: u64,
    /// Messages that are being moved to the dead letters.
    pub dying: u64,
    /// Dead letters of the group that were not redriven.
    pub dead: u64,
}

impl WorkQueueInner {
    /// Opens the queue of `topic` for `group`, in its stored state.
    pub(crate) fn open(
        broker: &Arc<BrokerState>,
        topic: &str,
        group: &str,
        options: WorkQueueOptions,
    ) -> Result<Arc<Self>, BrokerError> {
        let core = Arc::new(Self {
            broker: Arc::clone(broker),
            topic: topic.into(),
            group: group.into(),
            name: format!("work queue {topic} of group {group}"),
            dead_letter_topic: format!("{DLQ_TOPIC_PREFIX}{group}"),
            options,
            state: Mutex::new(WorkQueueState { generation: 1, ..WorkQueueState::default() }),
            ready: Arc::default(),
            space: Arc::default(),
            done: Arc::default(),
            shut: 0.into(),
            shut_at_once: 0.into(),
            reserved: 0.into(),
        });
        let topics = core.topics();
        broker.prepare_group(group, &topics.each_ref().map(|topic| &**topic))?;
        core.look_for_queues(&mut core.state.lock())?;
        core.finish_intents();
        Ok(core)
    }

    pub(super) fn store(&self) -> &Store {
        self.broker.store()
    }

    pub(super) fn meta(&self) -> &Arc<MetaLog> {
        self.broker.meta()
    }

    /// Returns an option that differs from those of the open queue, and the reason for an error.
    pub(crate) fn difference(&self, options: &WorkQueueOptions) -> Option<(&'static str, String)> {
        self.options.difference(options)
    }

    pub(super) fn topic(&self) -> &str {
        &self.topic
    }

    pub(super) fn group(&self) -> &str {
        &self.group
    }

    /// Returns the name for error messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn dead_letter_topic(&self) -> &str {
        &self.dead_letter_topic
    }

    pub(super) fn put_lock(&self, unique_key: &str) -> &Mutex<()> {
        self.broker.put_lock(&self.topic, unique_key)
    }

    pub(super) fn redrive_lock(&self) -> &Mutex<()> {
        self.broker.put_lock(&self.dead_letter_topic, "")
    }

    pub(super) fn note(&self, note: String) {
        self.store().user_notes().log(note);
    }

    pub(super) fn generation(&self) -> u64 {
        self.state.lock().generation
    }

    pub(super) fn shut_down(&self, at_once: bool) {
        {
            let mut state = self.state.lock();
            self.shut.fetch_max(state.generation, Ordering::AcqRel);
            if at_once {
                self.shut_at_once.fetch_max(state.generation, Ordering::AcqRel);
            }
            state.generation += 1;
        }
        for signal in [&self.ready, &self.space, &self.done] {
            signal.ring();
        }
    }

    pub(super) fn is_shut_down(&self, generation: u64) -> bool {
        generation <= self.shut.load(Ordering::Acquire)
    }

    pub(super) fn is_shut_down_immediately(&self, generation: u64) -> bool {
        generation <= self.shut_at_once.load(Ordering::Acquire)
    }

    pub(super) fn shut_down_error(&self) -> BrokerError {
        BrokerError::ShutDown { queue: self.name.clone() }
    }

    /// Looks for new queues and adds them, at most once per [`LOOK`]. Forgets the queues of a deleted topic: a new topic
    /// of the name has queues with a new state. Forgets what was read ahead if floors were raised since.
    pub(super) fn look_for_queues(&self, state: &mut WorkQueueState) -> Result<(), BrokerError> {
        let removals = self.meta().removals();
        if state.removals != removals {
            state.removals = removals;
            state.sources.retain(|source| !source.place.progress.is_removed());
            state.unmoved.retain(|(place, _)| !place.progress.is_removed());
            state.next_source = 0;
            state.looked = None;
        }
        if !state.floors.as_ref().is_some_and(|floors| floors.is_current_in(self.store())) {
            state.floors = Some(self.store().watch_floors());
            for source in &mut state.sources {
                let next = source.place.progress.lock().next();
                source.skip_read_ahead(next);
            }
        }
        let now = self.store().clock().monotonic();
        if state.looked.is_some_and(|looked| now.saturating_sub(looked) < LOOK) {
            return Ok(());
        }
        state.looked = Some(now);
        let known: BTreeSet<(Arc<str>, i32)> = state
            .sources
            .iter()
            .map(|source| (Arc::clone(&source.place.topic), source.place.queue_id))
            .collect();
        for topic in self.topics() {
            for queue_id in self.store().queue_ids(&topic)? {
                if !known.contains(&(Arc::clone(&topic), queue_id)) {
                    let place = self.place(&topic, queue_id)?;
                    state.sources.push(WorkSource::new(place));
                }
            }
        }
        Ok(())
    }

    /// Returns its own topic, and the topics in which RocketMQ stores messages that this group popped from it and did
    /// not acknowledge in time. Source: `KeyBuilder#buildPopRetryTopicV1`, `#buildPopRetryTopicV2`.
    pub(super) fn topics(&self) -> [Arc<str>; 3] {
        let (group, topic) = (&self.group, &self.topic);
        let retry = |between: char| format!("{RETRY_TOPIC_PREFIX}{group}{between}{topic}").into();
        [Arc::clone(topic), retry('_'), retry('+')]
    }

    /// Returns the group's progress in a queue. A new progress starts at the offset that the group committed as a
    /// consumer, or at the first message.
    fn place(&self, topic: &Arc<str>, queue_id: i32) -> Result<QueuePlace, BrokerError> {
        let meta = self.meta();
        let key = meta.queue_key(&self.group, topic, queue_id)?;
        let (min, max) = self.store().bounds(topic, queue_id)?;
        let is_new = meta.known_progress(key).is_none();
        let progress = meta.progress(key);
        if is_new {
            meta.change_progress(&progress, |state, records| {
                // A consumer of the group may commit meanwhile, and another handle may lease.
                if state.next() == state.committed() {
                    let to = state.offset().unwrap_or(min).clamp(min, max);
                    records.push(ProgressRecord::Moved { to });
                }
            })?;
        }
        meta.clamp_progress(&progress, min, max)?;
        Ok(QueuePlace { topic: Arc::clone(topic), queue_id, progress })
    }

    /// Returns the record of the clock that must precede a lease or a return, if any. The caller holds the lock of
    /// `progress`.
    pub(super) fn clock_record(&self, progress: &Progress) -> Option<ProgressRecord> {
        progress.clock_record(self.store().clock().now_ms())
    }

    /// Returns the counts without the dead letters. New messages that a put holds back count as ready.
    pub(super) fn counts(&self, state: &WorkQueueState) -> Result<WorkQueueCounts, BrokerError> {
        let now_ms = self.store().clock().now_ms();
        let mut counts = WorkQueueCounts::default();
        for source in &state.sources {
            let (min, max) = source.bounds(self.store())?;
            let progress = source.place.progress.lock();
            let waiting = waiting_from(&progress, min);
            let due = match progress.first_due() {
                Some((_, first)) if first.visible_ms <= now_ms => {
                    let is_due = |at: i64, visible_ms: i64| at >= min && visible_ms <= now_ms;
                    progress.all_waiting().filter(|(at, one)| is_due(*at, one.visible_ms)).count() as u64
                }
                _ => 0,
            };
            counts.ready += new_messages(&progress, (min, max)) + due;
            counts.delayed += waiting - due;
            counts.leased += progress.leases().len() as u64;
            counts.dying += progress.dead_letters().len() as u64;
        }
        Ok(counts)
    }

    /// Returns the number of messages that no worker has, including those that are not due yet.
    pub(super) fn size(&self, state: &WorkQueueState) -> Result<u64, StoreError> {
        let mut size = 0;
        for source in &state.sources {
            let bounds = source.bounds(self.store())?;
            let progress = source.place.progress.lock();
            size += new_messages(&progress, bounds) + waiting_from(&progress, bounds.0);
        }
        Ok(size)
    }
}

/// Returns the number of messages between the bounds of the queue that were never leased.
pub(super) fn new_messages(progress: &Progress, (min, max): (i64, i64)) -> u64 {
    let before = min.saturating_sub(progress.next()).max(0).unsigned_abs();
    progress.new_messages(max).saturating_sub(before)
}

/// Returns the number of messages that were returned and can still be read: from the minimum `min` of the queue on.
fn waiting_from(progress: &Progress, min: i64) -> u64 {
    let all = progress.all_waiting();
    // Most often, no message below the minimum is unfinished.
    if progress.committed() >= min {
        all.len() as u64
    } else {
        all.filter(|(at, _)| *at >= min).count() as u64
    }
}

impl fmt::Debug for WorkQueueInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkQueueInner").field("name", &self.name).finish_non_exhaustive()
    }
}
