//! `WorkQueue`: a handle on a work queue, with the rules of Python's `queue.Queue`.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;

use mqstore_base::error::StoreError;
use mqstore_base::message::Appended;
use mqstore_base::wake_signal::LOOK;
use mqstore_io::sync::{AtomicBool, Mutex, Ordering};

use super::get::GetRequest;
use super::inner::{WorkQueueCounts, WorkQueueInner};
use super::leased_message::{Lease, LeasedMessage};
use super::options::WorkQueueOptions;
use super::put::NewWork;
use crate::error::BrokerError;
use crate::nonblocking::{Look, ReadScope, block_on, lock};

/// Leases of one thread that are kept for [`WorkQueue::task_done`] before those that ended are looked for.
const KEPT: usize = 64;

/// How often a put that waits for a quota looks whether there is room.
const QUOTA_LOOK: Duration = Duration::from_millis(50);

/// A handle on the work queue of a topic for a group. Threads may share it.
///
/// Dropped or closed, it gets and puts nothing more; what was got by it stays leased until its time is over.
pub struct WorkQueue {
    pub(super) core: Arc<WorkQueueInner>,
    pub(super) invisible: Duration,
    /// What is shut down with it: see [`Self::shutdown`].
    pub(super) generation: u64,
    closed: AtomicBool,
    /// What each thread got and has not finished, for [`Self::task_done`].
    got: Mutex<HashMap<ThreadId, ThreadLeases>>,
}

/// What one thread got and has not finished, the oldest first.
#[derive(Default)]
struct ThreadLeases {
    leases: VecDeque<Lease>,
    /// How many there may be before those that ended are looked for.
    room: usize,
}

impl ThreadLeases {
    fn push(&mut self, lease: Lease) {
        if self.leases.len() >= self.room {
            self.leases.retain(Lease::is_held);
            // Twice as many, so that a look costs no more than the calls before it.
            self.room = KEPT.max(2 * self.leases.len());
        }
        self.leases.push_back(lease);
    }
}

impl WorkQueue {
    pub(crate) fn new(core: Arc<WorkQueueInner>, invisible: Duration) -> Self {
        let generation = core.generation();
        Self { core, invisible, generation, closed: AtomicBool::new(false), got: Mutex::default() }
    }

    /// The topic.
    pub fn topic(&self) -> &str {
        self.core.topic()
    }

    /// The group.
    pub fn group(&self) -> &str {
        self.core.group()
    }

    /// The topic of the group's dead letters.
    pub fn dead_letters(&self) -> &str {
        self.core.dead_letter_topic()
    }

    /// What it was opened with.
    pub fn options(&self) -> WorkQueueOptions {
        WorkQueueOptions { invisible: self.invisible, ..self.core.options.clone() }
    }

    /// What a person should know, each once.
    pub fn take_notes(&self) -> Vec<String> {
        self.core.take_notes()
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(super) fn check(&self) -> Result<(), BrokerError> {
        if self.is_closed() { Err(self.core.shut_down_error()) } else { Ok(()) }
    }

    /// Puts a message in. Without room it waits, at most `timeout`; `None` waits for ever.
    ///
    /// # Errors
    /// [`BrokerError::Full`], [`BrokerError::ShutDown`]; whatever [`mqstore_engine::Store::append`] says, of which
    /// [`StoreError::Full`] is waited for too.
    pub fn put(&self, message: &NewWork<'_>, timeout: Option<Duration>) -> Result<Appended, BrokerError> {
        self.put_all(std::slice::from_ref(message), timeout)?
            .pop()
            .ok_or_else(|| BrokerError::Full { queue: self.core.name().to_owned(), maxsize: 0 })
    }

    /// Puts messages in together, under one lock and with one sync; waits until there is room for all of them.
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
            if left.is_some_and(|left| left.is_zero()) {
                return Err(self.full());
            }
        }
    }

    /// As [`Self::put_all`]; `None` when there was no room within `wait`, or before. With no time to wait, a quota that is
    /// used up is the store's error, [`StoreError::Full`].
    pub fn put_once(
        &self,
        messages: &[NewWork<'_>],
        wait: Duration,
    ) -> Result<Option<Vec<Appended>>, BrokerError> {
        block_on(&self.core.room, wait, || {
            let seen = self.core.room.ring_count();
            self.check()?;
            let (reservation, delayed) = match self.core.reserve(messages, self.generation, true)? {
                Look::Found(reserved) => reserved,
                other => return Ok(other.map(|_| Vec::new())),
            };
            let appended = self.core.append(messages, &delayed);
            drop(reservation);
            match appended {
                // An expiry frees room and rings for nobody.
                Err(StoreError::Full { .. }) if !wait.is_zero() => {
                    Ok(Look::Wait { seen, longest: Some(QUOTA_LOOK) })
                }
                appended => Ok(Look::Found(appended?)),
            }
        })
    }

    /// The error for no room.
    pub fn full(&self) -> BrokerError {
        BrokerError::Full { queue: self.core.name().to_owned(), maxsize: self.core.options.maxsize }
    }

    /// Gets a message, and has it alone for the time that it is out of sight. Waits for one, at most `timeout`; `None`
    /// waits for ever.
    ///
    /// # Errors
    /// [`BrokerError::Empty`], [`BrokerError::ShutDown`].
    pub fn get(&self, timeout: Option<Duration>) -> Result<LeasedMessage, BrokerError> {
        self.get_many(1, timeout)?.pop().ok_or_else(|| self.empty())
    }

    /// Gets up to `count` messages, at least one unless `timeout` passes first.
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
            let found = self.get_once(count, left.unwrap_or(LOOK))?;
            if !found.is_empty() || count == 0 || left.is_some_and(|left| left.is_zero()) {
                return Ok(found);
            }
        }
    }

    /// As [`Self::get_many`], which may also come back with nothing before `wait` has passed.
    pub fn get_once(&self, count: usize, wait: Duration) -> Result<Vec<LeasedMessage>, BrokerError> {
        let request = GetRequest { waits: !wait.is_zero(), ..self.get_request(count, ReadScope::Anywhere) };
        let found = block_on(&self.core.ready, wait, || {
            self.check()?;
            self.core.get(&request)
        })?;
        let found = found.unwrap_or_default();
        if let [only] = found.as_slice() {
            self.track_lease(&only.lease);
        }
        Ok(found)
    }

    /// What a get of this handle wants, of a caller that has patience and does not wait.
    pub(super) fn get_request(&self, count: usize, reach: ReadScope) -> GetRequest {
        GetRequest {
            count,
            invisible: self.invisible,
            generation: self.generation,
            reach,
            patience: true,
            waits: false,
        }
    }

    /// The error for nothing to get.
    pub fn empty(&self) -> BrokerError {
        BrokerError::Empty { queue: self.core.name().to_owned() }
    }

    fn track_lease(&self, lease: &Lease) {
        let mut got = self.got.lock();
        if got.len() >= KEPT && !got.contains_key(&std::thread::current().id()) {
            // Threads that have ended.
            got.retain(|_, own| own.leases.iter().any(Lease::is_held));
        }
        got.entry(std::thread::current().id()).or_default().push(lease.clone());
    }

    /// Finishes a message: it is not delivered again. On the disk within the store's interval for metadata, or, with
    /// `durable`, when this returns. To finish one again changes nothing.
    ///
    /// # Errors
    /// [`BrokerError::LeaseLost`] when somebody else got it meanwhile, or it was given back.
    pub fn ack(&self, lease: &Lease, durable: bool) -> Result<(), BrokerError> {
        lease.ack(durable)
    }

    /// Finishes messages; with `durable` they are on the disk when this returns.
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

    /// Gives a message back, to be delivered again after `delay`, or after what the back-off says. One that was
    /// delivered as often as it may be goes to the dead letters.
    ///
    /// # Errors
    /// [`BrokerError::LeaseLost`].
    pub fn nack(&self, lease: &Lease, delay: Option<Duration>) -> Result<(), BrokerError> {
        lease.nack(delay)
    }

    /// Keeps a message for `time` from now.
    ///
    /// # Errors
    /// [`BrokerError::LeaseLost`].
    pub fn extend(&self, lease: &Lease, time: Duration) -> Result<(), BrokerError> {
        lease.extend(time)
    }

    /// Finishes the message that this thread got first of those that it has, of those got one by one.
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
            // Some were finished or given back by name.
            let first = first.ok_or(BrokerError::NothingToDo)?;
            if first.is_held() {
                return first.ack(false);
            }
        }
    }

    /// Waits until every message that was put is finished, or a dead letter; at most `timeout`; whether that is so.
    /// After a shutdown at once it waits for what somebody has only.
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

    /// As [`Self::join`]; may come back with `false` before `wait` has passed.
    pub fn join_once(&self, wait: Duration) -> Result<bool, BrokerError> {
        let done = block_on(&self.core.done, wait, || {
            self.check()?;
            self.look_for_end(ReadScope::Anywhere, true)
        })?;
        Ok(done.is_some())
    }

    /// One look whether [`Self::join`] is over.
    pub(super) fn look_for_end(&self, reach: ReadScope, patience: bool) -> Result<Look<()>, BrokerError> {
        let core = &self.core;
        let seen = core.done.ring_count();
        if !reach.is_at_hand() {
            core.sweep()?;
        } else if !patience && !reach.reaches_end() {
            return Ok(Look::NotAtHand);
        }
        let Some(mut state) = lock(&core.state, patience) else { return Ok(Look::NotAtHand) };
        core.look_for_queues(&mut state)?;
        if reach.is_at_hand() && core.has_dead_letters_to_move(&state) {
            return Ok(Look::NotAtHand);
        }
        if self.is_drained(core.counts(&state)?) {
            return Ok(Look::Found(()));
        }
        // A lease that ends may leave a dead letter. What is due by now is for others to get.
        let longest = core.next_event(&state).filter(|left| !left.is_zero());
        Ok(Look::Wait { seen, longest })
    }

    /// Whether nothing is left to wait for.
    fn is_drained(&self, counts: WorkQueueCounts) -> bool {
        let held = counts.leased + counts.dying;
        let rest = if self.core.is_shut_down_immediately(self.generation) {
            0
        } else {
            counts.ready + counts.delayed
        };
        held + rest == 0
    }

    /// How many messages are where.
    pub fn counts(&self) -> Result<WorkQueueCounts, BrokerError> {
        let mut state = self.core.state.lock();
        self.core.look_for_queues(&mut state)?;
        self.core.counts(&state)
    }

    /// How many messages are in the queue that nobody has; those included that are not due yet.
    pub fn qsize(&self) -> Result<u64, BrokerError> {
        let mut state = self.core.state.lock();
        self.core.look_for_queues(&mut state)?;
        Ok(self.core.size(&state)?)
    }

    /// Refuses further puts on every handle of this queue that was made up to now, and gets once nothing is left; with
    /// `immediate` gets too. Nothing is lost: what is in the queue is there for handles that are made later.
    pub fn shutdown(&self, immediate: bool) {
        self.core.shut_down(immediate);
    }

    /// Puts up to `limit` dead letters of the group back into the topics that they came from; how many.
    pub fn redrive(&self, limit: Option<u64>) -> Result<u64, BrokerError> {
        self.check()?;
        self.core.redrive(limit)
    }

    /// Lets go of the queue. Closing twice is no error.
    pub fn close(&self) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            self.got.lock().clear();
            for signal in [&self.core.ready, &self.core.room, &self.core.done] {
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
