//! What the consumers, the work queues and the handles of one broker share.
//!
//! Owns the store and its metadata, the coordinator of each group, the names of broadcast consumers, and the delayed
//! messages and transactions once they are open. Everything that a broker hands out holds the state: it lives as long
//! as the last consumer or work queue, so that delayed messages are delivered until then.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use mqstore_base::error::StoreError;
use mqstore_engine::PopState;
use mqstore_engine::Store;
use mqstore_format::json::SubscriptionGroup;
use mqstore_format::validate_group;
use mqstore_io::sync::Mutex;
use mqstore_meta::MetaLog;

use crate::delay::{DelayOptions, Delays};
use crate::error::{BrokerError, invalid};
use crate::groups::Coordinator;
use crate::transactions::Transactions;

/// See the module's text.
pub(crate) struct BrokerState {
    store: Store,
    meta: Arc<MetaLog>,
    /// The groups that have consumers now.
    groups: Mutex<HashMap<String, Weak<Coordinator>>>,
    /// Under which names broadcast consumers keep offsets now.
    names: Mutex<HashSet<String>>,
    /// What a broker popped before, once it was looked for.
    popped: Mutex<Option<Arc<PopState>>>,
    /// Made with the first delayed message, or where some wait.
    delays: Mutex<Option<Arc<Delays>>>,
    delay_options: DelayOptions,
    /// Made with the first transaction, or where an earlier process left some.
    transactions: Mutex<Option<Transactions>>,
}

impl BrokerState {
    /// The state of a broker that has handed out nothing yet.
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`] and [`StoreError::Closed`].
    pub(crate) fn new(store: &Store, delay_options: DelayOptions) -> Result<Self, StoreError> {
        Ok(Self {
            store: store.clone(),
            meta: store.meta()?,
            groups: Mutex::default(),
            names: Mutex::default(),
            popped: Mutex::default(),
            delays: Mutex::default(),
            delay_options,
            transactions: Mutex::default(),
        })
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn meta(&self) -> &Arc<MetaLog> {
        &self.meta
    }

    /// The transactions of the store, opened with the first call.
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

    /// The delayed messages of the store, opened with the first call.
    pub(crate) fn delays(&self) -> Result<Arc<Delays>, BrokerError> {
        let mut delays = self.delays.lock();
        if let Some(known) = delays.as_ref() {
            return Ok(Arc::clone(known));
        }
        let made = Delays::open(&self.store, self.delay_options.clone())?;
        Ok(Arc::clone(delays.insert(made)))
    }

    pub(crate) fn delays_if_open(&self) -> Option<Arc<Delays>> {
        self.delays.lock().clone()
    }

    /// Makes the group where there is none, as `config` has it.
    pub(crate) fn make_group(
        &self,
        group: &str,
        config: impl FnOnce(&mut SubscriptionGroup),
    ) -> Result<(), BrokerError> {
        validate_group(group).map_err(|error| invalid("group", error.to_string()))?;
        if self.meta.group(group).is_none() {
            let mut made = SubscriptionGroup::new(group);
            config(&mut made);
            self.meta.put_group(&made)?;
        }
        Ok(())
    }

    pub(crate) fn coordinator(&self, group: &str) -> Arc<Coordinator> {
        let mut groups = self.groups.lock();
        groups.retain(|_, known| known.strong_count() > 0);
        if let Some(known) = groups.get(group).and_then(Weak::upgrade) {
            return known;
        }
        let made = Arc::new(Coordinator::default());
        groups.insert(group.to_owned(), Arc::downgrade(&made));
        made
    }

    /// The group under which a broadcast consumer of this name keeps its offsets, for it alone.
    pub(crate) fn claim_broadcast_name(&self, group: &str, name: &str) -> Result<String, BrokerError> {
        validate_group(name).map_err(|error| invalid("name", error.to_string()))?;
        let stored_as = format!("{group}|{name}");
        if !self.names.lock().insert(stored_as.clone()) {
            let reason = format!("a broadcast consumer {name:?} of group {group} is open");
            return Err(invalid("name", reason).into());
        }
        Ok(stored_as)
    }

    pub(crate) fn release_broadcast_name(&self, stored_as: &str) {
        self.names.lock().remove(stored_as);
    }
}
