//! The broker of one store: opens its consumers, work queues, transactions and delayed messages.
//!
//! Made once for a store; two of them would each give all queues to their own consumers.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use mqstore_base::message::NewMessage;
use mqstore_engine::Store;
use mqstore_io::sync::Mutex;
use mqstore_meta::MetaLog;

use crate::broker_state::BrokerState;
use crate::delay::{Accepted, DelayCounts, DelayOptions, Delays, Due};
use crate::error::{BrokerError, invalid};
use crate::groups::{Consumer, ConsumerOptions};
use crate::transactions::Transactions;
use crate::work::{WorkQueue, WorkQueueInner, WorkQueueOptions};

/// The work queues that somebody has open, by topic and group.
type OpenWorkQueues = Mutex<HashMap<(String, String), Weak<WorkQueueInner>>>;

/// See the module's text. Cheap to clone; a clone is the same one.
#[derive(Clone)]
pub struct Broker {
    state: Arc<BrokerState>,
    work_queues: Arc<OpenWorkQueues>,
}

impl Broker {
    /// Starts delivery for a store that was opened for writing: completes decided transactions and delivers delayed
    /// messages. A program calls it once, right after the open.
    ///
    /// # Errors
    /// `StoreError::ReadOnly`, `StoreError::Closed`, and those of [`Self::start_delivery`].
    pub fn start(store: &Store) -> Result<Self, BrokerError> {
        let broker = Self::new(store)?;
        broker.start_delivery()?;
        Ok(broker)
    }

    /// The broker of a store that is open for writing; delayed messages wait until [`Self::start_delivery`].
    ///
    /// # Errors
    /// `StoreError::ReadOnly` and `StoreError::Closed`.
    pub fn new(store: &Store) -> Result<Self, BrokerError> {
        Self::with_delays(store, DelayOptions::default())
    }

    /// As [`Self::new`], with options of delayed messages.
    ///
    /// # Errors
    /// `StoreError::ReadOnly` and `StoreError::Closed`.
    pub fn with_delays(store: &Store, delay_options: DelayOptions) -> Result<Self, BrokerError> {
        let state = BrokerState::new(store, delay_options)?;
        let broker = Self { state: Arc::new(state), work_queues: Arc::default() };
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
        self.state.transactions()
    }

    /// The transactions of its store, where somebody asked for them or an earlier process left some.
    pub fn transactions_if_open(&self) -> Option<Transactions> {
        self.state.transactions_if_open()
    }

    /// Its store.
    pub fn store(&self) -> &Store {
        self.state.store()
    }

    /// The store's metadata.
    pub fn meta(&self) -> &Arc<MetaLog> {
        self.state.meta()
    }

    /// A consumer of `topics` in `group`; the group is made where there is none. Topics that do not exist yet are
    /// consumed once they do.
    ///
    /// # Errors
    /// `StoreError::InvalidOption` for a group that cannot be one, for no topic at all, and for a name that another
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
        self.state.make_group(group, |config| config.consume_message_orderly = ordered)?;
        let notes = if broadcast { Vec::new() } else { self.state.prepare_group(group, topics)? };
        let consumer = Consumer::new(&self.state, group, topics, options)?;
        for note in notes {
            consumer.note(note);
        }
        Ok(consumer)
    }

    /// A handle on the work queue of `topic` for `group`; topic and group are made where there are none. Handles of one queue
    /// share what is in it.
    ///
    /// # Errors
    /// `StoreError::InvalidOption` for a group that cannot be one or that has consumers of the topic, for a topic with
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
        self.state.make_group(group, |config| config.retry_max_times = retries)?;
        if self.store().queue_ids(topic)?.is_empty() {
            self.store().make_topic(topic)?;
        }
        if self.store().has_batch_queues(topic) {
            let reason = format!("{topic} keeps batch queues, whose records are of many messages each");
            return Err(invalid("topic", reason).into());
        }
        if self.state.coordinator(group).consumes(topic) {
            return Err(invalid("group", format!("{group} has consumers of topic {topic} open")).into());
        }
        let mut queues = self.work_queues.lock();
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
        let core = WorkQueueInner::open(&self.state, topic, group, options)?;
        queues.insert(key, Arc::downgrade(&core));
        Ok(WorkQueue::new(core, invisible))
    }

    fn work_queue_of(&self, topic: &str, group: &str) -> Option<Arc<WorkQueueInner>> {
        self.work_queues.lock().get(&(topic.to_owned(), group.to_owned())).and_then(Weak::upgrade)
    }
}

/// The delayed messages of its store.
impl Broker {
    /// Appends messages that are delivered later, each at its time, to where an append would put them now: one lock, one
    /// sync. The answers name the records that wait, in the topics `rmq_sys_wheel_timer` and `SCHEDULE_TOPIC_XXXX`; what
    /// was due already is where it belongs.
    ///
    /// # Errors
    /// Those of [`Store::append_many`]; `StoreError::InvalidOption` for a time beyond the year 9999 and a level below 1.
    pub fn append_later(&self, messages: &[(NewMessage<'_>, Due)]) -> Result<Vec<Accepted>, BrokerError> {
        Ok(self.state.delays()?.append(messages)?)
    }

    /// Cancels the delayed message with this message id or unique id; whether it waited. A message that waits by a level
    /// cannot be cancelled, and is never found.
    pub fn cancel(&self, id: &str) -> Result<bool, BrokerError> {
        if !Delays::are_there(self.store())? {
            return Ok(false);
        }
        Ok(self.state.delays()?.cancel(id)?)
    }

    /// Has the delayed message with this message id or unique id delivered at `due_ms` instead, in epoch milliseconds. The
    /// answer names the new record; `None` where no such message waits. After a stop in between both may be there.
    pub fn reschedule(&self, id: &str, due_ms: i64) -> Result<Option<Accepted>, BrokerError> {
        if !Delays::are_there(self.store())? {
            return Ok(None);
        }
        Ok(self.state.delays()?.reschedule(id, due_ms)?)
    }

    /// Where the delayed messages of the store stand. For a store that is open for reading there is
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
    /// Those of reading the timer files and the delay queues.
    pub fn start_delivery(&self) -> Result<(), BrokerError> {
        if Delays::are_there(self.store())? {
            self.state.delays()?;
        }
        Ok(())
    }

    /// What a person should know about delayed messages, each once.
    pub fn take_delay_notes(&self) -> Vec<String> {
        self.state.delays_if_open().map(|delays| delays.take_notes()).unwrap_or_default()
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broker").field("path", &self.store().path()).finish_non_exhaustive()
    }
}
