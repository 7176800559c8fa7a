//! Appends: one message, a batch, copies of records, and transactions; and what follows them.
//!
//! The thread of the caller encodes and checks a message. Under the put lock the message gets its offsets. Then it
//! becomes durable as the durability mode demands, and dispatch adds it to queues and index.

pub(crate) mod append;
pub(crate) mod append_marks;
pub(crate) mod confirm_offset;
pub(crate) mod copies;
pub(crate) mod encode;
pub(crate) mod inner_batch;
pub(crate) mod light_queues;
pub(crate) mod nonblocking;
pub(crate) mod quota;
pub(crate) mod raw_append;
pub(crate) mod rebuild;
pub(crate) mod staged_batch;
pub(crate) mod target_queue;
pub(crate) mod wake;
