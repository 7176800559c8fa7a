//! Requests: the verbs that only the owner of a store can do, as values.
//!
//! Bodies and properties are borrowed: from the caller when a request is encoded, from the received payload when it is
//! decoded. Handles (work queues, consumers, transactions) have numbers that their client gives.

use std::collections::BTreeSet;
use std::net::IpAddr;

use mqstore::append::MessageOrigin;
use mqstore::delivery::{CheckOptions, Due, Queue};
use mqstore::format::{Host, SysFlag};
use mqstore::message::NewMessage;
use mqstore::store::{ArchiveState, TopicChange, TopicRetention};
use serde::{Deserialize, Serialize};

/// A message to append, in its stored form; see [`NewMessage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message<'a> {
    /// The body.
    #[serde(with = "serde_bytes")]
    pub body: &'a [u8],
    /// The properties in RocketMQ's text form, with the unique key.
    #[serde(with = "serde_bytes")]
    pub properties: &'a [u8],
    /// The unique key. Each message of a request has one, so that a repeat can be found.
    pub unique_key: &'a str,
    /// How the body is compressed.
    pub sys_flag: i32,
    /// The flag of the application.
    pub flag: i32,
    /// When it was made, in epoch milliseconds.
    pub born_timestamp_ms: Option<i64>,
}

impl<'a> Message<'a> {
    /// Returns the message for the façade.
    pub fn new_message(&self, topic: &'a str, queue_id: Option<i32>, durable: bool) -> NewMessage<'a> {
        NewMessage {
            topic,
            body: self.body,
            sys_flag: SysFlag(self.sys_flag),
            properties: self.properties,
            unique_key: Some(self.unique_key),
            queue_id,
            flag: self.flag,
            born_timestamp_ms: self.born_timestamp_ms,
            durable,
        }
    }
}

/// Messages for one topic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch<'a> {
    /// The topic of all messages.
    pub topic: &'a str,
    /// Their queue; `None` uses the queues of the topic in turn.
    pub queue_id: Option<i32>,
    /// Whether they must be durable before the response.
    pub durable: bool,
    /// Whether they are appended together, as by `append_many`; else there is one.
    pub many: bool,
    /// The messages.
    #[serde(borrow)]
    pub messages: Vec<Message<'a>>,
}

/// When a delayed message is due; see [`mqstore::Due`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DueTime {
    /// At this time, in epoch milliseconds.
    At(i64),
    /// After the delay of this level.
    Level(i32),
}

impl DueTime {
    /// Makes it of the façade's; `None` for a message that does not wait.
    pub fn of(due: Due) -> Option<Self> {
        match due {
            Due::Now => None,
            Due::At(due_ms) => Some(Self::At(due_ms)),
            Due::Level(level) => Some(Self::Level(level)),
        }
    }

    /// Returns the time for the façade.
    pub fn due(self) -> Due {
        match self {
            Self::At(due_ms) => Due::At(due_ms),
            Self::Level(level) => Due::Level(level),
        }
    }
}

/// A message of a file, with the fields that only a copy keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportedMessage<'a> {
    /// Its topic.
    pub topic: &'a str,
    /// Its queue.
    pub queue_id: Option<i32>,
    /// The message. Its unique key is that of the file, or empty.
    #[serde(borrow)]
    pub message: Message<'a>,
    /// When it is due; `None` is now.
    pub due: Option<DueTime>,
    /// Address and port of the host that made it.
    pub born_host: (IpAddr, i32),
    /// How often consumers returned it.
    pub reconsume_times: i32,
}

impl<'a> ImportedMessage<'a> {
    /// Returns the message for the façade.
    pub fn new_message(&self) -> (NewMessage<'a>, Due) {
        let message =
            NewMessage { sys_flag: SysFlag(0), ..self.message.new_message(self.topic, self.queue_id, false) };
        (message, self.due.map_or(Due::Now, DueTime::due))
    }

    /// Returns the fields that only a copy keeps.
    pub fn origin(&self) -> MessageOrigin {
        let (ip, port) = self.born_host;
        MessageOrigin {
            sys_flag: SysFlag(self.message.sys_flag),
            born_host: Host { ip, port },
            reconsume_times: self.reconsume_times,
        }
    }
}

/// A number for a handle of one client.
pub type HandleNumber = u64;

/// How long a call waits, in milliseconds; `None` has no limit.
pub type WaitMs = Option<u64>;

/// A delivery of a message, by its place and attempt: an owner finds the lease in the saved state.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LeaseName {
    /// The topic.
    pub topic: String,
    /// The queue.
    pub queue_id: i32,
    /// The offset in the queue.
    pub queue_offset: i64,
    /// Number of the delivery.
    pub attempt: u32,
}

/// The options of a work queue; see [`mqstore::WorkQueueOptions`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueOptions {
    /// Visibility timeout, in milliseconds.
    pub visibility_timeout_ms: u64,
    /// Maximum number of deliveries.
    pub max_attempts: Option<u32>,
    /// Maximum number of waiting messages.
    pub maxsize: u64,
    /// Whether damaged messages are skipped.
    pub skips_damage: bool,
    /// Whether the options of an open handle come first.
    pub follows: bool,
}

/// A filter of messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FilterText {
    /// Tags joined by `||`.
    Tags(String),
    /// An SQL expression.
    Sql(String),
}

/// Where a consumer starts; see [`mqstore::delivery::StartOffset`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Start {
    /// At the first message.
    Earliest,
    /// After the last message.
    Latest,
    /// At the first message stored at or after this time, in epoch milliseconds.
    Time(i64),
}

/// The options of a consumer; see [`mqstore::ConsumerOptions`].
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own, by its own name")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReaderOptions {
    /// The wanted messages.
    pub filter: Option<FilterText>,
    /// The start of a group without an offset.
    pub start: Start,
    /// Whether a queue stays until its messages are committed.
    pub ordered: bool,
    /// Whether it gets the messages of all queues.
    pub broadcast: bool,
    /// The name of a broadcast consumer.
    pub name: Option<String>,
    /// Maximum age of a commit that a power loss may undo, in milliseconds.
    pub commit_interval_ms: Option<u64>,
    /// Whether lost messages are an error.
    pub fails_if_lost: bool,
    /// Whether damaged messages are skipped.
    pub skips_damage: bool,
    /// Whether commits are stored as messages.
    pub history: bool,
}

/// A verb on a work queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum QueueVerb<'a> {
    /// Puts messages; waits for space.
    Put {
        /// The messages, with the delivery time among their properties.
        #[serde(borrow)]
        messages: Vec<Message<'a>>,
        /// Delay of all messages, in milliseconds.
        delay_ms: Option<u64>,
        /// Delivery time of all messages, in epoch milliseconds.
        deliver_at_ms: Option<i64>,
        /// Whether they must be durable.
        durable: bool,
        /// Whether a message with the same unique key makes the put void.
        new_only: bool,
        /// The longest wait.
        wait_ms: WaitMs,
    },
    /// Gets messages.
    Get {
        /// Maximum number.
        count: u32,
        /// The longest wait for the first.
        wait_ms: WaitMs,
    },
    /// Acknowledges messages.
    Ack {
        /// The deliveries.
        leases: Vec<LeaseName>,
        /// Whether to wait for a sync.
        durable: bool,
    },
    /// Returns a message.
    Nack {
        /// The delivery.
        lease: LeaseName,
        /// Its delay in milliseconds; `None` uses the back-off.
        delay_ms: Option<u64>,
        /// The reason.
        reason: Option<String>,
    },
    /// Sets the end of a lease.
    Extend {
        /// The delivery.
        lease: LeaseName,
        /// Milliseconds from now.
        time_ms: u64,
    },
    /// Whether the caller still has a message.
    IsHeld(LeaseName),
    /// Waits until all messages are finished.
    Join(WaitMs),
    /// Numbers of messages by state.
    Counts,
    /// Number of messages without a lease.
    Size,
    /// Messages that are due later.
    Delays,
    /// The leases.
    Leases,
    /// Cancels a message by its id.
    Cancel(&'a str),
    /// Cancels a message by its place: topic, queue, offset.
    CancelAt(&'a str, i32, i64),
    /// The next messages, without a lease.
    Peek(u32),
    /// Finishes all messages that no worker has.
    Purge,
    /// Appends dead letters again, at most this many.
    Redrive(Option<u64>),
    /// Appends these dead letters again.
    RedriveIds(Vec<String>),
    /// Deletes these dead letters.
    DeleteDeadLetters(Vec<String>),
    /// Refuses puts and, if immediate, gets.
    Shutdown(bool),
}

/// A verb on a consumer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConsumerVerb {
    /// Takes messages.
    Poll {
        /// Maximum number; `None` is the next message of an iteration.
        most: Option<u32>,
        /// The longest wait for the first.
        wait_ms: WaitMs,
    },
    /// Commits the positions, or these offsets.
    Commit(Option<Vec<(Queue, i64)>>, bool),
    /// Continues at an offset.
    Seek(Queue, i64),
    /// Continues at a time.
    SeekToTime(i64),
    /// Moves the group.
    Reset(Start, bool),
    /// The next offset of a queue.
    Position(Queue),
    /// The committed offset of a queue.
    Committed(Queue),
    /// The messages after the committed offsets.
    Lag,
    /// The owned queues.
    Assignment,
}

/// A verb on a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TransactionVerb<'a> {
    /// Adds a message.
    Append {
        /// The topic.
        topic: &'a str,
        /// The queue.
        queue_id: Option<i32>,
        /// The message.
        #[serde(borrow)]
        message: Message<'a>,
    },
    /// Commits or rolls back.
    End {
        /// Whether it commits.
        commit: bool,
        /// Whether to wait for a sync.
        durable: bool,
    },
}

/// A request to the owner of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request<'a> {
    /// Appends messages.
    #[serde(borrow)]
    Append(Batch<'a>),
    /// Appends one message to its topic and to light queues.
    AppendToLightQueues(Batch<'a>, Vec<&'a str>),
    /// Appends one message that waits.
    AppendLater(Batch<'a>, DueTime),
    /// Appends messages of a file, up to the first that is refused.
    Import(Vec<ImportedMessage<'a>>),
    /// Makes everything durable.
    Flush,
    /// Creates a topic: name, queues, attributes.
    CreateTopic(&'a str, u32, Vec<(String, String)>),
    /// Changes a topic.
    ChangeTopic(&'a str, TopicChange),
    /// Deletes a topic.
    RemoveTopic(&'a str),
    /// Deletes a namespace.
    RemoveNamespace(&'a str),
    /// Sets the retention of a topic.
    SetRetention(&'a str, TopicRetention),
    /// Sets or ends the limit of what is dispatched.
    SetConfirmOffset(Option<u64>),
    /// Cancels a delayed message.
    CancelDelayed(&'a str),
    /// Moves a delayed message to a time in epoch milliseconds.
    Reschedule(&'a str, i64),
    /// The numbers of delayed messages.
    DelayCounts,
    /// Removes due segments.
    Expire {
        /// Whether it only reports.
        dry_run: bool,
    },
    /// Rewrites segments without hidden messages.
    Reclaim {
        /// Whether it only reports.
        dry_run: bool,
        /// Topics whose messages are erased.
        erase: BTreeSet<String>,
        /// Limit of bytes per second; 0 is none.
        bytes_per_second: u64,
    },
    /// Compacts topics.
    Compact {
        /// The topics; `None` is all compaction topics.
        topics: Option<Vec<String>>,
        /// The options, as JSON.
        options: &'a str,
        /// Number of threads.
        threads: u32,
        /// Limit of bytes per second; 0 is none.
        bytes_per_second: u64,
    },
    /// Sets or removes the archive.
    SetArchive(Option<ArchiveState>),
    /// Records the end of the archive with these settings.
    AdvanceArchive(String, ArchiveState),
    /// Counters of the owner.
    Stats,
    /// Creates topics from their JSON settings by name; returns the new ones.
    MakeTopics(Vec<(String, String)>),
    /// Gives topics and groups their JSON settings.
    AdoptSettings(Vec<(String, String)>, Vec<(String, String)>),
    /// Opens a handle on a work queue: topic, group.
    OpenQueue(HandleNumber, &'a str, Option<&'a str>, QueueOptions),
    /// A verb on a work queue.
    Queue(HandleNumber, QueueVerb<'a>),
    /// Opens a consumer: group, topics.
    OpenConsumer(HandleNumber, &'a str, Vec<&'a str>, ReaderOptions),
    /// A verb on a consumer.
    Consumer(HandleNumber, ConsumerVerb),
    /// Begins a transaction, or continues the one with this id: group, id, whether it has messages.
    Begin(HandleNumber, &'a str, &'a str, bool),
    /// A verb on a transaction.
    Transaction(HandleNumber, TransactionVerb<'a>),
    /// The undecided transactions.
    PendingTransactions,
    /// Takes the transactions of these groups that are due for a check.
    TakeDue(Vec<(String, CheckOptions)>),
    /// Decides an undecided transaction by its id.
    Decide(&'a str, bool),
    /// Closes a handle.
    Close(HandleNumber),
    /// Ends the wait of the request with this number, which gets its answer at once.
    EndWait(u64),
    /// Returns how far the request with this number of the same connection is.
    Progress(u64),
    /// The owner and its clients.
    Processes,
    /// How far the replicas are.
    Replication,
    /// Waits for the copies of the messages between two log offsets.
    WaitForCopies(u64, u64),
}
