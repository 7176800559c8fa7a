//! Copies of messages from one store to another.
//!
//! `record_copy` makes the copy of a record, and `pass` appends the copies of one pass over the source. `append` has the
//! appends of messages from elsewhere, also for imports.
#![forbid(unsafe_code)]

mod append;
mod pass;
mod record_copy;

pub use append::{append_in_order, make_queues};
pub use pass::{CopiedRecords, CopyPart, CopyPass};
pub use record_copy::{NOT_COPIED, RawRecords};
