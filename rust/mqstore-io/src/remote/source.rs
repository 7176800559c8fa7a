//! The transport below [`RemoteVfs`](super::RemoteVfs): a list of files, and ranges of their bytes.
//!
//! An implementation repeats a failed request itself, as often as makes sense. An error that it returns is final: it
//! says nothing about the content of the store, so no caller may treat it as a missing or a damaged file.

use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};

/// A file below the root of a store, as of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteEntry {
    /// Path below the root, with `/` between the parts; empty if the root itself is a file.
    pub path: String,
    /// Length in bytes.
    pub len: u64,
    /// Last change, milliseconds since 1970-01-01 UTC; 0 if it is unknown.
    pub modified_ms: i64,
    /// A text that changes with the content, such as an `ETag`.
    pub version: String,
}

/// A range of one version of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRange<'a> {
    /// As in [`RemoteEntry::path`].
    pub path: &'a str,
    /// As in [`RemoteEntry::version`]. If the file has another version, the read is [`RemoteCause::Changed`].
    pub version: &'a str,
    /// First byte.
    pub start: u64,
    /// Number of bytes, within the length of the file.
    pub len: u64,
}

/// The kind of a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteCause {
    /// The credentials are missing, wrong or expired, or do not allow the request.
    Denied,
    /// The bucket or container does not exist.
    NoBucket,
    /// A file was replaced or removed since the list, or returned fewer bytes than it has.
    Changed,
    /// The user interrupted the request.
    Interrupted,
    /// The target of a write has no space.
    Full,
    /// An object has other bytes than were written.
    Damaged,
    /// Any other failure, for example of the network.
    Other,
}

/// A failed request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct RemoteError {
    /// Its kind.
    pub cause: RemoteCause,
    /// The file, or the root of the store.
    pub path: PathBuf,
    /// The cause and what to do, without secrets.
    pub reason: String,
}

impl RemoteError {
    /// Returns the failed request that an error of a file system carries, if it has one.
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

impl From<RemoteError> for io::Error {
    /// Never `NotFound`: that says that a file does not exist, and callers then continue without it.
    fn from(error: RemoteError) -> Self {
        let kind = match error.cause {
            RemoteCause::Denied => io::ErrorKind::PermissionDenied,
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

/// The bytes of a range. They never change.
pub type RangeBytes = Box<dyn AsRef<[u8]> + Send + Sync>;

/// A read of one range that was started.
pub trait PendingRange: Send {
    /// Waits for the bytes.
    ///
    /// # Errors
    /// The request failed, or the file has another version.
    fn wait(self: Box<Self>) -> Result<RangeBytes, RemoteError>;
}

/// A folder of an object store or of another remote file system, for reading. Any thread can call it.
pub trait RemoteSource: Send + Sync + Debug {
    /// Returns all files at and below the root, in any order.
    ///
    /// # Errors
    /// The request failed. A root without files is no error.
    fn list(&self) -> Result<Vec<RemoteEntry>, RemoteError>;

    /// Returns the bytes of each range, in the same order. Several ranges are fetched at the same time.
    ///
    /// # Errors
    /// One of the requests failed, or a file has another version.
    fn read(&self, ranges: &[RemoteRange<'_>]) -> Result<Vec<RangeBytes>, RemoteError>;

    /// Starts the read of a range, and returns before the bytes are there. If no caller waits for them, they are
    /// dropped.
    ///
    /// # Errors
    /// The read could not be started.
    fn start(&self, range: &RemoteRange<'_>) -> Result<Box<dyn PendingRange>, RemoteError>;

    /// Returns the file and the offset in it that hold a byte of the file or folder at `path` below the root; see
    /// [`Vfs::real_place`](crate::Vfs::real_place).
    fn real_place(&self, _path: &Path, _offset: u64) -> Option<(PathBuf, u64)> {
        None
    }
}
