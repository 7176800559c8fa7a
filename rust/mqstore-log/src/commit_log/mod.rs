//! The commit log: every message of every topic, one after the other.
//!
//! Owns `commitlog/`. Appends draw their queue offset, position and time under one lock and copy
//! outside it; positions follow one another, each behind the one above:
//!
//! ```text
//! commitlog/00000000000000000000   record record ... record filler
//! commitlog/00000000001073741824   record record record record 0000000...      <- the active segment
//!                                         │      │      └ reserved: being copied
//!                                         │      └ published: all before it is copied; readers see it
//!                                         └ durable: all before it is synced
//! ```
//!
//! Across a crash: a record below the durable position is there; above it any subset of pages may be,
//! which recovery cuts to a prefix. A segment gets its name only when its first record comes, and the
//! folder is synced before anything in it counts as durable.
//!
//! Across threads: appenders take turns for some nanoseconds (`put_lock`), copy side by side and are
//! published in order (`ring`); one thread at a time syncs, for all who wait (`mqstore_base::group_commit`); one
//! prepares what comes next (`ahead`); readers take no lock.
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

pub use append::{CommitLog, LogOptions, Pending, Placed, SyncPoint};
pub use mapped_reads::{MappedPart, ReadCounts};
pub use preallocate::PreallocateOptions;
pub use put_lock::PutLimits;
pub use quota::Room;
pub use read::{RecordReader, read_record};
pub use scan::check_to_show;
pub use scan::{Cut, Damage, LogScanner, RecordRun, ScanChecks, ScanItem, check_record};
pub use segment_list::{Segment, SegmentList};
