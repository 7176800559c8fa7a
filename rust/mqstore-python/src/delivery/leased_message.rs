//! `LeasedMessage`: a message that a work queue handed out, with the right to finish it.

use std::sync::Arc;

use mqstore_delivery::{Lease, LeasedMessage as Leased};
use pyo3::prelude::*;

use crate::convert::stored_message::StoredMessage;
use crate::runtime::{Kept, Shared};

/// A message that was got from a work queue: a `StoredMessage`, and the lease on it.
///
/// Whoever has it has it alone until it is finished (`ack`), given back (`nack`), or `invisible_until` has passed.
/// Equal to the same stored message; a pickled copy is the stored message without the lease.
#[pyclass(frozen, extends = StoredMessage, module = "mqstore")]
pub(crate) struct LeasedMessage {
    lease: Kept<Lease>,
}

impl LeasedMessage {
    /// The Python object of a message that was got.
    pub(crate) fn from_core<'py>(
        py: Python<'py>,
        shared: &Arc<Shared>,
        leased: Leased,
    ) -> PyResult<Bound<'py, Self>> {
        let Leased { record, lease } = leased;
        let own = Self { lease: Kept::new(Arc::clone(shared), lease) };
        Bound::new(py, PyClassInitializer::from(StoredMessage::from(record)).add_subclass(own))
    }

    /// The right to finish it.
    pub(crate) fn lease(&self) -> PyResult<&Lease> {
        self.lease.get()
    }
}

#[pymethods]
impl LeasedMessage {
    /// Which delivery of the message this is; 1 is the first.
    #[getter]
    fn attempt(&self) -> PyResult<u32> {
        Ok(self.lease()?.attempt())
    }

    /// Until when nobody else gets it, in epoch milliseconds; `extend` moves it.
    #[getter]
    fn invisible_until(&self) -> PyResult<i64> {
        Ok(self.lease()?.expires_ms())
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let kind = format!("LeasedMessage(attempt={}, ", slf.get().attempt()?);
        slf.as_super().get().shown(slf.py(), &kind)
    }
}
