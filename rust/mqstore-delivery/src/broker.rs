//! The broker of one store: opens its consumers, work queues, transactions and delayed messages.
//!
//! Create only one for a store. Two brokers would each assign all queues to their own consumers.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use mqstore_base::message::{Appended, NewMessage};
use mqstore_engine::{AppendMarks, MessageOrigin, Store};
use mqstore_format::validate_group;
use mqstore_io::sync::Mutex;
use mqstore_meta::MetaLog;

use crate::broker_state::BrokerState;
use crate::delay::{Accepted, DelayCounts, DelayOptions, Delays, Due};
use crate::error::{BrokerError, invalid};
use crate::groups::{Consumer, ConsumerOptions, Coordinator};
use crate::transactions::Transactions;
use crate::unfinished::first_unfinished;
use crate::work::{WorkQueue, WorkQueueInner, WorkQueueOptions};

/// The coordinators of the groups that have open consumers, by group.
type OpenGroups = Mutex<HashMap<String, Weak<Coordinator>>>;

/// The open work queues, by topic and group.
type OpenWorkQueues = Mutex<HashMap<(String, String), Weak<WorkQueueInner>>>;

/// The broker of one store; see the module's text. Cheap to clone; all clones share one state.
#[derive(Clone)]
pub struct Broker {
    state: Arc<BrokerState>,
    groups: Arc<OpenGroups>,
    work_queues: Arc<OpenWorkQueues>,
}

impl Broker {
    /// Starts delivery for a store that was opened for writing: completes decided transactions and delivers delayed
    /// messages. Call it once, directly after the open.
    ///
    /// # Errors
    /// `StoreError::ReadOnly`, `StoreError::Closed`, and those of [`Self::start_delivery`].
    pub fn start(store: &Store) -> Result<Self, BrokerError> {
        let broker = Self::new(store)?;
        broker.start_delivery()?;
        Ok(broker)
    }

    /// Creates the broker of a store that is open for writing. Delayed messages wait until [`Self::start_delivery`].
    ///
    /// # Errors
    /// `StoreError::ReadOnly` and `StoreError::Closed`.
    pub fn new(store: &Store) -> Result<Self, BrokerError> {
        Self::with_delays(store, DelayOptions::default())
    }

    /// Like [`Self::new`], with options for delayed messages.
    ///
    /// # Errors
    /// `StoreError::ReadOnly` and `StoreError::Closed`.
    pub fn with_delays(store: &Store, delay_options: DelayOptions) -> Result<Self, BrokerError> {
        let state = BrokerState::new(store, delay_options)?;
        store.find_deliveries_with(first_unfinished);
        let broker = Self { state: Arc::new(state), groups: Arc::default(), work_queues: Arc::default() };
        if Transactions::has_transaction_history(store)? {
            broker.transactions()?;
        }
        Ok(broker)
    }

    /// Returns the transactions of the store. If an earlier process left incomplete decisions, [`Self::new`] has
    /// completed them.
    ///
    /// # Errors
    /// Errors of creating or reading the topics of transactions.
    pub fn transactions(&self) -> Result<Transactions, BrokerError> {
        self.state.transactions()
    }

    /// Returns the transactions of the store, if they were requested before or an earlier process left some.
    pub fn transactions_if_open(&self) -> Option<Transactions> {
        self.state.transactions_if_open()
    }

    /// Returns the store.
    pub fn store(&self) -> &Store {
        self.state.store()
    }

    /// Returns the store's metadata.
    pub fn meta(&self) -> &Arc<MetaLog> {
        self.state.meta()
    }

    /// Opens a consumer of `topics` in `group`, and creates the group if it is missing. A topic that does not exist
    /// yet is consumed as soon as it exists.
    ///
    /// # Errors
    /// `StoreError::InvalidOption` for an invalid group name, for an empty list of topics, for a group with an open
    /// work queue of one of the topics, and for a name that another broadcast consumer uses.
    pub fn consumer(
        &self,
        group: &str,
        topics: &[&str],
        options: ConsumerOptions,
    ) -> Result<Consumer, BrokerError> {
        if topics.is_empty() {
            return Err(invalid("topics", "give at least one topic").into());
        }
        if options.name.is_some() && !options.broadcast {
            let reason = "only a broadcast consumer has a name; others share the offsets of their group";
            return Err(invalid("name", reason).into());
        }
        for topic in topics {
            if self.work_queue_of(topic, group).is_some() {
                let reason = format!("group {group} has an open work queue of topic {topic}; close it first");
                return Err(invalid("group", reason).into());
            }
        }
        let (ordered, broadcast) = (options.ordered, options.broadcast);
        self.state.make_group(group, |config| config.consume_message_orderly = ordered)?;
        if !broadcast {
            self.state.prepare_group(group, topics)?;
        }
        let coordinator = (!broadcast).then(|| self.coordinator(group));
        Consumer::new(&self.state, coordinator, group, topics, options)
    }

    /// Opens a handle on the work queue of `topic` for `group`, and creates topic and group if they are missing.
    /// Handles of one queue share its messages.
    ///
    /// # Errors
    /// `StoreError::InvalidOption` for an invalid group name, for a group that has consumers of the topic, for a
    /// topic with batch queues, and for options that are out of bounds or differ from those of another open handle.
    pub fn work_queue(
        &self,
        topic: &str,
        group: &str,
        options: WorkQueueOptions,
    ) -> Result<WorkQueue, BrokerError> {
        options.check()?;
        let retries =
            options.max_attempts.map_or(i32::MAX, |most| i32::try_from(most - 1).unwrap_or(i32::MAX));
        // RocketMQ does not count the first delivery.
        self.state.make_group(group, |config| config.retry_max_times = retries)?;
        if self.store().queue_ids(topic)?.is_empty() {
            self.store().make_topic(topic)?;
        }
        if self.store().has_batch_queues(topic) {
            let reason = format!("{topic} has batch queues, whose records contain several messages each");
            return Err(invalid("topic", reason).into());
        }
        if self.coordinator(group).consumes(topic) {
            let reason = format!("group {group} has open consumers of topic {topic}; close them first");
            return Err(invalid("group", reason).into());
        }
        let mut queues = self.work_queues.lock();
        queues.retain(|_, known| known.strong_count() > 0);
        let key = (topic.to_owned(), group.to_owned());
        let visibility_timeout = options.visibility_timeout;
        if let Some(core) = queues.get(&key).and_then(Weak::upgrade) {
            if !options.follows
                && let Some((option, reason)) = core.difference(&options)
            {
                return Err(invalid(option, reason).into());
            }
            return Ok(WorkQueue::new(core, visibility_timeout));
        }
        let core = WorkQueueInner::open(&self.state, topic, group, options)?;
        queues.insert(key, Arc::downgrade(&core));
        Ok(WorkQueue::new(core, visibility_timeout))
    }

    /// Returns the group of a work queue of `topic` if the caller names none: `workers-<topic>`, so that each queue has
    /// its own dead letters.
    ///
    /// # Errors
    /// `StoreError::InvalidOption` if `workers-<topic>` is no name of a group.
    pub fn default_group(&self, topic: &str) -> Result<String, BrokerError> {
        let group = format!("workers-{topic}");
        if let Err(error) = validate_group(&group) {
            let reason = format!("the default group of topic {topic} is not allowed ({error}); give group=");
            return Err(invalid("group", reason).into());
        }
        Ok(group)
    }

    fn coordinator(&self, group: &str) -> Arc<Coordinator> {
        let mut groups = self.groups.lock();
        groups.retain(|_, known| known.strong_count() > 0);
        if let Some(known) = groups.get(group).and_then(Weak::upgrade) {
            return known;
        }
        let made = Arc::new(Coordinator::default());
        groups.insert(group.to_owned(), Arc::downgrade(&made));
        made
    }

    fn work_queue_of(&self, topic: &str, group: &str) -> Option<Arc<WorkQueueInner>> {
        self.work_queues.lock().get(&(topic.to_owned(), group.to_owned())).and_then(Weak::upgrade)
    }
}

/// The delayed messages of the store.
impl Broker {
    /// Appends messages that are delivered later. Each goes to the topic and queue that an append would choose now.
    /// One lock, one sync. The results name the waiting records, in the topics `rmq_sys_wheel_timer` and
    /// `SCHEDULE_TOPIC_XXXX`. A message that is already due is appended to its topic directly.
    ///
    /// # Errors
    /// Those of [`Store::append_many`]; `StoreError::InvalidOption` for a time after the year 9999 and for a level
    /// below 1.
    pub fn append_later(&self, messages: &[(NewMessage<'_>, Due)]) -> Result<Vec<Accepted>, BrokerError> {
        Ok(self.state.delays()?.append(messages)?)
    }

    /// Appends messages from elsewhere, like [`mqstore_engine::SystemAppends::append_marked`]; those with a due time
    /// are delivered then. One lock, one sync. After an error in one message, none is appended.
    ///
    /// # Errors
    /// Those of [`mqstore_engine::SystemAppends::append_marked`] and [`Self::append_later`].
    pub fn append_copies(
        &self,
        messages: &[(NewMessage<'_>, Due)],
        origins: &[MessageOrigin],
    ) -> Result<Vec<Appended>, BrokerError> {
        if messages.iter().all(|(_, due)| *due == Due::Now) {
            let messages: Vec<_> = messages.iter().map(|(message, _)| *message).collect();
            return Ok(self
                .store()
                .system_appends()
                .append_marked(&messages, AppendMarks::Origins(origins))?);
        }
        let accepted = self.state.delays()?.append_copies(messages, origins)?;
        Ok(accepted.into_iter().map(|accepted| accepted.appended).collect())
    }

    /// Cancels the delayed message with this message id or unique id. Returns whether it was waiting. A message that
    /// waits by a level cannot be cancelled; the result is then false.
    pub fn cancel(&self, id: &str) -> Result<bool, BrokerError> {
        if !Delays::are_there(self.store())? {
            return Ok(false);
        }
        Ok(self.state.delays()?.cancel(id)?)
    }

    /// Moves the delivery of the delayed message with this message id or unique id to `due_ms`, in epoch
    /// milliseconds. Returns the new record, or `None` if no such message waits. After a crash during the call, both
    /// records may exist.
    pub fn reschedule(&self, id: &str, due_ms: i64) -> Result<Option<Accepted>, BrokerError> {
        if !Delays::are_there(self.store())? {
            return Ok(None);
        }
        Ok(self.state.delays()?.reschedule(id, due_ms)?)
    }

    /// Returns the state of the store's delayed messages. For a store that is open for reading, use
    /// [`DelayCounts::of_reader`].
    pub fn delay_counts(&self) -> Result<DelayCounts, BrokerError> {
        if !Delays::are_there(self.store())? {
            return Ok(DelayCounts::default());
        }
        Ok(self.state.delays()?.counts()?)
    }

    /// Starts to deliver delayed messages, if the store has any. [`Broker::start`] calls it.
    ///
    /// # Errors
    /// Errors of reading the timer files and the delay queues.
    pub fn start_delivery(&self) -> Result<(), BrokerError> {
        if Delays::are_there(self.store())? {
            self.state.delays()?;
        }
        Ok(())
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broker").field("path", &self.store().path()).finish_non_exhaustive()
    }
}
