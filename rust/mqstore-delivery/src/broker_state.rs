//! The state that the consumers, the work queues and the handles of one broker share.
//!
//! Owns the store and its metadata, the names of broadcast consumers, and the delayed messages and transactions once
//! they are open. Every object that a broker returns holds this state. So it lives as long as the
//! last consumer or work queue, and delayed messages are delivered until then.

use std::collections::HashSet;
use std::sync::Arc;

use mqstore_base::error::StoreError;
use mqstore_engine::PopState;
use mqstore_engine::Store;
use mqstore_format::json::SubscriptionGroup;
use mqstore_format::{index_key_hash, validate_group};
use mqstore_io::sync::Mutex;
use mqstore_meta::MetaLog;

use crate::delay::{DelayOptions, Delays};
use crate::error::{BrokerError, invalid};
use crate::transactions::Transactions;

/// The shared state of one broker; see the module's text.
pub(crate) struct BrokerState {
    store: Store,
    meta: Arc<MetaLog>,
    /// The names under which open broadcast consumers store offsets.
    names: Mutex<HashSet<String>>,
    /// The pop state of an earlier RocketMQ broker, once it was read.
    popped: Mutex<Option<Arc<PopState>>>,
    /// Opened with the first delayed message, or if some wait.
    delays: Mutex<Option<Arc<Delays>>>,
    delay_options: DelayOptions,
    /// Opened with the first transaction, or if an earlier process left some.
    transactions: Mutex<Option<Transactions>>,
    /// Locks of puts that must not be repeated. A unique key always has the same one.
    put_locks: [Mutex<()>; PUT_LOCKS],
}

/// Number of locks of puts: more threads than this rarely put at the same time.
const PUT_LOCKS: usize = 64;

impl BrokerState {
    /// Creates the state of a new broker.
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`] and [`StoreError::Closed`].
    pub(crate) fn new(store: &Store, delay_options: DelayOptions) -> Result<Self, StoreError> {
        Ok(Self {
            store: store.clone(),
            meta: store.meta()?,
            names: Mutex::default(),
            popped: Mutex::default(),
            delays: Mutex::default(),
            delay_options,
            transactions: Mutex::default(),
            put_locks: std::array::from_fn(|_| Mutex::default()),
        })
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn meta(&self) -> &Arc<MetaLog> {
        &self.meta
    }

    /// Returns the transactions of the store; the first call opens them.
    pub(crate) fn transactions(&self) -> Result<Transactions, BrokerError> {
        let mut transactions = self.transactions.lock();
        if let Some(made) = transactions.as_ref() {
            return Ok(made.clone());
        }
        Ok(transactions.insert(Transactions::open(&self.store)?).clone())
    }

    pub(crate) fn transactions_if_open(&self) -> Option<Transactions> {
        self.transactions.lock().clone()
    }

    pub(crate) fn found_popped(&self) -> &Mutex<Option<Arc<PopState>>> {
        &self.popped
    }

    /// Returns the delayed messages of the store; the first call opens them.
    pub(crate) fn delays(&self) -> Result<Arc<Delays>, BrokerError> {
        let mut delays = self.delays.lock();
        if let Some(known) = delays.as_ref() {
            return Ok(Arc::clone(known));
        }
        let made = Delays::open(&self.store, self.delay_options.clone())?;
        Ok(Arc::clone(delays.insert(made)))
    }

    /// Returns the lock under which a put looks for an earlier put with its unique key.
    pub(crate) fn put_lock(&self, topic: &str, unique_key: &str) -> &Mutex<()> {
        let number = index_key_hash(topic, unique_key).unsigned_abs() as usize % PUT_LOCKS;
        #[expect(clippy::indexing_slicing, reason = "the number is below the number of locks")]
        &self.put_locks[number]
    }

    /// Creates the group if it is missing, with the configuration that `config` sets.
    pub(crate) fn make_group(
        &self,
        group: &str,
        config: impl FnOnce(&mut SubscriptionGroup),
    ) -> Result<(), BrokerError> {
        validate_group(group).map_err(|error| invalid("group", error.to_string()))?;
        if self.meta.group(group).is_none() {
            let mut made = SubscriptionGroup::new(group);
            config(&mut made);
            self.meta.create_group(&made)?;
        }
        Ok(())
    }

    /// Reserves the group name under which a broadcast consumer of this name stores its offsets, and returns it.
    pub(crate) fn claim_broadcast_name(&self, group: &str, name: &str) -> Result<String, BrokerError> {
        validate_group(name).map_err(|error| invalid("name", error.to_string()))?;
        let stored_as = format!("{group}|{name}");
        if !self.names.lock().insert(stored_as.clone()) {
            let reason = format!("a broadcast consumer {name:?} of group {group} is already open");
            return Err(invalid("name", reason).into());
        }
        Ok(stored_as)
    }

    pub(crate) fn release_broadcast_name(&self, stored_as: &str) {
        self.names.lock().remove(stored_as);
    }
}
