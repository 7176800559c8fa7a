//! Appends: one message, a batch, copies of records, and transactions.
//!
//! `writer::Writer` owns the log, the queues, the index and the threads of a store that is open for writing.

pub(crate) mod append;
pub(crate) mod append_marks;
pub(crate) mod append_queue;
pub(crate) mod encode;
pub(crate) mod inner_batch;
pub(crate) mod light_queues;
pub(crate) mod nonblocking;
pub(crate) mod pending_records;
pub(crate) mod raw_append;
pub(crate) mod rebuild;
pub(crate) mod staged_batch;
pub(crate) mod transaction_append;
pub(crate) mod wait;
pub(crate) mod writer;
mod writer_view;
