//! One transaction in memory: its half messages and its state.

use std::ops::Range;
use std::sync::Arc;

use mqstore_base::message::{Appended, UniqueKey};
use mqstore_format::SysFlag;
use mqstore_io::sync::{AtomicI64, Mutex, MutexGuard, Ordering};

use super::TransactionOutcome;
use crate::error::BrokerError;

/// A pending transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingTransaction {
    /// Its id: `__transactionId__` of its first message.
    pub id: String,
    /// The producer group that may decide it.
    pub group: String,
    /// The topics of its messages.
    pub topics: Vec<String>,
    /// Number of its messages so far.
    pub messages: usize,
    /// Time when its first message was created, in epoch milliseconds.
    pub born_timestamp_ms: i64,
    /// Time when its first message was stored, in epoch milliseconds.
    pub stored_timestamp_ms: i64,
    /// Time of the next look whether a check is due, in epoch milliseconds. Has no meaning while `open` is true.
    pub due_ms: i64,
    /// Number of checks so far.
    pub checks: u32,
    /// Whether a handle in this process has it open, so that its group is not asked.
    pub open: bool,
    /// Queue offsets of its half messages.
    pub half_offsets: Vec<i64>,
}

/// The content of a half message that this process appended, so that a commit need not read it again.
#[derive(Debug)]
pub(super) struct AppendedContent {
    pub(super) topic: usize,
    pub(super) queue_id: i32,
    pub(super) flag: i32,
    pub(super) sys_flag: SysFlag,
    pub(super) born_timestamp_ms: i64,
    pub(super) key: UniqueKey,
    pub(super) properties: Range<usize>,
    pub(super) body: Range<usize>,
}

/// A half message.
#[derive(Debug)]
pub(super) struct HalfMessage {
    pub(super) offset: i64,
    pub(super) position: u64,
    /// Its content in memory; `None` if it is only in the log.
    pub(super) content: Option<AppendedContent>,
}

/// The mutable state of a transaction.
#[derive(Debug, Default)]
pub(super) struct TransactionParts {
    pub(super) halves: Vec<HalfMessage>,
    pub(super) topics: Vec<Arc<str>>,
    pub(super) memory: Vec<u8>,
    /// Maximum bytes of all its final records and its op message.
    pub(super) bytes: u64,
    pub(super) born_timestamp_ms: i64,
    pub(super) stored_timestamp_ms: i64,
    pub(super) checks: u32,
    /// Whether a handle in this process has it open.
    pub(super) open: bool,
    pub(super) outcome: Option<TransactionOutcome>,
    /// After a commit by its handle: the final records, each with the index of its topic.
    pub(super) went: Vec<(usize, Appended)>,
}

/// A transaction in memory.
#[derive(Debug)]
pub(super) struct TransactionEntry {
    pub(super) id: Arc<str>,
    pub(super) group: Arc<str>,
    /// Its key in the due times of its group; changed only under the engine's lock.
    pub(super) due_ms: AtomicI64,
    parts: Mutex<TransactionParts>,
}

impl TransactionEntry {
    pub(super) fn new(id: Arc<str>, group: Arc<str>, open: bool) -> Arc<Self> {
        let parts = Mutex::new(TransactionParts { open, ..TransactionParts::default() });
        Arc::new(Self { id, group, due_ms: AtomicI64::new(0), parts })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, TransactionParts> {
        self.parts.lock()
    }

    /// Returns its description for callers; `None` once it is decided.
    pub(super) fn describe(&self) -> Option<PendingTransaction> {
        let parts = self.lock();
        parts.outcome.is_none().then(|| PendingTransaction {
            id: self.id.to_string(),
            group: self.group.to_string(),
            topics: parts.topics.iter().map(ToString::to_string).collect(),
            messages: parts.halves.len(),
            born_timestamp_ms: parts.born_timestamp_ms,
            stored_timestamp_ms: parts.stored_timestamp_ms,
            due_ms: self.due_ms.load(Ordering::Relaxed),
            checks: parts.checks,
            open: parts.open,
            half_offsets: parts.halves.iter().map(|half| half.offset).collect(),
        })
    }

    pub(super) fn ended(&self, outcome: TransactionOutcome) -> BrokerError {
        BrokerError::TransactionEnded { id: self.id.to_string(), outcome: outcome.name() }
    }
}

impl TransactionParts {
    /// Returns the index of `topic` in the topics of the transaction, and adds it if needed.
    pub(super) fn topic(&mut self, topic: &str) -> usize {
        self.topics.iter().position(|known| **known == *topic).unwrap_or_else(|| {
            self.topics.push(topic.into());
            self.topics.len() - 1
        })
    }
}
