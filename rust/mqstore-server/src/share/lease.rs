//! The lease of a delivered message, alone or shared. A shared lease is known by its place and its attempt, so it is valid
//! at the next owner, too.

use std::time::Duration;

use mqstore::Error;
use mqstore::io::sync::{Arc, AtomicBool, AtomicI64, Ordering};
use mqstore::message::StoredRecord;
use mqstore::notes::Notes;

use super::call::{Call, answer};
use super::handle::{Handle, odd};
use super::responses::{done, flag};
use crate::wire::request::{LeaseName, QueueVerb, Request};
use crate::wire::response::{Delivery, Response};

/// A message that a work queue delivered.
#[derive(Clone, Debug)]
pub struct LeasedMessage {
    /// The message.
    pub record: StoredRecord,
    /// The lease of this delivery.
    pub lease: Lease,
}

/// The right to finish a message.
#[derive(Clone, Debug)]
pub enum Lease {
    /// Of a store that this process alone has open, or of its owner.
    Own(mqstore::delivery::Lease),
    /// Of a shared store.
    Shared(SharedLease),
}

/// The lease of a message of a shared store.
#[derive(Clone)]
pub struct SharedLease {
    handle: Arc<Handle>,
    name: LeaseName,
    max_attempts: Option<u32>,
    state: Arc<LeaseState>,
}

struct LeaseState {
    invisible_until_ms: AtomicI64,
    is_settled: AtomicBool,
}

impl std::fmt::Debug for SharedLease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SharedLease").field(&self.name).finish()
    }
}

impl From<mqstore::LeasedMessage> for LeasedMessage {
    fn from(message: mqstore::LeasedMessage) -> Self {
        let mqstore::LeasedMessage { record, lease } = message;
        Self { record, lease: Lease::Own(lease) }
    }
}

impl SharedLease {
    fn verb(&self, verb: QueueVerb<'_>) -> Result<Response, Error> {
        let request = Request::Queue(self.handle.number, verb);
        answer(Call::new(&self.handle.inner, Some(&self.handle), &request, None))
    }

    /// Acknowledges leases, those of one queue with one request.
    pub(super) fn ack_all(leases: &[&Self], durable: bool) -> Result<(), Error> {
        let mut rest = leases;
        while let Some(first) = rest.first() {
            let same = rest.iter().take_while(|lease| Arc::ptr_eq(&lease.handle, &first.handle)).count();
            let (now, later) = rest.split_at(same);
            let names = now.iter().map(|lease| lease.name.clone()).collect();
            done(first.verb(QueueVerb::Ack { leases: names, durable })?)?;
            for lease in now {
                lease.state.is_settled.store(true, Ordering::Release);
            }
            rest = later;
        }
        Ok(())
    }
}

impl Lease {
    /// Makes the lease of a message that the owner delivered.
    pub(super) fn shared(
        handle: &Arc<Handle>,
        delivery: &Delivery,
        record: &StoredRecord,
        max_attempts: Option<u32>,
    ) -> Result<Self, Error> {
        let view = record.view().map_err(|error| mqstore::error::StoreError::invalid_message(&error))?;
        let name = LeaseName {
            topic: view.topic.to_owned(),
            queue_id: view.queue_id,
            queue_offset: record.queue_offset,
            attempt: delivery.attempt,
        };
        let state = LeaseState {
            invisible_until_ms: delivery.invisible_until_ms.into(),
            is_settled: AtomicBool::new(false),
        };
        Ok(Self::Shared(SharedLease {
            handle: Arc::clone(handle),
            name,
            max_attempts,
            state: Arc::new(state),
        }))
    }

    /// Number of the delivery.
    pub fn attempt(&self) -> u32 {
        match self {
            Self::Own(lease) => lease.attempt(),
            Self::Shared(lease) => lease.name.attempt,
        }
    }

    /// The end of the lease, in epoch milliseconds.
    pub fn invisible_until_ms(&self) -> i64 {
        match self {
            Self::Own(lease) => lease.invisible_until_ms(),
            Self::Shared(lease) => lease.state.invisible_until_ms.load(Ordering::Relaxed),
        }
    }

    /// Whether the caller acknowledged or returned the message.
    pub fn is_settled(&self) -> bool {
        match self {
            Self::Own(lease) => lease.is_settled(),
            Self::Shared(lease) => lease.state.is_settled.load(Ordering::Acquire),
        }
    }

    /// Whether the caller still has the message.
    ///
    /// # Errors
    /// Those of a call.
    pub fn is_held(&self) -> Result<bool, Error> {
        match self {
            Self::Own(lease) => Ok(lease.is_held()),
            Self::Shared(lease) => flag(lease.verb(QueueVerb::IsHeld(lease.name.clone()))?),
        }
    }

    /// Whether this is the last attempt.
    pub fn is_last(&self) -> bool {
        match self {
            Self::Own(lease) => lease.is_last(),
            Self::Shared(lease) => lease.max_attempts.is_some_and(|most| lease.name.attempt >= most),
        }
    }

    /// Whether its verbs are calls to another process, which can wait.
    pub fn is_away(&self) -> bool {
        matches!(self, Self::Shared(lease) if lease.handle.inner.here().is_none())
    }

    /// Acknowledges the message; see [`mqstore::delivery::Lease::ack`].
    ///
    /// # Errors
    /// [`Error::LeaseLost`].
    pub fn ack(&self, durable: bool) -> Result<(), Error> {
        match self {
            Self::Own(lease) => lease.ack(durable),
            Self::Shared(lease) => SharedLease::ack_all(&[lease], durable),
        }
    }

    /// Returns the message; see [`mqstore::delivery::Lease::nack_with`].
    ///
    /// # Errors
    /// [`Error::LeaseLost`].
    pub fn nack_with(&self, delay: Option<Duration>, reason: Option<&str>) -> Result<(), Error> {
        match self {
            Self::Own(lease) => lease.nack_with(delay, reason),
            Self::Shared(lease) => {
                let verb = QueueVerb::Nack {
                    lease: lease.name.clone(),
                    delay_ms: delay.map(|delay| delay.as_millis() as u64),
                    reason: reason.map(str::to_owned),
                };
                done(lease.verb(verb)?)?;
                lease.state.is_settled.store(true, Ordering::Release);
                Ok(())
            }
        }
    }

    /// Sets the end of the lease; see [`mqstore::delivery::Lease::extend`].
    ///
    /// # Errors
    /// [`Error::LeaseLost`].
    pub fn extend(&self, time: Duration) -> Result<(), Error> {
        match self {
            Self::Own(lease) => lease.extend(time),
            Self::Shared(lease) => {
                let verb = QueueVerb::Extend { lease: lease.name.clone(), time_ms: time.as_millis() as u64 };
                let Response::Until(until_ms) = lease.verb(verb)? else { return Err(odd()) };
                lease.state.invisible_until_ms.store(until_ms, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    /// The notes of the store for the user.
    pub fn user_notes(&self) -> &Notes {
        match self {
            Self::Own(lease) => lease.user_notes(),
            Self::Shared(lease) => lease.handle.inner.store().user_notes(),
        }
    }
}
