//! Transactions: messages that all become visible in one step, or never.
//!
//! Each message of a transaction is stored as a half message in RocketMQ's half topic. The op message is the
//! decision; ours also names the outcome (`mqstore.decision`). [`Transactions`] draws the log and describes what
//! survives a crash. A transaction without a decision stays pending across any stop, until its producer group is
//! asked ([`Transactions::take_due`]) or decides it. `half_records` defines the bytes, which are RocketMQ's.
//!
//! Source: `TransactionalMessageBridge`, `EndTransactionProcessor`, `TransactionalMessageServiceImpl`.

mod check_timer;
mod checks;
mod decide;
mod engine;
mod entry;
mod half_records;
mod outcomes;
mod pending;
mod recover;
mod transaction;
mod wait_due;

#[cfg(test)]
mod tests;

pub use check_timer::CheckOptions;
pub use checks::CheckAnswer;
pub use engine::Transactions;
pub use entry::PendingTransaction;
pub use pending::PendingGroup;
pub(crate) use pending::{is_undecided, undecided_halves};
pub use transaction::{NewHalfMessage, Transaction};

/// The outcome of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionOutcome {
    /// Its messages are in their topics.
    Committed,
    /// Its messages will never be there.
    RolledBack,
    /// It was never decided: its messages are in `TRANS_CHECK_MAX_TIME_TOPIC`.
    Discarded,
}

impl TransactionOutcome {
    /// Returns the word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Committed => "committed",
            Self::RolledBack => "rolled back",
            Self::Discarded => "discarded",
        }
    }
}
