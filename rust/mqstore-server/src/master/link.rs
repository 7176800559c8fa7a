//! The connection to a replica: a thread that sends, and one that receives.

use std::time::Duration;

use mqstore::io::sync::{Arc, AtomicUsize, JoinHandle, Mutex, Ordering, spawn};
use mqstore::replication::master::{MasterError, MasterSession};

use super::state::{State, now_ms};
use crate::tcp::Connection;

/// Bytes of a frame at most. A slave of RocketMQ has a buffer of 4 MiB.
const FRAME_BYTES: usize = 512 << 10;
/// Longest wait of a thread, so that it notices a replica that is silent.
const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// See the header of this module.
pub(super) struct Link {
    state: Arc<State>,
    connection: Connection,
    number: u64,
    session: Mutex<MasterSession>,
    /// The threads that run.
    running: AtomicUsize,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Link {
    /// Serves a connection; `None` if the system has no threads for it.
    pub(super) fn start(state: &Arc<State>, connection: Connection) -> Option<Arc<Self>> {
        let number = state.connect(&connection.address);
        let link = Arc::new(Self {
            state: Arc::clone(state),
            connection,
            number,
            session: Mutex::new(MasterSession::new(state.asks_durable_acks, now_ms())),
            running: AtomicUsize::new(2),
            threads: Mutex::default(),
        });
        for (name, work) in [("mqstore-send", Self::send as fn(&Self) -> _), ("mqstore-acks", Self::receive)]
        {
            let own = Arc::clone(&link);
            if let Ok(thread) = spawn(name, move || own.run(work)) {
                link.threads.lock().push(thread);
            } else {
                link.connection.end();
                link.leave();
            }
        }
        (!link.has_ended()).then_some(link)
    }

    /// Whether both threads have ended.
    pub(super) fn has_ended(&self) -> bool {
        self.running.load(Ordering::SeqCst) == 0
    }

    /// Ends the connection and waits for the threads.
    pub(super) fn end(&self) {
        self.connection.end();
        self.state.wake();
        for thread in self.threads.lock().drain(..) {
            // A panic in it was reported.
            let _ = thread.join();
        }
    }

    fn run(&self, work: fn(&Self) -> Result<(), String>) {
        let outcome = work(self);
        if let Err(reason) = outcome
            && !self.state.has_ended()
        {
            let protocol = self.session.lock().facts().protocol;
            // A port scan is no replica.
            if protocol.is_some() {
                // Not the port, which is another one each time.
                let host = self.connection.address.rsplit_once(':').map_or("", |(host, _)| host);
                self.state.note(format!("the replica at {host}: {reason}"));
            }
        }
        self.connection.end();
        self.state.wake();
        self.leave();
    }

    /// One of the two threads ends.
    fn leave(&self) {
        if self.running.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.state.disconnect(self.number);
        }
    }

    /// Whether this thread must end. Both end together.
    fn is_over(&self) -> bool {
        self.state.has_ended() || self.running.load(Ordering::SeqCst) < 2
    }

    fn send(&self) -> Result<(), String> {
        let state = &*self.state;
        let mut out = Vec::new();
        while !self.is_over() {
            let has_more = || self.is_over() || self.session.lock().has_more(&state.sent());
            let is_much = || {
                self.is_over() || self.session.lock().backlog(state.feed.end()) >= (FRAME_BYTES / 4) as u64
            };
            state.wait_to_send(LONGEST_WAIT, has_more, is_much);
            state.sending(self.number);
            out.clear();
            let mut session = self.session.lock();
            let sent = session.next_frame(&state.sent(), FRAME_BYTES, now_ms(), &mut out);
            drop(session);
            sent.map_err(|error| error.to_string())?;
            // A connection that is gone needs no note.
            if self.connection.send(&out).is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn receive(&self) -> Result<(), String> {
        let state = &*self.state;
        let mut answer = Vec::new();
        while !self.is_over() {
            let take = |bytes: &[u8], _| {
                if bytes.is_empty() {
                    return Ok(());
                }
                let mut session = self.session.lock();
                let before = session.facts();
                session.receive(bytes, &state.feed, &state.epochs, now_ms(), &mut answer)?;
                let facts = session.facts();
                drop(session);
                state.change(|replicas| replicas.reported(self.number, facts, now_ms()));
                if before.begin != facts.begin {
                    state.wake();
                }
                Ok(())
            };
            let Ok(taken) = self.connection.receive(LONGEST_WAIT, take) else { return Ok(()) };
            taken.map_err(|error: MasterError| error.to_string())?;
            // Nothing else is sent before the first report, which follows the answer.
            if self.connection.send(&answer).is_err() {
                return Ok(());
            }
            answer.clear();
        }
        Ok(())
    }
}
