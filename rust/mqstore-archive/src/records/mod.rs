//! Records of the log as the columns of an archive, and back to the same bytes.
//!
//! `builder` makes the columns in the workers of a scan, `encode` the bytes of records from rows of these columns. A
//! record is a function of its row: its lengths and its physical offset follow from the other columns. If it is not, the
//! column `raw` has the whole record. `log_range` has the records of a range of the log, sorted for their files.

mod archive_file;
mod builder;
mod encode;
mod log_range;

pub use archive_file::{ArchiveFile, QueueGap, QueueGaps};
pub use builder::ArchiveBuilder;
pub use encode::{ArchiveRows, for_each_record};
pub use log_range::{LogRange, QueueRows, RowsSummary};
