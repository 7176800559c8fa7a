//! The key index: from the hash of topic and key to positions in the log, newest first.
//!
//! Owns `index/`: hash tables on disk, one file after the other, named by the local time of their creation. `file`
//! draws one. They are derived from the log and may be deleted.
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
#[cfg(test)]
mod tests;

pub use check::{BadIndexFile, EntryLocation, IndexEntries, IndexedEntry};
pub use file::NewEntry;
pub use lookup::Candidates;
pub use set::IndexSet;
