//! Classes for delivery: consumers, work queues, leased messages and transactions.

pub(crate) mod consumer;
pub(crate) mod leased_message;
pub(crate) mod transactions;
pub(crate) mod work_queue;
