//! Transactions: messages that appear together, in one step, or never.
//!
//! ```text
//! half topic   h12  h13  h14          one half message for each append: seen by nobody who reads the real topics
//! log          ... h12 h13 h14 ... op{12,13,14, commit} f12 f13 f14 ...
//!                                  └ one append, in one segment, published by one step
//! ```
//!
//! The op message is the decision: it names all half messages of the transaction, and ours says what was decided
//! (`mqstore.decision`). It lies before the final records, so that a crash that cuts the append leaves either nothing of
//! it, and the transaction undecided, or the decision; then the next open appends what is missing, exactly once: a
//! final record carries the log position of its half message, and lies behind the op message that names it. A
//! transaction that nobody decided stays as it is across any stop, until somebody asks its producer ([`Transactions::take_due`]) or decides it.
//!
//! What is known of half messages is a progress of RocketMQ's group for it in the metadata log (`CID_RMQ_SYS_TRANS`):
//! `committed` is what a broker finds in `consumerOffset.json`, an undecided one is leased until its next check, with the
//! number of checks as its attempt. It is derived and follows: a decision is noted once the log is durable up to its end,
//! so that a loss of power never forgets a half message whose decision it took. An open reads what was decided since,
//! from the op message on that another offset names, and no half message from before.
//!
//! Across threads: each transaction has a lock, held while it is changed, and one lock orders what is known of all;
//! neither is held while a callback runs. The bytes are RocketMQ's, see `records`.
//!
//! Source: `TransactionalMessageBridge`, `EndTransactionProcessor`, `TransactionalMessageServiceImpl`.

mod check_timer;
mod checks;
mod decide;
mod engine;
mod half_records;
mod outcomes;
mod pending;
mod recover;
mod transaction;

#[cfg(test)]
mod tests;

pub use checks::{Answer, CheckOptions};
pub use engine::{PendingTransaction, Transactions};
pub use half_records::DEFAULT_PRODUCER_GROUP;
pub use pending::PendingGroup;
pub use transaction::{NewHalfMessage, Transaction};

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its messages are in their topics.
    Committed,
    /// They will never be.
    RolledBack,
    /// Nobody decided it: its messages are in `TRANS_CHECK_MAX_TIME_TOPIC`.
    Discarded,
}

impl Outcome {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Committed => "committed",
            Self::RolledBack => "rolled back",
            Self::Discarded => "discarded",
        }
    }
}
