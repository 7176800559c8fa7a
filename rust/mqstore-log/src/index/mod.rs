//! The key index: from the hash of topic and key to the places in the log, newest first.
//!
//! Owns `index/`: hash tables on disk, one file after the other, named by the local time of their
//! making. They are a function of the log and may be thrown away.
//!
//! ```text
//! index/20240209030405006
//!   0            header: begin and end time, begin and end physical offset, slots used, next entry
//!   40           slots: number of the newest entry of a chain, 0 for none
//!   40 + 4 S     entries: hash 4 | physical offset 8 | seconds 4 | number of the older entry 4
//! ```
//!
//! The writer allocates a file in staging, names it, and writes it through a map: entry, header, slot,
//! in that order, so that neither a kill nor a reader in another process meets a slot whose entry the
//! header does not count. Readers follow chains with positional reads (in the writer's process the
//! newest files through their maps) and believe nothing: a chain goes from larger to smaller numbers,
//! stays in its slot, and every hit is only a candidate until the log confirms it.
//!
//! | module | what it does |
//! |---|---|
//! | `set` | the files, loading, removal, flush |
//! | `put` | adding entries, rolling to the next file |
//! | `walk` | look-ups |
//! | `check` | all entries in order, all chains |
//! | `file` | one file, read through a map or by position |
//! | `discover`, `geometry` | which files are ours, and with how many slots and entries |
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
pub use insert::NewEntry;
pub use lookup::Candidates;
pub use set::IndexSet;
