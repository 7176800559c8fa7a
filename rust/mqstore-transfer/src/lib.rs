//! Copies of messages from one store to another.
//!
//! `record_copy` makes the copy of a record, and `pass` appends the copies of one pass over the source. `store_copy` is
//! the loop of a copy and its state, and `topic_copy` the state of a copy in several calls, with the `positions` of its
//! messages. `append` has the appends of messages from elsewhere, also for imports.
#![forbid(unsafe_code)]

mod append;
mod pass;
mod positions;
mod record_copy;
mod store_copy;
mod topic_copy;

pub use append::{append_in_order, make_queues};
pub use record_copy::{LogRecord, NOT_COPIED, RawRecords};
pub use store_copy::{CopyOrder, CopyProgress, CopyStores, StoreCopy, load_rules};
pub use topic_copy::{QueueGap, TopicCopy};
