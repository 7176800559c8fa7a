//! `LeasedMessage`: a message that a work queue delivered, with its lease.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use mqstore_server::share::{Lease, LeasedMessage as Leased};
use pyo3::exceptions::{PyBaseException, PyReferenceError, PyTypeError};
use pyo3::prelude::*;

use crate::convert::arguments::{duration, text};
use crate::convert::stored_message::StoredMessage;
use crate::error::log_notes;
use crate::runtime::{ForkGuarded, SharedStore, delivered};

/// What one handle of a work queue decides about its messages.
pub(crate) struct HandleRules {
    pub(crate) visibility_timeout: Duration,
    pub(crate) backoff: Option<Py<PyAny>>,
}

impl HandleRules {
    /// Returns the delay of a returned message: the caller's, or else the result of the queue's `backoff`.
    pub(crate) fn delay(
        &self,
        py: Python<'_>,
        delay: Option<&Bound<'_, PyAny>>,
        attempt: u32,
    ) -> PyResult<Option<Duration>> {
        match (delay, &self.backoff) {
            (Some(delay), _) => duration("delay", delay).map(Some),
            (None, Some(backoff)) => duration("backoff", &backoff.bind(py).call1((attempt,))?).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// Returns a message to its queue.
    pub(crate) fn nack(
        &self,
        py: Python<'_>,
        lease: &Lease,
        delay: Option<&Bound<'_, PyAny>>,
        reason: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let reason = reason.map(|reason| text("reason", reason)).transpose()?;
        let reason = reason.as_ref().map(|reason| reason.to_string_lossy());
        let delay = self.delay(py, delay, lease.attempt())?;
        delivered(py, || lease.nack_with(delay, reason.as_deref()))?;
        log_notes(py, lease.user_notes())
    }

    /// Sets the end of a lease.
    pub(crate) fn extend(
        &self,
        py: Python<'_>,
        lease: &Lease,
        time: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let time = time.map_or(Ok(self.visibility_timeout), |time| duration("duration", time))?;
        delivered(py, || lease.extend(time))
    }
}

/// A message from a work queue: a `StoredMessage` and the lease on it.
///
/// No other worker gets the message until you finish it (`ack`), return it (`nack`), or `invisible_until` has passed.
/// A `with` block does this for you: its end acknowledges the message, and an exception returns it, with the exception
/// as the reason. The exception continues. It is equal to the same stored message. A pickled copy is the stored message
/// without the lease.
#[pyclass(frozen, extends = StoredMessage, module = "mqstore")]
pub(crate) struct LeasedMessage {
    lease: ForkGuarded<Lease>,
    rules: Arc<HandleRules>,
    /// A weak reference to the `mqstore.aio.WorkQueue` that got it, if one did.
    loop_queue: OnceLock<Py<PyAny>>,
}

impl LeasedMessage {
    /// Returns the Python object for a delivered message.
    pub(crate) fn from_core<'py>(
        py: Python<'py>,
        shared: &Arc<SharedStore>,
        leased: Leased,
        rules: &Arc<HandleRules>,
    ) -> PyResult<Bound<'py, Self>> {
        let Leased { record, lease } = leased;
        let lease = ForkGuarded::new(Arc::clone(shared), lease);
        let own = Self { lease, rules: Arc::clone(rules), loop_queue: OnceLock::new() };
        Bound::new(py, PyClassInitializer::from(StoredMessage::from(record)).add_subclass(own))
    }

    /// Returns the lease, which is the right to finish the message.
    pub(crate) fn lease(&self) -> PyResult<&Lease> {
        self.lease.get()
    }

    /// Returns the `mqstore.aio.WorkQueue` that got the message.
    fn loop_queue<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let Some(queue) = self.loop_queue.get() else {
            return Err(PyTypeError::new_err(
                "use `with`: the message is not from a work queue of mqstore.aio",
            ));
        };
        let queue = queue.bind(py).call0()?;
        if queue.is_none() {
            return Err(PyReferenceError::new_err("the work queue of the message does not exist any more"));
        }
        Ok(queue)
    }
}

/// Returns an exception as a reason: its class and its text.
#[pyfunction]
pub(crate) fn reason_of(error: &Bound<'_, PyAny>) -> PyResult<String> {
    let kind = error.get_type().qualname()?.to_string_lossy().into_owned();
    let text = error.str().map(|text| text.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(if text.is_empty() { kind } else { format!("{kind}: {text}") })
}

/// Returns whether `ack` or `nack` has settled the message.
#[pyfunction]
pub(crate) fn is_settled(message: &Bound<'_, LeasedMessage>) -> PyResult<bool> {
    Ok(message.get().lease()?.is_settled())
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
        Ok(self.lease()?.invisible_until_ms())
    }

    /// Acknowledges the message: it is not delivered again. A second `ack` changes nothing.
    ///
    /// Args:
    ///     durable: whether to wait until the acknowledgement is on the disk. Without it, that happens within 0.1 s.
    ///
    /// Raises:
    ///     LeaseLostError: the lease ended and another worker got the message, or you returned it.
    #[pyo3(signature = (*, durable = false))]
    fn ack(&self, py: Python<'_>, durable: bool) -> PyResult<()> {
        let lease = self.lease()?;
        delivered(py, || lease.ack(durable))
    }

    /// Returns the message to its queue, so that it is redelivered later: see `WorkQueue.nack`.
    ///
    /// Args:
    ///     delay: time before the redelivery, in seconds or as a `timedelta`, at most 30 days; None uses the queue's
    ///         `backoff`.
    ///     reason: text that a dead letter keeps as its property `mqstore.reason`.
    ///
    /// Raises:
    ///     LeaseLostError: the lease ended and another worker got the message, or you returned it before.
    #[pyo3(signature = (delay = None, *, reason = None))]
    fn nack(
        &self,
        py: Python<'_>,
        delay: Option<&Bound<'_, PyAny>>,
        reason: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.rules.nack(py, self.lease()?, delay, reason)
    }

    /// Sets the end of the lease to `duration` from now, whatever time is left.
    ///
    /// Args:
    ///     duration: seconds or a `timedelta`, 1 ms to 30 days; None is the `visibility_timeout` of the queue that got
    ///         the message.
    ///
    /// Raises:
    ///     LeaseLostError: the lease ended and another worker got the message, or you returned it.
    ///     InvalidOptionError: `duration` is out of bounds.
    #[pyo3(signature = (duration = None))]
    fn extend(&self, py: Python<'_>, duration: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        self.rules.extend(py, self.lease()?, duration)
    }

    fn _bind(&self, queue: Py<PyAny>) {
        drop(self.loop_queue.set(queue));
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        if slf.get().loop_queue.get().is_some() {
            return Err(PyTypeError::new_err(
                "use `async with`: the message is from a work queue of mqstore.aio",
            ));
        }
        Ok(slf)
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let lease = self.lease()?;
        if lease.is_settled() {
            return Ok(());
        }
        let Ok(error) = error.cast::<PyBaseException>() else {
            return delivered(py, || lease.ack(false));
        };
        let reason = reason_of(error)?.into_pyobject(py)?.into_any();
        if let Err(failed) = self.rules.nack(py, lease, None, Some(&reason)) {
            // The exception of the block matters more.
            let note = format!("mqstore could not return the message to its queue: {failed}");
            error.call_method1("add_note", (note,))?;
        }
        Ok(())
    }

    fn __aenter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.get().loop_queue(slf.py())?.call_method1("_enter", (slf,))
    }

    fn __aexit__<'py>(
        slf: &Bound<'py, Self>,
        _kind: &Bound<'py, PyAny>,
        error: &Bound<'py, PyAny>,
        _traceback: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().loop_queue(slf.py())?.call_method1("_leave", (slf, error))
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let kind = format!("LeasedMessage(attempt={}, ", slf.get().attempt()?);
        slf.as_super().get().shown(slf.py(), &kind)
    }
}
