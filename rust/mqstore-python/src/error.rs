//! Converts the core's errors to Python exceptions.
//!
//! Each variant of [`StoreError`] has its class in `mqstore.errors`. A variant that this file does not know becomes the
//! base class with its text, so that no later error of the core is lost.

use std::fmt;
use std::path::Path;

use mqstore::delivery::BrokerError;
use mqstore::error::{StoreError, disk_option, remedy, unreplicated};
use mqstore::format::FormatError;
use mqstore::io::{RemoteCause, RemoteError};
use mqstore::notes::Notes;
use mqstore::replication::copy::Master;
use pyo3::exceptions::{PyKeyboardInterrupt, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

mod classes {
    use pyo3::import_exception;
    use pyo3::prelude::*;

    macro_rules! classes {
        ($($name:ident),* $(,)?) => {
            $(import_exception!(mqstore.errors, $name);)*

            /// Imports all classes. A class that was not used before could not be imported while the interpreter ends,
            /// and the error of a destructor would end the process.
            pub(crate) fn import_all(py: Python<'_>) -> PyResult<()> {
                py.import("mqstore.errors")?;
                $(py.get_type::<$name>();)*
                Ok(())
            }
        };
    }

    classes!(
        MQStoreError,
        StoreLockedError,
        StoreClosedError,
        ForkedProcessError,
        StoreReadOnlyError,
        StorePoisonedError,
        StoreIOError,
        StorePermissionError,
        StoreChangedError,
        RemoteStoreError,
        DiskFullError,
        NotAStoreError,
        CorruptionError,
        UnsupportedFormatError,
        MessageTooLargeError,
        InvalidMessageError,
        InvalidFilterError,
        InvalidOptionError,
        TopicNotFoundError,
        OffsetOutOfRangeError,
        RefusedError,
        ResultExistsError,
        ResultNotFoundError,
        StoreTimeoutError,
        StoreBusyError,
        ConsumerClosedError,
        QueueNotAssignedError,
        LeaseLostError,
        Empty,
        Full,
        QuotaFull,
        ShutDown,
    );
}

pub(crate) use classes::*;

/// Returns a duration in the unit of Python.
pub(crate) fn seconds(ms: u64) -> f64 {
    std::time::Duration::from_millis(ms).as_secs_f64()
}

/// Converts a core error to a Python exception.
pub(crate) fn to_py(error: StoreError) -> PyErr {
    match error {
        StoreError::NotAStore { path, reason } => NotAStoreError::new_err((text(&path), reason)),
        StoreError::Locked { path, pid } => StoreLockedError::new_err((text(&path), pid)),
        StoreError::Closed { path } => StoreClosedError::new_err((text(&path),)),
        StoreError::ReadOnly { path, action } => {
            let master = Master::at(&path).map(|master| master.address);
            StoreReadOnlyError::new_err((text(&path), action, master))
        }
        StoreError::Follows { path, master } => {
            StoreReadOnlyError::new_err((text(&path), "change it", Some(master)))
        }
        StoreError::Poisoned { path, stage, cause } => {
            StorePoisonedError::new_err((text(&path), stage, cause))
        }
        StoreError::Corrupt { path, offset, reason } => {
            CorruptionError::new_err((text(&path), offset, reason))
        }
        StoreError::Unsupported { path, reason } => UnsupportedFormatError::new_err((text(&path), reason)),
        StoreError::DiskFull { path, action, requested_bytes, free_bytes } => {
            let reason = "no space left on the device";
            let option = disk_option(&path);
            DiskFullError::new_err((text(&path), action, reason, requested_bytes, free_bytes, option))
        }
        StoreError::DiskNearlyFull { path, reason, option } => {
            let unknown = None::<u64>;
            DiskFullError::new_err((text(&path), "appending", reason, unknown, unknown, option))
        }
        StoreError::TooLarge { what, size, limit } => MessageTooLargeError::new_err((what, size, limit)),
        StoreError::InvalidMessage { reason } => InvalidMessageError::new_err((reason,)),
        StoreError::InvalidFilter { expression, position, reason } => {
            InvalidFilterError::new_err((expression, position, reason))
        }
        StoreError::InvalidOption { option, reason } => InvalidOptionError::new_err((option, reason)),
        StoreError::TopicNotFound { topic, queue_id } => TopicNotFoundError::new_err((topic, queue_id)),
        StoreError::OffsetOutOfRange { topic, queue_id, offset, min_offset, max_offset } => {
            OffsetOutOfRangeError::new_err((topic, queue_id, offset, min_offset, max_offset))
        }
        StoreError::Timeout { what, waited_ms } => StoreTimeoutError::new_err((what, seconds(waited_ms))),
        StoreError::NotReplicated { path, log_offset, log_end, copies, waited_ms } => {
            let what = unreplicated(&path, log_offset, log_end, copies);
            StoreTimeoutError::new_err((what, seconds(waited_ms), log_offset))
        }
        StoreError::Refused { reason } => RefusedError::new_err((reason,)),
        StoreError::Full { path, topic, quota, limit, used } => {
            QuotaFull::new_err((text(&path), topic, quota, limit, used))
        }
        StoreError::Busy { reason } => StoreBusyError::new_err((reason,)),
        StoreError::ResultNotFound { path } => ResultNotFoundError::new_err((path,)),
        StoreError::WrongTarget { path, action, reason } => RemoteStoreError::new_err((path, action, reason)),
        StoreError::ResultExists { path, reason } => ResultExistsError::new_err((path, reason)),
        StoreError::Io { path, action, source } => io(&path, action, &source),
        other => MQStoreError::new_err((other.to_string(),)),
    }
}

/// An exception of a callback or a transport, in an error of the core. [`to_py`] gives it back unchanged.
#[derive(Debug)]
pub(crate) struct Raised {
    error: PyErr,
    name: String,
}

impl Raised {
    pub(crate) fn new(py: Python<'_>, error: PyErr) -> Self {
        let name = error.get_type(py).name().map_or_else(|_| "failed".to_owned(), |name| name.to_string());
        Self { error, name }
    }
}

impl fmt::Display for Raised {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The text of an exception may contain secrets.
        out.write_str(&self.name)
    }
}

impl std::error::Error for Raised {}

/// Converts an error of a consumer or a work queue to a Python exception.
pub(crate) fn broker_to_py(error: BrokerError) -> PyErr {
    match error {
        BrokerError::Store(error) => to_py(error),
        BrokerError::Empty { queue } => Empty::new_err((queue,)),
        BrokerError::Full { queue, maxsize } => Full::new_err((queue, maxsize)),
        BrokerError::ShutDown { queue } => ShutDown::new_err((queue,)),
        BrokerError::ConsumerClosed { group } => ConsumerClosedError::new_err((group,)),
        BrokerError::NotAssigned { group, topic, queue_id } => {
            QueueNotAssignedError::new_err((group, topic, queue_id))
        }
        BrokerError::LeaseLost { topic, queue_id, queue_offset, attempt } => {
            LeaseLostError::new_err((topic, queue_id, queue_offset, attempt))
        }
        error @ BrokerError::TransactionEnded { .. } => RefusedError::new_err((error.to_string(),)),
        // The class and the texts of `queue.Queue`.
        error @ BrokerError::NothingToDo => PyValueError::new_err(error.to_string()),
        other => MQStoreError::new_err((other.to_string(),)),
    }
}

/// Returns the store's error of a verb that has no others.
pub(crate) fn of_store(error: BrokerError) -> StoreError {
    match error {
        BrokerError::Store(error) => error,
        other => StoreError::Refused { reason: other.to_string() },
    }
}

/// Returns the error for a record at `offset` of the log that does not decode.
pub(crate) fn bad_record(offset: u64, error: &FormatError) -> PyErr {
    CorruptionError::new_err(("commitlog", offset, error.to_string()))
}

/// Returns the error for an argument that the format cannot hold.
pub(crate) fn invalid(reason: impl Into<String>) -> PyErr {
    InvalidMessageError::new_err((reason.into(),))
}

/// Returns the error for a failed request to the URL of a store.
fn remote(error: &RemoteError, action: &'static str) -> PyErr {
    const EACCES: i32 = 13;
    const ENOENT: i32 = 2;
    let (path, reason) = (text(&error.path), error.reason.clone());
    match error.cause {
        RemoteCause::Denied => StorePermissionError::new_err((path, action, EACCES, reason)),
        RemoteCause::Full => {
            let unknown = None::<u64>;
            let text = "no space left on the device";
            DiskFullError::new_err((path, action, text, unknown, unknown, ""))
        }
        RemoteCause::Damaged => CorruptionError::new_err((path, 0, reason)),
        RemoteCause::Changed => StoreChangedError::new_err((path, reason)),
        RemoteCause::Interrupted => PyKeyboardInterrupt::new_err(()),
        RemoteCause::NoBucket => StoreIOError::new_err((path, action, ENOENT, reason)),
        RemoteCause::Other => StoreIOError::new_err((path, action, EIO, reason)),
    }
}

/// The number for an error without a system call: "input/output error".
pub(crate) const EIO: i32 = 5;

fn io(path: &Path, action: &'static str, source: &std::io::Error) -> PyErr {
    if let Some(error) = RemoteError::of(source) {
        return remote(error, action);
    }
    if let Some(raised) = source.get_ref().and_then(|inner| inner.downcast_ref::<Raised>()) {
        return Python::attach(|py| raised.error.clone_ref(py));
    }
    let number = source.raw_os_error().unwrap_or(EIO);
    let reason = strip_number(&source.to_string()) + remedy(source).unwrap_or_default();
    let arguments = (text(path), action, number, reason);
    if source.kind() == std::io::ErrorKind::PermissionDenied {
        return StorePermissionError::new_err(arguments);
    }
    StoreIOError::new_err(arguments)
}

/// Removes Rust's suffix "(os error 13)": Python shows the number on its own.
pub(crate) fn strip_number(text: &str) -> String {
    text.split(" (os error ").next().unwrap_or(text).to_owned()
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Adds "message `index`: " to the reason of an error, for one of many messages.
pub(crate) fn of_message(py: Python<'_>, index: usize, error: PyErr) -> PyErr {
    if !error.is_instance_of::<InvalidMessageError>(py) {
        return error;
    }
    let reason = error.value(py).to_string();
    InvalidMessageError::new_err((format!("message {index}: {reason}"),))
}

/// Emits `StoreWarning(text)` for the line of the program that called mqstore.
pub(crate) fn warn(py: Python<'_>, text: &str) -> PyResult<()> {
    py.import("mqstore._warn")?.call_method1("warn", (text,))?;
    Ok(())
}

/// Logs the new notes about the delivery of messages in the logger `mqstore`.
pub(crate) fn log_notes(py: Python<'_>, notes: &Notes) -> PyResult<()> {
    static GET_LOGGER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let lines = notes.take_lines();
    if lines.is_empty() {
        return Ok(());
    }
    let logger = GET_LOGGER.import(py, "logging", "getLogger")?.call1(("mqstore",))?;
    for line in lines {
        logger.call_method1("warning", ("%s", line))?;
    }
    Ok(())
}
