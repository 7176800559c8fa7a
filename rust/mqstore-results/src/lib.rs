//! Results at URLs and in folders. An attempt uploads objects that no other attempt uses; one manifest makes them the
//! result.
//!
//! ```text
//! <URL>/part-00000-<32 hex digits>.parquet                   files of one attempt that other programs read
//! <URL>/day=2026-11-28/part-00000-<32 hex digits>.parquet    or in folders of partitions
//! <URL>/_mqstore/attempt-<32 hex digits>/000000-<name>       or files of a store
//! <URL>/_mqstore/attempt-<32 hex digits>/probe               names the attempt, and tries that existing objects stay
//! <URL>/_mqstore/manifest.json                               the names, lengths and digests of one attempt
//! ```
//!
//! The manifest is created by a request that fails if it exists. So there is one result or none, whichever attempts fail,
//! stop, run twice or continue too long; readers begin with the manifest. An attempt without a manifest is garbage.
//! `manifest` is the list of a result, `objects` has the paths, `publication` an attempt, `upload` its objects, `fetch`
//! assembles a directory, and `clean` removes garbage. `partial` is an export on this machine.
#![forbid(unsafe_code)]

pub mod clean;
pub mod fetch;
pub mod manifest;
pub mod objects;
pub mod partial;
pub mod publication;
mod requests;
pub mod upload;

#[cfg(test)]
mod tests;
