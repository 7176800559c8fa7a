//! Half messages and op messages: the fields of a transaction's records.
//!
//! ```text
//! half  RMQ_SYS_TRANS_HALF_TOPIC, queue 0: PGROUP  __transactionId__ (or its UNIQ_KEY)  REAL_TOPIC  REAL_QID
//!       TRANSACTION_CHECK_TIMES    number of a broker's checks
//!       mqstore.transaction        ours: the transaction id, if it differs from the message's
//! op    RMQ_SYS_TRANS_OP_HALF_TOPIC, queue 0, tag d: the body has queue offsets of half messages: "12,13,14,"
//!       mqstore.decision           ours: commit, rollback or discard; a broker's op message has none
//! ```
//!
//! Source: `TransactionalMessageBridge#parseHalfMessageInner`, `#makeOpMessageInner`, `TransactionalMessageUtil`.

use crate::properties::{
    PGROUP, REAL_QID, REAL_TOPIC, TAGS, TRANSACTION_CHECK_TIMES, TRANSACTION_ID, UNIQ_KEY,
};
use crate::record::RecordView;

/// The tag of op messages (`TransactionalMessageUtil#REMOVE_TAG`).
pub const REMOVE_TAG: &str = "d";
/// Ours: the transaction id of a half message, if it differs from the message's.
pub const TRANSACTION: &str = "mqstore.transaction";
/// Ours: the decision of an op message.
pub const DECISION: &str = "mqstore.decision";

/// The decision of an op message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The messages are delivered.
    Commit,
    /// The messages are never delivered.
    Rollback,
    /// No decision came in time: the messages go to `TRANS_CHECK_MAX_TIME_TOPIC`.
    Discard,
}

impl Decision {
    /// Returns the word in [`DECISION`].
    pub const fn name(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Rollback => "rollback",
            Self::Discard => "discard",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::Commit, Self::Rollback, Self::Discard].into_iter().find(|decision| decision.name() == text)
    }
}

/// The fields of an op message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpRecord {
    /// Queue offsets of the decided half messages.
    pub half_offsets: Vec<i64>,
    /// The decision; `None` in a broker's op message.
    pub decision: Option<Decision>,
}

impl OpRecord {
    /// Reads an op message. If its body is not readable, it decides no half message, as in a broker.
    pub fn of(view: &RecordView<'_>) -> Self {
        let [tags, decision] = view.properties.get_many([TAGS, DECISION]);
        let body = std::str::from_utf8(view.body).unwrap_or_default();
        let half_offsets = match tags {
            Some(REMOVE_TAG) => body.split(',').filter_map(|number| number.trim().parse().ok()).collect(),
            _ => Vec::new(),
        };
        Self { half_offsets, decision: decision.and_then(Decision::parse) }
    }
}

/// The fields of a half message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HalfRecord<'a> {
    /// The transaction id.
    pub transaction: &'a str,
    /// The producer group that can decide it.
    pub group: &'a str,
    /// The topic of the message.
    pub topic: &'a str,
    /// The queue.
    pub queue_id: i32,
    /// The unique key of the message.
    pub unique_key: &'a str,
    /// Number of checks before it was written.
    pub checks: u32,
}

impl<'a> HalfRecord<'a> {
    /// Reads a half message; `None` if a required field is missing.
    pub fn of(view: &RecordView<'a>) -> Option<Self> {
        let [ours, id, key, group, topic, queue_id, checks] = view.properties.get_many([
            TRANSACTION,
            TRANSACTION_ID,
            UNIQ_KEY,
            PGROUP,
            REAL_TOPIC,
            REAL_QID,
            TRANSACTION_CHECK_TIMES,
        ]);
        let key = key.or(id)?;
        Some(Self {
            transaction: ours.or(id).unwrap_or(key),
            group: group?,
            topic: topic?,
            queue_id: queue_id?.parse().ok()?,
            unique_key: key,
            checks: checks.and_then(|checks| checks.parse().ok()).unwrap_or(0),
        })
    }
}
