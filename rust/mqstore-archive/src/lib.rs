//! Archives: sealed segments of the log as Parquet files, and back to the same bytes.
//!
//! `file` has the Parquet files, `records` their rows, `manifest` the list of all files, `reader` finds rows by ranges,
//! and `history` has the messages from before the log as reads, look-ups and scans return them. The objects of an
//! archive come from a caller, who knows the transport.
#![forbid(unsafe_code)]

pub mod file;
pub mod history;
pub mod manifest;
pub mod reader;
pub mod records;
