//! The session of one client: its handles, and how each request gets its answer.
//!
//! A front-end first calls [`Session::answer_now`], in its own thread: appends, gets and acknowledgements that need no
//! wait are answered there. For all others it awaits [`Session::answer_later`]. The appends of a client are made in the
//! order of its requests: while one waits, later ones queue behind it.

use std::collections::HashMap;

use bytes::Bytes;
use mqstore::append::{AppendRequest, OwnedMessage};
use mqstore::compaction::JobControl;
use mqstore::delivery::{Lease, TryPut, TryResult};
use mqstore::error::StoreError;
use mqstore::format::SysFlag;
use mqstore::io::sync::{Arc, AtomicBool, AtomicUsize, Mutex, Ordering};
use mqstore::message::{Appended, StoredRecord};
use mqstore::{Consumer, Error, LeasedMessage, Transaction, WorkQueue};
use tokio::sync::{Notify, oneshot};

use super::core::{ConnectedClient, Core};
use super::verbs;
use super::waits::{Limits, WaitEnd, blocking, polled};
use crate::deadline::Deadline;
use crate::steps;
use crate::wire::failure::Failure;
use crate::wire::frame::{AGAIN, Frame};
use crate::wire::request::{
    Batch, ConsumerVerb, HandleNumber, LeaseName, Message, QueueVerb, Request, TransactionVerb, WaitMs,
};
use crate::wire::response::{Answer, ClientInfo, Position, Response};

/// Leases that a session remembers. Those of messages that are never finished are dropped together.
const KEPT_LEASES: usize = 1 << 16;

/// What a client has open.
#[derive(Clone)]
enum Handle {
    Queue(Arc<WorkQueue>),
    Consumer(Arc<Consumer>),
    Transaction(Arc<Transaction>),
    /// A transaction that was decided before its handle was opened again.
    Decided,
}

/// The session of one client, as long as its connection.
pub(crate) struct Session {
    core: Arc<Core>,
    pub(crate) client: u128,
    pid: u32,
    library: String,
    handles: Mutex<HashMap<HandleNumber, Handle>>,
    leases: Mutex<HashMap<(HandleNumber, LeaseName), Lease>>,
    /// The waits that the client can end, by the number of their request.
    waits: Mutex<HashMap<u64, Arc<WaitEnd>>>,
    /// The long verbs that run, by the number of their request.
    jobs: Mutex<HashMap<u64, Arc<JobControl>>>,
    /// Whether the client has another connection: what still arrives on this one was sent again there.
    is_over: AtomicBool,
    /// The session of the connection before this one, while its requests may run.
    earlier: Mutex<Option<Arc<Self>>>,
    /// Requests without an answer.
    running: AtomicUsize,
    idle: Notify,
    /// Appends without an answer that do not run in the thread of the front-end.
    waiting_appends: AtomicUsize,
    /// Held while the place of an append in the order is taken.
    order: tokio::sync::Mutex<()>,
}

/// What an append holds until it is done, and the properties that replace those of its messages.
type Held = (Box<dyn Send>, Vec<Option<Vec<u8>>>);

/// A request that [`Session::answer_later`] answers.
pub(crate) struct Later {
    session: Arc<Session>,
    is_append: bool,
}

impl Drop for Later {
    fn drop(&mut self) {
        if self.is_append {
            self.session.waiting_appends.fetch_sub(1, Ordering::AcqRel);
        }
        if self.session.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.session.idle.notify_waiters();
        }
    }
}

fn damaged() -> Error {
    StoreError::Refused { reason: "the owner of the store got a damaged request".to_owned() }.into()
}

fn unknown_handle() -> Error {
    StoreError::Refused { reason: "the owner of the store does not know this handle".to_owned() }.into()
}

fn decoded(frame: &Frame) -> Result<Request<'_>, Error> {
    postcard::from_bytes(&frame.payload).map_err(|_| damaged())
}

impl Session {
    /// Makes the session of a client that has said hello.
    pub(crate) fn new(core: &Arc<Core>, client: u128, pid: u32, library: String) -> Arc<Self> {
        Arc::new(Self {
            core: Arc::clone(core),
            client,
            pid,
            library,
            handles: Mutex::default(),
            leases: Mutex::default(),
            waits: Mutex::default(),
            jobs: Mutex::default(),
            is_over: AtomicBool::new(false),
            earlier: Mutex::default(),
            running: AtomicUsize::new(0),
            idle: Notify::new(),
            waiting_appends: AtomicUsize::new(0),
            order: tokio::sync::Mutex::new(()),
        })
    }

    /// Makes the front-end take no more requests of this connection.
    fn end(&self) {
        self.is_over.store(steps::does("session.end_earlier"), Ordering::Release);
    }

    /// Whether the front-end must take no more requests.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Notes the session of an earlier connection of the client, and ends it.
    pub(crate) fn follow(&self, earlier: Arc<Self>) {
        earlier.end();
        *self.earlier.lock() = Some(earlier);
    }

    /// Returns once no request of an earlier connection runs, also of those before the last one.
    pub(crate) async fn wait_for_earlier(&self) {
        // Each keeps the one before it until that is idle: a later connection must wait for all of them.
        let mut next = self.earlier.lock().clone();
        while let Some(earlier) = next.take() {
            earlier.wait_until_idle().await;
            next.clone_from(&earlier.earlier.lock());
        }
        *self.earlier.lock() = None;
    }

    /// Returns once no request runs.
    pub(crate) async fn wait_until_idle(&self) {
        loop {
            let idle = self.idle.notified();
            if self.running.load(Ordering::Acquire) == 0 {
                return;
            }
            idle.await;
        }
    }

    /// Ends all waits and long verbs of a client that is gone.
    pub(crate) fn end_waits(&self) {
        self.waits.lock().values().for_each(|wait| wait.abandon());
        self.jobs.lock().values().for_each(|job| job.end());
    }

    /// Closes what the client has open.
    pub(crate) fn drop_handles(&self) {
        let handles = std::mem::take(&mut *self.handles.lock());
        self.leases.lock().clear();
        drop(handles);
    }

    fn handle(&self, number: HandleNumber) -> Result<Handle, Error> {
        self.handles.lock().get(&number).cloned().ok_or_else(unknown_handle)
    }

    fn queue(&self, number: HandleNumber) -> Result<Arc<WorkQueue>, Error> {
        match self.handle(number)? {
            Handle::Queue(queue) => Ok(queue),
            _ => Err(unknown_handle()),
        }
    }

    fn consumer(&self, number: HandleNumber) -> Result<Arc<Consumer>, Error> {
        match self.handle(number)? {
            Handle::Consumer(consumer) => Ok(consumer),
            _ => Err(unknown_handle()),
        }
    }

    /// Answers a request if that needs no wait. Else the caller awaits [`Self::answer_later`] with what it gets.
    pub(crate) fn answer_now(self: &Arc<Self>, frame: &Frame) -> Result<Answer, Later> {
        let request = match decoded(frame) {
            Ok(request) => request,
            Err(error) => return Ok(Err(Failure::from(error))),
        };
        if frame.flags & AGAIN == 0
            && let Some(answer) = self.quick(&request).transpose()
        {
            return Ok(answer.map_err(Failure::from));
        }
        self.running.fetch_add(1, Ordering::AcqRel);
        let is_append = matches!(request, Request::Append(_));
        self.waiting_appends.fetch_add(usize::from(is_append), Ordering::AcqRel);
        Err(Later { session: Arc::clone(self), is_append })
    }

    /// Answers a request; `later` is from [`Self::answer_now`].
    pub(crate) async fn answer_later(frame: Frame, later: Later) -> Answer {
        let number = frame.number;
        let answer = later.session.slow(Arc::new(frame)).await;
        later.session.waits.lock().remove(&number);
        drop(later);
        answer.map_err(Failure::from)
    }

    fn quick(&self, request: &Request<'_>) -> Result<Option<Response>, Error> {
        match request {
            Request::EndWait(number) => {
                if let Some(wait) = self.waits.lock().get(number) {
                    wait.end();
                }
                if let Some(job) = self.jobs.lock().get(number) {
                    job.end();
                }
                Ok(Some(Response::Done))
            }
            Request::Progress(number) => {
                let at = self.jobs.lock().get(number).map(|job| job.progress());
                Ok(Some(at.map_or(Response::Done, |at| Response::Progress(at.done_bytes, at.total_bytes))))
            }
            Request::Append(batch) => self.append_now(batch),
            Request::Queue(number, QueueVerb::Get { count, .. }) => {
                match self.queue(*number)?.try_get(*count as usize, false, None)? {
                    TryResult::Found(found) if !found.is_empty() => Ok(Some(self.leased(*number, &found))),
                    _ => Ok(None),
                }
            }
            Request::Queue(
                number,
                QueueVerb::Put { messages, delay_ms, deliver_at_ms, durable, new_only, .. },
            ) => {
                if *new_only || self.core.appends.has_plain() {
                    return Ok(None);
                }
                let work = verbs::work(messages, (*delay_ms, *deliver_at_ms), *durable);
                match self.queue(*number)?.try_put(&work, true, false, None) {
                    Ok(TryResult::Found(TryPut::Done(appended))) => Ok(Some(positions(&appended))),
                    Ok(_) | Err(Error::Full { .. }) => Ok(None),
                    Err(error) => Err(error),
                }
            }
            Request::Queue(number, QueueVerb::Ack { leases, durable: false }) => {
                self.ack_now(*number, leases)
            }
            Request::Consumer(number, ConsumerVerb::Poll { most, wait_ms }) => {
                let consumer = self.consumer(*number)?;
                let found = match most {
                    Some(most) => consumer.try_poll(*most as usize, false, None)?,
                    None => consumer.try_next(false, None)?,
                };
                match found {
                    TryResult::Found(found) if !found.is_empty() || *wait_ms == Some(0) => {
                        Ok(Some(verbs::records(&found)))
                    }
                    _ => Ok(None),
                }
            }
            _ => Ok(None),
        }
    }

    fn append_now(&self, batch: &Batch<'_>) -> Result<Option<Response>, Error> {
        let service = &self.core;
        if self.waiting_appends.load(Ordering::Acquire) > 0 || service.appends.has_plain() {
            return Ok(None);
        }
        let new: Vec<_> = batch
            .messages
            .iter()
            .map(|message| message.new_message(batch.topic, batch.queue_id, batch.durable))
            .collect();
        let nonblocking = service.store.nonblocking();
        let appended = match new.as_slice() {
            [one] if !batch.many => nonblocking.try_append(one)?.map(|one| vec![one]),
            all => nonblocking.try_append_many(all)?,
        };
        Ok(appended.map(|appended| positions(&appended)))
    }

    fn leased(&self, number: HandleNumber, found: &[LeasedMessage]) -> Response {
        let mut leases = self.leases.lock();
        if leases.len() + found.len() > KEPT_LEASES {
            leases.clear();
        }
        for message in found {
            if let Ok(view) = message.view() {
                let name = LeaseName {
                    topic: view.topic.to_owned(),
                    queue_id: view.queue_id,
                    queue_offset: message.queue_offset,
                    attempt: message.lease.attempt(),
                };
                leases.insert((number, name), message.lease.clone());
            }
        }
        verbs::deliveries(found)
    }

    /// Acknowledges messages whose leases this session knows.
    fn ack_now(&self, number: HandleNumber, names: &[LeaseName]) -> Result<Option<Response>, Error> {
        let mut leases = self.leases.lock();
        let mut known = Vec::with_capacity(names.len());
        for name in names {
            // A later acknowledgement of the same message finds its state in the store.
            match leases.remove(&(number, name.clone())) {
                Some(lease) => known.push(lease),
                None => return Ok(None),
            }
        }
        drop(leases);
        known.iter().try_for_each(|lease| lease.ack(false))?;
        Ok(Some(Response::Done))
    }

    async fn slow(self: &Arc<Self>, frame: Arc<Frame>) -> Result<Response, Error> {
        let again = frame.flags & AGAIN != 0;
        let limits = |wait_ms| self.limits(&frame, wait_ms);
        match decoded(&frame)? {
            Request::Append(batch) if !again => self.append_later(&frame, &batch).await,
            Request::Append(_) => {
                let _place = self.order.lock().await;
                self.run_blocking(&frame).await
            }
            Request::Queue(number, QueueVerb::Get { count, wait_ms }) => {
                self.get(number, count, limits(wait_ms)).await
            }
            Request::Queue(number, QueueVerb::Put { wait_ms, new_only, .. }) => {
                self.put(number, &frame, limits(wait_ms), new_only, again).await
            }
            Request::Queue(number, QueueVerb::Join(wait_ms)) => self.join(number, limits(wait_ms)).await,
            Request::Consumer(number, ConsumerVerb::Poll { most, wait_ms }) => {
                self.poll(number, most, limits(wait_ms)).await
            }
            Request::Processes => Ok(Response::Processes(self.core.pid(), self.core.clients())),
            Request::Replication => Ok(Response::Replication(self.core.replication())),
            Request::Compact { .. } | Request::Reclaim { .. } => self.run_job(&frame).await,
            Request::Close(number) => {
                let closed = self.handles.lock().remove(&number);
                blocking(move || {
                    match &closed {
                        Some(Handle::Queue(queue)) => queue.close(),
                        Some(Handle::Consumer(consumer)) => consumer.close(),
                        _ => {}
                    }
                    Ok(Response::Done)
                })
                .await
            }
            _ => self.run_blocking(&frame).await,
        }
    }

    fn limits(&self, frame: &Frame, wait_ms: WaitMs) -> Limits {
        let end = Arc::<WaitEnd>::default();
        self.waits.lock().insert(frame.number, Arc::clone(&end));
        Limits { until: Deadline::after_ms(wait_ms), end }
    }

    /// Runs a verb in a thread of the pool.
    async fn run_blocking(self: &Arc<Self>, frame: &Arc<Frame>) -> Result<Response, Error> {
        let (session, frame) = (Arc::clone(self), Arc::clone(frame));
        blocking(move || session.run(&decoded(&frame)?, frame.flags & AGAIN != 0)).await
    }

    /// Runs a long verb in a thread of the pool. The client can ask for its progress, and end it.
    async fn run_job(self: &Arc<Self>, frame: &Arc<Frame>) -> Result<Response, Error> {
        let control = verbs::control_of(&decoded(frame)?);
        self.jobs.lock().insert(frame.number, Arc::clone(&control));
        let (session, own) = (Arc::clone(self), Arc::clone(frame));
        let done = blocking(move || verbs::run_job(&session.core.store, &decoded(&own)?, &control)).await;
        self.jobs.lock().remove(&frame.number);
        done
    }

    fn run(&self, request: &Request<'_>, again: bool) -> Result<Response, Error> {
        let store = &self.core.store;
        match request {
            Request::OpenQueue(number, topic, group, options) => {
                let queue = verbs::open_queue(store, topic, *group, options)?;
                let opened = Response::Opened(queue.group().to_owned(), queue.dead_letters().to_owned());
                self.handles.lock().insert(*number, Handle::Queue(Arc::new(queue)));
                Ok(opened)
            }
            Request::OpenConsumer(number, group, topics, options) => {
                let consumer = verbs::open_consumer(store, group, topics, options)?;
                self.handles.lock().insert(*number, Handle::Consumer(Arc::new(consumer)));
                Ok(Response::Done)
            }
            Request::Begin(number, group, id, has_messages) => {
                let handle = match store.transactions()?.resume(group, id, *has_messages)? {
                    Some(transaction) => Handle::Transaction(Arc::new(transaction)),
                    None => Handle::Decided,
                };
                self.handles.lock().insert(*number, handle);
                Ok(Response::Done)
            }
            Request::Queue(number, verb) => verbs::on_queue(&*self.queue(*number)?, verb, again),
            Request::Consumer(number, verb) => verbs::on_consumer(&*self.consumer(*number)?, verb),
            Request::Transaction(number, verb) => match (self.handle(*number)?, verb) {
                (Handle::Transaction(transaction), verb) => {
                    verbs::on_transaction(store, &transaction, verb, again)
                }
                (Handle::Decided, TransactionVerb::End { .. }) => Ok(Response::Committed(Vec::new())),
                (Handle::Decided, TransactionVerb::Append { .. }) => Err(Error::TransactionEnded {
                    id: "that this process began".to_owned(),
                    outcome: "decided",
                }),
                _ => Err(unknown_handle()),
            },
            request => verbs::on_store(store, request, again),
        }
    }

    /// Hands an append to the thread for appends.
    async fn append_later(&self, frame: &Arc<Frame>, batch: &Batch<'_>) -> Result<Response, Error> {
        let answer = {
            let _place = self.order.lock().await;
            self.queue_append(
                frame,
                batch.topic,
                batch.queue_id,
                (batch.durable, batch.many),
                &batch.messages,
                None,
            )
        };
        answer.await
    }

    /// Puts messages into the queue of the thread for appends. `held` is dropped once they are appended.
    fn queue_append(
        &self,
        frame: &Arc<Frame>,
        topic: &str,
        queue_id: Option<i32>,
        (durable, many): (bool, bool),
        messages: &[Message<'_>],
        held: Option<Held>,
    ) -> impl Future<Output = Result<Response, Error>> {
        let (held, mut replaced) = held.map_or((None, Vec::new()), |(held, replaced)| (Some(held), replaced));
        let payload = Bytes::from_owner(SharedFrame(Arc::clone(frame)));
        let own = |(index, message): (usize, &Message<'_>)| OwnedMessage {
            body: Box::new(payload.slice_ref(message.body)),
            sys_flag: SysFlag(message.sys_flag),
            properties: replaced
                .get_mut(index)
                .and_then(Option::take)
                .unwrap_or_else(|| message.properties.to_vec()),
            unique_key: Some(message.unique_key.to_owned()),
            flag: message.flag,
            born_timestamp_ms: message.born_timestamp_ms,
        };
        let request = AppendRequest {
            replicated: false,
            topic: topic.to_owned(),
            queue_id,
            durable,
            many,
            compression: None,
            messages: messages.iter().enumerate().map(own).collect(),
        };
        let (bytes, service) = (request.bytes(), Arc::clone(&self.core));
        let (send, receive) = oneshot::channel();
        let done = move |appended| {
            drop(held);
            // The client may be gone.
            let _ = send.send(appended);
        };
        service.appends.put(service.append_number(), request, Box::new(done));
        service.appends.hand_over();
        async move {
            let appended = receive.await;
            service.appends.taken(bytes, durable);
            let closed = || StoreError::Closed { path: service.store.path().to_path_buf() };
            Ok(positions(&appended.map_err(|_| closed())??))
        }
    }

    async fn get(
        self: &Arc<Self>,
        number: HandleNumber,
        count: u32,
        limits: Limits,
    ) -> Result<Response, Error> {
        let queue = self.queue(number)?;
        loop {
            let poll = |waker| queue.try_get(count as usize, false, Some(waker));
            let prepare = || {
                let queue = Arc::clone(&queue);
                blocking(move || queue.prepare(count as usize))
            };
            let found = polled(&limits, poll, prepare, || queue.look_around()).await?;
            match found {
                // It stopped early, at messages that nobody gets.
                Some(found) if found.is_empty() && count > 0 => {}
                found => return Ok(self.leased(number, &found.unwrap_or_default())),
            }
        }
    }

    async fn put(
        self: &Arc<Self>,
        number: HandleNumber,
        frame: &Arc<Frame>,
        limits: Limits,
        new_only: bool,
        again: bool,
    ) -> Result<Response, Error> {
        let queue = self.queue(number)?;
        let Request::Queue(_, QueueVerb::Put { messages, delay_ms, deliver_at_ms, durable, .. }) =
            decoded(frame)?
        else {
            return Err(damaged());
        };
        if again || new_only {
            return self.put_blocking(&queue, frame, &limits, again).await;
        }
        let work = verbs::work(&messages, (delay_ms, deliver_at_ms), durable);
        let poll = |waker| queue.try_put(&work, false, false, Some(waker));
        let prepare = || {
            let queue = Arc::clone(&queue);
            blocking(move || queue.prepare(0))
        };
        match polled(&limits, poll, prepare, || queue.look_around()).await? {
            None => Err(queue.full()),
            Some(TryPut::Done(appended)) => Ok(positions(&appended)),
            Some(TryPut::Reserved(reservation, delayed)) => {
                let held: Option<Held> = Some((Box::new(reservation), delayed));
                let many = messages.len() != 1;
                self.queue_append(frame, queue.topic(), None, (durable, many), &messages, held).await
            }
        }
    }

    /// Puts messages that may be there already: looks for them first.
    async fn put_blocking(
        self: &Arc<Self>,
        queue: &Arc<WorkQueue>,
        frame: &Arc<Frame>,
        limits: &Limits,
        again: bool,
    ) -> Result<Response, Error> {
        loop {
            let (session, queue, frame) = (Arc::clone(self), Arc::clone(queue), Arc::clone(frame));
            let wait = if limits.are_reached() { std::time::Duration::ZERO } else { super::waits::LOOK };
            let put = blocking(move || {
                let Request::Queue(_, verb) = decoded(&frame)? else { return Err(damaged()) };
                verbs::put(&session.core.store, &queue, &verb, wait, again)
            });
            if let Some(response) = put.await? {
                return Ok(response);
            }
        }
    }

    async fn join(self: &Arc<Self>, number: HandleNumber, limits: Limits) -> Result<Response, Error> {
        let queue = self.queue(number)?;
        let poll = |waker| queue.try_join(false, Some(waker));
        let prepare = || {
            let queue = Arc::clone(&queue);
            blocking(move || queue.prepare(0))
        };
        let is_done = polled(&limits, poll, prepare, || queue.look_around()).await?;
        Ok(Response::Flag(is_done.unwrap_or(false)))
    }

    async fn poll(
        self: &Arc<Self>,
        number: HandleNumber,
        most: Option<u32>,
        limits: Limits,
    ) -> Result<Response, Error> {
        let consumer = self.consumer(number)?;
        let poll = |waker| -> Result<TryResult<Vec<StoredRecord>>, Error> {
            match most {
                Some(most) => consumer.try_poll(most as usize, false, Some(waker)),
                None => consumer.try_next(false, Some(waker)),
            }
        };
        let prepare = || {
            let consumer = Arc::clone(&consumer);
            blocking(move || consumer.prepare(most.unwrap_or(1) as usize))
        };
        let found = polled(&limits, poll, prepare, || consumer.look_around()).await?;
        Ok(verbs::records(&found.unwrap_or_default()))
    }
}

impl ConnectedClient for Session {
    fn info(&self) -> ClientInfo {
        let handles: Vec<_> = self.handles.lock().values().cloned().collect();
        let mut info = ClientInfo {
            pid: self.pid,
            library: self.library.clone(),
            queues: Vec::new(),
            consumers: Vec::new(),
            transactions: 0,
        };
        for handle in handles {
            match handle {
                Handle::Queue(queue) => {
                    info.queues.push((queue.topic().to_owned(), queue.group().to_owned()));
                }
                Handle::Consumer(consumer) => {
                    let owned = consumer.assignment().unwrap_or_default();
                    info.consumers.push((consumer.group().to_owned(), owned));
                }
                Handle::Transaction(_) | Handle::Decided => info.transactions += 1,
            }
        }
        info
    }
}

/// The payload of a frame as the owner of the bodies in it.
struct SharedFrame(Arc<Frame>);

impl AsRef<[u8]> for SharedFrame {
    fn as_ref(&self) -> &[u8] {
        &self.0.payload
    }
}

fn positions(appended: &[Appended]) -> Response {
    Response::Appended(appended.iter().map(Position::of).collect())
}
