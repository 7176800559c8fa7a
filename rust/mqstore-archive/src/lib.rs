//! Archives: sealed segments of the log as Parquet files, and back to the same bytes.
//!
//! `file` has the Parquet files, `records` their rows, `manifest` the list of all files, and `place` the objects of an
//! archive in a target. `owner` compares an archive with a store, `run` archives, and `restore`, `verify`, `rebuild` and
//! `clean` do what their names say. `reader` finds rows by ranges, and `history` has the messages from before the log as
//! reads, look-ups and scans return them.
#![forbid(unsafe_code)]

pub mod clean;
pub mod file;
pub mod history;
pub mod layout;
pub mod manifest;
pub mod owner;
pub mod place;
pub mod reader;
pub mod rebuild;
pub mod records;
pub mod restore;
pub mod run;
pub mod verify;
