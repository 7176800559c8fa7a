//! What can go wrong in a store, as values.
//!
//! One enum for the façade; each variant carries the path, the offset and the reason that a person
//! needs at three in the morning, and its text says what to do next. The bindings map each variant
//! to one Python class.

use std::io;
use std::path::{Path, PathBuf};

use mqstore_format::FormatError;

/// Why a store operation did not happen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The directory holds no store.
    #[error("{path}: not a store: {reason}")]
    NotAStore {
        /// The directory that was opened.
        path: PathBuf,
        /// What is missing or in the way.
        reason: String,
    },
    /// Somebody else has the store open for writing.
    #[error("{path}: locked by {}: close it there, or open the store with mode \"r\"", holder(*.pid))]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// The process that holds it, where known.
        pid: Option<i32>,
    },
    /// The store was closed before or during the call.
    #[error("{path}: the store is closed")]
    Closed {
        /// The store's root.
        path: PathBuf,
    },
    /// The store was opened for reading only.
    #[error("{path}: opened read-only; open it with mode \"rw\" to {action}")]
    ReadOnly {
        /// The store's root.
        path: PathBuf,
        /// What was asked for.
        action: &'static str,
    },
    /// An earlier write or sync failed; memory and disk may disagree.
    #[error("{path}: stopped after {stage} failed ({cause}): close it and open it again, which recovers it")]
    Poisoned {
        /// The store's root.
        path: PathBuf,
        /// The step that failed first.
        stage: &'static str,
        /// Its error.
        cause: String,
    },
    /// Bytes on disk break the format where they must not.
    #[error("{path} at offset {offset}: {reason}")]
    Corrupt {
        /// The damaged file.
        path: PathBuf,
        /// Byte offset in that file.
        offset: u64,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// A layout that this version does not read.
    #[error("{path}: {reason}")]
    Unsupported {
        /// The file or folder.
        path: PathBuf,
        /// What it is, and what to do instead.
        reason: String,
    },
    /// The disk is full.
    #[error("{path}: no space left on the device while {action}")]
    DiskFull {
        /// The file that could not grow.
        path: PathBuf,
        /// What was being done.
        action: &'static str,
    },
    /// The disk is so full that appends are refused before it is full.
    #[error(
        "{path}: appends are refused: {used_percent} % of the disk are used, and the option disk_refuse_ratio is {ratio}; they go on by themselves when there is room"
    )]
    DiskNearlyFull {
        /// The store's root.
        path: PathBuf,
        /// Used part of the disk in percent.
        used_percent: u64,
        /// The option's value.
        ratio: f64,
    },
    /// A quota is used up; nothing was appended.
    #[error("{}", full(.path, .topic.as_deref(), *.limit, *.used))]
    Full {
        /// The store's root.
        path: PathBuf,
        /// The topic whose quota it is; `None` for the log's.
        topic: Option<String>,
        /// The quota: `max_messages` of a topic, `max_bytes` of the log.
        quota: &'static str,
        /// How much there may be.
        limit: u64,
        /// How much there is.
        used: u64,
    },
    /// A record does not fit the limits.
    #[error("{what} is {size} bytes; the limit is {limit}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size in bytes.
        size: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// A message that RocketMQ's format cannot hold.
    #[error("{reason}")]
    InvalidMessage {
        /// What is wrong with it.
        reason: String,
    },
    /// An option out of its bounds.
    #[error("option {option}: {reason}")]
    InvalidOption {
        /// The option's name.
        option: &'static str,
        /// What is allowed.
        reason: String,
    },
    /// A filter that cannot be understood.
    #[error("filter {expression:?}, column {}: {reason}", position + 1)]
    InvalidFilter {
        /// The filter's text.
        expression: String,
        /// Where, as the number of characters before that place.
        position: usize,
        /// What is wrong there.
        reason: String,
    },
    /// No such topic or queue.
    #[error("{}", no_topic(.topic, *.queue_id))]
    TopicNotFound {
        /// The topic.
        topic: String,
        /// The queue, when the topic exists.
        queue_id: Option<i32>,
    },
    /// A queue offset outside the queue.
    #[error(
        "offset {offset} is outside queue {topic}/{queue_id}, which holds {min_offset} to {max_offset} (exclusive)"
    )]
    OffsetOutOfRange {
        /// The topic.
        topic: String,
        /// The queue.
        queue_id: i32,
        /// The offset asked for.
        offset: i64,
        /// The smallest offset that can be read.
        min_offset: i64,
        /// One past the largest offset that can be read.
        max_offset: i64,
    },
    /// A wait ended without what it waited for.
    #[error("timed out after {waited_ms} ms: {what}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long, in milliseconds.
        waited_ms: u64,
    },
    /// The store cannot take the request now.
    #[error("{reason}")]
    Busy {
        /// Why, and when to try again.
        reason: String,
    },
    /// A change of metadata that does not fit what is known by now; nothing was changed.
    #[error("{reason}")]
    Refused {
        /// Why.
        reason: String,
    },
    /// Another operating-system error.
    #[error("{path}: {action}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was being done.
        action: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

fn holder(pid: Option<i32>) -> String {
    pid.map_or_else(|| "an unknown process".to_owned(), |pid| format!("process {pid}"))
}

fn full(path: &Path, topic: Option<&str>, limit: u64, used: u64) -> String {
    let path = path.display();
    match topic {
        Some(topic) => format!(
            "{path}: topic {topic} is full: it holds {used} messages, and its max_messages is {limit}; \
             there is room again once a retention lets its oldest segments go (expire), or with a larger quota (update_topic)"
        ),
        None => format!(
            "{path}: the log is full: its segments have {used} bytes, another one would exceed max_bytes, which is {limit}; \
             there is room again once a retention lets the oldest segments go (expire), or with a larger max_bytes"
        ),
    }
}

fn no_topic(topic: &str, queue_id: Option<i32>) -> String {
    match queue_id {
        Some(queue_id) => format!("topic {topic} has no queue {queue_id}"),
        None => format!("no topic {topic}"),
    }
}

impl StoreError {
    /// An operating-system error on `path` while doing `action`; a full disk gets its own variant.
    pub fn io(path: &Path, action: &'static str, source: io::Error) -> Self {
        if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
            return Self::DiskFull { path: path.to_path_buf(), action };
        }
        Self::Io { path: path.to_path_buf(), action, source }
    }

    /// Whether a file or folder was not there: deleted meanwhile, where it was there before.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Damage in `path` at byte `offset`.
    pub fn corrupt(path: &Path, offset: u64, reason: impl Into<String>) -> Self {
        Self::Corrupt { path: path.to_path_buf(), offset, reason: reason.into() }
    }

    /// A format error found in `path` at byte `offset`.
    pub fn format(path: &Path, offset: u64, error: &FormatError) -> Self {
        Self::corrupt(path, offset, error.to_string())
    }

    /// A message that breaks a rule of the format.
    pub fn invalid_message(error: &FormatError) -> Self {
        Self::InvalidMessage { reason: error.to_string() }
    }
}

/// Names the file and the action of an I/O error.
pub trait IoContext<T> {
    /// Turns an [`io::Error`] into a [`StoreError`] that names `path` and `action`.
    fn at(self, path: &Path, action: &'static str) -> Result<T, StoreError>;

    /// As [`Self::at`], for hot paths: the path is asked for only when there is an error.
    fn at_file(self, path: impl FnOnce() -> PathBuf, action: &'static str) -> Result<T, StoreError>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn at(self, path: &Path, action: &'static str) -> Result<T, StoreError> {
        self.map_err(|source| StoreError::io(path, action, source))
    }

    fn at_file(self, path: impl FnOnce() -> PathBuf, action: &'static str) -> Result<T, StoreError> {
        self.map_err(|source| StoreError::io(&path(), action, source))
    }
}

/// A file or folder that is in a store but not part of it, or not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// Where it is.
    pub path: PathBuf,
    /// Why it was left alone.
    pub reason: String,
}
