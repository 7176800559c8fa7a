//! Reads records of an archive by ranges of its files.
//!
//! A message needs the manifest, the footer and page index of one file, which `kept` keeps in memory, and at most three
//! ranges: the short columns of its row group, one page of properties, and one page of bodies. Longer reads fetch whole
//! row groups, without the columns that only queries need. `archive_reader` fetches and decodes rows, `part` is the rows
//! of a queue in a file, and `searches` finds rows. Threads can share a reader.

mod archive_reader;
mod kept;
mod part;
mod searches;

pub use archive_reader::ArchiveReader;
pub(crate) use archive_reader::Fact;
pub use part::QueuePart;
