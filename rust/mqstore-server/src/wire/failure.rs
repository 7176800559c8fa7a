//! Errors on the wire: each variant of the façade's errors, so that a client raises what the owner would raise.
//!
//! The façade has some texts as `&'static str`. A client gets them from the owner, so it keeps each different text once,
//! for the life of the process. Their number is limited; later ones become "an unnamed part".

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use mqstore::Error;
use mqstore::error::StoreError;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// Maximum number and length of kept texts.
const KEPT_TEXTS: usize = 1024;
const TEXT_BYTES: usize = 256;

/// An error of a verb.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Failure {
    /// See [`StoreError::Closed`].
    Closed(String),
    /// See [`StoreError::ReadOnly`].
    ReadOnly(String, String),
    /// See [`StoreError::Poisoned`].
    Poisoned(String, String, String),
    /// See [`StoreError::Corrupt`].
    Corrupt(String, u64, String),
    /// See [`StoreError::Unsupported`].
    Unsupported(String, String),
    /// See [`StoreError::DiskFull`].
    DiskFull(String, String, Option<u64>, Option<u64>),
    /// See [`StoreError::DiskNearlyFull`].
    DiskNearlyFull(String, String, String),
    /// See [`StoreError::Full`].
    QuotaFull(String, Option<String>, String, u64, u64),
    /// See [`StoreError::TooLarge`].
    TooLarge(String, u64, u64),
    /// See [`StoreError::InvalidMessage`].
    InvalidMessage(String),
    /// See [`StoreError::InvalidOption`].
    InvalidOption(String, String),
    /// See [`StoreError::InvalidFilter`].
    InvalidFilter(String, u64, String),
    /// See [`StoreError::TopicNotFound`].
    TopicNotFound(String, Option<i32>),
    /// See [`StoreError::OffsetOutOfRange`].
    OffsetOutOfRange(String, i32, i64, i64, i64),
    /// See [`StoreError::Timeout`].
    Timeout(String, u64),
    /// See [`StoreError::NotReplicated`].
    NotReplicated(String, u64, u64, u32, u64),
    /// See [`StoreError::Busy`].
    Busy(String),
    /// See [`StoreError::Refused`].
    Refused(String),
    /// See [`StoreError::Io`]: path, action, number of the system, text.
    Io(String, String, Option<i32>, String),
    /// See [`Error::Empty`].
    Empty(String),
    /// See [`Error::Full`].
    Full(String, u64),
    /// See [`Error::ShutDown`].
    ShutDown(String),
    /// See [`Error::ConsumerClosed`].
    ConsumerClosed(String),
    /// See [`Error::NotAssigned`].
    NotAssigned(String, String, i32),
    /// See [`Error::LeaseLost`].
    LeaseLost(String, i32, i64, u32),
    /// See [`Error::TransactionEnded`].
    TransactionEnded(String, String),
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Returns a text that lives as long as the process.
fn kept(text: String) -> &'static str {
    static KEPT: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut kept = KEPT.lock();
    if let Some(known) = kept.get(text.as_str()) {
        return known;
    }
    if text.len() > TEXT_BYTES || kept.len() >= KEPT_TEXTS {
        return "an unnamed part";
    }
    let text: &'static str = Box::leak(text.into_boxed_str());
    kept.insert(text);
    text
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Store(error) => Self::from(error),
            Error::Empty { queue } => Self::Empty(queue),
            Error::Full { queue, maxsize } => Self::Full(queue, maxsize),
            Error::ShutDown { queue } => Self::ShutDown(queue),
            Error::ConsumerClosed { group } => Self::ConsumerClosed(group),
            Error::NotAssigned { group, topic, queue_id } => Self::NotAssigned(group, topic, queue_id),
            Error::LeaseLost { topic, queue_id, queue_offset, attempt } => {
                Self::LeaseLost(topic, queue_id, queue_offset, attempt)
            }
            Error::TransactionEnded { id, outcome } => Self::TransactionEnded(id, outcome.to_owned()),
            other => Self::Refused(other.to_string()),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        use StoreError as E;
        match error {
            E::Closed { path } => Self::Closed(text(&path)),
            E::ReadOnly { path, action } => Self::ReadOnly(text(&path), action.to_owned()),
            E::Poisoned { path, stage, cause } => Self::Poisoned(text(&path), stage.to_owned(), cause),
            E::Corrupt { path, offset, reason } => Self::Corrupt(text(&path), offset, reason),
            E::Unsupported { path, reason } => Self::Unsupported(text(&path), reason),
            E::DiskFull { path, action, requested_bytes, free_bytes } => {
                Self::DiskFull(text(&path), action.to_owned(), requested_bytes, free_bytes)
            }
            E::DiskNearlyFull { path, reason, option } => {
                Self::DiskNearlyFull(text(&path), reason, option.to_owned())
            }
            E::Full { path, topic, quota, limit, used } => {
                Self::QuotaFull(text(&path), topic, quota.to_owned(), limit, used)
            }
            E::TooLarge { what, size, limit } => Self::TooLarge(what.to_owned(), size, limit),
            E::InvalidMessage { reason } => Self::InvalidMessage(reason),
            E::InvalidOption { option, reason } => Self::InvalidOption(option.to_owned(), reason),
            E::InvalidFilter { expression, position, reason } => {
                Self::InvalidFilter(expression, position as u64, reason)
            }
            E::TopicNotFound { topic, queue_id } => Self::TopicNotFound(topic, queue_id),
            E::OffsetOutOfRange { topic, queue_id, offset, min_offset, max_offset } => {
                Self::OffsetOutOfRange(topic, queue_id, offset, min_offset, max_offset)
            }
            E::Timeout { what, waited_ms } => Self::Timeout(what, waited_ms),
            E::NotReplicated { path, log_offset, log_end, copies, waited_ms } => {
                Self::NotReplicated(text(&path), log_offset, log_end, copies, waited_ms)
            }
            E::Busy { reason } => Self::Busy(reason),
            E::Refused { reason } => Self::Refused(reason),
            E::Io { path, action, source } => {
                Self::Io(text(&path), action.to_owned(), source.raw_os_error(), source.to_string())
            }
            other => Self::Refused(other.to_string()),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        use StoreError as E;
        let path = PathBuf::from;
        let store = match failure {
            Failure::Empty(queue) => return Self::Empty { queue },
            Failure::Full(queue, maxsize) => return Self::Full { queue, maxsize },
            Failure::ShutDown(queue) => return Self::ShutDown { queue },
            Failure::ConsumerClosed(group) => return Self::ConsumerClosed { group },
            Failure::NotAssigned(group, topic, queue_id) => {
                return Self::NotAssigned { group, topic, queue_id };
            }
            Failure::LeaseLost(topic, queue_id, queue_offset, attempt) => {
                return Self::LeaseLost { topic, queue_id, queue_offset, attempt };
            }
            Failure::TransactionEnded(id, outcome) => {
                return Self::TransactionEnded { id, outcome: kept(outcome) };
            }
            Failure::Closed(at) => E::Closed { path: path(at) },
            Failure::ReadOnly(at, action) => E::ReadOnly { path: path(at), action: kept(action) },
            Failure::Poisoned(at, stage, cause) => E::Poisoned { path: path(at), stage: kept(stage), cause },
            Failure::Corrupt(at, offset, reason) => E::Corrupt { path: path(at), offset, reason },
            Failure::Unsupported(at, reason) => E::Unsupported { path: path(at), reason },
            Failure::DiskFull(at, action, requested_bytes, free_bytes) => {
                E::DiskFull { path: path(at), action: kept(action), requested_bytes, free_bytes }
            }
            Failure::DiskNearlyFull(at, reason, option) => {
                E::DiskNearlyFull { path: path(at), reason, option: kept(option) }
            }
            Failure::QuotaFull(at, topic, quota, limit, used) => {
                E::Full { path: path(at), topic, quota: kept(quota), limit, used }
            }
            Failure::TooLarge(what, size, limit) => E::TooLarge { what: kept(what), size, limit },
            Failure::InvalidMessage(reason) => E::InvalidMessage { reason },
            Failure::InvalidOption(option, reason) => E::InvalidOption { option: kept(option), reason },
            Failure::InvalidFilter(expression, position, reason) => {
                E::InvalidFilter { expression, position: position as usize, reason }
            }
            Failure::TopicNotFound(topic, queue_id) => E::TopicNotFound { topic, queue_id },
            Failure::OffsetOutOfRange(topic, queue_id, offset, min_offset, max_offset) => {
                E::OffsetOutOfRange { topic, queue_id, offset, min_offset, max_offset }
            }
            Failure::Timeout(what, waited_ms) => E::Timeout { what, waited_ms },
            Failure::NotReplicated(at, log_offset, log_end, copies, waited_ms) => {
                E::NotReplicated { path: path(at), log_offset, log_end, copies, waited_ms }
            }
            Failure::Busy(reason) => E::Busy { reason },
            Failure::Refused(reason) => E::Refused { reason },
            Failure::Io(at, action, number, reason) => {
                let source = number.map_or_else(|| io::Error::other(reason), io::Error::from_raw_os_error);
                E::Io { path: path(at), action: kept(action), source }
            }
        };
        Self::Store(store)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_same_text_after_the_wire() {
        let errors = [
            Error::Empty { queue: "work queue a of group b".into() },
            Error::LeaseLost { topic: "a".into(), queue_id: 1, queue_offset: 2, attempt: 3 },
            StoreError::TopicNotFound { topic: "a".into(), queue_id: Some(4) }.into(),
            StoreError::Poisoned { path: "/s".into(), stage: "a sync", cause: "EIO".into() }.into(),
            StoreError::Io { path: "/s".into(), action: "open", source: io::Error::from_raw_os_error(13) }
                .into(),
            StoreError::Full { path: "/s".into(), topic: None, quota: "max_bytes", limit: 5, used: 6 }.into(),
        ];
        for error in errors {
            let wanted = error.to_string();
            let bytes = postcard::to_allocvec(&Failure::from(error)).unwrap();
            let failure: Failure = postcard::from_bytes(&bytes).unwrap();
            assert_eq!(Error::from(failure).to_string(), wanted);
        }
    }
}
