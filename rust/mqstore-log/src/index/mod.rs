//! The key index: from the hash of topic and key to log offsets, newest first.
//!
//! This folder owns `index/`: a sequence of hash tables on disk, each named by the local time of its creation. `file`
//! draws one. They can be derived from the log, so you may delete them.
//!
//! Readers trust no byte. They follow a chain only from larger to smaller entry numbers within its slot, and every hit
//! is only a candidate until the log confirms it.
//!
//! Source: `IndexService`, `IndexFile`, `IndexHeader`.

mod check;
mod discover;
mod file;
mod geometry;
mod geometry_guess;
mod insert;
mod lookup;
mod set;
mod space;
#[cfg(test)]
mod tests;

pub use check::{BadIndexFile, EntryLocation, IndexEntries, IndexedEntry};
pub use file::NewEntry;
pub use lookup::Candidates;
pub use set::IndexSet;
