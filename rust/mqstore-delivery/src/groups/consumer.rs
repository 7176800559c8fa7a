//! One consumer of a group: polls its queues and commits its offsets.
//!
//! The promises: messages of a queue come in queue order. Each comes at least once, as long as the group commits only
//! messages that it has processed. A commit stores, for each queue, the offset after the last message that was handed
//! out. When the call returns, the commit survives a kill. It survives a power loss after the store's interval for
//! metadata, or immediately on request. The offsets of one commit are stored together or not at all. Offsets only
//! grow, except after a seek or a reset.
//!
//! Across threads: several threads may call; each message goes to one of them. A waiting thread holds no lock.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_base::wake_signal::{LOOK, Signal};
use mqstore_engine::{FloorWatch, Store};
use mqstore_io::sync::{AtomicBool, Mutex, Ordering};
use mqstore_meta::{MetaLog, OffsetChange};

use super::Coordinator;
use super::assigned_queue::{AssignedQueue, ReadEnd};
use super::assignment::{MemberId, Queue};
use super::options::{ConsumerOptions, LostMessagePolicy, StartOffset};
use crate::broker_state::BrokerState;
use crate::error::BrokerError;
use crate::nonblocking::{Look, ReadScope, Remaining, block_on, lock};
use crate::queue_failures::merge_queue_errors;

/// Maximum time of one poll with a filter that matches nothing.
const FILTER_TIME: Duration = Duration::from_millis(40);

/// Messages that iteration reads ahead: first number and maximum.
const FIRST_AHEAD: usize = 16;
pub(super) const MOST_AHEAD: usize = 512;

/// One consumer of a group; see the module's text.
pub struct Consumer {
    pub(super) broker: Arc<BrokerState>,
    pub(super) group: Arc<str>,
    /// The group under which offsets are stored; `None` if they are not stored.
    pub(super) stored_as: Option<Arc<str>>,
    topics: BTreeSet<Arc<str>>,
    pub(super) options: ConsumerOptions,
    pub(super) member: Option<(Arc<Coordinator>, MemberId)>,
    pub(super) signal: Arc<Signal>,
    closed: AtomicBool,
    pub(super) state: Mutex<ConsumerState>,
}

/// The mutable state of a consumer.
#[derive(Default)]
pub(super) struct ConsumerState {
    pub(super) slots: Vec<AssignedQueue>,
    /// The slot at which the next poll starts.
    next_slot: usize,
    /// Messages that were read ahead for [`Consumer::next_once`].
    buffer: VecDeque<BufferedMessage>,
    ahead: usize,
    /// The floors that the messages in the buffer respect.
    floors: Option<FloorWatch>,
    /// The change of owners from which `slots` was made.
    pub(super) seen: Option<u64>,
    /// Time of the last search for new queues; monotonic.
    pub(super) looked: Option<Duration>,
    /// Number of queues at that time.
    pub(super) known: usize,
}

/// A message that was read and not handed out.
struct BufferedMessage {
    slot: usize,
    /// The consumer's position after this message is handed out.
    next: i64,
    record: StoredRecord,
}

impl Consumer {
    /// Opens a consumer of `topics`, which need not exist yet. A broadcast consumer has no coordinator.
    pub(crate) fn new(
        broker: &Arc<BrokerState>,
        coordinator: Option<Arc<Coordinator>>,
        group: &str,
        topics: &[&str],
        options: ConsumerOptions,
    ) -> Result<Self, BrokerError> {
        let topics: BTreeSet<Arc<str>> = topics.iter().map(|topic| Arc::from(*topic)).collect();
        let signal = Arc::new(Signal::default());
        let stored_as = match (&options.name, options.broadcast) {
            (_, false) => Some(Arc::from(group)),
            (Some(name), true) => Some(Arc::from(broker.claim_broadcast_name(group, name)?)),
            (None, true) => None,
        };
        let member = coordinator.map(|coordinator| {
            let member = coordinator.join(topics.clone(), Arc::clone(&signal));
            (coordinator, member)
        });
        let consumer = Self {
            broker: Arc::clone(broker),
            group: group.into(),
            stored_as,
            topics,
            options,
            member,
            signal,
            closed: AtomicBool::new(false),
            state: Mutex::default(),
        };
        // From here on it owns its queues, at their start offsets.
        consumer.refresh(&mut consumer.state.lock())?;
        Ok(consumer)
    }

    /// Returns its group.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// Returns its topics, sorted.
    pub fn topics(&self) -> impl Iterator<Item = &str> {
        self.topics.iter().map(|topic| &**topic)
    }

    pub(super) fn store(&self) -> &Store {
        self.broker.store()
    }

    pub(super) fn meta(&self) -> &Arc<MetaLog> {
        self.broker.meta()
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(super) fn check(&self) -> Result<(), BrokerError> {
        if self.is_closed() {
            return Err(BrokerError::ConsumerClosed { group: self.group.to_string() });
        }
        Ok(())
    }

    pub(crate) fn note(&self, note: String) {
        self.broker.store().user_notes().log(note);
    }

    /// Returns its current queues, sorted.
    pub fn assignment(&self) -> Result<Vec<Queue>, BrokerError> {
        let mut state = self.state.lock();
        if self.is_closed() {
            return Ok(Vec::new());
        }
        self.refresh(&mut state)?;
        Ok(state.slots.iter().map(|slot| slot.queue.clone()).collect())
    }

    /// Returns up to `max` messages. Returns none only if `timeout` ends first; `None` waits without a limit.
    pub fn poll(&self, max: usize, timeout: Option<Duration>) -> Result<Vec<StoredRecord>, BrokerError> {
        let clock = self.store().clock();
        let deadline = timeout.map(|timeout| clock.monotonic().saturating_add(timeout));
        loop {
            let left = deadline.map(|deadline| deadline.saturating_sub(clock.monotonic()));
            let found = self.poll_once(max, left.unwrap_or(LOOK))?;
            if !found.is_empty() || max == 0 || left.is_some_and(|left| left.is_zero()) {
                return Ok(found);
            }
        }
    }

    /// Like [`Self::poll`], but may return no messages before `wait` ends.
    pub fn poll_once(&self, max: usize, wait: Duration) -> Result<Vec<StoredRecord>, BrokerError> {
        let waits = !wait.is_zero();
        let found = block_on(&self.signal, wait, || {
            self.look(ReadScope::Anywhere, true, waits, |state, found| {
                self.collect(state, max, found, ReadScope::Anywhere)
            })
        })?;
        Ok(found.unwrap_or_default())
    }

    /// Returns the next message, or `None` if there is none yet, at the latest after `wait`. Reads ahead.
    pub fn next_once(&self, wait: Duration) -> Result<Option<StoredRecord>, BrokerError> {
        let waits = !wait.is_zero();
        let found = block_on(&self.signal, wait, || {
            self.look(ReadScope::Anywhere, true, waits, |state, found| {
                self.collect_next(state, found, ReadScope::Anywhere)
            })
        })?;
        Ok(found.and_then(|mut found| found.pop()))
    }

    /// Polls once: `read` collects the messages to hand out. If there are none and the caller waits, the signal rings
    /// at the time for the next poll.
    pub(super) fn look(
        &self,
        scope: ReadScope,
        patience: bool,
        waits: bool,
        read: impl FnOnce(&mut ConsumerState, &mut Vec<StoredRecord>) -> Result<Remaining, BrokerError>,
    ) -> Result<Look<Vec<StoredRecord>>, BrokerError> {
        let seen = self.signal.ring_count();
        let Some(mut state) = lock(&self.state, patience) else { return Ok(Look::NotAtHand) };
        self.check()?;
        if !scope.is_at_hand() {
            self.refresh(&mut state)?;
        } else if !self.has_stable_assignment(&mut state)? {
            return Ok(Look::NotAtHand);
        }
        if !state.floors.as_ref().is_some_and(|floors| floors.is_current_in(self.store())) {
            state.floors = Some(self.store().watch_floors());
            state.clear_buffer();
        }
        let mut found = Vec::new();
        let remaining = read(&mut state, &mut found)?;
        if found.is_empty() && remaining != Remaining::Nothing && scope.is_at_hand() {
            return Ok(Look::NotAtHand);
        }
        if !found.is_empty() || remaining != Remaining::Nothing || !waits {
            return Ok(Look::Found(found));
        }
        for slot in &mut state.slots {
            let may_arm = scope.reaches_end() || slot.is_armed();
            if !may_arm || slot.arm(self.store(), &self.signal)? {
                return Ok(Look::NotAtHand);
            }
        }
        Ok(Look::Wait { seen, longest: None })
    }

    /// Collects the next message, if there is one; reads ahead.
    pub(super) fn collect_next(
        &self,
        state: &mut ConsumerState,
        found: &mut Vec<StoredRecord>,
        scope: ReadScope,
    ) -> Result<Remaining, BrokerError> {
        let remaining = self.fill(state, scope)?;
        found.extend(self.take_ahead(state));
        Ok(remaining)
    }

    /// Collects up to `max` messages to hand out. Returns what remains.
    pub(super) fn collect(
        &self,
        state: &mut ConsumerState,
        max: usize,
        found: &mut Vec<StoredRecord>,
        scope: ReadScope,
    ) -> Result<Remaining, BrokerError> {
        // Messages that iteration read ahead come first.
        while found.len() < max {
            let Some(record) = self.take_ahead(state) else { break };
            found.push(record);
        }
        self.read(state, max, found, scope, |state, at, found, from| {
            // A queue with nothing handed out need not stay.
            if found.len() > from && !self.keeps(state, at) {
                found.truncate(from);
            } else if let Some(slot) = state.slots.get_mut(at) {
                slot.mark_delivered(found.get(from..).and_then(<[_]>::last), slot.scanned);
            }
        })
    }

    /// Reads ahead if the buffer is empty. Returns what remains.
    pub(super) fn fill(&self, state: &mut ConsumerState, scope: ReadScope) -> Result<Remaining, BrokerError> {
        if state.buffer.is_empty() {
            state.ahead = (state.ahead * 4).clamp(FIRST_AHEAD, MOST_AHEAD);
        }
        self.read_ahead(state, state.ahead, scope)
    }

    /// Like [`Self::fill`], up to `max` messages.
    pub(super) fn read_ahead(
        &self,
        state: &mut ConsumerState,
        max: usize,
        scope: ReadScope,
    ) -> Result<Remaining, BrokerError> {
        if !state.buffer.is_empty() {
            return Ok(Remaining::GoesOn);
        }
        self.read(state, max, &mut Vec::new(), scope, |state, at, found, from| {
            let Some(slot) = state.slots.get_mut(at) else { return };
            let records: Vec<_> = found.drain(from..).collect();
            if records.is_empty() {
                slot.returned = slot.scanned;
            }
            slot.buffered += records.len();
            let nexts: Vec<_> =
                records.iter().skip(1).map(|record| record.queue_offset).chain([slot.scanned]).collect();
            let ahead = records.into_iter().zip(nexts);
            state.buffer.extend(ahead.map(|(record, next)| BufferedMessage { slot: at, next, record }));
        })
    }

    pub(super) fn take_ahead(&self, state: &mut ConsumerState) -> Option<StoredRecord> {
        let at = state.buffer.front()?.slot;
        if !self.keeps(state, at) {
            state.clear_buffer();
            return None;
        }
        let BufferedMessage { next, record, .. } = state.buffer.pop_front()?;
        if let Some(slot) = state.slots.get_mut(at) {
            slot.buffered -= 1;
            slot.mark_delivered(Some(&record), if slot.buffered == 0 { slot.scanned } else { next });
        }
        Some(record)
    }

    /// For an ordered consumer: pins a queue whose messages are about to be handed out. Returns whether the consumer
    /// still owns it.
    fn keeps(&self, state: &mut ConsumerState, at: usize) -> bool {
        let Some((coordinator, member)) = self.member.as_ref().filter(|_| self.options.ordered) else {
            return true;
        };
        let keeps =
            state.slots.get(at).is_some_and(|slot| coordinator.hold(*member, &slot.queue, slot.generation));
        if !keeps {
            state.seen = None;
        }
        keeps
    }

    /// Reads from one queue after the other until there are `max` messages. Calls `done` for each queue with the
    /// index in `found` of its first message. Returns what remains. A queue that cannot be read does not block the
    /// others; see [`merge_queue_errors`].
    fn read(
        &self,
        state: &mut ConsumerState,
        max: usize,
        found: &mut Vec<StoredRecord>,
        scope: ReadScope,
        mut done: impl FnMut(&mut ConsumerState, usize, &mut Vec<StoredRecord>, usize),
    ) -> Result<Remaining, BrokerError> {
        if scope.reaches_end() {
            self.store().catch_up()?;
        }
        let clock = self.store().clock();
        let until = clock.monotonic().saturating_add(FILTER_TIME);
        let (count, mut total) = (state.slots.len(), found.len());
        loop {
            let (mut goes_on, mut failures) = (false, Vec::new());
            for step in 0..count {
                if total >= max {
                    break;
                }
                let at = (state.next_slot + step) % count;
                let from = found.len();
                let at_hand = if scope.is_at_hand() { self.is_at_hand(state, at, scope) } else { Ok(true) };
                if let Ok(false) = at_hand {
                    // The queue keeps its turn.
                    if total == 0 {
                        return Ok(Remaining::NotAtHand);
                    }
                    goes_on = true;
                    continue;
                }
                let read = at_hand.and_then(|_| self.read_queue(state, at, max - total, found));
                total += found.len() - from;
                match read {
                    Ok(read) => {
                        goes_on |= read == ReadEnd::GoesOn;
                        state.slots.get_mut(at).into_iter().for_each(|slot| slot.failing = false);
                    }
                    // With [`LostMessagePolicy::Fail`], deleted messages are an error.
                    Err(error @ BrokerError::Store(StoreError::OffsetOutOfRange { .. })) if total == 0 => {
                        return Err(error);
                    }
                    Err(error) => failures.push((at, error)),
                }
                done(state, at, found, from);
            }
            state.next_slot = (state.next_slot + 1).checked_rem(count).unwrap_or(0);
            goes_on |= !failures.is_empty();
            merge_queue_errors(&mut state.slots, failures, total > 0, |slot, error| {
                self.note_failure(slot, error);
            })?;
            if total > 0 || !goes_on || clock.monotonic() >= until {
                return Ok(if goes_on { Remaining::GoesOn } else { Remaining::Nothing });
            }
        }
    }

    /// Notes a read error once until the queue can be read again. No caller gets the error, because other queues have
    /// messages.
    fn note_failure(&self, slot: &mut AssignedQueue, error: &BrokerError) {
        if !std::mem::replace(&mut slot.failing, true) {
            let (Queue { topic, queue_id }, group) = (&slot.queue, &self.group);
            self.note(format!(
                "group {group}: cannot read queue {topic}/{queue_id}; other queues continue: {error}"
            ));
        }
    }

    fn read_queue(
        &self,
        state: &mut ConsumerState,
        at: usize,
        max: usize,
        found: &mut Vec<StoredRecord>,
    ) -> Result<ReadEnd, BrokerError> {
        let Some(slot) = state.slots.get_mut(at) else { return Ok(ReadEnd::AtEnd) };
        let error = match slot.read(&self.store().continued(), self.options.filter.as_ref(), max, found) {
            Err(error) => error,
            read => return Ok(read?),
        };
        let StoreError::OffsetOutOfRange { offset, min_offset, max_offset, .. } = error else {
            return Err(error.into());
        };
        let Queue { topic, queue_id } = &slot.queue;
        let group = &self.group;
        if offset > max_offset {
            // The log lost its end. New messages will take these offsets.
            self.note(format!(
                "group {group}: the offset {offset} in queue {topic}/{queue_id} is beyond its end {max_offset}; \
                 the group continues there"
            ));
            slot.sought = true;
            slot.move_to(max_offset);
            return Ok(ReadEnd::AtEnd);
        }
        if self.options.on_lost == LostMessagePolicy::Fail {
            return Err(out_of_range(&slot.queue, offset, (min_offset, max_offset)).into());
        }
        self.note(format!(
            "group {group}: messages {offset} to {min_offset} of queue {topic}/{queue_id} were deleted before the \
             group read them; it continues at {min_offset}"
        ));
        slot.move_to(min_offset);
        Ok(ReadEnd::GoesOn)
    }

    /// Applies changes: new queues, and queues that moved to other consumers.
    pub(super) fn refresh(&self, state: &mut ConsumerState) -> Result<(), BrokerError> {
        let now = self.store().clock().monotonic();
        if state.looked.is_none_or(|looked| now.saturating_sub(looked) >= LOOK) {
            state.looked = Some(now);
            self.look_for_queues(state)?;
        }
        let Some((coordinator, member)) = &self.member else { return Ok(()) };
        let changes = coordinator.changes();
        if state.seen == Some(changes) {
            return Ok(());
        }
        let owned = coordinator.lock().owned(*member);
        self.take_over(state, owned)?;
        state.seen = Some(changes);
        Ok(())
    }

    pub(super) fn queues(&self) -> Result<Vec<Queue>, BrokerError> {
        let mut queues = Vec::new();
        for topic in &self.topics {
            let ids = self.store().queue_ids(topic)?;
            queues.extend(ids.into_iter().map(|queue_id| Queue { topic: Arc::clone(topic), queue_id }));
        }
        Ok(queues)
    }

    fn look_for_queues(&self, state: &mut ConsumerState) -> Result<(), BrokerError> {
        let queues = self.queues()?;
        if queues.len() == state.known {
            return Ok(());
        }
        match &self.member {
            Some((coordinator, _)) => coordinator.learn(queues.clone()),
            None => self.take_over(state, queues.iter().map(|queue| (queue.clone(), 0)).collect())?,
        }
        state.known = queues.len();
        Ok(())
    }

    /// Makes `owned` its queues: keeps those that it already had, and starts the others.
    fn take_over(&self, state: &mut ConsumerState, owned: Vec<(Queue, u64)>) -> Result<(), BrokerError> {
        state.clear_buffer();
        let mut before = std::mem::take(&mut state.slots);
        let mut fresh = Vec::new();
        for (queue, generation) in owned {
            let same = |slot: &AssignedQueue| slot.queue == queue && slot.generation == generation;
            match before.iter().position(same) {
                Some(at) => state.slots.push(before.swap_remove(at)),
                None => fresh.push((queue, generation)),
            }
        }
        let begun: Result<Vec<_>, _> =
            fresh.into_iter().map(|(queue, generation)| self.begin(queue, generation)).collect();
        let begun = begun.inspect_err(|_| state.seen = None)?;
        self.store_start_offsets(&begun)?;
        state.slots.extend(begun);
        state.slots.sort_by(|a, b| a.queue.cmp(&b.queue));
        state.next_slot = 0;
        Ok(())
    }

    /// Commits the start offset of a new group. So the group starts there the next time too, even after new messages,
    /// and the retention knows what it has not read.
    fn store_start_offsets(&self, slots: &[AssignedQueue]) -> Result<(), BrokerError> {
        if self.stored_as.is_none() {
            return Ok(());
        }
        let fresh = slots.iter().filter(|slot| slot.committed(self.meta()).is_none());
        let changes: Vec<_> =
            fresh.map(|slot| OffsetChange { queue: slot.key, offset: slot.begun }).collect();
        if !changes.is_empty() {
            self.meta().commit(&changes)?;
        }
        Ok(())
    }

    /// Starts a queue at the group's offset, or at the start of a new group.
    fn begin(&self, queue: Queue, generation: u64) -> Result<AssignedQueue, BrokerError> {
        Ok(self.begin_at_offset(queue, generation)?.on_damage(self.options.on_damage))
    }

    fn begin_at_offset(&self, queue: Queue, generation: u64) -> Result<AssignedQueue, BrokerError> {
        let (store, meta) = (self.store(), self.meta());
        let stored_as = self.stored_as.as_deref().unwrap_or(&self.group);
        let key = meta.queue_key(stored_as, &queue.topic, queue.queue_id)?;
        let stored = self.stored_as.as_ref().and_then(|_| meta.offset(key)).filter(|offset| *offset >= 0);
        if let Some(offset) = stored {
            return Ok(AssignedQueue::new(queue, key, generation, offset));
        }
        // A queue that was added later starts at its first message, wherever the group started in the topic.
        let knows_topic = self.stored_as.is_some()
            && meta.offsets(key.group).iter().any(|change| change.queue.topic == key.topic);
        let start = if knows_topic { StartOffset::Earliest } else { self.options.start };
        let (min, max) = store.bounds(&queue.topic, queue.queue_id)?;
        let position = match start {
            StartOffset::Earliest => self.earliest(&queue, min)?,
            StartOffset::Latest => max,
            StartOffset::Time(ms) => self.offset_for_time(&queue, ms, max)?,
        };
        Ok(AssignedQueue::new(queue, key, generation, position))
    }

    pub(super) fn slot(&self, state: &ConsumerState, queue: &Queue) -> Result<usize, BrokerError> {
        state.slots.iter().position(|slot| slot.queue == *queue).ok_or_else(|| BrokerError::NotAssigned {
            group: self.group.to_string(),
            topic: queue.topic.to_string(),
            queue_id: queue.queue_id,
        })
    }

    /// Closes the consumer. Its queues go to the other consumers of the group; messages that were handed out and not
    /// committed come again. A second call changes nothing.
    pub fn close(&self) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some((coordinator, member)) = &self.member {
            coordinator.leave(*member);
        }
        if let (Some(stored_as), true) = (&self.stored_as, self.options.broadcast) {
            self.broker.release_broadcast_name(stored_as);
        }
        self.signal.ring();
        let mut state = self.state.lock();
        state.slots.clear();
        state.buffer.clear();
    }
}

impl ConsumerState {
    /// Forgets the messages that were read ahead; they will be read again.
    pub(super) fn clear_buffer(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        self.buffer.clear();
        for slot in self.slots.iter_mut().filter(|slot| slot.buffered > 0) {
            let (returned, sought) = (slot.returned, slot.sought);
            slot.move_to(returned);
            slot.sought = sought;
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.close();
    }
}

pub(super) fn out_of_range(queue: &Queue, offset: i64, (min_offset, max_offset): (i64, i64)) -> StoreError {
    StoreError::OffsetOutOfRange {
        topic: queue.topic.to_string(),
        queue_id: queue.queue_id,
        offset,
        min_offset,
        max_offset,
    }
}
