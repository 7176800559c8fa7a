//! Files, maps, time and locks: all system calls of a store.
//!
//! No other crate of mqstore makes a system call. They hold an `Arc<dyn Vfs>` and an `Arc<dyn Clock>`, which are real
//! or simulated; [`Vfs`] compares both. The simulated ones, with the feature `sim`, lose unsynced data, and fail or
//! fill up on request. [`RemoteVfs`] reads a store from an object store. [`MappedFile`], [`MappedFileQueue`] and
//! [`FileCache`] use only the traits and behave alike with both.
//!
//! This crate knows no message and no record. The only format that it knows is the name of a segment: twenty digits.

pub mod clock;
pub mod commit;
pub mod event_count;
pub mod faults;
pub mod file_cache;
pub mod mapped_file;
pub mod mapped_file_queue;
pub mod open_files;
pub mod os;
pub mod pool;
pub mod read_pace;
pub mod region;
pub mod remote;
#[cfg(feature = "sim")]
pub mod sim;
pub mod switch;
pub mod sync;
pub mod target;
pub mod vfs;

pub use clock::{Clock, LocalTime, ManualClock, SystemClock, TestClock};
pub use event_count::EventCount;
pub use faults::{FaultVfs, Faults};
pub use file_cache::{FileCache, Recent, RecentFiles, RecentMaps};
pub use mapped_file::{MappedFile, MappedFileGuard};
pub use mapped_file_queue::{FileLength, LoadReport, MappedFileQueue, PushError, StrayFile, StrayKind};
pub use os::{OsVfs, WakeDescriptor};
pub use pool::{Jobs, Pool, parallel_map};
pub use read_pace::{ReadPace, SyncCounts, SyncSource};
pub use region::{Advice, MapAccess, Region, RegionError, RegionView, expect_read};
pub use remote::{
    PendingRange, RangeBytes, RemoteCause, RemoteEntry, RemoteError, RemoteRange, RemoteSource, RemoteVfs,
};
#[cfg(feature = "sim")]
pub use sim::{Fault, SimOptions, SimVfs};
pub use target::{FolderTarget, Target, TargetError, TargetObject};
pub use vfs::{
    Access, DirEntry, Environment, FileKind, FileStat, LockError, LockHolder, NoSpace, SpaceInfo, StoreLock,
    Vfs, VfsFile, fill_up_to, is_disk_full,
};
