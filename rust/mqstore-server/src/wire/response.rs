//! Responses: the results of requests, as values that own their parts.

use mqstore::delivery::{DelayCounts, DelayInfo, LeaseInfo, Queue, WorkQueueCounts};
use mqstore::message::{Appended, RecordBytes, StoredRecord, UniqueKey};
use mqstore::replication::replica_set::MasterStatus;
use mqstore::store::{ArchiveState, ExpireReport, NamespaceInfo, ReclaimReport, Stats};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

use super::failure::Failure;

/// The position of an appended message; see [`Appended`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    queue_id: i32,
    queue_offset: i64,
    commit_log_offset: u64,
    size: u32,
    store_timestamp_ms: i64,
    durable: bool,
    /// `None` if the client has it: the key was in the request.
    unique_id: Option<String>,
}

impl Position {
    /// Makes it of a result, without the unique key.
    pub fn of(appended: &Appended) -> Self {
        Self {
            queue_id: appended.queue_id,
            queue_offset: appended.queue_offset,
            commit_log_offset: appended.commit_log_offset,
            size: appended.size,
            store_timestamp_ms: appended.store_timestamp_ms,
            durable: appended.durable,
            unique_id: None,
        }
    }

    /// Makes it of a result, with the unique key.
    pub fn with_key(appended: &Appended) -> Self {
        Self { unique_id: Some(appended.unique_id.as_str().to_owned()), ..Self::of(appended) }
    }

    /// Returns the result; `key` is the unique key if the response has none.
    pub fn appended(self, key: Option<UniqueKey>) -> Appended {
        let unique_id = match (self.unique_id, key) {
            (Some(text), _) => UniqueKey::Given(text.into()),
            (None, Some(key)) => key,
            (None, None) => UniqueKey::Given("".into()),
        };
        Appended {
            queue_id: self.queue_id,
            queue_offset: self.queue_offset,
            commit_log_offset: self.commit_log_offset,
            size: self.size,
            store_timestamp_ms: self.store_timestamp_ms,
            durable: self.durable,
            unique_id,
        }
    }
}

/// A stored message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    queue_offset: i64,
    commit_log_offset: u64,
    #[serde(with = "serde_bytes")]
    bytes: Vec<u8>,
}

impl From<&StoredRecord> for Record {
    fn from(record: &StoredRecord) -> Self {
        Self {
            queue_offset: record.queue_offset,
            commit_log_offset: record.commit_log_offset,
            bytes: record.bytes().to_vec(),
        }
    }
}

impl Record {
    /// Returns the stored message; `None` if its bytes are no record.
    pub fn stored(self) -> Option<StoredRecord> {
        let length = self.bytes.len();
        let bytes = RecordBytes::Read(Arc::new(self.bytes), 0..length);
        StoredRecord::new(bytes, self.commit_log_offset, Some(self.queue_offset)).ok()
    }
}

/// A message that a work queue delivered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// The message.
    pub record: Record,
    /// Number of the delivery.
    pub attempt: u32,
    /// The end of the lease, in epoch milliseconds.
    pub invisible_until_ms: i64,
}

/// An undecided transaction; see [`mqstore::delivery::PendingTransaction`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// Id, group, topics.
    pub names: (String, String, Vec<String>),
    /// Messages, creation time, checks, next check.
    pub numbers: (u64, i64, u32, Option<i64>),
    /// Whether a program has it open.
    pub open: bool,
    /// Queue offsets of its half messages.
    pub half_offsets: Vec<i64>,
}

/// A client of the owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientInfo {
    /// Process id.
    pub pid: u32,
    /// Version of its library.
    pub library: String,
    /// Its open work queues: topic and group.
    pub queues: Vec<(String, String)>,
    /// Its consumers: group and owned queues.
    pub consumers: Vec<(String, Vec<Queue>)>,
    /// Number of its open transactions.
    pub transactions: u32,
}

/// What a verb returned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Response {
    /// Nothing.
    Done,
    /// Whether it is so.
    Flag(bool),
    /// A number.
    Count(u64),
    /// An offset, if there is one.
    Offset(Option<i64>),
    /// A text.
    Text(String),
    /// Texts.
    Texts(Vec<String>),
    /// Positions of appended messages.
    Appended(Vec<Position>),
    /// The position of a message that was accepted for later, and the topic in which it waits.
    Accepted(Option<(Position, Option<String>)>),
    /// Delivered messages.
    Leased(Vec<Delivery>),
    /// Messages.
    Records(Vec<Record>),
    /// The end of a lease that was extended, in epoch milliseconds.
    Until(i64),
    /// Numbers of messages of a work queue.
    Counts(WorkQueueCounts),
    /// Messages that are due later.
    Delays(Vec<DelayInfo>),
    /// Leases.
    Leases(Vec<LeaseInfo>),
    /// Queues and a number for each.
    Queues(Vec<(Queue, i64)>),
    /// A work queue that was opened: its group and the topic of its dead letters.
    Opened(String, String),
    /// A transaction that was committed: topics and positions of its messages.
    Committed(Vec<(String, Position)>),
    /// Undecided transactions.
    Pending(Vec<Pending>),
    /// The numbers of delayed messages.
    DelayCounts(DelayCounts),
    /// What an expiry removed.
    Expired(Box<ExpireReport>),
    /// What a reclaim freed.
    Reclaimed(Box<ReclaimReport>),
    /// The state of the archive.
    Archive(Option<ArchiveState>),
    /// What was deleted with a namespace.
    Namespace(NamespaceInfo),
    /// Counters.
    Stats(Box<Stats>),
    /// How far a request is, in bytes: done, and in total.
    Progress(u64, u64),
    /// The process id of the owner, and its clients.
    Processes(u32, Vec<ClientInfo>),
    /// How far the replicas are; `None` for a store that serves none.
    Replication(Option<MasterStatus>),
}

/// A response or an error.
pub type Answer = Result<Response, Failure>;
