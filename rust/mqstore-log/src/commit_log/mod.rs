//! The commit log: every message of every topic, one after the other.
//!
//! Owns `commitlog/`. After a crash every record below the durable position is there. Above it any subset of pages may
//! have survived, which recovery truncates to a prefix. A segment gets its name only with its first record, and the
//! folder is synced before anything in it counts as durable.
//!
//! `append` writes, `publish_ring` publishes in order, `sync` makes durable, `scan` reads. Readers take no lock.
//!
//! Source: `CommitLog#asyncPutMessage`, `DefaultAppendMessageCallback#doAppend`, `GroupCommitService`.

mod active_segment;
mod append;
mod copy;
mod mapped_reads;
mod pool;
mod preallocate;
mod publish_ring;
mod put_lock;
mod quota;
mod read;
mod roll;
mod scan;
mod segment_list;
mod sync;

pub use append::{CommitLog, EncodedRecord, LogOptions, Placed, SyncPoint};
pub use mapped_reads::{MappedPart, ReadCounts};
pub use preallocate::PreallocateOptions;
pub use put_lock::PutLimits;
pub use quota::TopicQuotaState;
pub use read::{RecordReader, read_record};
pub use scan::check_full;
pub use scan::{Cut, Damage, LogScanner, RecordRun, ScanChecks, ScanItem, check_record};
pub use segment_list::{Segment, SegmentList};
