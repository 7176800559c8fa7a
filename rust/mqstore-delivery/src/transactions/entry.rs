//! One transaction as the engine knows it: its half messages, and what is undecided of it.

use std::ops::Range;
use std::sync::Arc;

use mqstore_base::message::{Appended, UniqueKey};
use mqstore_io::sync::{AtomicI64, Mutex, MutexGuard, Ordering};

use super::TransactionOutcome;
use crate::error::BrokerError;

/// An undecided transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingTransaction {
    /// Its id: `__transactionId__` of its first message.
    pub id: String,
    /// The producer group that may decide it.
    pub group: String,
    /// The topics that its messages are for.
    pub topics: Vec<String>,
    /// How many messages it has so far.
    pub messages: usize,
    /// When its first message was made, in epoch milliseconds.
    pub born_timestamp_ms: i64,
    /// When its first message was stored, in epoch milliseconds.
    pub stored_timestamp_ms: i64,
    /// When somebody looks whether its group is to be asked, in epoch milliseconds; says nothing while it is open.
    pub due_ms: i64,
    /// How often its producer group was asked.
    pub checks: u32,
    /// Whether somebody in this process has it open, and so nobody is asked.
    pub open: bool,
    /// Queue offsets of its half messages.
    pub half_offsets: Vec<i64>,
}

/// What this process appended, so that a commit need not read it again.
#[derive(Debug)]
pub(super) struct AppendedContent {
    pub(super) topic: usize,
    pub(super) queue_id: i32,
    pub(super) flag: i32,
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
    /// Where it is in memory; `None` is in the log alone.
    pub(super) content: Option<AppendedContent>,
}

/// What changes of a transaction.
#[derive(Debug, Default)]
pub(super) struct Parts {
    pub(super) halves: Vec<HalfMessage>,
    pub(super) topics: Vec<Arc<str>>,
    pub(super) memory: Vec<u8>,
    /// Bytes that its records may need, together.
    pub(super) bytes: u64,
    pub(super) born_timestamp_ms: i64,
    pub(super) stored_timestamp_ms: i64,
    pub(super) checks: u32,
    /// Whether somebody in this process has it open.
    pub(super) open: bool,
    pub(super) outcome: Option<TransactionOutcome>,
    /// Of a transaction that was committed by whoever had it open: where its messages went, by the number of the topic.
    pub(super) went: Vec<(usize, Appended)>,
}

/// A transaction as the engine knows it.
#[derive(Debug)]
pub(super) struct TransactionEntry {
    pub(super) id: Arc<str>,
    pub(super) group: Arc<str>,
    /// Where it stands in the row of its group; changed with the engine's lock held.
    pub(super) due_ms: AtomicI64,
    parts: Mutex<Parts>,
}

impl TransactionEntry {
    pub(super) fn new(id: Arc<str>, group: Arc<str>, open: bool) -> Arc<Self> {
        let parts = Mutex::new(Parts { open, ..Parts::default() });
        Arc::new(Self { id, group, due_ms: AtomicI64::new(0), parts })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock()
    }

    /// What callers see of it; `None` once it is decided.
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

impl Parts {
    /// The number of `topic` among those that the transaction is for.
    pub(super) fn topic(&mut self, topic: &str) -> usize {
        self.topics.iter().position(|known| **known == *topic).unwrap_or_else(|| {
            self.topics.push(topic.into());
            self.topics.len() - 1
        })
    }
}
