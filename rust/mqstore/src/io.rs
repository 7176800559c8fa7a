//! The file system and the clock of a store: those of the machine, of an object store, of tests.

#[cfg(feature = "sim")]
pub use mqstore_io::sim;
pub use mqstore_io::{Access, Clock, EventCount, FileKind, OsVfs, SystemClock, Vfs, VfsFile, WakeDescriptor};
pub use mqstore_io::{FaultVfs, Faults, ManualClock, TestClock};
pub use mqstore_io::{FolderTarget, Target, TargetError, TargetObject};
pub use mqstore_io::{
    PendingRange, RangeBytes, RemoteCause, RemoteEntry, RemoteError, RemoteRange, RemoteSource, RemoteVfs,
};
pub use mqstore_io::{commit, sync};
