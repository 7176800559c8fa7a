//! A work queue, alone or shared: the same methods for both.
//!
//! In the owner, a shared queue is the façade's own. In a client, each verb is a call. A delivered message keeps its
//! lease when the owner changes: the name of the lease is its place and its attempt, and the next owner finds it in the
//! saved state.

use std::collections::{HashMap, VecDeque};
use std::thread::ThreadId;
use std::time::Duration;

use mqstore::delivery::{DelayInfo, LeaseInfo, Signal, TryPut, TryResult, Waker, WorkQueueCounts};
use mqstore::io::sync::{Arc, AtomicBool, Mutex, Ordering};
use mqstore::message::{Appended, StoredRecord};
use mqstore::options::DamagePolicy;
use mqstore::{Error, NewWork, Store, WorkQueueOptions};

use super::call::{Call, SLICE, Waiting, answer};
use super::handle::{Handle, Local, Opening, odd};
use super::keyed::{Keyed, Part};
use super::lease::{Lease, LeasedMessage, SharedLease};
use super::responses::{count, done, flag, stored};
use super::{Inner, SharedStore};
use crate::client::encoded::Encoded;
use crate::deadline::Deadline;
use crate::service::verbs;
use crate::wire::request::{QueueOptions, QueueVerb, Request, WaitMs};
use crate::wire::response::{Delivery, Response};

/// Number of threads whose leases are kept for `task_done`.
const KEPT: usize = 64;

/// A work queue.
pub enum WorkQueue {
    /// Of a store that this process alone has open.
    Own(mqstore::WorkQueue),
    /// Of a shared store.
    Shared(Arc<SharedQueue>),
}

/// A work queue of a shared store.
pub struct SharedQueue {
    handle: Arc<Handle>,
    topic: String,
    group: String,
    dead_letters: String,
    options: WorkQueueOptions,
    closed: AtomicBool,
    /// What each thread got one by one and may finish with `task_done`.
    got: Mutex<HashMap<ThreadId, VecDeque<Lease>>>,
    polls: Mutex<LoopPolls>,
    /// Rings when a poll of an event loop has its answer.
    ready: Arc<Signal>,
}

/// The polls of event loops: at most one of each kind is on its way.
#[derive(Default)]
struct LoopPolls {
    get: Option<Call>,
    join: Option<Call>,
    /// Whether the next `prepare` ends the poll.
    ends: bool,
    /// Whether `prepare` has asked the owner for a call that does not wait.
    asked: bool,
    /// Messages that no call has taken yet.
    found: VecDeque<Delivery>,
}

/// How a queue opens itself at an owner.
struct OpenQueue {
    topic: String,
    group: Option<String>,
    options: WorkQueueOptions,
    names: Arc<Mutex<Option<(String, String)>>>,
}

impl OpenQueue {
    fn wire_options(&self) -> QueueOptions {
        QueueOptions {
            visibility_timeout_ms: self.options.visibility_timeout.as_millis() as u64,
            max_attempts: self.options.max_attempts,
            maxsize: self.options.maxsize,
            skips_damage: self.options.on_damage == DamagePolicy::Skip,
            follows: self.options.follows,
        }
    }
}

impl Opening for OpenQueue {
    fn request(&self, number: u64) -> Encoded {
        Encoded::new(&Request::OpenQueue(number, &self.topic, self.group.as_deref(), self.wire_options()))
    }

    fn open(&self, store: &Store) -> Result<Local, Error> {
        let queue = verbs::open_queue(store, &self.topic, self.group.as_deref(), &self.wire_options())?;
        *self.names.lock() = Some((queue.group().to_owned(), queue.dead_letters().to_owned()));
        Ok(Local::Queue(Arc::new(queue)))
    }

    fn opened(&self, response: &Response) {
        if let Response::Opened(group, dead_letters) = response {
            *self.names.lock() = Some((group.clone(), dead_letters.clone()));
        }
    }
}

impl SharedStore {
    /// Opens a work queue; see [`mqstore::Store::work_queue`]. `None` as the group is the default group.
    ///
    /// # Errors
    /// Those of [`mqstore::delivery::Broker::work_queue`].
    pub fn work_queue(
        &self,
        topic: &str,
        group: Option<&str>,
        options: WorkQueueOptions,
    ) -> Result<WorkQueue, Error> {
        let names = Arc::default();
        let opening = OpenQueue {
            topic: topic.to_owned(),
            group: group.map(str::to_owned),
            options: options.clone(),
            names: Arc::clone(&names),
        };
        let handle = Handle::new(&self.0, Box::new(opening));
        handle.open(SLICE)?;
        let (group, dead_letters) = names.lock().clone().ok_or_else(odd)?;
        Ok(WorkQueue::Shared(Arc::new(SharedQueue {
            handle,
            topic: topic.to_owned(),
            group,
            dead_letters,
            options,
            closed: AtomicBool::new(false),
            got: Mutex::default(),
            polls: Mutex::default(),
            ready: Arc::default(),
        })))
    }
}

fn wait_ms(wait: Option<Duration>) -> WaitMs {
    wait.map(|wait| wait.as_millis().try_into().unwrap_or(u64::MAX))
}

impl SharedQueue {
    fn inner(&self) -> &Arc<Inner> {
        &self.handle.inner
    }

    fn name(&self) -> String {
        format!("work queue {} of group {}", self.topic, self.group)
    }

    fn check(&self) -> Result<(), Error> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::ShutDown { queue: self.name() });
        }
        Ok(())
    }

    /// Returns the façade's queue if this process is the owner.
    fn local(&self) -> Result<Option<Arc<mqstore::WorkQueue>>, Error> {
        self.check()?;
        match self.handle.local()? {
            Some(Local::Queue(queue)) => Ok(Some(queue)),
            _ => Ok(None),
        }
    }

    fn call(&self, verb: QueueVerb<'_>, wait_ms: Option<WaitMs>) -> Result<Call, Error> {
        self.check()?;
        let request = Request::Queue(self.handle.number, verb);
        Ok(Call::new(self.inner(), Some(&self.handle), &request, wait_ms))
    }

    fn verb(&self, verb: QueueVerb<'_>) -> Result<Response, Error> {
        answer(self.call(verb, None)?)
    }

    fn messages(&self, found: impl IntoIterator<Item = Delivery>) -> Result<Vec<LeasedMessage>, Error> {
        let one = |delivery: Delivery| {
            let record = delivery.record.clone().stored().ok_or_else(odd)?;
            let lease = Lease::shared(&self.handle, &delivery, &record, self.options.max_attempts)?;
            Ok(LeasedMessage { record, lease })
        };
        found.into_iter().map(one).collect()
    }

    fn leased(&self, response: Response) -> Result<Vec<LeasedMessage>, Error> {
        let Response::Leased(found) = response else { return Err(odd()) };
        let found = self.messages(found)?;
        if let [only] = found.as_slice() {
            self.track(&only.lease);
        }
        Ok(found)
    }

    fn track(&self, lease: &Lease) {
        let mut got = self.got.lock();
        let thread = std::thread::current().id();
        if got.len() >= KEPT && !got.contains_key(&thread) {
            got.retain(|_, own| own.iter().any(|lease| !lease.is_settled()));
        }
        got.entry(thread).or_default().push_back(lease.clone());
    }

    /// Polls for an event loop; see [`mqstore::WorkQueue::try_get`].
    fn try_get(
        self: &Arc<Self>,
        count: usize,
        waker: Option<Waker>,
    ) -> Result<TryResult<Vec<LeasedMessage>>, Error> {
        self.check()?;
        let seen = self.ready.ring_count();
        let mut polls = self.polls.lock();
        polls.take_answer()?;
        if !polls.found.is_empty() || polls.asked {
            polls.asked = false;
            let count = count.min(polls.found.len());
            let found: Vec<_> = polls.found.drain(..count).collect();
            drop(polls);
            return Ok(TryResult::Found(self.messages(found)?));
        }
        let Some(waker) = waker else {
            polls.ends = true;
            return Ok(TryResult::Prepare);
        };
        if polls.get.is_none() {
            polls.get = Some(self.call(QueueVerb::Get { count: count as u32, wait_ms: None }, Some(None))?);
        }
        let ready = Arc::clone(&self.ready);
        let is_waiting = match &mut polls.get {
            // Sends it, if an owner is at hand.
            Some(call) => {
                call.look(Duration::ZERO)?;
                call.call_when_done(Box::new(move || ready.ring()))
            }
            None => false,
        };
        drop(polls);
        if !is_waiting {
            return Ok(TryResult::Prepare);
        }
        let guard = PollGuard { queue: Arc::downgrade(self), was_called: false };
        let call: Waker = Box::new(move || {
            let mut guard = guard;
            guard.was_called = true;
            waker();
        });
        let listening = self.ready.listen(seen, call);
        Ok(listening.map_or(TryResult::Prepare, |listening| TryResult::Wait { listening, longest: None }))
    }

    /// Returns messages that a poll got from an earlier owner, now that this process is the owner.
    fn left_over(&self, count: usize) -> Result<Option<Vec<LeasedMessage>>, Error> {
        let mut polls = self.polls.lock();
        polls.take_answer()?;
        (polls.get, polls.join) = (None, None);
        let count = count.min(polls.found.len());
        let found: Vec<_> = polls.found.drain(..count).collect();
        drop(polls);
        let found = self.messages(found)?;
        Ok((!found.is_empty()).then_some(found))
    }

    /// In a thread: waits until a poll is on its way, or ends it for a caller that waits no more.
    fn prepare(&self, count: usize) -> Result<(), Error> {
        let mut polls = self.polls.lock();
        if std::mem::take(&mut polls.ends) {
            let call = match polls.get.take() {
                Some(mut call) => {
                    call.end_wait();
                    call
                }
                None => self.call(QueueVerb::Get { count: count as u32, wait_ms: Some(0) }, Some(Some(0)))?,
            };
            drop(polls);
            let response = answer(call)?;
            let mut polls = self.polls.lock();
            polls.add(response);
            polls.asked = true;
            return Ok(());
        }
        let Some(mut call) = polls.get.take() else { return Ok(()) };
        drop(polls);
        // Opens the queue at a new owner, and sends the poll.
        call.look(SLICE)?;
        self.polls.lock().get = Some(call);
        Ok(())
    }

    fn try_join(self: &Arc<Self>, waker: Option<Waker>) -> Result<TryResult<bool>, Error> {
        self.check()?;
        let seen = self.ready.ring_count();
        let mut polls = self.polls.lock();
        let Some(waker) = waker else { return Ok(TryResult::Found(false)) };
        if polls.join.is_none() {
            polls.join = Some(self.call(QueueVerb::Join(None), Some(None))?);
        }
        let Some(call) = &mut polls.join else { return Ok(TryResult::Prepare) };
        let response = call.arrived()?;
        call.look(Duration::ZERO)?;
        let ready = Arc::clone(&self.ready);
        let is_waiting = response.is_none() && call.call_when_done(Box::new(move || ready.ring()));
        if let Some(response) = response {
            polls.join = None;
            return match response {
                Response::Flag(is_done) => Ok(TryResult::Found(is_done)),
                _ => Err(odd()),
            };
        }
        drop(polls);
        if !is_waiting {
            return Ok(TryResult::Prepare);
        }
        let listening = self.ready.listen(seen, waker);
        Ok(listening.map_or(TryResult::Prepare, |listening| TryResult::Wait { listening, longest: None }))
    }

    /// Ends the poll of a task that waits no more, so that the owner gives it no message.
    fn end_poll(&self) {
        if let Some(call) = &mut self.polls.lock().get {
            call.end_wait();
        }
    }

    fn close(&self) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        let polls = std::mem::take(&mut *self.polls.lock());
        for delivery in polls.found {
            let left = self.messages([delivery]).unwrap_or_default();
            // A message that stays leased comes again when its time is over.
            let _ = left.iter().try_for_each(|message| message.lease.nack_with(Some(Duration::ZERO), None));
        }
        self.ready.ring();
        self.handle.close();
    }
}

impl LoopPolls {
    fn add(&mut self, response: Response) {
        if let Response::Leased(found) = response {
            self.found.extend(found);
        }
    }

    fn take_answer(&mut self) -> Result<(), Error> {
        if let Some(call) = &mut self.get
            && let Some(response) = call.arrived()?
        {
            self.get = None;
            self.add(response);
        }
        Ok(())
    }
}

/// Belongs to a waiting task: if it is dropped without a call, the task was cancelled.
struct PollGuard {
    queue: std::sync::Weak<SharedQueue>,
    was_called: bool,
}

impl Drop for PollGuard {
    fn drop(&mut self) {
        if !self.was_called
            && let Some(queue) = self.queue.upgrade()
        {
            queue.end_poll();
        }
    }
}

/// Calls a method of the façade's queue, in a store of its own or in the owner; in a client makes a call and converts
/// the response.
macro_rules! either {
    ($self:ident, |$queue:ident| $here:expr, $verb:expr, $convert:expr) => {
        match $self {
            Self::Own($queue) => $here,
            Self::Shared(shared) => match shared.local()? {
                Some($queue) => $here,
                None => $convert(shared.verb($verb)?),
            },
        }
    };
}

impl WorkQueue {
    /// The topic.
    pub fn topic(&self) -> &str {
        match self {
            Self::Own(queue) => queue.topic(),
            Self::Shared(shared) => &shared.topic,
        }
    }

    /// The group.
    pub fn group(&self) -> &str {
        match self {
            Self::Own(queue) => queue.group(),
            Self::Shared(shared) => &shared.group,
        }
    }

    /// The topic of the dead letters.
    pub fn dead_letters(&self) -> &str {
        match self {
            Self::Own(queue) => queue.dead_letters(),
            Self::Shared(shared) => &shared.dead_letters,
        }
    }

    /// The options of this handle.
    pub fn options(&self) -> WorkQueueOptions {
        match self {
            Self::Own(queue) => queue.options(),
            Self::Shared(shared) => shared.options.clone(),
        }
    }

    /// Whether the handle was closed.
    pub fn is_closed(&self) -> bool {
        match self {
            Self::Own(queue) => queue.is_closed(),
            Self::Shared(shared) => shared.closed.load(Ordering::Acquire),
        }
    }

    /// Puts messages, waiting for space until `timeout`; see [`mqstore::WorkQueue::put_once`]. With `new_only`, one
    /// message whose unique key is new; see [`mqstore::WorkQueue::put_new_once`].
    ///
    /// # Errors
    /// Those of the put.
    pub fn put<'a>(
        &'a self,
        work: &'a [NewWork<'a>],
        new_only: bool,
        timeout: Option<Duration>,
    ) -> Result<Waiting<'a, Vec<Appended>>, Error> {
        let until = Deadline::after(timeout);
        let here = move |queue: &mqstore::WorkQueue, slice: Duration| match work {
            [one] if new_only => queue.put_new_once(one, until.left(slice)),
            all => queue.put_once(all, until.left(slice)),
        };
        let shared = match self {
            Self::Own(queue) => return Ok(Waiting::Here(Box::new(move |slice| here(queue, slice)))),
            Self::Shared(shared) => shared,
        };
        if let Some(queue) = shared.local()? {
            return Ok(Waiting::Here(Box::new(move |slice| here(&queue, slice))));
        }
        let keyed = Keyed::new(shared.inner(), work.iter().map(Part::from));
        let first = work.first();
        let verb = QueueVerb::Put {
            messages: keyed.messages(),
            delay_ms: first.and_then(|work| work.delay).map(|delay| delay.as_micros().div_ceil(1000) as u64),
            deliver_at_ms: first.and_then(|work| work.deliver_at_ms),
            durable: first.is_some_and(|work| work.durable),
            new_only,
            wait_ms: wait_ms(timeout),
        };
        let call = shared.call(verb, Some(wait_ms(timeout)))?;
        let convert = move |response| match response {
            Response::Appended(positions) => Ok(keyed.results(positions)),
            _ => Err(odd()),
        };
        Ok(Waiting::There(Box::new(call), Box::new(convert)))
    }

    /// Gets up to `count` messages, waiting for the first until `timeout`; see [`mqstore::WorkQueue::get_once`]. The
    /// result is empty if the time is over.
    ///
    /// # Errors
    /// Those of the get.
    pub fn get(
        &self,
        count: usize,
        timeout: Option<Duration>,
    ) -> Result<Waiting<'_, Vec<LeasedMessage>>, Error> {
        let until = Deadline::after(timeout);
        let here = move |queue: &mqstore::WorkQueue, slice: Duration| {
            let is_over = until.is_over();
            let found = match queue.get_once(count, until.left(slice))? {
                // It stopped early, at messages that nobody gets.
                Some(found) if found.is_empty() && count > 0 => None,
                None => is_over.then(Vec::new),
                found => found,
            };
            Ok(found.map(|found| found.into_iter().map(LeasedMessage::from).collect()))
        };
        let shared = match self {
            Self::Own(queue) => return Ok(Waiting::Here(Box::new(move |slice| here(queue, slice)))),
            Self::Shared(shared) => shared,
        };
        if let Some(queue) = shared.local()? {
            return Ok(Waiting::Here(Box::new(move |slice| here(&queue, slice))));
        }
        let verb = QueueVerb::Get { count: count as u32, wait_ms: wait_ms(timeout) };
        let call = shared.call(verb, Some(wait_ms(timeout)))?;
        Ok(Waiting::There(Box::new(call), Box::new(|response| shared.leased(response))))
    }

    /// Waits until all messages are finished; see [`mqstore::WorkQueue::join`]. False if the time is over.
    ///
    /// # Errors
    /// Those of the join.
    pub fn join(&self, timeout: Option<Duration>) -> Result<Waiting<'_, bool>, Error> {
        let until = Deadline::after(timeout);
        let here = move |queue: &mqstore::WorkQueue, slice: Duration| {
            let is_done = queue.join_once(until.left(slice))?;
            let is_over = until.is_over();
            Ok((is_done || is_over).then_some(is_done))
        };
        let shared = match self {
            Self::Own(queue) => return Ok(Waiting::Here(Box::new(move |slice| here(queue, slice)))),
            Self::Shared(shared) => shared,
        };
        if let Some(queue) = shared.local()? {
            return Ok(Waiting::Here(Box::new(move |slice| here(&queue, slice))));
        }
        let call = shared.call(QueueVerb::Join(wait_ms(timeout)), Some(wait_ms(timeout)))?;
        Ok(Waiting::There(Box::new(call), Box::new(flag)))
    }

    /// Returns the error for an empty queue.
    pub fn empty(&self) -> Error {
        match self {
            Self::Own(queue) => queue.empty(),
            Self::Shared(shared) => Error::Empty { queue: shared.name() },
        }
    }

    /// Acknowledges messages; see [`mqstore::WorkQueue::ack_all`].
    ///
    /// # Errors
    /// Those of [`Lease::ack`].
    pub fn ack_all<'a>(
        &self,
        leases: impl IntoIterator<Item = &'a Lease>,
        durable: bool,
    ) -> Result<(), Error> {
        let mut shared = Vec::new();
        for lease in leases {
            match lease {
                Lease::Own(lease) => lease.ack(durable)?,
                Lease::Shared(lease) => shared.push(lease),
            }
        }
        SharedLease::ack_all(&shared, durable)
    }

    /// Acknowledges the oldest unfinished message that this thread got alone.
    ///
    /// # Errors
    /// [`Error::NothingToDo`].
    pub fn task_done(&self) -> Result<(), Error> {
        let shared = match self {
            Self::Own(queue) => return queue.task_done(),
            Self::Shared(shared) => shared,
        };
        if let Some(queue) = shared.local()?
            && !matches!(queue.task_done(), Err(Error::NothingToDo))
        {
            return Ok(());
        }
        loop {
            let thread = std::thread::current().id();
            let first = shared.got.lock().get_mut(&thread).and_then(VecDeque::pop_front);
            let first = first.ok_or(Error::NothingToDo)?;
            if !first.is_settled() && first.is_held()? {
                return first.ack(false);
            }
        }
    }

    /// See [`mqstore::WorkQueue::counts`].
    ///
    /// # Errors
    /// Those of the façade.
    pub fn counts(&self) -> Result<WorkQueueCounts, Error> {
        either!(self, |queue| queue.counts(), QueueVerb::Counts, |response| match response {
            Response::Counts(counts) => Ok(counts),
            _ => Err(odd()),
        })
    }

    /// See [`mqstore::WorkQueue::qsize`].
    ///
    /// # Errors
    /// Those of the façade.
    pub fn qsize(&self) -> Result<u64, Error> {
        either!(self, |queue| queue.qsize(), QueueVerb::Size, count)
    }

    /// See [`mqstore::WorkQueue::delays`].
    ///
    /// # Errors
    /// Those of the façade.
    pub fn delays(&self) -> Result<Vec<DelayInfo>, Error> {
        either!(self, |queue| queue.delays(), QueueVerb::Delays, |response| match response {
            Response::Delays(delays) => Ok(delays),
            _ => Err(odd()),
        })
    }

    /// See [`mqstore::WorkQueue::leases`].
    ///
    /// # Errors
    /// Those of the façade.
    pub fn leases(&self) -> Result<Vec<LeaseInfo>, Error> {
        either!(self, |queue| queue.leases(), QueueVerb::Leases, |response| match response {
            Response::Leases(leases) => Ok(leases),
            _ => Err(odd()),
        })
    }

    /// See [`mqstore::WorkQueue::peek`].
    ///
    /// # Errors
    /// Those of the façade.
    pub fn peek(&self, most: usize) -> Result<Vec<StoredRecord>, Error> {
        either!(self, |queue| queue.peek(most), QueueVerb::Peek(most as u32), stored)
    }

    /// See [`mqstore::WorkQueue::purge`].
    ///
    /// # Errors
    /// Those of the façade.
    pub fn purge(&self) -> Result<u64, Error> {
        either!(self, |queue| queue.purge(), QueueVerb::Purge, count)
    }

    /// See [`mqstore::WorkQueue::cancel`].
    ///
    /// # Errors
    /// Those of the façade.
    pub fn cancel(&self, id: &str) -> Result<bool, Error> {
        either!(self, |queue| queue.cancel(id), QueueVerb::Cancel(id), flag)
    }

    /// See [`mqstore::WorkQueue::cancel_at`].
    ///
    /// # Errors
    /// Those of the façade.
    pub fn cancel_at(&self, topic: &str, queue_id: i32, offset: i64) -> Result<bool, Error> {
        either!(
            self,
            |queue| queue.cancel_at(topic, queue_id, offset),
            QueueVerb::CancelAt(topic, queue_id, offset),
            flag
        )
    }

    /// See [`mqstore::WorkQueue::redrive`].
    ///
    /// # Errors
    /// Those of the façade.
    pub fn redrive(&self, limit: Option<u64>) -> Result<u64, Error> {
        either!(self, |queue| queue.redrive(limit), QueueVerb::Redrive(limit), count)
    }

    /// See [`mqstore::WorkQueue::redrive_ids`].
    ///
    /// # Errors
    /// Those of the façade.
    pub fn redrive_ids(&self, ids: &[String]) -> Result<u64, Error> {
        either!(self, |queue| queue.redrive_ids(ids), QueueVerb::RedriveIds(ids.to_vec()), count)
    }

    /// See [`mqstore::WorkQueue::delete_dead_letters`].
    ///
    /// # Errors
    /// Those of the façade.
    pub fn delete_dead_letters(&self, ids: &[String]) -> Result<u64, Error> {
        either!(
            self,
            |queue| queue.delete_dead_letters(ids),
            QueueVerb::DeleteDeadLetters(ids.to_vec()),
            count
        )
    }

    /// See [`mqstore::WorkQueue::shutdown`].
    ///
    /// # Errors
    /// Those of the call.
    pub fn shutdown(&self, immediate: bool) -> Result<(), Error> {
        let here = |queue: &mqstore::WorkQueue| {
            queue.shutdown(immediate);
            Ok(())
        };
        match self {
            Self::Own(queue) => here(queue),
            Self::Shared(shared) => match shared.local()? {
                Some(queue) => here(&queue),
                None => done(shared.verb(QueueVerb::Shutdown(immediate))?),
            },
        }
    }

    /// Closes this handle.
    pub fn close(&self) {
        match self {
            Self::Own(queue) => queue.close(),
            Self::Shared(shared) => shared.close(),
        }
    }

    /// See [`mqstore::WorkQueue::try_get`].
    ///
    /// # Errors
    /// Those of the façade.
    pub fn try_get(
        &self,
        count: usize,
        patience: bool,
        waker: Option<Waker>,
    ) -> Result<TryResult<Vec<LeasedMessage>>, Error> {
        let own = |found: TryResult<Vec<mqstore::LeasedMessage>>| match found {
            TryResult::Found(found) => TryResult::Found(found.into_iter().map(LeasedMessage::from).collect()),
            TryResult::Prepare => TryResult::Prepare,
            TryResult::Wait { listening, longest } => TryResult::Wait { listening, longest },
        };
        match self {
            Self::Own(queue) => queue.try_get(count, patience, waker).map(own),
            Self::Shared(shared) => match shared.local()? {
                Some(queue) => match shared.left_over(count)? {
                    Some(found) => Ok(TryResult::Found(found)),
                    None => queue.try_get(count, patience, waker).map(own),
                },
                None => shared.try_get(count, waker),
            },
        }
    }

    /// See [`mqstore::WorkQueue::prepare`].
    ///
    /// # Errors
    /// Those of the façade.
    pub fn prepare(&self, count: usize) -> Result<(), Error> {
        match self {
            Self::Own(queue) => queue.prepare(count),
            Self::Shared(shared) => match shared.local()? {
                Some(queue) => queue.prepare(count),
                None => shared.prepare(count),
            },
        }
    }

    /// See [`mqstore::WorkQueue::try_put`]. In a client, puts wait in a thread: [`TryResult::Prepare`] says so.
    ///
    /// # Errors
    /// Those of the façade.
    pub fn try_put(
        &self,
        work: &[NewWork<'_>],
        appends: bool,
        patience: bool,
        waker: Option<Waker>,
    ) -> Result<Option<TryResult<TryPut>>, Error> {
        match self {
            Self::Own(queue) => queue.try_put(work, appends, patience, waker).map(Some),
            Self::Shared(shared) => match shared.local()? {
                Some(queue) => queue.try_put(work, appends, patience, waker).map(Some),
                None => Ok(None),
            },
        }
    }

    /// See [`mqstore::WorkQueue::try_join`].
    ///
    /// # Errors
    /// Those of the façade.
    pub fn try_join(&self, patience: bool, waker: Option<Waker>) -> Result<TryResult<bool>, Error> {
        match self {
            Self::Own(queue) => queue.try_join(patience, waker),
            Self::Shared(shared) => match shared.local()? {
                Some(queue) => queue.try_join(patience, waker),
                None => shared.try_join(waker),
            },
        }
    }

    /// See [`mqstore::WorkQueue::look_around`].
    pub fn look_around(&self) {
        match self {
            Self::Own(queue) => queue.look_around(),
            Self::Shared(shared) => {
                if let Ok(Some(queue)) = shared.local() {
                    queue.look_around();
                }
            }
        }
    }
}

impl Drop for SharedQueue {
    fn drop(&mut self) {
        self.close();
    }
}
