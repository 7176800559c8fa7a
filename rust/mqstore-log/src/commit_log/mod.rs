//! The commit log: the records of all topics in append order.
//!
//! This folder owns `commitlog/`. After a crash every record before the durable offset exists. After it, any subset of
//! pages may have survived; recovery truncates them to a prefix. A segment gets its name only with its first record,
//! and the folder is synced before anything in the segment counts as durable.
//!
//! `append` writes and publishes, `sync` makes durable, `scan` reads. Readers take no lock.
//!
//! Source: `CommitLog#asyncPutMessage`, `DefaultAppendMessageCallback#doAppend`, `GroupCommitService`.

mod active_segment;
mod append;
mod append_copied;
mod log;
mod mapped_reads;
mod pool;
mod preallocate;
mod preallocator;
mod put_lock;
mod quota;
mod read;
mod read_maps;
mod roll;
mod scan;
mod segment_list;
mod sync;

pub use append_copied::CopiedPart;
pub use log::{CommitLog, EncodedRecord, LogOptions, Placed, SyncPoint};
pub use mapped_reads::MappedPart;
pub use preallocator::PreallocateOptions;
pub use put_lock::PutLimits;
pub use quota::TopicQuotaState;
pub use read::{RecordReader, read_record};
pub use read_maps::ReadCounts;
pub use scan::check_full;
pub use scan::{
    CutRun, Damage, LogScanner, RaftEntry, RaftItem, RaftWalk, RecordRun, ScanChecks, ScanItem, check_record,
    damaged_place_note, has_damaged_place,
};
pub(crate) use segment_list::is_unwritten;
pub use segment_list::{Segment, SegmentList, prefers_second};
