//! The bytes of half and op messages. [`mqstore_format::transaction`] reads them.
//!
//! ```text
//! half   topic RMQ_SYS_TRANS_HALF_TOPIC, queue 0, transaction bits none; the message's own properties, then
//!        TRAN_MSG=true  PGROUP  __transactionId__ (its UNIQ_KEY)  REAL_TOPIC  REAL_QID
//!        mqstore.transaction       the id of the transaction, if it differs from the message's own id
//! final  the real topic and queue, transaction bits commit, the position of the half message; all its properties
//! op     topic RMQ_SYS_TRANS_OP_HALF_TOPIC, queue 0, tag d; the body has queue offsets of half messages: "12,13,14,"
//!        mqstore.decision          commit, rollback or discard; a broker's op messages have none, because the broker
//!                                  writes them after the final records
//! ```
//!
//! Source: `TransactionalMessageBridge#parseHalfMessageInner`, `#makeOpMessageInner`, `TransactionalMessageUtil`.

use std::fmt::Write;

use mqstore_engine::{MessageOrigin, TransactionMark};
use mqstore_format::properties::{
    PGROUP, PROPERTY_CRC, REAL_QID, REAL_TOPIC, TAGS, TRAN_MSG, TRANSACTION_ID, UNIQ_KEY, WAIT,
};
use mqstore_format::transaction::{DECISION, Decision, OpRecord, REMOVE_TAG, TRANSACTION};
use mqstore_format::{RecordView, push_property, without_property};

use super::TransactionOutcome;

/// The target of a half message.
pub(super) struct HalfTarget<'a> {
    pub(super) topic: &'a str,
    pub(super) queue_id: i32,
    pub(super) group: &'a str,
    pub(super) transaction: &'a str,
}

/// Appends the properties of a half message to `out`. `own` are the properties of the message, with a unique key only
/// if `given`.
pub(super) fn half_properties(out: &mut Vec<u8>, own: &[u8], key: &str, given: bool, meant: &HalfTarget<'_>) {
    out.extend_from_slice(own);
    if out.last().is_some_and(|last| *last != b'\x02') {
        out.push(b'\x02');
    }
    if !given {
        push_property(out, UNIQ_KEY, key);
    }
    push_property(out, TRAN_MSG, "true");
    push_property(out, PGROUP, meant.group);
    push_property(out, TRANSACTION_ID, key);
    push_property(out, REAL_TOPIC, meant.topic);
    let mut number = String::new();
    let _ = write!(number, "{}", meant.queue_id);
    push_property(out, REAL_QID, &number);
    if meant.transaction != key {
        push_property(out, TRANSACTION, meant.transaction);
    }
}

pub(super) fn op_properties(outcome: TransactionOutcome) -> Vec<u8> {
    let mut text = Vec::with_capacity(48);
    push_property(&mut text, WAIT, "true");
    push_property(&mut text, TAGS, REMOVE_TAG);
    let decision = match outcome {
        TransactionOutcome::Committed => Decision::Commit,
        TransactionOutcome::RolledBack => Decision::Rollback,
        TransactionOutcome::Discarded => Decision::Discard,
    };
    push_property(&mut text, DECISION, decision.name());
    text
}

/// Returns the body of an op message that names half messages.
pub(super) fn op_body(offsets: impl Iterator<Item = i64>) -> Vec<u8> {
    let mut text = String::new();
    for offset in offsets {
        let _ = write!(text, "{offset},");
    }
    text.into_bytes()
}

/// Returns the outcome of an op message, if final records follow it.
pub(super) fn decision_of_op(op: &OpRecord) -> Option<TransactionOutcome> {
    match op.decision {
        Some(Decision::Commit) => Some(TransactionOutcome::Committed),
        Some(Decision::Discard) => Some(TransactionOutcome::Discarded),
        Some(Decision::Rollback) | None => None,
    }
}

/// Returns the properties that a copy of this half message has.
pub(super) fn own_properties<'a>(view: &RecordView<'a>) -> std::borrow::Cow<'a, [u8]> {
    without_property(view.properties.raw(), PROPERTY_CRC)
}

pub(super) fn mark(
    outcome: TransactionOutcome,
    position: u64,
    origin: Option<MessageOrigin>,
) -> TransactionMark {
    TransactionMark {
        origin,
        commit: outcome == TransactionOutcome::Committed,
        prepared_transaction_offset: position,
    }
}

/// Returns the origin of a half message from the log.
pub(super) fn origin(view: &RecordView<'_>) -> MessageOrigin {
    MessageOrigin {
        sys_flag: view.sys_flag,
        born_host: view.born_host,
        reconsume_times: view.reconsume_times,
    }
}
