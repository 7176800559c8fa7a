//! A store that replicas follow: slaves of RocketMQ, and copies of `mqstore follow`.
//!
//! ```text
//! accept thread ── connection ──┬── sender: waits for the log to grow, sends it; for a standby of ours, the metadata
//!                               └── receiver: acknowledgements ──► ReplicaSet ──► covered offset ──► appends
//! ```
//!
//! [`Master`] is also a background task of the store: its step notices replicas that fall behind, and its end, which
//! comes before the store closes, ends all connections. The protocol is in `mqstore-replication`, which knows no sockets.

mod link;
mod standbys;
mod state;

use std::time::Duration;

use mqstore::Store;
use mqstore::error::StoreError;
use mqstore::io::Clock;
use mqstore::io::sync::{Arc, AtomicBool, JoinHandle, Mutex, Ordering, spawn};
use mqstore::replication::epochs::EpochTable;
use mqstore::replication::replica_set::MasterStatus;
use mqstore::store::BackgroundTask;

use crate::deadline::clock;
use crate::tcp::{Acceptor, wake};
use link::Link;
use standbys::Standbys;
use state::State;

/// Longest pause between two looks at the replicas.
const LOOK: Duration = Duration::from_millis(100);
/// Connections above this are refused.
const MOST_CONNECTIONS: usize = 256;
/// Pause after an error of the listening socket, for example if the process has no free descriptor.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

/// See the header of this module.
pub struct Master {
    state: Arc<State>,
    links: Mutex<Vec<Arc<Link>>>,
    acceptor: Mutex<Option<JoinHandle<()>>>,
    ended: AtomicBool,
    /// Copies the metadata for standbys.
    standbys: Arc<Standbys>,
    address: std::net::SocketAddr,
}

impl Master {
    /// Begins an epoch, and serves replicas until the store closes; nothing without the option `replication`.
    ///
    /// # Errors
    /// `Io` if it cannot listen, or cannot store the epoch; `Corrupt` for damaged epochs.
    pub fn start(store: &Store) -> Result<Option<Arc<Self>>, StoreError> {
        let Some(options) = store.master_options().cloned() else { return Ok(None) };
        let listening =
            |error| StoreError::io(std::path::Path::new(&options.listen), "listening for replicas", error);
        let acceptor = Acceptor::open(&options.listen).map_err(listening)?;
        let feed = store.log_feed()?;
        let files = store.files();
        let mut epochs = EpochTable::load(files)?;
        let (first, end) = feed.bounds();
        let begun = epochs.begin(first, end, options.epoch).map_err(|last| {
            let (root, epoch) = (files.root.display(), options.epoch.unwrap_or(0));
            let reason =
                format!("{root}: this log has epoch {last}, so a master with epoch {epoch} is too old");
            StoreError::Refused { reason }
        })?;
        if begun {
            epochs.save(files)?;
        }
        let address = acceptor.address();
        let state = Arc::new(State::new(&options, feed, epochs, files));
        let master = Arc::new(Self {
            standbys: Arc::new(Standbys::new(store, &state, options.metadata_interval_ms)),
            state,
            links: Mutex::default(),
            acceptor: Mutex::default(),
            ended: AtomicBool::new(false),
            address,
        });
        let weak = Arc::downgrade(&master);
        let accept = move || {
            loop {
                let accepted = acceptor.accept();
                let Some(master) = weak.upgrade().filter(|master| !master.has_ended()) else { return };
                match accepted {
                    Ok(connection) => master.serve(connection),
                    Err(_) => clock().sleep(AFTER_FAILURE),
                }
            }
        };
        let thread = spawn("mqstore-replica", accept).map_err(listening)?;
        *master.acceptor.lock() = Some(thread);
        master.state.look();
        let tasks: [Arc<dyn BackgroundTask>; 2] =
            [Arc::<Self>::clone(&master), Arc::<Standbys>::clone(&master.standbys)];
        for task in tasks {
            store.run_in_background(&task)?;
        }
        Ok(Some(master))
    }

    /// Returns how far the replicas are.
    pub fn status(&self) -> MasterStatus {
        self.state.status(self.address.to_string())
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    fn serve(&self, connection: crate::tcp::Connection) {
        let mut links = self.links.lock();
        links.retain(|link| !link.has_ended());
        // A refused one finds the connection closed, and tries again after a pause.
        if links.len() < MOST_CONNECTIONS && !self.has_ended() {
            links.extend(Link::start(&self.state, connection));
        }
    }

    fn stop(&self) {
        if self.ended.swap(true, Ordering::SeqCst) {
            return;
        }
        wake(self.address);
        if let Some(thread) = self.acceptor.lock().take()
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic in it was reported.
            let _ = thread.join();
        }
        let links = std::mem::take(&mut *self.links.lock());
        self.state.end();
        for link in links {
            link.end();
        }
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        self.stop();
    }
}

impl BackgroundTask for Master {
    fn name(&self) -> &'static str {
        "mqstore-master"
    }

    fn step(&self) -> Result<Duration, StoreError> {
        self.state.look();
        Ok(LOOK)
    }

    fn rest(&self, longest: Duration) {
        self.state.rest(longest);
    }

    fn wake(&self) {
        self.state.wake();
    }

    fn end(&self) -> Result<(), StoreError> {
        self.stop();
        Ok(())
    }
}
