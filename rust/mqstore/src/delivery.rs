//! Delivery: consumers, work queues, delayed messages, transactions, and the rules of exports about waiting messages.

pub use mqstore_base::wake_signal::Signal;
pub use mqstore_delivery::{
    Accepted, Broker, BrokerError, CheckAnswer, CheckOptions, Consumer, ConsumerOptions, DelayCounts,
    DelayInfo, Due, DueCounts, Job, JobRequest, JobState, LATEST_DUE_MS, Lease, LeaseInfo, LeasedMessage,
    LostMessagePolicy, NewHalfMessage, NewWork, OffsetHistory, OffsetRanges, PendingDeliveries, PendingGroup,
    PendingTransaction, Queue, StartOffset, Transaction, TransactionOutcome, Transactions, TryPut, TryResult,
    Waker, WorkQueue, WorkQueueCounts, WorkQueueJobs, WorkQueueOptions, appended_with_key, dead_letters,
    first_unfinished, jobs, message_of_id,
};
pub use mqstore_delivery::{ExportDecision, ExportRules, ExportSelection, Omission, OmissionCounts};
