//! What a compaction must do, seen from outside: see each file.

mod broker;
mod crash;
mod documents;
mod job;
mod model;
mod tombstones;
