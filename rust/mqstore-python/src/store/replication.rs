//! How far the replicas of a store are, for Python.

use mqstore::replication::replica_set::{MasterStatus, ReplicaStatus};
use mqstore::replication::wire::Protocol;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::seconds;

/// Adds the figures of `StoreStats` about replicas.
pub(crate) fn add_figures(found: &Bound<'_, PyDict>, status: &MasterStatus) -> PyResult<()> {
    let in_sync = status.replicas.iter().filter(|replica| replica.in_sync).count();
    found.set_item("followers", status.replicas.len())?;
    found.set_item("in_sync_copies", 1 + in_sync)?;
    found.set_item("needed_copies", status.needed)?;
    found.set_item("replicated_offset", status.replicated_offset)?;
    let lag = status.replicas.iter().map(|replica| replica.lag_bytes).max();
    found.set_item("follower_lag_bytes", lag.unwrap_or(0))
}

/// Returns the replicas, by the names of `FollowerInfo`.
pub(crate) fn follower_dicts<'py>(
    py: Python<'py>,
    status: &MasterStatus,
) -> PyResult<Vec<Bound<'py, PyDict>>> {
    status.replicas.iter().map(|replica| follower_dict(py, replica)).collect()
}

fn follower_dict<'py>(py: Python<'py>, replica: &ReplicaStatus) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    found.set_item("address", &replica.address)?;
    found.set_item("protocol", replica.protocol.map(Protocol::name))?;
    found.set_item("broker_id", replica.broker_id)?;
    found.set_item("learner", replica.is_learner)?;
    found.set_item("log_end", replica.log_end)?;
    found.set_item("lag_bytes", replica.lag_bytes)?;
    found.set_item("lag_seconds", seconds(replica.lag_ms))?;
    found.set_item("in_sync", replica.in_sync)?;
    found.set_item("silent_seconds", seconds(replica.silent_ms))?;
    Ok(found)
}
