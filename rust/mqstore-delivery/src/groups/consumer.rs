//! One consumer: polls the queues that it has in its group, and commits how far it has come.
//!
//! What it promises: messages of a queue come in the order of the queue, each at least once as long as the group commits
//! what it has handled and no more. A commit stores, for each queue, the offset behind the last message that was handed
//! out; it survives the death of the process when the call returns, and a loss of power within the store's interval
//! for metadata, or at once if asked for. The commits of one call are there together or not at all. Offsets only grow,
//! unless a seek or a reset was made.
//!
//! Across threads: calls may come from several; each message goes to one of them. A thread that waits holds no lock.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;
use mqstore_base::wake_signal::{LOOK, Signal};
use mqstore_engine::{Boundary, Store};
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

/// How long a filter that lets nothing pass may keep one look.
const FILTER_TIME: Duration = Duration::from_millis(40);

/// Messages that iteration reads ahead, at first and at most.
const FIRST_AHEAD: usize = 16;
pub(super) const MOST_AHEAD: usize = 512;

/// See the module's text.
pub struct Consumer {
    pub(super) broker: Arc<BrokerState>,
    pub(super) group: Arc<str>,
    /// The group under which offsets are stored; `None` where they are not.
    pub(super) stored_as: Option<Arc<str>>,
    topics: BTreeSet<Arc<str>>,
    pub(super) options: ConsumerOptions,
    pub(super) member: Option<(Arc<Coordinator>, MemberId)>,
    pub(super) signal: Arc<Signal>,
    closed: AtomicBool,
    pub(super) state: Mutex<State>,
    notes: Mutex<Vec<String>>,
}

/// What changes.
#[derive(Default)]
pub(super) struct State {
    pub(super) slots: Vec<AssignedQueue>,
    /// The slot that the next poll begins with.
    turn: usize,
    /// Read ahead for [`Consumer::next`].
    buffer: VecDeque<BufferedMessage>,
    ahead: usize,
    /// The change of owners that `slots` are of.
    pub(super) seen: Option<u64>,
    /// When the topics were looked at for new queues; monotonic.
    pub(super) looked: Option<Duration>,
    /// How many queues there were then.
    pub(super) known: usize,
}

/// A message that was read and not handed out.
struct BufferedMessage {
    slot: usize,
    /// What the consumer's position is once it was handed out.
    next: i64,
    record: StoredRecord,
}

impl Consumer {
    /// A consumer of `topics`, which need not exist yet.
    pub(crate) fn new(
        broker: &Arc<BrokerState>,
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
        let member = (!options.broadcast).then(|| {
            let coordinator = broker.coordinator(group);
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
            notes: Mutex::default(),
        };
        // Its queues are its own from here on, at the offsets where it begins.
        consumer.refresh(&mut consumer.state.lock())?;
        Ok(consumer)
    }

    /// Its group.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// Its topics, sorted.
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

    /// What a person should know, each once: messages that were deleted unread, offsets that were moved back.
    pub fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut self.notes.lock())
    }

    pub(crate) fn note(&self, note: String) {
        self.notes.lock().push(note);
    }

    /// The queues that it has now, sorted.
    pub fn assignment(&self) -> Result<Vec<Queue>, BrokerError> {
        let mut state = self.state.lock();
        if self.is_closed() {
            return Ok(Vec::new());
        }
        self.refresh(&mut state)?;
        Ok(state.slots.iter().map(|slot| slot.queue.clone()).collect())
    }

    /// Up to `max` messages, at least one unless `timeout` passes first; `None` waits for ever.
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

    /// As [`Self::poll`], which may also come back with nothing before `wait` has passed.
    pub fn poll_once(&self, max: usize, wait: Duration) -> Result<Vec<StoredRecord>, BrokerError> {
        let waits = !wait.is_zero();
        let found = block_on(&self.signal, wait, || {
            self.look(ReadScope::Anywhere, true, waits, |state, found| {
                self.collect(state, max, found, ReadScope::Anywhere)
            })
        })?;
        Ok(found.unwrap_or_default())
    }

    /// The next message; `None` when there is none yet, after `wait` or before. Reads ahead.
    pub fn next_once(&self, wait: Duration) -> Result<Option<StoredRecord>, BrokerError> {
        let waits = !wait.is_zero();
        let found = block_on(&self.signal, wait, || {
            self.look(ReadScope::Anywhere, true, waits, |state, found| {
                self.collect_next(state, found, ReadScope::Anywhere)
            })
        })?;
        Ok(found.and_then(|mut found| found.pop()))
    }

    /// One look: `read` brings the messages that are to be handed out. If there are none and the caller waits, the signal
    /// rings when it is time to look again.
    pub(super) fn look(
        &self,
        reach: ReadScope,
        patience: bool,
        waits: bool,
        read: impl FnOnce(&mut State, &mut Vec<StoredRecord>) -> Result<Remaining, BrokerError>,
    ) -> Result<Look<Vec<StoredRecord>>, BrokerError> {
        let seen = self.signal.ring_count();
        let Some(mut state) = lock(&self.state, patience) else { return Ok(Look::NotAtHand) };
        self.check()?;
        if !reach.is_at_hand() {
            self.refresh(&mut state)?;
        } else if !self.has_stable_assignment(&mut state)? {
            return Ok(Look::NotAtHand);
        }
        let mut found = Vec::new();
        let rest = read(&mut state, &mut found)?;
        if found.is_empty() && rest != Remaining::Nothing && reach.is_at_hand() {
            return Ok(Look::NotAtHand);
        }
        if !found.is_empty() || rest != Remaining::Nothing || !waits {
            return Ok(Look::Found(found));
        }
        for slot in &mut state.slots {
            let may_arm = reach.reaches_end() || slot.is_armed();
            if !may_arm || slot.arm(self.store(), &self.signal)? {
                return Ok(Look::NotAtHand);
            }
        }
        Ok(Look::Wait { seen, longest: None })
    }

    /// The next message, none or one; reads ahead.
    pub(super) fn collect_next(
        &self,
        state: &mut State,
        found: &mut Vec<StoredRecord>,
        reach: ReadScope,
    ) -> Result<Remaining, BrokerError> {
        let rest = self.fill(state, reach)?;
        found.extend(self.take_ahead(state));
        Ok(rest)
    }

    /// Reads up to `max` messages to be handed out at once; what is left where none was found.
    pub(super) fn collect(
        &self,
        state: &mut State,
        max: usize,
        found: &mut Vec<StoredRecord>,
        reach: ReadScope,
    ) -> Result<Remaining, BrokerError> {
        // What iteration has read ahead comes first.
        while found.len() < max {
            let Some(record) = self.take_ahead(state) else { break };
            found.push(record);
        }
        self.read(state, max, found, reach, |state, at, found, from| {
            // A queue of which nothing is handed out need not stay.
            if found.len() > from && !self.keeps(state, at) {
                found.truncate(from);
            } else if let Some(slot) = state.slots.get_mut(at) {
                slot.mark_delivered(found.get(from..).and_then(<[_]>::last), slot.scanned);
            }
        })
    }

    /// Reads ahead where nothing is left; what more there is.
    pub(super) fn fill(&self, state: &mut State, reach: ReadScope) -> Result<Remaining, BrokerError> {
        if state.buffer.is_empty() {
            state.ahead = (state.ahead * 4).clamp(FIRST_AHEAD, MOST_AHEAD);
        }
        self.read_ahead(state, state.ahead, reach)
    }

    /// As [`Self::fill`], up to `max` messages.
    pub(super) fn read_ahead(
        &self,
        state: &mut State,
        max: usize,
        reach: ReadScope,
    ) -> Result<Remaining, BrokerError> {
        if !state.buffer.is_empty() {
            return Ok(Remaining::GoesOn);
        }
        self.read(state, max, &mut Vec::new(), reach, |state, at, found, from| {
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

    pub(super) fn take_ahead(&self, state: &mut State) -> Option<StoredRecord> {
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

    /// Has a queue stay here of which messages are about to be handed out, for an ordered consumer; whether it is
    /// still here.
    fn keeps(&self, state: &mut State, at: usize) -> bool {
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

    /// Reads from one queue after the other until there are `max`; `done` is told of each with the place in `found`
    /// where its messages begin. What is left where none was found. A queue that fails does not keep others from being
    /// read, see [`settle`].
    fn read(
        &self,
        state: &mut State,
        max: usize,
        found: &mut Vec<StoredRecord>,
        reach: ReadScope,
        mut done: impl FnMut(&mut State, usize, &mut Vec<StoredRecord>, usize),
    ) -> Result<Remaining, BrokerError> {
        if reach.reaches_end() {
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
                let at = (state.turn + step) % count;
                let from = found.len();
                let at_hand = if reach.is_at_hand() { self.is_at_hand(state, at, reach) } else { Ok(true) };
                if let Ok(false) = at_hand {
                    // It keeps its turn.
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
                    // Asked for by whoever does not go on where messages were lost.
                    Err(error @ BrokerError::Store(StoreError::OffsetOutOfRange { .. })) if total == 0 => {
                        return Err(error);
                    }
                    Err(error) => failures.push((at, error)),
                }
                done(state, at, found, from);
            }
            state.turn = (state.turn + 1).checked_rem(count).unwrap_or(0);
            goes_on |= !failures.is_empty();
            merge_queue_errors(&mut state.slots, failures, total > 0, |slot, error| {
                self.note_failure(slot, error);
            })?;
            if total > 0 || !goes_on || clock.monotonic() >= until {
                return Ok(if goes_on { Remaining::GoesOn } else { Remaining::Nothing });
            }
        }
    }

    /// Notes an error that nobody gets, because other queues had something, once until the queue is well again.
    fn note_failure(&self, slot: &mut AssignedQueue, error: &BrokerError) {
        if !std::mem::replace(&mut slot.failing, true) {
            let (Queue { topic, queue_id }, group) = (&slot.queue, &self.group);
            self.note(format!(
                "group {group}: queue {topic}/{queue_id} gives nothing, others go on: {error}"
            ));
        }
    }

    fn read_queue(
        &self,
        state: &mut State,
        at: usize,
        max: usize,
        found: &mut Vec<StoredRecord>,
    ) -> Result<ReadEnd, BrokerError> {
        let Some(slot) = state.slots.get_mut(at) else { return Ok(ReadEnd::AtEnd) };
        let error = match slot.read(self.store(), self.options.filter.as_ref(), max, found) {
            Err(error) => error,
            read => return Ok(read?),
        };
        let StoreError::OffsetOutOfRange { offset, min_offset, max_offset, .. } = error else {
            return Err(error.into());
        };
        let Queue { topic, queue_id } = &slot.queue;
        let group = &self.group;
        if offset > max_offset {
            // The log has lost its end; what comes next takes these offsets again.
            self.note(format!(
                "group {group}: the offset {offset} in queue {topic}/{queue_id} is behind the queue's end {max_offset}; \
                 the group goes on there"
            ));
            slot.sought = true;
            slot.move_to(max_offset);
            return Ok(ReadEnd::AtEnd);
        }
        if self.options.on_lost == LostMessagePolicy::Fail {
            return Err(error.into());
        }
        self.note(format!(
            "group {group}: messages {offset} to {min_offset} of queue {topic}/{queue_id} were deleted before the group \
             read them; it goes on at {min_offset}"
        ));
        slot.move_to(min_offset);
        Ok(ReadEnd::GoesOn)
    }

    /// Takes up what has changed: queues that came, queues that went to others.
    pub(super) fn refresh(&self, state: &mut State) -> Result<(), BrokerError> {
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

    /// The queues that its topics have.
    pub(super) fn queues(&self) -> Result<Vec<Queue>, BrokerError> {
        let mut queues = Vec::new();
        for topic in &self.topics {
            let ids = self.store().queue_ids(topic)?;
            queues.extend(ids.into_iter().map(|queue_id| Queue { topic: Arc::clone(topic), queue_id }));
        }
        Ok(queues)
    }

    fn look_for_queues(&self, state: &mut State) -> Result<(), BrokerError> {
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

    /// Makes `owned` the queues that it has: keeps those that it had, and begins with the others.
    fn take_over(&self, state: &mut State, owned: Vec<(Queue, u64)>) -> Result<(), BrokerError> {
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
        state.turn = 0;
        Ok(())
    }

    /// Where a group begins elsewhere than at the first message is stored at once: it must begin there the next time
    /// too, whatever came in between.
    fn store_start_offsets(&self, slots: &[AssignedQueue]) -> Result<(), BrokerError> {
        if self.stored_as.is_none() || self.options.start == StartOffset::Earliest {
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

    /// A queue that it has from now on, at the group's offset, or where a new group begins.
    fn begin(&self, queue: Queue, generation: u64) -> Result<AssignedQueue, BrokerError> {
        let (store, meta) = (self.store(), self.meta());
        let stored_as = self.stored_as.as_deref().unwrap_or(&self.group);
        let key = meta.queue_key(stored_as, &queue.topic, queue.queue_id)?;
        let stored = self.stored_as.as_ref().and_then(|_| meta.offset(key)).filter(|offset| *offset >= 0);
        if let Some(offset) = stored {
            return Ok(AssignedQueue::new(queue, key, generation, offset));
        }
        // A queue that came later begins at its first message, wherever the group began in the topic.
        let knows_topic = self.stored_as.is_some()
            && meta.offsets(key.group).iter().any(|change| change.queue.topic == key.topic);
        let start = if knows_topic { StartOffset::Earliest } else { self.options.start };
        let (min, max) = store.bounds(&queue.topic, queue.queue_id)?;
        let position = match start {
            StartOffset::Earliest => min,
            StartOffset::Latest => max,
            StartOffset::Time(ms) => {
                store.offset_for_time(&queue.topic, queue.queue_id, ms, Boundary::Lower)?.max(min)
            }
        };
        Ok(AssignedQueue::new(queue, key, generation, position))
    }

    /// Where in `state` a queue that it has is.
    pub(super) fn slot(&self, state: &State, queue: &Queue) -> Result<usize, BrokerError> {
        state.slots.iter().position(|slot| slot.queue == *queue).ok_or_else(|| BrokerError::NotAssigned {
            group: self.group.to_string(),
            topic: queue.topic.to_string(),
            queue_id: queue.queue_id,
        })
    }

    /// Gives its queues to the others of its group; what was handed out and not committed comes again. Closing twice is
    /// no error.
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

impl State {
    /// Forgets what was read ahead; it is read again.
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
