//! Live copies of a master for Python: the work of a follower, step by step.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mqstore::io::{OsVfs, SystemClock, Vfs};
use mqstore::replication::copy::{CopySetup, Master, demote, promote};
use mqstore::replication::replica::{Begin, ReplicaOptions};
use mqstore::replication::wire::Protocol;
use mqstore_server::follow::{FollowSetup, FollowState, Follower};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::convert::options;
use crate::error::{InvalidOptionError, MQStoreError};
use crate::runtime::{detached, files_at};

/// A follower: the connection to a master, and the copy, which it has open. One thread calls `step`.
#[pyclass(frozen, module = "mqstore._mqstore")]
pub(crate) struct FollowSession {
    /// A child of a fork leaks its copy, whose sockets it has closed.
    follower: Option<Follower>,
    pid: u32,
}

impl FollowSession {
    fn follower(&self) -> PyResult<&Follower> {
        self.follower.as_ref().ok_or_else(|| MQStoreError::new_err(("the follower has ended",)))
    }
}

impl Drop for FollowSession {
    fn drop(&mut self) {
        if process_id() != self.pid {
            #[expect(
                clippy::mem_forget,
                reason = "the child has closed the sockets, and has no thread for a close"
            )]
            std::mem::forget(self.follower.take());
        }
    }
}

fn process_id() -> u32 {
    OsVfs::new().environment().pid
}

#[pymethods]
impl FollowSession {
    /// Opens the copy.
    ///
    /// Args:
    ///     master: host and port of the master's HA service.
    ///     path: directory of the copy.
    ///     protocol: "default", "autoswitch" or "mqstore".
    ///     metadata: host and port of the broker, for its tables.
    ///     metadata_interval_ms: time between two looks at them.
    ///     begin: where an empty copy begins, "oldest" or "last".
    ///     broker_id: the id of this replica, for a master that asks for it; None takes the number of the copy.
    ///     learner: whether no append of the master waits for this replica.
    ///     durable_acks: whether the end is reported after a sync only.
    ///     full_copy: whether an earlier copy is removed first.
    ///     options: options of the store, in their native form.
    #[new]
    #[pyo3(signature = (
        master, path, *, protocol, metadata, metadata_interval_ms, begin, broker_id, learner, durable_acks, full_copy,
        options
    ))]
    #[expect(clippy::too_many_arguments, reason = "they have names")]
    fn new(
        py: Python<'_>,
        master: String,
        path: PathBuf,
        protocol: &str,
        metadata: Option<String>,
        metadata_interval_ms: u64,
        begin: &str,
        broker_id: Option<u64>,
        learner: bool,
        durable_acks: bool,
        full_copy: bool,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<Self> {
        let protocol = protocol_named(protocol)?;
        let begin = match begin {
            "oldest" => Begin::Oldest(None),
            "last" => Begin::LastSegment,
            other => return Err(not_one_of("begin", other, "\"oldest\" or \"last\"")),
        };
        let setup = FollowSetup {
            copy: CopySetup {
                vfs: Arc::new(OsVfs::new()),
                clock: Arc::new(SystemClock::new()),
                root: path,
                options: options::from_dict(options)?,
                master: Master { address: master, protocol },
            },
            replica: ReplicaOptions { protocol, broker_id, is_learner: learner, begin },
            metadata,
            metadata_interval: Duration::from_millis(metadata_interval_ms),
            durable_acks,
            full_copy,
        };
        detached(py, || Follower::open(setup))
            .map(|follower| Self { follower: Some(follower), pid: process_id() })
    }

    /// Works for at most about `wait_ms` milliseconds. Returns lines for the log of the program.
    fn step(&self, py: Python<'_>, wait_ms: u64) -> PyResult<Vec<String>> {
        let follower = self.follower()?;
        detached(py, || follower.step(Duration::from_millis(wait_ms)))
    }

    /// Returns how far the copy is, by the names of `FollowStatus`.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let status = self.follower()?.status();
        let found = PyDict::new(py);
        let state = match status.state {
            FollowState::Connecting => "connecting",
            FollowState::Comparing => "comparing",
            FollowState::Following => "following",
            FollowState::Ended => "ended",
        };
        found.set_item("state", state)?;
        found.set_item("log_end", status.progress.end)?;
        found.set_item("master_end", status.progress.master_end)?;
        found.set_item("epoch", status.progress.epoch)?;
        found.set_item("lag_ms", status.lag_ms)?;
        found.set_item("quiet_ms", status.quiet_ms)?;
        found.set_item("connections", status.connections)?;
        found.set_item("error", status.error)?;
        found.set_item("metadata_end", status.metadata_end)?;
        found.set_item("metadata_error", status.metadata_error)?;
        Ok(found)
    }

    /// Closes the copy. A second call does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let follower = self.follower()?;
        detached(py, || follower.close())
    }
}

fn protocol_named(name: &str) -> PyResult<Protocol> {
    let refused = || not_one_of("protocol", name, "\"default\", \"autoswitch\" or \"mqstore\"");
    Protocol::named(name).ok_or_else(refused)
}

fn not_one_of(option: &str, value: &str, wanted: &str) -> PyErr {
    InvalidOptionError::new_err((option.to_owned(), format!("must be {wanted}, not {value:?}")))
}

/// Makes the copy at `path` a store of its own. Returns its former master, or None.
#[pyfunction]
fn promote_copy(py: Python<'_>, path: PathBuf) -> PyResult<Option<String>> {
    let promoted = detached(py, || promote(&files_at(&path)))?;
    Ok(promoted.map(|master| master.address))
}

/// Makes the store at `path` a copy of `master`.
#[pyfunction]
fn demote_store(py: Python<'_>, path: PathBuf, master: String, protocol: &str) -> PyResult<()> {
    let protocol = protocol_named(protocol)?;
    detached(py, || demote(&files_at(&path), &Master { address: master, protocol }))
}

/// Adds the class and the functions.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<FollowSession>()?;
    module.add_function(wrap_pyfunction!(demote_store, module)?)?;
    module.add_function(wrap_pyfunction!(promote_copy, module)?)
}
