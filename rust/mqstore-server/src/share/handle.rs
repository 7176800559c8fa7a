//! A handle of this process at the owner: a work queue, a consumer or a transaction.
//!
//! Each owner must open it anew. The handle opens itself before its first verb there, with the request of its making.

use std::time::Duration;

use mqstore::error::StoreError;
use mqstore::io::sync::{Arc, Mutex};
use mqstore::{Error, Store};

use super::{Inner, Place};
use crate::client::connection::{Connection, Waited};
use crate::client::encoded::Encoded;
use crate::wire::frame::AGAIN;
use crate::wire::request::Request;
use crate::wire::response::Response;

/// The local form of a handle, in the owner itself.
#[derive(Clone)]
pub(crate) enum Local {
    Queue(Arc<mqstore::WorkQueue>),
    Consumer(Arc<mqstore::Consumer>),
    Transaction(Arc<mqstore::Transaction>),
    /// A transaction that was decided before.
    Decided,
}

/// Makes the request, and the local form.
pub(crate) trait Opening: Send + Sync {
    /// Calls `send` with the request that opens the handle at an owner.
    fn request(&self, number: u64) -> Encoded;

    /// Opens it in this process.
    fn open(&self, store: &Store) -> Result<Local, Error>;

    /// Gets the response of an owner.
    fn opened(&self, _response: &Response) {}
}

#[derive(Default)]
struct State {
    /// The role for which the handle is open.
    role: Option<u64>,
    local: Option<Local>,
    /// The request that opens it, on its way.
    opening: Option<(u64, u64)>,
    /// Whether an owner has had it.
    was_open: bool,
}

pub(crate) struct Handle {
    pub(crate) inner: Arc<Inner>,
    pub(crate) number: u64,
    opening: Box<dyn Opening>,
    state: Mutex<State>,
}

/// Where the verbs of an open handle run.
pub(crate) enum Opened {
    Here(Local),
    There(Arc<Connection>),
}

impl Handle {
    pub(crate) fn new(inner: &Arc<Inner>, opening: Box<dyn Opening>) -> Arc<Self> {
        let number = inner.handle_number();
        Arc::new(Self { inner: Arc::clone(inner), number, opening, state: Mutex::default() })
    }

    /// Returns where verbs run, with the handle open there; `None` if that takes longer than `longest`.
    pub(crate) fn place(&self, longest: Duration) -> Result<Option<Opened>, Error> {
        let Some((place, role)) = self.inner.place(longest)? else { return Ok(None) };
        let mut state = self.state.lock();
        match place {
            Place::Here(owner) => {
                if let (Some(local), true) = (&state.local, state.role == Some(role)) {
                    return Ok(Some(Opened::Here(local.clone())));
                }
                let local = self.opening.open(owner.store())?;
                *state =
                    State { role: Some(role), local: Some(local.clone()), opening: None, was_open: true };
                Ok(Some(Opened::Here(local)))
            }
            Place::There(connection) => {
                if state.role == Some(role) {
                    return Ok(Some(Opened::There(connection)));
                }
                let number = match state.opening {
                    Some((number, of)) if of == role => number,
                    _ => {
                        let flags = if state.was_open { AGAIN } else { 0 };
                        connection.send(&self.opening.request(self.number), flags)
                    }
                };
                state.local = None;
                state.opening = Some((number, role));
                match connection.wait(number, longest) {
                    Waited::NotYet | Waited::Lost => Ok(None),
                    Waited::Answered(answer) => {
                        state.opening = None;
                        self.opening.opened(&answer.map_err(Error::from)?);
                        (state.role, state.was_open) = (Some(role), true);
                        Ok(Some(Opened::There(connection)))
                    }
                }
            }
        }
    }

    /// Opens the handle, however long that takes; looks at the program after each `slice`.
    pub(crate) fn open(&self, slice: Duration) -> Result<(), Error> {
        while self.place(slice)?.is_none() {
            self.inner.setup.program.interrupted()?;
        }
        Ok(())
    }

    /// Returns the local form if the handle is open in this process.
    pub(crate) fn local(&self) -> Result<Option<Local>, Error> {
        if self.inner.here().is_none() {
            return Ok(None);
        }
        match self.place(Duration::ZERO)? {
            Some(Opened::Here(local)) => Ok(Some(local)),
            _ => Ok(None),
        }
    }

    /// Closes it at the owner, without a wait.
    pub(crate) fn close(&self) {
        let state = std::mem::take(&mut *self.state.lock());
        if let Some(local) = &state.local {
            match local {
                Local::Queue(queue) => queue.close(),
                Local::Consumer(consumer) => consumer.close(),
                Local::Transaction(_) | Local::Decided => {}
            }
            return;
        }
        let Some(role) = state.role else { return };
        if let Ok(Some((Place::There(connection), now))) = self.inner.place(Duration::ZERO)
            && now == role
        {
            let number = connection.send(&Encoded::new(&Request::Close(self.number)), 0);
            // The owner closes it, or is gone.
            connection.forget(number);
        }
    }
}

/// Returns the error for a response of the wrong kind.
pub(crate) fn odd() -> Error {
    StoreError::Refused { reason: "the owner of the store gave an answer of the wrong kind".to_owned() }
        .into()
}
