//! A failed request to a target.

use std::error::Error;
use std::io;

use crate::remote::RemoteCause;
use crate::vfs::is_disk_full;

const DENIED: &str =
    "access denied: check the credentials, whether they have expired, and the permission to write objects";
const REMOVED: &str = "the file does not exist, or its folder was removed meanwhile: try again";

/// A failed request to a target.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct TargetError {
    /// Its kind.
    pub cause: RemoteCause,
    /// The object, below the root; empty for the root.
    pub path: String,
    /// The reason, without secrets.
    pub reason: String,
    /// An error of the program that has the transport, such as an interrupt of its user. The caller gets it unchanged.
    pub raised: Option<Box<dyn Error + Send + Sync>>,
}

impl TargetError {
    /// Returns an error without an error of another program.
    pub fn new(cause: RemoteCause, path: &str, reason: impl Into<String>) -> Self {
        Self { cause, path: path.to_owned(), reason: reason.into(), raised: None }
    }

    /// Returns the error of a program that has the transport.
    pub fn raised(path: &str, error: Box<dyn Error + Send + Sync>) -> Self {
        let reason = error.to_string();
        Self { cause: RemoteCause::Other, path: path.to_owned(), reason, raised: Some(error) }
    }

    /// Returns the error of a file system for a file.
    pub(super) fn of_file(path: &str, error: &io::Error) -> Self {
        let text = error.to_string();
        let reason = text.split(" (os error ").next().unwrap_or_default();
        match error.kind() {
            io::ErrorKind::NotFound => Self::new(RemoteCause::Changed, path, REMOVED),
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Self::new(RemoteCause::Denied, path, DENIED)
            }
            _ if is_disk_full(error) => Self::new(RemoteCause::Full, path, reason),
            _ => Self::new(RemoteCause::Other, path, reason),
        }
    }
}
