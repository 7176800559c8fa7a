//! Files, maps, time and locks: everything that a store asks of the machine.
//!
//! The rest of mqstore names no system call. It holds an `Arc<dyn Vfs>` and an `Arc<dyn Clock>` and
//! gets one of two worlds behind them:
//!
//! ```text
//!             Vfs ── VfsFile ── Region ── RegionView          Clock        StoreLock
//! real        OsVfs (`os`)      mapped pages                  SystemClock  record lock on byte 0
//! simulated   SimVfs (`sim`)    heap pages, the file's own    ManualClock  one holder a file
//! ```
//!
//! The simulated world forgets what was not synced, fails on request and fills up on request; it is
//! behind the feature `sim`. [`MappedFile`], [`MappedFileQueue`] and [`FileCache`] are built on the
//! traits alone and behave alike in both.
//!
//! This crate knows no message, no record and no offset format but one: segment files are named by
//! twenty decimal digits.

pub mod clock;
pub mod event_count;
pub mod faults;
pub mod file_cache;
pub mod mapped_file;
pub mod mapped_file_queue;
pub mod os;
pub mod region;
#[cfg(feature = "sim")]
pub mod sim;
pub mod switch;
pub mod sync;
pub mod vfs;

pub use clock::{Clock, LocalTime, ManualClock, SystemClock, TestClock};
pub use event_count::EventCount;
pub use faults::{FaultVfs, Faults};
pub use file_cache::{FileCache, RecentMaps};
pub use mapped_file::{MappedFile, MappedFileGuard};
pub use mapped_file_queue::{FileLength, LoadReport, MappedFileQueue, PushError, StrayFile, StrayKind};
pub use os::{OsVfs, WakeDescriptor};
pub use region::{Advice, Region, RegionError, RegionView, expect_read};
#[cfg(feature = "sim")]
pub use sim::{Fault, SimOptions, SimVfs};
pub use vfs::{
    Access, DirEntry, Environment, FileKind, FileStat, LockError, LockHolder, MapAccess, SpaceInfo,
    StoreLock, Vfs, VfsFile,
};
