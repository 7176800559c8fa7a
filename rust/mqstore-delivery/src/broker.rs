//! The broker of one store: what its consumers and work queues have in common.
//!
//! Made once for a store; two of them would each give all queues to their own consumers.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Weak};

use mqstore_base::error::StoreError;
use mqstore_engine::PopState;
use mqstore_engine::Store;
use mqstore_format::json::SubscriptionGroup;
use mqstore_format::topic::RETRY_TOPIC_PREFIX;
use mqstore_format::validate_group;
use mqstore_io::sync::Mutex;
use mqstore_meta::MetaLog;

use crate::delay::{DelayOptions, Delays};
use crate::error::BrokerError;
use crate::groups::{Consumer, ConsumerOptions, Coordinator};
use crate::transactions::Transactions;
use crate::work::{WorkQueue, WorkQueueInner, WorkQueueOptions};

/// See the module's text. Cheap to clone; a clone is the same one.
#[derive(Clone)]
pub struct Broker {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    store: Store,
    meta: Arc<MetaLog>,
    /// The groups that have consumers now.
    groups: Mutex<HashMap<String, Weak<Coordinator>>>,
    /// Under which names broadcast consumers keep offsets now.
    names: Mutex<HashSet<String>>,
    /// The work queues that somebody has open, by topic and group.
    queues: Mutex<HashMap<(String, String), Weak<WorkQueueInner>>>,
    /// What a broker popped before, once it was looked for.
    popped: Mutex<Option<Arc<PopState>>>,
    /// Made with the first delayed message, or where some wait.
    delays: Mutex<Option<Arc<Delays>>>,
    delay_options: DelayOptions,
    /// Made with the first transaction, or where an earlier process left some.
    transactions: Mutex<Option<Transactions>>,
}

impl Broker {
    /// Starts delivery for a store that was opened for writing: completes decided transactions and delivers delayed
    /// messages. A program calls it once, right after the open.
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`], [`StoreError::Closed`], and those of [`Self::start_delivery`].
    pub fn start(store: &Store) -> Result<Self, BrokerError> {
        let broker = Self::new(store)?;
        broker.start_delivery()?;
        Ok(broker)
    }

    /// The broker of a store that is open for writing; delayed messages wait until [`Self::start_delivery`].
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`] and [`StoreError::Closed`].
    pub fn new(store: &Store) -> Result<Self, BrokerError> {
        Self::with_delays(store, DelayOptions::default())
    }

    /// As [`Self::new`], with options of delayed messages.
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`] and [`StoreError::Closed`].
    pub fn with_delays(store: &Store, delay_options: DelayOptions) -> Result<Self, BrokerError> {
        let inner = Inner {
            store: store.clone(),
            meta: store.meta()?,
            groups: Mutex::default(),
            names: Mutex::default(),
            queues: Mutex::default(),
            popped: Mutex::default(),
            delays: Mutex::default(),
            delay_options,
            transactions: Mutex::default(),
        };
        let broker = Self { inner: Arc::new(inner) };
        if Transactions::has_transaction_history(store)? {
            broker.transactions()?;
        }
        Ok(broker)
    }

    /// The transactions of its store. Where an earlier process left decisions that were not complete, they are
    /// complete when the broker is there.
    ///
    /// # Errors
    /// What keeps the topics of transactions from being made or read.
    pub fn transactions(&self) -> Result<Transactions, BrokerError> {
        let mut transactions = self.inner.transactions.lock();
        if let Some(made) = transactions.as_ref() {
            return Ok(made.clone());
        }
        Ok(transactions.insert(Transactions::open(self.store())?).clone())
    }

    /// The transactions of its store, where somebody asked for them or an earlier process left some.
    pub fn transactions_if_open(&self) -> Option<Transactions> {
        self.inner.transactions.lock().clone()
    }

    /// Its store.
    pub fn store(&self) -> &Store {
        &self.inner.store
    }

    /// The store's metadata.
    pub fn meta(&self) -> &Arc<MetaLog> {
        &self.inner.meta
    }

    /// A consumer of `topics` in `group`; the group is made where there is none. Topics that do not exist yet are
    /// consumed once they do.
    ///
    /// # Errors
    /// [`StoreError::InvalidOption`] for a group that cannot be one, for no topic at all, and for a name that another
    /// broadcast consumer has.
    pub fn consumer(
        &self,
        group: &str,
        topics: &[&str],
        options: ConsumerOptions,
    ) -> Result<Consumer, BrokerError> {
        if topics.is_empty() {
            return Err(invalid("topics", "names no topic").into());
        }
        if options.name.is_some() && !options.broadcast {
            let reason = "is for broadcast consumers; the others of a group share its offsets";
            return Err(invalid("name", reason).into());
        }
        for topic in topics {
            if self.work_queue_of(topic, group).is_some() {
                let reason = format!("{group} has a work queue of topic {topic} open");
                return Err(invalid("group", reason).into());
            }
        }
        let (ordered, broadcast) = (options.ordered, options.broadcast);
        self.make_group(group, |config| config.consume_message_orderly = ordered)?;
        let notes = if broadcast { Vec::new() } else { self.prepare_group(group, topics)? };
        let consumer = Consumer::new(self, group, topics, options)?;
        for note in notes {
            consumer.note(note);
        }
        Ok(consumer)
    }

    /// Takes over what a broker left of the group in `topics`; what a person should know.
    pub(crate) fn prepare_group(&self, group: &str, topics: &[&str]) -> Result<Vec<String>, BrokerError> {
        let mut notes = Vec::new();
        for topic in topics {
            notes.extend(self.take_over(group, topic)?);
        }
        let is_retries = |topic: &&str| topic.strip_prefix(RETRY_TOPIC_PREFIX) == Some(group);
        if !topics.iter().any(is_retries) {
            notes.extend(self.retry_topic_warning(group)?);
        }
        notes.sort();
        notes.dedup();
        Ok(notes)
    }

    /// A handle on the work queue of `topic` for `group`; topic and group are made where there are none. Handles of one queue
    /// share what is in it.
    ///
    /// # Errors
    /// [`StoreError::InvalidOption`] for a group that cannot be one or that has consumers of the topic, for a topic with
    /// batch queues, and for options that are out of bounds or differ from those of another handle.
    pub fn work_queue(
        &self,
        topic: &str,
        group: &str,
        options: WorkQueueOptions,
    ) -> Result<WorkQueue, BrokerError> {
        options.check()?;
        let retries =
            options.max_attempts.map_or(i32::MAX, |most| i32::try_from(most - 1).unwrap_or(i32::MAX));
        // RocketMQ counts what follows the first delivery.
        self.make_group(group, |config| config.retry_max_times = retries)?;
        if self.store().queue_ids(topic)?.is_empty() {
            self.store().make_topic(topic)?;
        }
        if self.store().has_batch_queues(topic) {
            let reason = format!("{topic} keeps batch queues, whose records are of many messages each");
            return Err(invalid("topic", reason).into());
        }
        if self.coordinator(group).consumes(topic) {
            return Err(invalid("group", format!("{group} has consumers of topic {topic} open")).into());
        }
        let mut queues = self.inner.queues.lock();
        queues.retain(|_, known| known.strong_count() > 0);
        let key = (topic.to_owned(), group.to_owned());
        let invisible = options.invisible;
        if let Some(core) = queues.get(&key).and_then(Weak::upgrade) {
            if let Some(option) = core.difference(&options) {
                let reason = "differs from that of another handle of this work queue that is open";
                return Err(invalid(option, reason).into());
            }
            return Ok(WorkQueue::new(core, invisible));
        }
        let core = WorkQueueInner::open(self, topic, group, options)?;
        queues.insert(key, Arc::downgrade(&core));
        Ok(WorkQueue::new(core, invisible))
    }

    pub(crate) fn found_popped(&self) -> &Mutex<Option<Arc<PopState>>> {
        &self.inner.popped
    }

    /// The delayed messages of the store, opened with the first call.
    pub(crate) fn delays(&self) -> Result<Arc<Delays>, BrokerError> {
        let mut delays = self.inner.delays.lock();
        if let Some(known) = delays.as_ref() {
            return Ok(Arc::clone(known));
        }
        let made = Delays::open(self.store(), self.inner.delay_options.clone())?;
        Ok(Arc::clone(delays.insert(made)))
    }

    pub(crate) fn delays_if_open(&self) -> Option<Arc<Delays>> {
        self.inner.delays.lock().clone()
    }

    fn work_queue_of(&self, topic: &str, group: &str) -> Option<Arc<WorkQueueInner>> {
        self.inner.queues.lock().get(&(topic.to_owned(), group.to_owned())).and_then(Weak::upgrade)
    }

    /// Makes the group where there is none, as `config` has it.
    pub(crate) fn make_group(
        &self,
        group: &str,
        config: impl FnOnce(&mut SubscriptionGroup),
    ) -> Result<(), BrokerError> {
        validate_group(group).map_err(|error| invalid("group", error.to_string()))?;
        if self.meta().group(group).is_none() {
            let mut made = SubscriptionGroup::new(group);
            config(&mut made);
            self.meta().put_group(&made)?;
        }
        Ok(())
    }

    pub(crate) fn coordinator(&self, group: &str) -> Arc<Coordinator> {
        let mut groups = self.inner.groups.lock();
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
        if !self.inner.names.lock().insert(stored_as.clone()) {
            let reason = format!("a broadcast consumer {name:?} of group {group} is open");
            return Err(invalid("name", reason).into());
        }
        Ok(stored_as)
    }

    pub(crate) fn release_broadcast_name(&self, stored_as: &str) {
        self.inner.names.lock().remove(stored_as);
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broker").field("path", &self.store().path()).finish_non_exhaustive()
    }
}

pub(crate) fn invalid(option: &'static str, reason: impl Into<String>) -> StoreError {
    StoreError::InvalidOption { option, reason: reason.into() }
}
