//! A call: one verb, from its request to its response, however many owners it meets.

use std::time::Duration;

use mqstore::Error;
use mqstore::delivery::Waker;
use mqstore::error::StoreError;
use mqstore::io::sync::Arc;
use mqstore::store::Progress;

use super::handle::{Handle, Local, Opened, odd};
use super::{Inner, Place, Program};
use crate::client::connection::{Connection, LONGEST_SLEEP, Waited};
use crate::client::encoded::Encoded;
use crate::deadline::Deadline;
use crate::service::verbs;
use crate::steps;
use crate::wire::frame::AGAIN;
use crate::wire::request::{ConsumerVerb, QueueVerb, Request, TransactionVerb, WaitMs};
use crate::wire::response::Response;

/// Slice of a wait for a verb that should not take long.
pub(super) const SLICE: Duration = Duration::from_millis(50);

/// A verb that was called and has no result yet. Dropping it gives it up; what was sent may still be done.
pub struct Call {
    inner: Arc<Inner>,
    handle: Option<Arc<Handle>>,
    request: Encoded,
    /// For a verb that waits: until when.
    until: Option<Deadline>,
    sent: Option<(Arc<Connection>, u64)>,
    /// Whether an owner may have had it.
    was_sent: bool,
}

impl Call {
    /// Makes a call of `request`, for a handle or the store itself. `wait_ms` is how long a verb that waits does so.
    pub(crate) fn new(
        inner: &Arc<Inner>,
        handle: Option<&Arc<Handle>>,
        request: &Request<'_>,
        wait_ms: Option<WaitMs>,
    ) -> Self {
        Self {
            inner: Arc::clone(inner),
            handle: handle.map(Arc::clone),
            request: Encoded::new(request),
            until: wait_ms.map(Deadline::after_ms),
            sent: None,
            was_sent: false,
        }
    }

    /// Waits for the response, for at most `longest`; `None` if there is none yet. Call it until there is one.
    ///
    /// # Errors
    /// Those of the verb, and `Closed` if this handle of the store is closed.
    pub fn wait(&mut self, longest: Duration) -> Result<Option<Response>, Error> {
        let deadline = Deadline::after(Some(longest));
        loop {
            let left = deadline.left(LONGEST_SLEEP);
            if let Some((connection, number)) = &self.sent {
                match connection.wait(*number, left) {
                    Waited::NotYet => return Ok(None),
                    Waited::Lost => self.sent = None,
                    Waited::Answered(answer) => {
                        self.sent = None;
                        return Ok(Some(answer?));
                    }
                }
                continue;
            }
            match self.place(left)? {
                None if left.is_zero() => return Ok(None),
                None => {}
                Some(Opened::Here(local)) => return self.run(&local, left),
                Some(Opened::There(connection)) => self.send(connection),
            }
        }
    }

    /// The program around the store.
    pub(crate) fn program(&self) -> &dyn Program {
        &*self.inner.setup.program
    }

    /// Sends the request, if that takes at most `longest`. In the owner itself, does nothing: the caller has the façade.
    pub(crate) fn look(&mut self, longest: Duration) -> Result<(), Error> {
        if self.sent.is_none()
            && let Some(Opened::There(connection)) = self.place(longest)?
        {
            self.send(connection);
        }
        Ok(())
    }

    /// Returns the answer if the request is on its way and it has come. After the death of the owner, it is not on its
    /// way.
    pub(crate) fn arrived(&mut self) -> Result<Option<Response>, Error> {
        let Some((connection, number)) = &self.sent else { return Ok(None) };
        match connection.wait(*number, Duration::ZERO) {
            Waited::NotYet => Ok(None),
            Waited::Lost => {
                self.sent = None;
                Ok(None)
            }
            Waited::Answered(answer) => {
                self.sent = None;
                Ok(Some(answer?))
            }
        }
    }

    /// Asks the owner how far a long verb is, in bytes: done, and in total. `None` if it does not run there now.
    pub(super) fn progress(&self) -> Result<Option<(u64, u64)>, Error> {
        let Some((connection, number)) = &self.sent else { return Ok(None) };
        let asked = connection.send(&Encoded::new(&Request::Progress(*number)), 0);
        match connection.wait(asked, LONGEST_SLEEP) {
            Waited::Answered(answer) => match answer? {
                Response::Progress(done, total) => Ok(Some((done, total))),
                _ => Ok(None),
            },
            Waited::NotYet | Waited::Lost => Ok(None),
        }
    }

    /// Makes the owner answer a verb that waits at once.
    pub(crate) fn end_wait(&mut self) {
        if let Some((connection, number)) = &self.sent {
            let end = connection.send(&Encoded::new(&Request::EndWait(*number)), 0);
            connection.forget(end);
        }
        self.until = Some(Deadline::after(Some(Duration::ZERO)));
    }

    /// Calls `waker` when [`Self::wait`] should be called again. Returns false, without a call, if that is now.
    pub(crate) fn call_when_done(&mut self, waker: Waker) -> bool {
        match &self.sent {
            Some((connection, number)) => connection.call_when_answered(*number, waker),
            None => false,
        }
    }

    fn place(&self, longest: Duration) -> Result<Option<Opened>, Error> {
        if let Some(handle) = &self.handle {
            return handle.place(longest);
        }
        Ok(self.inner.place(longest)?.map(|(place, _)| match place {
            // The store itself has no local form.
            Place::Here(_) => Opened::Here(Local::Decided),
            Place::There(connection) => Opened::There(connection),
        }))
    }

    fn send(&mut self, connection: Arc<Connection>) {
        if self.was_sent
            && let Some(until) = self.until
        {
            self.shorten(until);
        }
        let again = self.was_sent && steps::does("call.mark_again");
        let number = connection.send(&self.request, if again { AGAIN } else { 0 });
        self.sent = Some((connection, number));
        self.was_sent = true;
    }

    /// Takes the time that has passed off the wait in the request.
    fn shorten(&mut self, until: Deadline) {
        let left = until.left_ms();
        let shorter = match self.request.decode() {
            Some(Request::Queue(handle, QueueVerb::Get { count, .. })) => {
                Encoded::new(&Request::Queue(handle, QueueVerb::Get { count, wait_ms: left }))
            }
            Some(Request::Queue(handle, QueueVerb::Join(_))) => {
                Encoded::new(&Request::Queue(handle, QueueVerb::Join(left)))
            }
            Some(Request::Queue(
                handle,
                QueueVerb::Put { messages, delay_ms, deliver_at_ms, durable, new_only, .. },
            )) => Encoded::new(&Request::Queue(
                handle,
                QueueVerb::Put { messages, delay_ms, deliver_at_ms, durable, new_only, wait_ms: left },
            )),
            Some(Request::Consumer(handle, ConsumerVerb::Poll { most, .. })) => {
                Encoded::new(&Request::Consumer(handle, ConsumerVerb::Poll { most, wait_ms: left }))
            }
            _ => return,
        };
        self.request = shorter;
    }

    /// Runs the verb in this process, which is the owner; `None` if a verb that waits is not done within `longest`.
    fn run(&mut self, local: &Local, longest: Duration) -> Result<Option<Response>, Error> {
        let request = self.request.decode().ok_or_else(odd)?;
        let store = self.inner.store();
        let left = self.until.map(|until| (until.left(longest), until.is_over()));
        let again = self.was_sent;
        match (local, &request) {
            (Local::Queue(queue), Request::Queue(_, verb)) => match (verb, left) {
                (QueueVerb::Get { count, .. }, Some((wait, is_over))) => {
                    Ok(match queue.get_once(*count as usize, wait)? {
                        // It stopped early, at messages that nobody gets.
                        Some(found) if found.is_empty() && *count > 0 => None,
                        None => is_over.then(|| verbs::deliveries(&[])),
                        Some(found) => Some(verbs::deliveries(&found)),
                    })
                }
                (QueueVerb::Join(_), Some((wait, is_over))) => {
                    let is_done = queue.join_once(wait)?;
                    Ok((is_done || is_over).then_some(Response::Flag(is_done)))
                }
                (QueueVerb::Put { .. }, Some((wait, _))) => verbs::put(store, queue, verb, wait, again),
                _ => verbs::on_queue(queue, verb, again).map(Some),
            },
            (Local::Consumer(consumer), Request::Consumer(_, ConsumerVerb::Poll { most, .. })) => {
                let (wait, is_over) = left.unwrap_or((longest, false));
                let found = match most {
                    Some(most) => consumer.poll_once(*most as usize, wait)?,
                    None => consumer.next_once(wait)?.into_iter().collect(),
                };
                Ok((!found.is_empty() || is_over || *most == Some(0)).then(|| verbs::records(&found)))
            }
            (Local::Consumer(consumer), Request::Consumer(_, verb)) => {
                verbs::on_consumer(consumer, verb).map(Some)
            }
            (Local::Transaction(transaction), Request::Transaction(_, verb)) => {
                verbs::on_transaction(store, transaction, verb, again).map(Some)
            }
            (Local::Decided, Request::Transaction(_, TransactionVerb::End { .. })) => {
                Ok(Some(Response::Committed(Vec::new())))
            }
            (_, Request::Processes | Request::Replication) => match self.inner.place(longest)? {
                Some((Place::Here(owner), _)) => Ok(Some({
                    let core = owner.service().core();
                    match request {
                        Request::Replication => Response::Replication(core.replication()),
                        _ => Response::Processes(core.pid(), core.clients()),
                    }
                })),
                _ => Ok(None),
            },
            _ => verbs::on_store(store, &request, again).map(Some),
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let Some((connection, number)) = self.sent.take() else { return };
        connection.forget(number);
        if self.until.is_some() {
            // The owner must not hand a message to a call that is gone.
            let end = connection.send(&Encoded::new(&Request::EndWait(number)), 0);
            connection.forget(end);
        }
    }
}

/// Waits for the response of a call that should not take long, however long that is.
pub(crate) fn answer(mut call: Call) -> Result<Response, Error> {
    loop {
        if let Some(response) = call.wait(SLICE)? {
            return Ok(response);
        }
        call.program().interrupted()?;
    }
}

/// Like [`answer`], for a long verb: passes its progress on. An error of `watch` ends it, also at the owner.
pub(super) fn job(inner: &Arc<Inner>, request: &Request<'_>, watch: JobWatch<'_>) -> Result<Response, Error> {
    // The drop of a verb that waits ends it.
    let mut call = Call::new(inner, None, request, Some(None));
    loop {
        if let Some(response) = call.wait(SLICE)? {
            return Ok(response);
        }
        // An error of the question comes again with the next wait. Before its first byte, a job may not know its total.
        let at = call.progress().unwrap_or_default().filter(|(done_bytes, _)| *done_bytes > 0);
        let looked = call.program().interrupted().and_then(|()| {
            at.map_or(Ok(()), |(done_bytes, total_bytes)| watch(Progress { done_bytes, total_bytes }))
        });
        if let Err(error) = looked {
            call.end_wait();
            // The next job must not meet this one. Its end takes a moment, unless the owner hangs.
            let _ = call.wait(LONGEST_END);
            return Err(error.into());
        }
    }
}

/// The longest wait for the end of a job that was given up.
const LONGEST_END: Duration = Duration::from_secs(5);

/// Gets the progress of a long verb.
pub(super) type JobWatch<'a> = &'a mut dyn FnMut(Progress) -> Result<(), StoreError>;

/// A verb that waits, in slices: call [`Self::step`] until it has a result.
pub enum Waiting<'a, T> {
    /// The façade's own wait; for the slice.
    Here(Box<dyn FnMut(Duration) -> Result<Option<T>, Error> + Send + 'a>),
    /// A call.
    There(Box<Call>, Box<dyn Fn(Response) -> Result<T, Error> + Send + 'a>),
}

impl<T> Waiting<'_, T> {
    /// Waits for at most `slice`; `None` if there is no result yet.
    ///
    /// # Errors
    /// Those of the verb.
    pub fn step(&mut self, slice: Duration) -> Result<Option<T>, Error> {
        match self {
            Self::Here(step) => step(slice),
            Self::There(call, convert) => call.wait(slice)?.map(convert).transpose(),
        }
    }
}
