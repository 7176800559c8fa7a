//! Delivery: consumers, work queues, delayed messages, transactions, and the rules of exports about waiting messages.

pub use mqstore_delivery::{
    Accepted, Broker, BrokerError, CheckAnswer, CheckOptions, Consumer, ConsumerOptions, DelayCounts,
    DelayInfo, Due, DueCounts, LATEST_DUE_MS, Lease, LeaseInfo, LeasedMessage, LostMessagePolicy,
    NewHalfMessage, NewWork, OffsetHistory, PendingDeliveries, PendingGroup, PendingTransaction, Queue,
    StartOffset, Transaction, TransactionOutcome, Transactions, TryPut, TryResult, Waker, WorkQueue,
    WorkQueueOptions, first_unfinished, message_of_id,
};
pub use mqstore_delivery::{ExportDecision, ExportRules, ExportSelection, Omission, OmissionCounts};
