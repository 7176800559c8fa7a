//! `WorkQueue`: a handle on a work queue, with the rules of Python's `queue.Queue`.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;

use mqstore_base::error::StoreError;
use mqstore_base::message::{Appended, StoredRecord};
use mqstore_base::wake_signal::LOOK;
use mqstore_io::sync::{AtomicBool, Mutex, Ordering};

use super::browse::{DelayInfo, LeaseInfo};
use super::get::GetRequest;
use super::inner::{WorkQueueCounts, WorkQueueInner};
use super::leased_message::{Lease, LeaseNumbers, LeasedMessage};
use super::options::WorkQueueOptions;
use super::put::NewWork;
use super::redrive::DeadLetterEnd;
use super::source::QueuePlace;
use crate::error::{BrokerError, invalid};
use crate::nonblocking::{Look, ReadScope, block_on, lock};

/// Number of leases of one thread above which [`WorkQueue::task_done`] drops those that ended.
const KEPT: usize = 64;

/// Interval at which a put that waits for a quota checks for free space.
const QUOTA_LOOK: Duration = Duration::from_millis(50);

/// A handle on the work queue of a topic for a group. Threads may share it.
///
/// A dropped or closed handle gets and puts nothing more. Its messages stay leased until their leases end.
pub struct WorkQueue {
    pub(super) core: Arc<WorkQueueInner>,
    pub(super) visibility_timeout: Duration,
    /// The generation to which a shutdown applies; see [`Self::shutdown`].
    pub(super) generation: u64,
    closed: AtomicBool,
    /// The unfinished leases of each thread, for [`Self::task_done`].
    got: Mutex<HashMap<ThreadId, ThreadLeases>>,
}

/// The unfinished leases of one thread, oldest first.
#[derive(Default)]
struct ThreadLeases {
    leases: VecDeque<Lease>,
    /// Number of leases at which those that ended are removed.
    cleanup_at: usize,
}

impl ThreadLeases {
    fn push(&mut self, lease: Lease) {
        if self.leases.len() >= self.cleanup_at {
            self.leases.retain(Lease::is_held);
            // The limit doubles, so that the cleanup costs no more than the calls before it.
            self.cleanup_at = KEPT.max(2 * self.leases.len());
        }
        self.leases.push_back(lease);
    }
}

impl WorkQueue {
    pub(crate) fn new(core: Arc<WorkQueueInner>, visibility_timeout: Duration) -> Self {
        let generation = core.generation();
        Self { core, visibility_timeout, generation, closed: AtomicBool::new(false), got: Mutex::default() }
    }

    /// Returns the topic.
    pub fn topic(&self) -> &str {
        self.core.topic()
    }

    /// Returns the group.
    pub fn group(&self) -> &str {
        self.core.group()
    }

    /// Returns the topic of the group's dead letters.
    pub fn dead_letters(&self) -> &str {
        self.core.dead_letter_topic()
    }

    /// Returns the options of this handle.
    pub fn options(&self) -> WorkQueueOptions {
        WorkQueueOptions { visibility_timeout: self.visibility_timeout, ..self.core.options.clone() }
    }

    /// Whether the handle was closed.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(super) fn check(&self) -> Result<(), BrokerError> {
        if self.is_closed() { Err(self.core.shut_down_error()) } else { Ok(()) }
    }

    /// Puts a message in. If the queue is full, waits for at most `timeout`; `None` waits without a limit.
    ///
    /// # Errors
    /// [`BrokerError::Full`], [`BrokerError::ShutDown`], and those of [`mqstore_engine::Store::append`]. A
    /// [`StoreError::Full`] is retried until `timeout` too.
    pub fn put(&self, message: &NewWork<'_>, timeout: Option<Duration>) -> Result<Appended, BrokerError> {
        self.put_all(std::slice::from_ref(message), timeout)?
            .pop()
            .ok_or_else(|| BrokerError::Full { queue: self.core.name().to_owned(), maxsize: 0 })
    }

    /// Puts messages in together, under one lock and with one sync. Waits until all of them fit.
    pub fn put_all(
        &self,
        messages: &[NewWork<'_>],
        timeout: Option<Duration>,
    ) -> Result<Vec<Appended>, BrokerError> {
        let clock = self.core.store().clock();
        let deadline = timeout.map(|timeout| clock.monotonic().saturating_add(timeout));
        loop {
            let left = deadline.map(|deadline| deadline.saturating_sub(clock.monotonic()));
            if let Some(appended) = self.put_once(messages, left.unwrap_or(LOOK))? {
                return Ok(appended);
            }
        }
    }

    /// Like [`Self::put_all`]. Returns `None` if there was no space within `wait`, or earlier. If `wait` is zero, the
    /// error says which limit is reached: [`BrokerError::Full`] or, for a quota, [`StoreError::Full`].
    pub fn put_once(
        &self,
        messages: &[NewWork<'_>],
        wait: Duration,
    ) -> Result<Option<Vec<Appended>>, BrokerError> {
        block_on(&self.core.space, wait, || self.try_put_now(messages, wait))
    }

    fn try_put_now(
        &self,
        messages: &[NewWork<'_>],
        wait: Duration,
    ) -> Result<Look<Vec<Appended>>, BrokerError> {
        let seen = self.core.space.ring_count();
        self.check()?;
        let reserved = self.core.reserve(messages, self.generation, true)?;
        if wait.is_zero() && matches!(reserved, Look::Wait { .. }) {
            return Err(self.full());
        }
        reserved.and_then(|(reservation, delayed)| {
            let appended = self.core.append(messages, &delayed);
            drop(reservation);
            match appended {
                // An expiry frees space without a ring of the signal.
                Err(StoreError::Full { .. }) if !wait.is_zero() => {
                    Ok(Look::Wait { seen, longest: Some(QUOTA_LOOK) })
                }
                appended => Ok(Look::Found(appended?)),
            }
        })
    }

    /// Like [`Self::put_once`], for one message with a unique key that the caller gives. If the topic has a message
    /// with this unique key, appends nothing and returns the position of that message. Puts of one key, by any handle
    /// and thread, wait for each other, so at most one of them appends. The messages themselves are the memory: a key
    /// is known as long as the log has its message, after a stop too.
    ///
    /// # Errors
    /// Those of [`Self::put_once`], and those of look-ups.
    pub fn put_new_once(
        &self,
        message: &NewWork<'_>,
        wait: Duration,
    ) -> Result<Option<Vec<Appended>>, BrokerError> {
        let Some(unique_key) = message.unique_key.filter(|key| !key.is_empty()) else {
            return Err(invalid("dedup_id", "the text is empty").into());
        };
        block_on(&self.core.space, wait, || {
            self.check()?;
            if self.core.is_shut_down(self.generation) {
                return Err(self.core.shut_down_error());
            }
            let _alone = self.core.put_lock(unique_key).lock();
            let Some(mut same) = self.core.same_put(unique_key)? else {
                return self.try_put_now(std::slice::from_ref(message), wait);
            };
            if message.durable && !same.durable {
                self.core.store().flush()?;
                same.durable = true;
            }
            Ok(Look::Found(vec![same]))
        })
    }

    /// Returns the error for a full queue.
    pub fn full(&self) -> BrokerError {
        BrokerError::Full { queue: self.core.name().to_owned(), maxsize: self.core.options.maxsize }
    }

    /// Gets a message and leases it for the visibility timeout. Waits for a message for at most `timeout`; `None`
    /// waits without a limit.
    ///
    /// # Errors
    /// [`BrokerError::Empty`], [`BrokerError::ShutDown`].
    pub fn get(&self, timeout: Option<Duration>) -> Result<LeasedMessage, BrokerError> {
        self.get_many(1, timeout)?.pop().ok_or_else(|| self.empty())
    }

    /// Gets up to `count` messages. Returns none only if `timeout` ends first.
    ///
    /// # Errors
    /// [`BrokerError::ShutDown`].
    pub fn get_many(
        &self,
        count: usize,
        timeout: Option<Duration>,
    ) -> Result<Vec<LeasedMessage>, BrokerError> {
        let clock = self.core.store().clock();
        let deadline = timeout.map(|timeout| clock.monotonic().saturating_add(timeout));
        loop {
            let left = deadline.map(|deadline| deadline.saturating_sub(clock.monotonic()));
            match self.get_once(count, left.unwrap_or(LOOK))? {
                Some(found) if !found.is_empty() || count == 0 => return Ok(found),
                None if left.is_some_and(|left| left.is_zero()) => return Ok(Vec::new()),
                _ => {}
            }
        }
    }

    /// Like [`Self::get_many`], but returns `None` if there is nothing to get, maybe before `wait` ends. If it returns
    /// no messages for a `count` above 0, it stopped early: call it again.
    pub fn get_once(&self, count: usize, wait: Duration) -> Result<Option<Vec<LeasedMessage>>, BrokerError> {
        let request = GetRequest { waits: !wait.is_zero(), ..self.get_request(count, ReadScope::Anywhere) };
        let found = block_on(&self.core.ready, wait, || {
            self.check()?;
            self.core.get(&request)
        })?;
        if let Some([only]) = found.as_deref() {
            self.track_lease(&only.lease);
        }
        Ok(found)
    }

    /// Returns the request of this handle for a caller that may wait for locks but not for messages.
    pub(super) fn get_request(&self, count: usize, scope: ReadScope) -> GetRequest {
        GetRequest {
            count,
            visibility_timeout: self.visibility_timeout,
            generation: self.generation,
            scope,
            patience: true,
            waits: false,
        }
    }

    /// Returns the error for an empty queue.
    pub fn empty(&self) -> BrokerError {
        BrokerError::Empty { queue: self.core.name().to_owned() }
    }

    fn track_lease(&self, lease: &Lease) {
        let mut got = self.got.lock();
        if got.len() >= KEPT && !got.contains_key(&std::thread::current().id()) {
            // Entries of threads that have ended.
            got.retain(|_, own| own.leases.iter().any(Lease::is_held));
        }
        got.entry(std::thread::current().id()).or_default().push(lease.clone());
    }

    /// Acknowledges messages; with `durable` this is durable when the call returns.
    pub fn ack_all<'a>(
        &self,
        leases: impl IntoIterator<Item = &'a Lease>,
        durable: bool,
    ) -> Result<(), BrokerError> {
        for lease in leases {
            lease.ack(false)?;
        }
        if durable {
            self.core.meta().sync(self.core.meta().place())?;
        }
        Ok(())
    }

    /// Returns the lease of a delivery that another handle got, maybe in an earlier process: what a caller knows of it
    /// are its place and its attempt. If the message has another owner now, or none, the verbs of the result say so.
    ///
    /// # Errors
    /// `StoreError::TopicNotFound` if the queue has no such topic or queue id.
    pub fn lease_of(
        &self,
        topic: &str,
        queue_id: i32,
        queue_offset: i64,
        attempt: u32,
    ) -> Result<Lease, BrokerError> {
        let place = {
            let mut state = self.core.state.lock();
            self.core.look_for_queues(&mut state)?;
            let is_it = |place: &QueuePlace| &*place.topic == topic && place.queue_id == queue_id;
            state.sources.iter().find(|source| is_it(&source.place)).map(|source| Arc::clone(&source.place))
        };
        let place = place
            .ok_or_else(|| StoreError::TopicNotFound { topic: topic.to_owned(), queue_id: Some(queue_id) })?;
        let held = place.progress.lock().lease(queue_offset).filter(|held| held.attempt == attempt);
        let numbers = LeaseNumbers {
            offset: queue_offset,
            attempt,
            // No lease has this token.
            token: held.map_or(u64::MAX, |held| held.token),
            invisible_until_ms: held.map_or(0, |held| held.invisible_until_ms),
        };
        Ok(Lease::new(&self.core, &place, numbers))
    }

    /// Acknowledges the oldest unfinished message of this thread, among those that it got one by one.
    ///
    /// # Errors
    /// [`BrokerError::NothingToDo`].
    pub fn task_done(&self) -> Result<(), BrokerError> {
        self.check()?;
        loop {
            let first = {
                let mut got = self.got.lock();
                got.get_mut(&std::thread::current().id()).and_then(|own| own.leases.pop_front())
            };
            // Some were acknowledged or returned by their lease.
            let first = first.ok_or(BrokerError::NothingToDo)?;
            if first.is_held() {
                return first.ack(false);
            }
        }
    }

    /// Waits for at most `timeout` until every message is finished or a dead letter. Returns false on timeout.
    /// After an immediate shutdown, waits only for leased messages.
    pub fn join(&self, timeout: Option<Duration>) -> Result<bool, BrokerError> {
        let clock = self.core.store().clock();
        let deadline = timeout.map(|timeout| clock.monotonic().saturating_add(timeout));
        loop {
            let left = deadline.map(|deadline| deadline.saturating_sub(clock.monotonic()));
            if self.join_once(left.unwrap_or(LOOK))? {
                return Ok(true);
            }
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(false);
            }
        }
    }

    /// Like [`Self::join`], but may return `false` before `wait` ends.
    pub fn join_once(&self, wait: Duration) -> Result<bool, BrokerError> {
        let done = block_on(&self.core.done, wait, || {
            self.check()?;
            self.look_for_end(ReadScope::Anywhere, true)
        })?;
        Ok(done.is_some())
    }

    /// Polls whether [`Self::join`] is over.
    pub(super) fn look_for_end(&self, scope: ReadScope, patience: bool) -> Result<Look<()>, BrokerError> {
        let core = &self.core;
        let seen = core.done.ring_count();
        if !scope.is_at_hand() {
            core.sweep()?;
        } else if !patience && !scope.reaches_end() {
            return Ok(Look::NotAtHand);
        }
        let Some(mut state) = lock(&core.state, patience) else { return Ok(Look::NotAtHand) };
        core.look_for_queues(&mut state)?;
        if scope.is_at_hand() && core.has_dead_letters_to_move(&state) {
            return Ok(Look::NotAtHand);
        }
        if self.is_drained(core.counts(&state)?) {
            return Ok(Look::Found(()));
        }
        // A lease that ends may leave a dead letter. Messages that are already due are left to other callers.
        let longest = core.next_event(&state).filter(|left| !left.is_zero());
        Ok(Look::Wait { seen, longest })
    }

    fn is_drained(&self, counts: WorkQueueCounts) -> bool {
        let held = counts.leased + counts.dying;
        let open = if self.core.is_shut_down_immediately(self.generation) {
            0
        } else {
            counts.ready + counts.delayed
        };
        held + open == 0
    }

    /// Returns the number of messages in each state.
    pub fn counts(&self) -> Result<WorkQueueCounts, BrokerError> {
        let mut state = self.core.state.lock();
        self.core.look_for_queues(&mut state)?;
        self.core.exact_counts(&mut state)
    }

    /// Returns the messages that are due later: returned or put with a delay. The one that is due first is first.
    pub fn delays(&self) -> Result<Vec<DelayInfo>, BrokerError> {
        self.check()?;
        let mut state = self.core.state.lock();
        self.core.look_for_queues(&mut state)?;
        self.core.delays(&mut state)
    }

    /// Returns up to `count` messages that a worker could get now, in log order. Leases none.
    pub fn peek(&self, count: usize) -> Result<Vec<StoredRecord>, BrokerError> {
        self.check()?;
        self.core.peek(count)
    }

    /// Returns the leases of the queue, also those that have ended while no other worker got the message, in the order
    /// in which they end.
    pub fn leases(&self) -> Result<Vec<LeaseInfo>, BrokerError> {
        self.check()?;
        self.core.leases()
    }

    /// Finishes all messages that no worker has: new, waiting and delayed ones, and those whose lease has ended.
    /// Durable when this returns. Returns their number.
    pub fn purge(&self) -> Result<u64, BrokerError> {
        self.check()?;
        self.core.purge()
    }

    /// Returns the number of messages that no worker has, including those that are not due yet.
    pub fn qsize(&self) -> Result<u64, BrokerError> {
        let mut state = self.core.state.lock();
        self.core.look_for_queues(&mut state)?;
        Ok(self.core.size(&state)?)
    }

    /// Shuts down all existing handles of this queue: they refuse further puts, and gets once the queue is empty.
    /// With `immediate`, they refuse gets at once. No message is lost; later handles can get them.
    pub fn shutdown(&self, immediate: bool) {
        self.core.shut_down(immediate);
    }

    /// Cancels a message that no worker has, by its message id or unique id: it is finished without a delivery. Durable
    /// when this returns. Returns whether there was such a message.
    ///
    /// # Errors
    /// [`StoreError::Refused`] if a worker has the message.
    pub fn cancel(&self, id: &str) -> Result<bool, BrokerError> {
        self.check()?;
        self.core.cancel(id)
    }

    /// Like [`Self::cancel`], for the message at an offset of a queue.
    ///
    /// # Errors
    /// Those of [`Self::cancel`].
    pub fn cancel_at(&self, topic: &str, queue_id: i32, queue_offset: i64) -> Result<bool, BrokerError> {
        self.check()?;
        self.core.cancel_at(topic, queue_id, queue_offset)
    }

    /// Redrives the dead letters of the group with these ids, of the job or of the dead letter. Returns their number.
    ///
    /// # Errors
    /// [`StoreError::Refused`] if an id is unknown; nothing was changed then.
    pub fn redrive_ids(&self, ids: &[String]) -> Result<u64, BrokerError> {
        self.check()?;
        self.core.end_dead_letters(ids, DeadLetterEnd::Redriven)
    }

    /// Deletes the dead letters of the group with these ids: they are not redriven. The log keeps them until their
    /// segment goes. Returns their number.
    ///
    /// # Errors
    /// [`StoreError::Refused`] if an id is unknown; nothing was changed then.
    pub fn delete_dead_letters(&self, ids: &[String]) -> Result<u64, BrokerError> {
        self.check()?;
        self.core.end_dead_letters(ids, DeadLetterEnd::Deleted)
    }

    /// Appends up to `limit` dead letters of the group again to their original topics. Returns their number.
    pub fn redrive(&self, limit: Option<u64>) -> Result<u64, BrokerError> {
        self.check()?;
        self.core.redrive(limit)
    }

    /// Closes the handle. A second call changes nothing.
    pub fn close(&self) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            self.got.lock().clear();
            for signal in [&self.core.ready, &self.core.space, &self.core.done] {
                signal.ring();
            }
        }
    }
}

impl fmt::Debug for WorkQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkQueue").field("name", &self.core.name()).finish_non_exhaustive()
    }
}
