//! The commit log: every message of every topic, one after the other.
//!
//! Owns `commitlog/`. After a crash every record below the durable position is there. Above it any subset of pages may
//! have survived, which recovery truncates to a prefix. A segment gets its name only with its first record, and the
//! folder is synced before anything in it counts as durable.
//!
//! `append` writes and publishes, `sync` makes durable, `scan` reads. Readers take no lock.
//!
//! Source: `CommitLog#asyncPutMessage`, `DefaultAppendMessageCallback#doAppend`, `GroupCommitService`.

mod active_segment;
mod append;
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

pub use log::{CommitLog, EncodedRecord, LogOptions, Placed, SyncPoint};
pub use mapped_reads::MappedPart;
pub use preallocator::PreallocateOptions;
pub use put_lock::PutLimits;
pub use quota::TopicQuotaState;
pub use read::{RecordReader, read_record};
pub use read_maps::ReadCounts;
pub use scan::check_full;
pub use scan::{Cut, Damage, LogScanner, RecordRun, ScanChecks, ScanItem, check_record};
pub use segment_list::{Segment, SegmentList};
