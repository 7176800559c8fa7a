//! Delayed messages: the time arguments of `append`, and the functions that change waiting messages.

use mqstore::Store;
use mqstore::delivery::{DelayCounts, Due, JobRequest};
use mqstore::io::Clock;
use mqstore::message::NewMessage;
use mqstore::options::OpenMode;
use mqstore_server::share::Later;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::convert::append_result::AppendResult;
use crate::convert::arguments::{duration, number, time};
use crate::error::log_notes;
use crate::runtime::{delivered, detached};
use crate::store::NativeStore;

/// New messages of each work queue that are read for their delays, if all work queues are only counted.
pub(crate) const MOST_READ: u64 = 100_000;

/// The arguments of `append` that give the time of delivery.
pub(crate) struct DeliveryTime<'a, 'py> {
    pub(crate) delay: Option<&'a Bound<'py, PyAny>>,
    pub(crate) deliver_at: Option<&'a Bound<'py, PyAny>>,
    pub(crate) level: Option<&'a Bound<'py, PyAny>>,
}

impl DeliveryTime<'_, '_> {
    /// Whether one of them is given.
    #[inline]
    pub(crate) fn is_given(&self) -> bool {
        self.delay.is_some() || self.deliver_at.is_some() || self.level.is_some()
    }

    /// Returns the time at which a message is due; `None` for immediate delivery.
    pub(crate) fn due(&self, clock: &dyn Clock) -> PyResult<Option<Due>> {
        match (self.delay, self.deliver_at, self.level) {
            (None, None, None) => Ok(None),
            (Some(delay), None, None) => {
                // Rounds up to a full millisecond, so that no message is early.
                let delay = duration("delay", delay)?.as_micros().div_ceil(1000);
                let delay_ms = i64::try_from(delay).unwrap_or(i64::MAX);
                Ok(Some(Due::At(clock.now_ms().saturating_add(delay_ms))))
            }
            (None, Some(when), None) => Ok(Some(Due::At(time("deliver_at", when)?))),
            (None, None, Some(level)) => {
                let level = number("delay_level", level)?;
                Ok(Some(Due::Level(i32::try_from(level).unwrap_or(if level < 0 { 0 } else { i32::MAX }))))
            }
            _ => Err(PyTypeError::new_err("give only one of delay, deliver_at and delay_level")),
        }
    }
}

/// Appends a message for later delivery.
pub(crate) fn append(
    topic: &Bound<'_, PyString>,
    store: &NativeStore,
    message: NewMessage<'_>,
    due: Due,
) -> PyResult<AppendResult> {
    let (py, verbs) = (topic.py(), store.verbs()?);
    let accepted = delivered(py, || verbs.append_later(&message, due))?;
    Ok(result(topic, store, accepted))
}

fn result(topic: &Bound<'_, PyString>, store: &NativeStore, accepted: Later) -> AppendResult {
    let (appended, waits_in) = accepted;
    match waits_in {
        Some(waits_in) => {
            AppendResult::from_core(&PyString::intern(topic.py(), &waits_in), store.host(), appended)
        }
        None => AppendResult::from_core(topic, store.host(), appended),
    }
}

/// Starts the broker of a store that is open for writing. The core decides what it delivers.
pub(crate) fn begin(py: Python<'_>, store: &Store) -> PyResult<()> {
    if store.mode() == OpenMode::Read {
        return Ok(());
    }
    delivered(py, || store.broker())?;
    log_notes(py, store.user_notes())
}

/// Cancels a delayed message; `Store.cancel`.
#[pyfunction]
pub(crate) fn cancel_delayed(store: &Bound<'_, NativeStore>, id: &str) -> PyResult<bool> {
    let verbs = store.get().verbs()?;
    delivered(store.py(), || verbs.cancel_delayed(id))
}

/// Moves a delayed message to another time; `Store.reschedule`.
#[pyfunction]
#[pyo3(signature = (store, id, delay, deliver_at))]
pub(crate) fn reschedule_delayed(
    store: &Bound<'_, NativeStore>,
    id: &str,
    delay: Option<&Bound<'_, PyAny>>,
    deliver_at: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<AppendResult>> {
    let (py, core) = (store.py(), store.get().core()?);
    let when = DeliveryTime { delay, deliver_at, level: None };
    let Some(Due::At(due_ms)) = when.due(&**core.clock())? else {
        return Err(PyTypeError::new_err("give delay or deliver_at"));
    };
    let verbs = store.get().verbs()?;
    let moved = delivered(py, || verbs.reschedule(id, due_ms))?;
    // A message that is due is already in its own topic.
    let Some(accepted) = moved else { return Ok(None) };
    let topic = if let Some(topic) = &accepted.1 {
        topic.clone()
    } else {
        let offset = accepted.0.commit_log_offset;
        let record = detached(py, || core.log().get_at(offset))?;
        record.view().map_or_else(|_| String::new(), |view| view.topic.to_owned())
    };
    Ok(Some(result(&PyString::new(py, &topic), store.get(), accepted)))
}

/// Returns the counts of delayed messages; `Store.delays`.
#[pyfunction]
pub(crate) fn delay_counts<'py>(store: &Bound<'py, NativeStore>) -> PyResult<Bound<'py, PyDict>> {
    let (py, core) = (store.py(), store.get().core()?);
    let counts = if store.get().shared().share()?.is_none() && core.mode() == OpenMode::Read {
        detached(py, || DelayCounts::of_reader(core))?
    } else {
        let verbs = store.get().verbs()?;
        let counts = delivered(py, || verbs.delay_counts())?;
        log_notes(py, core.user_notes())?;
        counts
    };
    let request = JobRequest { topic: None, most: 0, read: MOST_READ };
    let jobs = detached(py, || mqstore::delivery::jobs(core, &request))?;
    let dict = PyDict::new(py);
    dict.set_item("pending", counts.pending)?;
    dict.set_item("jobs", jobs.values().map(|of| of.counts.delayed).sum::<u64>())?;
    dict.set_item("next_due", counts.next_due_ms)?;
    dict.set_item("delivered", counts.delivered)?;
    dict.set_item("cancelled", counts.cancelled)?;
    dict.set_item("dropped", counts.dropped)?;
    dict.set_item("late_p99", counts.late_p99_ms as f64 / 1000.0)?;
    dict.set_item("late_max", counts.late_max_ms as f64 / 1000.0)?;
    Ok(dict)
}

/// Adds the functions to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(cancel_delayed, module)?)?;
    module.add_function(wrap_pyfunction!(reschedule_delayed, module)?)?;
    module.add_function(wrap_pyfunction!(delay_counts, module)?)
}
