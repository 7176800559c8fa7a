//! Classes for delivery: consumers, work queues, leased messages, delays and transactions.

pub(crate) mod consumer;
pub(crate) mod delay;
pub(crate) mod leased_message;
pub(crate) mod older;
pub(crate) mod transactions;
pub(crate) mod work_queue;
