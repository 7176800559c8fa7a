//! Places outside a store to which results and archives are written: the trait [`Target`].
//!
//! A target is a folder ([`FolderTarget`]), or the objects below a URL, whose transport the caller has. `create` has the
//! commit of all targets: an object that is created if it is absent, and read back. `numbered` has what lists of such
//! objects share. `hostile` is a target for tests.

mod create;
mod error;
mod folder;
#[cfg(feature = "sim")]
mod hostile;
mod numbered;

use std::fmt::Debug;
use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;

use bytes::Bytes;

pub use create::{NotCreated, OVERWRITES, create, keeps_existing};
pub use error::TargetError;
pub use folder::FolderTarget;
#[cfg(feature = "sim")]
pub use hostile::{HostileTarget, Mischief};
pub use numbered::{last_bytes, number_of, numbered_path, numbers, probe};

use crate::vfs::Vfs;

/// Returns a random id of 32 hexadecimal digits.
pub fn random_id(vfs: &dyn Vfs) -> String {
    let part = || vfs.environment().random_seed;
    format!("{:016x}{:016x}", part(), part())
}

/// Returns bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Whether a text has so many hexadecimal digits, as [`hex`] writes them.
pub fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Objects of one request that removes them.
const MOST_REMOVED: usize = 1000;

/// Removes any number of objects.
///
/// # Errors
/// As for [`Target::delete`].
pub fn delete_all(target: &dyn Target, paths: &[String]) -> Result<(), TargetError> {
    paths.chunks(MOST_REMOVED).try_for_each(|some| target.delete(some))
}

/// Returns the objects in a folder, sorted by path, each once.
///
/// # Errors
/// As for [`Target::list`].
pub fn sorted_list(target: &dyn Target, folder: &str) -> Result<Vec<TargetObject>, TargetError> {
    let mut found = target.list(folder)?;
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found.dedup_by(|one, other| one.path == other.path);
    Ok(found)
}

/// An object of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetObject {
    /// Path below the root, with `/` between the parts.
    pub path: String,
    /// Length in bytes.
    pub bytes: u64,
    /// Last change, milliseconds since 1970-01-01 UTC.
    pub changed_ms: i64,
}

/// The objects below a folder or a URL. Paths are relative to it. Any thread can call it.
///
/// A failed request can have been carried out, or can be carried out later, except if its cause is
/// [`RemoteCause::Denied`](crate::RemoteCause::Denied).
pub trait Target: Debug + Send + Sync {
    /// Returns the target without secrets, or with a path, the object as other programs name it.
    fn shown(&self, path: Option<&str>) -> String;

    /// Returns the folder of this machine that has the objects; `None` for a server.
    fn folder(&self) -> Option<&Path> {
        None
    }

    /// Returns an object; `None` if there is none.
    ///
    /// # Errors
    /// The request failed.
    fn get(&self, path: &str) -> Result<Option<Bytes>, TargetError>;

    /// Returns ranges of objects, in the same order. A range is shorter if its object ends before.
    ///
    /// # Errors
    /// A request failed; with the cause `Changed`, the object does not exist.
    fn ranges(&self, wanted: &[(&str, Range<u64>)]) -> Result<Vec<Bytes>, TargetError>;

    /// Returns the objects in a folder, which ends with `/`, and in its folders, in any order. An object can come twice.
    ///
    /// # Errors
    /// The request failed. A folder that does not exist is no error.
    fn list(&self, folder: &str) -> Result<Vec<TargetObject>, TargetError>;

    /// Returns the names of the objects and folders in a folder, which ends with `/` or is empty, in any order.
    ///
    /// # Errors
    /// The request failed. A folder that does not exist is no error.
    fn names(&self, folder: &str) -> Result<Vec<String>, TargetError>;

    /// Writes an object, whose path no other call uses. It is durable with the next object that
    /// [`Target::put_if_absent`] creates.
    ///
    /// # Errors
    /// The request failed.
    fn put(&self, path: &str, content: &[u8]) -> Result<(), TargetError>;

    /// Writes the first `length` bytes of a file as an object, like [`Target::put`].
    ///
    /// # Errors
    /// The request failed; the file cannot be read, or is shorter.
    fn put_file(&self, path: &str, vfs: &dyn Vfs, file: &Path, length: u64) -> Result<(), TargetError>;

    /// Writes an object unless it exists, durably. Returns whether this call has written it: `false` can also mean that
    /// the answer of the first of several requests was lost.
    ///
    /// # Errors
    /// The request failed.
    fn put_if_absent(&self, path: &str, content: &[u8]) -> Result<bool, TargetError>;

    /// Removes objects. Those that do not exist are no error.
    ///
    /// # Errors
    /// A request failed; some objects can be removed.
    fn delete(&self, paths: &[String]) -> Result<(), TargetError>;

    /// Makes the names in a folder, which ends with `/`, durable: a call that has ended can have left the last one. The
    /// answer of a server says that they are.
    ///
    /// # Errors
    /// The request failed.
    fn settle(&self, _folder: &str) -> Result<(), TargetError> {
        Ok(())
    }
}
