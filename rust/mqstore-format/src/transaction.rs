//! Half messages and op messages: what records of a transaction say.
//!
//! ```text
//! half  RMQ_SYS_TRANS_HALF_TOPIC, queue 0: PGROUP  __transactionId__ (or its UNIQ_KEY)  REAL_TOPIC  REAL_QID
//!       TRANSACTION_CHECK_TIMES    how often a broker asked the producer group
//!       mqstore.transaction        ours: the transaction, where that is not called as the message
//! op    RMQ_SYS_TRANS_OP_HALF_TOPIC, queue 0, tag d: the body has queue offsets of half messages: "12,13,14,"
//!       mqstore.decision           ours: commit, rollback or discard; a broker's have none
//! ```
//!
//! Source: `TransactionalMessageBridge#parseHalfMessageInner`, `#makeOpMessageInner`, `TransactionalMessageUtil`.

use crate::properties::{
    PGROUP, REAL_QID, REAL_TOPIC, TAGS, TRANSACTION_CHECK_TIMES, TRANSACTION_ID, UNIQ_KEY,
};
use crate::record::RecordView;

/// The tag of op messages (`TransactionalMessageUtil#REMOVE_TAG`).
pub const REMOVE_TAG: &str = "d";
/// Ours: the transaction of a half message, where that is not called as the message.
pub const TRANSACTION: &str = "mqstore.transaction";
/// Ours: what an op message decides.
pub const DECISION: &str = "mqstore.decision";

/// What an op message decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The messages are delivered.
    Commit,
    /// They never are.
    Rollback,
    /// Nobody decided in time: they go to `TRANS_CHECK_MAX_TIME_TOPIC`.
    Discard,
}

impl Decision {
    /// The word for it, as [`DECISION`] has it.
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

/// What an op message says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpRecord {
    /// Queue offsets of the half messages that it decides.
    pub half_offsets: Vec<i64>,
    /// What was decided; `None` in those of a broker.
    pub decision: Option<Decision>,
}

impl OpRecord {
    /// Reads an op message; one of which nothing can be made names nothing, as for a broker.
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

/// What a half message says of where it belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HalfRecord<'a> {
    /// Its transaction.
    pub transaction: &'a str,
    /// The producer group that may decide it.
    pub group: &'a str,
    /// The topic that it is for.
    pub topic: &'a str,
    /// The queue.
    pub queue_id: i32,
    /// Its unique key.
    pub unique_key: &'a str,
    /// How often a broker asked its producer group before it was written.
    pub checks: u32,
}

impl<'a> HalfRecord<'a> {
    /// Reads a half message; `None` where it lacks what every one has.
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
