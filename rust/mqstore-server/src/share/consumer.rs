//! A consumer, alone or shared: the same methods for both. In a client, each verb is a call. After the death of an owner
//! the consumer joins its group again at the next one, and continues at the committed offsets.

use std::time::Duration;

use mqstore::delivery::{LostMessagePolicy, Queue, Signal, StartOffset, TryResult, Waker};
use mqstore::io::sync::{Arc, AtomicBool, Mutex, Ordering};
use mqstore::message::{MessageFilter, StoredRecord};
use mqstore::options::DamagePolicy;
use mqstore::{ConsumerOptions, Error, Store};

use super::SharedStore;
use super::call::{Call, SLICE, Waiting, answer};
use super::handle::{Handle, Local, Opening, odd};
use super::responses::{done, offset, queues, stored};
use crate::client::encoded::Encoded;
use crate::deadline::Deadline;
use crate::service::verbs;
use crate::wire::request::{ConsumerVerb, FilterText, ReaderOptions, Request, Start, WaitMs};
use crate::wire::response::Response;

/// A consumer.
pub enum Consumer {
    /// Of a store that this process alone has open.
    Own(Box<mqstore::Consumer>),
    /// Of a shared store.
    Shared(Arc<SharedConsumer>),
}

/// A consumer of a shared store.
pub struct SharedConsumer {
    handle: Arc<Handle>,
    group: String,
    topics: Vec<String>,
    closed: AtomicBool,
    /// The poll of an event loop that is on its way.
    poll: Mutex<Option<Call>>,
    ready: Arc<Signal>,
}

struct OpenConsumer {
    group: String,
    topics: Vec<String>,
    options: ReaderOptions,
}

impl OpenConsumer {
    fn topics(&self) -> Vec<&str> {
        self.topics.iter().map(String::as_str).collect()
    }
}

impl Opening for OpenConsumer {
    fn request(&self, number: u64) -> Encoded {
        let request = Request::OpenConsumer(number, &self.group, self.topics(), self.options.clone());
        Encoded::new(&request)
    }

    fn open(&self, store: &Store) -> Result<Local, Error> {
        let consumer = verbs::open_consumer(store, &self.group, &self.topics(), &self.options)?;
        Ok(Local::Consumer(Arc::new(consumer)))
    }
}

fn start(start: StartOffset) -> Start {
    match start {
        StartOffset::Earliest => Start::Earliest,
        StartOffset::Latest => Start::Latest,
        StartOffset::Time(time_ms) => Start::Time(time_ms),
    }
}

impl SharedStore {
    /// Opens a consumer; see [`mqstore::Store::consumer`].
    ///
    /// # Errors
    /// Those of [`mqstore::delivery::Broker::consumer`].
    pub fn consumer(
        &self,
        group: &str,
        topics: &[&str],
        options: &ConsumerOptions,
    ) -> Result<Consumer, Error> {
        let filter = options.filter.as_ref().map(|filter| match filter {
            MessageFilter::Tags(tags) => FilterText::Tags(tags.to_string()),
            MessageFilter::Sql(sql) => FilterText::Sql(sql.expression().to_owned()),
        });
        let wire = ReaderOptions {
            filter,
            start: start(options.start),
            ordered: options.ordered,
            broadcast: options.broadcast,
            name: options.name.clone(),
            commit_interval_ms: options.commit_interval.map(|interval| interval.as_millis() as u64),
            fails_if_lost: matches!(options.on_lost, LostMessagePolicy::Fail),
            skips_damage: options.on_damage == DamagePolicy::Skip,
            history: options.history,
        };
        let mut names: Vec<String> = topics.iter().map(ToString::to_string).collect();
        let opening = OpenConsumer { group: group.to_owned(), topics: names.clone(), options: wire };
        let handle = Handle::new(&self.0, Box::new(opening));
        handle.open(SLICE)?;
        names.sort();
        names.dedup();
        Ok(Consumer::Shared(Arc::new(SharedConsumer {
            handle,
            group: group.to_owned(),
            topics: names,
            closed: AtomicBool::new(false),
            poll: Mutex::default(),
            ready: Arc::default(),
        })))
    }
}

impl SharedConsumer {
    fn check(&self) -> Result<(), Error> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::ConsumerClosed { group: self.group.clone() });
        }
        Ok(())
    }

    fn local(&self) -> Result<Option<Arc<mqstore::Consumer>>, Error> {
        self.check()?;
        match self.handle.local()? {
            Some(Local::Consumer(consumer)) => Ok(Some(consumer)),
            _ => Ok(None),
        }
    }

    fn call(&self, verb: ConsumerVerb, wait_ms: Option<WaitMs>) -> Result<Call, Error> {
        self.check()?;
        let request = Request::Consumer(self.handle.number, verb);
        Ok(Call::new(&self.handle.inner, Some(&self.handle), &request, wait_ms))
    }

    fn verb(&self, verb: ConsumerVerb) -> Result<Response, Error> {
        let response = answer(self.call(verb, None)?);
        self.check()?;
        response
    }

    fn try_poll(
        &self,
        most: Option<usize>,
        waker: Option<Waker>,
    ) -> Result<TryResult<Vec<StoredRecord>>, Error> {
        self.check()?;
        let seen = self.ready.ring_count();
        let mut poll = self.poll.lock();
        if poll.is_none() {
            let wait_ms = if waker.is_some() { Some(LOOP_POLL_MS) } else { Some(0) };
            let verb = ConsumerVerb::Poll { most: most.map(|most| most as u32), wait_ms };
            *poll = Some(self.call(verb, Some(wait_ms))?);
        }
        let Some(call) = poll.as_mut() else { return Ok(TryResult::Prepare) };
        if waker.is_none() {
            call.end_wait();
        }
        if let Some(response) = call.arrived()? {
            *poll = None;
            let found = stored(response)?;
            if !found.is_empty() || waker.is_none() {
                return Ok(TryResult::Found(found));
            }
            return Ok(TryResult::Prepare);
        }
        call.look(Duration::ZERO)?;
        let ready = Arc::clone(&self.ready);
        let is_waiting = waker.is_some() && call.call_when_done(Box::new(move || ready.ring()));
        drop(poll);
        let Some(waker) = waker.filter(|_| is_waiting) else { return Ok(TryResult::Prepare) };
        let listening = self.ready.listen(seen, waker);
        Ok(listening.map_or(TryResult::Prepare, |listening| TryResult::Wait { listening, longest: None }))
    }

    /// In a thread: waits until the poll is on its way.
    fn prepare(&self) -> Result<(), Error> {
        let Some(mut call) = self.poll.lock().take() else { return Ok(()) };
        call.look(SLICE)?;
        *self.poll.lock() = Some(call);
        Ok(())
    }
}

/// Wait of the poll of an event loop at the owner, in milliseconds. A task that is cancelled leaves its messages to the
/// next poll.
const LOOP_POLL_MS: u64 = 60_000;

impl Consumer {
    /// The group.
    pub fn group(&self) -> &str {
        match self {
            Self::Own(consumer) => consumer.group(),
            Self::Shared(shared) => &shared.group,
        }
    }

    /// The topics, sorted.
    pub fn topics(&self) -> Vec<&str> {
        match self {
            Self::Own(consumer) => consumer.topics().collect(),
            Self::Shared(shared) => shared.topics.iter().map(String::as_str).collect(),
        }
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        match self {
            Self::Own(consumer) => consumer.is_closed(),
            Self::Shared(shared) => shared.closed.load(Ordering::Acquire),
        }
    }

    /// Returns the next messages, waiting for the first until `timeout`; `None` for `most` is the next message of an
    /// iteration. The result is empty if the time is over.
    ///
    /// # Errors
    /// Those of [`mqstore::Consumer::poll`].
    pub fn poll(
        &self,
        most: Option<usize>,
        timeout: Option<Duration>,
    ) -> Result<Waiting<'_, Vec<StoredRecord>>, Error> {
        let until = Deadline::after(timeout);
        let here = move |consumer: &mqstore::Consumer, slice: Duration| {
            let wait = until.left(slice);
            let found = match most {
                Some(most) => consumer.poll_once(most, wait)?,
                None => consumer.next_once(wait)?.into_iter().collect(),
            };
            Ok((!found.is_empty() || until.is_over() || most == Some(0)).then_some(found))
        };
        let shared = match self {
            Self::Own(consumer) => return Ok(Waiting::Here(Box::new(move |slice| here(consumer, slice)))),
            Self::Shared(shared) => shared,
        };
        if let Some(consumer) = shared.local()? {
            return Ok(Waiting::Here(Box::new(move |slice| here(&consumer, slice))));
        }
        let wait_ms = timeout.map(|timeout| timeout.as_millis().try_into().unwrap_or(u64::MAX));
        let verb = ConsumerVerb::Poll { most: most.map(|most| most as u32), wait_ms };
        Ok(Waiting::There(Box::new(shared.call(verb, Some(wait_ms))?), Box::new(stored)))
    }

    fn verb<T>(
        &self,
        here: impl FnOnce(&mqstore::Consumer) -> Result<T, Error>,
        verb: impl FnOnce() -> ConsumerVerb,
        convert: impl FnOnce(Response) -> Result<T, Error>,
    ) -> Result<T, Error> {
        match self {
            Self::Own(consumer) => here(consumer),
            Self::Shared(shared) => match shared.local()? {
                Some(consumer) => here(&consumer),
                None => convert(shared.verb(verb())?),
            },
        }
    }

    /// See [`mqstore::Consumer::assignment`].
    ///
    /// # Errors
    /// Those of the façade.
    pub fn assignment(&self) -> Result<Vec<Queue>, Error> {
        if self.is_closed() {
            return Ok(Vec::new());
        }
        let owned = |response| Ok(queues(response)?.into_iter().map(|(queue, _)| queue).collect());
        self.verb(mqstore::Consumer::assignment, || ConsumerVerb::Assignment, owned)
    }

    /// See [`mqstore::Consumer::commit`] and [`mqstore::Consumer::commit_offsets`].
    ///
    /// # Errors
    /// Those of the façade.
    pub fn commit(&self, offsets: Option<&[(Queue, i64)]>, sync: bool) -> Result<(), Error> {
        let here = |consumer: &mqstore::Consumer| match offsets {
            None => consumer.commit(sync),
            Some(offsets) => consumer.commit_offsets(offsets, sync),
        };
        self.verb(here, || ConsumerVerb::Commit(offsets.map(<[_]>::to_vec), sync), done)
    }

    /// See [`mqstore::Consumer::try_commit`]. In a client, a commit waits in a thread.
    ///
    /// # Errors
    /// Those of the façade.
    pub fn try_commit(&self, offsets: Option<&[(Queue, i64)]>, sync: bool) -> Result<Option<bool>, Error> {
        match self {
            Self::Own(consumer) => consumer.try_commit(offsets, sync),
            Self::Shared(shared) => match shared.local()? {
                Some(consumer) => consumer.try_commit(offsets, sync),
                None => Ok(None),
            },
        }
    }

    /// See [`mqstore::Consumer::seek`].
    ///
    /// # Errors
    /// Those of the façade.
    pub fn seek(&self, topic: &str, queue_id: i32, offset: i64) -> Result<(), Error> {
        let queue = || Queue { topic: topic.into(), queue_id };
        self.verb(
            |consumer| consumer.seek(topic, queue_id, offset),
            || ConsumerVerb::Seek(queue(), offset),
            done,
        )
    }

    /// See [`mqstore::Consumer::seek_to_time`].
    ///
    /// # Errors
    /// Those of the façade.
    pub fn seek_to_time(&self, time_ms: i64) -> Result<(), Error> {
        self.verb(|consumer| consumer.seek_to_time(time_ms), || ConsumerVerb::SeekToTime(time_ms), done)
    }

    /// See [`mqstore::Consumer::reset`].
    ///
    /// # Errors
    /// Those of the façade.
    pub fn reset(&self, to: StartOffset, sync: bool) -> Result<(), Error> {
        self.verb(|consumer| consumer.reset(to, sync), || ConsumerVerb::Reset(start(to), sync), done)
    }

    /// See [`mqstore::Consumer::position`].
    ///
    /// # Errors
    /// Those of the façade.
    pub fn position(&self, topic: &str, queue_id: i32) -> Result<i64, Error> {
        let queue = || Queue { topic: topic.into(), queue_id };
        self.verb(
            |consumer| consumer.position(topic, queue_id),
            || ConsumerVerb::Position(queue()),
            |response| offset(response)?.ok_or_else(odd),
        )
    }

    /// See [`mqstore::Consumer::committed`].
    ///
    /// # Errors
    /// Those of the façade.
    pub fn committed(&self, topic: &str, queue_id: i32) -> Result<Option<i64>, Error> {
        let queue = || Queue { topic: topic.into(), queue_id };
        self.verb(|consumer| consumer.committed(topic, queue_id), || ConsumerVerb::Committed(queue()), offset)
    }

    /// See [`mqstore::Consumer::lag`].
    ///
    /// # Errors
    /// Those of the façade.
    pub fn lag(&self) -> Result<Vec<(Queue, i64)>, Error> {
        self.verb(mqstore::Consumer::lag, || ConsumerVerb::Lag, queues)
    }

    /// Closes it: releases its queues to the others.
    pub fn close(&self) {
        match self {
            Self::Own(consumer) => consumer.close(),
            Self::Shared(shared) => shared.close(),
        }
    }

    /// See [`mqstore::Consumer::try_poll`] and, with `None` for `most`, [`mqstore::Consumer::try_next`].
    ///
    /// # Errors
    /// Those of the façade.
    pub fn try_poll(
        &self,
        most: Option<usize>,
        patience: bool,
        waker: Option<Waker>,
    ) -> Result<TryResult<Vec<StoredRecord>>, Error> {
        let here = |consumer: &mqstore::Consumer, waker| match most {
            Some(most) => consumer.try_poll(most, patience, waker),
            None => consumer.try_next(patience, waker),
        };
        match self {
            Self::Own(consumer) => here(consumer, waker),
            Self::Shared(shared) => match shared.local()? {
                Some(consumer) => here(&consumer, waker),
                None => shared.try_poll(most, waker),
            },
        }
    }

    /// See [`mqstore::Consumer::prepare`].
    ///
    /// # Errors
    /// Those of the façade.
    pub fn prepare(&self, most: usize) -> Result<(), Error> {
        match self {
            Self::Own(consumer) => consumer.prepare(most),
            Self::Shared(shared) => match shared.local()? {
                Some(consumer) => consumer.prepare(most),
                None => shared.prepare(),
            },
        }
    }

    /// See [`mqstore::Consumer::look_around`].
    pub fn look_around(&self) {
        match self {
            Self::Own(consumer) => consumer.look_around(),
            Self::Shared(shared) => {
                if let Ok(Some(consumer)) = shared.local() {
                    consumer.look_around();
                }
            }
        }
    }
}

impl SharedConsumer {
    fn close(&self) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            drop(self.poll.lock().take());
            self.ready.ring();
            self.handle.close();
        }
    }
}

impl Drop for SharedConsumer {
    fn drop(&mut self) {
        self.close();
    }
}
