//! Tests of complete compactions; each file has one subject.

mod broker;
mod crash;
mod documents;
mod expiry;
mod job;
mod model;
mod tombstones;
