//! The errors of a store.
//!
//! One enum for all. Each variant carries the path, the offset and the cause if they exist. Its text says what to do.
//! The bindings map each variant to one Python class.

use std::io;
use std::path::{Path, PathBuf};

use mqstore_format::FormatError;
use mqstore_io::{NoSpace, RemoteCause, RemoteError, TargetError, is_disk_full, open_files};

/// The reason why an operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The directory holds no store.
    #[error("{path}: not a store: {reason}")]
    NotAStore {
        /// The directory of the open.
        path: PathBuf,
        /// The part that is missing or has the wrong kind.
        reason: String,
    },
    /// Another process has the store open for writing.
    #[error("{path}: locked by {}: close it there, or open the store with mode \"r\"", holder(*.pid))]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// The process that holds the lock, if it is known.
        pid: Option<i32>,
    },
    /// The store was closed before or during the call.
    #[error("{path}: the store is closed")]
    Closed {
        /// The store's root.
        path: PathBuf,
    },
    /// The store is open for reading only.
    #[error("{path}: opened read-only; open it with mode \"rw\" to {action}")]
    ReadOnly {
        /// The store's root.
        path: PathBuf,
        /// The refused action.
        action: &'static str,
    },
    /// The store is a copy of a master's log, so only the master can change it.
    #[error("{path}: is a copy of {master}: append there, or promote the copy to a store of its own")]
    Follows {
        /// The root of the store.
        path: PathBuf,
        /// Host and port of the master.
        master: String,
    },
    /// An earlier write or sync failed; memory and disk may disagree.
    #[error("{path}: stopped after {stage} failed ({cause}): close and reopen the store to recover it")]
    Poisoned {
        /// The store's root.
        path: PathBuf,
        /// The step that failed first.
        stage: &'static str,
        /// The error of that step.
        cause: String,
    },
    /// Bytes on disk break the format in a place that must be valid.
    #[error("{path} at offset {offset}: {reason}")]
    Corrupt {
        /// The damaged file.
        path: PathBuf,
        /// Byte offset in that file.
        offset: u64,
        /// The cause, and what to do.
        reason: String,
    },
    /// A layout that this version cannot read.
    #[error("{path}: {reason}")]
    Unsupported {
        /// The file or folder.
        path: PathBuf,
        /// The layout, and what to do instead.
        reason: String,
    },
    /// The disk is full.
    #[error("{}", disk_full(.path, .action, *.requested_bytes, *.free_bytes))]
    DiskFull {
        /// The file that could not grow.
        path: PathBuf,
        /// The action that needed space.
        action: &'static str,
        /// The bytes that it needed, if they are known.
        requested_bytes: Option<u64>,
        /// The free bytes of the file system, if they are known.
        free_bytes: Option<u64>,
    },
    /// The disk is so full that the store refuses appends in advance.
    #[error("{path}: cannot append: {reason}; appends resume by themselves once there is space")]
    DiskNearlyFull {
        /// The store's root.
        path: PathBuf,
        /// The limit, and the space that is left.
        reason: String,
        /// The option that sets the limit, or one that keeps space free.
        option: &'static str,
    },
    /// A quota is used up; the append wrote nothing.
    #[error("{}", full(.path, .topic.as_deref(), *.limit, *.used))]
    Full {
        /// The store's root.
        path: PathBuf,
        /// The topic of the quota; `None` for the quota of the log.
        topic: Option<String>,
        /// The quota: `max_messages` of a topic, `max_bytes` of the log.
        quota: &'static str,
        /// The limit, in messages or bytes.
        limit: u64,
        /// The used amount, in messages or bytes.
        used: u64,
    },
    /// A record exceeds a limit.
    #[error("{what} is {size} bytes; the limit is {limit}")]
    TooLarge {
        /// The thing that is too large.
        what: &'static str,
        /// Its size in bytes.
        size: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// A message that RocketMQ's format cannot hold.
    #[error("{reason}")]
    InvalidMessage {
        /// The broken rule.
        reason: String,
    },
    /// An option outside its bounds.
    #[error("option {option}: {reason}")]
    InvalidOption {
        /// The option's name.
        option: &'static str,
        /// The allowed values.
        reason: String,
    },
    /// A filter that cannot be parsed.
    #[error("filter {expression:?}, column {}: {reason}", position + 1)]
    InvalidFilter {
        /// The filter's text.
        expression: String,
        /// The position of the error, as the number of characters before it.
        position: usize,
        /// The cause.
        reason: String,
    },
    /// The topic or queue does not exist.
    #[error("{}", no_topic(.topic, *.queue_id))]
    TopicNotFound {
        /// The topic.
        topic: String,
        /// The queue, if the topic exists.
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
        /// The offset of the call.
        offset: i64,
        /// The smallest offset that can be read.
        min_offset: i64,
        /// One past the largest offset that can be read.
        max_offset: i64,
    },
    /// A wait reached its time limit.
    #[error("timed out after {waited_ms} ms: {what}")]
    Timeout {
        /// The event that did not come.
        what: String,
        /// The duration of the wait, in milliseconds.
        waited_ms: u64,
    },
    /// Too few copies acknowledged an append in time. The messages are stored.
    #[error("{}", not_replicated(.path, *.log_offset, *.log_end, *.copies, *.waited_ms))]
    NotReplicated {
        /// The root of the store.
        path: PathBuf,
        /// Log offset of the first message.
        log_offset: u64,
        /// End of the last message.
        log_end: u64,
        /// Number of copies that the append waited for at least, this store included.
        copies: u32,
        /// The duration of the wait, in milliseconds.
        waited_ms: u64,
    },
    /// The store cannot accept the request now.
    #[error("{reason}")]
    Busy {
        /// The cause, and when to try again.
        reason: String,
    },
    /// A change of metadata that contradicts the current state; it changed nothing.
    #[error("{reason}")]
    Refused {
        /// The cause.
        reason: String,
    },
    /// A folder or URL has no result or archive.
    #[error("{path}: no result is published here: check the URL, or write the result again")]
    ResultNotFound {
        /// The folder or URL, without secrets.
        path: String,
    },
    /// The folder or URL for a result or an archive has another one.
    #[error("{path}: {reason}; choose another URL")]
    ResultExists {
        /// The folder or URL, without secrets.
        path: String,
        /// The difference.
        reason: String,
    },
    /// A URL at which this cannot be done.
    #[error("{path}: cannot {action}: {reason}")]
    WrongTarget {
        /// The URL, without secrets.
        path: String,
        /// The refused action.
        action: &'static str,
        /// The reason, and what to do instead.
        reason: String,
    },
    /// Another operating-system error.
    #[error("{path}: {action}: {source}{}", remedy(.source).unwrap_or_default())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The failed action.
        action: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

fn not_replicated(path: &Path, log_offset: u64, log_end: u64, copies: u32, waited_ms: u64) -> String {
    format!("timed out after {waited_ms} ms: {}", unreplicated(path, log_offset, log_end, copies))
}

/// Returns what [`StoreError::NotReplicated`] says, without the duration of the wait.
pub fn unreplicated(path: &Path, log_offset: u64, log_end: u64, copies: u32) -> String {
    format!(
        "{}: the append is stored at log offset {log_offset}, up to {log_end}, but it is not known that {copies} copies \
         have it: do not repeat it; the copies get it as soon as they can, and Store.followers() shows how far they are",
        path.display()
    )
}

fn holder(pid: Option<i32>) -> String {
    pid.map_or_else(|| "another process (pid unknown)".to_owned(), |pid| format!("process {pid}"))
}

fn disk_full(path: &Path, action: &str, requested_bytes: Option<u64>, free_bytes: Option<u64>) -> String {
    let part =
        |bytes: Option<u64>, what| bytes.map(|bytes| format!(", {bytes} bytes {what}")).unwrap_or_default();
    format!(
        "{}: no space left on the device while {action}{}{}; free space on the disk, or change the option {}",
        path.display(),
        part(requested_bytes, "requested"),
        part(free_bytes, "free"),
        disk_option(path)
    )
}

/// Returns the name of the option that makes the store need less space for the file at `path`.
pub fn disk_option(path: &Path) -> &'static str {
    let folder = path.parent().and_then(Path::file_name);
    let is_index = folder.is_some_and(|name| name == "index")
        || path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("index-"));
    if is_index { "index_slots" } else { "retention_bytes" }
}

fn full(path: &Path, topic: Option<&str>, limit: u64, used: u64) -> String {
    let path = path.display();
    match topic {
        Some(topic) => format!(
            "{path}: topic {topic} is full: it has {used} messages, and its max_messages is {limit}; \
             set a retention and expire old segments, or raise the quota (update_topic)"
        ),
        None => format!(
            "{path}: the log is full: its segments have {used} bytes, and another segment would exceed \
             max_bytes ({limit}); set a retention and expire old segments, or raise max_bytes"
        ),
    }
}

fn no_topic(topic: &str, queue_id: Option<i32>) -> String {
    match queue_id {
        Some(queue_id) => format!("topic {topic} has no queue {queue_id}"),
        None => format!("no topic {topic}"),
    }
}

/// Returns the text that says what to do about a limit of the process.
pub fn remedy(source: &io::Error) -> Option<&'static str> {
    if open_files::is_out_of_files(source) {
        return Some(
            "; close files that the program does not need, or raise the limit (ulimit -n), then try again",
        );
    }
    match source.kind() {
        io::ErrorKind::OutOfMemory => {
            Some("; free memory or raise the limit of maps (vm.max_map_count), then try again")
        }
        // No call of mqstore on a file fails so, only the start of a thread.
        io::ErrorKind::WouldBlock => Some("; end threads or raise their limit (ulimit -u), then try again"),
        _ => None,
    }
}

impl StoreError {
    /// Returns an error of the system on `path` during `action`; a full disk gets its own variant.
    pub fn io(path: &Path, action: &'static str, source: io::Error) -> Self {
        if is_disk_full(&source) {
            let cause = NoSpace::of(&source);
            return Self::DiskFull {
                path: path.to_path_buf(),
                action,
                requested_bytes: cause.map(|cause| cause.requested_bytes),
                free_bytes: cause.and_then(|cause| cause.free_bytes),
            };
        }
        Self::Io { path: path.to_path_buf(), action, source }
    }

    /// Returns the error of a failed request to the target `root` during `action`. `root` has no secrets.
    pub fn request(root: &str, action: &'static str, error: TargetError) -> Self {
        let path = PathBuf::from(format!("{root}/{}", error.path).trim_end_matches('/'));
        let TargetError { cause, reason, raised, .. } = error;
        if cause == RemoteCause::Damaged {
            return Self::Corrupt { path, offset: 0, reason };
        }
        let source = match raised {
            Some(raised) => io::Error::other(raised),
            None => RemoteError { cause, path: path.clone(), reason }.into(),
        };
        Self::Io { path, action, source }
    }

    /// Whether the error says that a file or folder does not exist, for example because another process deleted it.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Whether a file could not be opened because too many are open. Nothing was changed then, and a later call can
    /// succeed.
    pub fn is_out_of_files(&self) -> bool {
        matches!(self, Self::Io { source, .. } if open_files::is_out_of_files(source))
    }

    /// Whether the system had no free descriptor, memory, map or thread. A later call can succeed.
    pub fn is_out_of_resources(&self) -> bool {
        matches!(self, Self::Io { source, .. } if open_files::is_out_of_resources(source))
    }

    /// Returns the error for damage in `path` at byte `offset`.
    pub fn corrupt(path: &Path, offset: u64, reason: impl Into<String>) -> Self {
        Self::Corrupt { path: path.to_path_buf(), offset, reason: reason.into() }
    }

    /// Whether the error says that bytes on disk are damaged.
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Corrupt { .. })
    }

    /// Adds to an error about damage that the option `on_damage` can skip it; `object` names what cannot be read.
    #[must_use]
    pub fn with_skip_advice(self, object: &str) -> Self {
        match self {
            Self::Corrupt { path, offset, reason } => {
                let advice = "on_damage=\"skip\" skips it, and `mqstore repair` repairs the store";
                Self::Corrupt { path, offset, reason: format!("{reason}; cannot read {object}; {advice}") }
            }
            other => other,
        }
    }

    /// Returns the error for a format error in `path` at byte `offset`.
    pub fn format(path: &Path, offset: u64, error: &FormatError) -> Self {
        Self::corrupt(path, offset, error.to_string())
    }

    /// Returns the error for a message that breaks a rule of the format.
    pub fn invalid_message(error: &FormatError) -> Self {
        Self::InvalidMessage { reason: error.to_string() }
    }
}

/// Names the file and the action of an I/O error.
pub trait IoContext<T> {
    /// Turns an [`io::Error`] into a [`StoreError`] that names `path` and `action`.
    fn at(self, path: &Path, action: &'static str) -> Result<T, StoreError>;

    /// Like [`Self::at`], for hot paths: calls `path` only if there is an error.
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

/// A file or folder in a store that does not belong to it, or has the wrong form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// The path.
    pub path: PathBuf,
    /// Why the open ignores it.
    pub reason: String,
}
