//! Archives: sealed segments of the log as Parquet files, and back to the same bytes.
//!
//! `file` has the Parquet files, `records` their rows, `manifest` the list of all files, and `place` the objects of an
//! archive in a target. `owner` compares an archive with a store. `reader` finds rows by ranges, and `history` has the
//! messages from before the log as reads, look-ups and scans return them.
#![forbid(unsafe_code)]

pub mod file;
pub mod history;
pub mod layout;
pub mod manifest;
pub mod owner;
pub mod place;
pub mod reader;
pub mod records;
