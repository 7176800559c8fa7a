//! `LeasedMessage`: a message that a work queue delivered, with its lease.

use std::sync::Arc;

use mqstore_delivery::{Lease, LeasedMessage as Leased};
use pyo3::prelude::*;

use crate::convert::stored_message::StoredMessage;
use crate::runtime::{ForkGuarded, SharedStore};

/// A message from a work queue: a `StoredMessage` and the lease on it.
///
/// No other worker gets the message until you finish it (`ack`), return it (`nack`), or `invisible_until` has passed.
/// It is equal to the same stored message. A pickled copy is the stored message without the lease.
#[pyclass(frozen, extends = StoredMessage, module = "mqstore")]
pub(crate) struct LeasedMessage {
    lease: ForkGuarded<Lease>,
}

impl LeasedMessage {
    /// Returns the Python object for a delivered message.
    pub(crate) fn from_core<'py>(
        py: Python<'py>,
        shared: &Arc<SharedStore>,
        leased: Leased,
    ) -> PyResult<Bound<'py, Self>> {
        let Leased { record, lease } = leased;
        let own = Self { lease: ForkGuarded::new(Arc::clone(shared), lease) };
        Bound::new(py, PyClassInitializer::from(StoredMessage::from(record)).add_subclass(own))
    }

    /// Returns the lease, which is the right to finish the message.
    pub(crate) fn lease(&self) -> PyResult<&Lease> {
        self.lease.get()
    }
}

#[pymethods]
impl LeasedMessage {
    /// The number of this delivery, counted from 1.
    #[getter]
    fn attempt(&self) -> PyResult<u32> {
        Ok(self.lease()?.attempt())
    }

    /// The end of the lease, in epoch milliseconds; `extend` moves it.
    #[getter]
    fn invisible_until(&self) -> PyResult<i64> {
        Ok(self.lease()?.expires_ms())
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let kind = format!("LeasedMessage(attempt={}, ", slf.get().attempt()?);
        slf.as_super().get().shown(slf.py(), &kind)
    }
}
