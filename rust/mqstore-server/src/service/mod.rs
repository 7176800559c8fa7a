//! The service of an owner: what it does for the requests of all clients, whatever way they come.
//!
//! A front-end gives the bytes of each request to the [`session::Session`] of its client, and sends the answer. Here is
//! no socket. Nothing in the thread of the front-end blocks: an append that may block goes to one thread for appends,
//! which shares syncs; a wait registers a waker; the other verbs run in threads of the runtime's pool.

pub(crate) mod core;
pub(crate) mod session;
#[cfg(test)]
mod takeover_tests;
pub(crate) mod verbs;
pub(crate) mod waits;

use std::collections::HashMap;
use std::io;

use mqstore::Store;
use mqstore::io::sync::{Arc, JoinHandle, Mutex, spawn};

use self::core::Core;
use crate::steps;
use crate::wire::greeting::Hello;
use session::Session;

/// Maximum number of clients whose last connection is remembered.
const MOST_KNOWN_CLIENTS: usize = 1 << 16;

/// The service for one open store.
pub(crate) struct Service {
    core: Arc<Core>,
    sessions: Mutex<HashMap<u128, Arc<Session>>>,
    /// The number of the last connection of each client, also of those that are gone: what a late connection still has
    /// was sent again on a later one.
    last_connections: Mutex<HashMap<u128, u64>>,
    appender: Mutex<Option<JoinHandle<()>>>,
}

impl Service {
    /// Starts the service, with its thread for appends.
    ///
    /// # Errors
    /// The error of the system if it cannot start a thread.
    pub(crate) fn start(store: Store) -> io::Result<Arc<Self>> {
        let core = Core::new(store);
        let own = Arc::clone(&core);
        let thread = spawn("mqstore-append", move || own.appends.run(&own.store))?;
        Ok(Arc::new(Self {
            core,
            sessions: Mutex::default(),
            last_connections: Mutex::default(),
            appender: Mutex::new(Some(thread)),
        }))
    }

    /// What the sessions share.
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Begins the session of a connection whose client has said hello, once no request of its earlier connections runs.
    /// `None` if a later connection has come before it: then this one takes no requests.
    pub(crate) async fn enter(&self, hello: &Hello) -> Option<Arc<Session>> {
        let session = Session::new(&self.core, hello.client, hello.pid, hello.library.clone());
        if !self.add(&session, hello.connection) {
            return None;
        }
        session.wait_for_earlier().await;
        Some(session)
    }

    /// Ends the session of a connection that is gone.
    pub(crate) async fn leave(self: Arc<Self>, session: Arc<Session>) {
        session.end_waits();
        // A later connection of the client must find it until then.
        if steps::does("service.keep_until_idle") {
            session.wait_until_idle().await;
        }
        // An error is a panic, which was reported.
        let _ = tokio::task::spawn_blocking(move || self.remove(&session)).await;
    }

    /// Adds the session of a client's connection with this number. An earlier connection of the client takes no more
    /// requests. Returns false if a later one has come before it: then this one takes none.
    fn add(&self, session: &Arc<Session>, connection: u64) -> bool {
        {
            let mut last = self.last_connections.lock();
            if last.len() >= MOST_KNOWN_CLIENTS {
                // The greeting of a client that came and went is not under way any more, so many clients later.
                let sessions = self.sessions.lock();
                last.retain(|client, _| sessions.contains_key(client));
            }
            let last = last.entry(session.client).or_default();
            if connection <= *last && steps::does("service.refuse_late_connections") {
                return false;
            }
            *last = connection;
        }
        self.core.list(session.client, Arc::<Session>::clone(session));
        if let Some(earlier) = self.sessions.lock().insert(session.client, Arc::clone(session)) {
            session.follow(earlier);
        }
        true
    }

    /// Removes a session whose connection is gone. Its consumers leave, and its transactions are pending.
    fn remove(&self, session: &Arc<Session>) {
        let mut sessions = self.sessions.lock();
        if sessions.get(&session.client).is_some_and(|known| Arc::ptr_eq(known, session)) {
            sessions.remove(&session.client);
            self.core.unlist(session.client);
        }
        drop(sessions);
        session.drop_handles();
    }

    /// Ends the thread for appends, after the appends in progress.
    pub(crate) fn end(&self) {
        self.core.appends.end();
        if let Some(thread) = self.appender.lock().take() {
            // It returns by itself; a panic in it was reported.
            let _ = thread.join();
        }
    }
}
