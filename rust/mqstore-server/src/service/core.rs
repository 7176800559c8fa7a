//! What the sessions of one owner share: the store, the queue of appends, and the list of clients.

use std::collections::HashMap;

use mqstore::Store;
use mqstore::append::AppendQueue;
use mqstore::io::sync::{Arc, AtomicU64, Mutex, OnceLock, Ordering};
use mqstore::replication::replica_set::MasterStatus;

use crate::wire::response::ClientInfo;

/// Requests and bytes of the queued appends of all clients; more wait.
const MOST_APPENDS: usize = 4096;
const MOST_APPEND_BYTES: u64 = 256 << 20;

/// A connected client.
pub(crate) trait ConnectedClient: Send + Sync {
    /// Describes it.
    fn info(&self) -> ClientInfo;
}

/// See the header of this module.
pub(crate) struct Core {
    pub(crate) store: Store,
    pub(crate) appends: AppendQueue,
    next_append: AtomicU64,
    clients: Mutex<HashMap<u128, Arc<dyn ConnectedClient>>>,
    /// Tells how far the replicas are, if the store serves any.
    replicas: OnceLock<Replicas>,
}

type Replicas = Box<dyn Fn() -> MasterStatus + Send + Sync>;

impl Core {
    pub(crate) fn new(store: Store) -> Arc<Self> {
        let appends = AppendQueue::new(&store, MOST_APPENDS, MOST_APPEND_BYTES);
        Arc::new(Self {
            store,
            appends,
            next_append: AtomicU64::new(1),
            clients: Mutex::default(),
            replicas: OnceLock::new(),
        })
    }

    /// Returns the number of the next queued append.
    pub(crate) fn append_number(&self) -> u64 {
        self.next_append.fetch_add(1, Ordering::Relaxed)
    }

    /// The id of this process.
    pub(crate) fn pid(&self) -> u32 {
        self.store.files().vfs.environment().pid
    }

    /// Sets what tells how far the replicas are.
    pub(crate) fn set_replicas(&self, replicas: Replicas) {
        // It is set once.
        let _ = self.replicas.set(replicas);
    }

    /// Returns how far the replicas are; `None` for a store that serves none.
    pub(crate) fn replication(&self) -> Option<MasterStatus> {
        self.replicas.get().map(|status| status())
    }

    /// Lists a client.
    pub(crate) fn list(&self, client: u128, view: Arc<dyn ConnectedClient>) {
        self.clients.lock().insert(client, view);
    }

    /// Removes a client from the list.
    pub(crate) fn unlist(&self, client: u128) {
        self.clients.lock().remove(&client);
    }

    /// Describes the clients.
    pub(crate) fn clients(&self) -> Vec<ClientInfo> {
        let clients: Vec<_> = self.clients.lock().values().cloned().collect();
        clients.iter().map(|client| client.info()).collect()
    }
}
